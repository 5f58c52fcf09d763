from __future__ import annotations

import io
import math
import time
from dataclasses import replace

import pytest
from rich.console import Console

from tests.schedule import fakes
from tests.schedule.driver import sweep
from zo_sweeps.cli import run as command
from zo_sweeps.cli.run import ProgressView, Terminal
from zo_sweeps.core.events import ScoredDev
from zo_sweeps.core.trial import Outcome, TrialState
from zo_sweeps.core.units import duration
from zo_sweeps.schedule.snapshot import Running, Snapshot

pytestmark = pytest.mark.unit


def snapshot(tmp_path, **changes) -> Snapshot:
    trial = fakes.trial(tmp_path, "ZO-LoRA-FA (q=1) · SST-2 · [lr 0.1] · seed 0", steps=1000)
    values = {
        "total": 12,
        "counts": {TrialState.SUCCEEDED: 5, TrialState.DIVERGED: 1, TrialState.FAILED: 2, TrialState.RUNNING: 1},
        "cost_total": 100.0,
        "cost_done": 60.0,
        "cost_this_run": 20.0,
        "seconds": 30.0,
        "running": (Running(trial, 1, "desk", 0, 250, time.monotonic()),),
    }
    return Snapshot(**{**values, **changes})


def test_the_eta_is_the_rest_at_the_rate_of_this_run(tmp_path):
    assert snapshot(tmp_path).eta_seconds == pytest.approx(40 * 30 / 20)
    assert command.status_line(snapshot(tmp_path)) == "8/12 trials, 1 running, 1 diverged, 2 failed, ETA 60 s"
    assert command.status_line(snapshot(tmp_path, cost_this_run=0.0)).endswith("ETA ?")


def test_there_is_no_eta_before_the_rate_means_something(tmp_path):
    assert snapshot(tmp_path, cost_total=10_000.0).eta_seconds is None
    late = snapshot(tmp_path, cost_total=10_000.0, seconds=700.0)
    assert late.eta_seconds == pytest.approx((10_000 - 60) * 700 / 20)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(8.4, "8 s"), (89, "89 s"), (90, "2 min"), (3600, "60 min"), (7500, "2 h 05 min"), (None, "?")],
)
def test_durations_are_short(seconds, text):
    assert duration(seconds) == text


def test_without_a_terminal_there_is_one_line_a_finished_trial(tmp_path):
    file = io.StringIO()
    with Terminal(Console(file=file, width=40)).progress() as view:
        plan = [
            fakes.trial(tmp_path / "w", "a [lr 0.1] long name" * 3),
            fakes.trial(tmp_path / "w", "b", raises=[1, 2]),
        ]
        sweep(tmp_path, plan, on_update=view.update, say=view.say)
    lines = file.getvalue().splitlines()
    assert len(lines) == 3
    assert lines[0] == "2 trials to run on this process, one at a time"
    assert lines[1].startswith(f"[1/2] SUCCEEDED  {plan[0].label}  dev ")  # not wrapped, brackets kept
    assert lines[2].startswith("[2/2] FAILED     b  ValueError: poisoned b")
    assert "\x1b" not in file.getvalue()


def test_without_a_terminal_a_status_line_comes_at_most_every_few_seconds(tmp_path, monkeypatch):
    file = io.StringIO()
    monkeypatch.setattr(command, "STATUS_SECONDS", 0.2)
    with Terminal(Console(file=file)).progress() as view:
        end = time.monotonic() + 0.5
        while time.monotonic() < end:
            view.update(snapshot(tmp_path))
            time.sleep(0.01)
    assert 1 <= len(file.getvalue().splitlines()) <= 2


def test_on_a_terminal_a_running_trial_shows_its_last_scores_on_dev(tmp_path):
    file = io.StringIO()
    view = ProgressView(console := Console(file=file, force_terminal=True, width=100, color_system=None))
    (run,) = snapshot(tmp_path).running
    evaluated = ScoredDev(step=250, metric=0.625, loss=0.69314)
    unknown = replace(evaluated, metric=math.nan, loss=math.nan)
    view.update(snapshot(tmp_path, running=(run, replace(run, dev=evaluated), replace(run, dev=unknown))))
    console.print(view.page())
    label = "ZO-LoRA-FA (q=1) · SST-2 · [lr 0.1] · seed 0  desk"
    assert f"  250/1000                         {label}" in file.getvalue()
    assert f"  250/1000  dev 62.5, loss 0.6931  {label}" in file.getvalue()
    assert f"  250/1000  dev –, loss –          {label}" in file.getvalue()


def test_the_sweep_tells_the_view_what_was_evaluated_last(tmp_path):
    plan = [fakes.trial(tmp_path / "w", "a", steps=8, rungs={"2": 0.5})]
    losses = []
    sweep(tmp_path, plan, on_update=lambda now: losses.extend(run.dev and run.dev.loss for run in now.running))
    assert losses[-1] == 0.5


def test_on_a_terminal_a_live_view_shows_the_bar_and_what_runs_and_then_goes_away(tmp_path):
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=100, color_system=None)
    running = snapshot(tmp_path).running * 11
    bad = (fakes.trial(tmp_path, "bad"), Outcome("bad", TrialState.FAILED, error="boom"))
    with Terminal(console).progress() as view:
        view.update(snapshot(tmp_path, running=running))
        view.update(snapshot(tmp_path, running=running, ended=bad))
        time.sleep(0.7)
    text = file.getvalue()
    assert " 60% 8/12 trials" in text
    assert "250/1000  ZO-LoRA-FA (q=1) · SST-2 · [lr 0.1] · seed 0  desk" in text
    assert "and 3 more" in text
    assert "[8/12] FAILED     bad  boom" in text
