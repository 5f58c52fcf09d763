"""How a command ends: with its exit status, and an error in one line."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from io import TextIOWrapper
from shutil import get_terminal_size

from zo_sweeps.cli.lines import wrapped
from zo_sweeps.core.errors import UserError
from zo_sweeps.core.units import visible


def ended(run: Callable[[], int]) -> int:
    """Return the exit status of `run`: its own, 2 after an error for the user (printed), 130 when interrupted."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # an encoding without "±" is no reason to stop a sweep
            stream.reconfigure(errors="replace")
    try:
        return run()
    except UserError as error:
        line = visible(f"zo_sweeps: {error}")
        print(wrapped(line, get_terminal_size().columns) if sys.stderr.isatty() else line, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # `zo-sweeps table | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
