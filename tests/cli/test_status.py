"""What `status` says while a sweep runs: where, what waits and why."""

from __future__ import annotations

import io
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from tests.plan.common import TINY, planned, write_grid
from zo_sweeps.cli.status import show_plan, show_status, waited
from zo_sweeps.core.errors import UserError
from zo_sweeps.core.events import ScoredDev
from zo_sweeps.core.trial import Outcome, TrialState
from zo_sweeps.results.facts import plan_facts, status_facts
from zo_sweeps.schedule.ledger import Ledger
from zo_sweeps.schedule.snapshot import LiveFile, Running, Snapshot, read_live
from zo_sweeps.session import session

pytestmark = pytest.mark.unit
WHY = "needs device jetson-tx2: 0 of 1 nodes offer it (desk is a cpu)"


def test_a_running_sweep_says_what_runs_where_and_why_others_wait_and_an_ended_one_does_not(tmp_path: Path) -> None:
    plan = planned(tmp_path / "conf", TINY, f"state_dir={tmp_path / 'state'}")
    first = plan.trials[0]

    def said() -> str:
        page = io.StringIO()
        show_status(status_facts(plan), Console(file=page, width=200), failed=False, trials=False)
        return page.getvalue()

    with Ledger(tmp_path / "state") as ledger:
        live = LiveFile(tmp_path / "state")
        assert "waiting" not in said()
        ledger.write(first.trial_id, TrialState.RUNNING, attempt=2)
        running = Running(first, 2, "nano", 0, 3, time.monotonic())
        counts = {TrialState.RUNNING: 1, TrialState.PENDING: 1}
        live.update(Snapshot(2, counts, 8, 3, 3, 60.0, (running,), waiting={WHY: 1}))
        text = said()
        assert f"waiting (1 trial): {WHY}" in text
        assert "time to go: 100 s" in text.replace("2 min", "100 s")
        (line,) = [line for line in text.splitlines() if first.label in line and "nano" in line]
        assert "3/4" in line
        live.update(Snapshot(2, counts, 8, 4, 4, 60.0, ()))  # within a second of the last
        assert read_live(tmp_path / "state")["running"][0].step == 3
        other = status_facts(planned(tmp_path / "conf", TINY, f"state_dir={tmp_path / 'state'}", "grid.seeds=[7]"))
        assert (other.driver, other.running, other.waiting, other.seconds_left) == (None, [], {}, None), "it is ours"
    assert WHY not in said()
    assert "stopped" not in said()
    with Ledger(tmp_path / "state") as ledger:
        ledger.write(first.trial_id, TrialState.CANCELLED, error="stopped on request")
        ledger.write(plan.trials[1].trial_id, TrialState.PENDING, error="its row failed")
    assert [line for line in said().splitlines() if "stopped" in line] == ["stopped (1 trial): its row failed"]
    LiveFile(tmp_path / "state")
    assert read_live(tmp_path / "state") is None


@pytest.mark.parametrize(
    ("step", "silent", "scored", "predicted", "stalled"),
    [
        (10, 119, 0.0, None, False),  # steps of 2 s: ten times that is less than two minutes
        (10, 121, 0.0, None, True),
        (1, 199, 0.0, None, False),  # a step of 20 s
        (1, 201, 0.0, None, True),
        (10, 299, 30.0, None, False),  # evaluations of half a minute
        (10, 301, 30.0, None, True),
        (0, 599, 0.0, None, False),  # nothing is known while a model is loaded,
        (0, 601, 0.0, None, True),
        (0, 601, 0.0, 2000.0, False),  # unless the whole trial has a prediction
        (0, 5001, 0.0, 2000.0, True),  # of 500 s a step
        (4, 599, 0.0, None, True),
    ],
)
def test_a_trial_stalls_where_neither_its_steps_nor_its_prediction_explain_its_silence(
    tmp_path: Path, step: int, silent: float, scored: float, predicted: float | None, stalled: bool
) -> None:
    trial = replace(planned(tmp_path / "conf", TINY, f"state_dir={tmp_path}").trials[0], steps=4 if step == 0 else 20)
    now = time.monotonic()
    run = Running(trial, step=step, since=now - silent - 20, reported=now - silent, predicted=predicted)
    run.dev = ScoredDev(step=1, loss=1.0, metric=0.5, seconds=scored, time=0.0)
    assert run.stalled is stalled
    run.saw([])
    assert not run.stalled, "it has reported"


def test_waiting_ends_with_a_status_that_says_what_was_seen(tmp_path: Path) -> None:
    plan = planned(tmp_path / "conf", TINY, f"state_dir={tmp_path / 'state'}")
    first, second = (trial.trial_id for trial in plan.trials)
    counts = {TrialState.RUNNING: 1, TrialState.PENDING: 1}
    with Ledger(tmp_path / "state") as ledger:
        ledger.write(first, TrialState.RUNNING, attempt=1)
        run = Running(plan.trials[0], 1, "nano", reported=time.monotonic() - 721)
        assert [waited(plan, [what], 0) for what in ("done", "failed", "stalled")] == [5, 5, 5], "it runs"
        LiveFile(tmp_path / "state").update(Snapshot(2, counts, 8, 3, 3, 60.0, (run,)))
        assert [waited(plan, [what], 0) for what in ("done", "failed", "stalled")] == [5, 5, 4]
        page = io.StringIO()
        show_status(status_facts(plan), Console(file=page, width=200), failed=False, trials=False)
        assert f"stalled: {plan.trials[0].label} has reported nothing for 12 min" in page.getvalue()
        ledger.write(first, TrialState.FAILED, error="no")
        assert [waited(plan, what, 0) for what in (["done"], ["failed"], ["stalled", "failed"])] == [5, 3, 4]
    assert waited(plan, ["done"], 9) == 3, "one failed, one is left"
    ledger = Ledger(tmp_path / "state")
    for trial_id in (first, second):
        ledger.write(trial_id, TrialState.SUCCEEDED, outcome=Outcome(trial_id, TrialState.SUCCEEDED))
    ended = threading.Timer(0.5, ledger.close)
    assert waited(plan, ["done"], 0) == 5, "the driver has not ended"
    ended.start()
    assert waited(plan, ["done"], 60) == 0
    ended.join()


def test_a_plan_shows_its_rounds_and_the_caps_that_it_cannot_hold_and_is_not_launched(tmp_path: Path) -> None:
    composer, command = session.compose("tiny", ["budget.trials=1"], tmp_path / "s", [write_grid(tmp_path, TINY)])
    plan = session.plan_here(composer)
    facts, shown = plan_facts(plan, "information"), io.StringIO()
    show_plan(facts, Console(file=shown, width=200), trials=False)
    lines = shown.getvalue().splitlines()
    assert "order: 1 trial for a first number in each of 1 cell, then 1 for the search, then 0 further seeds" in lines
    assert (
        sum(
            line.startswith("over the budget: the plan has 2 trials, and budget.trials=1; raise it (2")
            for line in lines
        )
        == 1
    )
    with pytest.raises(UserError, match=r"the plan has 2 trials, and budget\.trials=1"):
        session.run(plan, composer, command, session.View())
    assert not (tmp_path / "s").exists()


def test_a_device_without_a_profile_is_refused_when_the_grid_is_planned(tmp_path: Path) -> None:
    from tests.plan.common import problem

    assert "unknown device 'jetson-tx9'" in problem(tmp_path, TINY, "device.name=jetson-tx9")


def test_a_plan_names_the_rows_with_few_distinct_directions_or_a_warm_up_beyond_the_run(tmp_path: Path) -> None:
    zo = {**TINY["blocks"]["zo"], "label": "Pool"}
    pool = {**zo, "fixed": {**zo["fixed"], "method": "pezo_pool", "perturbation": {"k": 4}}}
    cone = {**zo, "label": "Cone", "fixed": {**zo["fixed"], "method": "conmezo"}}
    plan = planned(tmp_path, {**TINY, "blocks": {"zo": TINY["blocks"]["zo"], "pool": pool, "cone": cone}})
    assert {plan.every[i].block for i in plan.remarks} == {"pool", "cone"}
    shown = io.StringIO()
    show_plan(plan_facts(plan), Console(file=shown, width=200), trials=False)
    line, warming = [line for line in shown.getvalue().splitlines() if line.startswith("note: ")]
    assert line.startswith("note: theta moves along ")
    assert line.endswith("the generator repeats (2 trials; Pool)")
    longer = "note: perturbation.warmup=2000 is longer than the run, at whose end the momentum's decay is 0.1, not 0.99"
    assert warming == f"{longer}: set it to a tenth of the steps (2 trials; Cone)"


def test_a_trial_that_its_device_cannot_hold_is_missing_with_the_reason(tmp_path: Path) -> None:
    plan = planned(tmp_path, TINY, "device=jetson-tx2", "device.memory_gb=0.1")
    assert not plan.trials
    assert set(plan.missing.values()) == {"needs about 0.7 GB, and a Jetson TX2 (8 GiB) has 0.1"}
