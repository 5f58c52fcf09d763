"""The rows of a task: their source, whether they are available, and the draw of a trial's splits.

There are three sources, tried in this order: packaged with zo_sweeps (`source: packaged` in the task), a folder
`<data.dir>/<local>` with train.jsonl, validation.jsonl and test.jsonl, and the Hugging Face hub.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from zo_sweeps.core.errors import UserError
from zo_sweeps.core.files import folder_at, reading
from zo_sweeps.methods.parts import Split
from zo_sweeps.methods.task import Task
from zo_sweeps.tasks import hub_rows, local_rows
from zo_sweeps.tasks.local_rows import Mark
from zo_sweeps.tasks.spec import TaskSpec

Row = dict[str, Any]
T = TypeVar("T")
Open = Callable[[str], tuple[int, Callable[[int], T]]]  # name of a split -> its size, index -> row
SHOTS_TEST_SEED = 42  # draws the test rows of MeZO's k-shot runs, whatever the run's own seed
DRAWN = (  # the rule of `load_splits`, for readers of an archive
    "Rows are taken in the order of numpy.random.RandomState(split.seed).permutation(n), n its rows. "
    "Files: the first split.train rows of train.jsonl, split.dev of validation.jsonl, split.test of test.jsonl. "
    "Hub: of the first split.train + split.dev rows of task.hub.train the last split.dev are dev, the others train; "
    "test is the first split.test rows of task.hub.test. task.dev_size bounds dev. With split.shots = k, train is the "
    "first k rows of each label, dev the next k (files: the first k of validation.jsonl), and test is drawn with "
    f"{SHOTS_TEST_SEED}. Bit i of a test event's `right` is row i of that order."
)


@dataclass(frozen=True)
class Splits:
    """The rows of a trial, in the order drawn."""

    train: list[Row]
    dev: list[Row]
    test: list[Row]


@dataclass(frozen=True)
class DataStatus:
    """The availability of a task's data.

    Args:
        available: whether it can be loaded here.
        why: where it is, or why it cannot be loaded; one line.
        fingerprint: "sha256:..." of the files' bytes, or "hf:path/name"; "" if not available.
        marks: of the rows of each file, by split; empty for the hub.
        row_bytes: mean bytes of a row, for estimates; 0 if it is not known before the data is loaded.
        folder: where the files are; None for the hub.
    """

    available: bool
    why: str
    fingerprint: str = ""
    marks: Mapping[str, Sequence[Mark]] = field(default_factory=dict, repr=False)
    row_bytes: float = 0.0
    folder: Path | None = None

    @property
    def sizes(self) -> dict[str, int]:
        """Rows per file; empty for the hub."""
        return {split: len(marks) for split, marks in self.marks.items()}


def check(spec: TaskSpec, task: Task, data_dir: str | None) -> DataStatus:
    """Return whether the data of `task` is available here, and its fingerprint. Downloads nothing.

    Raises UserError, with file and line, for a local row that is malformed, lacks a field or has a bad label. Cost: one
    read of the files per process (cached while they do not change); for the hub at most 3 s.
    """
    folder = _folder(task, data_dir)
    if folder is None:
        if task.hub is None:
            return DataStatus(False, f"task {spec.name!r} is read from a local folder; set data.dir")
        why_not = hub_rows.unreachable(task.hub)
        if why_not:
            return DataStatus(False, f"{why_not}; set data.dir to a folder with {task.folder}/train.jsonl, ...")
        place = f"{hub_rows.label(task.hub)} (Hugging Face hub)"
        return DataStatus(True, place, hub_rows.label(task.hub), row_bytes=hub_rows.row_bytes(task.hub))
    digest, total = hashlib.sha256(), 0
    marks: dict[str, Sequence[Mark]] = {}
    with reading():
        if not folder.is_dir():
            expected = "(expected train.jsonl, validation.jsonl and test.jsonl in it)"
            return DataStatus(False, f"no folder {folder} {expected}")
        for split in local_rows.FILES:
            path = local_rows.path_of(folder, split)
            if not path.is_file():
                return DataStatus(False, f"no file {path}")
            file_digest, marks[split] = local_rows.scan(path, spec)
            digest.update(f"{split} {file_digest}\n".encode())
            total += path.stat().st_size
    mean = total / max(sum(map(len, marks.values())), 1)
    return DataStatus(True, str(folder), f"sha256:{digest.hexdigest()[:32]}", marks, row_bytes=mean, folder=folder)


def files_of(task: Task, data_dir: str | None) -> Mapping[str, str]:
    """Return file -> digest of the local files that a task's rows are read from; {} for the hub, or without them.

    Raises UserError for a file that cannot be read.
    """
    folder = _folder(task, data_dir)
    paths = [local_rows.path_of(folder, split) for split in local_rows.FILES] if folder is not None else []
    with reading():
        return {str(path): hashlib.sha256(path.read_bytes()).hexdigest()[:16] for path in paths if path.is_file()}


def read_split(spec: TaskSpec, task: Task, data_dir: str | None, split: str) -> list[Row]:
    """Return every row of "train", "validation" or "test".

    On the hub, whose test labels are hidden, "validation" and "test" are both the task's test split, as in MeZO. Raises
    UserError if a row does not fit the task or the split cannot be read.
    """
    size, get = _open(spec, task, data_dir, split)
    return [get(i) for i in range(size)]


def load_splits(spec: TaskSpec, task: Task, data_dir: str | None, split: Split) -> Splits:
    """Draw the rows of a trial: `split.train`, `split.dev` and `split.test` of them, with `split.seed`.

    By the rule DRAWN: of the hub, MeZO's released sampling; with `split.shots`, LM-BFF's. If train + dev exceeds the
    hub's split, dev keeps its size and train gets the rest: WSC, with 554 rows and dev 500, trains on 54. With
    `split.shots`, train and dev are in the order of the labels, and a label with fewer rows contributes all of them.

    Raises UserError if the data is missing, a row does not fit the task, or no row is left to train on.
    """
    is_hub = _folder(task, data_dir) is None
    return Splits(*_draw(spec, task, split, is_hub, partial(_open, spec, task, data_dir), spec.gold))


def drawn_marks(spec: TaskSpec, task: Task, split: Split, marks: Mapping[str, Sequence[Mark]]) -> dict[str, list[Mark]]:
    """Return the marks of the rows that `load_splits` draws from local files, of the marks of all their rows.

    Raises UserError as it does.
    """
    opened: Open[Mark] = lambda name: (len(marks[name]), marks[name].__getitem__)
    train, dev, test = _draw(spec, task, split, False, opened, lambda one: one.gold)
    return {"train": train, "dev": dev, "test": test}


def _draw(
    spec: TaskSpec, task: Task, split: Split, is_hub: bool, opened: Open[T], gold: Callable[[T], int]
) -> tuple[list[T], list[T], list[T]]:
    if split.shots:
        return _shots(spec, split, is_hub, opened, gold)
    seed, n_train, n_test = split.seed or 0, split.train, split.test
    n_dev = min(split.dev, task.dev_size or split.dev)

    size, get = opened("train")
    if is_hub:
        drawn = permutation(size, seed)[: n_train + n_dev]
        rest = max(len(drawn) - n_dev, 0)
        train, dev = [get(i) for i in drawn[:rest]], [get(i) for i in drawn[rest:]]
    else:
        train = [get(i) for i in permutation(size, seed)[:n_train]]
        dev_size, get_dev = opened("validation")
        dev = [get_dev(i) for i in permutation(dev_size, seed)[:n_dev]]
    if n_train and not train:
        raise UserError(f"task {spec.name!r} has {size} training rows and dev takes {n_dev}; lower split.dev")
    test_size, get_test = opened("test")
    return train, dev, [get_test(i) for i in permutation(test_size, seed)[:n_test]]


def _shots(
    spec: TaskSpec, split: Split, is_hub: bool, opened: Open[T], gold: Callable[[T], int]
) -> tuple[list[T], list[T], list[T]]:
    if not spec.labels:
        raise UserError(f"split.shots draws rows by label, but the rows of task {spec.name!r} have none", where="split")
    assert split.shots is not None
    shots, seed = split.shots, split.seed or 0

    def by_label(name: str, start: int) -> list[T]:
        size, get = opened(name)
        groups: list[list[T]] = [[] for _ in spec.labels]
        for i in permutation(size, seed):
            row = get(i)
            groups[gold(row)].append(row)
            if all(len(group) >= start + shots for group in groups):
                break
        return [row for group in groups for row in group[start : start + shots]]

    train = by_label("train", 0)
    dev = by_label("train", shots) if is_hub else by_label("validation", 0)
    test_size, get_test = opened("test")
    if not dev:
        raise UserError(
            f"no label of task {spec.name!r} has more than {shots} rows, which leaves none for dev",
            where="split.shots",
            fix="lower it",
        )
    chosen = permutation(test_size, SHOTS_TEST_SEED)[: split.test]
    return train, dev, [get_test(i) for i in chosen]


def digest_rows(spec: TaskSpec, rows: Sequence[Row]) -> str:
    """Return SHA-256 (32 hex digits) of rows in order: of the columns that the task reads, whatever the source."""
    digest = hashlib.sha256()
    for row in rows:
        read = [row[column] for column in spec.columns]
        digest.update(
            json.dumps(read, sort_keys=True, ensure_ascii=False, default=str).encode("utf-8", "surrogatepass")
        )
        digest.update(b"\n")
    return digest.hexdigest()[:32]


def permutation(size: int, seed: int) -> list[int]:
    """Return numpy's legacy (RandomState) permutation of range(size), with which the published splits were drawn."""
    import numpy as np

    return [int(i) for i in np.random.RandomState(seed).permutation(size)]


def _open(spec: TaskSpec, task: Task, data_dir: str | None, split: str) -> tuple[int, Callable[[int], Row]]:
    """Return the size of a split and a function index -> checked row; rows of the hub are read on demand."""
    folder = _folder(task, data_dir)
    if folder is not None:
        rows = local_rows.read(local_rows.path_of(folder, split), spec)
        return len(rows), rows.__getitem__
    if task.hub is None:
        raise UserError(f"task {spec.name!r} is read from a local folder; set data.dir")
    source = task.hub
    name = source.train if split == "train" else source.test
    dataset = hub_rows.load(source, name, spec.label_field)

    def get(index: int) -> Row:
        row = hub_rows.row(source, dataset, index)
        problem = spec.problem(row)
        if problem:
            fix = f"the row has: {', '.join(sorted(row))}"
            raise UserError(problem, where=f"{hub_rows.label(source)}, {name} row {index}", fix=fix)
        return row

    return len(dataset), get


def _folder(task: Task, data_dir: str | None) -> Path | None:
    """Return the local folder that the task is read from; None for the hub. With data.dir set, it is never the hub."""
    if task.source == "packaged":
        return Path(__file__).parent / task.folder
    return folder_at(data_dir, "data.dir") / task.folder if data_dir else None
