"""Clients in processes of their own: the result of simulated ones, bytes on the socket, and clients that misbehave."""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import threading
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import pytest

from tests.run.common import make, measured, run
from zo_sweeps.core.events import Event, PeerLost, ScoredTest, Warned, only
from zo_sweeps.core.trial import Outcome, Sharing, Trial, TrialState
from zo_sweeps.engine.clients import coefficients, sent
from zo_sweeps.engine.replay import digest
from zo_sweeps.methods.executor import Executor
from zo_sweeps.methods.kinds.federated import Federated
from zo_sweeps.record.journal import scalars
from zo_sweeps.run.privacy import epsilon
from zo_sweeps.run.run_trial import Following, run_trial
from zo_sweeps.schedule.executors.inline import ProcessPeer
from zo_sweeps.schedule.placement import processes

pytestmark = [pytest.mark.multiprocess, pytest.mark.usefixtures("one_thread")]

PATIENCE = 200.0  # so that a busy machine looks like no lost client
CLIENTS, STEPS, Q = 3, 6, 2
TRAIN = ["update.lr=1e-3", "train.batch=4", f"train.steps={STEPS}", "train.eval_every=6", f"estimator.q={Q}"]
SHARED = ["method=decomfl", "estimator=rge", f"method.clients={CLIENTS}", "method.present=2", *TRAIN]


class Counted(ProcessPeer):
    """A client's process behind a relay that counts what passes the two sockets; killed before its n-th answer."""

    def __init__(self, *arguments: Any, kills_at: int = 0) -> None:
        super().__init__(*arguments)
        self.theirs, (self._pipe, self.ours) = self._pipe, Pipe()
        self.kills_at, self.asked = kills_at, 0
        self.counts: dict[str, int] = defaultdict(int)
        for name, source, sink in (("down", self.ours, self.theirs), ("up", self.theirs, self.ours)):
            threading.Thread(target=self._relay, args=(name, source.fileno(), sink.fileno()), daemon=True).start()

    def _relay(self, name: str, source: int, sink: int) -> None:
        try:
            while data := os.read(source, 1 << 16):
                self.counts[name] += len(data)
                os.write(sink, data)
        except OSError:
            pass
        if name == "up":
            with socket.socket(fileno=os.dup(self.ours.fileno())) as ours:  # its process has ended
                ours.shutdown(socket.SHUT_RDWR)

    def ask(self, message: bytes) -> None:
        self.asked += 1
        if self.asked == self.kills_at:
            os.kill(self._process.pid, signal.SIGKILL)
        super().ask(message)


def served(trial: Trial, peers: Sequence[Any]) -> tuple[Outcome, list[Event]]:
    """`trial` led here, with a client behind each peer."""

    class Sink(list[Event]):
        def emit(self, event: Event) -> None:
            self.append(event)

    events = Sink()
    sharing = Sharing(peers, ["here"] * len(peers), drop=False, patience=PATIENCE)
    return run_trial(trial, events, [], 1, lambda: False, sharing=sharing), events


def in_files(folder: Path) -> list[str]:
    """A task whose folder has a file of rows for each client, and the overrides for it."""
    rows = [{"sentence": f"{'good' if i % 2 else 'bad'} film number {i}, said one", "label": i % 2} for i in range(60)]
    parts = {"train": rows[:24], "validation": rows[24:32], "test": rows[32:44]}
    parts |= {f"client_{client}": rows[44 + 5 * client : 49 + 5 * client] for client in range(CLIENTS)}
    (folder / "sst2").mkdir()
    for name, own in parts.items():
        (folder / "sst2" / f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in own))
    return ["task=sst2", f"data.dir={folder}", "method.files=client_"]


def test_a_process_per_client_gives_the_result_of_simulated_ones_also_when_one_is_killed() -> None:
    trial = make(*SHARED)
    assert [processes(Executor(workers=count), trial) for count in (1, 2, CLIENTS + 1)] == [1, 1, CLIENTS + 1]
    peers = [Counted("zo_sweeps.run.run_trial:run_trial", trial, [], 1) for _ in range(CLIENTS)]
    peers[1].kills_at = 2
    try:
        found, journal = served(trial, peers)
    finally:
        for peer in peers:
            peer.close()
    assert measured(found, journal) == measured(*run(trial)), "the first process has all rows, and evaluates its part"
    assert (found.metrics["peers_lost"], found.metrics["clients_left_out"]) == (1, 0)


def test_clients_with_files_of_their_own_read_no_other_and_exchange_as_many_bytes_as_planned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = make(*SHARED, *in_files(tmp_path))
    opened = tmp_path / "opened"
    monkeypatch.setenv("ZO_TEST_OPENED", str(opened))
    peers = [Counted("tests.schedule.opening:run_trial", trial, [], 1) for _ in range(CLIENTS)]
    pids = [peer._process.pid for peer in peers]
    try:
        found, journal = served(trial, peers)
    finally:
        for peer in peers:
            peer.close()
    assert measured(found, journal) == measured(*run(trial)), "as clients that are simulated, with all files"
    rows = {(int(pid), name) for pid, name in map(str.split, opened.read_text().splitlines())}
    assert rows == {(pid, f"client_{client}.jsonl") for client, pid in enumerate(pids)}
    metrics = found.metrics
    asked = sum(peer.asked for peer in peers)
    frames = 4 * asked  # the length before each message
    up, down = (sum(peer.counts[name] for peer in peers) for name in ("up", "down"))
    ready = sum(4 + len(Following(trial, []).ready) for _ in peers)
    assert up == metrics["client_bytes_up"] + frames + ready
    assert down == metrics["client_bytes_down"] + frames + 4 * sum(peer.asked > 0 for peer in peers), "and its number"
    assert metrics["exchanged_bytes_per_step"] * STEPS == metrics["client_bytes_up"] + metrics["client_bytes_down"]
    assert metrics["client_bytes_up"] + metrics["client_bytes_down"] <= 16 * Q * STEPS * CLIENTS

    # A client that joins when all is done has the weights that were tested, of scalars alone.
    (test,) = only(ScoredTest, journal)
    assert test.step == STEPS
    late = Following(trial, [])
    with suppress(ValueError):  # if it has no part in the first round
        late.answer(struct.pack("<I", 0))
    late._follower._client.catch_up(coefficients(scalars(journal)[0]))
    assert digest(late._space.params) == test.weights
    late.leave()


class Wrong:
    """A client that answers what it likes, without a model."""

    def __init__(self, ready: bytes, answer: bytes) -> None:
        self._next, self._answer = ready, answer

    def ask(self, message: bytes) -> None:
        self._next = self._answer

    def answer(self, timeout: float) -> bytes:
        return self._next


@pytest.mark.parametrize(
    ("losses", "why"),
    [
        pytest.param([1.0] * 3, "3 losses, not 4 for each of 1 local steps", marks=pytest.mark.long),
        pytest.param([1.0, 2.0, float("nan"), 2.0], "a loss is not finite at step", marks=pytest.mark.long),
        ([1e30, -1e30] * Q, "coefficient is beyond estimator.clip=50"),
    ],
    ids=["too few", "not a number", "huge"],
)
def test_a_client_that_sends_garbage_is_named_and_bounded(losses: list[float], why: str, tmp_path: Path) -> None:
    trial = make(*SHARED, *in_files(tmp_path), "estimator.clip=50")
    own = Following(trial, [])
    ready = own.ready
    own.leave()
    peers: list[Any] = [Wrong(ready, sent(losses))]
    peers += [ProcessPeer("zo_sweeps.run.run_trial:run_trial", trial, [], 1) for _ in range(CLIENTS - 1)]
    try:
        found, journal = served(trial, peers)
    finally:
        for peer in peers[1:]:
            peer.close()
    assert found.state is TrialState.SUCCEEDED, found.error
    assert all(abs(g) <= 50 for line in scalars(journal)[0] for g in line)
    named = [event.reason for event in only(PeerLost, journal)]
    named += [event.text for event in only(Warned, journal) if "client" in event.metric]
    assert len(named) == 1
    assert "client 0" in named[0]
    assert why in named[0]
    assert (found.metrics["clients_left_out"] > 0) == ("huge" not in why and "beyond" not in why)


def test_clients_in_processes_draw_noise_of_their_own_and_epsilon_counts_rows_that_nobody_else_knows(
    tmp_path: Path,
) -> None:
    trial = make(*SHARED, *in_files(tmp_path), "estimator.clip=1", "method.noise=2")
    peers = [ProcessPeer("zo_sweeps.run.run_trial:run_trial", trial, [], 1) for _ in range(CLIENTS)]
    try:
        found, journal = served(trial, peers)
    finally:
        for peer in peers:
            peer.close()
    assert found.state is TrialState.SUCCEEDED, found.error
    simulated, theirs = run(trial)
    assert found.metrics.get("noise_seeded") is None
    assert simulated.metrics["noise_seeded"] == 1
    assert scalars(journal)[0][0] != scalars(theirs)[0][0]
    kind = Federated(clients=CLIENTS, present=2)
    most = max(sum(client in kind.members(3, step) for step in range(1, STEPS + 1)) for client in range(CLIENTS))
    assert found.metrics["epsilon"] == epsilon((Q * most) ** 0.5 / 2, 1e-5) > simulated.metrics["epsilon"]
    assert found.metrics["client_bytes_up"] == 4 * Q * 2 * STEPS, "a coefficient per direction, of 2 clients"
    assert not [event for event in only(Warned, journal) if "client" in event.metric], "noise is no garbage"
