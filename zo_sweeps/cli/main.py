"""The command line: picks a command, runs it, prints an error as one line. No logic."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Sequence
from itertools import pairwise
from pkgutil import resolve_name
from shutil import get_terminal_size

from zo_sweeps.cli.parser import EXAMPLES, ended
from zo_sweeps.cli.text import columns_kept
from zo_sweeps.core.errors import UserError, unknown
from zo_sweeps.methods import registry

COMMANDS = {  # command -> module:function; each is loaded when it is called
    "run": "run:run",
    "plan": "status:plan",
    "status": "status:status",
    "table": "browse:table",
    "answers": "browse:answers",
    "papers": "browse:papers",
    "export": "share:export",
    "verify": "share:verify",
    "import": "share:import_",
    "check": "share:check",
    "fetch": "machine:fetch",
    "package": "machine:package",
    "doctor": "machine:doctor",
    "gc": "machine:gc",
}


def _own(name: str) -> Callable[[Sequence[str]], int]:
    command: Callable[[Sequence[str]], int] = resolve_name(f"zo_sweeps.cli.{COMMANDS[name]}")
    return command


def commands() -> dict[str, Callable[[Sequence[str]], int]]:
    """Return every command by name: those above, and those that installed packages offer as `zo_sweeps.command`.

    Raises UserError for one that cannot be loaded.
    """
    offered = registry.offered("command").items()
    own = {name: _own(name) for name in COMMANDS}
    return {**own, **{name: registry.load(point) for name, point in offered if name not in COMMANDS}}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; return the exit status: 0, 1 (trials failed, results wrong), 2 (bad input), 130 (interrupted)."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    return ended(lambda: _run(given))


def _run(given: Sequence[str]) -> int:
    try:
        os.getcwd()
    except OSError as error:
        raise UserError(f"the working folder cannot be used ({error.strerror})", fix="cd to one that exists") from None
    if given and given[0] in COMMANDS:  # without asking the packages, which takes longer
        return _own(given[0])(given[1:])
    if given and (point := registry.offered("command").get(given[0])):
        command: Callable[[Sequence[str]], int] = registry.load(point)
        return command(given[1:])
    if given[:1] in (["-h"], ["--help"]):
        print(_overview(), end="")
        return 0
    _check_words(given)
    return _own("run")(given)


def _check_words(given: Sequence[str]) -> None:
    first, names = given[0] if given else "", {*COMMANDS, *registry.offered("command")}
    if first and not first.startswith(("-", "~")) and "=" not in first:
        raise registry.absent("command", first) or unknown("command", first, names)
    for before, word in pairwise(given):
        if word in names and not before.startswith("--"):
            fix = f"write it first: python -m zo_sweeps {word} {shlex.join(other for other in given if other != word)}"
            raise UserError(f"the command {word!r} comes after the overrides", fix=fix)


def _overview() -> str:
    lines = "\n".join(f"  {name:15} {(command.__doc__ or '').splitlines()[0]}" for name, command in commands().items())
    text = (
        "usage: python -m zo_sweeps [command] [key=value ...] [flags]\n\n"
        f"commands (default: run; COMMAND --help shows the flags of one):\n{lines}\n\n{EXAMPLES}"
    )
    return columns_kept(text, get_terminal_size().columns) + "\n"
