"""Tasks: prompt, verbalizer, kind, metrics and splits. One YAML per task; no torch here.

task = read(Task, task_cfg, "task")                    the task, typed, from its YAML
spec = TaskSpec.of(task, dialect)                      the task in one wording
status = check(spec, task, data_dir)                   whether its data is here (fast, for the planner)
splits = load_splits(spec, task, data_dir, split)      rows
example = encode(spec, row, tokenizer, max_length)     token ids
values = evaluate(spec, examples, answers)             its metrics, by name
"""

from zo_sweeps.tasks.data import DataStatus, Splits, check, load_splits, read_split
from zo_sweeps.tasks.encode import Candidate, Example, encode
from zo_sweeps.tasks.prompts import Prompt, render
from zo_sweeps.tasks.scoring import Answers, cut, evaluate
from zo_sweeps.tasks.spec import MASK, TaskSpec

__all__ = [
    "MASK",
    "Answers",
    "Candidate",
    "DataStatus",
    "Example",
    "Prompt",
    "Splits",
    "TaskSpec",
    "check",
    "cut",
    "encode",
    "evaluate",
    "load_splits",
    "read_split",
    "render",
]
