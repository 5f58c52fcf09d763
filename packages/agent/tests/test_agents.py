"""An agent as a node of a driver: its proxy answers as an actor that runs trials would; placement sees its limits."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from facts import FACTS
from zo_sweeps.core.errors import UserError
from zo_sweeps.core.events import read_event
from zo_sweeps.core.trial import Needs, Outcome, SharedSteps, StoredConfig, Trial, TrialState
from zo_sweeps.methods.executor import Executor
from zo_sweeps.schedule.placement import Node, refusal
from zo_sweeps_agent import agents, leases
from zo_sweeps_agent.agent_facts import Note
from zo_sweeps_agent.agent_records import set_aside
from zo_sweeps_agent.agents import LeaseLostError, Proxies
from zo_sweeps_agent.leases import Store
from zo_sweeps_agent.ray_agents import ClusterAgents
from zo_sweeps_ray import private
from zo_sweeps_ray.choice import preference, reason
from zo_sweeps_ray.fairness import Claim
from zo_sweeps_ray.slots import Slot, Slots

pytestmark = pytest.mark.unit
TRIAL = Trial("t", StoredConfig({}), label="a trial", steps=2)
STEPS = {"type": "steps", "time": 1.0, "first": 1, "losses": [1.0], "coefs": [[1.0]], "seconds": 1.0, "tokens": 1}
START = {"type": "start", "time": 1.0, "attempt": 1, "device": {}, "versions": {}, "resumed_from": 0, "node": "liar"}
DONE = Outcome("t", TrialState.SUCCEEDED, {"a": 1.0}).to_json()
END = {"type": "end", "time": 2.0, "outcome": DONE}


@pytest.fixture
def store(tmp_path: Path):
    one = Store(tmp_path / leases.FILE)
    one.add_code(b"x" * 10, time.time() + 60)
    one.enrol(b"x" * 10, "board", "cpu", "key", "AB")
    one.join("board", FACTS, {"nf4": "no kernel"}, "")
    yield one
    one.close()


def send(store: Store, first: int, *events: dict[str, Any], outcome: Any = None, driver: str = "d") -> str:
    """As the gateway does for the board's last lease."""
    (lease,) = (one.id for one in store.of_driver(driver).values() if one.state == leases.OPEN)
    store.append(lease, "board", first, list(map(json.dumps, events)), outcome and json.dumps(outcome), 100)
    return lease


def proxied(tmp_path: Path, script: Callable[[Proxies], Awaitable[None]], driver: str = "d") -> None:
    async def run() -> None:
        await script(Proxies(str(tmp_path / leases.FILE), driver))

    asyncio.run(run())


async def begin(proxies: Proxies, trial: Trial = TRIAL, journal: Any = ()) -> None:
    await proxies.run("board", "jetson-tx2", 2, trial.to_json(), list(journal), 1)


def test_an_attempt_from_its_lease_to_its_outcome(store: Store, tmp_path: Path) -> None:
    async def script(proxies: Proxies) -> None:
        assert await proxies.drain("t", 1, 0, 0.05) == ([], None, False), "the call of `run` may come later"
        await begin(proxies, journal=[read_event(STEPS)])
        await begin(proxies)  # Ray repeats a call after its actor was restarted
        lease = send(store, 0, START)
        contents = store.contents(lease)
        assert (contents.journal, contents.threads) == ((STEPS,), 2)
        events, outcome, _ = await proxies.drain("t", 1, 0, 5)
        assert (events[0].node, events[0].profile, outcome) == ("board", "jetson-tx2", None)
        began = time.monotonic()
        assert await proxies.drain("t", 1, 1, 0.2) == ([], None, False)
        assert time.monotonic() - began > 0.15, "it waits for news"
        asyncio.get_running_loop().call_later(0.2, lambda: send(store, 1, STEPS, END, outcome=DONE))
        events, outcome, leaving = await proxies.drain("t", 1, 1, 20)
        bytes_ = {"agent_bytes_down": 0.0, "agent_bytes_up": 200.0}
        assert outcome == {**DONE, "metrics": {"a": 1.0, **bytes_}}
        assert [event.kind for event in events] == ["steps", "end"]
        assert events[1].outcome.to_json() == outcome, "the journal says the same"
        assert not leaving

    proxied(tmp_path, script)
    assert len(store.of_driver("d")) == 1


def test_a_proxy_that_is_started_again_goes_on(store: Store, tmp_path: Path) -> None:
    """Nothing is lost with its process: not an attempt under way, not one that ended meanwhile."""

    async def first(proxies: Proxies) -> None:
        await begin(proxies)
        send(store, 0, START, STEPS)
        assert len((await proxies.drain("t", 1, 0, 5))[0]) == 2

    async def second(proxies: Proxies) -> None:
        events, outcome, _ = await proxies.drain("t", 1, 2, 5)
        assert (len(events), outcome is not None) == (1, True)

    proxied(tmp_path, first)
    send(store, 2, END, outcome=DONE)
    proxied(tmp_path, second)


def test_whatever_hinders_a_lease_is_the_attempts_error(store: Store, tmp_path: Path) -> None:
    async def script(proxies: Proxies) -> None:
        await begin(proxies, replace(TRIAL, config=StoredConfig({"model": 7})))
        _, outcome, _ = await proxies.drain("t", 1, 0, 5)
        assert outcome is not None
        assert (outcome["state"], "Error: " in outcome["error"]) == ("FAILED", True)

    proxied(tmp_path, script)


def test_a_store_that_was_set_aside_is_left_and_its_attempts_are_lost(store: Store, tmp_path: Path) -> None:
    async def script(proxies: Proxies) -> None:
        await begin(proxies)
        send(store, 0, START)
        assert len((await proxies.drain("t", 1, 0, 5))[0]) == 1
        store._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        store.close()
        path = tmp_path / leases.FILE
        path.write_bytes(path.read_bytes()[:4096] + b"\xff" * 8192)
        set_aside(path, lambda line: None)
        new = Store(path)
        new.restore()
        new.join("board", FACTS, {}, "")
        with pytest.raises(LeaseLostError, match="set its damaged store aside"):
            await proxies.drain("t", 1, 1, 60)
        await asyncio.wait_for(begin(proxies, replace(TRIAL, trial_id="again")), 60)
        assert [one.trial_id for one in new.open_leases()] == ["again"]
        new.close()

    proxied(tmp_path, script)


def test_a_locked_store_is_waited_for(store: Store, tmp_path: Path) -> None:
    """A backup, say: no attempt is lost, whether the lock comes before the proxy, or while its trial runs."""
    other = sqlite3.connect(tmp_path / leases.FILE, isolation_level=None)

    async def script(proxies: Proxies) -> None:
        other.execute("BEGIN IMMEDIATE")
        lease = asyncio.create_task(begin(proxies))
        for _ in range(3):
            assert await proxies.drain("t", 1, 0, 0.2) == ([], None, False)
        other.execute("ROLLBACK")
        await asyncio.wait_for(lease, 20)
        send(store, 0, START)
        assert len((await proxies.drain("t", 1, 0, 20))[0]) == 1
        other.execute("BEGIN IMMEDIATE")
        stop = asyncio.create_task(proxies.stop("t", 1))
        await asyncio.sleep(0.5)
        assert await proxies.drain("t", 1, 1, 0.1) == ([], None, False)
        other.execute("ROLLBACK")
        await asyncio.wait_for(stop, 20)
        assert [one.stop for one in store.of_driver("d").values()] == [True]

    proxied(tmp_path, script)
    other.close()


def test_ends_that_are_losses(store: Store, tmp_path: Path) -> None:
    """A revoked key counts; an agent that left, or took nothing, does not; the last events come first."""

    async def revoked(proxies: Proxies) -> None:
        await begin(proxies)
        send(store, 0, START, driver="r")
        store.revoke("board")
        assert len((await proxies.drain("t", 1, 0, 5))[0]) == 1
        with pytest.raises(LeaseLostError, match="the key of board was revoked"):
            await proxies.drain("t", 1, 1, 5)

    async def left(proxies: Proxies) -> None:
        await begin(proxies)
        store.leave("board")
        _, outcome, leaving = await proxies.drain("t", 1, 0, 5)
        assert (outcome["state"], leaving) == ("CANCELLED", True)

    async def taken(proxies: Proxies) -> None:
        store.lease("other", "board", {"trial_id": "u"}, [], 1)
        await begin(proxies)
        _, outcome, leaving = await proxies.drain("t", 1, 0, 5)
        assert (outcome["state"], leaving) == ("CANCELLED", True)

    async def killed(proxies: Proxies) -> None:
        await begin(proxies)
        send(store, 0, START, outcome={**DONE, "state": "LOST", "error": "killed for memory"}, driver="e")
        assert (await proxies.drain("t", 1, 0, 5))[1] is None
        with pytest.raises(LeaseLostError, match="killed for memory"):
            await proxies.drain("t", 1, 1, 5)

    async def another(proxies: Proxies) -> None:
        await begin(proxies)
        send(store, 0, {"type": "log", "time": 1.0, "line": {}}, driver="l")
        with pytest.raises(LeaseLostError, match="which it does not run"):
            await proxies.drain("t", 1, 0, 5)
        await proxies.close()

    proxied(tmp_path, left)
    store.join("board", FACTS, {}, "")
    proxied(tmp_path, taken, "c")
    for lease in store.of_driver("other"):
        store.give_up(lease, "")
    proxied(tmp_path, killed, "e")
    proxied(tmp_path, another, "l")
    proxied(tmp_path, revoked, "r")


def test_a_stop_does_not_wait_for_an_agent_that_is_away(store: Store, tmp_path: Path) -> None:
    async def script(proxies: Proxies) -> None:
        await begin(proxies)
        send(store, 0, START)
        await proxies.stop("", 0)
        await proxies.stop("t", 1)
        assert (await proxies.drain("t", 1, 1, 0.1))[1] is None, "it may still hand over its step"
        store.hear({"board": time.time() - leases.OFFLINE_SECONDS}, {})
        _, outcome, leaving = await proxies.drain("t", 1, 1, 0.5)
        assert (outcome["state"], leaving) == ("CANCELLED", False)
        await proxies.close()

    proxied(tmp_path, script)
    assert [one.state for one in store.of_driver("d").values()] == [leases.OVER]


def test_the_nodes_are_the_agents_that_are_online(store: Store) -> None:
    store.lease("other", "board", {"trial_id": "u"}, [], 1)
    sent = Note(time.time(), "", tuple(store.agents()))
    note = Note.of(json.loads(json.dumps(sent.to_json())))  # as it comes from the head
    assert note == sent
    (node,) = agents.nodes(note, "d", 0.0)
    assert (node.node_id, node.device, node.cpus, node.gpus) == ("agent:board", "jetson-tx2", 4, 1)
    assert (node.slots, node.leased) == (1, 1)
    assert agents.nodes(note, "other", 0.0)[0].leased == 0, "its own lease leaves it its slot"
    process = replace(note.agents[0], running=((f"other{agents.OF_DRIVER}1", "u"),))
    (node,) = agents.nodes(replace(note, agents=(process,)), "other", 0.0)
    assert (node.leased, node.light) == (0, False), "and so does that of a process of its own"
    assert agents.nodes(note, "d", agents.NOTE_SECONDS + 1) == [], "nobody writes the note any more"
    silent = replace(note.agents[0], heard=note.time - leases.OFFLINE_SECONDS)
    assert agents.nodes(replace(note, agents=(silent,)), "d", 0.0) == []
    with pytest.raises(UserError, match="install the head's version"):
        Note.of({**sent.to_json(), "agents": [{"name": "b"}]})


def test_a_head_with_another_clock_is_believed_while_it_writes(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    written, now = Note(time.time() - 3600.0, "", tuple(store.agents())).to_json(), [0.0]
    monkeypatch.setattr(private, "joined_notes", lambda: SimpleNamespace(notes=lambda kind: {"": written}))
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    cluster = ClusterAgents()
    for passed, there in ((0.0, 1), (agents.NOTE_SECONDS, 1), (agents.NOTE_SECONDS + 1, 0)):
        now[0] = passed
        assert len(cluster.nodes()) == there
    written["time"] += 1.0
    assert len(cluster.nodes()) == 1, "it writes again"


BOARD = Node("agent:b", "b", "cpu", 4, 0, 2**34, slots=1, refused={"nf4": "no kernel"})
HOST = Node("h", "h", "cpu", 1, 0, 2**34)


def test_an_agent_lends_what_its_answers_allow() -> None:
    assert refusal(Needs(precision="fp32"), BOARD) == ""
    assert refusal(Needs(precision="nf4"), BOARD) == "does not lend nf4: no kernel"
    noise = replace(BOARD, refused={"noise": "other bits"})
    assert refusal(Needs(precision="fp32"), noise) == "does not lend noise: other bits"
    assert "b does not lend nf4: no kernel" in reason(Needs(precision="nf4"), [BOARD])
    assert preference(Needs(), HOST) == preference(Needs(), BOARD), "in the order of the nodes: Ray's first"


def test_a_board_with_the_light_client_takes_programs_alone() -> None:
    """Also: its memory holds what the client needs, not what exporting takes on the head."""
    light = Node("agent:pi", "pi", "executorch", 4, 0, 10**9, programs=True, light=True, slots=1)
    program = Needs(programs=True, precision="fp32", memory_bytes=2 * 10**9, client_bytes=9 * 10**8)
    for device in ("auto", "cpu", "executorch"):
        assert refusal(replace(program, device=device), light) == ""
        assert refusal(Needs(device=device, precision="fp32"), light).startswith("runs exported programs alone: use")
    assert refusal(replace(program, device="cuda"), light) == "has no CUDA GPU"
    assert "of memory" in refusal(replace(program, client_bytes=2 * 10**9), light)
    assert "of memory" in refusal(program, replace(light, light=False))


def test_slots_of_agents() -> None:
    """One trial at a time where one slot is lent, an idle slot only while it is lent, no trial of several processes."""
    slots = Slots("", Executor(), ClusterAgents(), Claim(""))
    slots.see([BOARD], {})
    new = slots.choose(TRIAL)
    assert new is not None
    assert (new.actor, new.node) == (None, BOARD)
    busy = Slot(None, BOARD, 0, trial=TRIAL)
    slots._slots.append(busy)
    assert slots.choose(TRIAL) is None
    busy.trial = None
    assert slots.choose(TRIAL) is busy
    slots.see([replace(BOARD, leased=1)], {})
    assert slots.choose(TRIAL) is None, "another driver took it"
    shared = replace(TRIAL, shared_steps=SharedSteps(4))
    team = Slots("", Executor(workers=2), ClusterAgents(), Claim(""))
    team.see([replace(BOARD, slots=4), replace(HOST, cpus=4)], {})
    assert [node.name for node in team.nodes_for(shared)] == ["h"]
    assert len(team.nodes_for(TRIAL)) == 2


def test_a_client_is_on_the_agent_that_keeps_its_rows_and_the_leader_on_a_node() -> None:
    rows = ("r0", "r1", "r2")
    trial = replace(TRIAL, shared_steps=SharedSteps(0, clients=3, rows=rows))
    boards = [replace(BOARD, node_id=f"agent:b{i}", name=f"b{i}", rows=frozenset({row})) for i, row in enumerate(rows)]
    boards.append(replace(BOARD, node_id="agent:both", name="both", rows=frozenset({"r0", "r2"})))
    team = Slots("", Executor(workers=4), ClusterAgents(), Claim(""))

    def placed(*nodes: Node) -> list[str] | None:
        team.see([*nodes, HOST], {})
        found = team.clients(trial)
        return found if found is None else [node.name for node in found]

    assert placed(boards[2], boards[0], boards[1]) == ["b0", "b1", "b2"]
    assert team.kind(trial) is None
    leader = team.choose(trial, None)
    assert leader is not None
    assert leader.node == HOST, "which needs room for one process alone"
    assert placed(*boards[:2]) is None, "it waits for the third"
    assert team.kind(trial) == ""
    assert team.choose(trial, "") is None
    assert placed(boards[1], boards[3], boards[0]) is None, "one agent is one client"
    assert placed(boards[1], boards[2], boards[3]) == ["both", "b1", "b2"]
    assert placed(*boards[:2], replace(boards[2], leased=1)) is None, "busy"
    assert placed(*boards[:2], replace(boards[2], version="0.0.1")) is None
    assert placed() == [], "clients are processes of nodes"
    assert Slots("", Executor(), ClusterAgents(), Claim("")).clients(trial) == [], "or simulated"
    team = Slots("", Executor(workers=4, slots=3), ClusterAgents(), Claim(""))
    assert placed(*boards[:3]) is None
