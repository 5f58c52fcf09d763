"""Rows that reasoning-gym generates, kept as files in the cache folder."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

from zo_sweeps.core.errors import UserError, unknown
from zo_sweeps.core.files import cache_folder, new_folder
from zo_sweeps.core.fingerprint import fingerprint
from zo_sweeps.core.host import version_of
from zo_sweeps.methods.definition import identity
from zo_sweeps.methods.task import Gym

TRIES = 20  # rows drawn per row wanted, before a generator is said to have too few


class AbsentError(UserError):
    """reasoning-gym is not installed."""


def folder(gym: Gym) -> Path:
    """Return the folder with train.jsonl, validation.jsonl and test.jsonl, which are written if they are not there.

    No question is in two of them, or twice in one. The rows are those of the installed version of reasoning-gym.

    Raises AbsentError if it is not installed, and UserError for an unknown generator or option, one with too few
    questions, or with rows that JSON does not hold. Cost: a second for the import, and the rows, once per machine.
    """
    if not (version := version_of("reasoning-gym")):
        raise AbsentError("reasoning-gym is not installed; pip install 'zo-sweeps[rewards]'")
    place = cache_folder() / "reasoning_gym" / fingerprint([identity(gym), version])
    if not place.is_dir():
        rows = _rows(gym)
        place.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError), new_folder(place) as part:  # another process may have been faster
            for split in ("test", "validation", "train"):
                size = {"test": gym.test, "validation": gym.dev, "train": gym.train}[split]
                (part / f"{split}.jsonl").write_text("".join(islice(rows, size)), encoding="utf-8")
    return place


def _rows(gym: Gym) -> Iterator[str]:
    """Yield rows with different questions, each as a line. Raises UserError as `folder` does, for the last one."""
    from reasoning_gym import create_dataset
    from reasoning_gym.factory import DATASETS

    where = "task.gym"
    if gym.dataset not in DATASETS:
        raise unknown("generator of reasoning-gym", gym.dataset, DATASETS, where=f"{where}.dataset")
    wanted, questions = gym.train + gym.dev + gym.test, set[str]()
    try:
        dataset = create_dataset(gym.dataset, seed=gym.seed, size=TRIES * wanted, **gym.options)
    except (TypeError, ValueError, AssertionError) as error:
        raise UserError(f"{gym.dataset} takes no such options ({error})", where=f"{where}.options") from error
    for number in range(TRIES * wanted):
        row: dict[str, Any] = dataset[number]
        if row["question"] in questions:
            continue
        questions.add(row["question"])
        try:
            line = json.dumps(row)
        except TypeError as error:
            raise UserError(f"the rows of {gym.dataset} are not JSON ({error})", where=where) from error
        yield f"{line}\n"
        if len(questions) == wanted:
            return
    what = f"{gym.dataset} has {len(questions)} questions in {TRIES * wanted} rows, not {wanted}"
    raise UserError(what, where=where, fix="lower train, dev and test, or widen its options")
