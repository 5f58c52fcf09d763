"""What the task tests share: the task files of the repository and the folder of real data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from zo_sweeps.methods.definition import read
from zo_sweeps.methods.task import Task
from zo_sweeps.tasks.data import Row, open_split
from zo_sweeps.tasks.spec import TaskSpec

REPO = Path(__file__).resolve().parents[2]
GOLDEN = Path(__file__).parent / "golden"
TASK_FILES = {path.stem: path for path in sorted((REPO / "conf" / "task").glob("*.yaml"))}
DIALECTS = sorted(path.stem for path in (REPO / "conf" / "prompt").glob("*.yaml"))


def cases() -> list[tuple[str, str]]:
    """Every task with each of its dialects."""
    return [(name, dialect) for name in TASK_FILES for dialect in load_task(name)["dialects"]]


def load_task(name: str) -> dict[str, Any]:
    return yaml.safe_load(TASK_FILES[name].read_text(encoding="utf-8"))


def typed(task: dict[str, Any]) -> Task:
    return read(Task, task, "task")


def read_split(spec: TaskSpec, task: Task, data_dir: str | None, split: str) -> list[Row]:
    size, get = open_split(spec, task, data_dir, split)
    return [get(i) for i in range(size)]


def spec_of(task: dict[str, Any], dialect: str) -> TaskSpec:
    return TaskSpec.of(typed(task), dialect)
