"""The states of a cell, the published number beside it, footnotes and averages."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from zo_sweeps.core.caveats import Remark
from zo_sweeps.core.errors import UserError
from zo_sweeps.tables import CellState, Flag, Measure, Record, Rule, build, to_csv, to_markdown
from zo_sweeps.tables.text_cells import below_texts, signed, value_text

from .examples import ACCURACY, LR, PUBLISHED, Q, measure, record, shuffled, small, spec

pytestmark = pytest.mark.unit

CELL = ("zo", "sst2")


def cell_of(records: list[Record], **changes: Any) -> tuple[CellState, str]:
    table = build(spec(**changes), records)
    return table.cells[CELL].state, value_text(table.cells[CELL], table)


def of_states(*states: str) -> list[Record]:
    return [record({LR: 10.0**-i}, state=state) for i, state in enumerate(states)]


@pytest.mark.parametrize(
    ("records", "state", "text"),
    [
        ([], CellState.NOT_PLANNED, "·"),
        (of_states("NOT_RUN", "PENDING"), CellState.NOT_RUN, "–"),
        (of_states("RUNNING", "NOT_RUN"), CellState.IN_PROGRESS, "0/2"),
        (of_states("DIVERGED", "NOT_RUN", "OUT_OF_MEMORY"), CellState.IN_PROGRESS, "2/3"),
        (of_states("CANCELLED", "NOT_RUN"), CellState.IN_PROGRESS, "0/2"),
        (of_states("MISSING", "MISSING"), CellState.MISSING, "no data"),
        (of_states("DIVERGED", "DIVERGED"), CellState.DIVERGED, "diverged"),
        (of_states("OUT_OF_MEMORY"), CellState.OUT_OF_MEMORY, "OOM"),
        (of_states("STOPPED", "STOPPED"), CellState.NOT_RUN, "–"),
        (of_states("STOPPED", "OUT_OF_MEMORY"), CellState.OUT_OF_MEMORY, "OOM"),
        (of_states("FAILED", "LOST"), CellState.FAILED, "failed"),
        (of_states("SUCCEEDED", "FAILED"), CellState.PARTIAL, "90.0 1/2"),
        (of_states("SUCCEEDED", "DIVERGED"), CellState.DONE, "90.0"),
        (of_states("SUCCEEDED"), CellState.DONE, "90.0"),
    ],
)
def test_every_state_of_a_cell_is_told_apart(records: list[Record], state: CellState, text: str) -> None:
    assert cell_of(records) == (state, text)


def test_a_setting_whose_other_seeds_are_to_come_shows_those_it_has_until_one_has_them_all() -> None:
    middle = [record({LR: 0.1}, seed=s, state="SUCCEEDED" if s < 2 else "PENDING", test=0.7 + s / 10) for s in range(3)]
    best = [record({LR: 0.2}, seed=0, test=0.9, dev=0.1), record({LR: 0.2}, seed=1, state="FAILED")]
    assert cell_of([*middle, *best]) == (CellState.PARTIAL, "75.0 ± 7.1 3/5"), "a seed that failed is not left out"
    whole = [record({LR: 0.3}, seed=s, test=0.6, dev=9.0) for s in range(3)]
    assert cell_of([*middle, *best, *whole]) == (CellState.PARTIAL, "60.0 ± 0.0 6/8")


def test_a_cell_that_diverged_in_part_and_ran_out_of_memory_in_part_says_both() -> None:
    table = build(spec(), of_states("DIVERGED", "OUT_OF_MEMORY"))
    assert table.cells[CELL].state is CellState.DIVERGED
    assert "ran out of memory" in table.cells[CELL].notes[0]


def test_a_metric_that_was_not_measured_is_named() -> None:
    table = build(spec(measure=measure("memory")), [record({})])
    assert table.cells[CELL].state is CellState.UNMEASURED
    assert table.footnotes == ("the selected runs did not measure peak_memory_bytes",)


def test_a_metric_that_could_not_be_measured_has_its_reason() -> None:
    runs = [record({}, seed=seed, unmeasured={"energy/": "no counter here"}) for seed in (0, 1)]
    table = build(spec(measure=measure("energy")), runs)
    assert table.cells[CELL].state is CellState.UNMEASURED
    assert table.footnotes == ("no counter here",)
    assert build(spec(measure=measure("memory")), runs).footnotes == (
        "the selected runs did not measure peak_memory_bytes",
    )


def test_a_target_that_a_seed_did_not_reach_is_no_value() -> None:
    reached = {"energy/joules_to_target": 30.0, "seconds_to_target": 60.0, "dev/loss": 0.5}
    never = {"energy/joules_to_target": math.inf, "seconds_to_target": math.inf, "dev/loss": 0.5}
    runs = [record({}, seed=0, metrics=reached), record({}, seed=1, metrics=never)]
    table = build(spec(measure=measure("energy_to_target")), runs)
    assert table.cells[CELL].state is CellState.NOT_REACHED
    assert "not reached" in to_markdown(table)
    assert "did not reach the target on dev" in to_markdown(table)
    (cell,) = build(spec(measure=measure("energy_to_target")), runs[:1]).cells.values()
    assert (cell.state, cell.mean, cell.beside) == (CellState.DONE, 30, 1)


def test_cells_that_were_measured_while_the_device_was_throttled_are_marked_and_scores_are_not() -> None:
    cost = {"seconds_per_step": 1.0, "energy/joules_per_step": 2.0, "peak_memory_bytes": 1.0, "dev/loss": 0.5}
    hot = record({}, metrics={**cost, "test/metric": 0.9, "device/throttled_by_heat": 0.25, "energy/own_share": 0.5})
    notes = {name: build(spec(measure=measure(name)), [hot]).footnotes for name in ("step_time", "energy", "memory")}
    throttled = "measured while the device was throttled because of its heat"
    assert notes["step_time"] == (throttled,)
    assert notes["memory"] == ()
    assert notes["energy"][0] == throttled
    assert notes["energy"][1].startswith("the joules include other work of the machine")
    assert build(spec(), [hot]).footnotes == ()
    cool = record({}, metrics={**cost, "device/throttled_by_heat": 0.0, "energy/own_share": 0.95})
    assert build(spec(measure=measure("energy")), [cool]).footnotes == ()


def test_a_search_without_the_dev_metric_says_so_and_a_single_setting_needs_none() -> None:
    table = build(spec(), [record({LR: 1e-4}, dev=None), record({LR: 1e-3}, dev=None)])
    assert table.cells[CELL].state is CellState.UNMEASURED
    assert table.footnotes == ("no dev/loss to select a setting by",)
    assert cell_of([record({}, dev=None)]) == (CellState.DONE, "90.0")


def test_best_so_far_carries_its_mark_and_the_counts() -> None:
    table = build(spec(), [record({LR: 1e-4}), record({LR: 1e-3}, state="NOT_RUN")])
    cell = table.cells[CELL]
    assert [note[:11] for note in cell.notes] == ["best so far", "the selecte"]
    assert value_text(cell, table) == "90.0 1/2"


def test_a_run_of_few_distinct_directions_carries_a_mark() -> None:
    def footnotes(**metrics: float) -> tuple[str, ...]:
        return build(spec(), [record({}, metrics={"dev/loss": 0.5, "test/metric": 0.9, **metrics})]).footnotes

    assert footnotes(directions=45) == ("theta moves along 45 distinct directions only: the generator repeats",)
    assert footnotes(directions=1000) == footnotes() == ()


def test_rows_that_were_cut_or_do_not_exist_carry_a_mark() -> None:
    def footnotes(**metrics: float) -> tuple[str, ...]:
        return build(spec(), [record({}, metrics={"dev/loss": 0.5, "test/metric": 0.9, **metrics})]).footnotes

    cut = "12 rows exceed train.max_length, or the model's positions, and have lost part of their text"
    assert footnotes(rows_truncated=12) == (cut,)
    few = "trained on 80 rows, all there are: 999,920 fewer than asked for"
    assert footnotes(train_rows=80, train_rows_short=999_920) == (few,)
    assert footnotes(rows_truncated=0, train_rows=80, train_rows_short=0) == ()


def test_missing_data_is_explained_once_for_all_rows() -> None:
    rows = (("zo", "ZO"), ("fo", "FO"))
    records = [record({}, block=block, state="MISSING", note="sst2: no folder") for block, _ in rows]
    table = build(spec(rows=rows), records)
    assert table.footnotes == ("sst2: no folder",)
    assert [table.cells[block, "sst2"].notes for block, _ in rows] == [table.footnotes] * 2


def test_one_run_prints_no_spread_and_three_print_the_sample_deviation() -> None:
    tests = (0.90, 0.91, 0.92)
    assert cell_of([record({}, 0, test=0.9)])[1] == "90.0"
    assert cell_of([record({}, seed, test=test) for seed, test in enumerate(tests)])[1] == "91.0 ± 1.0"


def test_n_is_printed_where_it_differs_between_cells() -> None:
    columns = (("sst2", "SST-2"), ("rte", "RTE"))
    records = [record({}, seed, test=0.9) for seed in range(3)]
    records += [record({}, seed, test=0.9, column="rte") for seed in range(2)]
    table = build(spec(columns=columns), records)
    texts = [value_text(table.cells["zo", key], table) for key, _ in columns]
    assert texts == ["90.0 ± 0.0 (n=3)", "90.0 ± 0.0 (n=2)"]


@pytest.mark.parametrize(
    ("test", "difference", "text"),
    [(0.912, -1.0, "pub. 92.2, −1.0"), (0.932, 1.0, "pub. 92.2, +1.0"), (0.9221, 0.01, "pub. 92.2, 0.0")],
)
def test_the_difference_is_ours_minus_the_published_value(test: float, difference: float, text: str) -> None:
    layout = spec(published_rows={"zo": "ZO-LoRA-FA (q>1)"})
    table = build(layout, [record({}, test=test)], PUBLISHED)
    cell = table.cells[CELL]
    assert cell.published == 92.2
    assert cell.difference == pytest.approx(difference)
    assert below_texts(cell, table) == (text,)


def test_signs_are_printed_as_signs_and_zero_without() -> None:
    assert [signed(x, 1) for x in (1.0, -1.0, 0.04, -0.04)] == ["+1.0", "−1.0", "0.0", "0.0"]


def test_an_unfinished_cell_still_shows_the_published_value() -> None:
    table = build(spec(published_rows={"zo": "ZO-LoRA-FA (q>1)"}), [record({}, state="NOT_RUN")], PUBLISHED)
    assert table.cells[CELL].difference is None
    assert below_texts(table.cells[CELL], table) == ("pub. 92.2",)


def test_published_columns_are_found_by_label_whatever_its_case_or_by_name() -> None:
    rows = {"zo": "ZO-LoRA-FA (q>1)"}
    columns = (("wic", "WiC"), ("sst2_sent", "SST-2 (sentences)"), ("mine", "My task"))
    names = {"sst2_sent": "SST-2"}
    table = build(spec(columns=columns, published_rows=rows, published_columns=names), [], PUBLISHED)
    assert [table.cells["zo", key].published for key, _ in columns] == [63.5, 92.2, None]


def test_a_published_table_that_does_not_fit_is_refused_with_the_choices() -> None:
    with pytest.raises(UserError, match=r"unknown row of prge/table2 'ZO'.*ZO-Full \(q=1\)"):
        build(spec(published_rows={"zo": "ZO"}), [], PUBLISHED)
    with pytest.raises(UserError, match=r"unknown column of prge/table2 'SST2'.*did you mean 'SST-2'"):
        build(spec(published_columns={"sst2": "SST2"}), [], PUBLISHED)
    with pytest.raises(UserError, match=r"prge/table2 is in %, the table in GiB"):
        build(spec(measure=measure("memory"), published_rows={"zo": "ZO-LoRA-FA (q>1)"}), [], PUBLISHED)


def test_units_are_printed_units() -> None:
    metrics = {"train_seconds": 90.0, "seconds_per_step": 0.25, "peak_memory_bytes": 3 * 2**29, "weights_bytes": 2**30}
    records = [record({}, metrics=metrics)]
    values = {
        name: build(spec(measure=measure(name)), records).cells[CELL].mean
        for name in ("runtime", "step_time", "memory", "weights")
    }
    assert values == {"runtime": 1.5, "step_time": 0.25, "memory": 1.5, "weights": 1.0}
    table = build(spec(measure=measure("runtime")), records)
    assert below_texts(table.cells[CELL], table) == ("0.250 s/step",)


def test_the_average_needs_every_column_and_exists_only_where_asked_for() -> None:
    columns = (("sst2", "SST-2"), ("rte", "RTE"))
    layout = spec(columns=columns, published_rows={"zo": "ZO-LoRA-FA (q>1)"}, average=True)
    both = [record({}, test=0.9), record({}, test=0.8, column="rte")]
    cell = build(layout, both, PUBLISHED).cells["zo", "average"]
    assert (cell.mean, cell.published) == (pytest.approx(85.0), pytest.approx((92.2 + 76.2) / 2))
    one = build(layout, both[:1], PUBLISHED).cells["zo", "average"]
    assert (one.mean, one.state) == (None, CellState.IN_PROGRESS)
    assert build(spec(columns=columns), both).columns == columns


def test_flags_mark_rows_columns_or_cells() -> None:
    layout, records = small()
    table = build(layout, records, PUBLISHED)
    assert table.column_notes["copa"][0] == "F1 here"
    assert "its tokenizer differs" in table.cells["full", "rte"].notes
    assert table.row_notes["zo"][0] == "which q gave it is not stated"
    assert table.row_notes["zero"] == table.column_notes["rte"] == ()


@pytest.mark.parametrize("seed", range(5))
def test_the_order_of_the_records_changes_nothing(seed: int) -> None:
    layout, records = small()
    assert build(layout, shuffled(records, seed), PUBLISHED) == build(layout, records, PUBLISHED)


def test_records_of_other_rows_and_columns_are_left_out() -> None:
    assert list(build(spec(), [record({}, block="other"), record({}, column="other")]).cells) == [CELL]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rows": ()}, r"no rows in table 'small'"),
        ({"columns": (("a", "A"), ("a", "B"))}, r"a column stands twice"),
        ({"published_rows": {"zoo": "ZO"}}, r"unknown row 'zoo'.*did you mean 'zo'"),
        ({"flags": (Flag("x", columns=("sst",)),)}, r"unknown column 'sst'"),
    ],
)
def test_a_broken_layout_is_refused_in_one_line(change: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message) as error:
        spec(**change)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Measure.from_mapping({**vars(ACCURACY), "unti": "%"}), r"unknown key 'unti' in measure; .*'unit'"),
        (lambda: Measure.from_mapping({"metric": "test/metric"}), r"'unit' is not given in measure"),
        (lambda: Measure("m", "s", better="up"), r"unknown direction 'up'"),
        (lambda: Rule("test/metric"), r"settings cannot be selected by 'test/metric'"),
        (lambda: Rule(mode="best"), r"unknown mode 'best' in selection rule"),
        (lambda: Flag("x"), r"names no rows and no columns"),
    ],
)
def test_a_broken_part_of_a_layout_is_refused_in_one_line(make: Callable[[], object], message: str) -> None:
    with pytest.raises(UserError, match=message) as error:
        make()
    assert "\n" not in str(error.value)


def test_a_record_with_an_unknown_state_is_refused() -> None:
    with pytest.raises(ValueError, match="state 'DONE' is none of"):
        record({}, state="DONE")


def test_a_measure_in_units_of_nothing_is_refused() -> None:
    with pytest.raises(UserError, match="unit_size must be above 0"):
        Measure("test/metric", "%", unit_size=0)


def test_a_remark_on_the_selected_runs_is_a_footnote_of_their_cell_alone() -> None:
    def run(lr: float, seed: int, dropped: float, block: str = "zo") -> Record:
        made = record({LR: lr}, seed, dev=lr, block=block)
        return replace(made, metrics={**made.metrics, "directions_dropped": dropped, "peak_memory_bytes": 1.0})

    rows = (("zo", "ZO"), ("fo", "FO"))
    # Selected is lr 1e-4, of whose seeds one dropped directions; fo's dropped ones belong to another setting.
    records = [run(1e-4, 0, 0), run(1e-4, 1, 2), run(1e-3, 0, 0), run(1e-3, 1, 0), run(1e-2, 0, 0), run(1e-2, 1, 0)]
    records += [run(1e-4, 0, 0, "fo"), run(1e-3, 0, 7, "fo"), run(1e-5, 0, 0, "fo")]
    table = build(spec(rows=rows), records)
    (note,) = [note for note in table.footnotes if "directions were dropped" in note]
    assert [note in table.cells[block, "sst2"].notes for block, _ in rows] == [True, False]
    memory = build(spec(rows=rows, measure=measure("memory")), records)
    assert not any("dropped" in note for note in memory.footnotes), "what it learned is another matter"


@pytest.mark.parametrize("name", ["accuracy", "memory", "train_loss"])
def test_other_code_is_a_footnote_of_every_measure(name: str) -> None:
    metrics = {"peak_memory_bytes": 1.0, "final_train_loss": 0.5, "other_code": 1.0}
    made = record({LR: 1e-4}, dev=0.1)
    table = build(spec(measure=measure(name)), [replace(made, metrics={**made.metrics, **metrics})])
    (note,) = table.footnotes
    assert note.startswith("measured with other code")


def test_few_directions_are_a_footnote_of_the_training_loss() -> None:
    made = record({LR: 1e-4}, dev=0.1)
    repeating = replace(made, metrics={**made.metrics, "final_train_loss": 0.5, "directions": 255.0})
    assert "255 distinct directions" in build(spec(measure=measure("train_loss")), [repeating]).footnotes[0]


def test_a_remark_names_the_worst_value() -> None:
    few = Remark("directions", "the run moves in {} directions", below=1000)
    assert few.of([{"directions": 273.0}, {"directions": 45.0}, {"directions": 4096.0}, {}]) == (
        "the run moves in 45 directions"
    )
    assert few.of([{"directions": 1000.0}, {}, {"directions": math.nan}]) == ""
    assert Remark("share", "{} lost", above=0.1).of([{"share": 0.2}, {"share": 0.98765}]) == "0.99 lost"


SPEEDUP = {"measure": measure("speedup"), "rows": (("inner", "Inner loop"),), "over": {"inner": "zo"}}


def timed(block: str, seconds: float, **more: Any) -> Record:
    return record(block=block, metrics={"dev/loss": 0.5, "seconds_per_step": seconds}, **more)


def test_a_ratio_is_the_named_rows_value_over_the_rows_own() -> None:
    published = replace(PUBLISHED, rows={"Speed-up": {"SST-2": 1.5}}, units={"Speed-up": "×"}, flags=(), std={})
    table = build(
        spec(**SPEEDUP, published="prge/table3", published_rows={"inner": "Speed-up"}, largest=True),
        [timed("zo", 0.9), timed("inner", 0.5)],
        published,
    )
    cell = table.cells["inner", "sst2"]
    assert (cell.mean, cell.published, cell.difference) == (0.9 / 0.5, 1.5, 0.9 / 0.5 - 1.5)
    assert (cell.finished, cell.planned, len(cell.trial_ids)) == (2, 2, 2)
    assert value_text(cell, table, "sst2") == "1.80"
    assert table.cells["inner", "largest"].mean == 1.8
    assert [key for key, _ in table.rows] == ["inner"], "the other block is no row"


def test_a_ratio_of_what_lies_beyond_a_third_row() -> None:
    layout = spec(**SPEEDUP, beyond="dense")
    times = [timed("zo", 5.3), timed("inner", 3.0)]
    assert build(layout, [*times, timed("dense", 1.0)]).cells["inner", "sst2"].mean == pytest.approx(4.3 / 2.0)
    below = build(layout, [*times, timed("dense", 3.0)])
    assert below.cells["inner", "sst2"].state is CellState.UNMEASURED
    assert any("no ratio" in note for note in below.footnotes)


def test_a_ratio_waits_for_both_rows() -> None:
    for records in ([timed("zo", 0.9)], [timed("inner", 0.5)]):
        other = "inner" if records[0].block == "zo" else "zo"
        waiting = build(spec(**SPEEDUP), [*records, record(block=other, state="NOT_RUN")]).cells["inner", "sst2"]
        assert (waiting.state, waiting.mean, waiting.finished, waiting.planned) == (CellState.NOT_RUN, None, 1, 2)


def test_a_ratio_must_say_over_what() -> None:
    with pytest.raises(UserError, match="row 'inner' names no block to compare with"):
        spec(measure=measure("speedup"), rows=(("inner", "Inner loop"),))
    with pytest.raises(UserError, match="the measure compares no rows"):
        spec(over={"zo": "zo"})


def costs(seconds: dict[tuple[float, int], float], **more: Any) -> list[Record]:
    return [
        record({LR: lr, Q: q}, block="cost", metrics={"seconds_per_step": value}, order=i, **more)
        for i, ((lr, q), value) in enumerate(seconds.items())
    ]


def test_a_row_shows_the_setting_that_another_rows_search_selects() -> None:
    layout = spec(measure=measure("step_time"), rows=(("cost", "Cost"),), setting_of={"cost": "zo"})
    times = {(1e-4, 2): 0.2, (5e-4, 2): 0.3, (1e-4, 4): 0.4, (5e-4, 4): 0.5}
    search = [record({LR: lr, Q: q}, dev=q * lr, order=i) for i, (lr, q) in enumerate(times)]
    best = build(layout, [*search[1:], *costs(times)])
    cell = best.cells["cost", "sst2"]
    assert (cell.mean, dict(cell.selected), cell.finished, cell.planned) == (0.4, {LR: 1e-4, Q: 4}, 1, 1)
    assert cell.edges == {}
    by_q = [replace(one, hyperparameters={Q: one.hyperparameters[Q]}) for one in costs(times)[::2]]
    assert build(layout, [*search[1:], *by_q]).cells["cost", "sst2"].mean == 0.4, "at one learning rate for all"


def test_a_row_waits_for_the_search_that_it_follows() -> None:
    layout = spec(measure=measure("step_time"), rows=(("cost", "Cost"),), setting_of={"cost": "zo"})
    times = costs({(1e-4, 2): 0.2})
    waiting = build(layout, [record({LR: 1e-4, Q: 2}, state="NOT_RUN"), *times])
    assert waiting.cells["cost", "sst2"].state is CellState.NOT_RUN
    assert any("which has none yet" in note for note in waiting.footnotes)
    open_search = [record({LR: 1e-4, Q: 2}), record({LR: 5e-4, Q: 2}, state="RUNNING")]
    so_far = build(layout, [*open_search, *times])
    assert so_far.cells["cost", "sst2"].mean == 0.2
    assert any("best so far in the row of its search" in note for note in so_far.footnotes)
    assert build(layout, times).cells["cost", "sst2"].state is CellState.NOT_PLANNED


def test_twenty_thousand_steps_are_timed_by_the_mean_of_those_that_were_run() -> None:
    metrics = {"mean_seconds_per_step": 0.03, "seconds_per_step": 0.02}
    cell = build(spec(measure=measure("runtime_20000")), [record(metrics=metrics)]).cells[CELL]
    assert (cell.mean, cell.beside) == (pytest.approx(10.0), 0.02)


def test_a_cell_says_how_many_settings_and_seeds_of_the_grid_as_written_have_a_result() -> None:
    asked = [record({LR: 0.1}, seed=0), record({LR: 0.2}, seed=0, state="FAILED")]

    def shown(records: list[Record], **changes: Any) -> tuple[list[str], list[str]]:
        table = build(spec(extents={CELL: (4, 3)}, **changes), records)
        (line,) = csv.DictReader(io.StringIO(to_csv(table)))
        counts = [line[name] for name in ("settings", "settings_written", "seeds", "seeds_written")]
        return [note for note in table.cells[CELL].notes if "written" in note], counts

    lacks = ["1 of 4 settings and 1 of 3 seeds of the grid as written"]
    assert shown(asked) == (lacks, ["1", "4", "1", "3"]), "a trial that failed is no result"
    assert shown(asked[:1])[0] == lacks, "nor is one that was left out, though all that was asked for is done"
    every = [record({LR: lr}, seed=seed) for lr in (0.1, 0.2, 0.3, 0.4) for seed in range(3)]
    assert shown(every) == ([], ["4", "4", "3", "3"])
    assert shown([one for one in every if one.seed]) == (["2 of 3 seeds of the grid as written"], ["4", "4", "2", "3"])
    assert shown(asked, altered=frozenset({CELL})) == ([], ["0", "4", "0", "3"]), (
        "other settings are none of the grid's"
    )
    table = build(spec(), asked)
    assert table.cells[CELL].extent is None, "of a grid that is not known, nothing is said"


def test_a_ratio_counts_the_settings_of_both_of_its_rows() -> None:
    layout = replace(
        spec(measure=measure("speedup"), rows=(("zo", "ZO"), ("fo", "FO")), over={"zo": "fo", "fo": "fo"}),
        extents={("zo", "sst2"): (1, 2), ("fo", "sst2"): (2, 3)},
    )
    times = {"metrics": {"dev/loss": 0.5, "seconds_per_step": 0.1}}
    table = build(layout, [record(seed=0, **times), record(seed=1, **times), record({LR: 0.1}, block="fo", **times)])
    extent = table.cells[CELL].extent
    assert extent is not None
    assert extent.lacks == "2 of 3 settings and 1 of 3 seeds"
