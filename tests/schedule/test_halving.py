"""Successive halving: the decision in closed form, and a sweep that pauses, stops, restarts and goes on."""

from __future__ import annotations

import math

import pytest

from tests.schedule import fakes
from tests.schedule.driver import sweep
from tests.schedule.test_sweep import Scripted, results
from zo_sweeps.core.events import Rung, ScoredDev, ScoredTest
from zo_sweeps.core.trial import Outcome, TrialState
from zo_sweeps.methods.executor import Budget
from zo_sweeps.record.journal import JournalStore, scalars
from zo_sweeps.schedule.backend import Finished, Lost, Progress
from zo_sweeps.schedule.executors.inline import InlineBackend
from zo_sweeps.schedule.halving import Rivals, Search, best
from zo_sweeps.schedule.spending import Caps


@pytest.mark.parametrize(
    ("scores", "keep", "kept"),
    [
        ([3.0, 1.0, 2.0, 4.0], 0.5, [1, 2]),
        ([3.0, 1.0, 2.0], 0.5, [1, 2]),  # rounded up
        ([1.0, 1.0, 1.0, 1.0], 0.25, [0]),  # ties go to the first
        ([math.nan, 2.0, math.inf, 1.0], 0.5, [1, 3]),
        ([math.nan, math.nan], 0.5, [0]),
        ([5.0], 0.01, [0]),
        ([1.0] * 10, 0.3, [0, 1, 2]),  # 0.3 * 10 is a little above 3
    ],
)
def test_the_best_share_goes_on_rounded_up_and_ties_go_to_the_first(scores, keep, kept):
    assert best(scores, keep) == kept


def search(folder, **behaviour):
    """Four settings of two seeds; at step 2 the means are 3, 1, 2, 4, at step 4 c is best."""
    at = {"a": (3, 0), "b": (1, 5), "c": (2, 1), "d": (4, 0)}
    trials = [
        fakes.trial(folder, f"{name}{seed}", rungs={"2": two + seed, "4": four + seed}, **behaviour)
        for name, (two, four) in at.items()
        for seed in (0, 1)
    ]
    return trials, Rivals(tuple((f"{name}0", f"{name}1") for name in at), (2, 4), 0.5, "dev/loss", 1.0)


def states(folder):
    return {trial_id: state.value for trial_id, (state, _, _) in results(folder).items()}


EXPECTED = {f"{name}{seed}": "SUCCEEDED" if name == "c" else "STOPPED" for name in "abcd" for seed in (0, 1)}


def test_the_worst_settings_are_stopped_and_the_winner_has_the_scalars_of_a_run_without_rungs(tmp_path):
    trials, group = search(tmp_path / "w")
    summary = sweep(tmp_path, trials, groups=[group])
    assert states(tmp_path) == EXPECTED
    assert summary.counts == {TrialState.SUCCEEDED: 2, TrialState.STOPPED: 6}
    assert {i: done for i, (_, _, done) in results(tmp_path).items() if i[1] == "0"} == {
        "a0": 2, "b0": 4, "c0": 5, "d0": 2,
    }  # fmt: skip
    plain = [fakes.trial(tmp_path / "p", "c0"), fakes.trial(tmp_path / "p", "a0")]
    sweep(tmp_path / "plain", plain)
    halved, whole = JournalStore(tmp_path), JournalStore(tmp_path / "plain")
    assert scalars(halved.read("c0")) == scalars(whole.read("c0"))
    coefs, _ = scalars(halved.read("a0"))
    assert coefs == scalars(whole.read("a0"))[0][:2]
    assert not [event for event in halved.read("a0") if isinstance(event, ScoredTest)]
    assert sweep(tmp_path, trials, groups=[group]).ran == 0


def test_a_group_waits_for_retries_across_drivers_and_counts_a_diverged_setting_as_last(tmp_path):
    trials, group = search(tmp_path / "w")
    sweep(tmp_path, trials[2:], groups=[])  # another sweep brought all but a to its first rung, and was killed there
    assert set(states(tmp_path).values()) == {"PAUSED"}
    assert sweep(tmp_path, trials, groups=[group]).counts == {TrialState.SUCCEEDED: 2, TrialState.STOPPED: 6}
    assert states(tmp_path) == EXPECTED

    trials, group = search(tmp_path / "x")
    failing = tmp_path / "failing"
    trials = [*(t for t in trials if t.trial_id != "a1"), fakes.trial(tmp_path / "x", "a1", steps=1, ends="DIVERGED")]
    sweep(failing, trials, groups=[group])
    assert states(failing) == {**EXPECTED, "a1": "DIVERGED"}


def test_a_trial_whose_pause_has_not_arrived_is_not_judged(tmp_path):
    at_rung = lambda name, loss: Progress(name, 1, [ScoredDev(step=2, loss=loss, metric=0.0)])
    paused, done = (Outcome(name, state) for name, state in (("b", TrialState.PAUSED), ("a", TrialState.SUCCEEDED)))
    first = Finished("a", 1, Outcome("a", TrialState.PAUSED))
    backend = Scripted([[at_rung("a", 1.0), first], [at_rung("b", 2.0)], [Finished("b", 1, paused)]])
    backend.script.append([Finished("a", 2, done)])
    decided = []  # whether the journal has a decision, after each poll
    poll = backend.poll
    backend.poll = lambda timeout, left: (
        poll(timeout, left),
        decided.append([e for e in journal.read("b") if isinstance(e, Rung)]),
    )
    journal, group = JournalStore(tmp_path), Rivals((("a",), ("b",)), (2,), 0.5, "dev/loss", 1.0)
    sweep(tmp_path, [fakes.trial(tmp_path / "w", name) for name in "ab"], backend, groups=[group])
    assert [[rung.kept for rung in rungs] for rungs in decided] == [[], [], [("a",)], [("a",)]]
    assert states(tmp_path) == {"a": "SUCCEEDED", "b": "STOPPED"}


def test_a_trial_that_is_lost_at_a_rung_waits_there_for_its_rivals_and_is_started_once_again(tmp_path):
    at_rung = lambda name, loss: Progress(name, 1, [ScoredDev(step=2, loss=loss, metric=0.0)])
    paused, done = (Outcome(name, state) for name, state in (("b", TrialState.PAUSED), ("a", TrialState.SUCCEEDED)))
    script = [[at_rung("a", 1.0), Lost("a", 1, "gone")], [at_rung("b", 2.0), Finished("b", 1, paused)]]
    backend = Scripted([*script, [Finished("a", 2, done)]])
    group = Rivals((("a",), ("b",)), (2,), 0.5, "dev/loss", 1.0)
    sweep(tmp_path, [fakes.trial(tmp_path / "w", name) for name in "ab"], backend, groups=[group])
    assert [(name, attempt) for name, attempt, _ in backend.submitted] == [("a", 1), ("b", 1), ("a", 2)]
    assert states(tmp_path) == {"a": "SUCCEEDED", "b": "STOPPED"}


def test_a_driver_killed_between_a_decision_and_the_end_of_its_trial_stops_it_after_a_restart(tmp_path):
    trials, group = search(tmp_path / "w")
    sweep(tmp_path, trials, groups=[])
    kept = [f"{name}{seed}" for name in "bc" for seed in (0, 1)]
    JournalStore(tmp_path).append("a0", [Rung(step=2, kept=tuple(kept))])
    sweep(tmp_path, trials, groups=[group])
    assert states(tmp_path) == EXPECTED


def test_a_rerun_takes_the_recorded_decision(tmp_path):
    trials, group = search(tmp_path / "w")
    sweep(tmp_path, trials, groups=[group])
    assert sweep(tmp_path, trials, groups=[group], rerun=frozenset({"b1", "c0"})).ran == 2
    assert states(tmp_path) == EXPECTED


def confirmed(folder, *, diverges=(), fails=()):
    """Three settings of three seeds, compared at the first; dev/loss grows with the steps, so b is best, then c."""
    steps = {"a": 5, "b": 3, "c": 4}
    trials = [
        fakes.trial(
            folder, f"{name}{seed}", steps=steps[name], ends="DIVERGED" if f"{name}{seed}" in diverges else "SUCCEEDED",
            raises=[1, 2, 3] if f"{name}{seed}" in fails else [],
        )
        for name in steps
        for seed in (0, 1, 2)
    ]  # fmt: skip
    return trials, Search(tuple(((f"{n}0",), (f"{n}1", f"{n}2")) for n in steps), "dev/loss", 1.0)


def test_the_setting_selected_at_the_first_seed_alone_runs_the_others(tmp_path):
    trials, search = confirmed(tmp_path / "w")
    order = []
    summary = sweep(tmp_path, trials, searches=[search], on_events=order.append)
    assert {name for name, state in states(tmp_path).items() if state == "SUCCEEDED"} == {"a0", "b0", "c0", "b1", "b2"}
    assert summary.counts == {TrialState.SUCCEEDED: 5, TrialState.STOPPED: 4}
    assert min(map(order.index, ("b1", "b2"))) > max(map(order.index, ("a0", "b0", "c0")))
    assert fakes.log_of(tmp_path / "w", "a1") == [], "it never began"
    assert results(tmp_path)["a1"][2] == 0
    assert sweep(tmp_path, trials, searches=[search]).ran == 0


def test_a_selection_is_made_again_from_the_results_alone(tmp_path):
    trials, search = confirmed(tmp_path / "w")
    sweep(tmp_path, [trial for trial in trials if trial.trial_id in ("a0", "b0", "b1", "c0")])
    assert sweep(tmp_path, trials, searches=[search]).ran == 5, "one confirms, and four are stopped"
    assert states(tmp_path)["b2"] == "SUCCEEDED"


def test_a_backend_is_started_for_the_trials_that_a_selection_will_let_run_too(tmp_path):
    """One left at the first seed began one slot, in which the other seeds then ran one after the other."""

    class Told(InlineBackend):
        def start(self, deliver, trials):
            self.trials, self.left = trials, []
            super().start(deliver, trials)

        def poll(self, timeout, left):
            self.left.append(left)
            super().poll(timeout, left)

    trials, search = confirmed(tmp_path / "w")
    sweep(tmp_path, [trial for trial in trials if trial.trial_id in ("a0", "c0")])
    told = Told(fakes.__name__ + ":run_trial", threads=0)
    sweep(tmp_path, trials, told, searches=[search])
    assert (told.trials, told.left) == (7, [1, 2, 1])


def test_the_next_best_setting_is_selected_when_one_diverges_at_a_further_seed(tmp_path):
    trials, search = confirmed(tmp_path / "w", diverges={"b2"})
    sweep(tmp_path, trials, searches=[search])
    found = states(tmp_path)
    assert {name: found[name] for name in ("b1", "b2", "c1", "c2", "a1", "a2")} == {
        "b1": "SUCCEEDED", "b2": "DIVERGED", "c1": "SUCCEEDED", "c2": "SUCCEEDED", "a1": "STOPPED", "a2": "STOPPED",
    }  # fmt: skip


def test_a_setting_that_diverged_at_the_first_seed_is_not_selected(tmp_path):
    trials, search = confirmed(tmp_path / "w", diverges={"b0"})
    sweep(tmp_path, trials, searches=[search])
    assert [name for name, state in states(tmp_path).items() if state == "STOPPED"] == ["a1", "a2", "b1", "b2"]
    trials, search = confirmed(tmp_path / "x", diverges={"a0", "b0", "c0"})
    assert sweep(tmp_path / "none", trials, searches=[search]).counts[TrialState.STOPPED] == 6


def test_a_setting_whose_first_seed_failed_can_still_be_selected_when_that_is_run_again(tmp_path):
    trials, search = confirmed(tmp_path / "w", fails={"b0"})
    sweep(tmp_path, trials, searches=[search])
    found = states(tmp_path)
    assert [found[name] for name in ("b0", "c1", "c2", "a1", "a2")] == ["FAILED", *["SUCCEEDED"] * 2, *["STOPPED"] * 2]
    assert not {found.get("b1", "PENDING"), found.get("b2", "PENDING")} - {"PENDING"}
    trials, search = confirmed(tmp_path / "again")
    assert sweep(tmp_path, trials, searches=[search], rerun=("failed",)).ran == 3
    assert {states(tmp_path)[f"b{seed}"] for seed in (0, 1, 2)} == {"SUCCEEDED"}


def test_a_cap_in_trials_counts_none_that_never_ran(tmp_path):
    trials, search = confirmed(tmp_path / "w")
    summary = sweep(tmp_path, trials, searches=[search], caps=Caps(Budget(trials=5)))
    assert summary.counts == {TrialState.SUCCEEDED: 5, TrialState.STOPPED: 4}


def test_others_are_not_stopped_while_the_selected_setting_lacks_a_seed(tmp_path):
    trials, search = confirmed(tmp_path / "w", fails={"b2"})
    said = []
    summary = sweep(tmp_path, trials, searches=[search], say=said.append)
    assert summary.counts[TrialState.PENDING] == 4
    assert "4 trials wait for a setting to be selected, at whose seeds trials have failed" in said
