"""Tasks: prompt, verbalizer, loss kind, metric and splits. One YAML a task; no torch here.

spec = TaskSpec.from_config(task_cfg, dialect)         what the task is
status = check(spec, task_cfg, data_dir)               is its data here (fast, for the planner)
splits = load_splits(spec, task_cfg, data_dir, split)  rows
example = encode(spec, row, tokenizer, max_length)     token ids
"""

from zo_sweeps.tasks.data import DataStatus, Splits, check, load_splits, read_split
from zo_sweeps.tasks.encode import Candidate, Example, encode
from zo_sweeps.tasks.metrics import accuracy, squad_f1
from zo_sweeps.tasks.prompts import Prompt, render
from zo_sweeps.tasks.spec import MASK, TaskSpec

__all__ = [
    "MASK",
    "Candidate",
    "DataStatus",
    "Example",
    "Prompt",
    "Splits",
    "TaskSpec",
    "accuracy",
    "check",
    "encode",
    "load_splits",
    "read_split",
    "render",
    "squad_f1",
]
