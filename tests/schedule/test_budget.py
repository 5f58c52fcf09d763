"""Budgets: what was spent, what cannot be held, and where a running sweep stops."""

from __future__ import annotations

import itertools
from pathlib import Path
from unittest.mock import MagicMock

import pytest

from tests.run.common import make
from tests.schedule import fakes
from tests.schedule.driver import sweep
from tests.schedule.test_sweep import Scripted
from zo_sweeps.core.errors import UserError
from zo_sweeps.core.events import Event, ScoredDev, Steps
from zo_sweeps.core.trial import Outcome, TrialState
from zo_sweeps.methods.executor import Budget
from zo_sweeps.record.journal import JournalStore, last_step
from zo_sweeps.results.facts import _rest
from zo_sweeps.schedule.backend import Finished, Progress
from zo_sweeps.schedule.executors import inline
from zo_sweeps.schedule.executors.inline import InlineBackend
from zo_sweeps.schedule.ledger import Ledger, Standing, read_standing
from zo_sweeps.schedule.snapshot import Summary
from zo_sweeps.schedule.spending import Caps, Spent, cap_above, covered, over, spent
from zo_sweeps.session.session import Result

HOUR = 3600.0


def steps(joules: float | None, **more: float) -> Steps:
    return Steps(first=1, losses=(1.0,), seconds=1.0, tokens=1, joules=joules, **more)


def test_time_in_which_several_trials_run_counts_once() -> None:
    assert covered([]) == 0
    assert covered([(5, 7), (0, 4), (1, 3), (6, 9)]) == 4 + 4


def test_hours_are_of_the_sweeps_own_attempts_and_of_a_killed_driver_until_its_last_event() -> None:
    standing = Standing()
    for at, name, state in [
        (0, "a", "RUNNING"),
        (50, "b", "RUNNING"),
        (60, "b", "SUCCEEDED"),
        (100, "a", "FAILED"),
        (1000, "a", "RUNNING"),  # the driver is killed; a's last event is at 1020
        (3000, "a", "RUNNING"),
        (3005, "a", "CANCELLED"),
        (4000, "c", "RUNNING"),  # of another sweep
        (5000, "c", "SUCCEEDED"),
        (6000, "b", "RUNNING"),  # still open, with no event
    ]:
        standing.apply({"time": float(at), "trial_id": name, "state": state})
    events = {"a": [steps(2.0, time=t) for t in (10.0, 1020.0, 3004.0)], "b": []}
    so_far = spent(Budget(hours=1.0, joules=9.0), standing, ("a", "b"), lambda name: events[name])
    assert so_far == Spent(100 + 20 + 5, 0.0), "no attempt is numbered, so no journal is read for joules"
    standing.attempts |= {"a": 3, "b": 2}
    assert spent(Budget(joules=9.0), standing, ("a", "b"), lambda name: events[name]) == Spent(0.0, 6.0)

    def damaged(name: str) -> list[Event]:
        if name == "a":
            return events[name]
        raise UserError("a damaged journal")

    assert spent(Budget(hours=1.0, joules=9.0), standing, ("a", "b"), damaged) == Spent(100 + 20 + 5, 6.0)


def test_a_plan_that_cannot_hold_a_cap_is_refused_with_what_it_needs_and_the_fix() -> None:
    lines = over(Budget(trials=3, hours=1, joules=100), 142, Spent(1800, 90), 2 * HOUR, 20)
    assert [line.partition(";")[0] for line in lines] == [
        "the plan has 142 trials, and budget.trials=3",
        "the plan needs about 2 h 00 min more than the 30 min it has had, and budget.hours=1",
        "the plan needs about 20 J more than the 90 J it has had, and budget.joules=100",
    ]
    assert [line.partition("(")[2].partition(" ")[0] for line in lines] == ["142", "2.5", "110"]
    assert all("or give budget.partial=true to run a part" in line for line in lines)
    assert over(Budget(trials=142, hours=2.5, joules=110), 142, Spent(1800, 90), 2 * HOUR, 20) == []
    assert over(Budget(hours=1, joules=1), 142, Spent(9e9, 9e9), None, None) == [], "nothing is known: it stops there"
    assert over(Budget(hours=1), 142, Spent(9e9), 0.0, None) == [], "nothing is left to run"
    assert [float(cap_above(n)) >= n for n in (0.0123, 1.04, 99.9, 2.449)] == [True] * 4


@pytest.mark.parametrize(("name", "value"), [("hours", 0), ("hours", -1), ("trials", 0), ("joules", 0)])
def test_a_cap_of_nothing_is_refused(name: str, value: float) -> None:
    with pytest.raises(UserError, match=f"budget.{name} must be"):
        Budget(**{name: value})


def test_a_cap_in_hours_stops_at_a_step_and_a_larger_one_goes_on_from_it_to_the_same_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inline, "FLUSH_SECONDS", 0.0)  # a look per step, on a busy machine too
    plan = fakes.trials(tmp_path / "w", 2, steps=40)
    said: list[str] = []
    seconds = itertools.count(step=1.0)  # a clock that goes on by a second at each look
    caps = Caps(Budget(hours=10 / HOUR), Spent(2.0), lambda: next(seconds))
    summary = sweep(tmp_path, plan, caps=caps, say=said.append)
    assert summary.over == "budget.hours=0.00277778: 10 s with running trials, all runs together"
    assert said[1] == f"{summary.over}; stopping after the current step of 1 running trial"
    assert (summary.interrupted, summary.stopped) == (False, "")
    (cut,) = [one for one, state in read_standing(tmp_path).states.items() if state is TrialState.CANCELLED]
    done = last_step(JournalStore(tmp_path).read(cut))
    assert 0 < done < 40
    rest = [fakes.trial(tmp_path / "w", t.trial_id, steps=40) for t in plan]
    again = sweep(tmp_path, rest)
    assert (again.counts, again.over) == ({TrialState.SUCCEEDED: 2}, "")
    assert f"from={done} " in [line for line in fakes.log_of(tmp_path / "w", cut) if line.startswith("start")][1]
    whole = read_standing(tmp_path).outcomes
    sweep(tmp_path / "whole", [fakes.trial(tmp_path / "v", t.trial_id, steps=40) for t in plan])
    assert {n: o.metrics for n, o in whole.items()} == {
        n: o.metrics for n, o in read_standing(tmp_path / "whole").outcomes.items()
    }


def test_a_cap_that_earlier_runs_have_used_up_starts_nothing(tmp_path: Path) -> None:
    caps = Caps(Budget(joules=5.0), Spent(joules=5.0))
    backend = MagicMock(spec=InlineBackend)
    summary = sweep(tmp_path, fakes.trials(tmp_path / "w", 2), backend, caps=caps)
    assert not backend.start.called
    assert (summary.ran, summary.over) == (0, "budget.joules=5: 5 J in steps, all runs together")
    assert fakes.log_of(tmp_path / "w", "t000") == []


def test_joules_are_those_of_steps_that_report_them(tmp_path: Path) -> None:
    events = [[steps(4.0), ScoredDev(step=1, loss=0.0, metric=0.0)], [steps(None)], [steps(1.5)]]
    silent = "budget.joules: node reports no energy, so its trials do not count (said once per sweep)"
    for cap, reached in ((5.0, "budget.joules=5: 5.5 J in steps, all runs together"), (6.0, ""), (None, "")):
        backend = Scripted([[Progress("a", 1, one)] for one in events])
        backend.script.append(
            [Finished("a", 1, Outcome("a", TrialState.CANCELLED if reached else TrialState.SUCCEEDED))]
        )
        said: list[str] = []
        trials = [fakes.trial(tmp_path / "w", "a")]
        summary = sweep(tmp_path / str(cap), trials, backend, caps=Caps(Budget(joules=cap)), say=said.append)
        assert summary.over == reached
        assert said.count(silent) == (cap is not None), "not every device reports any"


def test_a_cap_in_trials_starts_no_further_one_and_ends_those_that_have_begun(tmp_path: Path) -> None:
    plan = fakes.trials(tmp_path / "w", 6)
    plan[0] = fakes.trial(tmp_path / "w", "t000", raises=[1])
    said: list[str] = []
    summary = sweep(tmp_path, plan, caps=Caps(Budget(trials=3)), say=said.append)
    assert summary.counts == {TrialState.SUCCEEDED: 3, TrialState.PENDING: 3}
    assert summary.over == "budget.trials=3: 3 trials, all runs together"
    assert sweep(tmp_path, plan, caps=Caps(Budget(trials=3))).ran == 0
    assert sweep(tmp_path, plan, caps=Caps(Budget(trials=5))).ran == 2
    last = sweep(tmp_path, plan, caps=Caps(Budget(trials=6)))
    assert (last.counts, last.over) == ({TrialState.SUCCEEDED: 6}, "")


def test_the_ledger_keeps_why_a_trial_is_held_back_until_it_is_tried_again(tmp_path: Path) -> None:
    with Ledger(tmp_path) as ledger:
        ledger.write("a", TrialState.PENDING, error="its row")
        ledger.write("b", TrialState.PENDING, error="its row")
        ledger.write("b", TrialState.RUNNING, attempt=1)
    assert read_standing(tmp_path).held == {"a": "its row"}


@pytest.mark.parametrize(("words", "share"), [(["update.lr=0.1"], 0.6), (["method=fo_lora_fa", "update.lr=0.1"], 1.0)])
def test_the_steps_that_an_interrupted_trial_has_taken_are_not_needed_again(words: list[str], share: float) -> None:
    trial = make(*words, "train.steps=10")
    ended = Outcome(trial.trial_id, TrialState.CANCELLED, steps_done=4)
    assert _rest(trial, Standing()).operations == trial.operations
    rest = _rest(trial, Standing(outcomes={trial.trial_id: ended}))
    assert rest.operations == pytest.approx(share * trial.operations)


def test_a_sweep_in_which_all_diverged_or_were_stopped_has_failed(tmp_path: Path) -> None:
    for counts, failed in (({"DIVERGED": 3, "STOPPED": 6}, True), ({"SUCCEEDED": 1, "STOPPED": 6}, False)):
        summary = Summary({TrialState(state): n for state, n in counts.items()}, 0, 9, False)
        assert (Result((), summary, 1.0, tmp_path, "").status == "FAILED") == failed
