"""Parsers of the commands: overrides of Hydra beside flags, what overrides lead to, and how an error is printed."""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from io import TextIOWrapper
from os.path import expanduser
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from zo_sweeps.cli.text import columns_kept, wrapped
from zo_sweeps.core.document import keys
from zo_sweeps.core.errors import UserError
from zo_sweeps.core.host import VERSION
from zo_sweeps.core.units import visible

if TYPE_CHECKING:
    from zo_sweeps.config.composer import Composer
    from zo_sweeps.record.sweep_book import Command
    from zo_sweeps.results.past_sweeps import ReadablePlan

N = TypeVar("N", int, float)
DEFAULT_GRID = "quickstart"
EXAMPLES = """\
overrides (Hydra's grammar, before or after the flags):
  +grid=NAME            the grid; default: quickstart
  task=sst2,rte         restricts or replaces an axis, or overrides a value that the grid fixes
  update.lr=1e-3        so do train.steps=200 and all others; grid.seeds=[0,1,2]
  model=local           with model.path=FOLDER: a model of your own; data.dir=FOLDER: data of your own
  scale=smoke           or short, paper: steps and examples of each trial
  executor=inline       runs in this process; cluster.address=HOST:PORT joins a Ray cluster
  state_dir=FOLDER      the results; default: zo_runs

examples:
  python -m zo_sweeps
  python -m zo_sweeps plan +grid=llama2_superglue
  python -m zo_sweeps +grid=prge_table3 scale=smoke model=random_llama
  python -m zo_sweeps table +grid=llama2_superglue --format latex
"""


class Help(argparse.HelpFormatter):
    """A formatter that keeps the lines of descriptions, and wraps those that are wider than the terminal."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return columns_kept(text, width)


class Parser(argparse.ArgumentParser):
    """An ArgumentParser that raises UserError where argparse would print its usage and exit."""

    def __init__(self, **options: Any) -> None:
        # Flags are written out: a worker's unit reads them by name, and one of a later version may share a start.
        super().__init__(**options, formatter_class=Help, allow_abbrev=False)

    def add_json(self, documents: Mapping[str, type], what: str = "a JSON object") -> None:
        """Add --json, with the keys of what it prints below the help.

        Args:
            documents: case ("with an id"; "" for the usual one) -> the document that it prints then.
            what: the whole that it prints.
        """
        self.add_argument("--json", action="store_true", help=f"print {what} instead; see below")
        for case, document in documents.items():
            names = list(keys(document))
            longest = max(len(name) for name, _ in names)
            listed = "\n".join(f"  {name:{longest}}  {text}" for name, text in names)
            flag = f"--json {case}".strip()
            title = f"keys of {flag} ([]: of each entry; a number that is unknown is null):"
            self.epilog = f"{self.epilog or ''}\n{title}\n{listed}\n"

    def add_order(self) -> None:
        """Add --order."""
        from zo_sweeps.plan.order import ORDERS

        text = "grid: rows one after the other (the default); information: first a number for every row and column, "
        text += "then the search, then further seeds"
        self.add_argument("--order", choices=list(ORDERS), default="grid", help=text)

    def error(self, message: str) -> NoReturn:
        raise UserError(message, fix=f"see {self.prog} --help")


def number(kind: type[N], most: float = math.inf) -> Callable[[str], N]:
    """Return the type of an argument that is a finite number above 0, and at most `most`."""
    bound = "finite" if most == math.inf else f"at most {most:g}"

    def parsed(text: str) -> N:
        value = kind(text)
        if not 0 < value <= most or value == math.inf:
            raise argparse.ArgumentTypeError(f"{text} is not above 0 and {bound}")
        return value

    parsed.__name__ = kind.__name__  # argparse's word for what the text is not
    return parsed


def grid_parser(command: str, description: str | None) -> Parser:
    """Return a parser for a command that takes overrides and --config-dir."""
    parser = Parser(prog=f"python -m zo_sweeps {command}", description=description, epilog=EXAMPLES)
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="Hydra overrides, see below")
    text = "folder with grids, tasks and members of your own"
    parser.add_argument("--config-dir", action="append", type=expanduser, default=[], metavar="FOLDER", help=text)
    parser.add_argument("--version", action="version", version=f"zo_sweeps {VERSION}")
    parser.add_argument("-m", "--multirun", action="store_true", help=argparse.SUPPRESS)
    return parser


def parse(parser: argparse.ArgumentParser, given: Sequence[str]) -> argparse.Namespace:
    """Parse a command's arguments, flags before or after the overrides. Raises UserError for bad input."""
    options = parser.parse_intermixed_args(list(given))
    if options.multirun or any(text.startswith("hydra.mode=") for text in options.overrides):
        raise UserError(
            "--multirun is not supported: a grid already is the whole sweep, and Hydra's multirun cannot resume one",
            fix="give an axis several values instead, e.g. task=sst2,rte or grid.seeds=[0,1,2]",
        )
    return options


def trial_ids(options: argparse.Namespace) -> list[str]:
    """Remove positional trial ids from the overrides; return them."""
    ids = [text for text in options.overrides if "=" not in text and not text.startswith("~")]
    options.overrides = [text for text in options.overrides if text not in ids]
    return ids


def with_grid(overrides: Sequence[str]) -> list[str]:
    """Return the overrides with the default grid, if they name none."""
    named = any(text.startswith(("+grid=", "grid=")) for text in overrides)
    return [*([] if named else [f"+grid={DEFAULT_GRID}"]), *overrides]


def compose(options: argparse.Namespace) -> tuple[Composer, Command]:
    """Compose the configuration. Raises UserError for bad input."""
    from zo_sweeps.config.composer import Composer
    from zo_sweeps.record.sweep_book import Command

    overrides = with_grid(options.overrides)
    return Composer(overrides, options.config_dir), Command.of(overrides, options.config_dir)


def read(options: argparse.Namespace) -> ReadablePlan:
    """Return the plan to read results by: of the last sweep of the grid, if at most a grid is named.

    Raises UserError for bad input, or if nothing has been run in the state folder.
    """
    from zo_sweeps.record.sweep_book import recall
    from zo_sweeps.results import past_sweeps

    asked = with_grid(options.overrides)
    is_recalled = recall(options.overrides, options.config_dir) is not None
    reading = past_sweeps.read(options.overrides if is_recalled else asked, options.config_dir, has_run=True)
    if is_recalled and {*reading.command.overrides[:-1]} != {text for text in asked if "state_dir=" not in text}:
        print(f"# the last sweep: {reading.command}", file=sys.stderr)
    for note in reading.notes:
        print(f"# note: {note}", file=sys.stderr)
    return reading


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
