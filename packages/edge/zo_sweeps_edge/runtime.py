"""The runtime `executorch`: a trial's steps as calls of an exported program, here or by the light client."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zo_sweeps.core.errors import UserError
from zo_sweeps.core.files import Cached
from zo_sweeps.core.memory_parts import Part
from zo_sweeps.engine.perturbations.pezo_onthefly import PeZOOnTheFly
from zo_sweeps.engine.updates.sgd import SGD
from zo_sweeps.methods.arch import Arch
from zo_sweeps.methods.definition import Definition, own_source
from zo_sweeps.methods.evaluation import Restore
from zo_sweeps.methods.runtime import Runtime
from zo_sweeps.methods.trial_config import TrialConfig
from zo_sweeps_edge.memory import program_memory

# axis -> the members that a program holds, and why it does not hold another.
HELD = {
    "kind": (("zo",), "a program holds the steps of zeroth-order training"),
    "estimator": (("rge",), "the points of a program are theta + eps z and theta - eps z of every direction"),
    "perturbation": (("gaussian", "pezo_onthefly", "pezo_pool"), "a program draws Gaussian noise and PeZO's"),
    "space": (
        ("dora", "lora", "lora_fa", "outliers", "prefix", "random_subset", "sensitive", "vera"),
        "the weights of a program are constants: only parameters beside them, and chosen entries, can be trained",
    ),
    "update": (("sgd",), "the update inside a program is theta - lr * ghat, without a state"),
    "precision": (("fp16", "fp32", "w4a8"), "XNNPACK, which multiplies in a program, has no kernels for it"),
    "objective": (("candidates", "tokens"), "a program computes the losses tokens and candidates only"),
}
INSTEAD = {  # of the reason of its axis
    ("kind", "fo"): "an inference engine has no backward pass; use a zeroth-order method",
    ("estimator", "mezo_compat"): "its rounding is that of the released code, not of a program",
    ("perturbation", "mezo_compat"): "a program generates addressed noise, not the stream of PyTorch's generator",
    ("update", "mezo_compat"): "its rounding is that of the released code, not of a program",
    ("precision", "bf16"): "XNNPACK, which multiplies in a program, has no bf16 kernels",
    ("objective", "label_words"): "a program reads the token after a text, not a mask",
}
CANNOT = "does not run on executorch"


def outside(part: Definition) -> str:
    """Return why no program holds a member; "" if one does."""
    if own_source(type(part)):  # what a base of it does is not what it does
        return "it is a member of your own"
    names, why = HELD[part.axis]
    if part.name not in names:
        return INSTEAD.get((part.axis, part.name), why)
    if isinstance(part, SGD) and (part.weight_decay or part.keeps_nonnegative or part.rounds_randomly):
        return (
            "the update inside a program is theta - lr * ghat; leave out update.weight_decay, update.nonnegative "
            "and update.rounding"
        )
    if isinstance(part, PeZOOnTheFly) and part.length == "perturbation":
        return "a program holds no scale for each place at which a direction may begin; use perturbation.length=block"
    return ""


@dataclass(frozen=True)
class ExecuTorch(Runtime):
    """A trial's steps as calls of an exported program on the CPU, in Python or by the light client."""

    def refuses(self, config: TrialConfig) -> Iterator[str]:
        kind, train = config.method.kind, config.train
        if why := outside(kind):
            yield f"method.kind={kind.name} {CANNOT}: {why}"
            return
        for axis in ("estimator", "perturbation", "space", "update", "precision"):
            part, fitting = getattr(config, axis), HELD[axis][0]
            if why := outside(part):
                instead = f"; use {axis}={' or '.join(fitting)}" if part.name not in fitting else ""
                yield f"{axis}={part.name} {CANNOT}: {why}{instead}"
        task, own = config.task, config.own_objective
        for objective in dict.fromkeys([type(task.wording(config.prompt.name).loss), *([own] if own else [])]):
            if why := outside(objective()):
                yield f"objective {objective.name} {CANNOT}: {why}"
        if task.kind.generates:
            yield f"task {task.name} {CANNOT}: a program scores given answers, and generates none"
        if config.evaluation.restore is Restore.IN_PLACE:
            yield f"evaluation.restore=in_place {CANNOT}: a program leaves theta as it is; use evaluation.restore=exact"
        if config.evaluation.points is not None:
            yield f"evaluation.points {CANNOT}: its calls hold the points that evaluation.mode says; leave it out"
        if config.evaluation.parts is not None:
            yield f"evaluation.parts {CANNOT}: its calls hold all rows of a minibatch; leave it out"
        device, precision, space = config.device, config.precision, config.space
        if precision.rounds_activations and space.multiplies_others:
            parts = f"space={space.name} over precision={precision.name}"
            yield f"{parts} {CANNOT}: it multiplies by the weights themselves"
        if space.renewed_every:
            yield f"space.refresh {CANNOT}: a program's entries are those of its export; use space.refresh=0"
        if precision.rounds_activations and device.delegate == "none":
            yield f"precision={precision.name} with device.delegate=none {CANNOT}: XNNPACK alone multiplies it"
        q = config.estimator.budget
        if device.keeps_copies and config.evaluation.mode.points_per_forward(q) < 2 * q:
            several = "in several forwards per step, whose points it keeps"
            yield f"device.form=dual {CANNOT} {several}; use evaluation.mode=both"
        if train.logits == "all":
            yield f"train.logits=all {CANNOT}: a program computes the logits of answers alone; use train.logits=answers"
        if config.prompt.shared:
            yield f"prompt.shared=true {CANNOT}: each row of a program is one text; use prompt.shared=false"
        if train.flops:
            yield f"train.flops=true {CANNOT}: the operations of PyTorch are counted; use train.flops=false"

    def runner(self, config: TrialConfig, away: bool) -> str:
        device = config.device
        if away or device.reads_log or device.is_phone:
            return "zo_sweeps_edge.from_log:FromLog"
        return "zo_sweeps_edge.in_program:InProgram"

    def memory(
        self, config: TrialConfig, arch: Arch, parts: Mapping[Part, float], points: int, trainable: int
    ) -> tuple[Mapping[Part, float], int, int]:
        if config.device.reads_log or not config.method.kind.estimates:
            return parts, 0, 0
        precision = config.precision
        weights = precision.weight_bytes(arch) + config.space.added_bytes(config.space.moved(arch), precision)
        held, exporting = program_memory(
            parts,
            arch,
            precision.format.bytes,
            weights=weights,
            points=points,
            queries=config.estimator.budget,
            d=trainable,
            dual=config.device.keeps_copies,
        )
        return held, exporting, int(sum(held.values())) - weights

    def prepare(self, bench: Any, space: Any) -> None:
        from zo_sweeps_edge.in_program import program_of

        program_of(bench, space)

    def prepared(self) -> Iterator[Cached]:
        from zo_sweeps_edge.in_program import programs

        yield from programs()

    def prepared_for(self, config: TrialConfig, code: str) -> Iterator[tuple[str, str]]:
        from zo_sweeps_edge.in_program import mark_of

        yield "program", mark_of(config, code)

    def trial_of_log(self, folder: Path) -> str:
        from zo_sweeps_edge.bundle import read_manifest

        try:
            return read_manifest(folder).settings.trial_id
        except UserError:  # it may be on another node, or damaged
            return ""
