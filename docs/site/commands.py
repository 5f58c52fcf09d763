"""The reference of the commands, from their parsers."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from contextlib import contextmanager

from markdown import code, escape, fence, table

from zo_sweeps.cli.main import commands

COMMON = ("overrides", "config_dir", "version", "help", "multirun")  # of most commands; explained once


class _AskedError(Exception):
    """Raised with the parser that was asked for its help."""


@contextmanager
def _asking() -> Iterator[None]:
    def asked(parser: argparse.ArgumentParser, file: object = None) -> None:
        raise _AskedError(parser)

    printing = argparse.ArgumentParser.print_help
    argparse.ArgumentParser.print_help = asked
    try:
        yield
    finally:
        argparse.ArgumentParser.print_help = printing


def parser_of(command: str) -> argparse.ArgumentParser:
    """Return the parser that a command makes for its arguments."""
    with _asking():
        try:
            commands()[command](["--help"])
        except _AskedError as asked:
            parser: argparse.ArgumentParser = asked.args[0]
            return parser
    raise AssertionError(f"the command {command} has no --help")


def page() -> str:
    """Return a section per command, and what most of them take first."""
    parsers = {command: parser_of(command) for command in commands()}
    taken = {action.dest: action for action in parsers["run"]._actions}
    first = [_row(taken[dest]) for dest in COMMON if dest in taken and taken[dest].help != argparse.SUPPRESS]
    overrides, _, examples = (parsers["run"].epilog or "").partition("\nexamples:\n")
    parts = ["## What most commands take", table(("argument", "what it is"), first)]
    parts += [fence(overrides), "Examples:", fence(_dedent(examples))]
    parts += [_section(command, parser, set(taken) & {*COMMON}) for command, parser in parsers.items()]
    return "\n\n".join(parts)


def _section(command: str, parser: argparse.ArgumentParser, common: set[str]) -> str:
    usual = "overrides" in {action.dest for action in parser._actions if not action.option_strings}
    skipped = common if usual and command != "devices" else {"help"}
    own = [one for one in parser._actions if one.dest not in skipped and one.help != argparse.SUPPRESS]
    what, *more = re.split(r"\n\s*\n", (commands()[command].__doc__ or "").strip())
    usage = " ".join([f"python -m zo_sweeps {command}", *(["[key=value ...]"] if usual else []), *map(_usage, own)])
    parts = [f"## {command}", *(escape(" ".join(text.split())) for text in (what, *more)), fence(_wrapped(usage))]
    if own:
        parts.append(table(("argument", "what it is"), map(_row, own)))
    return "\n\n".join(parts)


def _usage(action: argparse.Action) -> str:
    text = _called(action).partition(", ")[0]
    if action.option_strings:
        return text if action.required else f"[{text}]"
    return f"[{text} ...]" if action.nargs == "*" else f"[{text}]" if action.nargs == "?" else text


def _called(action: argparse.Action) -> str:
    """Return an argument as it is typed: `--out DIR`, `join|leave`."""
    choices = "|".join(map(str, action.choices)) if action.choices else ""
    value = action.metavar if isinstance(action.metavar, str) else choices
    if not action.option_strings:
        return value or action.dest
    if action.nargs != 0:
        value = value or action.dest.upper()
    return ", ".join(f"{flag} {value}".strip() if action.nargs != 0 else flag for flag in action.option_strings)


def _row(action: argparse.Action) -> tuple[str, str]:
    return code(_called(action)), escape((action.help or "") % {"default": action.default})


def _wrapped(usage: str) -> str:
    """Break a usage line between its parts, as argparse does."""
    lines, parts = [""], re.findall(r"\[[^]]*\]|[^\s\[]+(?: [A-Z][\w:./|-]*)?", usage)
    for part in parts:
        if len(lines[-1]) + len(part) > 96:
            lines.append("   ")
        lines[-1] += f" {part}" if lines[-1] else part
    return "\n".join(lines)


def _dedent(text: str) -> str:
    return "\n".join(line[2:] for line in text.splitlines())
