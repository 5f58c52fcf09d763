"""The head's side of a trial on a board with the light client, over a store that the test fills as a board would."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

pytest.importorskip("torch")
pytest.importorskip("zo_sweeps_edge", reason="bundles are of the extra [edge]")

from facts import FACTS
from zo_sweeps.core.errors import UserError
from zo_sweeps.core.light_client import log_of, text_of
from zo_sweeps.core.trial import Outcome, TrialState
from zo_sweeps.run.runner import StoppedError
from zo_sweeps_agent import boards, leases
from zo_sweeps_agent.boards import Board
from zo_sweeps_agent.leases import Store
from zo_sweeps_edge.bundle import Bundle, File

pytestmark = pytest.mark.unit
LINES = [{"type": "start"}, {"type": "step", "step": 3, "coefs": [0.5]}]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    one = Store(tmp_path / leases.FILE)
    one.add_code(b"x" * 10, time.time() + 60)
    one.enrol(b"x" * 10, "pi", "executorch", "key", "AB")
    one.join("pi", FACTS, {}, "")
    yield one
    one.close()


class Files:
    """A bundle of one file."""

    def __init__(self, folder: Path) -> None:
        (folder / "program.pte").write_bytes(b"program")
        self.folder, self.needed = folder, {"program.pte": File(7, "aa" * 32)}
        settings = type("Settings", (), {"trial_id": "t"})
        self.manifest = type("Manifest", (), {"settings": settings, "config": {"trial": {"label": "a trial"}}})


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    return cast(Bundle, Files(tmp_path))


def board(store: Store, stop: Any = lambda: False) -> Board:
    return Board(store, "d/1", "pi", "executorch", 1, stop)


def answer(store: Store, *lines: dict[str, Any], state: TrialState | None = None, why: str = "") -> threading.Thread:
    """Send lines, and perhaps an end, for the next lease, as the gateway does for the board."""

    def send() -> None:
        while not (opened := store.open_leases("pi")):
            time.sleep(0.01)
        events = [json.dumps({"type": "log", "time": 1.0, "line": line}) for line in lines]
        ended = None if state is None else json.dumps(Outcome("t", state, error=why).to_json())
        store.sent(opened[0].id, 1000)
        store.append(opened[0].id, "pi", 0, events, ended, 50)

    thread = threading.Thread(target=send)
    thread.start()
    return thread


def test_a_run_of_the_client_is_a_lease(store: Store, bundle: Bundle) -> None:
    one, known = board(store), log_of([[1.0, 2.0], [float("nan"), 3.0]], [0, 2])
    assert text_of(known).splitlines()[1:3] == [  # as the client reads them, and takes their mean
        '{"type":"step","step":1,"coefs":[1.0,2.0]}',
        '{"type":"step","step":2,"coefs":[0.0,6.0]}',
    ]
    sender = answer(store, *LINES, state=TrialState.SUCCEEDED)
    assert list(one.steps(bundle, known)) == LINES
    sender.join()
    ((lease, standing),) = store.of_driver("d/1").items()
    body = store.contents(lease)
    assert (standing.state, body.trial) == (leases.ENDED, {"trial_id": "t", "label": "a trial", "client": []})
    assert [event["line"] for event in body.journal] == known
    assert [(file.of, file.path, file.bytes) for file in body.files] == [("bundle", "program.pte", 7)]
    scores = {"type": "scores", "split": "test", "step": 2, "scores": [[0.5]]}
    sender = answer(store, {"type": "start"}, scores, state=TrialState.SUCCEEDED)
    assert one.test(bundle, known, 2) == scores
    sender.join()
    assert one.measured == {"agent_bytes_down": 2000.0, "agent_bytes_up": 100.0}
    newest = next(store.contents(name) for name in store.of_driver("d/1") if name != lease)
    assert newest.trial["client"] == ["--score", "test", "--at", "2"]


def test_a_client_that_fails_fails_the_trial(store: Store, bundle: Bundle) -> None:
    sender = answer(store, state=TrialState.FAILED, why="zo_client: no such operator")
    with pytest.raises(UserError, match="failed on pi: zo_client: no such operator"):
        list(board(store).steps(bundle, []))
    sender.join()


def test_ends_that_are_losses(store: Store, bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    """A killed client and a revoked key count; a board that left, or never came, does not."""

    def lost(one: Board) -> tuple[str, bool]:
        with pytest.raises(StoppedError):
            list(one.steps(bundle, []))
        return one.lost, one.blameless

    sender = answer(store, *LINES, state=TrialState.LOST, why="killed for memory")
    assert lost(board(store)) == ("killed for memory", False)
    sender.join()
    sender = answer(store)
    one = board(store, lambda: not sender.is_alive() and store.leave("pi") is not None)
    assert lost(one) == ("handed back: its node was asked to stop", True)
    monkeypatch.setattr(boards, "PATIENCE", 0.0)
    assert lost(board(store)) == ("pi is not online", True)
    store.join("pi", FACTS, {}, "")
    sender = answer(store)
    one = board(store, lambda: not sender.is_alive() and not store.revoke("pi"))
    assert lost(one) == ("the key of pi was revoked", False)


def test_a_stop_ends_the_lease(store: Store, bundle: Bundle) -> None:
    """So that the agent, which asks for its leases, kills the client."""
    lines: list[dict[str, Any]] = []
    one = board(store, lambda: len(lines) == 2)
    sender = answer(store, *LINES)

    def collect() -> None:
        for line in one.steps(bundle, []):
            lines.append(line)

    with pytest.raises(StoppedError):
        collect()
    sender.join()
    assert one.lost == ""
    assert [standing.state for standing in store.of_driver("d/1").values()] == [leases.OVER]
