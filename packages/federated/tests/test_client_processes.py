"""Clients in processes of their own: the result of simulated ones, bytes on the socket, and clients that misbehave."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import socket
import struct
import subprocess
import threading
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import pytest

from tests.run.common import client_files, make, measured, run
from zo_sweeps.core.events import Event, PeerLost, ScoredTest, Start, Steps, Warned, only
from zo_sweeps.core.trial import Outcome, Sharing, Trial, TrialState
from zo_sweeps.engine.peers import PeerLostError
from zo_sweeps.engine.replay import digest
from zo_sweeps.record.journal import scalars
from zo_sweeps.run.run_trial import Following, run_trial
from zo_sweeps.schedule.executors.inline import ProcessPeer
from zo_sweeps_federated.clients import coefficients, received, sent
from zo_sweeps_federated.federated import Federated
from zo_sweeps_federated.privacy import epsilon

pytestmark = [pytest.mark.multiprocess, pytest.mark.usefixtures("one_thread")]

PATIENCE = 200.0  # so that a busy machine looks like no lost client
CLIENTS, STEPS, Q, EPS = 3, 6, 2, 1e-3
TRAIN = ["update.lr=1e-3", "train.batch=4", f"train.steps={STEPS}", "train.eval_every=6", f"estimator.q={Q}"]
SHARED = ["method=decomfl", "estimator=rge", f"method.clients={CLIENTS}", "method.present=2", *TRAIN]
PRIVATE = ["estimator.clip=1", "method.noise=2"]


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


class Lost:
    """A client's process that has ended."""

    def ask(self, message: bytes) -> None: ...

    def answer(self, timeout: float) -> bytes | None:
        raise PeerLostError("it has ended")


def served(
    trial: Trial, peers: Sequence[Any], journal: Sequence[Event] = (), *, drop: bool = False
) -> tuple[Outcome, list[Event]]:
    """`trial` led here, with a client behind each peer, from where `journal` ends; (outcome, journal after it)."""

    class Sink(list[Event]):
        def emit(self, event: Event) -> None:
            self.append(event)

    events = Sink(journal)
    sharing = Sharing(peers, ["here"] * len(peers), drop=drop, patience=PATIENCE)
    return run_trial(trial, events, list(journal), 1, lambda: False, sharing=sharing), events


def served_with_one_killed(trial: Trial) -> tuple[Outcome, list[Event]]:
    """Run a trial with a process per client, the second of which is killed in round 2."""
    peers = [Counted("zo_sweeps.run.run_trial:run_trial", trial, [], 1) for _ in range(CLIENTS)]
    peers[1].kills_at = 2
    try:
        return served(trial, peers)
    finally:
        for peer in peers:
            peer.close()


def test_a_process_per_client_gives_the_result_of_simulated_ones_also_when_one_is_killed() -> None:
    trial = make(*SHARED)
    found, journal = served_with_one_killed(trial)
    assert measured(found, journal) == measured(*run(trial)), "the first process has all rows, and evaluates its part"
    assert (found.metrics["peers_lost"], found.metrics["clients_left_out"]) == (1, 0)


def test_a_round_in_which_all_clients_are_lost_is_no_divergence() -> None:
    trial = make(*SHARED)
    found, _ = served(trial, [Lost()] * CLIENTS, drop=True)
    assert found.state is TrialState.FAILED
    assert "no client of the round of step 1 has answered" in found.error
    found, journal = served(trial, [Lost()] * CLIENTS)
    assert measured(found, journal) == measured(*run(trial)), "where all rows are here, they are simulated"


def test_a_mask_of_text_needs_no_rows_of_clients(tmp_path: Path) -> None:
    rows = "".join(json.dumps({"text": "a film that is good and long enough to be read " * 8}) + "\n" for _ in range(8))
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "c4_sample.jsonl").write_text(rows)
    mask = [f"space.{word}" for word in ("source=text", "samples=4", "length=16", "density=0.01")]
    following = Following(make(*SHARED, *client_files(tmp_path, CLIENTS), "space=sensitive", *mask), [])
    try:
        client = Federated(clients=CLIENTS, present=2).members(3, 1)[0]
        losses = received(following.answer(struct.pack("<I", client)))
    finally:
        following.leave()
    assert len(losses) == 2 * Q


@pytest.mark.long
def test_clients_with_files_of_their_own_read_no_other_and_exchange_as_many_bytes_as_planned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = make(*SHARED, *client_files(tmp_path, CLIENTS))
    opened = tmp_path / "opened"
    monkeypatch.setenv("ZO_TEST_OPENED", str(opened))
    peers = [Counted("opening:run_trial", trial, [], 1) for _ in range(CLIENTS)]
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
    assert up == metrics["client_bytes_up"] + frames + ready + 32 * CLIENTS, "and the SHA-256 of the weights"
    assert down == 8 * Q * STEPS * CLIENTS + frames + 4 * CLIENTS, "the whole log to each, and its number"
    assert metrics["clients_equal"] == CLIENTS
    assert metrics["exchanged_bytes_per_step"] * STEPS == metrics["client_bytes_up"] + metrics["client_bytes_down"]
    assert metrics["client_bytes_up"] + metrics["client_bytes_down"] <= 16 * Q * STEPS * CLIENTS

    # A client that joins when all is done has the weights that were tested, of scalars alone.
    (test,) = only(ScoredTest, journal)
    assert test.step == STEPS
    late = Following(trial, [])
    with suppress(ValueError):  # if it has no part in the first round
        late.answer(struct.pack("<I", 0))
    late._answer.__self__._client.catch_up(coefficients(scalars(journal)[0]))
    assert digest(late._space.params) == test.weights
    late.leave()


def test_clients_that_send_garbage_pose_as_others_or_have_other_rows_are_named_and_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the preset's own estimator: 0 sends huge losses, 1 NaN, 2 too few, 3 its losses as another's; 4 has other
    rows than were planned. Only 5 is honest."""
    clients, clip = 6, 50.0
    given = client_files(tmp_path, clients)
    file = tmp_path / "sst2" / "client_4.jsonl"
    note = subprocess.run(["sha256sum", file.name], cwd=file.parent, capture_output=True, check=True).stdout
    file.with_name(f"{file.name}.sha256").write_bytes(note)
    rows = file.read_bytes()
    file.unlink()
    all_of_them = [f"method.clients={clients}", f"method.present={clients}", f"estimator.clip={clip:g}"]
    trial = make("method=decomfl", *TRAIN, *all_of_them, *given)  # planned where client 4's rows are not
    file.write_bytes(rows.replace(b"good", b"grim"))
    honest = Following(trial, [])
    forged = [
        sent([0.0, 1e30, -1e30]),
        sent([1.0, float("nan"), 1.0]),
        sent([1.0, 2.0]),
        struct.pack("<I", 5) + sent([0.0, 1.0, 1.0]),
    ]
    peers = []
    for answer in forged:
        monkeypatch.setenv("ZO_TEST_READY", honest.ready.hex())
        monkeypatch.setenv("ZO_TEST_ANSWER", answer.hex())
        peers.append(ProcessPeer("hostile:run_trial", trial, [], 1))
    peers += [ProcessPeer("zo_sweeps.run.run_trial:run_trial", trial, [], 1) for _ in range(2)]
    honest.leave()  # the leader needs the model
    try:
        found, journal = served(trial, peers)
    finally:
        for peer in peers:
            peer.close()
    assert found.state is TrialState.SUCCEEDED, found.error
    there, planned = (hashlib.sha256(one).hexdigest()[:32] for one in (file.read_bytes(), rows))
    other_rows = f"it takes no part: rows with SHA-256 {there}, planned with {planned}, in {file}; restore the file"
    *named, last = (event.reason.partition(", or")[0] for event in only(PeerLost, journal))
    assert last.startswith("client 0: the SHA-256 of its weights is 00000000caf2"), "it sent losses for that, too"
    assert found.metrics["clients_equal"] == 1
    assert named == [
        "client 1: a loss is not finite at step 1",
        "client 2: 2 losses, not 3 for each of 1 local steps",
        "client 3: 4 losses, not 3 for each of 1 local steps",
        f"client 4: {other_rows}",
    ]
    (warned,) = (event.text for event in only(Warned, journal) if "client" in event.metric)
    assert "client 0 sent losses at step 1 whose coefficient is beyond estimator.clip=50" in warned
    assert found.metrics["clients_left_out"] == 4 * STEPS

    # The log is the mean of client 0's bound and of what client 5 computes of its rows: nobody spoke for it.
    log = scalars(journal)[0]
    honest, question = Following(trial, []), struct.pack("<I", 5)
    for line in log:
        base, *moved = received(honest.answer(question))
        own = [min(max((loss - base) / EPS, -clip), clip) for loss in moved]
        assert tuple(line) == tuple((bound + g) / 2 for bound, g in zip((clip, -clip), own, strict=True))
        assert any(abs(g) < clip for g in own)
        question = coefficients([line])
    honest.leave()


def led(trial: Trial, journal: Sequence[Event] = ()) -> tuple[Outcome, list[Event]]:
    """`trial` with a process per client, from where `journal` ends."""
    peers = [ProcessPeer("zo_sweeps.run.run_trial:run_trial", trial, [], 1) for _ in range(CLIENTS)]
    try:
        return served(trial, peers, journal)
    finally:
        for peer in peers:
            peer.close()


def of_epsilon(journal: Sequence[Event]) -> list[str]:
    return [event.text for event in only(Warned, journal) if "epsilon = " in event.text]


def most_rounds() -> int:
    kind = Federated(clients=CLIENTS, present=2)
    return max(sum(client in kind.members(3, step) for step in range(1, STEPS + 1)) for client in range(CLIENTS))


@pytest.mark.slow
@pytest.mark.long
def test_clients_in_processes_draw_noise_of_their_own_and_epsilon_counts_rows_that_nobody_else_knows(
    tmp_path: Path,
) -> None:
    trial = make(*SHARED, *client_files(tmp_path, CLIENTS), *PRIVATE)
    found, journal = led(trial)
    assert found.state is TrialState.SUCCEEDED, found.error
    asked = iter([False, False, True])
    simulated, theirs = run(trial)
    _, half = run(trial, stop=lambda: next(asked))
    assert found.metrics.get("noise_seeded") is None
    assert simulated.metrics["noise_seeded"] == 1
    assert scalars(journal)[0][0] != scalars(theirs)[0][0]
    assert found.metrics["epsilon"] == epsilon((Q * most_rounds()) ** 0.5 / 2, 1e-5) > simulated.metrics["epsilon"]
    assert found.metrics["client_bytes_up"] == 4 * Q * 2 * STEPS, "a coefficient per direction, of 2 clients"
    assert not [event for event in only(Warned, journal) if "client" in event.metric], "noise is no garbage"
    ((line,),) = [of_epsilon(journal)]
    assert line.endswith("at delta = 1e-05")

    # The journal lost its end, and the clients' processes with it: they are asked again, and tell nothing new.
    coefs, losses = scalars(journal)
    ends_at = len(losses) // 2
    kept = Steps(
        first=1, losses=tuple(losses[:ends_at]), coefs=tuple(map(tuple, coefs[:ends_at])), seconds=0.0, tokens=0
    )
    again, both = led(trial, [only(Start, journal)[0], kept])
    assert scalars(both)[0] == coefs
    assert again.metrics["epsilon"] == found.metrics["epsilon"]
    assert of_epsilon(both) == [line]

    # Steps of an attempt whose clients were simulated stay in the log, and are not hidden by what others draw later.
    mixed, all_of_it = served(trial, [Lost()] * CLIENTS, half)
    assert "no client of the round of step 4 has answered" in mixed.error
    assert mixed.metrics["noise_seeded"] == 1
    assert "is seeded, and hides nothing" in of_epsilon(all_of_it)[-1]


@pytest.mark.long
@pytest.mark.slow
def test_a_private_client_that_is_killed_and_returns_answers_a_round_with_the_same_bytes(tmp_path: Path) -> None:
    words = [*SHARED, "method.present=3", *client_files(tmp_path, CLIENTS), *PRIVATE]
    trial, kept = make(*words), tmp_path / "sst2" / "client_1.jsonl.answers"
    question = struct.pack("<I", 1)

    def in_a_process() -> bytes | None:
        peer = ProcessPeer("zo_sweeps.run.run_trial:run_trial", trial, [], 1)
        try:
            assert peer.answer(PATIENCE), "it is ready"
            peer.ask(question)
            return peer.answer(PATIENCE)
        finally:
            assert peer._process.pid
            os.kill(peer._process.pid, signal.SIGKILL)
            peer.close()

    def here(trial: Trial, *log: Sequence[float]) -> bytes:
        following = Following(trial, [])
        try:
            return following.answer(question + coefficients(log))
        finally:
            following.leave()

    first = in_a_process()
    assert first is not None
    assert len(received(first)) == Q
    assert in_a_process() == first
    second = here(trial, [0.5, -0.5])
    assert here(trial, [0.25, 1.0]) == second != first, "also where other steps lead to the round"
    assert here(make(*words, "update.lr=2e-3")) != first, "another trial has noise of its own"
    kept.unlink()
    assert here(trial) != first, "nothing but the file tells the noise"
    kept.unlink()
    kept.mkdir()
    with pytest.raises(ValueError, match=r"it takes no part: with method\.noise a client keeps what it answers"):
        received(here(trial))


@pytest.mark.long
def test_nobody_answers_for_a_private_client_that_is_lost_and_epsilon_says_towards_whom_it_is() -> None:
    trial = make(*SHARED, *PRIVATE)
    found, journal = served_with_one_killed(trial)
    assert found.state is TrialState.SUCCEEDED, found.error
    rounds = sum(1 in Federated(clients=CLIENTS, present=2).members(3, step) for step in range(1, STEPS + 1))
    assert (found.metrics["peers_lost"], found.metrics["clients_left_out"]) == (1, rounds - 1)
    assert found.metrics.get("noise_seeded") is None
    (line,) = of_epsilon(journal)
    assert line.endswith("for readers of the log alone, as the processes of all clients have all rows")
