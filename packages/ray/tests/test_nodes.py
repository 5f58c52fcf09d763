"""Trials on a standing cluster whose nodes come, freeze, leave and die.

With every change: an actor that dies (`test_ray_backend.py`), how a sweep counts losses (`test_losses.py`) and how
sweeps share a node (`test_fairness.py`).
"""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.schedule import fakes
from tests.schedule.driver import TARGET, sweep
from tests.schedule.nodes import Cluster, cluster, meanwhile, wait_for
from tests.schedule.test_sweep import results, start_driver
from zo_sweeps.core.events import Start
from zo_sweeps.core.host import GIB
from zo_sweeps.core.trial import Needs, TrialState
from zo_sweeps.record.journal import JournalStore
from zo_sweeps.schedule.ledger import read_standing
from zo_sweeps.schedule.snapshot import Snapshot
from zo_sweeps_ray import inventory
from zo_sweeps_ray.executor import RayBackend
from zo_sweeps_ray.private import Head

pytestmark = [pytest.mark.multiprocess, pytest.mark.chaos]
NANO = Needs("jetson-orin-nano")


@pytest.fixture(scope="module")
def standing() -> Iterator[Cluster]:
    with cluster() as made:
        yield made


@pytest.fixture
def nodes(standing: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """The cluster, without a node as yet."""
    monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
    for name, value in standing.token.items():
        monkeypatch.setenv(name, value)
    yield standing
    for node in standing.nodes:
        node.end()
    standing.nodes.clear()


def on(nodes: Cluster, state: Path, plan: list[Any], **options: Any) -> Any:
    return sweep(state, plan, RayBackend(state, address=nodes.address, target=TARGET), **options)


def starts(state: Path, trial_id: str) -> list[tuple[str, str, int]]:
    """(node, device profile, resumed from) of every attempt, by the journal."""
    events = JournalStore(state).read(trial_id)
    return [(e.node, e.profile, e.resumed_from) for e in events if isinstance(e, Start)]


def lost(state: Path) -> list[tuple[str, str]]:
    lines = map(json.loads, (state / "ledger.jsonl").read_text().splitlines())
    return [(line["trial_id"], line["error"]) for line in lines if line["state"] == "LOST"]


def steps_done(state: Path, trial_id: str) -> int:
    path = JournalStore(state).path(trial_id)
    return path.read_text().count('"steps"') if path.exists() else 0


def undisturbed(tmp_path: Path, **behaviour: Any) -> Any:
    sweep(tmp_path / "alone", [fakes.trial(tmp_path / "alone" / "w", "t", **behaviour)])
    return results(tmp_path / "alone")["t"]


def test_hundreds_that_wait_for_an_absent_device_hold_nobody_up_and_run_when_it_joins(
    nodes: Cluster, tmp_path: Path
) -> None:
    work, said = tmp_path / "w", []
    plan = [fakes.trial(work, f"j{i:03d}", needs=NANO, steps=1) for i in range(300)]
    plan += fakes.trials(work, 6)
    nodes.add("desk")

    def script() -> None:
        wait_for(lambda: sum(fakes.completions(work, [f"t{i:03d}" for i in range(6)]).values()) == 6)
        assert not any(fakes.log_of(work, t.trial_id) for t in plan[:300])
        wait_for(lambda: said[1:], what="the reason")
        nodes.add("nano", "jetson-orin-nano")

    with meanwhile(script):
        summary = on(nodes, tmp_path, plan, say=said.append)
    assert summary.counts == {TrialState.SUCCEEDED: 306}
    assert set(fakes.completions(work, [t.trial_id for t in plan]).values()) == {1}
    assert {starts(tmp_path, f"j{i:03d}")[0][0] for i in range(300)} == {"nano"}
    assert said[1].startswith("300 trials wait for a node to join: needs device jetson-orin-nano: 0 of 2 nodes")
    assert "desk is a cpu" in said[1]


def test_a_trial_that_was_handed_back_goes_on_elsewhere_and_that_is_no_loss(nodes: Cluster, tmp_path: Path) -> None:
    """SIGTERM to its process: preemption. The trial begins on an edge device and ends on another node."""
    gate = tmp_path / "gate"
    plan = [fakes.trial(tmp_path / "w", "t", steps=60, gate=str(gate))]
    edge = nodes.add("edge", "jetson-orin-nano")

    def script() -> None:
        wait_for(lambda: steps_done(tmp_path, "t") == 8)
        nodes.add("desk")
        (actor,) = edge.actors()
        os.kill(actor, signal.SIGTERM)
        wait_for(lambda: "stopped at=8" in fakes.log_of(tmp_path / "w", "t"), what="the end of its step")
        gate.touch()

    with meanwhile(script):
        summary = on(nodes, tmp_path, plan, retries_lost=0)
    assert summary.counts == {TrialState.SUCCEEDED: 1}
    assert starts(tmp_path, "t") == [("edge", "jetson-orin-nano", 0), ("desk", "cpu", 8)]
    assert steps_done(tmp_path, "t") == 60  # none twice, none left out
    assert "stopped at=8" in fakes.log_of(tmp_path / "w", "t")
    assert lost(tmp_path) == [("t", "handed back: its node was asked to stop")]
    assert read_standing(tmp_path).losses == {}
    assert results(tmp_path)["t"] == undisturbed(tmp_path, steps=60)


@pytest.mark.parametrize("how", ["freeze", "kill"])
def test_a_trial_of_a_node_that_freezes_or_dies_goes_on_elsewhere_and_counts_once(
    nodes: Cluster, tmp_path: Path, how: str
) -> None:
    gate = tmp_path / "gate"
    plan = [fakes.trial(tmp_path / "w", "t", steps=60, gate=str(gate))]
    first = nodes.add("first")
    began: list[float] = []

    def script() -> None:
        wait_for(lambda: steps_done(tmp_path, "t") == 8)
        nodes.add("second")
        began.append(time.monotonic())
        getattr(first, how)()
        wait_for(lambda: len(starts(tmp_path, "t")) == 2, what="the second attempt")
        began.append(time.monotonic())
        gate.touch()
        first.thaw()  # it is back and goes on with the trial until it is told not to

    with meanwhile(script):
        summary = on(nodes, tmp_path, plan)
    assert summary.counts == {TrialState.SUCCEEDED: 1}
    assert [start[0] for start in starts(tmp_path, "t")] == ["first", "second"]
    assert [reason for _, reason in lost(tmp_path)] in (
        ["its node does not answer"],
        ["its node is gone or out of reach"],
        ["its process ended unexpectedly (killed, or crashed)"],
    )
    assert results(tmp_path)["t"] == undisturbed(tmp_path, steps=60)
    assert steps_done(tmp_path, "t") == 60
    print(f"\n  {how}: {began[1] - began[0]:.1f} s until the trial ran elsewhere")


def test_a_trial_that_kills_every_process_is_given_up_and_the_rest_go_on(nodes: Cluster, tmp_path: Path) -> None:
    nodes.add("a")
    nodes.add("b")
    plan = [fakes.trial(tmp_path / "w", "poison", dies=list(range(99))), *fakes.trials(tmp_path / "w", 8)]
    summary = on(nodes, tmp_path, plan, retries_lost=2)
    assert summary.counts == {TrialState.SUCCEEDED: 8, TrialState.LOST: 1}
    assert len(starts(tmp_path, "poison")) == 3
    assert JournalStore(tmp_path).read("poison")[-1].outcome.state.value == "LOST"


def test_a_process_that_is_killed_for_memory_is_lost_with_that_reason_and_tried_again(
    nodes: Cluster, tmp_path: Path
) -> None:
    memory = psutil.virtual_memory()
    limit = 1 - (memory.available - 2**31) / memory.total  # 2 GiB more than is used now
    nodes.add("small", RAY_memory_usage_threshold=f"{limit:.4f}", RAY_memory_monitor_refresh_ms="100")
    summary = on(nodes, tmp_path, [fakes.trial(tmp_path / "w", "t", eats=4)])
    assert summary.counts == {TrialState.SUCCEEDED: 1}
    assert lost(tmp_path)[0] == ("t", "its process was killed because the node ran low on memory")
    assert results(tmp_path)["t"] == undisturbed(tmp_path)


def test_a_killed_driver_s_trial_goes_on_under_the_next_and_its_old_worker_counts_for_nothing(
    nodes: Cluster, tmp_path: Path
) -> None:
    nodes.add("a", cpus=2)
    gate = tmp_path / "gate"
    plan = [fakes.trial(tmp_path / "w", "t", steps=60, gate=str(gate))]
    driver = start_driver(tmp_path, nodes.address, plan)
    wait_for(lambda: steps_done(tmp_path, "t") == 8)
    driver.kill()
    driver.communicate()
    gate.touch()
    assert on(nodes, tmp_path, plan).counts == {TrialState.SUCCEEDED: 1}
    assert steps_done(tmp_path, "t") == 60
    assert [start[2] for start in starts(tmp_path, "t")] == [0, 8]
    assert read_standing(tmp_path).losses == {}
    assert results(tmp_path)["t"] == undisturbed(tmp_path, steps=60)


def test_two_sweeps_do_not_share_out_memory_twice_and_the_one_that_waits_says_for_whom(
    nodes: Cluster, tmp_path: Path
) -> None:
    """A node with two CPUs and memory for one trial: what waits is not running, for `devices` either."""
    nodes.add("board", cpus=2, gib=3)
    gate, needs = tmp_path / "gate", Needs("auto", 2 * GIB)
    others, mine = tmp_path / "others", tmp_path / "mine"
    others.mkdir()
    driver = start_driver(
        others, nodes.address, [fakes.trial(others / "w", "held", steps=60, gate=str(gate), needs=needs)]
    )
    wait_for(lambda: steps_done(others, "held") == 8)
    # A driver that an earlier test killed may be named first, and its trial listed: its note lives ten seconds more.
    named = re.compile(rf"waits: busy with the sweep of \S+, pid {driver.pid} on ")
    said: list[str] = []
    running: list[int] = []

    def script() -> None:
        wait_for(lambda: any(map(named.match, said)), what="the other sweep's name")
        head = Head(nodes.address, nodes.token)
        runs = lambda: [run for device in inventory.read(head) for run in device.runs]
        wait_for(lambda: "held" in runs(), what="what runs")
        assert not {"m0", "m1"} & {*runs()}
        assert running[-1] == 0
        assert not list((mine / "w").glob("*.log"))
        gate.touch()

    def update(snapshot: Snapshot) -> None:
        running.append(len(snapshot.running))

    with meanwhile(script):
        plan = [fakes.trial(mine / "w", f"m{i}", needs=needs) for i in range(2)]
        summary = on(nodes, mine, plan, say=said.append, on_update=update)
    assert summary.counts == {TrialState.SUCCEEDED: 2}
    assert max(running) == 1
    assert driver.communicate(timeout=60)[0].count("ready") == 1
    assert driver.returncode == 0
    assert [read_standing(state).attempts for state in (others, mine)] == [{"held": 1}, {"m0": 1, "m1": 1}]
