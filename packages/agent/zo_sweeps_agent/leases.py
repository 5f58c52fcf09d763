"""The store of agents: their keys, one-time codes, leases and events, in one SQLite file that only its owner can read.

An agent is a board that only dials out. A lease is one attempt at a trial on one agent: made by a driver's proxy, taken
by the board, and filled with events, numbered from 0, which the proxy reads. The gateway, the proxies and the commands
are processes of one machine that share the file; every method is one transaction, on the disk when it returns.

A lease is open until the board has sent its outcome (`ENDED`), or until it is over: its agent was silent for too long,
its key was revoked, its driver is gone or gave it up. Nothing is appended to a lease that is not open.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import sqlite3
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zo_sweeps.core.document import MalformedError, S
from zo_sweeps.core.errors import UserError
from zo_sweeps.core.events import Event, write_event
from zo_sweeps.devices.probe import Reading
from zo_sweeps_agent import agent_records
from zo_sweeps_agent.agent_facts import (
    ENROLLED,
    JOINED,
    LEFT,
    OFFLINE_SECONDS,
    REVOKED,
    ROOM,
    VERSION,
    EnrolledAgent,
    Facts,
    is_online,
)
from zo_sweeps_agent.lease_contents import HeldContents, StoredFile

FILE = "gateway.db"
DRIVER_SECONDS = 30.0  # without a sign of life of its driver, before a lease is over
LEASE_BYTES = 256 * 2**20  # of one lease's events
KEEP_SECONDS = 86400.0  # for which the events of a lease that is not open are kept, to answer repeats
OPEN, ENDED, OVER = "open", "ended", "over"  # states of a lease
_BUSY_SECONDS = 30.0  # to wait for another process's transaction

_SCHEMA = """
CREATE TABLE IF NOT EXISTS codes (hash TEXT PRIMARY KEY, expires REAL, used_by TEXT) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS agents (
    name TEXT PRIMARY KEY, key TEXT, serial TEXT, device TEXT, state TEXT, slots INTEGER DEFAULT 0, heard REAL,
    facts TEXT DEFAULT '{}', live TEXT DEFAULT '{}', refused TEXT DEFAULT '{}', answered TEXT DEFAULT ''
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS drivers (id TEXT PRIMARY KEY, seen REAL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS leases (
    id TEXT PRIMARY KEY, agent TEXT, driver TEXT, trial_id TEXT, attempt INTEGER, label TEXT, made REAL, taken REAL,
    closed REAL, state TEXT, why TEXT DEFAULT '', blameless INTEGER DEFAULT 0, stop INTEGER DEFAULT 0,
    received INTEGER DEFAULT 0, bytes INTEGER DEFAULT 0, down INTEGER DEFAULT 0, up INTEGER DEFAULT 0, outcome TEXT,
    profile TEXT
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS leases_by_state ON leases (state, agent);
CREATE TABLE IF NOT EXISTS bodies (lease TEXT PRIMARY KEY, body TEXT);
CREATE TABLE IF NOT EXISTS rounds (
    lease TEXT, number INTEGER, question BLOB, answer BLOB, PRIMARY KEY (lease, number)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS events (lease TEXT, number INTEGER, event TEXT, PRIMARY KEY (lease, number)) WITHOUT ROWID;
"""


class RefusedError(Exception):
    """A request that the store refuses; the message is for the person or program that asked."""


class CodeError(RefusedError):
    """The one-time code is not valid."""


class KeyUsedError(RefusedError):
    """The key is, or was, another agent's."""


class UnknownLeaseError(RefusedError):
    """There is no such lease of this agent."""


class LeaseOverError(RefusedError):
    """The lease is not open: nothing more is accepted."""


class GapError(RefusedError):
    """Events do not continue at number `expected`, or repeat an earlier number with other contents (`differs`)."""

    def __init__(self, text: str, expected: int, differs: bool = False) -> None:
        super().__init__(text)
        self.expected, self.differs = expected, differs


class TooLargeError(RefusedError):
    """The lease's events exceed LEASE_BYTES."""


@dataclass(frozen=True)
class Lease:
    """The standing of a lease, without its contents.

    Args:
        received: number of its events here.
        stop: whether its driver asked it to stop.
        why: why it is over.
        blameless: its end counts towards no bound on losses.
        bytes: of its events, in UTF-8.
        down, up: bytes of bodies sent to the board, before compression, and received from it.
        profile: the agent's device profile when the lease was made.
        online: whether the agent was heard of lately.
    """

    id: str
    agent: str
    trial_id: str
    attempt: int
    state: str
    received: int
    stop: bool
    why: str
    blameless: bool
    bytes: int
    down: int
    up: int
    profile: str
    online: bool


_LEASE = (
    "leases.id, agent, trial_id, attempt, leases.state, received, stop, why, blameless, bytes, down, up, profile, "
    "agents.state, heard FROM leases JOIN agents ON agents.name = agent"
)
_AGENT = "name, key, serial, device, state, slots, heard, facts, live, refused, answered"


class Store:
    """The store in the file `path`, made if missing, with mode 0600. Thread-safe; for any number of processes.

    Args:
        busy_seconds: to wait for another process's transaction.

    Raises UserError if the file cannot be opened.
    """

    def __init__(self, path: Path, *, busy_seconds: float = _BUSY_SECONDS) -> None:
        self._lock, self._path = threading.RLock(), path
        try:
            # Only a new file is opened here: closing any handle of it would drop this process's locks on it.
            with contextlib.suppress(FileExistsError):
                os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))  # SQLite's other files get its mode
            self._db = sqlite3.connect(path, timeout=busy_seconds, isolation_level=None, check_same_thread=False)
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = FULL")
            self._db.executescript(_SCHEMA)
        except (OSError, sqlite3.Error) as error:
            raise UserError(f"cannot open the store of agents: {error}", where=str(path)) from None

    def close(self) -> None:
        self._db.close()

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Make everything in the `with` block one transaction; one within another is undone alone if it fails."""
        with self._lock:
            inner = self._db.in_transaction
            self._db.execute("SAVEPOINT inner" if inner else "BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                self._db.execute("ROLLBACK TO inner" if inner else "ROLLBACK")
                if inner:
                    self._db.execute("RELEASE inner")
                raise
            self._db.execute("RELEASE inner" if inner else "COMMIT")

    def version(self) -> int:
        """Return a number that changes when another connection has changed the store. Cost: microseconds."""
        return int(self._one("PRAGMA data_version")[0])

    # --- codes and agents

    def add_code(self, secret: bytes, expires: float) -> None:
        """Add a one-time code, of which only a hash is kept: 80 random bits need no slow one."""
        with self.transaction():
            self._db.execute("DELETE FROM codes WHERE expires < ?", (time.time() - KEEP_SECONDS,))
            self._db.execute("INSERT INTO codes VALUES (?, ?, '')", (_hash(secret), expires))

    def enrol(self, secret: bytes, name: str, device: str, key: str, serial: str) -> str:
        """Use up a code for a new agent; return the serial number of its certificate.

        A repeat with the same code, name and key returns the same serial number: the first answer was lost.

        Args:
            serial: the number that a new certificate shall have.

        Raises CodeError for a code that is unknown, used or expired, RefusedError for a name in use, and KeyUsedError
        for a key that an agent has or had: its owner may not be the only one to know it.
        """
        with self.transaction():
            code = self._one("SELECT expires, used_by FROM codes WHERE hash = ?", (_hash(secret),))
            known = self.agent(name)
            if known and known.state == REVOKED:
                known = None
            if code and code[1] == name and known and known.key == key:
                return known.serial
            if code is None or code[1] or code[0] < time.time():
                raise CodeError("this one-time code is not valid: mistyped, used or expired")
            if known:
                raise RefusedError(f"there is an agent {name!r} already")
            owners = [row[0] for row in self._all("SELECT name FROM agents WHERE key = ?", (key,))]
            for other, records in agent_records.noted(self._path).items():  # of a name that has got another key since
                owners += [other for record in records if record[1] == key and record[-1] == REVOKED]
            if owners:
                raise KeyUsedError(f"the agent {owners[0]!r} has, or had, the key of this machine")
            self._db.execute("UPDATE codes SET used_by = ? WHERE hash = ?", (name, _hash(secret)))
            self._db.execute(
                "INSERT OR REPLACE INTO agents (name, key, serial, device, state, heard) VALUES (?, ?, ?, ?, ?, ?)",
                (name, key, serial, device, ENROLLED, time.time()),
            )
            if agent := self.agent(name):
                agent_records.note(self._path, _record(agent))
        return serial

    def agent(self, name: str) -> EnrolledAgent | None:
        """Return the agent of this name; None if there is none. The trials that it runs are left out."""
        row = self._one(f"SELECT {_AGENT} FROM agents WHERE name = ?", (name,))
        return None if row is None else _agent(row, ())

    def serial_of(self, name: str) -> str | None:
        """Return the serial number of an agent's certificate, "" if its key was revoked; None for an unknown agent."""
        row = self._one("SELECT serial, state FROM agents WHERE name = ?", (name,))
        return None if row is None else "" if row[1] == REVOKED else str(row[0])

    def agents(self) -> list[EnrolledAgent]:
        """Return all agents, by name."""
        runs: dict[str, list[tuple[str, str]]] = {}
        for agent, *run in self._all("SELECT agent, driver, label FROM leases WHERE state = ?", (OPEN,)):
            runs.setdefault(agent, []).append((run[0], run[1]))
        rows = self._all(f"SELECT {_AGENT} FROM agents ORDER BY name")
        return [_agent(row, runs.get(row[0], ())) for row in rows]

    def join(self, name: str, facts: Facts, refused: Mapping[str, str], answered: str) -> None:
        """Record that an agent joined, or joined again."""
        new = (JOINED, json.dumps(facts.to_json()), facts.slots, json.dumps(refused), answered, time.time())
        columns = "state = ?, facts = ?, slots = ?, refused = ?, answered = ?, heard = ?"
        with self.transaction():
            self._db.execute(f"UPDATE agents SET {columns} WHERE name = ? AND state != ?", (*new, name, REVOKED))

    def turn_away(self, name: str, why: str) -> None:
        """Record why an agent may not join, and hand its open leases back."""
        new = ENROLLED, f"$.{VERSION}", why, time.time()
        columns = "state = ?, refused = json_set(refused, ?, ?), heard = ?"
        with self.transaction():
            self._db.execute(f"UPDATE agents SET {columns} WHERE name = ? AND state != ?", (*new, name, REVOKED))
            self._end("handed back: its node was asked to stop", "agent = ?", name, blameless=True)

    def hear(self, times: Mapping[str, float], live: Mapping[str, Reading]) -> None:
        """Record when agents were heard of, and their last readings."""
        with self.transaction():
            self._db.executemany("UPDATE agents SET heard = ? WHERE name = ?", [(t, n) for n, t in times.items()])
            readings = [(json.dumps(reading.to_json()), name) for name, reading in live.items()]
            self._db.executemany("UPDATE agents SET live = ? WHERE name = ?", readings)

    def leave(self, name: str, why: str = "") -> None:
        """Record that an agent left: it gets no trial until it joins again, and its open leases are over.

        Args:
            why: it lends nothing for a while; "": it was asked to stop.
        """
        with self.transaction():
            self._db.execute("UPDATE agents SET state = ? WHERE name = ? AND state = ?", (LEFT, name, JOINED))
            self._end(f"handed back: {why or 'its node was asked to stop'}", "agent = ?", name, blameless=True)
            if why:
                self.remark(name, ROOM, why)

    def remark(self, name: str, of: str, why: str) -> None:
        """Record one of REMARKS on an agent, until it joins again."""
        with self.transaction():
            columns = "refused = json_set(refused, ?, ?)"
            self._db.execute(f"UPDATE agents SET {columns} WHERE name = ?", (f"$.{of}", why, name))

    def revoke(self, name: str) -> bool:
        """Revoke an agent's key, at once and for good; its leases are over. Return False if there is no such agent."""
        with self.transaction():
            agents = self._db.execute("UPDATE agents SET state = ? WHERE name = ?", (REVOKED, name))
            if agent := self.agent(name):
                agent_records.note(self._path, _record(agent))
            self._end(f"the key of {name} was revoked", "agent = ?", name)
        return agents.rowcount > 0

    def restore(self) -> None:
        """Take the last records of agents that the store lacks, or knows by an earlier one, as an old copy of it does.

        They join again. What the records lack is noted.
        """
        columns = ", ".join(agent_records.FIELDS)
        with self.transaction():
            noted, known = agent_records.noted(self._path), {agent.name: _record(agent) for agent in self.agents()}
            later = [
                (*records[-1], 0.0)
                for name, records in noted.items()
                if known.get(name) != records[-1] and known.get(name) in (None, *records)
            ]
            self._db.executemany(f"INSERT OR REPLACE INTO agents ({columns}, heard) VALUES (?, ?, ?, ?, ?, ?)", later)
            for name, record in known.items():
                if record not in noted.get(name, ()):
                    agent_records.note(self._path, record)

    def revoked(self) -> list[str]:
        """Return the names of the agents whose keys were revoked."""
        return [row[0] for row in self._all("SELECT name FROM agents WHERE state = ?", (REVOKED,))]

    # --- leases: the driver's side

    def drive(self, driver: str) -> None:
        """Record that a driver lives; forget drivers that are long gone."""
        with self.transaction():
            self._db.execute("INSERT OR REPLACE INTO drivers VALUES (?, ?)", (driver, time.time()))
            self._db.execute("DELETE FROM drivers WHERE seen < ?", (time.time() - KEEP_SECONDS,))

    def lease(
        self,
        driver: str,
        agent: str,
        trial: Mapping[str, Any],
        journal: Sequence[Event],
        attempt: int,
        files: Sequence[StoredFile] = (),
        profile: str = "",
        threads: int = 1,
        client: str = "",
    ) -> str:
        """Make a lease of one of the agent's slots; return its id.

        Args:
            trial: `Trial.to_json()`.
            journal: the events of earlier attempts.
            files: as `lease_files` lists them.
            profile: the device profile that the driver chose the agent for.
            threads: of the trial's process.
            client: the id of a lease whose agent is a client of the trial, made once; "": the agent runs it.

        Raises RefusedError when the agent is not online, and when it has no free slot.
        """
        identity = client or secrets.token_hex(8)
        held = HeldContents(trial, tuple(map(write_event, journal)), tuple(files), threads, bool(client))
        body = json.dumps(held.to_json())
        label = trial.get("label") or trial["trial_id"]
        row = (identity, agent, driver, trial["trial_id"], attempt, label, time.time(), OPEN, profile)
        columns = "id, agent, driver, trial_id, attempt, label, made, state, profile"
        with self.transaction():
            if client and self._one("SELECT id FROM leases WHERE id = ?", (client,)):
                return client
            known = self.agent(agent)
            if known is None or not known.is_online(time.time()):
                raise RefusedError(f"{agent} is not online")
            if self._one("SELECT count(*) FROM leases WHERE agent = ? AND state = ?", (agent, OPEN))[0] >= known.slots:
                raise RefusedError(f"{agent} has no free slot")
            self._db.execute(f"INSERT INTO leases ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
            self._db.execute("INSERT INTO bodies VALUES (?, ?)", (identity, body))
        return identity

    def of_driver(self, driver: str) -> dict[str, Lease]:
        """Return all leases of a driver, by id."""
        return {row[0]: _lease(row) for row in self._all(f"SELECT {_LEASE} WHERE driver = ?", (driver,))}

    def standing(self, leases: Sequence[str]) -> dict[str, Lease]:
        """Return leases by id."""
        query = f"SELECT {_LEASE} WHERE leases.id IN (SELECT value FROM json_each(?))"
        return {row[0]: _lease(row) for row in self._all(query, (json.dumps(leases),))}

    def events(self, lease: str, first: int) -> list[dict[str, Any]]:
        """Return a lease's events from number `first` on."""
        rows = self._all("SELECT event FROM events WHERE lease = ? AND number >= ? ORDER BY number", (lease, first))
        return [json.loads(row[0]) for row in rows]

    def last_event(self, lease: str) -> str:
        """Return the JSON of a lease's last event; {} without one."""
        row = self._one("SELECT event FROM events WHERE lease = ? ORDER BY number DESC LIMIT 1", (lease,))
        return "{}" if row is None else str(row[0])

    def outcome(self, lease: str) -> dict[str, Any] | None:
        """Return the outcome of a lease; None if it has none."""
        text = self._outcome(lease)
        return None if text is None else dict(json.loads(text))

    def ask_to_stop(self, lease: str) -> None:
        """Ask the agent to end a lease's trial as CANCELLED at its next step."""
        with self.transaction():
            self._db.execute("UPDATE leases SET stop = 1 WHERE id = ? AND state = ?", (lease, OPEN))

    def give_up(self, lease: str, why: str) -> None:
        """End a lease that its driver no longer wants."""
        with self.transaction():
            self._end(why, "id = ?", lease)

    def ask(self, lease: str, number: int, question: bytes) -> None:
        """Ask the agent of a client's lease a question, the next one after `number` - 1. A repeat changes nothing."""
        with self.transaction():
            self._db.execute("INSERT OR IGNORE INTO rounds VALUES (?, ?, ?, NULL)", (lease, number, question))

    def answer_to(self, lease: str, number: int) -> bytes | None:
        """Return a client's answer to a question, to 0 that it is ready; None while there is none."""
        row = self._one("SELECT answer FROM rounds WHERE lease = ? AND number = ?", (lease, number))
        return None if row is None else row[0]

    # --- leases: the agent's side

    def open_leases(self, agent: str | None = None) -> list[Lease]:
        """Return the leases that are open, of one agent or of all."""
        where, values = ("", ()) if agent is None else (" AND agent = ?", (agent,))
        return [_lease(row) for row in self._all(f"SELECT {_LEASE} WHERE leases.state = ?{where}", (OPEN, *values))]

    def lease_of(self, lease: str, agent: str) -> Lease:
        """Return an agent's lease. Raises UnknownLeaseError, for another agent's as for one that does not exist."""
        row = self._one(f"SELECT {_LEASE} WHERE leases.id = ? AND agent = ?", (lease, agent))
        if row is None:
            raise UnknownLeaseError(f"{agent} has no lease {lease!r}")
        return _lease(row)

    def contents(self, lease: str) -> HeldContents:
        """Return what a lease holds."""
        return HeldContents.read(json.loads(self._one("SELECT body FROM bodies WHERE lease = ?", (lease,))[0]))

    def sent(self, lease: str, size: int) -> None:
        """Count bytes sent for a lease, which the agent has thereby taken."""
        with self.transaction():
            columns = "down = down + ?, taken = coalesce(taken, ?)"
            self._db.execute(f"UPDATE leases SET {columns} WHERE id = ?", (size, time.time(), lease))

    def append(
        self, lease: str, agent: str, first: int, events: Sequence[str], outcome: str | None = None, size: int = 0
    ) -> int:
        """Append events, numbered from `first`; return how many the lease has. A repeat changes nothing.

        Args:
            events, outcome: JSON texts, as `canonical` writes them.
            size: bytes of the message, for the count.

        Raises UnknownLeaseError, LeaseOverError, GapError and TooLargeError; then nothing was appended.
        """
        with self.transaction():
            known = self.lease_of(lease, agent)
            if first > known.received:
                raise GapError(f"event {known.received} is missing before {first}", known.received)
            query = "SELECT event FROM events WHERE lease = ? AND number >= ? ORDER BY number LIMIT ?"
            repeated = first < known.received
            held = [row[0] for row in self._all(query, (lease, first, len(events)))] if repeated else []
            if held != list(events[: len(held)]):
                text = f"an event from number {first} on that differs from the one that was sent before"
                raise GapError(text, known.received, differs=True)
            new = events[len(held) :]
            if known.state == ENDED and not new and outcome in (None, self._outcome(lease)):
                return known.received
            if known.state != OPEN:
                raise LeaseOverError(known.why or "the lease has ended")
            grown = sum(len(event.encode()) for event in new)
            if known.bytes + grown > LEASE_BYTES:
                raise TooLargeError(f"more than {LEASE_BYTES >> 20} MiB of events for one trial")
            rows = [(lease, number, event) for number, event in enumerate(new, known.received)]
            self._db.executemany("INSERT INTO events VALUES (?, ?, ?)", rows)
            now, received = time.time(), known.received + len(new)
            columns = "received = ?, bytes = bytes + ?, up = up + ?, taken = coalesce(taken, ?)"
            self._db.execute(f"UPDATE leases SET {columns} WHERE id = ?", (received, grown, size, now, lease))
            if outcome is not None:
                closed = (ENDED, outcome, now, lease)
                self._db.execute("UPDATE leases SET state = ?, outcome = ?, closed = ? WHERE id = ?", closed)
            return received

    def answered(self, lease: str, agent: str, number: int, answer: bytes) -> None:
        """Keep an agent's answer to a question of its lease; the first one stays. To question 0, it is ready.

        Raises UnknownLeaseError, LeaseOverError, and GapError for a question that was not asked.
        """
        with self.transaction():
            known = self.lease_of(lease, agent)
            if known.state != OPEN:
                raise LeaseOverError(known.why or "the lease has ended")
            if number == 0:
                self._db.execute("INSERT OR IGNORE INTO rounds VALUES (?, 0, x'', NULL)", (lease,))
            kept = self._db.execute(
                "UPDATE rounds SET answer = coalesce(answer, ?) WHERE lease = ? AND number = ?", (answer, lease, number)
            )
            if not kept.rowcount:
                raise GapError(f"question {number} was not asked", number)
            self._db.execute("UPDATE leases SET up = up + ? WHERE id = ?", (len(answer), lease))

    def questions(self, lease: str, after: int) -> tuple[int, bytes]:
        """Return the number of a lease's last question, and all after number `after` in one: it goes on where they do.

        Of a client that begins again, that is the whole log.
        """
        query = "SELECT number, question FROM rounds WHERE lease = ? AND number > ? ORDER BY number"
        rows = self._all(query, (lease, after))
        return (rows[-1][0] if rows else after), b"".join(row[1] for row in rows)

    def reap(self, lease_seconds: float, since: float) -> None:
        """End the leases whose agent or driver was silent for too long; forget leases that were closed long ago.

        Args:
            lease_seconds: silence of an agent that has taken a lease, before the lease is over.
            since: time before which silence does not count: nobody listened.
        """
        now = time.time()
        with self.transaction():
            query = (
                "SELECT leases.id, agent, made, taken, agents.heard, drivers.seen FROM leases "
                "JOIN agents ON agents.name = leases.agent LEFT JOIN drivers ON drivers.id = leases.driver "
                "WHERE leases.state = ?"
            )
            for lease, agent, made, taken, heard, seen in self._all(query, (OPEN,)):
                silent = now - max(heard, since, made)
                if now - max(seen or made, since) > DRIVER_SECONDS:
                    self._end("its driver is gone", "id = ?", lease)
                elif taken is None and silent > OFFLINE_SECONDS:
                    self._end(f"{agent} went offline before it took the trial", "id = ?", lease, blameless=True)
                elif silent > lease_seconds:
                    self._end(f"{agent} was not heard of for {lease_seconds / 60:g} min", "id = ?", lease)
            old = self._all("SELECT id FROM leases WHERE state != ? AND closed < ?", (OPEN, now - KEEP_SECONDS))
            for table, column in (("events", "lease"), ("rounds", "lease"), ("bodies", "lease"), ("leases", "id")):
                self._db.executemany(f"DELETE FROM {table} WHERE {column} = ?", old)

    def _end(self, why: str, where: str, value: str, *, blameless: bool = False) -> None:
        new = (OVER, why, blameless, time.time())
        columns = "state = ?, why = ?, blameless = ?, closed = ?"
        self._db.execute(f"UPDATE leases SET {columns} WHERE state = ? AND {where}", (*new, OPEN, value))

    def _outcome(self, lease: str) -> str | None:
        text: str | None = self._one("SELECT outcome FROM leases WHERE id = ?", (lease,))[0]
        return text

    def _one(self, query: str, values: Iterable[Any] = ()) -> Any:
        with self._lock:
            return self._db.execute(query, tuple(values)).fetchone()

    def _all(self, query: str, values: Iterable[Any] = ()) -> list[Any]:
        with self._lock:
            return self._db.execute(query, tuple(values)).fetchall()


def canonical(value: Any) -> str:
    """Return the JSON text of a value: equal texts mean equal values, with keys in the same order."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _hash(secret: bytes) -> str:
    return hashlib.sha256(secret).hexdigest()


def _agent(row: Any, running: Iterable[tuple[str, str]]) -> EnrolledAgent:
    *plain, facts, live, refused, answered = row
    known = _stored(Facts, facts), _stored(Reading, live), json.loads(refused), answered
    return EnrolledAgent(*(*plain, *known, tuple(running)))


def _record(agent: EnrolledAgent) -> tuple[str, ...]:
    """Return what the records have of an agent; one whose key is valid is to join again, whatever its state."""
    return agent.name, agent.key, agent.serial, agent.device, REVOKED if agent.state == REVOKED else JOINED


def _stored(kind: type[S], text: str) -> S | None:
    """Return what the store has of a shape; None if that is nothing, or of another version of this package."""
    try:
        return kind.read(json.loads(text))
    except MalformedError:
        return None


def _lease(row: Any) -> Lease:
    *plain, stop, why, blameless, size, down, up, profile, state, heard = row
    online = is_online(state, heard, time.time())
    return Lease(*(*plain, bool(stop), why, bool(blameless), size, down, up, profile, online))
