"""Clients on agents: rounds over the gateway, one of them killed in between, and no agent speaks for another.

What is real is the wire, the disk, the processes, the model and the rows; the driver's side is here, without Ray.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import sqlite3
import struct
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import ExitStack, closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agents import Cable, Head, free_port, head, wait
from boards import Board, write_profile
from machines import machines, zo
from test_client_processes import served
from tests.run.common import GRID, LEFT_OUT, SMALL, TINY, client_files, make, measured, run
from zo_sweeps.core.events import PeerLost, PeersReady, only
from zo_sweeps.core.trial import Trial, TrialState
from zo_sweeps.engine.peers import PeerLostError
from zo_sweeps.record.journal import JournalStore, outcome
from zo_sweeps.run.run_trial import Following
from zo_sweeps.schedule.placement import Node
from zo_sweeps_agent.agent import keys
from zo_sweeps_agent.agent.link import HeadRefusedError, Link
from zo_sweeps_agent.agent.trials import here
from zo_sweeps_agent.agents import AgentSlot, Proxies
from zo_sweeps_agent.leases import FILE
from zo_sweeps_federated.privacy import epsilon
from zo_sweeps_ray.choice import LeaseLostError

pytestmark = [pytest.mark.multiprocess, pytest.mark.usefixtures("one_thread")]
CLIENTS, STEPS, Q = 3, 6, 2
NAMES = [f"board-{client}" for client in range(CLIENTS)]
TRAIN = ["update.lr=1e-3", "train.batch=4", f"train.steps={STEPS}", "train.eval_every=6", f"estimator.q={Q}"]
SHARED = ["method=decomfl", f"method.clients={CLIENTS}", "method.present=2", *TRAIN]


class Slotted:
    """An agent's slot as a leader's peer, as `RayPeer` has it; the proxies run in a thread here."""

    def __init__(self, proxies: Any, name: str, trial: Trial) -> None:
        self._slot, self.asked = AgentSlot(proxies, Node("", name, "cpu", 1, 0, 0), 1), 0
        self._pending: Future[bytes] = self._slot.follow.remote(trial.to_json(), [])

    @property
    def lease(self) -> str:
        return self._slot._lease

    def ask(self, message: bytes) -> None:
        self.asked += 1
        self._pending = self._slot.answer.remote(message)

    def answer(self, timeout: float) -> bytes | None:
        try:
            return self._pending.result(timeout)
        except TimeoutError:
            return None
        except LeaseLostError as error:
            raise PeerLostError(str(error)) from None

    def leave(self) -> None:
        self._slot.leave.remote().result(30)


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    one = asyncio.new_event_loop()
    threading.Thread(target=one.run_forever, daemon=True).start()
    yield one
    one.call_soon_threadsafe(one.stop)


def remote(them: Head, loop: asyncio.AbstractEventLoop) -> Any:
    """The proxies of a driver, called as an actor of Ray is."""
    proxies = Proxies(str(them.folder / FILE), "driver")

    def method(name: str) -> Any:
        call = lambda *given: asyncio.run_coroutine_threadsafe(getattr(proxies, name)(*given), loop)
        return SimpleNamespace(remote=call)

    return SimpleNamespace(**{name: method(name) for name in ("run", "drain", "stop", "follow", "answer", "leave")})


def link_of(them: Head, name: str) -> Link:
    """The connection of an agent, with its own key."""
    (folder,) = (them.folder.parent / name / "agent" / "heads").glob("*")
    registration = keys.read(folder)
    assert registration
    return registration.link(folder)


@pytest.mark.long
def test_clients_on_agents_have_the_result_of_simulated_ones_also_when_one_is_killed_and_returns(
    tmp_path: Path, loop: asyncio.AbstractEventLoop
) -> None:
    (tmp_path / "data").mkdir()
    trial = make(*SHARED, *client_files(tmp_path / "data", CLIENTS))
    simulated = measured(*run(trial))
    asked_to_stop = iter([False, False, False, True])
    stopped, half = run(trial, stop=lambda: next(asked_to_stop))
    assert 0 < stopped.steps_done < STEPS
    own = [tmp_path / f"rows-{client}" for client in range(CLIENTS)]
    rows = []
    for client, folder in enumerate(own):  # each to its own machine, and to no other
        (folder / "sst2").mkdir(parents=True)
        shutil.move(tmp_path / "data" / "sst2" / f"client_{client}.jsonl", folder / "sst2")
        rows.append((folder / "sst2" / f"client_{client}.jsonl").read_bytes().splitlines())

    with head(tmp_path / "head") as them:
        cables = [Cable(them.port) for _ in NAMES]
        started = lambda client: them.agent(NAMES[client], port=cables[client].port, data=own[client])
        agents = [started(client) for client in range(CLIENTS)]
        wait(lambda: all("joined" in one.said for one in agents))
        kept = {agent.name: agent.facts and agent.facts.rows for agent in them.store.agents()}
        assert kept == {name: (row,) for name, row in zip(NAMES, trial.shared_steps.rows, strict=True)}
        peers = [Slotted(remote(them, loop), name, trial) for name in NAMES]
        wait(lambda: all(them.store.answer_to(peer.lease, 0) for peer in peers), 200)
        before = sum(cable.bytes for cable in cables)

        ask = peers[1].ask

        def killing(message: bytes) -> None:
            if peers[1].asked == 1:
                agents[1].kill()
                agents[1] = started(1)
            ask(message)

        peers[1].ask = killing  # type: ignore[method-assign]
        found, journal = served(trial, peers)
        on_the_socket = sum(cable.bytes for cable in cables) - before

        assert measured(found, journal) == simulated
        assert only(PeerLost, journal) == []
        metrics = found.metrics
        assert (metrics["workers"], metrics["clients_left_out"]) == (1 + CLIENTS, 0)
        assert metrics["clients_equal"] == CLIENTS, "the weights of the one that returned, too, by their SHA-256"
        assert "going on with" in agents[1].said
        bodies = metrics["client_bytes_up"] + metrics["client_bytes_down"]
        assert metrics["exchanged_bytes_per_step"] * STEPS == bodies <= 16 * Q * STEPS * CLIENTS
        each = Q * STEPS * CLIENTS
        print(
            f"bytes per query and client: {bodies / each:.1f}; with HTTP, TLS and a restart {on_the_socket / each:.0f}"
        )

        # Whose answer it is, the connection says.
        link, asked = link_of(them, NAMES[0]), peers[1].asked
        first = them.store.answer_to(peers[1].lease, asked)
        for number in (asked, asked + 1):
            with pytest.raises(HeadRefusedError) as refused:
                link.answer(f"/v1/leases/{peers[1].lease}/answers/{number}", b"forged")
            assert refused.value.status == 404
        with pytest.raises(HeadRefusedError, match=f"question {peers[0].asked + 1} was not asked") as refused:
            link.answer(f"/v1/leases/{peers[0].lease}/answers/{peers[0].asked + 1}", b"early")
        assert refused.value.status == 409
        assert them.store.answer_to(peers[1].lease, asked) == first
        for peer in peers:
            peer.leave()
        wait(lambda: all("is over" in one.said for one in agents))
        with pytest.raises(HeadRefusedError, match="the trial has ended") as refused:
            link.answer(f"/v1/leases/{peers[0].lease}/answers/0", b"")
        assert refused.value.status == 410
        link.close()

        # A leader that goes on with an earlier one's journal asks them again, under new leases.
        peers = [Slotted(remote(them, loop), name, trial) for name in NAMES]
        assert measured(*served(trial, peers, half)) == simulated
        for peer in peers:
            peer.leave()
        held = b"".join(file.read_bytes() for file in them.folder.rglob("*") if file.is_file())
        assert not any(row in held for of_client in rows for row in of_client), "no row has left its machine"
    assert found.state is TrialState.SUCCEEDED


@pytest.mark.chaos
def test_a_private_client_on_an_agent_that_is_killed_answers_again_with_the_same_bytes(
    tmp_path: Path, loop: asyncio.AbstractEventLoop
) -> None:
    (tmp_path / "data").mkdir()
    clients, private = 2, ["estimator.clip=1", "method.noise=2"]
    given = client_files(tmp_path / "data", clients)
    trial = make("method=decomfl", f"method.clients={clients}", *TRAIN, *given, *private)
    own = [tmp_path / f"rows-{client}" for client in range(clients)]
    for client, folder in enumerate(own):
        (folder / "sst2").mkdir(parents=True)
        shutil.move(tmp_path / "data" / "sst2" / f"client_{client}.jsonl", folder / "sst2")
    with head(tmp_path / "head") as them:
        agents = [them.agent(name, data=folder) for name, folder in zip(NAMES, own, strict=False)]
        wait(lambda: all("joined" in one.said for one in agents))
        peers = [Slotted(remote(them, loop), name, trial) for name in NAMES[:clients]]
        answered = lambda peer, number: them.store.answer_to(peer.lease, number) or b""
        wait(lambda: all(answered(peer, 0) for peer in peers), 200)
        ask = peers[1].ask

        def killing(message: bytes) -> None:
            if peers[1].asked == 1:  # it has answered, and returns before it is asked for more
                sent = lambda: them.store.lease_of(peers[1].lease, NAMES[1]).up
                twice = sent() + len(answered(peers[1], 0)) + len(answered(peers[1], 1))
                agents[1].kill()
                agents[1] = them.agent(NAMES[1], data=own[1])
                wait(lambda: sent() == twice, 200)
            ask(message)

        peers[1].ask = killing  # type: ignore[method-assign]
        found, journal = served(trial, peers)
        assert found.state is TrialState.SUCCEEDED, found.error
        assert only(PeerLost, journal) == []
        assert (found.metrics["clients_left_out"], found.metrics["clients_equal"]) == (0, clients)
        assert found.metrics["epsilon"] == epsilon((Q * STEPS) ** 0.5 / 2, 1e-5), "every round once"
        assert "going on with" in agents[1].said
        for client, (peer, folder) in enumerate(zip(peers, own, strict=True)):
            with closing(sqlite3.connect(folder / "sst2" / f"client_{client}.jsonl.answers")) as kept:
                rows = kept.execute("SELECT first, answer FROM answers ORDER BY first").fetchall()
            assert rows == [(step, answered(peer, step)) for step in range(1, STEPS + 1)]
        third = Following(here(trial.to_json(), {"data": str(own[1])}), [])
        assert third.answer(struct.pack("<I", 1)) == answered(peers[1], 1), "what it sent twice"
        third.leave()
        for peer in peers:
            peer.leave()


@pytest.mark.long
def test_an_agent_without_the_rows_or_with_others_is_left_out_by_name(
    tmp_path: Path, loop: asyncio.AbstractEventLoop
) -> None:
    (tmp_path / "data").mkdir()
    trial = make(*SHARED, "method.present=3", *client_files(tmp_path / "data", CLIENTS))
    shutil.copytree(tmp_path / "data", tmp_path / "rows")
    for client in (0, 1):
        (tmp_path / "data" / "sst2" / f"client_{client}.jsonl").unlink()
    file = tmp_path / "rows" / "sst2" / "client_0.jsonl"
    file.write_bytes(file.read_bytes().replace(b"good", b"grim"))
    (tmp_path / "rows" / "sst2" / "client_2.jsonl").unlink()
    with head(tmp_path / "head") as them:
        given = ["", tmp_path / "rows", tmp_path / "data"]  # 0 has none; 1 has its own; 2 has its own
        agents = [them.agent(name, data=folder) for name, folder in zip(NAMES, given, strict=True)]
        wait(lambda: all("joined" in one.said for one in agents))
        peers = [Slotted(remote(them, loop), name, trial) for name in NAMES]
        found, journal = served(trial, peers)
        for peer in peers[1:]:
            peer.leave()
    assert found.state is TrialState.SUCCEEDED, found.error
    (lost,) = only(PeerLost, journal)
    assert lost.reason == "this board has no rows of its own; start its agent with --data FOLDER"
    assert found.metrics["clients_left_out"] == STEPS
    assert found.metrics["clients_equal"] == 2


@pytest.mark.chaos
def test_a_sweep_leads_on_a_node_and_its_clients_are_the_agents_that_keep_their_rows(tmp_path: Path) -> None:
    """By the commands of docs/CLUSTER.md: rows are planned by their SHA-256 alone."""
    data, clients = tmp_path / "data", 2
    data.mkdir()
    words = ["method=decomfl", f"method.clients={clients}", "method.present=2", *TRAIN, *client_files(data, clients)]
    trial = make(*words)
    simulated = measured(*run(trial))
    with machines("--cpus", "1", "--gateway-port", str(free_port())) as them, ExitStack() as stack:
        (url,) = re.findall(r"agent join (\S+) --code", them.said)
        boards = []
        for client, name in enumerate(NAMES[:clients]):
            own, file = tmp_path / f"rows-{client}", data / "sst2" / f"client_{client}.jsonl"
            (own / "sst2").mkdir(parents=True)
            note = subprocess.run(["sha256sum", file.name], cwd=file.parent, capture_output=True, check=True).stdout
            file.with_name(f"{file.name}.sha256").write_bytes(note)
            shutil.move(file, own / "sst2")
            write_profile(tmp_path / "conf", name)
            keeps = ["--device", "cpu", "--data", str(own)]
            boards.append(Board(tmp_path / name, url, tmp_path / "conf", *keeps, name=name))
            stack.callback(boards[-1].kill)
            boards[-1].join(them.code())
        sweep = [*GRID, *SMALL, *TINY, *words, *LEFT_OUT, "executor.workers=3", f"cluster.address={them.address}"]
        done = zo(*sweep, home=them.home, timeout=300, **them.login)
        assert done.returncode == 0, done.stdout + done.stderr
        store = JournalStore(them.home / "zo_runs")
        journal = store.read(trial.trial_id)
        ended = outcome(journal)
        assert ended is not None
        assert measured(ended, journal) == simulated
        (ready,) = only(PeersReady, journal)
        assert [*ready.names] == NAMES[:clients]
        assert ended.metrics["clients_equal"] == clients
        for board in boards:
            assert board.leave() == 0, board.said
