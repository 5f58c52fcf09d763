"""The typed cells of a table. A cell holds its value, its spread, its state and the runs behind it."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, TypeVar

from zo_sweeps.core.place import CODE, Place, differing, distinct, under_load, unknown
from zo_sweeps.core.trial import COSTS, SPEEDS
from zo_sweeps.tables.published import Published
from zo_sweeps.tables.records import Flag, Measure, Record, TableSpec


class CellState(str, Enum):
    DONE = "DONE"
    PARTIAL = "PARTIAL"  # a value, but the search is not finished
    IN_PROGRESS = "IN_PROGRESS"  # started, no value yet
    NOT_RUN = "NOT_RUN"
    NOT_PLANNED = "NOT_PLANNED"
    MISSING = "MISSING"
    DIVERGED = "DIVERGED"
    OUT_OF_MEMORY = "OUT_OF_MEMORY"
    FAILED = "FAILED"
    NOT_COMPARABLE = "NOT_COMPARABLE"  # finished; only the paper has such a number
    UNMEASURED = "UNMEASURED"  # finished, but without the metric
    PLACES_DIFFER = "PLACES_DIFFER"  # finished; the two sides of the ratio were measured in different places
    NOT_REACHED = "NOT_REACHED"  # finished, but short of the table's target in some seed


@dataclass(frozen=True)
class Extent:
    """How much of a cell of the grid as written has a result.

    Args:
        settings, seeds: with a result in some trial; those of other settings than the grid's do not count.
        of_settings, of_seeds: of the grid as written.
    """

    settings: int
    of_settings: int
    seeds: int
    of_seeds: int

    @property
    def lacks(self) -> str:
        """What is not there: "2 of 12 settings and 1 of 3 seeds"; "" if every setting and every seed is."""
        parts = [f"{self.settings} of {self.of_settings} settings"] if self.settings < self.of_settings else []
        parts += [f"{self.seeds} of {self.of_seeds} seeds"] if self.seeds < self.of_seeds else []
        return " and ".join(parts)


@dataclass(frozen=True)
class TableCell:
    """One cell, in printed units (percent, minutes, GiB), with the runs behind it.

    Args:
        mean, std, n: over the seeds of the selected setting; `std` is the sample standard deviation (ddof=1).
        interval: of a mean difference: its ends, for all rows together (`tables.stats`).
        beside: mean of the second measure, if the layout has one.
        published_std: the standard deviation printed with `published`, of the kind `Published.std_kind`.
        digits: decimals, if not the measure's (a mean rank).
        values: seed -> value of the averaged runs; a run that serves several seeds is listed under each.
        finished, planned: trials with a result, and all trials of the search.
        notes: its footnotes, in their order.
        edges: axis -> "smallest" or "largest", if the selected value is at that end of its searched range.
        places: of a cost: where the runs behind its value were measured.
        trial_ids: of the averaged runs; of all trials of the cell if it has no value.
        differs: what differs from the paper, of a cell of the grid as written.
        extent: None where it is not known, and of a mean or a rank over columns.
    """

    state: CellState
    mean: float | None = None
    std: float | None = None
    n: int = 0
    interval: tuple[float, float] | None = None
    beside: float | None = None
    selected: Mapping[str, Any] = field(default_factory=dict)
    published: float | None = None
    published_std: float | None = None
    finished: int = 0
    planned: int = 0
    edges: Mapping[str, str] = field(default_factory=dict)
    digits: int | None = None
    values: Mapping[int, float] = field(default_factory=dict)
    trial_ids: tuple[str, ...] = ()
    differs: tuple[Flag, ...] = ()
    extent: Extent | None = None
    places: tuple[Place, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def difference(self) -> float | None:
        """Return mean − published; None without one of the two, and in a column of ranks."""
        if self.mean is None or self.published is None or self.digits is not None:
            return None
        return self.mean - self.published

    @property
    def population_std(self) -> float | None:
        """Return the population standard deviation (ddof=0), std · sqrt((n − 1) / n); None for a single run."""
        return None if self.std is None else self.std * math.sqrt((self.n - 1) / self.n)


@dataclass(frozen=True)
class Table:
    """Typed cells with labels and footnotes.

    Args:
        row_notes, column_notes: key -> the footnotes of its label.
        footnotes: all of them, as they are numbered; a note that is none of these is not marked.
        guesses: "chance" and "majority class" -> column -> the score of this guess on the test rows, in printed units.
    """

    spec: TableSpec
    published: Published | None
    rows: tuple[tuple[str, str], ...]
    columns: tuple[tuple[str, str], ...]
    cells: Mapping[tuple[str, str], TableCell]
    row_notes: Mapping[str, tuple[str, ...]]
    column_notes: Mapping[str, tuple[str, ...]]
    footnotes: tuple[str, ...]
    guesses: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    @property
    def main_columns(self) -> tuple[tuple[str, str], ...]:
        """(key, label) of the columns of the measure that the table is named after, without averages and ranks.

        Of a table with a column per metric (memory by part) it is the metric of the layout itself: the total.
        """
        named = self.spec.measure.metric
        main = [(key, label) for key, label in self.spec.columns if self.spec.of(key).metric == named]
        return tuple(main) if main and self.spec.measures else self.spec.columns


Key = TypeVar("Key")


def places_of(records: Iterable[Record], measure: Measure) -> tuple[Place, ...]:
    """Return where some runs were measured; () if the measure is no cost. A run without places has an unknown one.

    A measure that the machine's load does not change has places without it.
    """
    if not measure.metric.startswith(COSTS):
        return ()
    found = distinct(place for record in records for place in record.places or (Place(),))
    return found if measure.metric.startswith(SPEEDS) else tuple(replace(place, load=None) for place in found)


def together(cells: Iterable[TableCell]) -> tuple[Place, ...]:
    """Return the places of some cells."""
    return distinct(place for cell in cells for place in cell.places)


def place_notes(measured: Mapping[Key, Sequence[Place]], may_differ: Collection[str] = ()) -> dict[str, list[Key]]:
    """Return the notes on the places of some costs (of cells, rows or series), each with the keys that it is about.

    Code is not compared: a result of other code has a note of its own.
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
    """Yield the notes on a table's cells as footnotes, on the whole row where all its costs share one."""
    placed = {at: cell.places for at, cell in cells.items() if cell.places and cell.mean is not None}
    notes = place_notes(placed, may_differ)
    for row in rows:
        for note, noted in notes.items():
            if columns := tuple(key for block, key in noted if block == row):
                whole = len(columns) == sum(block == row for block, _ in placed)
                yield Flag(note, (row,), () if whole else columns)
