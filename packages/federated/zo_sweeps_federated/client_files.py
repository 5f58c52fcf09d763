"""The rows of clients: files of their own, and the column of a task's rows that divides them."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

from zo_sweeps.core.errors import UserError, unknown
from zo_sweeps.core.files import reading
from zo_sweeps.methods.task import Task
from zo_sweeps.tasks.data import DIGITS, Row, local_folder, path_of, scanned
from zo_sweeps.tasks.spec import TaskSpec


def paths_of_clients(task: Task, data_dir: str | None, files: str, clients: int) -> list[Path]:
    """Return the files of clients' own rows. Raises UserError for a task without a local folder."""
    return [path_of(local_folder(task, data_dir), f"{files}{client}") for client in range(clients)]


def rows_of_clients(paths: Sequence[Path], spec: TaskSpec) -> tuple[tuple[str, ...], str]:
    """Return the fingerprints of clients' own rows, and why one is not known; () with a reason.

    That of a file that stays elsewhere is read from NAME.jsonl.sha256 in its place, in the format of `sha256sum`.
    Raises UserError for a malformed row, as `check` does, and for anything else in place of a checksum.
    """
    known, missing = [], list[Path]()
    with reading():
        for path in paths:
            if path.is_file():
                stat = path.stat()
                known.append(scanned(path, stat.st_mtime_ns, stat.st_size, spec)[0][:DIGITS])
            elif (note := path.with_name(f"{path.name}.sha256")).is_file():
                known.append(_noted(note.read_text(encoding="utf-8", errors="replace"), note, path.name))
            else:
                missing.append(path)
    if not missing:
        return tuple(known), ""
    first, others = missing[0], f" (nor {len(missing) - 1} others)" if len(missing) > 1 else ""
    make = f"sha256sum {first.name} > {first.name}.sha256"
    return (), f"no file {first}{others}, and no fingerprint of it: run `{make}` where it is, and copy the result there"


def _noted(text: str, where: Path, name: str) -> str:
    found = re.fullmatch(r"\\?([0-9a-f]{64}) [ *](.*)\n?", text)
    if found is None or Path(found[2]).name != name:
        raise UserError(f"not the SHA-256 of {name}", where=str(where), fix=f"sha256sum {name} > {where.name}")
    return found[1][:DIGITS]


def column_of(rows: Sequence[Row], name: str) -> list[str]:
    """Return the values of a column that the task itself need not read, as JSON. Raises UserError if a row lacks it."""
    for row in rows:
        if name not in row:
            raise unknown("column", name, row, where="method.by")
    return [json.dumps(row[name], sort_keys=True) for row in rows]
