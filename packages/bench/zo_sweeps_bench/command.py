"""The command `bench`."""

from __future__ import annotations

from collections.abc import Sequence
from os.path import expanduser
from pathlib import Path
from typing import Any

from rich.console import Console

from zo_sweeps.cli.parser import Parser
from zo_sweeps.cli.text import console, listing, say
from zo_sweeps.core.errors import UserError
from zo_sweeps.core.units import counted
from zo_sweeps.methods import registry
from zo_sweeps_bench import measure


def bench(given: Sequence[str]) -> int:
    """Benchmark the engine, precisions, GPUs or clusters, as ratios with a goal and a limit."""
    parser = Parser(prog="python -m zo_sweeps bench", description=bench.__doc__)
    text = f"{', '.join(registry.offered('benchmark'))}; all: {', '.join(measure.ENGINE)}; compare: see FILE"
    parser.add_argument("part", nargs="?", default="all", metavar="PART", help=text)
    text = "compare: two files that --json wrote, A and B; exits 1 if a goal that A reached is not reached in B"
    parser.add_argument("files", nargs="*", type=expanduser, metavar="FILE", help=text)
    parser.add_argument("--rounds", type=int, default=5, help="repetitions per measurement; the minimum is reported")
    text = "also write the numbers, with this machine's name, to FILE: each when it is measured"
    parser.add_argument("--json", type=expanduser, metavar="FILE", help=text)
    options = parser.parse_intermixed_args(list(given))
    if options.part == "compare":
        if len(options.files) != 2:
            raise UserError(f"{len(options.files)} files to compare", fix="bench compare A.json B.json")
        one, other = map(Path, options.files)
        return _compare(one, other, console())
    if options.files:
        raise UserError(f"bench {options.part} takes no files", fix="bench compare A.json B.json does")
    rows, to, unwritten = list[measure.RatioRow](), console(), None
    if options.json:
        measure.check(Path(options.json))
    for row in measure.run(options.part, options.rounds):  # an hour on a cluster's GPU may end before all rows
        say(to, measure.text([row]))
        rows.append(row)
        if options.json:
            try:
                measure.write(rows, Path(options.json))
                unwritten = None
            except UserError as error:  # what is measured is shown all the same
                unwritten = error
    if unwritten is not None:
        raise unwritten
    return 0


def _compare(one: Path, other: Path, to: Console) -> int:
    """Print the rows of two files side by side and how their hosts differ; return 1 if B lost a goal that A reached."""
    (here, a), (there, b) = measure.read(one), measure.read(other)
    names = list(dict.fromkeys((*a, *b)))
    rows = [measure.compared(name, a.get(name), b.get(name)) for name in names]
    listing(to, ("benchmark", "A", "B", "change", "goal"), rows)
    differs = [
        f"{name.replace('_', ' ')} {_plain(here.get(name))} → {_plain(there.get(name))}"
        for name in dict.fromkeys((*here, *there))
        if here.get(name) != there.get(name)
    ]
    say(to, f"hosts, A → B: {'; '.join(differs) or 'no difference'}")
    lost = sum(measure.lost(a.get(name), b.get(name)) for name in names)
    if lost:
        say(to, f"{counted(lost, 'goal')} reached in A and not in B")
    return int(lost > 0)


def _plain(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(map(str, value))
    return "–" if value is None else str(value)
