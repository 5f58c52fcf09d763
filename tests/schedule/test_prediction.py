"""Predictions: what finished trials teach, and where a probe of the machine comes first."""

from __future__ import annotations

import io
import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from tests.plan.common import TINY, planned
from tests.schedule import fakes
from tests.schedule.driver import sweep
from zo_sweeps.cli.status import show_plan
from zo_sweeps.core.errors import UserError
from zo_sweeps.core.trial import Outcome, Trial, TrialState
from zo_sweeps.devices.probe import probe
from zo_sweeps.devices.speed import Speed, keep, known
from zo_sweeps.results.facts import plan_facts
from zo_sweeps.run import measure_speed
from zo_sweeps.schedule.ledger import Ledger, read_standing
from zo_sweeps.schedule.prediction import TRIAL, DeviceClass, TimePredictions, median, predictions
from zo_sweeps.schedule.snapshot import Running, Snapshot
from zo_sweeps.session import session

pytestmark = pytest.mark.unit
HERE, THERE = DeviceClass("here", 1), DeviceClass("there", 2)
SPEED = Speed("here", 1, operations=1e9, start=3.0)


def trial(folder: Path, name: str, row: str = "zo", key: str = "k") -> Trial:
    return replace(fakes.trial(folder, name, row=row), operations=5.2e9, memory_key=key)


def outcome(one: Trial, ratio: float, device: DeviceClass = HERE, **metrics: float) -> Outcome:
    took = {"wall_seconds": ratio * 5.5 + metrics.get("load_seconds", 0.0), **metrics}
    where = {"name": device.name, "threads": device.threads}
    return Outcome(one.trial_id, TrialState.SUCCEEDED, took, device=where)


def test_finished_trials_correct_a_prediction_and_one_odd_trial_does_not(tmp_path: Path) -> None:
    guess, one = TimePredictions(HERE, SPEED), trial(tmp_path, "a")
    first = TRIAL + one.operations / SPEED.operations
    assert first == pytest.approx(0.3 + 5.2)
    errors = []
    for n, ratio in enumerate((1.6, 1.5, 30.0, 1.55, 1.45, 1.5, 1.52)):
        predicted = guess.seconds(one)
        assert predicted is not None
        errors.append(abs(predicted / (1.5 * first) - 1))
        guess.learn(trial(tmp_path, f"t{n}"), outcome(one, ratio))
    assert errors[0] == pytest.approx(1 / 3)
    assert max(errors[2:]) < 0.1
    assert errors[-1] < 0.02


def test_trials_of_one_sort_speak_for_themselves_before_others(tmp_path: Path) -> None:
    guess = TimePredictions(HERE, SPEED)
    full, sparse, other = (trial(tmp_path, row, row, key=row) for row in ("full", "sparse", "other"))
    for _ in range(5):
        guess.learn(full, outcome(full, 2.0))
        guess.learn(sparse, outcome(sparse, 0.5, load_seconds=100.0))
    ratios = [(guess.seconds(one) or 0) / 5.5 for one in (full, sparse, other)]
    assert ratios == pytest.approx([2.0, 0.5, 1.0])
    assert guess.start == 100.0
    assert TimePredictions(HERE, SPEED).start == SPEED.start


def test_nothing_is_predicted_before_a_probe_or_a_finished_trial_and_devices_are_kept_apart(tmp_path: Path) -> None:
    one, guess = trial(tmp_path, "a"), TimePredictions(None)
    assert guess.seconds(one) is None
    assert guess.joules(one) is None
    assert guess.device is None
    took = outcome(one, 3.0, THERE, train_seconds=2.0, **{"energy/joules": 50.0})
    guess.learn(one, took)
    guess.learn(one, replace(took, state=TrialState.DIVERGED))
    assert guess.device == THERE
    assert guess.finished[THERE] == 1
    assert str(THERE) == "there, 2 threads"
    assert guess.seconds(one) == pytest.approx(took.metrics["wall_seconds"]), "the speed of reference cancels out"
    assert 0 < (guess.joules(one) or 0) < 25 * took.metrics["wall_seconds"], "25 W, during the steps"
    mixed = TimePredictions(HERE, SPEED)
    mixed.learn(one, took)
    assert mixed.seconds(one) == pytest.approx(5.5)
    assert mixed.devices == [HERE, THERE]
    assert median([4.0, 1.0]) == 2.0
    assert median([9.0, 1.0, 4.0]) == 4.0


def test_a_sweep_counts_its_work_in_predicted_seconds(tmp_path: Path) -> None:
    plan = [trial(tmp_path / "w", f"t{n}") for n in range(3)]
    seen = []
    sweep(tmp_path, plan, predictions=TimePredictions(HERE, SPEED), on_update=seen.append)
    assert seen[0].predicted
    assert seen[0].cost_total == pytest.approx(3 * 5.5)
    assert seen[-1].tokens_this_run == pytest.approx(sum(one.cost for one in plan))


def test_before_its_rate_is_known_a_sweep_with_predictions_has_an_eta_from_them(tmp_path: Path) -> None:
    runs = tuple(Running(trial(tmp_path, name), 1, "node", 0, 0, 0.0) for name in ("a", "b"))
    first = Snapshot(9, {}, 1000.0, 0.0, 1.0, 5.0, runs, predicted=True)
    assert first.eta_seconds == 500.0
    assert replace(first, predicted=False).eta_seconds is None
    assert replace(first, running=()).eta_seconds is None
    assert replace(first, cost_done=100.0, cost_this_run=100.0).eta_seconds == 900.0 * 5.0 / 100.0


def test_a_plan_shows_what_finished_trials_or_a_probe_predict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZO_SWEEPS_CACHE", str(tmp_path / "cache"))
    plan = planned(tmp_path, TINY, f"state_dir={tmp_path / 'state'}")
    facts = plan_facts(plan)
    assert (facts.device, facts.seconds_left, facts.rows[0].seconds, facts.trials[0].seconds) == (None,) * 4
    one, _ = plan.trials
    with Ledger(plan.config.folder) as ledger:
        ledger.write(one.trial_id, TrialState.RUNNING, attempt=1)
        done = Outcome(one.trial_id, TrialState.SUCCEEDED, {"wall_seconds": 20.0}, device={"name": "x", "threads": 1})
        ledger.write(one.trial_id, TrialState.SUCCEEDED, outcome=done)
    planned_again = io.StringIO()
    show_plan(plan_facts(plan), Console(file=planned_again, width=80), trials=False)
    assert "time on x, 1 thread: about 20 s" in planned_again.getvalue(), "the other trial is of the same sort"
    keep(replace(SPEED, device=probe()["name"], threads=1))
    probed = plan_facts(plan)
    assert probed.probed
    assert probed.seconds_left == pytest.approx(TRIAL + plan.trials[1].operations / 1e9)


def test_a_sweep_of_some_length_probes_the_machine_first_and_a_short_one_or_one_that_is_known_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ZO_SWEEPS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(
        measure_speed, "measure", lambda threads: keep(replace(SPEED, device=probe()["name"], threads=threads))
    )
    view = session.View()
    probed = []
    for steps in (4, 4000, 4000):
        plan = planned(tmp_path, TINY, f"state_dir={tmp_path / 'state'}", "executor=inline", f"train.steps={steps}")
        had = predictions(plan, read_standing(plan.config.folder)).speed
        made = session.predictions_of(plan, read_standing(plan.config.folder), view)
        probed.append((had is not None, made.speed is not None))
    assert probed == [(False, False), (False, True), (True, True)]


def test_a_speed_survives_its_file_and_a_damaged_one_is_named_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ZO_SWEEPS_CACHE", str(tmp_path))
    assert known("here", 1) is None
    keep(SPEED)
    assert known("here", 1) == SPEED
    assert known("here", 2) is None, "of another number of threads"
    (file,) = (tmp_path / "speed").iterdir()
    whole = json.loads(file.read_text())
    for damaged in ("{", "[]", "{}", json.dumps({**whole, "operations": -1}), json.dumps({**whole, "more": 1})):
        file.write_text(damaged)
        with pytest.raises(UserError, match=r"cannot read this machine's speed.*plan --probe") as error:
            known("here", 1)
        assert str(file) in str(error.value)
        assert "\n" not in str(error.value)


def test_a_tiny_trial_has_the_operations_that_its_configuration_says(tmp_path: Path) -> None:
    grid = {**TINY, "blocks": {"zo": {**TINY["blocks"]["zo"], "axes": {}}}}  # q = 2, 4 steps, dev after 2 and 4
    (one,) = planned(tmp_path, grid, "split.dev=6", "split.test=5", "train.batch=8", "evaluation.mode=both").trials
    weights = 6 * (4 * 256 * 256 + 3 * 256 * 704)  # of the demo model's layers
    assert one.operations == pytest.approx(2 * weights * one.cost)


def test_a_probe_measures_what_a_forward_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.set_num_threads", lambda threads: None)
    monkeypatch.setattr(measure_speed, "CALLS", 2)
    made = measure_speed._probe(2, 0.0)
    assert (made.device, made.threads) == (probe()["name"], 2)
    assert 0 < made.operations < math.inf
    assert made.start > 0
