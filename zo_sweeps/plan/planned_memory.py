"""The memory that a trial is planned with: of its step, of finding its mask, of its program."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from zo_sweeps.core.memory_parts import Part
from zo_sweeps.devices.estimate import (
    RUNTIME_BYTES,
    Batches,
    Rows,
    finding_memory,
    memory_by_part,
)
from zo_sweeps.engine.packing import CAPACITY
from zo_sweeps.methods.arch import ALL
from zo_sweeps.methods.evaluation import SCORED_TOKENS
from zo_sweeps.methods.trial_config import TrialConfig
from zo_sweeps.plan.lengths import Tokens

if TYPE_CHECKING:
    from zo_sweeps.models.identity import ModelStatus


def memory_of(
    config: TrialConfig, model: ModelStatus, counted: Tokens | None, longest: int, trainable: int
) -> tuple[int, Mapping[Part, float], int]:
    """Return (estimated peak, its parts, of a program the peak of the light client)."""
    arch, kind, space, precision = model.arch, config.method.kind, config.space, config.precision
    if arch is None:
        return 0, {}, 0
    train, examples = config.train, max(config.split.dev, config.split.test)
    rows = train.batch or 1
    longest_row = max(CAPACITY, longest) if train.packing else longest
    together = 0 if kind.generates else min(examples, max(SCORED_TOKENS / longest, 1))
    stepped, scored = Rows(rows * longest, rows), Rows(together * longest, together)
    if counted is not None and not kind.shown:
        longest = counted.longest
        fits = not arch.masked and not arch.no_packing
        options = config.task.wording(config.prompt.name).options
        every = 1 if arch.masked else max(len(options), counted.texts)
        stepped = counted.of_step(rows, train.packing and fits, every, gold_only(config))
        scored = counted.of_scoring(examples, fits, every)
    finding, client = 0, 0
    if space.needs_gradients and kind.trains and model.package is None:
        text = space.of_text
        length = getattr(space, "length", longest) if text else longest
        entries = arch.entries(space.layers)
        finding = finding_memory(arch, precision.format.bytes, length, length if text else 1, entries)
    if precision.of_text and model.package is None:
        length = getattr(precision, "length", longest)
        finding = max(finding, finding_memory(arch, precision.format.bytes, length, length, arch.entries([ALL])))
    points = config.evaluation.points_per_forward(config.estimator.budget) if kind.estimates else 1
    parts: Mapping[Part, float] = memory_by_part(
        arch,
        Batches(longest, stepped, scored, points, kind.trains and train.logits == "all", longest_row),
        kind,
        precision,
        space,
        config.update,
        trainable=trainable,
        in_parts=hasattr(config.perturbation, "combine"),  # as `engine.types.Partial` is told
        on_host=config.device.in_host_memory,
    )
    if (runtime := config.device.installed_runtime) is not None:
        parts, before, client = runtime.memory(config, arch, parts, points, trainable)
        finding = max(finding, before)
    peak = int(sum(parts.values()))
    return RUNTIME_BYTES + max(peak, finding), parts if peak >= finding else {}, client


def gold_only(config: TrialConfig) -> bool:
    """Return whether a step forwards a row's right candidate alone."""
    objective: Any = config.own_objective or config.task.wording(config.prompt.name).loss
    return bool(objective.gold_only)
