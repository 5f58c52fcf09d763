"""The parts of a trial's configuration as typed objects."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from zo_sweeps.methods.definition import read
from zo_sweeps.methods.task import Task


def task_of(config: Mapping[str, Any], folders: Sequence[Path] = ()) -> Task:
    """Return the task of a trial's configuration.

    Args:
        folders: of configuration files, to name the task's file in messages.

    Raises UserError, with the file, the key and the near match, for a key that a task does not have, and for a value
    that does not fit. Cost: one JSON dump of it; the same task is read once.
    """
    return _task(json.dumps(config["task"], sort_keys=True, default=str), tuple(folders))


@lru_cache(maxsize=256)
def _task(text: str, folders: tuple[Path, ...]) -> Task:
    data = json.loads(text)
    files = [folder / "task" / f"{data.get('name')}.yaml" for folder in folders]
    file = next((str(file) for file in files if file.is_file()), f"task {data.get('name', '?')!r}")
    return read(Task, data, "task", lambda key: file)
