"""A parser of command lines whose errors are errors for users."""

from __future__ import annotations

import argparse
from typing import NoReturn

from zo_sweeps.core.errors import UserError


class Parser(argparse.ArgumentParser):
    """Raises UserError where argparse prints its usage and exits."""

    def error(self, message: str) -> NoReturn:
        raise UserError(message, fix=f"see {self.prog} --help")
