"""A trial whose steps are shared among nodes, of which one falls silent in the middle of it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.run.common import make, measured, run
from tests.schedule.driver import sweep
from tests.schedule.nodes import Cluster, cluster
from zo_sweeps.core.events import ScoredDev, Start
from zo_sweeps.core.trial import TrialState
from zo_sweeps.methods.executor import Executor
from zo_sweeps.record.journal import JournalStore, outcome, scalars
from zo_sweeps_ray.executor import RayBackend

pytestmark = [pytest.mark.multiprocess, pytest.mark.chaos]

LORA = ["method=prge", "evaluation.mode=inner", "estimator.q=4", "update.lr=0.05"]
STEPS, FROZEN_AT, THAWED_AFTER = 40, 8, 10
PATIENCE = 6.0


@pytest.fixture(scope="module")
def nodes() -> Iterator[Cluster]:
    with cluster() as made:
        yield made


@pytest.fixture(autouse=True)
def _as_one_of_its_drivers(nodes: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
    for name, value in nodes.token.items():
        monkeypatch.setenv(name, value)
    for name in {"a", "b", "c"} - {node.name for node in nodes.nodes}:
        nodes.add(name)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class Blow:
    """An `on_update` that freezes the node of a trial's first follower, and thaws it some steps later if asked to."""

    def __init__(self, backend: RayBackend, nodes: Cluster, thaws: bool) -> None:
        self._backend, self._nodes, self._thaws = backend, {node.name: node for node in nodes.nodes}, thaws
        self._frozen_at, self._thawed = 0, False
        self.name = ""

    def __call__(self, snapshot: Any) -> None:
        for running in snapshot.running:
            if not self.name and running.step >= FROZEN_AT:
                (slot,) = [slot for slot in self._backend._slots if slot.followers]
                self.name, self._frozen_at = slot.followers[0].node.name, running.step
                self._nodes[self.name].freeze()
            elif self.name and self._thaws and not self._thawed and running.step >= self._frozen_at + THAWED_AFTER:
                self._thawed = True
                self._nodes[self.name].thaw()


@pytest.mark.parametrize(("option", "thaws"), [("redo", True), ("redo", False), ("drop", False)])
def test_a_follower_whose_node_falls_silent_is_waited_for_once_and_then_done_without(
    nodes: Cluster, tmp_path: Path, option: str, thaws: bool
) -> None:
    trial = make(*LORA, f"train.steps={STEPS}", "train.eval_every=20")
    backend = RayBackend(
        tmp_path, address=nodes.address, options=Executor(workers=3, on_lost_worker=option, worker_patience=PATIENCE)
    )
    blow = Blow(backend, nodes, thaws)
    try:
        summary = sweep(tmp_path, [trial], backend, on_update=blow)
    finally:
        for node in [node for node in nodes.nodes if node.name == blow.name and not thaws]:
            node.end()  # Ray may have taken it for dead by now
            nodes.nodes.remove(node)
    assert summary.counts == {TrialState.SUCCEEDED: 1}
    assert blow.name in ("a", "b", "c")
    journal = JournalStore(tmp_path).read(trial.trial_id)
    found = outcome(journal)
    assert found is not None
    assert len([event for event in journal if isinstance(event, Start)]) == 1, "no attempt was lost with the follower"
    assert found.metrics["workers"] == 3
    if option == "redo":
        assert measured(found, journal) == measured(*run(trial)), "the bits of one process"
        assert found.metrics["directions_redone"] >= 1
        assert "directions_dropped" not in found.metrics
        return
    log = scalars(journal)[0]
    dropped = [i for i, line in enumerate(log) for g in line if math.isnan(g)]
    assert len(dropped) == found.metrics["directions_dropped"] >= 1
    assert len(set(dropped)) == 1, "it was asked no more after the step that it was late for"
    cut = next(i for i, event in enumerate(journal) if isinstance(event, ScoredDev) and event.step == STEPS)
    again, whole = run(trial, journal[:cut], attempt=2)
    assert repr(measured(again, whole)) == repr(measured(found, journal)), "the replay of its log"
