"""The notes on costs: where each was measured, if not all in one place, and whether the machine was under load."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from zo_sweeps.core.place import CODE, Place, differing, distinct, under_load, unknown
from zo_sweeps.tables.cells import TableCell
from zo_sweeps.tables.records import Flag, Measure, Record

Key = TypeVar("Key")


def places_of(records: Iterable[Record], measure: Measure) -> tuple[Place, ...]:
    """Return where some runs were measured; () if the measure is no cost. A run without places has an unknown one.

    A measure that the machine's load does not change has places without it.
    """
    if not measure.of_place:
        return ()
    found = distinct(place for record in records for place in record.places or (Place(),))
    return found if measure.of_load else tuple(replace(place, load=None) for place in found)


def together(cells: Iterable[TableCell]) -> tuple[Place, ...]:
    """Return the places of some cells."""
    return distinct(place for cell in cells for place in cell.places)


def place_notes(measured: Mapping[Key, Sequence[Place]], may_differ: Collection[str] = ()) -> dict[str, list[Key]]:
    """Return the notes on some costs, each with what it is about.

    Code is not compared: a result of other code has a note of its own.

    Args:
        measured: cell, row or series -> its places.
    """
    every = [place for places in measured.values() for place in places]
    names, busy = differing(every, {*may_differ, CODE}), under_load(every)
    notes: dict[str, list[Key]] = defaultdict(list)
    for key, places in measured.items():
        where = " and on ".join(dict.fromkeys(place.text(names) for place in places)) if names else ""
        for note in (f"measured on {where}" if where else "", unknown(places), under_load(places) and busy):
            if note:
                notes[note].append(key)
    return notes


def place_flags(
    rows: Iterable[str], cells: Mapping[tuple[str, str], TableCell], may_differ: Collection[str]
) -> Iterator[Flag]:
    """Yield the notes on a table's cells as footnotes, on the whole row where all its costs share one.

    Args:
        cells: (row, column) -> cell.
    """
    placed = {at: cell.places for at, cell in cells.items() if cell.places and cell.mean is not None}
    notes = place_notes(placed, may_differ)
    for row in rows:
        for note, noted in notes.items():
            if columns := tuple(key for block, key in noted if block == row):
                whole = len(columns) == sum(block == row for block, _ in placed)
                yield Flag(note, (row,), () if whole else columns)
