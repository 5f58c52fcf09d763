"""Whether a trial goes with its model: prompt, precision, space, evaluation, package."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zo_sweeps.core.errors import UserError
from zo_sweeps.methods.definition import write
from zo_sweeps.methods.evaluation import Restore
from zo_sweeps.methods.trial_config import TrialConfig

if TYPE_CHECKING:
    from zo_sweeps.methods.arch import Arch
    from zo_sweeps.methods.parts import Model
    from zo_sweeps.models.identity import ModelStatus
    from zo_sweeps.models.package import Package

# What tells models apart, of `Arch`; the number of parameters follows, and so do the projections.
SHAPE = ("family", "layers", "width", "inner", "heads", "kv_heads", "head_width", "vocabulary", "positions", "tied")


def check_model(config: TrialConfig, model: ModelStatus) -> None:
    """Raise UserError for a model incompatible with the prompt, the precision, the method's kind or the space."""
    arch, kind = model.arch, config.method.kind
    if model.package is not None:
        _with_package(config, model.package)
    if arch is None:
        return
    if config.model.is_claimed and (differs := _difference(config.model, arch)):
        fix = f"model=local model.path={config.model.path} runs it as what it is"
        raise UserError(f"the folder does not hold {config.model.name}: {differs}", where="model.path", fix=fix)
    dialect = config.task.dialects.get(config.prompt.name)
    if dialect is not None and arch.masked != dialect.loss.masked:
        one, other = ("masked", "without") if arch.masked else ("causal", "with")
        fitting = [name for name, it in config.task.dialects.items() if it.loss.masked == arch.masked]
        suited, needed = ("causal", "with") if arch.masked else ("masked", "without")
        fix = " or ".join(f"prompt={name}" for name in fitting) or (
            f"a {suited} model, or a dialect of the task {needed} {{{{ mask }}}} (docs/adding/task.md)"
        )
        raise UserError(
            f"model {config.model.name!r} is a {one} one, and prompt {config.prompt.name!r} of task "
            f"{config.task.name!r} is {other} a mask",
            fix=f"use {fix}",
        )
    if arch.masked and kind.causal_only:
        raise UserError(f"{kind.causal_only} needs a causal model", fix=f"leave kind {kind.name} out for masked models")
    if kind.trains and not trainable_of(config, arch):
        what = f"space {config.space.name!r} trains no parameter of model {config.model.name!r}"
        raise UserError(what, fix="use other space.targets")
    if config.space.positions and kind.trains and arch.no_prefix:
        raise UserError(arch.no_prefix, fix="use another space")
    if arch.no_points and kind.estimates and config.evaluation.mode.batched:
        what = f"one forward of model {config.model.name!r} cannot hold several points: {arch.no_points}"
        raise UserError(what, fix="use evaluation.mode=sequential")
    if arch.no_full_points and _holds_full_points(config):
        what = f"one forward of model {config.model.name!r} cannot hold several points of all its weights: "
        raise UserError(what + arch.no_full_points, fix="use evaluation.mode=sequential")
    if arch.no_full and kind.estimates and config.space.moves_base and config.evaluation.restore is Restore.EXACT:
        what = f"model {config.model.name!r} is not evaluated beside its weights: {arch.no_full}"
        raise UserError(what, fix="use evaluation.restore=in_place, or another space")


def trainable_of(config: TrialConfig, arch: Arch) -> int:
    """Return the number of values that a trial's space trains in a model."""
    return config.space.bind(config.precision).trainable(arch)


def is_corrected(config: TrialConfig, arch: Arch) -> bool:
    """Return whether a trial of this model was computed wrongly before, so that it has another id than it had.

    Over codes, buffers around the projections had no values; of several points of all weights in one forward, a
    parameter in common moved as if it were a norm's.
    """
    return (arch.filled and config.precision.coded) or (arch.shared and _holds_full_points(config))


def _difference(claimed: Model, arch: Arch) -> str:
    """Return in what the shape of a folder's model is not that of the model that it is said to hold; "" if it is."""
    from zo_sweeps.models.families import describe

    expected = describe(claimed.arch)
    sizes = [(name, getattr(arch, name), getattr(expected, name)) for name in SHAPE]
    return ", ".join(f"{name} {here}, not {there}" for name, here, there in sizes if here != there)


def _holds_full_points(config: TrialConfig) -> bool:
    """Return whether a trial's forwards hold several points of all weights."""
    return config.method.kind.estimates and config.space.moves_base and config.evaluation.mode.batched


def _with_package(config: TrialConfig, package: Package) -> None:
    """Raise UserError for a trial whose settings are not those that a package was made with."""
    where = str(package.folder)
    if wrong := package.contradiction(config.precision):
        raise UserError(wrong, where=where, fix="leave precision out for the package's")
    if not (config.method.kind.trains and config.space.needs_gradients):
        return
    mask, wanted = package.contents.mask, config.space.found_from
    if mask is None:
        what = "the package holds no mask, and none can be found without the plain weights"
        raise UserError(what, where=where, fix="package the model again, with the space")
    for key, value in write({"targets": config.space.layers, **wanted}).items():
        if mask.get(key) != value:
            raise UserError(f"space.{key} is {mask.get(key)} in the package, not {value}", where=where)
