"""The work of a trial, from its configuration and its model's shape. See `core.work` for what a machine makes of it."""

from __future__ import annotations

from zo_sweeps.core.work import Pass, Work
from zo_sweeps.methods.arch import ALL, Arch
from zo_sweeps.methods.evaluation import SCORED_TOKENS, Restore
from zo_sweeps.methods.trial_config import TrialConfig
from zo_sweeps.plan.availability import Availability

FP32 = 4
ROUNDS = 4  # of a timed generation, with the one that warms up
THIN = 3.0  # times as long as others take the products with factors of rank 16 (one core, 678 tokens, width 256)
BACKWARD, FROZEN = 3.0, 2.0  # a forward with its backward pass, in forwards; where no weight has a gradient


def work_of(config: TrialConfig, needs: Availability) -> Work | None:
    """Return the work of a trial; None if its model's shape is unknown, or it does not run on torch here.

    Counted are the forwards of steps, of dev and test, and of the memory's measurement by part; the noise and the
    trained values of points, updates and replay. Padding is not counted.
    """
    kind, precision, arch = config.method.kind, config.precision, needs.arch
    if arch is None or not kind.of_model or config.device.runs_programs:
        return None
    size = precision.format.bytes
    products = kind.multiplied_in or (config.space.moves_base and kind.trained_in) or precision
    tensors, numbers, moved = _noise(config, arch, needs.trainable)
    return Work(
        kind=_kind(config),
        dtype=products.format.torch_name,
        passes=tuple(_passes(config, arch, needs)),
        layers=arch.layers,
        layer_bytes=size * (arch.layers * layer_values(arch) + _added_values(config, arch)),
        weight_bytes=precision.weight_bytes(arch),
        decoded_bytes=(size + 1) * arch.entries([ALL]) if precision.coded else 0,
        tensors=tensors,
        numbers=numbers,
        moved_bytes=moved,
        reloads=config.space.moves_base and kind.trains,
    )


def _kind(config: TrialConfig) -> str:
    """Return the names of the members that decide where a trial's time goes."""
    kind, parts = config.method.kind, [config.method.kind.name, config.precision.name]
    if kind.multiplied_in is not None:
        parts.append(kind.multiplied_in.name)
    if kind.trains:
        parts += [config.space.name, config.update.name]
    if kind.estimates:
        parts += [config.perturbation.name, config.evaluation.mode.value, config.evaluation.restore.value]
    return " ".join(parts)


def layer_values(arch: Arch) -> float:
    """Return the values per token that a layer reads and writes beside its products: norms, rotation, gates, sums."""
    heads = (arch.heads + 2 * arch.kv_heads) * arch.head_width
    return 16 * arch.width + 6 * heads + 6 * arch.inner


def _added_values(config: TrialConfig, arch: Arch) -> float:
    """Return the values per token that modules beside the projections read and write, over all layers."""
    space = config.space
    if not _has_factors(config):
        return 0.0
    return float(arch.inputs(space.layers) + 3 * arch.outputs(space.layers))


def _has_factors(config: TrialConfig) -> bool:
    """Return whether a trial's projections are multiplied beside factors of their own."""
    space = config.space
    return config.method.kind.trains and bool(space.layers) and not (space.moves_base or space.sparse)


def products(arch: Arch, tokens: float, length: float, places: float) -> float:
    """Return the operations of a forward's matrix products.

    Args:
        length: tokens of a text, which attend to each other.
        places: positions whose logits are computed.
    """
    weights = 2 * tokens * arch.entries([ALL])
    if arch.experts:  # gate, up and down of those that a token passes through
        weights += 6 * tokens * arch.layers * arch.width * arch.inner
    attention = 4 * tokens * length * arch.heads * arch.head_width * arch.layers
    return weights + attention + 2 * places * arch.vocabulary * arch.width


def _passes(config: TrialConfig, arch: Arch, needs: Availability) -> list[Pass]:
    kind, train, tokens, trainable = config.method.kind, config.train, needs.tokens, needs.trainable
    if kind.generates:
        return [Pass("steps", ROUNDS * kind.generated, 1, products(arch, 1, kind.generated, 1))]
    task, dev, test = config.task, needs.dev, needs.test
    evaluations = -(-train.steps // train.eval_every) if config.steps else 0
    answer = task.max_new_tokens if task.kind.generates else 0

    def scoring(part: str, examples: float, times: float) -> list[Pass]:
        fit = max(1.0, min(examples, SCORED_TOKENS / tokens))  # examples per forward
        forwards = times * examples / fit
        made = [Pass(part, forwards, fit * tokens, products(arch, fit * tokens, tokens, fit))]
        written = Pass(part, times * examples * answer, 1, products(arch, 1, tokens, 1))
        return [*made, *([written] if answer and part == "scoring" else [])]

    passes = [*scoring("scoring", dev, evaluations if config.steps else 1), *scoring("scoring", test, 1)]
    passes += scoring("measurement", min(max(dev, test), SCORED_TOKENS / tokens), 1)
    stepped = needs.step_tokens
    if config.steps:
        passes += scoring("measurement", dev, 1)  # before the first step
        batch, points = train.batch or 1, config.forwards(trainable)
        together = config.evaluation.mode.points_per_forward(config.estimator.budget) if kind.estimates else 1
        examples = batch * min(together, max(points, 1))
        places = examples * (stepped if train.logits == "all" else 1)
        step = products(arch, examples * stepped, stepped, places)
        if _has_factors(config):
            step += THIN * 4 * examples * stepped * trainable
        forwards = points / min(together, max(points, 1))
        if kind.backpropagates:
            forwards = BACKWARD if config.space.moves_base else FROZEN
        if kind.backpropagates and kind.recomputes:
            forwards += 1
        passes.append(Pass("steps", config.steps * forwards, examples * stepped, step))
        passes.append(Pass("measurement", forwards * (2 if kind.backpropagates else 1), examples * stepped, step))
    if samples := config.gradients.samples:
        count = BACKWARD * (evaluations + 1) * samples
        passes.append(Pass("measurement", count, stepped, products(arch, stepped, stepped, 1)))
    return passes


def _noise(config: TrialConfig, arch: Arch, trainable: int) -> tuple[float, float, float]:
    """Return (tensors drawn, numbers drawn, bytes of trained values moved) of a whole trial.

    A step draws each direction for its points, of which a forward holds those of one direction together, and once more
    for its update. The weights of the selected step are drawn again from the log, unless it is the last.
    """
    kind, space, steps = config.method.kind, config.space, config.steps
    if not steps:
        return 0.0, 0.0, 0.0
    values = max(trainable, 1)
    passes = 2 + config.update.state_copies
    if not kind.estimates:
        return 0.0, 0.0, 2 * FP32 * steps * values * (1 + passes)
    drawn = _drawn(config, arch, trainable)
    directions, points = config.estimator.directions(values), config.estimator.evaluations(values)
    if config.evaluation.restore is Restore.IN_PLACE:
        draws = 1.5 * points
    elif config.evaluation.mode.batched:
        draws = directions
    else:
        draws = points
    evaluations = -(-steps // config.train.eval_every)
    replayed = 0.5 * (1 - 1 / evaluations)  # half of the steps, unless the last is selected
    updates = steps * directions * (1 + replayed)
    moved = 2 * FP32 * values * (steps * draws + updates * (passes - 1))
    shapes = arch.layers * max(1, len(arch.roles(space.layers)) if space.layers else len(arch.linears) + 2)
    return shapes * (steps * draws + updates), drawn * (steps * draws + updates), moved


def _drawn(config: TrialConfig, arch: Arch, trainable: int) -> float:
    """Return the random numbers of one direction: of a factored one over weights, those of its thin factors."""
    if config.perturbation.factored and config.space.moves_base:
        rank = getattr(config.perturbation, "rank", 1)
        return float(rank * (arch.inputs([ALL]) + arch.outputs([ALL]) + 2 * (arch.vocabulary + arch.width)))
    return float(trainable)
