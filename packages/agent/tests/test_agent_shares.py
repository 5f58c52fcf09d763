"""Equal shares of real sweeps, each a process, on one agent with one slot."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agents import head
from tests.schedule import fakes
from tests.schedule.nodes import Cluster, joined
from tests.schedule.test_sweep import start_driver
from zo_sweeps_agent.on_the_head import HeadGateway
from zo_sweeps_bench import shares
from zo_sweeps_ray.private import Head
from zo_sweeps_ray.reporter import PERIOD

pytestmark = [pytest.mark.multiprocess, pytest.mark.chaos]


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    with joined(monkeypatch) as made:
        yield made


def test_two_sweeps_share_an_agent_with_one_slot(nodes: Cluster, tmp_path: Path) -> None:
    over = threading.Event()
    with head(tmp_path / "gateway") as gateway:
        gateway.agent("board")
        ray_head = Head(nodes.address, nodes.token)

        def publish() -> None:
            while not over.wait(PERIOD):
                HeadGateway().publish(ray_head, gateway.folder)

        thread = threading.Thread(target=publish)
        thread.start()
        try:
            states = [tmp_path / name for name in ("one", "two")]
            plans = [
                [fakes.trial(state / "w", f"t{i:03d}", steps=10 + i % 7, pause=0.1) for i in range(30)]
                for state in states
            ]
            for state in states:
                state.mkdir()
            drivers = [start_driver(state, nodes.address, plan) for state, plan in zip(states, plans, strict=True)]
            for driver in drivers:
                assert any(re.search("trials? to run on", line) for line in driver.stdout or ()), "it has joined"
            joined = time.time()
            said = [driver.communicate(timeout=400)[0] for driver in drivers]
        finally:
            over.set()
            thread.join()
    assert [driver.returncode for driver in drivers] == [0, 0], said
    for state, plan in zip(states, plans, strict=True):
        assert set(fakes.completions(state / "w", [trial.trial_id for trial in plan]).values()) == {1}
    works = [shares.SweepWork.of(state, plan, joined) for state, plan in zip(states, plans, strict=True)]
    distance, detail = shares.off_equal(works, 1)
    print(f"\n  {distance:.1f} % off an equal share: {detail}")
    assert distance < shares.MUST
