"""A sweep over simulated nodes of which one loses everything: nodes, slots, queue and loop are real, Ray is not."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from tests.schedule import fakes
from tests.schedule.driver import sweep
from zo_sweeps.core.host import GIB
from zo_sweeps.core.trial import Outcome, TrialState
from zo_sweeps.schedule import ray_backend, ray_slots
from zo_sweeps.schedule.ledger import read_standing
from zo_sweeps.schedule.losses import Losses
from zo_sweeps.schedule.placement import Node
from zo_sweeps.schedule.ray_backend import RayBackend
from zo_sweeps.schedule.ray_slots import Slots

pytestmark = pytest.mark.unit
DIED = "its process ended unexpectedly (killed, or crashed)"


class Simulated(RayBackend):
    """Nodes with one CPU each: a trial takes 60 s, but on a sick node its process dies after one."""

    def __init__(self, folder: Path, clock: list[float], nodes: str, sick: str, until: float = 1e9) -> None:
        super().__init__(folder, address="10.0.0.1:6379")
        self._clock, self._sick, self._until = clock, sick, until
        self._nodes = [Node(name, name, "cpu", 1, 0, 8 * GIB) for name in nodes]
        self.ran: list[tuple[str, str]] = []

    def start(self, deliver: Any, trials: int) -> None:
        self._deliver = deliver
        self._slots.see(self._nodes, {})

    def poll(self, timeout: float) -> None:
        self._clock[0] += 1.0
        self._slots.see(self._nodes, {})
        for slot in list(self._slots):
            if slot.trial is None:
                continue
            is_sick = slot.node.name in self._sick and self._clock[0] < self._until
            running = ray_backend._running(slot)
            if is_sick:
                self.ran.append((slot.node.name, slot.trial.trial_id))
                self._slots.drop(slot)
                self._lose(slot, running, DIED)
            elif self._clock[0] - slot.asked >= 60:
                self.ran.append((slot.node.name, slot.trial.trial_id))
                self._slots.free(slot)
                self._slots.finished(slot)
                self._finish(*running[0], slot.node.name, Outcome(running[0][0], TrialState.SUCCEEDED), False)

    def shutdown(self) -> None:
        pass


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    for module in (ray_slots, ray_backend):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(kill=lambda actor: None))
    monkeypatch.setattr(Slots, "_start_actor", lambda *_: MagicMock())
    return now


def test_a_node_that_loses_everything_is_at_fault_and_not_the_trials(tmp_path: Path, clock: list[float]) -> None:
    said: list[str] = []
    backend = Simulated(tmp_path, clock, "sab", "s")
    summary = sweep(tmp_path, fakes.trials(tmp_path, 40), backend, retries_lost=1, say=said.append)
    assert summary.counts == {TrialState.SUCCEEDED: 40}
    lost = [trial for node, trial in backend.ran if node == "s"]
    assert len(lost) == len(set(lost)) <= 12, "each trial is lost there once at most, and ever fewer are"
    assert sum(read_standing(tmp_path).losses.values()) == 2, "the next ones are the node's fault"
    assert said[1:] == [
        f"s lost 3 trials in a row ({DIED}): it gets fewer trials until one finishes there (said once per sweep)"
    ]


def test_a_node_that_is_well_again_takes_trials_again(tmp_path: Path, clock: list[float]) -> None:
    backend = Simulated(tmp_path, clock, "sab", "s", until=1100.0)
    sweep(tmp_path, fakes.trials(tmp_path, 60), backend)
    assert sum(node == "s" for node, _ in backend.ran) > 15


def test_trials_that_kill_their_process_everywhere_are_lost_within_their_bound(
    tmp_path: Path, clock: list[float]
) -> None:
    """Also on one node alone, where nothing tells its fault from theirs: with growing pauses."""
    for nodes in ("ab", "a"):
        state, began = tmp_path / nodes, clock[0]
        backend = Simulated(state, clock, nodes, nodes)
        summary = sweep(state, fakes.trials(state, 4), backend)
        assert summary.counts == {TrialState.LOST: 4}
        assert len(backend.ran) <= 4 * 4 + 4
        assert clock[0] - began >= 255, "the pauses double"


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
