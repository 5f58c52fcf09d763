"""A sweep over simulated nodes of which one loses everything: nodes, slots, queue and loop are real, Ray is not."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from tests.schedule import fakes
from tests.schedule.driver import sweep
from zo_sweeps.core.events import End
from zo_sweeps.core.host import GIB
from zo_sweeps.core.trial import Needs, Outcome, Trial, TrialState
from zo_sweeps.record.journal import JournalStore
from zo_sweeps.schedule import observer
from zo_sweeps.schedule.ledger import read_standing
from zo_sweeps.schedule.placement import Node
from zo_sweeps_ray import executor, slots
from zo_sweeps_ray.choice import Losses
from zo_sweeps_ray.executor import RayBackend
from zo_sweeps_ray.slots import Slots

pytestmark = pytest.mark.unit
DIED = "its process ended unexpectedly (killed, or crashed)"


class Simulated(RayBackend):
    """Nodes that run a trial in 60 s each: `fate` says in which state it ends there; LOST: its process died at once."""

    def __init__(
        self, folder: Path, clock: list[float], nodes: Sequence[Node], fate: Callable[[Node, Trial], TrialState]
    ) -> None:
        super().__init__(folder, address="10.0.0.1:6379")
        self._clock, self._fate, self._nodes = clock, fate, list(nodes)
        self.ran: list[tuple[str, str]] = []

    def start(self, deliver: Any, trials: int) -> None:
        self._deliver = deliver
        self._slots.see(self._nodes, {})

    def poll(self, timeout: float, left: int) -> None:
        self._clock[0] += 1.0
        self._slots.see(self._nodes, {})
        for slot in [slot for slot in self._slots if slot.trial]:
            assert slot.trial
            fate, trial_id = self._fate(slot.node, slot.trial), slot.trial.trial_id
            if fate is TrialState.LOST:
                self.ran.append((slot.node.name, trial_id))
                self._slots.drop(slot)
                self._lose(slot, DIED)
            elif self._clock[0] - slot.asked >= 60:
                self.ran.append((slot.node.name, trial_id))
                outcome = Outcome(trial_id, fate)
                self._report(slot, ([End(outcome=outcome)], outcome.to_json(), False))

    def _refresh(self) -> None:
        pass

    def shutdown(self) -> None:
        pass


def nodes(names: str) -> list[Node]:
    return [Node(name, name, "cpu", 1, 0, 8 * GIB) for name in names]


def sick(names: str, until: float = 1e9, clock: Sequence[float] = (0.0,)) -> Callable[[Node, Trial], TrialState]:
    """The fate of trials where these nodes lose all of them until then."""
    return lambda node, _: TrialState.LOST if node.name in names and clock[0] < until else TrialState.SUCCEEDED


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    for module in (slots, executor):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(observer, "time", SimpleNamespace(monotonic=lambda: 1000.0))  # it looks once, on any machine
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(kill=lambda actor: None, get=lambda answer: answer))
    monkeypatch.setattr(Slots, "_start_actor", lambda *_: MagicMock())
    return now


def test_a_node_that_loses_everything_is_at_fault_and_not_the_trials(tmp_path: Path, clock: list[float]) -> None:
    said: list[str] = []
    backend = Simulated(tmp_path, clock, nodes("sab"), sick("s"))
    summary = sweep(tmp_path, fakes.trials(tmp_path, 40), backend, retries_lost=1, say=said.append)
    assert summary.counts == {TrialState.SUCCEEDED: 40}
    lost = [trial for node, trial in backend.ran if node == "s"]
    assert len(lost) == len(set(lost)) <= 12, "each trial is lost there once at most, and ever fewer are"
    assert sum(read_standing(tmp_path).losses.values()) == 2, "the next ones are the node's fault"
    assert said[1:] == [
        f"s lost 3 trials in a row ({DIED}): it gets fewer trials until one finishes there (said once per sweep)"
    ]


def test_a_node_that_is_well_again_takes_trials_again(tmp_path: Path, clock: list[float]) -> None:
    backend = Simulated(tmp_path, clock, nodes("sab"), sick("s", 1100.0, clock))
    sweep(tmp_path, fakes.trials(tmp_path, 60), backend)
    assert sum(node == "s" for node, _ in backend.ran) > 15


def test_trials_that_kill_their_process_everywhere_are_lost_within_their_bound(
    tmp_path: Path, clock: list[float]
) -> None:
    """Also on one node alone, where nothing tells its fault from theirs: with growing pauses."""
    for names in ("ab", "a"):
        state, began = tmp_path / names, clock[0]
        backend = Simulated(state, clock, nodes(names), sick(names))
        summary = sweep(state, fakes.trials(state, 4), backend)
        assert summary.counts == {TrialState.LOST: 4}
        assert len(backend.ran) <= 4 * 4 + 4
        assert clock[0] - began >= 255, "the pauses double"


def test_a_trial_that_outgrows_a_gpu_runs_on_a_larger_one_and_so_do_those_like_it(
    tmp_path: Path, clock: list[float]
) -> None:
    """Estimates are too low here: what the plan knows to be too large never goes to the small GPU."""
    cards = [Node(name, name, "cuda", 2, 2, 64 * GIB, gpu_bytes=size * GIB) for name, size in (("s", 24), ("l", 80))]
    needs = {"known": 40, "a": 20, "b": 20, "huge": 79}
    trials = [
        replace(fakes.trial(tmp_path, name, needs=Needs("cuda", size * GIB)), memory_key=str(size))
        for name, size in needs.items()
    ]

    def fate(node: Node, trial: Trial) -> TrialState:
        takes = {"huge": 90}.get(trial.trial_id, 30) * GIB
        return TrialState.OUT_OF_MEMORY if takes > node.gpu_bytes else TrialState.SUCCEEDED

    backend = Simulated(tmp_path, clock, cards, fate)
    summary = sweep(tmp_path, [*trials, replace(trials[1], trial_id="c")], backend, retries_lost=0)
    assert summary.counts == {TrialState.SUCCEEDED: 4, TrialState.OUT_OF_MEMORY: 1}
    assert sorted(backend.ran) == [*(("l", name) for name in ("a", "b", "c", "huge", "known")), ("s", "a"), ("s", "b")]
    lost = [line for line in (tmp_path / "ledger.jsonl").read_text().splitlines() if "ran out of memory" in line]
    assert len(lost) == 2
    assert "ran out of memory on a GPU of 24.0 GiB of s; l has 80.0 GiB" in lost[0]
    assert [event.outcome.state.value for event in JournalStore(tmp_path).read("a")] == ["SUCCEEDED"]
    again = Simulated(tmp_path / "small", clock, cards[:1], fate)
    assert sweep(tmp_path / "small", trials[1:2], again).counts == {TrialState.OUT_OF_MEMORY: 1}, "no GPU is larger"


def test_processes_that_die_together_are_one_loss() -> None:
    losses = Losses()
    assert [losses.lost("n", trial, DIED, 10.0) for trial in "abcd"] == [1.0] * 4
    assert not losses.is_sick("n")
    pauses = [losses.lost("n", "e", DIED, now) for now in (20.0, 30.0, 40.0, 1e3, 2e3, 3e3, 4e3, 5e3, 6e3, 7e3)]
    assert pauses == [2, 4, 8, 16, 32, 64, 128, 256, 512, 600]
    assert losses.is_sick("n")
    losses.finished("n")
    assert not losses.is_sick("n")
    assert losses.lost("n", "a", DIED, 9e3) == 1.0
