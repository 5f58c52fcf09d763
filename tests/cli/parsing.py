"""What the command line makes of its arguments, without doing what they ask for."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import pytest

from zo_sweeps.cli.main import main


class _ParsedError(Exception):
    pass


def parse(arguments: Sequence[str], capsys: pytest.CaptureFixture[str]) -> argparse.Namespace:
    """The options that the real command line reads from `arguments`. Fails with its message if it refuses them."""

    def stop_after(name: str) -> Any:
        read = getattr(argparse.ArgumentParser, name)

        def reading(*given: Any, **named: Any) -> None:
            raise _ParsedError(read(*given, **named))

        return reading

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(argparse.ArgumentParser, "parse_args", stop_after("parse_args"))
        patch.setattr(argparse.ArgumentParser, "parse_intermixed_args", stop_after("parse_intermixed_args"))
        try:
            main(arguments)
        except _ParsedError as parsed:
            options = parsed.args[0]
            assert isinstance(options, argparse.Namespace)
            return options
        except SystemExit:
            pass
    pytest.fail(f"{' '.join(arguments)}: {capsys.readouterr().err.strip()}")
