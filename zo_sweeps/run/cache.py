"""The cache of a process, kept between trials: the last base model, and the encoded examples of the last few tasks."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from zo_sweeps.core.errors import UserError
from zo_sweeps.core.fingerprint import fingerprint
from zo_sweeps.methods.definition import write
from zo_sweeps.methods.parts import Device
from zo_sweeps.methods.precision import WeightOnlyPrecision
from zo_sweeps.methods.trial_config import TrialConfig
from zo_sweeps.models import package
from zo_sweeps.models.causal import LanguageModel, MaskedLanguageModel
from zo_sweeps.models.load import divide, load
from zo_sweeps.run.packages import prepared
from zo_sweeps.tasks.data import Row, digest_rows, load_splits
from zo_sweeps.tasks.encode import Demonstrator, Example, demonstration, encode, encode_masked
from zo_sweeps.tasks.local_rows import facts, mark
from zo_sweeps.tasks.spec import TaskSpec


@dataclass
class Warm:
    """The cached base model; `dirty` once a trial has moved its weights."""

    key: str
    model: LanguageModel
    dirty: bool = False


@dataclass(frozen=True)
class EncodedSplits:
    """A task's splits as tokens, the digest of the test split's rows, and the facts of `tasks.duplicates`."""

    spec: TaskSpec
    train: list[Example]
    dev: list[Example]
    test: list[Example]
    test_rows: str
    facts: Mapping[str, float]


warm: Warm | None = None
_encoded: dict[str, EncodedSplits] = {}  # the oldest is dropped first


def torch_device(profile: Device) -> str:
    """Return the torch device of a device profile: the GPU where it has one. `auto` falls back to the CPU."""
    if profile.cpu:
        return "cpu"
    if torch.cuda.is_available():
        return "cuda"
    if not profile.any:
        raise UserError(f"device {profile.name} needs CUDA, and torch sees no CUDA device here")
    return "cpu"


def base_model(config: TrialConfig, warm_key: str, devices: Sequence[torch.device]) -> LanguageModel:
    """Return the base model: the cached one if it has this `warm_key` and its weights have not been moved.

    On several devices it is loaded in main memory, and divided over them.
    """
    global warm
    key = f"{warm_key} on {len(devices)}"
    if warm is None or warm.key != key or warm.dirty:
        _drop()
        precision, model, device = config.precision, config.model, devices[0]
        codes = precision if isinstance(precision, WeightOnlyPrecision) else None
        if codes is not None and codes.prepared and package.of(model) is None:
            model = prepared(config, device)
        whole = load(model, precision.dtype, device if len(devices) == 1 else "cpu", codes)
        if len(devices) > 1:
            divide(whole, devices)
        warm = Warm(key, whole)
    return warm.model


def plain_model(config: TrialConfig, device: torch.device) -> LanguageModel:
    """Return the base model with its weights themselves, also if the trial stores codes; it takes the place of `warm`.

    The caller must hold no other reference to the cached model.
    """
    _drop()
    return load(config.model, config.precision.dtype, device)


def _drop() -> None:
    """Free the cached model before the next one is loaded."""
    global warm
    if warm is None:
        return
    module, warm = weakref.ref(warm.model.module), None
    if module() is not None:  # part of a cycle, which `set_aside` may have exempted
        gc.unfreeze()
        gc.collect()


def examples(config: TrialConfig, model: LanguageModel) -> EncodedSplits:
    """Return the trial's splits, encoded or from the cache."""
    length = min(config.train.max_length, model.max_positions - config.space.positions)
    shown = config.method.kind.shown
    parts = [write(part) for part in (config.task, config.prompt, config.split, config.data, config.model)]
    key = fingerprint([*parts, length, shown and [shown, config.seed]])
    if key not in _encoded:
        spec = TaskSpec.of(config.task, config.prompt.name)
        splits = load_splits(spec, config.task, config.data.dir, config.split)
        if isinstance(model, MaskedLanguageModel) != spec.objective.masked:
            raise UserError("a masked model takes a prompt with a mask, and a causal model one without", where="prompt")
        solved = [demonstration(spec, row) for row in splits.train] if shown else []
        icl = Demonstrator(spec, solved, shown, config.seed, model.tokenizer, length, front=model.front)

        def encoded(split: str, rows: Iterable[Mapping[str, Any]]) -> list[Example]:
            if isinstance(model, MaskedLanguageModel):
                return [encode_masked(spec, row, model.tokenizer, length) for row in rows]
            if shown and split != "train":
                return [icl.encode(row, split, i) for i, row in enumerate(rows)]
            return [encode(spec, row, model.tokenizer, length, front=model.front) for row in rows]

        if len(_encoded) >= 4:
            _encoded.pop(next(iter(_encoded)))
        rows: dict[str, list[Row]] = {split: getattr(splits, split) for split in ("train", "dev", "test")}
        by_split = {split: encoded(split, of) for split, of in rows.items()}
        known = facts(spec, {split: [mark(spec, row) for row in of] for split, of in rows.items()})
        _encoded[key] = EncodedSplits(spec, **by_split, test_rows=digest_rows(spec, splits.test), facts=known)
    return _encoded[key]
