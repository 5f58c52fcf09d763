"""The output of `papers`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console

from zo_sweeps.cli.show.result_files import table_width
from zo_sweeps.cli.show.text import counted, each, grouped, listing, say, some
from zo_sweeps.core.errors import nothing_run
from zo_sweeps.results.item_progress import Deviation
from zo_sweeps.results.papers import ItemFacts
from zo_sweeps.schedule.ledger import has_run
from zo_sweeps.tables.plain_text import published_to_text
from zo_sweeps.tables.published import load

HEADERS = ("item", "grid", "can run here", "state here", "largest deviation")


def show_papers(every: Sequence[ItemFacts], to: Console, state_dir: Path, *, captions: bool) -> None:
    """Print the papers' tables and figures: grid, trials that can run here, state, largest deviation from the paper.

    Args:
        captions: whether to print what each item is, what its grids do otherwise, and why trials cannot run here.
    """
    groups = (each if captions else grouped)({why: () for one in every for why in one.obstacles.reasons})
    numbers = {why: number for number, group in enumerate(groups, 1) for why in group.texts}
    notes = list(dict.fromkeys(note for one in every for note in one.progress.notes))
    for display in dict.fromkeys(one.item.display for one in every):
        its = [one for one in every if one.item.display == display]
        say(to, display)
        rows = [_row(one, numbers, notes, len(groups)) for one in its if one.item.grids]
        kept = [i for i in range(len(HEADERS)) if any(row[i] for row in rows)]
        listing(to, [HEADERS[i] for i in kept], [[row[i] for i in kept] for row in rows])
        without: dict[str, list[str]] = {}
        for one in its:
            if not one.item.grids:
                without.setdefault(one.item.why, []).append(one.item.name)
        for why, names in without.items():
            say(to, f"no grid: {why}: {', '.join(names)}")
        if captions:
            for one in its:
                say(to, f"{one.item.name}: {one.item.caption}")
                for line in one.item.differs:
                    say(to, f"  {line}")
        say(to, "")
    for number, group in enumerate(groups, 1):
        say(to, f"[{number}] cannot run here: {group.text}")
        if group.others:
            say(to, f"  likewise for {counted(len(group.others), 'other')}: {some(group.others)}")
    for number, note in enumerate(notes, len(groups) + 1):
        say(to, f"[{number}] {note}")
    with_grid = sum(bool(one.item.grids) for one in every)
    say(to, f"{len(every)} tables, figures and others, {with_grid} with a grid; run one with +grid=NAME")
    if not captions:
        say(
            to, "`papers PAPER` adds captions, what differs, all reasons; PAPER/ITEM: its numbers; `--json`: everything"
        )
    if not has_run(state_dir):
        say(to, str(nothing_run(state_dir)))


def show_numbers(every: Sequence[ItemFacts], to: Console, folders: Sequence[Path]) -> None:
    """Print the published numbers of a single table."""
    if len(every) == 1 and every[0].item.has_numbers:
        say(to, "")
        to.print(
            published_to_text(load(every[0].item.reference, folders), table_width(to)), markup=False, soft_wrap=True
        )


def _row(one: ItemFacts, numbers: Mapping[str, int], notes: Sequence[str], before: int) -> list[str]:
    held, progress = one.obstacles, one.progress
    here = f"{held.trials - held.missing} of {held.trials}"
    marks = sorted({numbers[why] for why in held.reasons})
    state = [f"{before + 1 + notes.index(note)}" for note in progress.notes]
    return [
        one.item.name,
        ", ".join(one.item.grids),
        here + (f" [{','.join(map(str, marks))}]" if marks else ""),
        progress.state + (f" [{','.join(state)}]" if state else ""),
        _deviation(progress.deviation) if progress.deviation else "",
    ]


def _deviation(one: Deviation) -> str:
    return f"{one.difference:+.{one.digits}f} {one.unit} ({one.row}, {one.column})"
