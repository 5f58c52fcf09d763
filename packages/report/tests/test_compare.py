"""Comparisons of trials, costs to a target, and results of other code, from ledgers and journals on disk."""

from __future__ import annotations

import io
import shutil
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from rich.console import Console

from tests.results.common import composed, fill, outcome
from zo_sweeps.cli.status import show_status
from zo_sweeps.config.composer import Composer
from zo_sweeps.config.schema import GridTable
from zo_sweeps.core.errors import UserError
from zo_sweeps.core.events import read_event
from zo_sweeps.core.trial import TrialState
from zo_sweeps.methods.trial_config import TrialConfig, code_of
from zo_sweeps.plan.build import Plan
from zo_sweeps.record.journal import trail
from zo_sweeps.record.sweep_book import SweepBook, SweepInfo, books
from zo_sweeps.results import tables as readout
from zo_sweeps.results.facts import status_facts
from zo_sweeps.schedule.ledger import Ledger, read_standing
from zo_sweeps.tables import to_text
from zo_sweeps.tables.text_cells import value_text
from zo_sweeps_report.compare import SettingDifference, compared, differences, show_comparison, spark


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("compared")


@pytest.fixture(scope="module")
def swept(folder: Path) -> tuple[Composer, Plan]:
    composer, plan = composed(folder)
    fill(plan, folder)
    return composer, plan


def test_a_trail_counts_seconds_of_steps_once_across_a_resumption() -> None:
    events = [
        read_event({"type": "steps", "first": 1, "losses": [4.0, 3.0], "seconds": 2.0}),
        read_event({"type": "eval", "step": 2, "split": "dev", "loss": 0.5, "metric": 0.6, "seconds": 100.0}),
        read_event({"type": "start", "attempt": 2}),
        read_event({"type": "steps", "first": 2, "losses": [9.0, 2.0], "seconds": 6.0}),
        read_event({"type": "eval", "step": 3, "split": "dev", "loss": 0.4, "metric": 0.7, "seconds": 100.0}),
    ]
    found = trail(events)
    assert found["train/loss"] == [(1, 1.0, 4.0), (2, 2.0, 3.0), (3, 5.0, 2.0)]
    assert found["dev/metric"] == [(2, 2.0, 0.6), (3, 5.0, 0.7)]
    assert trail([]) == {"train/loss": [], "dev/loss": [], "dev/metric": []}


def test_two_trials_are_compared_by_what_differs(folder: Path, swept: tuple[Composer, Plan]) -> None:
    _, plan = swept
    state = folder / "state"
    book = SweepBook(state, "tiny", SweepInfo(sweep_id="s", grid="tiny", title="t"))
    for trial in plan.every.values():
        book.add(trial)
    book.close()
    assert {asdict(trial)["trial_id"] for found in books(state) for trial in found.trials} == set(plan.every)
    one, two = (
        next(i for i, t in plan.every.items() if t.label == f"ZO · Movie remarks · q {q} · lr 0.01 · seed 0")
        for q in (1, 4)
    )
    out = io.StringIO()
    show_comparison(compared(state, [one, two[:8]]), Console(file=out, width=120), config=False)
    lines = [" ".join(line.split()) for line in out.getvalue().splitlines()]
    assert "estimator.q 1 4" in lines
    assert not any(line.startswith(("update.lr", "seed", "model")) for line in lines)
    assert "test/metric 0.71 0.74 +0.03" in lines
    assert "step 20 0.5000 0.5000 +0.0000" in lines
    assert any(line.startswith("B █") and line.endswith("20 steps") for line in lines)
    assert "seconds_per_step 100 ms 400 ms +300 ms" in lines
    moved, there = folder / "moved", outcome(plan, two)
    shutil.copytree(state, moved)
    with Ledger(moved) as ledger:
        there = replace(there, device={**there.device, "threads": 2})
        ledger.write(two, TrialState.SUCCEEDED, attempt=1, outcome=there)
    both = compared(moved, [one, two])
    assert both.places == ["measured in different places: cpu, PyTorch, 1 thread against cpu, PyTorch, 2 threads"]
    changes = {each.metric: each.difference for each in both.measured}
    assert (changes["seconds_per_step"], changes["test/metric"]) == (None, pytest.approx(0.03))
    with pytest.raises(UserError, match="unknown trial 'zzz'"):
        compared(state, [one, "zzz"])
    with pytest.raises(UserError, match="trials begin with ''"):
        compared(state, [one, ""])


def test_configurations_differ_in_leaves_and_in_what_only_one_has() -> None:
    found = differences({"a": {"b": 1, "c": 2}, "d": [1]}, {"a": {"b": 1, "c": 3}, "d": [1], "e": None})
    assert found == [SettingDifference("a.c", 2, 3), SettingDifference("e", "–", None)]


def test_a_drawn_curve_spans_its_scale_and_marks_what_is_not_a_number() -> None:
    assert spark([0.0, 0.5, 1.0], 0.0, 1.0) == "▁▅█"
    assert len(spark([1.0] * 1000, 0.0, 2.0)) == 40
    assert spark([float("nan"), 1.0], 0.0, 1.0) == "!█"
    assert spark([], 0.0, 1.0) == ""


def test_a_result_that_was_measured_with_other_code_says_so_in_its_cell_and_in_the_status(tmp_path: Path) -> None:
    composer, plan = composed(tmp_path)
    fill(plan, tmp_path)
    state = tmp_path / "state"
    text = lambda: "".join(map(to_text, readout.tables(plan, composer, read_standing(state), ["accuracy"])))
    today = text()
    assert "measured with other code" not in today, "nothing is known of results without a code"

    def measured_by(code: Callable[[TrialConfig], str]) -> None:
        with Ledger(state) as ledger:
            for trial_id, trial in plan.every.items():
                ended = replace(outcome(plan, trial_id), code=code(TrialConfig.of(trial.config)))
                ledger.write(trial_id, ended.state, outcome=ended)

    measured_by(code_of)
    assert text() == today
    measured_by(lambda config: code_of(config) if config.method.kind.trains else "yesterday")
    (line,) = [line for line in text().splitlines() if "measured with other code" in line]
    (row,) = [row for row in text().splitlines() if row.startswith("Zero-shot ")]
    assert line[:3] in row
    said = io.StringIO()
    show_status(status_facts(plan), Console(file=said, width=200), failed=False, trials=False)
    assert "1 measured with other code than today's: --rerun succeeded" in said.getvalue()


def cell_to(target: float | None, swept: tuple[Composer, Plan], layout: str = "energy_to_target") -> tuple[str, str]:
    """The text of a cell in a table of costs to a target, and the text of the table."""
    composer, plan = swept
    chosen = GridTable(layout=layout, rows={"zo": ""}, target=target)
    grid = replace(plan.grid, tables={"cost": chosen})
    altered = replace(plan, config=replace(plan.config, grid=grid))
    (table,) = readout.tables(altered, composer, read_standing(plan.config.folder))
    ((key, cell),) = table.cells.items()
    return value_text(cell, table, key[1]), to_text(table)


def test_what_a_target_took_is_read_from_the_journals(swept: tuple[Composer, Plan]) -> None:
    text, table = cell_to(0.8, swept)
    assert text.startswith("30.0 ± 0.0")
    assert "Target: 0.8 on dev, of the task's first metric." in table
    assert "5.00 s" in table, "of minutes, the unit of the layout"
    assert cell_to(0.81, swept)[0] == "not reached"


def test_a_layout_of_costs_to_a_target_needs_one_and_no_other_takes_one(swept: tuple[Composer, Plan]) -> None:
    with pytest.raises(UserError, match="needs a target") as error:
        cell_to(None, swept)
    assert "grid.tables.cost.target=0.8" in str(error.value)
    with pytest.raises(UserError, match="'step_time' has no target"):
        cell_to(0.8, swept, "step_time")
