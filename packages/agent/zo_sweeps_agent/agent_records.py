"""The records of which keys agents have, beside the store of agents: what a damaged store is made again from.

    head/agents.jsonl   a line for every key that was enrolled or revoked; mode 0600, no secrets

Leases are not in it: their trials go on from their journals, at the driver.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from zo_sweeps.core.errors import UserError
from zo_sweeps.core.files import read_objects

FILE = "agents.jsonl"
FIELDS = ("name", "key", "serial", "device", "state")


def note(store: Path, record: Sequence[str]) -> None:
    """Append the FIELDS of an agent to the records beside a store; they are on the disk when this returns."""
    line = "\n" + json.dumps(dict(zip(FIELDS, record, strict=True))) + "\n"  # the first ends a line that was torn
    handle = os.open(store.with_name(FILE), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(handle, line.encode())
        os.fsync(handle)
    finally:
        os.close(handle)


def noted(store: Path) -> dict[str, list[tuple[str, ...]]]:
    """Return the records of each agent, by name: their FIELDS, the last one last. A damaged line is left out."""
    records: dict[str, list[tuple[str, ...]]] = {}
    for entry, _ in read_objects(store.with_name(FILE)):
        if entry is not None and all(isinstance(entry.get(field), str) for field in FIELDS):
            records.setdefault(entry["name"], []).append(tuple(entry[field] for field in FIELDS))
    return records


def damage(store: Path) -> str:
    """Return what is wrong with a store's file; "" if nothing is, or there is none. Cost: reads all of it."""
    if not store.exists():
        return ""
    try:
        with contextlib.closing(sqlite3.connect(store)) as database:
            line = str(database.execute("PRAGMA quick_check(1)").fetchone()[0])
    except sqlite3.OperationalError:  # locked: somebody works with it
        return ""
    except sqlite3.DatabaseError as error:
        return str(error)
    return "" if line == "ok" else line.splitlines()[-1]


def must_be_well(store: Path) -> None:
    """Raise UserError for a damaged store."""
    if why := damage(store):
        fix = "zo-sweeps head stop, then zo-sweeps head start: it is made again from the records beside it"
        raise UserError(f"the store of agents is damaged ({why})", where=str(store), fix=fix)


def set_aside(store: Path, say: Callable[[str], None]) -> None:
    """Set a damaged store aside, so that the next one that is opened is made from the records."""
    if why := damage(store):
        aside = store.with_name(f"{store.name}.damaged-{time.time():.0f}")
        for suffix in ("", "-wal", "-shm"):
            with contextlib.suppress(FileNotFoundError):
                store.with_name(store.name + suffix).rename(aside.with_name(aside.name + suffix))
        say(
            f"the store of agents was damaged ({why}); it is kept as {aside}, and made again from "
            f"{store.with_name(FILE)}: {len(noted(store))} agents keep their keys, their trials run again, and codes "
            f"that were not used are void"
        )
