"""What a process keeps between trials: the base model it last loaded, and the encoded examples of its last tasks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch

from zo_sweeps.core.errors import UserError
from zo_sweeps.core.fingerprint import fingerprint
from zo_sweeps.core.trial import Trial
from zo_sweeps.methods.definition import read
from zo_sweeps.methods.task import Task
from zo_sweeps.models.causal import LanguageModel
from zo_sweeps.models.load import load
from zo_sweeps.models.masked import MaskedLanguageModel
from zo_sweeps.tasks.data import load_splits
from zo_sweeps.tasks.demonstrations import Demonstrator, demonstration
from zo_sweeps.tasks.encode import Example, encode
from zo_sweeps.tasks.masked import encode_masked
from zo_sweeps.tasks.spec import TaskSpec


@dataclass
class Warm:
    """The base model this process holds. Trials that move its weights leave it `dirty`."""

    key: str
    model: LanguageModel
    dirty: bool = False


@dataclass(frozen=True)
class Splits:
    spec: TaskSpec
    train: list[Example]
    dev: list[Example]
    test: list[Example]


warm: Warm | None = None
_encoded: dict[str, Splits] = {}


def device_of(profile: Mapping[str, Any]) -> str:
    """The torch device of a device profile: the profile of a board with a GPU is that GPU."""
    name = profile["name"]
    if profile.get("kind", name) == "cpu":
        return "cpu"
    if torch.cuda.is_available():
        return "cuda"
    if name != "auto":
        raise UserError(f"the trial asks for {name}, and torch sees no CUDA device here")
    return "cpu"


def base_model(trial: Trial, device: torch.device) -> LanguageModel:
    """The base model: kept between trials of one `warm_key`, loaded again after a trial that moved its weights."""
    global warm
    if warm is None or warm.key != trial.warm_key or warm.dirty:
        warm = None  # freed before the next one is loaded
        precision = import_module(f"zo_sweeps.engine.precisions.{trial.config['precision']['name']}")
        warm = Warm(trial.warm_key, load(trial.config["model"], precision.DTYPE, device))
    return warm.model


def examples(config: Mapping[str, Any], model: LanguageModel) -> Splits:
    """The trial's splits, encoded; kept between trials of the same task."""
    prefix = config["space"]["length"] if config["space"]["name"] == "prefix" else 0  # it takes the first positions
    length = min(config["train"]["max_length"], model.max_positions - prefix)
    shown = config["method"]["demonstrations"] if config["method"]["kind"] == "icl" else 0
    parts = [config[part] for part in ("task", "prompt", "split", "data", "model")]
    key = fingerprint([*parts, length, shown and [shown, config["seed"]]])
    if key not in _encoded:
        task = read(Task, config["task"], "task")
        spec = TaskSpec.of(task, config["prompt"]["name"])
        splits = load_splits(spec, task, config["data"]["dir"], config["split"])
        bos = model.bos_id if model.tokenizer.bos_token_id != model.bos_id else None

        if isinstance(model, MaskedLanguageModel) != spec.objective.masked:
            raise UserError("a masked model takes a prompt with a mask, and a causal model one without", where="prompt")
        solved = [demonstration(spec, row) for row in splits.train] if shown else []
        icl = Demonstrator(spec, solved, shown, config["seed"], model.tokenizer, length, bos=bos)

        def encoded(split: str, rows: Iterable[Mapping[str, Any]]) -> list[Example]:
            if isinstance(model, MaskedLanguageModel):
                return [encode_masked(spec, row, model.tokenizer, length) for row in rows]
            if shown and split != "train":
                return [icl.encode(row, split, i) for i, row in enumerate(rows)]
            return [encode(spec, row, model.tokenizer, length, bos=bos) for row in rows]

        if len(_encoded) >= 4:
            _encoded.pop(next(iter(_encoded)))
        named = {split: encoded(split, getattr(splits, split)) for split in ("train", "dev", "test")}
        _encoded[key] = Splits(spec, **named)
    return _encoded[key]
