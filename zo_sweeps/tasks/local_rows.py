"""Rows of a local task folder, checked one by one, and what those drawn for a trial say about its scores."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from zo_sweeps.core.errors import UserError
from zo_sweeps.core.files import reading
from zo_sweeps.methods.metric import Of
from zo_sweeps.tasks.encode import render
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


PAIRS = (("test", "train"), ("test", "dev"), ("dev", "train"))


class Mark(NamedTuple):
    """A row in short: digests of its inputs and of its label, and the index of its right option."""

    inputs: bytes
    label: bytes
    gold: int


def mark(spec: TaskSpec, row: Mapping[str, Any]) -> Mark:
    """Return the mark of a row without a `problem`. Rows are equal if the columns that the task reads are."""
    label = spec.label_field.partition(".")[0]
    inputs = _digest([row[column] for column in spec.columns if column != label])
    return Mark(inputs, _digest(row[label]), spec.gold(row))


def facts(spec: TaskSpec, splits: Mapping[str, Sequence[Mark]]) -> dict[str, float]:
    """Return the facts of the rows drawn for a trial, under the names of `Outcome.metrics`.

    Args:
        splits: the marks of "train", "dev" and "test".

    `X_in_Y` counts the rows of X with the inputs of a row of Y, `X_in_Y_labelled` those with its label too; both are
    absent if there are none. `X_labels` and `X_distinct` are there if they are 1: one label, one row over and over.
    `test_rows` and `dev_rows` are their sizes.
    `chance` and `majority` are accuracies on test, of a uniform guess and of always answering with the most frequent
    label; only where every row has the same options.
    """
    found: dict[str, float] = {}
    for one, other in PAIRS:
        inputs = {row.inputs for row in splits[other]}
        if shared := [row for row in splits[one] if row.inputs in inputs]:
            labelled = {(row.inputs, row.label) for row in splits[other]}
            found[f"{one}_in_{other}"] = len(shared)
            found[f"{one}_in_{other}_labelled"] = sum((row.inputs, row.label) in labelled for row in shared)
    found |= {f"{name}_rows": len(splits[name]) for name in ("dev", "test")}
    for name, rows in splits.items():
        if len(rows) > 1:
            labels, distinct = len({row.label for row in rows}), len({row[:2] for row in rows})
            found |= {fact: 1 for fact, n in {f"{name}_labels": labels, f"{name}_distinct": distinct}.items() if n == 1}
    if spec.kind.predicts is Of.LABELS and not spec.kind.own_options:
        most = max(Counter(row.gold for row in splits["test"]).values())
        found |= {"chance": 1 / len(spec.options), "majority": most / len(splits["test"])}
    return {name: float(value) for name, value in found.items()}


def _digest(value: Any) -> bytes:
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, default=str)
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=12).digest()
