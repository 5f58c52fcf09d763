"""Costs have a place: rows, ratios and figures whose runs differ in it say so, and no ratio is taken across places."""

from __future__ import annotations

import csv
import io
from typing import Any

import pytest

from zo_sweeps.core.errors import UserError
from zo_sweeps.core.place import Place, apart, places, under_load, unknown
from zo_sweeps.tables import Record, Table, build
from zo_sweeps.tables.cells import CellState
from zo_sweeps.tables.renderings import to_csv, to_markdown
from zo_sweeps_report.figure_kinds.line import Line
from zo_sweeps_report.figure_kinds.rows import row_figure
from zo_sweeps_report.figures import FigureSpec, points

from .examples import MACHINE, VERSIONS, Q, measure, record, spec

pytestmark = pytest.mark.unit

ENGINE = {"runtime": "executorch", "form": "seed", "versions": {**VERSIONS, "executorch": "1.5.1"}}
TWO = {"threads": 2}
BUSY = {"load": {"before": 0.1, "during": 0.8}}
ROWS = (("zo", "Vanilla"), ("inner", "Inner loop"))
SPEEDUP = {"measure": measure("speedup"), "rows": ROWS[1:], "over": {"inner": "zo"}}
AT = "inner", "sst2"


def timed(block: str, seconds: float = 0.5, seed: int = 0, **facts: Any) -> Record:
    """A run whose place is MACHINE with other facts; `places=()` for none that is recorded."""
    where = facts.pop("places", places({**MACHINE, **facts}))
    metrics = {"dev/loss": 0.5, "seconds_per_step": seconds, "peak_memory_bytes": 2.0**30, "test/metric": 0.9}
    return record(block=block, seed=seed, metrics=metrics, places=where)


def notes_of(table: Table, block: str) -> list[str]:
    marked = {*table.row_notes[block], *table.cells[block, "sst2"].notes}
    return [note for note in table.footnotes if note in marked]


@pytest.mark.parametrize("name", ["step_time", "memory"])
@pytest.mark.parametrize(
    ("other", "first", "second"),
    [
        (TWO, "cpu, PyTorch, 1 thread", "cpu, PyTorch, 2 threads"),
        (ENGINE, "cpu, PyTorch, 1 thread", "cpu, ExecuTorch, 1 thread"),
        ({"name": "Another"}, "cpu (A processor), PyTorch, 1 thread", "cpu (Another), PyTorch, 1 thread"),
        ({"versions": {"torch": "2.1"}}, "cpu, PyTorch, 1 thread, torch 2.13.0", "cpu, PyTorch, 1 thread, torch 2.1"),
        ({"kind": "cuda", "name": "A GPU"}, "cpu (A processor), PyTorch, 1 thread", "cuda (A GPU), PyTorch, 1 thread"),
    ],
)  # fmt: skip
def test_rows_of_costs_in_different_places_say_where_each_was_measured(
    name: str, other: dict[str, Any], first: str, second: str
) -> None:
    records = [timed("zo"), timed("inner", **other)]
    table = build(spec(measure=measure(name), rows=ROWS), records)
    assert notes_of(table, "zo") == [f"measured on {first}"]
    assert notes_of(table, "inner") == [f"measured on {second}"]
    assert f"measured on {second}" in to_markdown(table)
    lines = csv.DictReader(io.StringIO(to_csv(table)))
    assert [line["notes"] for line in lines] == [f"measured on {first}", f"measured on {second}"]
    assert not build(spec(measure=measure("accuracy"), rows=ROWS), records).footnotes, "a score has no place"


def test_rows_of_one_place_have_no_mark_and_the_csv_says_where_it_was() -> None:
    table = build(spec(measure=measure("step_time"), rows=ROWS), [timed("zo"), timed("inner")])
    assert table.footnotes == ()
    (line, _) = csv.DictReader(io.StringIO(to_csv(table)))
    assert line["places"] == "cpu (A processor), PyTorch, 1 thread, torch 2.13.0, load 0.02"


def test_a_cell_whose_seeds_ran_in_two_places_names_both() -> None:
    table = build(spec(measure=measure("step_time")), [timed("zo"), timed("zo", seed=1, **TWO)])
    assert notes_of(table, "zo") == ["measured on cpu, PyTorch, 1 thread and on cpu, PyTorch, 2 threads"]


def test_a_mark_is_on_the_cell_where_the_row_has_several_places() -> None:
    records = [timed("zo"), Record(**{**vars(timed("zo", **TWO)), "column": "rte"})]
    table = build(spec(measure=measure("step_time"), columns=(("sst2", "SST-2"), ("rte", "RTE"))), records)
    assert table.row_notes["zo"] == ()
    assert [len(table.cells["zo", key].notes) for key in ("sst2", "rte")] == [1, 1]
    assert len(table.footnotes) == 2


@pytest.mark.parametrize("other", [TWO, ENGINE, {"name": "Another"}, {"versions": {"torch": "2.12.0"}}])
def test_a_ratio_across_places_is_refused_and_names_both(other: dict[str, Any]) -> None:
    table = build(spec(**SPEEDUP), [timed("zo", 0.9), timed("inner", **other)])
    cell = table.cells[AT]
    assert (cell.state, cell.mean, cell.difference) == (CellState.PLACES_DIFFER, None, None)
    (note,) = notes_of(table, "inner")
    assert note == apart([*places(MACHINE), *places({**MACHINE, **other})])
    assert note.startswith("measured in different places: cpu")
    assert " against cpu" in note
    assert "places differ" in to_markdown(table)


def test_a_ratio_whose_point_is_a_difference_stands_and_any_other_difference_is_refused() -> None:
    layout = spec(**SPEEDUP, may_differ=("runtime",))
    assert build(layout, [timed("zo", 0.9), timed("inner", **ENGINE)]).cells[AT].mean == pytest.approx(1.8)
    threads = build(layout, [timed("zo", 0.9), timed("inner", **ENGINE, **TWO)])
    assert threads.cells[AT].state is CellState.PLACES_DIFFER
    assert "2 threads" in threads.footnotes[0]
    with pytest.raises(UserError, match="unknown fact of a place 'runtimes'"):
        spec(**SPEEDUP, may_differ=("runtimes",))


def test_times_under_load_are_marked_and_not_refused_and_memory_is_neither() -> None:
    records = [timed("zo", 0.9), timed("inner", **BUSY)]
    table = build(spec(**SPEEDUP), records)
    assert table.cells[AT].mean == pytest.approx(1.8)
    load = "measured under load: other processes took 80% of the machine's cores meanwhile"
    assert notes_of(table, "inner") == [load]
    times = build(spec(measure=measure("step_time"), rows=ROWS), records)
    assert (notes_of(times, "zo"), notes_of(times, "inner")) == ([], [load])
    assert build(spec(measure=measure("memory"), rows=ROWS), records).footnotes == ()
    (line,) = row_figure(times, "times").notes
    assert line == f"Inner loop: {load}."
    both = build(spec(measure=measure("step_time"), rows=ROWS), [timed("zo", load={"during": 0.7}), records[1]])
    (note,) = both.footnotes
    assert note == load.replace("80%", "70% to 80%"), "one note of two loads"
    assert (notes_of(both, "zo"), notes_of(both, "inner")) == ([note], [note])


@pytest.mark.parametrize(
    ("facts", "load", "marked"),
    [
        ({"threads": 1, "cores": 4}, 0.45, False),  # three cores are left
        ({"threads": 1, "cores": 4}, 0.55, True),
        ({"threads": 4, "cores": 4}, 0.05, False),
        ({"threads": 4, "cores": 4}, 0.2, True),  # it waits for each core that another takes
        ({"threads": 3, "cores": 4}, 0.2, False),
        ({"kind": "cuda", "threads": 4, "cores": 4}, 0.2, False),
        ({}, None, False),
    ],
)
def test_a_place_is_loaded_where_others_take_the_cores_of_its_threads_or_half_of_all(
    facts: dict[str, Any], load: float | None, marked: bool
) -> None:
    shares = {} if load is None else {"load": {"before": 0.0, "during": load}}
    assert bool(under_load([Place.of({**MACHINE, "load": {}, **facts, **shares})])) is marked
    killed = Place.of({**MACHINE, **facts, "load": {} if load is None else {"before": load}})
    assert bool(under_load([killed])) is marked, "of an attempt without an end"


def test_what_was_not_recorded_is_neither_equal_nor_different() -> None:
    lacking = "where it was measured is not fully recorded: no"
    old = {name: fact for name, fact in MACHINE.items() if name not in ("threads", "load")}
    table = build(spec(measure=measure("step_time"), rows=ROWS), [timed("zo"), timed("inner", places=places(old))])
    assert (notes_of(table, "zo"), notes_of(table, "inner")) == ([], [f"{lacking} threads"])
    ratio = build(spec(**SPEEDUP), [timed("zo", 0.9), timed("inner", places=())])
    assert ratio.cells[AT].mean == pytest.approx(1.8)
    assert notes_of(ratio, "inner") == [f"{lacking} device, name, runtime, threads, torch"]
    assert unknown([Place.of({"load": 3, "versions": [], "earlier": 1})]), "facts of another shape are unknown"


def test_every_attempt_at_a_trial_counts() -> None:
    moved = places({**MACHINE, "earlier": [{**MACHINE, **TWO, **BUSY}]})
    assert apart(moved) == "measured in different places: cpu, PyTorch, 1 thread against cpu, PyTorch, 2 threads"
    assert "80%" in under_load(moved)
    (same,) = places({**MACHINE, "earlier": [{**MACHINE, **BUSY}]})
    assert same.load == 0.8, "the highest of one place"


def test_a_figure_of_ratios_has_no_point_across_places_and_says_why() -> None:
    records = [
        Record(**{**vars(timed(block, seconds, **facts)), "hyperparameters": {Q: q}, "trial_id": f"{block}{q}"})
        for block, q, seconds, facts in [
            ("zo", 1, 0.9, {}), ("inner", 1, 0.5, {}), ("zo", 4, 3.0, {}), ("inner", 4, 2.5, TWO)
        ]
    ]  # fmt: skip
    layout = FigureSpec(
        kind=Line(),
        **{"name": "f", "title": "", "x": Q, "y": "speedup", "panels": "", "over": {"inner": "zo"}},
        series=ROWS[1:],
        columns=(("sst2", "SST-2"),),
        measure=measure("speedup"),
    )
    figure = points(layout, records, lambda one, key: one.hyperparameters.get(key), "error bars", by_number=True)
    (series,) = figure.panels[0].series
    assert (series.x, series.y) == ((1.0,), (1.8,))
    assert figure.notes[0] == (
        "Inner loop: no ratio, measured in different places: cpu, PyTorch, 2 threads against cpu, PyTorch, 1 thread."
    )
