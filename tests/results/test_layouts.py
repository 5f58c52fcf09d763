"""The layouts of a grid's tables and figures: what would show another setting's number, or none, is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.plan.common import changed, write_grid
from zo_sweeps.config.composer import Composer
from zo_sweeps.core.errors import UserError
from zo_sweeps.core.events import End, ScoredDev, Steps
from zo_sweeps.core.trial import Outcome, TrialState
from zo_sweeps.methods.trial_config import TrialConfig
from zo_sweeps.plan.build import Plan, build
from zo_sweeps.record.journal import JournalStore
from zo_sweeps.results import tables
from zo_sweeps.results.exchange import unbacked
from zo_sweeps.schedule.ledger import Standing
from zo_sweeps_report import sweep_figures

pytestmark = pytest.mark.unit

LOSS, SCORE = {"metric": "dev/loss", "mode": "min"}, {"metric": "dev/metric", "mode": "max"}
BARS = {"kind": "bar", "x": "column", "y": "accuracy"}
BY_RATE = {"kind": "line", "x": "update.lr", "y": "accuracy"}
SPEEDUP = {"y": "speedup", "series": {"zo": ""}, "over": {"zo": "zo"}}
POINT = {"series": "zo", "x": "demo_remarks", "y": 50.0}


def planned(folder: Path, *overrides: str, **grid: Any) -> tuple[Composer, Plan]:
    conf = write_grid(folder / "conf", changed(**grid))
    composer = Composer(["+grid=tiny", f"state_dir={folder / 'state'}", *overrides], [str(conf)])
    return composer, build(composer)


def checked(composer: Composer, plan: Plan) -> None:
    tables.check(plan, composer)
    sweep_figures.check(plan, composer)


def laid_out(kind: str, select: dict[str, Any]) -> dict[str, Any]:
    """A table or a figure with a rule of its own."""
    return {kind: {"own": {**({"layout": "accuracy"} if kind == "tables" else BARS), "select": select}}}


def done(plan: Plan, left_out: frozenset[tuple[str, int]] = frozenset()) -> Standing:
    """A result of every trial but those of some (block, seed)."""
    ids = [
        trial_id
        for trial_id, trial in plan.every.items()
        if (trial.block, TrialConfig.of(trial.config).seed) not in left_out
    ]
    metrics = {"dev/loss": 1.0, "dev/metric": 0.5, "test/metric": 0.5}
    outcomes = {i: Outcome(i, TrialState.SUCCEEDED, metrics) for i in ids}
    return Standing(dict.fromkeys(ids, TrialState.SUCCEEDED), outcomes=outcomes)


@pytest.mark.parametrize("kind", ["tables", "figures"])
@pytest.mark.parametrize(
    ("grid", "overrides", "own", "message"),
    [
        ({"select": {**LOSS, "seeds": 1}}, [], SCORE, r"dev/loss \(min\) stops settings.*\.own\.select=null"),
        ({"select": {**SCORE, "seeds": 1}}, [], LOSS, r"dev/metric \(max\) stops settings: dev/loss \(min\)"),
        ({}, ["train.halving=[0.5]"], SCORE, r"dev/loss \(min\) stops settings"),
        ({}, [], {**LOSS, "seeds": 1}, r"only the grid's does.*\.own\.select of grid tiny; use grid\.select\.seeds"),
        ({}, [], {"metric": "dev/nope"}, r"unknown metric 'dev/nope' in grid\.\w+\.own\.select of grid tiny"),
        (
            {},
            [],
            {**LOSS, "mode": "max"},
            r"loss is better when lower.*set grid\.\w+\.own\.select\.mode=min, or select by",
        ),
        ({}, [], {**SCORE, "mode": "min"}, r"better when higher.*set grid\.\w+\.own\.select\.mode=max"),
    ],
)
def test_a_rule_by_which_the_trials_did_not_run_is_refused(
    tmp_path: Path, kind: str, grid: dict[str, Any], overrides: list[str], own: dict[str, Any], message: str
) -> None:
    composer, plan = planned(tmp_path, *overrides, seeds=[0, 1], **grid, **laid_out(kind, own))
    with pytest.raises(UserError, match=message):
        checked(composer, plan)


@pytest.mark.parametrize(
    ("select", "own", "said"),
    [
        ({**LOSS, "seeds": 1}, LOSS, "lowest dev/loss of the first seed; the selected one alone runs the others"),
        (LOSS, SCORE, "highest mean dev/metric over seeds"),
    ],
)
def test_a_table_that_may_have_a_rule_of_its_own_says_how_many_seeds_it_compares(
    tmp_path: Path, select: dict[str, Any], own: dict[str, Any], said: str
) -> None:
    composer, plan = planned(tmp_path, seeds=[0, 1], select=select, **laid_out("tables", own))
    (table,) = tables.tables(plan, composer, Standing())
    assert said in table.spec.rule.text


@pytest.mark.parametrize("layout", ["dev_accuracy", "accuracy"])
def test_a_table_of_dev_scores_says_so_in_its_title(tmp_path: Path, layout: str) -> None:
    composer, plan = planned(tmp_path, tables={"accuracy": {"layout": layout}})
    (table,) = tables.tables(plan, composer, Standing())
    assert table.spec.title == f"tiny: accuracy{' on dev' if layout == 'dev_accuracy' else ''}"


@pytest.mark.parametrize(("words", "nearest", "unit"), [([], 0.95, "points"), (["task.metric=perplexity"], 1.05, "")])
def test_a_count_of_settings_and_a_difference_keep_their_own_unit(
    tmp_path: Path, words: list[str], nearest: float, unit: str
) -> None:
    layouts = {"n": {"layout": "search_trials"}, "d": {"layout": "accuracy_difference", "against": "zo"}}
    blocks = {**changed()["blocks"], "fo": {"fixed": {"method": "fo_lora_fa", "train": {"steps": 4}}}}
    composer, plan = planned(tmp_path, *words, blocks=blocks, tables=layouts, select=LOSS)
    search, difference = tables.tables(plan, composer, Standing())
    counted, paired = search.spec.measure, difference.spec.measure
    assert (counted.unit, counted.better, counted.reaches) == ("trials", "lower", pytest.approx(nearest))
    assert (search.spec.title, difference.spec.title) == ("tiny: n", "tiny: d")
    assert (paired.unit, difference.spec.shares, difference.spec.caption) == (unit, frozenset(), "Minus ZO.")


@pytest.mark.parametrize(
    ("words", "shown"),
    [([], 70.0), (["train.select=metric"], 90.0), (["grid.tables.t.select.metric=dev/accuracy"], 70.0)],
)
def test_within_a_time_a_trial_has_the_step_that_it_selects(tmp_path: Path, words: list[str], shown: float) -> None:
    layout = {"t": {"layout": "dev_accuracy", "within": 2.5, "select": SCORE}}
    composer, plan = planned(tmp_path, *words, tables=layout)
    standing, store = done(plan), JournalStore(tmp_path / "state")
    for trial_id in plan.every:
        for step, loss, right in ((1, 0.7, 0.6), (2, 0.6, 0.9), (3, 0.5, 0.7), (4, 0.4, 1.0)):
            scores = ScoredDev(step=step, loss=loss, metric=right, metrics={"accuracy": right})
            store.append(trial_id, [Steps(first=step, losses=(loss,), seconds=0.8, tokens=1), scores])
        store.append(trial_id, [End(outcome=standing.outcomes[trial_id])])
    (table,) = tables.tables(plan, composer, standing)
    assert table.cells["zo", "demo_remarks"].mean == pytest.approx(shown)


@pytest.mark.parametrize(
    ("layout", "point", "message"),
    [
        (BARS, {"x": "Movie remarks"}, r"unknown x of a published point 'Movie remarks'.*choose from: demo_remarks"),
        (BARS, {"panel": "demo_remarks"}, "names a panel, and there are none"),
        (BY_RATE, {"x": 0.1, "panel": "Movie remarks"}, "unknown panel of a published point 'Movie remarks'"),
        ({**BARS, **SPEEDUP}, {"series": ["zo"]}, "series of a published point is .'zo'., which is no text"),
        ({**BARS, "panels": "update.lr"}, {"panel": 0.2}, r"unknown panel of a .* 0\.2 .*choose from: 0\.01, 0\.1;"),
    ],
)
def test_a_published_point_that_has_no_place_in_its_figure_is_refused(
    tmp_path: Path, layout: dict[str, Any], point: dict[str, Any], message: str
) -> None:
    composer, plan = planned(tmp_path, figures={"f": {**layout, "published": [{**POINT, **point}]}})
    with pytest.raises(UserError, match=message):
        sweep_figures.check(plan, composer)
    with pytest.raises(UserError, match=message):
        sweep_figures.figures(plan, composer, Standing())


def test_a_published_point_of_a_column_that_the_command_line_leaves_out_is_left_out(tmp_path: Path) -> None:
    figure = {"f": {**BARS, "published": [POINT, {**POINT, "x": "trec"}]}}
    for overrides, places in ([], (0.0, 1.0)), (["task=demo_remarks"], (0.0,)):
        composer, plan = planned(tmp_path, *overrides, axes={"task": ["demo_remarks", "trec"]}, figures=figure)
        checked(composer, plan)
        (drawn,) = sweep_figures.figures(plan, composer, Standing())
        assert [series.x for series in drawn.panels[0].series] == [places]


@pytest.mark.parametrize("axis", ["x", "panels"])
def test_a_list_is_one_place_on_an_axis(tmp_path: Path, axis: str) -> None:
    figure = {"kind": "line", "x": "update.lr", "y": "accuracy", "panels": "", axis: "space.targets"}
    grid = changed(axes={"task": ["demo_remarks"], "space": {"targets": [["q"], ["q", "v"]]}}, figures={"f": figure})
    del grid["fixed"]["space"]
    composer, plan = planned(tmp_path, **grid)
    checked(composer, plan)
    (drawn,) = sweep_figures.figures(plan, composer, done(plan))
    shown = drawn.ticks if axis == "x" else [panel.title for panel in drawn.panels]
    assert [text.removeprefix("targets = ") for text in shown] == ["['q']", "['q', 'v']"]
    assert all(panel.series for panel in drawn.panels)


@pytest.mark.parametrize(
    ("left_out", "lacks"),
    [
        ([("fo", 1), ("fo", 2)], "1 of 3 trials have a result"),
        ([("zo", 1), ("zo", 2), ("fo", 0)], "2 of 6 trials have a result"),
        ([], ""),
    ],
)
def test_a_difference_is_backed_by_the_seeds_that_both_rows_have(
    tmp_path: Path, left_out: list[tuple[str, int]], lacks: str
) -> None:
    rate = {"train": {"steps": 4}, "update": {"lr": 0.003}}
    blocks = {**changed()["blocks"], "fo": {"fixed": {"method": "fo_lora_fa", **rate}}}
    layout = {"difference": {"layout": "accuracy_difference", "rows": {"zo": "ZO"}, "over": {"zo": "fo"}}}
    composer, plan = planned(tmp_path, seeds=[0, 1, 2], blocks=blocks, tables=layout)
    lines = [*unbacked(plan, composer, done(plan, frozenset(left_out)), 3)]
    assert lines == [f"tiny_difference, ZO, Movie remarks: {lacks}"] * bool(lacks)
