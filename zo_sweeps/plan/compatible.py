"""Compatibility of the parts of a trial, checked before anything is loaded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from typing import TYPE_CHECKING, Any

from zo_sweeps.core.errors import UserError, unknown
from zo_sweeps.methods import registry
from zo_sweeps.methods.definition import write
from zo_sweeps.methods.evaluation import Restore
from zo_sweeps.methods.kind import Kind
from zo_sweeps.methods.metric import Of
from zo_sweeps.methods.objective import OWN, Objective
from zo_sweeps.methods.perturbation import Reads
from zo_sweeps.methods.points import Theta
from zo_sweeps.methods.precision import WeightOnlyPrecision
from zo_sweeps.methods.task import CHAT
from zo_sweeps.methods.trial_config import TrialConfig, texts_of
from zo_sweeps.methods.update import Update

if TYPE_CHECKING:
    from zo_sweeps.methods.arch import Arch
    from zo_sweeps.methods.parts import Model
    from zo_sweeps.models.identity import ModelStatus
    from zo_sweeps.models.package import Package


def incompatible(config: TrialConfig) -> list[str]:
    """Return every reason why a configuration cannot run on any machine."""
    own = config.method.kind.problems
    if (wrong := [*_circuit(config)]) or not config.method.kind.of_model:
        return wrong or [*own(config)]
    rules = (_prompt, _estimation, own, _objective, _measuring, _training, _codes, _theta, _halving)
    return [*chain.from_iterable(rule(config) for rule in rules)]


def _halving(config: TrialConfig) -> Iterator[str]:
    """Yield the problems of a log that would not be read, and of the rungs of successive halving."""
    train, kind = config.train, config.method.kind
    if config.device.log is not None and not config.device.runs_programs:
        yield "device.log is of a program's run: set device.runtime=executorch"
    if train.halving_among:
        yield "train.halving_among is the planner's; leave it out"
    if not (train.halving and kind.resumes):
        return
    shares = ",".join(f"{share:g}" for share in train.halving)
    if config.device.runs_programs:
        yield f"train.halving=[{shares}] pauses trials, which an exported program cannot do; leave it out"
    if sorted({*train.halving}) != [*train.halving] or not all(0 < share < 1 for share in train.halving):
        yield f"train.halving=[{shares}] are no ascending shares between 0 and 1"
    if train.halving_keep >= 1:
        yield f"train.halving_keep={train.halving_keep:g} stops no trial; use a share below 1"


def _circuit(config: TrialConfig) -> Iterator[str]:
    """Yield the problems of a kind of trial on a device that makes circuits, or of a circuit on any other."""
    kind, device = config.method.kind, config.device
    if kind.of_model and device.makes_circuits:
        yield f"device={device.name} makes circuits: method kind {kind.name!r} needs a device that runs models"
    if not kind.of_model and not device.makes_circuits:
        yield f"method kind {kind.name!r} makes circuits: use device=rtl, not {device.name}"


def _estimation(config: TrialConfig) -> Iterator[str]:
    """Yield the problems of a zeroth-order step."""
    if not config.method.kind.estimates:
        return
    mode, space = config.evaluation.mode, config.space
    estimator, perturbation = config.estimator, config.perturbation
    if config.train.batch is None:
        effective = config.train.effective_batch
        yield f"effective batch {effective} is not a multiple of q={estimator.budget}; set train.batch"
    if mode.batched and not (space.batched or (space.moves_base and perturbation.factored)):
        factored = _having(perturbation.axis, lambda one: one.factored)
        yield (
            f"evaluation.mode={mode.value} cannot hold several points of space {space.name!r}; use space=lora_fa, "
            f"evaluation.mode=sequential, or with space=full perturbation={factored}"
        )
    if estimator.coordinates != perturbation.coordinates:
        needy, other = (estimator, perturbation) if estimator.coordinates else (perturbation, estimator)
        partners = _having(other.axis, lambda one: one.coordinates)
        yield f"{needy.axis}={needy.name} goes with {other.axis}={partners} only, not {other.name}"
    elif estimator.coordinates and mode.batched:
        yield (
            f"estimator={estimator.name} has two points per parameter: evaluation.mode must be sequential, not "
            f"{mode.value}"
        )
    if estimator.coordinates and config.train.examples is not None:
        what = f"estimator={estimator.name} has two points per parameter, of which train.examples knows no number"
        yield f"{what}: give train.steps"
    if estimator.owns_rows:
        what = f"estimator={estimator.name} gives each direction rows of its own"
        if config.evaluation.restore is Restore.IN_PLACE:
            yield f"{what}: evaluation.restore must be exact, not in_place"
        if config.update.evaluations:
            yield f"{what}, and update={config.update.name} evaluates all of them together; use update=sgd"
        if config.evaluation.parts:
            yield f"{what}: evaluation.parts must be null, not {config.evaluation.parts}"
    if perturbation.needs and perturbation.needs != estimator.gives:
        partners = _having(estimator.axis, lambda one: one.gives == perturbation.needs)
        yield f"perturbation={perturbation.name} goes with estimator={partners} only, not {estimator.name}"
    if config.update.needs_factors and not (perturbation.keeps_factor and estimator.budget == 1):
        keeping = _having(perturbation.axis, lambda one: one.keeps_factor)
        yield f"update={config.update.name} is of one direction in factors: perturbation={keeping}, estimator.q=1"
    if config.update.draws_again and perturbation.reads is not Reads.NOISE:
        yield (
            f"update={config.update.name} draws directions of earlier steps again, and those of "
            f"perturbation={perturbation.name} depend on {perturbation.reads.value}; use another update"
        )
    if config.update.one_by_one and perturbation.reads is Reads.WEIGHTS and estimator.budget > 1:
        what = f"update={config.update.name} moves the weights that perturbation={perturbation.name} reads"
        yield f"{what} between its {estimator.budget} directions; use update=sgd"
    if config.update.divides_by_mean and estimator.centred:
        what = f"update={config.update.name} divides by the mean of a step's coefficients"
        yield f"{what}, and those of estimator={estimator.name} add up to 0; use update=sgd"
    if perturbation.no_zeros and space.has_zeros:
        what = f"matrices of space={space.name} begin at 0"
        yield f"{what}, and perturbation={perturbation.name} {perturbation.no_zeros}"
    if config.evaluation.restore is Restore.IN_PLACE and perturbation.reads in (Reads.WEIGHTS, Reads.DATA):
        yield f"evaluation.restore=in_place moves the weights that perturbation={perturbation.name} reads; use exact"
    if perturbation.reads is Reads.DATA:
        what = f"perturbation={perturbation.name} reads the inputs of the model's own layers in the step's minibatch"
        if not space.moves_base:
            yield f"{what}: use space=full, not {space.name}"
        if estimator.owns_rows:
            yield f"{what}, and estimator={estimator.name} has one for each direction: use another estimator"
        if config.evaluation.parts:
            yield f"{what}, whose rows one forward must hold: evaluation.parts must be null"
    if config.evaluation.points is not None and not mode.batched:
        yield (
            f"evaluation.points={config.evaluation.points} is of modes whose forwards hold several points, not of "
            f"{mode.value}; use evaluation.mode=outer or both"
        )
    if config.evaluation.restore is Restore.IN_PLACE and mode.batched:
        yield f"evaluation.restore=in_place holds one point: evaluation.mode must be sequential, not {mode.value}"


def _prompt(config: TrialConfig) -> Iterator[str]:
    """Yield the problem of a system text that no chat begins with."""
    if config.prompt.system and config.prompt.name != CHAT:
        yield f"prompt.system is a turn of a chat: use prompt={CHAT}, not {config.prompt.name}"


def _objective(config: TrialConfig) -> Iterator[str]:
    """Yield the problems of the training objective."""
    name, task = config.train.objective, config.task
    own = task.wording(config.prompt.name).loss
    every = {key: made for key, one in registry.members("objective").items() if isinstance(made := one(), Objective)}
    if name not in (OWN, *every):
        yield str(unknown("objective", name, (OWN, *every), where="train.objective"))
        return
    trained = own if name == OWN else every[name]
    fitting = [key for key, one in every.items() if not one.fits(task) and one.masked == own.masked]
    if name not in (OWN, *fitting):
        reason = trained.fits(task) or f"the prompt is {'with' if own.masked else 'without'} a mask"
        yield f"train.objective must be {', '.join(fitting)} or {OWN} for this task, not {name}: {reason}"
    kind, rewarded = config.method.kind, trained.generates and task.kind.predicts is Of.REWARDS
    if kind.answers and task.kind.predicts is not Of.REWARDS:
        yield f"method kind {kind.name!r} samples answers for their rewards, and the task has none"
    elif kind.answers and kind.trains and not rewarded:
        yield f"method kind {kind.name!r} trains on rewards of sampled answers: use train.objective=reward"
    elif not trained.differentiable and kind.backpropagates and not kind.answers:
        reason = f"train.objective={trained.name} is not differentiable: it needs a zeroth-order method"
        yield reason + (", or method=policy_gradient" if rewarded else "")
    if trained.generates and config.method.kind.estimates and config.estimator.owns_rows:
        several = f"estimator={config.estimator.name} has one for each direction"
        yield f"train.objective={trained.name} generates for one minibatch a step, and {several}"
    if trained.generates and config.method.kind.estimates and config.evaluation.parts:
        yield f"train.objective={trained.name} generates for all rows together: evaluation.parts must be null"
    if trained.generates and config.method.kind.estimates and config.perturbation.reads is Reads.DATA:
        yield f"train.objective={trained.name} generates, and perturbation={config.perturbation.name} reads one forward"


def _measuring(config: TrialConfig) -> Iterator[str]:
    """Yield the problems of timing a generation and of measuring gradients."""
    kind, space, mode = config.method.kind, config.space, config.evaluation.mode
    if kind.generates:  # over a space that needs no gradients and adds no layers
        timed = _having(
            "space",
            lambda one: one.theta is Theta.FLOATS and not one.needs_gradients and (one.sparse or one.moves_base),
        )
        if space.name not in timed.split(" or "):
            yield f"generation is timed over space {timed}, not {space.name}"
        if mode.batched:
            yield f"generation is of one point: evaluation.mode must be sequential, not {mode.value}"
    if config.gradients.samples and not (kind.backpropagates and space.moves_base):
        yield "gradients.samples requires method.kind=fo and space=full"


def _training(config: TrialConfig) -> Iterator[str]:
    """Yield the problems of training."""
    kind, update, space = config.method.kind, config.update, config.space
    if not kind.trains:
        return
    if not _fits(update, kind):
        updates = _having("update", lambda one: _fits(one, kind))
        yield f"update {update.name!r} does not go with method kind {kind.name!r}; use {updates}"
    if update.rounds_randomly and not (
        space.moves_base
        and (space.theta is Theta.CODES or config.precision.format.bytes == 2)
        and not kind.backpropagates
    ):
        yield (
            "update.rounding=stochastic rounds weights that are trained in half precision, and integer codes: it needs "
            "a zeroth-order method with space=full and precision=bf16 or fp16, or with space=codes, not "
            f"space={space.name} and {config.precision.name}"
        )
    if update.keeps_nonnegative and kind.backpropagates:
        yield "update.nonnegative is of zeroth-order methods"
    if update.steps_fused and not kind.backpropagates:
        yield "update.fused is of backpropagation: a zeroth-order step has one implementation"
    if config.train.steps < 1:
        yield f"train.steps must be at least 1, not {config.train.steps}"
    if kind.backpropagates and space.renewed_every:
        yield "space.refresh must be 0 in backpropagation: its optimizer holds the entries it began with"
    yield from _backpropagation(config)
    precision = config.precision
    trained = (space.moves_base and kind.trained_in) or precision
    if config.device.cpu and kind.backpropagates and not trained.format.backpropagates_on_cpu:
        name, fix = (precision.name, "precision=fp32 or bf16")
        if isinstance(precision, WeightOnlyPrecision):
            name, fix = precision.compute, "precision.compute=fp32 or bf16"
        yield f"backpropagation in {name} on a CPU is not supported; use {fix}"


def _backpropagation(config: TrialConfig) -> Iterator[str]:
    """Yield the problems of what backpropagation keeps: the format of the weights, and of activations."""
    kind, update, space = config.method.kind, config.update, config.space
    own = kind.trained_in
    if own is not None and own.format.bytes < 4:
        if not space.moves_base:
            yield (
                f"method.weights={own.name} is of space=full: space {space.name!r} trains fp32 parameters of its own, "
                "over weights in `precision`"
            )
        elif not update.trains_halves:
            yield (
                f"update {update.name!r} would keep its state in {own.name}, where small changes are lost; use "
                f"{_having('update', lambda one: one.trains_halves)}"
            )
    stored = (space.moves_base and own) or config.precision
    if kind.multiplied_in is not None and (config.precision.coded or stored.format.bytes < 4):
        weights = "method.weights" if space.moves_base else "precision"
        yield f"method.mixed_precision is over fp32 weights: use {weights}=fp32, not {stored.name}"
    if kind.is_layerwise:
        if not _beside(type(space)):
            yield (
                "method.layerwise moves a layer when its gradients are there, and they are of factors beside its "
                f"weights: use space={_having('space', _beside)}, not {space.name}"
            )
        if kind.multiplied_in is not None:
            yield "method.layerwise moves a layer at a time, and method.mixed_precision skips a step whole: use one"
    elif kind.recomputes and space.positions:
        yield (
            f"method.gradient_checkpointing computes layers again, and space {space.name!r} has keys and values that a "
            "forward adds to"
        )


def _beside(space: type[Any]) -> bool:
    """Return whether a space has dense parameters beside the weights of its layers."""
    return bool(space.batched and not space.sparse and space().layers)


def _codes(config: TrialConfig) -> Iterator[str]:
    """Yield the problems of training over weights that are stored as codes."""
    kind, space, precision = config.method.kind, config.space, config.precision
    if not (kind.trains or kind.generates):
        return
    own = space.theta is Theta.FLOATS  # the model's weights, or parameters beside them
    if not own and space.theta not in precision.stores:
        fitting = _having("precision", lambda one: space.theta in one().stores)
        yield f"space {space.name!r} trains {space.theta.value}: use precision={fitting}, not {precision.name}"
    if not precision.coded:
        return
    if precision.rounds_activations and kind.backpropagates:
        yield f"precision={precision.name} rounds activations, which no gradient passes: use a zeroth-order method"
        return
    if not own and kind.backpropagates:
        yield f"backpropagation does not reach space {space.name!r}: use a zeroth-order method"
    if own and space.moves_base and kind.trains:
        yield (
            f"space {space.name!r} trains the weights themselves, which precision={precision.name} stores as codes; "
            "use a space beside them, such as lora_fa (method=lozo_codes: directions of low rank that B sums)"
        )
    elif space.sparse and kind.backpropagates:
        yield f"backpropagation does not reach entries beside the codes of precision={precision.name}"
    elif space.needs_gradients and space.renewed_every:
        yield f"space.refresh must be 0: the codes of precision={precision.name} have no gradients for later masks"


def _theta(config: TrialConfig) -> Iterator[str]:
    """Yield the problems of moving what the space trains: integers by integers, and nothing else by them."""
    space, update = config.space, config.update
    if not config.method.kind.estimates:
        return
    for part, verb, or_else in (
        (config.perturbation, "draws", ""),
        (update, "moves", ", or update=sgd with update.rounding=stochastic"),
    ):
        if space.theta in part.moves:
            continue
        if space.theta is Theta.CODES:
            fitting = _having(part.axis, lambda one: Theta.CODES in one().moves)
            yield f"space {space.name!r} moves by integers: use {part.axis}={fitting}{or_else}, not {part.name}"
        else:
            moved = part.moves
            fitting = _having("space", lambda one: one.theta in moved)  # noqa: B023  # it is called at once
            yield f"{part.axis} {part.name!r} {verb} integers: use space={fitting}, not {space.name}"
    if space.theta is not Theta.CODES:
        return
    if update.keeps_nonnegative:
        yield f"space {space.name!r} has integers of both signs: update.nonnegative must be false"
    if config.evaluation.restore is Restore.IN_PLACE:
        yield f"space {space.name!r} is evaluated beside its codes: use evaluation.restore=exact"


def _having(axis: str, fits: Callable[[Any], bool]) -> str:
    """Return the names of an axis's members that fit, as a choice: "sgd or adamw"."""
    return " or ".join(name for name, one in registry.members(axis).items() if fits(one))


def _fits(update: Update | type[Update], kind: Kind) -> bool:
    return update.backpropagates if kind.backpropagates else update.zeroth_order


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
    if arch.masked != config.task.wording(config.prompt.name).loss.masked:
        masked, causal = ("masked", "without"), ("causal", "with")
        (one, other), (suited, needed) = (masked, causal) if arch.masked else (causal, masked)
        fitting = [name for name, it in config.task.dialects.items() if it.loss.masked == arch.masked]
        fix = " or ".join(f"prompt={name}" for name in fitting) or (
            f"a {suited} model, or a dialect of the task {needed} {{{{ mask }}}} (docs/adding/task.md)"
        )
        raise UserError(
            f"model {config.model.name!r} is a {one} one, and prompt {config.prompt.name!r} of task "
            f"{config.task.name!r} is {other} a mask",
            fix=f"use {fix}",
        )
    if arch.masked and (named := [key for _, key in texts_of(config)]):
        fix = "use space.source=task, precision.sensitivity=none, or gradients.samples=0"
        raise UserError(f"gradients of a text ({named[0]}) are those of a causal model", fix=fix)
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
    compares = config.update.evaluations  # steps, beside the weights
    beside = config.evaluation.restore is Restore.EXACT or compares
    if arch.no_full and kind.estimates and config.space.moves_base and beside:
        other = "another update" if compares else "evaluation.restore=in_place"
        what = f"model {config.model.name!r} is not evaluated beside its weights: {arch.no_full}"
        raise UserError(what, fix=f"use {other}, or another space")


def trainable_of(config: TrialConfig, arch: Arch) -> int:
    """Return the number of values that a trial's space trains in a model."""
    return config.space.bind(config.precision).trainable(config.space.moved(arch))


def is_corrected(config: TrialConfig, arch: Arch) -> bool:
    """Return whether a trial of this model was computed wrongly before, so that it has another id than it had.

    Over codes, buffers around the projections had no values; of several points of all weights in one forward, a
    parameter in common moved as if it were a norm's; an update took what an estimator gives besides for coefficients;
    sgd's weight decay came before masks of the weights.
    """
    if config.method.kind.estimates:
        decays = config.update.adds_noise and getattr(config.update, "weight_decay", 0.0) > 0
        masked = config.perturbation.reads is Reads.WEIGHTS
        if (decays and masked) or (config.update.reads_coefs and config.estimator.gives):
            return True
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
    ours = write({"targets": config.space.layers, **wanted})
    for key in {**mask, **ours}:
        if mask.get(key) != ours.get(key):
            raise UserError(f"space.{key} is {mask.get(key)} in the package, not {ours.get(key)}", where=where)
