"""Rows of a task: where they come from, which of them are used, and whether they are here at all.

Three sources, the first that applies: packaged with zo_sweeps (`source: packaged` in the task), a folder
`<data.dir>/<local>` with train.jsonl, validation.jsonl and test.jsonl, the Hugging Face hub.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from zo_sweeps.core.errors import UserError
from zo_sweeps.methods.task import Task
from zo_sweeps.tasks import files, hub
from zo_sweeps.tasks.spec import TaskSpec

Row = dict[str, Any]
SHOTS_TEST_SEED = 42  # of the test rows of MeZO's k-shot runs, whatever the run's own seed


@dataclass(frozen=True)
class Splits:
    """The rows of a trial, in the order drawn."""

    train: list[Row]
    dev: list[Row]
    test: list[Row]


@dataclass(frozen=True)
class DataStatus:
    """Whether a task's data is at hand.

    Args:
        available: it can be loaded here.
        why: where it is, or why it cannot be had; one line.
        fingerprint: "sha256:..." of the files' bytes, or "hf:path/name"; "" when not available.
        sizes: rows a file; empty for the hub.
        row_bytes: mean bytes of a row in the files, for estimates; 0 for the hub.
    """

    available: bool
    why: str
    fingerprint: str = ""
    sizes: Mapping[str, int] = field(default_factory=dict)
    row_bytes: float = 0.0


def check(spec: TaskSpec, task: Task, data_dir: str | None) -> DataStatus:
    """Is the data of `task` here, and which data is it? Downloads nothing.

    Raises UserError naming file and line when a local row is malformed, lacks a field or has a bad label. Cost: one
    read of the files a process (remembered while they do not change); for the hub at most 3 s.
    """
    folder = _folder(task, data_dir)
    if folder is None:
        if task.hub is None:
            return DataStatus(False, f"task {spec.name!r} is read from a local folder; set data.dir")
        why_not = hub.unreachable(task.hub)
        if why_not:
            return DataStatus(False, f"{why_not}; set data.dir to a folder with {task.folder}/train.jsonl, ...")
        return DataStatus(True, f"{hub.label(task.hub)} (Hugging Face hub)", hub.label(task.hub))
    if not folder.is_dir():
        return DataStatus(False, f"no folder {folder} (expected train.jsonl, validation.jsonl and test.jsonl in it)")
    digest, sizes, total = hashlib.sha256(), {}, 0
    for split in files.FILES:
        path = files.path_of(folder, split)
        if not path.is_file():
            return DataStatus(False, f"no file {path}")
        file_digest, sizes[split] = files.scan(path, spec)
        digest.update(f"{split} {file_digest}\n".encode())
        total += path.stat().st_size
    return DataStatus(
        True, str(folder), f"sha256:{digest.hexdigest()[:32]}", sizes, row_bytes=total / max(sum(sizes.values()), 1)
    )


def read_split(spec: TaskSpec, task: Task, data_dir: str | None, split: str) -> list[Row]:
    """Every row of "train", "validation" or "test".

    On the hub, whose test labels are hidden, "validation" and "test" are both the task's test split (MeZO). Raises
    UserError when a row does not fit, or when the split is not there.
    """
    size, get = _open(spec, task, data_dir, split)
    return [get(i) for i in range(size)]


def load_splits(spec: TaskSpec, task: Task, data_dir: str | None, split: Mapping[str, Any]) -> Splits:
    """The rows of a trial: `split.train`, `split.dev` and `split.test` of them, drawn with `split.seed`.

    Hub (MeZO's released sampling): permutation pi of the train split by numpy's legacy generator, its first train + dev
    indices are drawn and dev = the LAST dev of those; test = the first `test` of a permutation of the validation split
    by a fresh generator with the same seed. Where train + dev exceeds the split, dev keeps its size and train is the
    rest: WSC, with 554 rows and dev 500, trains on 54. Local: train, validation and test are files of their own, each
    permuted by that rule. A task's `dev_size` bounds dev (100 for COPA and CB in MeZO).

    With `split.shots` = k the rows are class-balanced, by LM-BFF's rule: after the permutation, the first k of each
    label are train and the next k dev (local: the first k of validation), both kept in the order of the labels; a label
    with fewer rows gives what it has. Test is then the same for every seed: permuted with SHOTS_TEST_SEED.

    Raises UserError when the data is not there, a row does not fit, or no row is left to train on.
    """
    if split.get("shots"):
        return _shots(spec, task, data_dir, split)
    seed, n_train, n_test = int(split["seed"]), int(split["train"]), int(split["test"])
    n_dev = min(int(split["dev"]), task.dev_size or int(split["dev"]))

    size, get = _open(spec, task, data_dir, "train")
    if _folder(task, data_dir) is None:
        drawn = permutation(size, seed)[: n_train + n_dev]
        rest = max(len(drawn) - n_dev, 0)
        train, dev = [get(i) for i in drawn[:rest]], [get(i) for i in drawn[rest:]]
    else:
        train = [get(i) for i in permutation(size, seed)[:n_train]]
        dev_size, get_dev = _open(spec, task, data_dir, "validation")
        dev = [get_dev(i) for i in permutation(dev_size, seed)[:n_dev]]
    if n_train and not train:
        raise UserError(f"task {spec.name!r} has {size} training rows and dev takes {n_dev}; lower split.dev")
    test_size, get_test = _open(spec, task, data_dir, "test")
    return Splits(train, dev, [get_test(i) for i in permutation(test_size, seed)[:n_test]])


def _shots(spec: TaskSpec, task: Task, data_dir: str | None, split: Mapping[str, Any]) -> Splits:
    if not spec.labels:
        raise UserError(f"split.shots takes rows by label, and those of task {spec.name!r} have none", where="split")
    shots, seed = int(split["shots"]), int(split["seed"])
    is_hub = _folder(task, data_dir) is None

    def by_label(name: str, start: int) -> list[Row]:
        size, get = _open(spec, task, data_dir, name)
        groups: list[list[Row]] = [[] for _ in spec.labels]
        for i in permutation(size, seed):
            row = get(i)
            groups[spec.gold(row)].append(row)
            if all(len(group) >= start + shots for group in groups):
                break
        return [row for group in groups for row in group[start : start + shots]]

    train = by_label("train", 0)
    dev = by_label("train", shots) if is_hub else by_label("validation", 0)
    test_size, get_test = _open(spec, task, data_dir, "test")
    if not dev:
        raise UserError(
            f"no label of task {spec.name!r} has more than {shots} rows to take dev from", where="split.shots"
        )
    chosen = permutation(test_size, SHOTS_TEST_SEED)[: int(split["test"])]
    return Splits(train, dev, [get_test(i) for i in chosen])


def permutation(size: int, seed: int) -> list[int]:
    """numpy's legacy (RandomState) permutation of range(size), the one that the published splits were drawn with."""
    import numpy as np

    return [int(i) for i in np.random.RandomState(seed).permutation(size)]


def _open(spec: TaskSpec, task: Task, data_dir: str | None, split: str) -> tuple[int, Callable[[int], Row]]:
    """Size of a split, and its i-th row, checked; rows of the hub are only read when asked for."""
    folder = _folder(task, data_dir)
    if folder is not None:
        rows = files.read(files.path_of(folder, split), spec)
        return len(rows), rows.__getitem__
    if task.hub is None:
        raise UserError(f"task {spec.name!r} is read from a local folder; set data.dir")
    source = task.hub
    name = source.train if split == "train" else source.test
    dataset = hub.load(source, name, spec.label_field)

    def get(index: int) -> Row:
        row = hub.row(source, dataset, index)
        problem = spec.problem(row)
        if problem:
            fix = f"the row has: {', '.join(sorted(row))}"
            raise UserError(problem, where=f"{hub.label(source)}, {name} row {index}", fix=fix)
        return row

    return len(dataset), get


def _folder(task: Task, data_dir: str | None) -> Path | None:
    """The local folder that the task is read from; None for the hub. A given data.dir never falls back to the hub."""
    if task.source == "packaged":
        return Path(__file__).parent / task.folder
    return Path(data_dir).expanduser() / task.folder if data_dir else None
