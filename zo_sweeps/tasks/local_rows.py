"""JSON Lines files of a local task folder, checked row by row."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from zo_sweeps.core.errors import UserError
from zo_sweeps.core.files import reading
from zo_sweeps.tasks.duplicates import Mark, mark
from zo_sweeps.tasks.prompts import render
from zo_sweeps.tasks.spec import TaskSpec
from zo_sweeps.tasks.templates import LONGEST

_SURROGATE = re.compile("[\ud800-\udfff]")
FILES = ("train", "validation", "test")


def path_of(folder: Path, split: str) -> Path:
    return folder / f"{split}.jsonl"


def read(path: Path, spec: TaskSpec) -> list[dict[str, Any]]:
    """Return the rows of a file. Raises UserError, with file and line, for a row that does not fit the task."""
    with reading():
        return list(_rows(path.read_bytes(), path, spec))


def scan(path: Path, spec: TaskSpec) -> tuple[str, list[Mark]]:
    """Return SHA-256 (hex) of a file's bytes and its rows' marks, cached until it changes. Raises as `read` does."""
    with reading():
        stat = path.stat()
        return _scan(path, stat.st_mtime_ns, stat.st_size, spec)


@lru_cache(maxsize=1024)
def _scan(path: Path, mtime_ns: int, size: int, spec: TaskSpec) -> tuple[str, list[Mark]]:
    data, marks = path.read_bytes(), list[Mark]()
    for row in _rows(data, path, spec):
        if not marks:
            render(spec, row)  # a template that fits no row is found here
        marks.append(mark(spec, row))
    return hashlib.sha256(data).hexdigest(), marks


def _rows(data: bytes, path: Path, spec: TaskSpec) -> Iterator[dict[str, Any]]:
    # Split at b"\n" only: str.splitlines would also split at rarer separators, which occur inside texts.
    rows = 0
    for number, line in enumerate(data.split(b"\n"), start=1):
        if not line.strip():
            continue
        where = f"{path}:{number}"
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:  # not JSON, not UTF-8, or nested too deeply
            raise UserError(f"not a JSON line ({error})", where=where) from error
        if not isinstance(row, dict):
            raise UserError(f"a {type(row).__name__} where a JSON object was expected", where=where)
        problem = spec.problem(row)
        if problem:
            raise UserError(problem, where=where, fix=f"the row has: {', '.join(sorted(row))}")
        if b"\\ud" in line.lower():  # the only way to write half of a pair in a file of UTF-8
            for column in spec.columns:
                if _SURROGATE.search(json.dumps(row[column], ensure_ascii=False)):
                    what = f"half of a surrogate pair in field {column!r}, which is no character"
                    raise UserError(what, where=where, fix="write the character itself, or both halves of its pair")
        if len(line) > LONGEST:
            try:
                render(spec, row)
            except UserError as error:
                raise UserError(str(error), where=where) from None
        rows += 1
        yield row
    if not rows:
        raise UserError("no rows", where=str(path))
