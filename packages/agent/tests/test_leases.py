"""The store of agents: exactly once whatever is cut or repeated, who may take what, and when a lease is over."""

from __future__ import annotations

import random
import sqlite3
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from facts import FACTS
from zo_sweeps.core.errors import UserError
from zo_sweeps_agent import agent_records, leases
from zo_sweeps_agent.leases import (
    CodeError,
    GapError,
    KeyUsedError,
    LeaseOverError,
    RefusedError,
    Store,
    TooLargeError,
    UnknownLeaseError,
)

pytestmark = pytest.mark.unit
TRIAL = {"trial_id": "t", "label": "a trial"}
SECRET = b"0123456789"


@pytest.fixture
def store(tmp_path: Path):
    one = Store(tmp_path / leases.FILE)
    yield one
    one.close()


def join(store: Store, name: str = "a", *, slots: int = 1, secret: bytes = SECRET) -> None:
    store.add_code(secret, time.time() + 60)
    store.enrol(secret, name, "cpu", f"key of {secret!r}", "AB")
    store.join(name, replace(FACTS, slots=slots), {}, "")


def lease(store: Store, agent: str = "a", trial: dict = TRIAL) -> str:
    store.drive("d")
    return store.lease("d", agent, trial, [], 1)


def texts(count: int) -> list[str]:
    return [f'{{"type":"steps","first":{i + 1}}}' for i in range(count)]


def test_repeated_and_overlapping_messages_are_stored_once(store: Store) -> None:
    """Any sequence of messages that each begin at or before what is acknowledged gives the events, in order, once."""
    join(store)
    one, events, drawn = lease(store), texts(200), random.Random(1)
    held = 0
    while held < len(events):
        first = drawn.randint(max(0, held - 20), held)
        held = store.append(one, "a", first, events[first : first + drawn.randint(0, 30)])
    assert store.append(one, "a", 195, events[195:], '{"x":1}') == 200
    assert store.append(one, "a", 195, events[195:], '{"x":1}') == 200, "the last answer was lost"
    assert [event["first"] for event in store.events(one, 0)] == list(range(1, 201))
    assert store.outcome(one) == {"x": 1}
    with pytest.raises(LeaseOverError):
        store.append(one, "a", 200, texts(1))
    with pytest.raises(LeaseOverError):
        store.append(one, "a", 200, [], '{"x":2}')


def test_a_gap_and_a_different_repeat_are_refused(store: Store) -> None:
    join(store)
    one = lease(store)
    store.append(one, "a", 0, texts(3))
    with pytest.raises(GapError, match="event 3 is missing") as gap:
        store.append(one, "a", 4, texts(1))
    assert (gap.value.expected, gap.value.differs) == (3, False)
    with pytest.raises(GapError, match="differs") as other:
        store.append(one, "a", 1, ['{"type":"forged"}', "{}", "{}"])
    assert other.value.differs
    assert len(store.events(one, 0)) == 3, "nothing of a refused message is kept"


def test_another_agents_lease_does_not_exist(store: Store) -> None:
    join(store)
    join(store, "b", secret=b"b" * 10)
    one = lease(store)
    for call in (lambda: store.append(one, "b", 0, texts(1)), lambda: store.lease_of(one, "b")):
        with pytest.raises(UnknownLeaseError):
            call()


def test_a_slot_is_leased_once_to_however_many_drivers(store: Store, tmp_path: Path) -> None:
    join(store, slots=2)
    won: list[str] = []
    lost: list[str] = []

    def drive(name: str) -> None:
        mine = Store(tmp_path / leases.FILE)
        try:
            won.append(mine.lease(name, "a", TRIAL, [], 1))
        except RefusedError as error:
            lost.append(str(error))
        finally:
            mine.close()

    drivers = [threading.Thread(target=drive, args=(f"d{i}",)) for i in range(8)]
    for one in drivers:
        one.start()
    for one in drivers:
        one.join()
    assert len(won) == 2
    assert lost == ["a has no free slot"] * 6
    assert [len(agent.running) for agent in store.agents()] == [2]


def test_an_agent_that_is_away_or_left_gets_nothing(store: Store) -> None:
    join(store)
    store.hear({"a": time.time() - leases.OFFLINE_SECONDS}, {})
    with pytest.raises(RefusedError, match="not online"):
        lease(store)
    store.hear({"a": time.time()}, {})
    one = lease(store)
    store.leave("a")
    with pytest.raises(RefusedError, match="not online"):
        lease(store)
    standing = store.of_driver("d")[one]
    assert (standing.state, standing.blameless) == (leases.OVER, True)
    with pytest.raises(RefusedError, match="not online"):
        store.lease("d", "nobody", TRIAL, [], 1)


def test_a_code_is_used_once_but_its_answer_may_be_lost(store: Store) -> None:
    store.add_code(SECRET, time.time() + 60)
    assert store.enrol(SECRET, "a", "cpu", "key", "AB") == "AB"
    assert store.enrol(SECRET, "a", "cpu", "key", "CD") == "AB", "the same request again"
    for name, key in (("a", "another key"), ("b", "key")):
        with pytest.raises(CodeError):
            store.enrol(SECRET, name, "cpu", key, "CD")
    store.add_code(b"x" * 10, time.time() + 60)
    with pytest.raises(RefusedError, match="already"):
        store.enrol(b"x" * 10, "a", "cpu", "another key", "CD")
    assert store.enrol(b"x" * 10, "b", "cpu", "another key", "CD") == "CD", "a name in use costs no code"
    store.revoke("a")
    store.add_code(b"z" * 10, time.time() + 60)
    for name in ("a", "z"):
        with pytest.raises(KeyUsedError, match="the agent 'a' has, or had, the key"):
            store.enrol(b"z" * 10, name, "cpu", "key", "EF")
    store.add_code(b"y" * 10, time.time() - 1)
    for secret in (b"y" * 10, b"never made"):
        with pytest.raises(CodeError):
            store.enrol(secret, "c", "cpu", "key", "EF")


def test_revocation_ends_leases_and_frees_the_name_for_a_new_key(store: Store) -> None:
    join(store)
    one = lease(store)
    assert store.revoke("a")
    assert not store.revoke("nobody")
    with pytest.raises(LeaseOverError, match="the key of a was revoked"):
        store.append(one, "a", 0, texts(1))
    store.join("a", FACTS, {}, "")
    assert store.revoked() == ["a"], "a revoked key cannot join"
    join(store, secret=b"n" * 10)
    assert store.revoked() == []
    store.revoke("a")
    store.add_code(b"m" * 10, time.time() + 60)
    for name in ("a", "b"):  # the name has had another key since
        with pytest.raises(KeyUsedError, match="the agent 'a' has, or had, the key"):
            store.enrol(b"m" * 10, name, "cpu", f"key of {SECRET!r}", "EF")


def test_a_key_that_was_revoked_stays_so_where_an_old_store_is_put_back(store: Store, tmp_path: Path) -> None:
    join(store)
    with sqlite3.connect(tmp_path / "old.db") as old:
        store._db.backup(old)
    for again in (False, True):
        store.revoke("a")
        if again:
            store.add_code(b"n" * 10, time.time() + 60)
            store.enrol(b"n" * 10, "a", "cpu", "another key", "CD")
        old.backup(store._db)
        store.restore()
        assert store.serial_of("a") == ("CD" if again else "")
    lines = (tmp_path / agent_records.FILE).read_text()
    store.restore()
    assert (tmp_path / agent_records.FILE).read_text() == lines, "nothing is lacking"


def test_silence_ends_leases(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each rule alone: untaken, taken, driver gone; and none for the time in which nobody listened."""
    join(store, slots=3)
    untaken, taken = lease(store), lease(store)
    store.append(taken, "a", 0, texts(1))
    start = time.time()

    def after(seconds: float, since: float = 0.0, *, driver: bool = True) -> dict[str, str]:
        monkeypatch.setattr(time, "time", lambda: start + seconds)
        if driver:
            store.drive("d")
        store.reap(600, start + since)
        return {name: one.why for name, one in store.of_driver("d").items()}

    assert after(50) == {untaken: "", taken: ""}
    assert after(3000, since=2990) == {untaken: "", taken: ""}, "the gateway has just started"
    assert after(61)[untaken] == "a went offline before it took the trial"
    assert after(599)[taken] == ""
    assert after(601)[taken] == "a was not heard of for 10 min"
    store.hear({"a": start + 601}, {})
    third = lease(store)
    assert after(620)[third] == ""
    assert after(660, driver=False)[third] == "its driver is gone"
    assert after(601 + leases.KEEP_SECONDS + 100) == {}, "forgotten"
    assert store.events(taken, 0) == []


def test_the_events_of_one_lease_are_bounded(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    join(store)
    one = lease(store)
    monkeypatch.setattr(leases, "LEASE_BYTES", sum(map(len, texts(3))) + 3)
    store.append(one, "a", 0, texts(3))
    with pytest.raises(TooLargeError):
        store.append(one, "a", 3, ['"\N{GRINNING FACE}"'])


def test_a_failed_transaction_leaves_nothing_and_an_inner_one_is_undone_alone(store: Store) -> None:
    join(store)
    one = lease(store)
    with store.transaction():
        store.append(one, "a", 0, texts(1))
        with pytest.raises(GapError):
            store.append(one, "a", 5, texts(1))
    assert len(store.events(one, 0)) == 1

    def fail() -> None:
        with store.transaction():
            store.append(one, "a", 1, texts(1))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert len(store.events(one, 0)) == 1


def test_only_its_owner_can_read_it_and_no_secret_is_in_it(store: Store, tmp_path: Path) -> None:
    store.add_code(SECRET, time.time() + 60)
    for path in tmp_path.iterdir():
        assert path.stat().st_mode & 0o077 == 0, path
        assert SECRET not in path.read_bytes()
        assert SECRET.hex().encode() not in path.read_bytes()


def test_a_store_that_cannot_be_opened_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot open the store of agents"):
        Store(tmp_path / "absent" / leases.FILE)
