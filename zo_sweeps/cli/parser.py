"""An argument parser whose errors are UserErrors."""

from __future__ import annotations

import argparse
from typing import NoReturn

from zo_sweeps.core.errors import UserError


class Parser(argparse.ArgumentParser):
    """An ArgumentParser that raises UserError where argparse would print its usage and exit."""

    def error(self, message: str) -> NoReturn:
        raise UserError(message, fix=f"see {self.prog} --help")
