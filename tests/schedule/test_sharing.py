"""Trials whose steps are shared among processes: the bits of one process, inline and on Ray, with processes killed."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import REPO
from tests.plan.common import named
from tests.run.common import Events, make, measured, run
from tests.schedule.driver import sweep
from zo_sweeps.core.errors import UserError
from zo_sweeps.core.events import End, Event, PeerLost, PeersReady, ScoredDev, Start
from zo_sweeps.core.trial import Needs, Outcome, Sharing, Trial, TrialState
from zo_sweeps.methods.executor import Executor
from zo_sweeps.record.journal import JournalStore, outcome, scalars
from zo_sweeps.run.run_trial import run_trial
from zo_sweeps.schedule.executors.inline import InlineBackend, ProcessPeer
from zo_sweeps.schedule.placement import Node, must_share, processes
from zo_sweeps_ray.choice import no_room
from zo_sweeps_ray.executor import RayBackend

pytestmark = [pytest.mark.multiprocess, pytest.mark.usefixtures("one_thread")]

PATIENCE = 500.0  # so that a busy machine looks like no lost worker
LORA = ["method=prge", "evaluation.mode=inner", "estimator.q=4", "update.lr=0.05", "train.steps=4"]
TRIALS = {
    "full": ["method=mezo", "estimator.q=3", "train.batch=4", "update.lr=1e-4", "train.steps=4"],
    "lora_fa": LORA,
    "rows": ["method=mezo", "estimator.q=1", "train.batch=4", "evaluation.parts=2", "update.lr=1e-4", "train.steps=4"],
    "sensitive": ["method=sensitive", "space.source=task", "estimator.q=2", "update.lr=1e-3", "train.steps=3"],
}


class Signalled:
    """A peer whose process gets a SIGINT with each question."""

    def __init__(self, peer: ProcessPeer) -> None:
        self._peer = peer

    def ask(self, message: bytes) -> None:
        assert self._peer._process.pid
        self._peer.ask(message)
        os.kill(self._peer._process.pid, signal.SIGINT)

    def answer(self, timeout: float) -> bytes | None:
        return self._peer.answer(timeout)


def result(state: Path, trial: Trial) -> tuple[dict[str, Any], dict[str, float], list[Event]]:
    journal = JournalStore(state).read(trial.trial_id)
    found = outcome(journal)
    assert found is not None
    return measured(found, journal), dict(found.metrics), journal


@pytest.fixture(scope="module")
def alone() -> Callable[[str], tuple[Trial, dict[str, Any]]]:
    done: dict[str, tuple[Trial, dict[str, Any]]] = {}

    def get(name: str) -> tuple[Trial, dict[str, Any]]:
        if name not in done:
            trial = make(*TRIALS[name])
            done[name] = (trial, measured(*run(trial)))
            assert done[name][1]["state"] is TrialState.SUCCEEDED
        return done[name]

    return get


@pytest.mark.long
def test_two_processes_that_share_the_rows_of_one_direction_give_the_result_of_one(alone: Any) -> None:
    trial, expected = alone("rows")
    assert trial.trial_id != make(*TRIALS["rows"], "evaluation.parts=null").trial_id, "it rounds otherwise"
    assert processes(Executor(workers=2), trial) == 2
    found, journal = shared(trial, 1, drop=False, kills_at=3)
    assert measured(found, journal) == expected
    assert (found.metrics["peers_lost"], found.metrics["directions_redone"]) == (1, 1)


@pytest.mark.long  # the killed process below shares a trial, too
@pytest.mark.parametrize(("name", "count"), [("full", 3), ("lora_fa", 2), ("sensitive", 2)])
def test_processes_that_share_a_trial_give_the_result_of_one(name: str, count: int, alone: Any, tmp_path: Path) -> None:
    trial, expected = alone(name)
    backend = InlineBackend(options=Executor(workers=count, worker_patience=PATIENCE))
    assert sweep(tmp_path, [trial], backend).counts == {TrialState.SUCCEEDED: 1}
    got, metrics, journal = result(tmp_path, trial)
    assert got == expected
    assert metrics["workers"] == count
    assert (metrics["peers_lost"], metrics["directions_redone"]) == (0, 0)
    assert "directions_dropped" not in metrics
    (event,) = [event for event in journal if isinstance(event, PeersReady)]
    assert [*event.names] == ["inline"] * (count - 1)


class Killing(ProcessPeer):
    """A follower's process that gets SIGKILL when it is asked for its n-th answer."""

    kills_at = 0
    asked = 0

    def ask(self, message: bytes) -> None:
        self.asked += 1
        if self.asked == self.kills_at:
            os.kill(self._process.pid, signal.SIGKILL)
        super().ask(message)


def shared(trial: Trial, count: int, *, drop: bool, kills_at: int) -> tuple[Outcome, list[Event]]:
    """`trial` led here, with `count` followers of which the first is killed."""

    class Sink(list[Event]):
        def emit(self, event: Event) -> None:
            self.append(event)

    peers = [Killing("zo_sweeps.run.run_trial:run_trial", trial, [], 1) for _ in range(count)]
    peers[0].kills_at = kills_at
    events = Sink()
    try:
        sharing = Sharing(peers, ["here"] * count, drop, PATIENCE)
        return run_trial(trial, events, [], 1, lambda: False, sharing=sharing), events
    finally:
        for peer in peers:
            peer.close()


def test_a_killed_process_changes_nothing_when_its_directions_are_done_again(alone: Any) -> None:
    trial, expected = alone("lora_fa")
    found, journal = shared(trial, 2, drop=False, kills_at=3)
    assert measured(found, journal) == expected
    assert found.unmeasured == {"energy/": "the steps are shared by several processes"}
    assert (found.metrics["peers_lost"], found.metrics["directions_redone"]) == (1, 1)
    (lost,) = [event for event in journal if isinstance(event, PeerLost)]
    assert lost.reason == "a peer's process ended (exit code -9)"


def test_a_signal_to_all_processes_of_a_terminal_is_left_to_the_one_that_leads(alone: Any) -> None:
    trial, expected = alone("lora_fa")
    peer = ProcessPeer("zo_sweeps.run.run_trial:run_trial", trial, [], 1)
    try:
        assert peer._process.pid
        for number in (signal.SIGINT, signal.SIGTERM):  # also before it has run a line of its own
            os.kill(peer._process.pid, number)
        events = Events()
        sharing = Sharing([Signalled(peer)], ["here"], drop=True, patience=PATIENCE)
        found = run_trial(trial, events, [], 1, lambda: False, sharing=sharing)
    finally:
        peer.close()
    assert measured(found, events) == expected
    assert found.metrics["peers_lost"] == 0


@pytest.mark.chaos  # tests/engine/test_peers.py drops directions of threads that die
def test_dropped_directions_stand_in_the_log_and_its_replay_gives_the_same_result(alone: Any) -> None:
    trial, expected = alone("lora_fa")
    found, journal = shared(trial, 2, drop=True, kills_at=3)
    assert found.state is TrialState.SUCCEEDED, found.error
    log = scalars(journal)[0]
    assert [(i, q) for i, line in enumerate(log) for q, g in enumerate(line) if math.isnan(g)] == [(2, 1)]
    assert found.metrics["directions_dropped"] == 1
    assert measured(found, journal)["log"] != expected["log"]
    # The dev loss at the last step is of weights that were moved; here they are replayed from the whole log.
    cut = next(i for i, event in enumerate(journal) if isinstance(event, ScoredDev) and event.step == 4)
    again, whole = run(trial, journal[:cut], attempt=2)
    assert repr(measured(again, whole)) == repr(measured(found, journal))
    assert again.metrics["directions_dropped"] == 1


def kill_followers(backend: RayBackend, at_step: int) -> Callable[[Any], None]:
    """An `on_update` that kills one follower's process once the trial has done so many steps."""
    import ray

    killed: list[int] = []

    def update(snapshot: Any) -> None:
        if killed or not any(running.step >= at_step for running in snapshot.running):
            return
        slot = next(slot for slot in backend._slots if slot.followers)
        killed.append(ray.get(slot.followers[0].actor.__ray_call__.remote(lambda self: os.getpid())))
        os.kill(killed[0], signal.SIGKILL)

    return update


@pytest.mark.chaos
def test_ray_actors_share_a_trial_and_one_of_them_is_killed(tmp_path: Path) -> None:
    trials = [make(*LORA, "train.steps=60", "train.eval_every=20", f"grid.seeds=[{seed}]") for seed in (3, 4)]
    expected = [measured(*run(trial)) for trial in trials]
    one = make("method=zero_shot")
    backend = RayBackend(tmp_path, options=Executor(slots=3, workers=3, worker_patience=PATIENCE))
    summary = sweep(tmp_path, [*trials, one], backend, on_update=kill_followers(backend, 5))
    ends = [event for trial in [*trials, one] for event in JournalStore(tmp_path).read(trial.trial_id)]
    assert [event.outcome.traceback for event in ends if isinstance(event, End)] == ["", "", ""]
    assert summary.counts == {TrialState.SUCCEEDED: 3}
    found = [result(tmp_path, trial) for trial in trials]
    assert [got for got, _, _ in found] == expected
    assert sum(metrics["peers_lost"] for _, metrics, _ in found) == 1
    assert all(metrics["workers"] == 3 for _, metrics, _ in found), "the dead one was replaced for the next trial"
    assert all(metrics["exchanged_bytes_per_step"] > 0 for _, metrics, _ in found)
    (lost,) = [event for _, _, journal in found for event in journal if isinstance(event, PeerLost)]
    assert "its process ended unexpectedly (killed, or crashed)" in lost.reason
    starts = [
        event for trial in trials for event in JournalStore(tmp_path).read(trial.trial_id) if isinstance(event, Start)
    ]
    assert len(starts) == 2, "no attempt was lost with the follower"


@pytest.mark.parametrize(
    ("overrides", "options", "line"),
    [
        (
            ["method=prge", "estimator.q=2", "evaluation.mode=inner"],
            Executor(workers=3),
            "more processes than the 2 directions of a step",
        ),
        (["method=prge", "estimator.q=4", "evaluation.mode=outer"], Executor(workers=3), "2 forwards that a step has"),
        (["method=prge", "estimator.q=4", "evaluation.mode=both"], Executor(workers=2), "1 forward that a step has"),
        (
            ["method=prge", "estimator.q=4", "evaluation.mode=outer"],
            Executor(workers=2, on_lost_worker="drop"),
            "none can be dropped",
        ),
        (
            ["method=prge", "estimator.q=2", "evaluation.mode=inner", "evaluation.parts=2"],
            Executor(workers=5),
            "2 parts of the rows in each of the 2 directions",
        ),
        (
            ["method=prge", "estimator.q=4", "evaluation.mode=inner", "evaluation.parts=2"],
            Executor(workers=2, on_lost_worker="drop"),
            "none can be dropped",
        ),
        (
            ["method=mezo", "estimator.q=2", "train.batch=4", "evaluation.restore=in_place"],
            Executor(workers=2),
            "in_place",
        ),
    ],
)
def test_what_cannot_be_shared_is_refused_in_one_line(overrides: list[str], options: Executor, line: str) -> None:
    with pytest.raises(UserError) as raised:
        must_share(options, [make(*overrides, "update.lr=1e-3")])
    assert line in str(raised.value)
    assert "\n" not in str(raised.value)


def test_clients_have_a_process_each_or_none() -> None:
    trial = make("method=decomfl", "method.clients=3", "update.lr=1e-3")
    for count in (1, 4):
        must_share(options := Executor(workers=count), [trial])
        assert processes(options, trial) == count
    for count in (2, 3, 5):
        what = rf"3 clients have a process each, or .* in executor\.workers={count}; executor\.workers=4, or 1; grid\."
        with pytest.raises(UserError, match=what):
            must_share(Executor(workers=count), [trial])


def test_workers_of_one_row_of_the_federated_grid_are_as_before() -> None:
    prge, decomfl = (named("federated", f"grid.only=[{row}]").every.values() for row in ("prge", "decomfl"))
    must_share(Executor(workers=4), prge)
    must_share(Executor(workers=11), decomfl)
    with pytest.raises(UserError, match="10 clients have a process each"):
        must_share(Executor(workers=4), decomfl)


def test_trials_without_directions_run_in_one_process() -> None:
    options = Executor(workers=8)
    trials = [make("method=zero_shot"), make("method=fo_lora_fa", "update.lr=1e-3")]
    must_share(options, trials)
    assert [processes(options, trial) for trial in trials] == [1, 1]


def test_the_number_of_workers_is_no_part_of_a_trials_identity() -> None:
    assert make(*LORA).trial_id == make(*LORA, "executor.workers=3", "executor.on_lost_worker=drop").trial_id


def test_a_command_with_too_many_workers_says_so_before_anything_starts(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "zo_sweeps", "+grid=quickstart", "executor.workers=64", f"state_dir={tmp_path}"]
    done = subprocess.run(command, cwd=REPO, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode != 0
    assert "more processes than the" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "journal").exists()


def test_a_cluster_without_room_for_all_workers_says_how_many_there_are() -> None:
    trial = replace(make(*LORA), needs=Needs())
    nodes = [
        Node("a", "a", "cpu", 2, 0, 2**40),
        Node("b", "b", "cpu", 1, 0, 2**40),
        Node("c", "c", "cuda", 8, 1, 2**40),
    ]
    assert no_room(Executor(workers=3), trial, nodes) == ""
    assert no_room(Executor(workers=4), trial, nodes) == "executor.workers=4 of one kind of node: there is room for 3"
    two = Executor(workers=3, slots=2)
    assert no_room(two, trial, nodes) == "executor.workers=3 of one kind of node: there is room for 2"
    assert no_room(Executor(), trial, []) == "", "one process: `reason` says what it lacks"
