"""Tables and figures name what their columns show: the unit, the direction and the name of the tasks' metrics."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.plan.common import changed, write_grid
from zo_sweeps.cli.run import ended_line
from zo_sweeps.config.composer import Composer
from zo_sweeps.core.errors import UserError
from zo_sweeps.core.events import read_event
from zo_sweeps.core.trial import Outcome, Trial, TrialState
from zo_sweeps.plan.build import Plan, build
from zo_sweeps.results.tables import tables
from zo_sweeps.schedule.ledger import Standing, read_standing
from zo_sweeps.tables.renderings import to_csv, to_text
from zo_sweeps.tables.text_cells import selected_grid
from zo_sweeps_report.sweep_figures import figures

pytestmark = pytest.mark.unit

STSB = """
name: stsb
display: STS-B
kind: regression
metric: pearson
fields: [one]
label_field: score
dialects:
  mezo: {loss: candidates, template: "{{ one }} is", options: [" no", " yes"]}
"""
MOOD = """
name: mood
display: Moods
kind: classification
metric: {name: f1, positive: 1}
source: packaged
local: demo
fields: [sentence]
label_field: label
dialects:
  mezo: {loss: candidates, template: "{{ sentence }} It was", options: [" terrible", " great"]}
"""
VALUES = {"stsb": 0.5, "demo_remarks": 0.875, "mood": 0.25, "calm": 0.75}


def planned(folder: Path, tasks: list[str], *overrides: str, **grid: Any) -> tuple[Composer, Plan]:
    conf = write_grid(folder / "conf", changed(axes={"task": tasks}, **grid))
    (conf / "task").mkdir(exist_ok=True)
    (conf / "task" / "stsb.yaml").write_text(STSB)
    (conf / "task" / "mood.yaml").write_text(MOOD)
    calm = MOOD.replace("mood", "calm").replace("Moods", "Calm").replace("{name: f1, positive: 1}", "f1_macro")
    (conf / "task" / "calm.yaml").write_text(calm)
    for split in ("train", "validation", "test"):
        rows = [json.dumps({"one": f"row {i}", "score": i % 3}) + "\n" for i in range(8)]
        (folder / "data" / "stsb").mkdir(parents=True, exist_ok=True)
        (folder / "data" / "stsb" / f"{split}.jsonl").write_text("".join(rows))
    where = [f"data.dir={folder / 'data'}", f"state_dir={folder / 'state'}"]
    composer = Composer(["+grid=tiny", *where, *overrides], [str(conf)])
    return composer, build(composer)


def ended(plan: Plan, trial: Trial) -> Outcome:
    value = VALUES[trial.task]
    return Outcome(trial.trial_id, TrialState.SUCCEEDED, {"dev/loss": 1.0, "dev/metric": value, "test/metric": value})


def standing(plan: Plan, folder: Path) -> Standing:
    from zo_sweeps.record.journal import JournalStore
    from zo_sweeps.schedule.ledger import Ledger

    with Ledger(folder / "state") as ledger:
        journals = JournalStore(folder / "state")
        for trial_id, trial in plan.every.items():
            outcome = ended(plan, trial)
            ledger.write(trial_id, TrialState.RUNNING, attempt=1)
            step = read_event({"type": "steps", "first": 1, "losses": [1.0], "seconds": 1.0, "coefs": [[0.1]]})
            dev = read_event({"type": "eval", "step": 1, "split": "dev", "loss": 0.5, "metric": VALUES[trial.task]})
            end = read_event({"type": "end", "outcome": outcome.to_json()})
            journals.append(trial_id, [read_event({"type": "start", "attempt": 1}), step, dev, end])
            ledger.write(trial_id, outcome.state, attempt=1, node="a", outcome=outcome)
        journals.close()
    return read_standing(folder / "state")


def test_a_column_of_correlations_is_not_headed_accuracy_in_percent(tmp_path: Path) -> None:
    composer, plan = planned(tmp_path, ["stsb"])
    (table,) = tables(plan, composer, standing(plan, tmp_path))
    text = to_text(table)
    assert "tiny: Pearson correlation." in text
    assert "accuracy" not in text
    assert "%" not in text
    assert "0.500" in text
    assert ",%," not in to_csv(table)


def test_a_correlation_among_accuracies_is_named_and_printed_in_its_own_unit(tmp_path: Path) -> None:
    grid = {"tables": {"accuracy": {"layout": "accuracy", "rows": {"zo": "ZO"}, "average": True, "rank": True}}}
    composer, plan = planned(tmp_path, ["demo_remarks", "stsb"], **grid)
    (table,) = tables(plan, composer, standing(plan, tmp_path))
    text = to_text(table)
    assert "tiny: accuracy (%; Pearson correlation: STS-B)." in text
    assert table.cells["zo", "demo_remarks"].mean == pytest.approx(87.5)
    assert table.cells["zo", "stsb"].mean == 0.5
    assert {"87.5", "0.500"} <= set(text.split())
    assert table.cells["zo", "average"].mean is None, "a percentage and a correlation have no mean"
    units = {line.split(",")[2]: line.split(",")[7] for line in to_csv(table).splitlines()[1:]}
    assert (units["Movie remarks"], units["STS-B"]) == ("%", "")


def test_a_table_of_accuracies_is_headed_as_before(tmp_path: Path) -> None:
    composer, plan = planned(tmp_path, ["demo_remarks"])
    (table,) = tables(plan, composer, standing(plan, tmp_path))
    assert to_text(table).startswith("tiny: accuracy (%).")


def test_a_table_of_one_other_metric_is_named_by_it(tmp_path: Path) -> None:
    composer, plan = planned(tmp_path, ["demo_remarks"], "task.metric=f1_macro")
    (table,) = tables(plan, composer, standing(plan, tmp_path))
    assert to_text(table).startswith("tiny: macro F1 (%).")
    assert table.cells["zo", "demo_remarks"].mean == pytest.approx(87.5)


@pytest.mark.parametrize(
    ("tasks", "head", "named"),
    [
        (["demo_remarks", "mood"], "tiny: accuracy (%).", "F1: Moods"),
        (["mood", "calm", "demo_remarks"], "tiny: accuracy (%).", "F1: Moods; macro F1: Calm"),
        (["calm", "mood"], "tiny: macro F1 (%).", "F1: Moods"),
        (["mood", "stsb"], "tiny: F1 (%; Pearson correlation: STS-B).", ""),
    ],
)
def test_metrics_of_one_unit_are_named_where_they_are_not_the_tables(
    tasks: list[str], head: str, named: str, tmp_path: Path
) -> None:
    """They have one average, as in the papers, where F1 stands among accuracies."""
    composer, plan = planned(tmp_path, tasks)
    (table,) = tables(plan, composer, standing(plan, tmp_path))
    assert to_text(table).startswith(head)
    assert [line for line in table.spec.footnotes if "Moods" in line or "Calm" in line] == [named] * bool(named)
    assert named in to_text(table)


def test_figures_label_their_axes_by_the_metric(tmp_path: Path) -> None:
    layout = {
        "bars": {"kind": "bar", "x": "column", "y": "accuracy"},
        "curve": {"kind": "curve", "x": "step", "y": "dev/metric"},
    }
    for tasks, bars, curve in (
        (["demo_remarks"], "Test accuracy (%)", "Dev accuracy (%)"),
        (["stsb"], "Test Pearson correlation", "Dev Pearson correlation"),
        (
            ["demo_remarks", "stsb"],
            "Test accuracy (%; Pearson correlation: STS-B)",
            "Dev metric (%; Pearson correlation: STS-B)",
        ),
    ):
        folder = tmp_path / "-".join(tasks)
        composer, plan = planned(folder, tasks, figures=layout)
        done = standing(plan, folder)
        one, two = figures(plan, composer, done)
        assert (one.y_label, two.y_label) == (bars, curve)
        ends = [series.y[-1] for panel in two.panels for series in panel.series]
        assert ends == [VALUES[task] / (0.01 if task == "demo_remarks" else 1.0) for task in tasks]
        assert list(one.panels[0].series[0].y) == ends


def test_a_rule_that_selects_the_worst_value_of_a_metric_is_refused(tmp_path: Path) -> None:
    select = {"metric": "dev/metric", "mode": "max"}
    composer, plan = planned(tmp_path, ["demo_remarks"], "task.metric=perplexity", select=select)
    with pytest.raises(UserError, match=r"highest dev/metric, but perplexity is better when lower.*mode=min"):
        tables(plan, composer, Standing())
    composer, plan = planned(tmp_path, ["demo_remarks"], select=select)
    assert tables(plan, composer, Standing())


def test_the_line_of_a_trial_s_end_has_the_metric_in_its_own_unit(tmp_path: Path) -> None:
    _, plan = planned(tmp_path, ["demo_remarks", "stsb"])
    lines = {trial.task: ended_line(trial, ended(plan, trial)) for trial in plan.trials}
    assert "test 87.5" in lines["demo_remarks"]
    assert "test 0.500" in lines["stsb"]


def test_a_row_without_a_label_is_printed_under_its_block_s_name(tmp_path: Path) -> None:
    block = {"fixed": {"method": "prge", "estimator": {"q": 2}, "train": {"steps": 4, "eval_every": 2}}}
    layout = {"accuracy": {"layout": "accuracy", "rows": {"zo": ""}}}
    composer, plan = planned(tmp_path, ["demo_remarks"], blocks={"zo": block}, tables=layout)
    (table,) = tables(plan, composer, standing(plan, tmp_path))
    assert [row for row in to_text(table).splitlines() if row.startswith("zo ")]


@pytest.mark.parametrize("tasks", [["demo_remarks"], ["stsb", "demo_remarks"]])
def test_a_layout_with_columns_has_one_for_each_metric_that_is_not_always_zero(
    tmp_path: Path, tasks: list[str]
) -> None:
    composer, plan = planned(tmp_path, tasks, tables={"memory": {"layout": "memory_parts", "rows": {"zo": ""}}})
    mib = 2**20
    metrics = {f"memory/{part}_bytes": 0.0 for part in ("scales", "sparse", "trainable", "activations", "workspace")}
    metrics |= {"memory/weights_bytes": 3.0 * mib, "memory/logits_bytes": 0.5 * mib, "memory/total_bytes": 3.5 * mib}
    outcomes = {
        i: Outcome(i, TrialState.SUCCEEDED, {**ended(plan, trial).metrics, **metrics})
        for i, trial in plan.every.items()
    }
    (table,) = tables(plan, composer, Standing(dict.fromkeys(plan.every, TrialState.SUCCEEDED), outcomes=outcomes))
    names = [label for _, label in table.columns]
    parts = ["Weights", "Logits", "Total"]
    assert names == (parts if len(tasks) == 1 else [f"{plan.labels[task]}, {part}" for task in tasks for part in parts])
    assert [table.cells["zo", key].mean for key, _ in table.columns] == [3.0, 0.5, 3.5] * len(tasks)
    assert "memory by part (MiB)" in to_text(table, width=120).replace("\n", " ")
    selected = selected_grid(table)
    assert selected is not None, "there is a search"
    assert [cell.text for cell in selected.header] == (["", *(plan.labels[task] for task in tasks)])
    empty = tables(plan, composer, Standing())[0]
    assert len(empty.columns) == 8 * len(tasks), "before anything has run, every part has a column"
