"""The memory that a trial is planned with: of its step, of finding its mask, of its program."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from zo_sweeps.core.memory import Part
from zo_sweeps.devices.estimate import RUNTIME_BYTES, finding_memory, memory_by_part, program_memory
from zo_sweeps.engine.packing import CAPACITY
from zo_sweeps.methods.arch import ALL
from zo_sweeps.methods.evaluation import SCORED_TOKENS
from zo_sweeps.methods.trial_config import TrialConfig
from zo_sweeps.plan.lengths import Rows, Tokens

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
    finding = client = 0
    if space.needs_gradients and kind.trains and model.package is None:
        text = space.of_text
        length = getattr(space, "length", longest) if text else longest
        entries = arch.entries(space.layers)
        finding = finding_memory(arch, precision.format.bytes, length, length if text else 1, entries)
    if precision.of_text and model.package is None:
        length = getattr(precision, "length", longest)
        finding = max(finding, finding_memory(arch, precision.format.bytes, length, length, arch.entries([ALL])))
    added = space.added_bytes(arch, precision) if kind.trains else 0
    weights = precision.weight_bytes(arch) + added
    points = config.evaluation.points_per_forward(config.estimator.budget) if kind.estimates else 1
    parts: Mapping[Part, float] = memory_by_part(
        arch,
        precision.format.bytes,
        weights=weights,
        scales=precision.decoding_bytes(arch),
        kept=precision.outside_bytes(arch),
        coded=precision.coded,
        sparse=space.sparse,
        trains=kind.trains,
        backpropagates=kind.backpropagates,
        moves_base=space.moves_base and kind.trains,
        integers=space.integers,
        in_parts=hasattr(config.perturbation, "combine"),  # as `engine.types.Partial` is told
        trained_bytes=(kind.trained_in or precision).format.bytes,
        recomputes=kind.recomputes,
        mixed_bytes=kind.multiplied_in.format.bytes if kind.multiplied_in else 0,
        on_host=config.device.in_host_memory,
        points=points,
        batch=stepped.tokens / longest,
        tokens=longest,
        trainable=trainable,
        frozen=space.frozen_values(arch) if kind.trains else 0,
        state_copies=config.update.state_copies * config.update.state_bits / 32 if kind.trains else 0,
        answer_tokens=longest if kind.trains and train.logits == "all" else stepped.texts * longest / stepped.tokens,
        scored_tokens=scored.tokens,
        scored_texts=scored.texts,
        attended=space.positions and space.positions + longest_row if kind.trains else 0,
        packed=stepped.shared,
        scored_packed=scored.shared,
        rank=getattr(space, "rank", 0) if kind.trains else 0,
        inputs=None if space.moves_base or space.sparse else arch.inputs(space.layers),
    )
    if config.device.runs_programs and not config.device.reads_log and kind.estimates:
        q, size = config.estimator.budget, precision.format.bytes
        form: dict[str, Any] = {
            "points": points,
            "queries": q,
            "d": trainable,
            "dual": config.device.keeps_copies,
        }
        parts, exporting = program_memory(parts, arch, size, weights=weights, **form)
        finding = max(finding, exporting)
        client = int(sum(parts.values())) - weights
    peak = int(sum(parts.values()))
    return RUNTIME_BYTES + max(peak, finding), parts if peak >= finding else {}, client


def gold_only(config: TrialConfig) -> bool:
    """Return whether a step forwards a row's right candidate alone."""
    objective: Any = config.own_objective or config.task.wording(config.prompt.name).loss
    return bool(objective.gold_only)
