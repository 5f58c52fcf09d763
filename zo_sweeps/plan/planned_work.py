"""The work that a trial is planned with: forwarded tokens, and the operations that take as long as it does."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import NamedTuple

from zo_sweeps.methods.arch import ALL, Arch
from zo_sweeps.methods.evaluation import GENERATED_TOGETHER, Restore
from zo_sweeps.methods.trial_config import TrialConfig

# Tokens of a large forward, without the head, that take the time which a forward of one new token per row takes beside
# its rows, for the weights are read for few of them: 30, 37, 35 at 1, 8, 16 rows of the demo model, and 22, 26, 34 of
# SmolLM2-135M (fp32, one thread of an AMD EPYC).
DECODING = 30
PERTURBED = 40  # and those that take the time of such a forward's noise, where each draws it anew: of the demo model


class Generations(NamedTuple):
    """Texts that a trial generates; the batches that it continues; those at weights that every forward perturbs."""

    texts: float
    batches: float
    perturbed: float = 0


def generations(config: TrialConfig, trainable: int, rows: Sequence[int]) -> Generations:
    """Count a trial's generations of a task's answers: of dev after each evaluation, of test once, and of steps.

    Args:
        rows: of dev and test.
    """
    kind, train, task, (dev, test) = config.method.kind, config.train, config.task.kind, rows
    if kind.generates or not task.generates:
        return Generations(0, 0)

    def together(texts: float) -> int:
        return ceil(texts / GENERATED_TOGETHER)

    evaluations, samples = evaluations_of(config), task.samples
    if not kind.trains:
        samples = kind.answers or samples
    texts = (evaluations * dev + test) * samples
    batches = evaluations * together(dev * samples) + together(test * samples)
    batch = train.batch or 1
    if kind.trains and kind.answers:
        texts += train.steps * batch * kind.answers
        return Generations(texts, batches + train.steps * together(batch * kind.answers))
    if not (kind.estimates and config.objective.generates):
        return Generations(texts, batches)
    points, evaluation = config.forwards(trainable), config.evaluation
    of_step = ceil(points / evaluation.points_per_forward(config.estimator)) * together(batch * samples)
    drawn = config.space.moves_base and not evaluation.mode.batched and evaluation.restore is Restore.EXACT
    texts += train.steps * points * batch * samples
    return Generations(texts, batches + train.steps * of_step, train.steps * of_step * drawn)


def evaluations_of(config: TrialConfig) -> int:
    """Return how often dev is scored."""
    return -(-config.train.steps // config.train.eval_every) if config.train.steps else 1


def work_of(
    config: TrialConfig, arch: Arch | None, trainable: int, stepped: float, scored: float, rows: Sequence[int]
) -> tuple[float, float]:
    """Estimate (the tokens that a trial forwards, its operations): every text of a generation has all its new tokens.

    A block that a step's points share counts once per minibatch.

    The operations are of as many tokens of a large forward as take the trial's time; 0 for an unknown shape, or without
    torch here.

    Args:
        stepped, scored: mean tokens per row of a step, and of scoring. rows: of dev and test.
    """
    kind, train, (dev, test) = config.method.kind, config.train, rows
    made, new = generations(config, trainable, rows), kind.new_tokens if kind.generates else config.task.max_new_tokens
    if kind.generates:
        tokens, single = float(new), float(new)
    else:
        evaluations, forwards = evaluations_of(config), float(config.forwards(trainable))
        if arch is not None and forwards:
            forwards -= (forwards - len(config.estimator.minibatches(1))) * config.shared_blocks(arch) / arch.layers
        examples = train.steps * (train.batch or 1) * forwards
        if kind.estimates and config.objective.generates:
            examples = 0.0  # the texts that are generated are all that its steps forward
        trained = stepped + new if kind.answers else stepped
        measured = (evaluations + 1) * 3 * config.gradients.samples
        tokens = examples * trained + measured * stepped + (evaluations * dev + test) * scored
        tokens += made.texts * (scored + new)
        single = made.batches * (new - 1)
    if arch is None or config.device.runs_programs:
        return tokens, 0.0
    experts = 3 * arch.layers * arch.width * arch.inner if arch.experts else 0  # those that a token passes
    weights, head = arch.entries([ALL]) + experts, arch.vocabulary * arch.width
    alike = tokens + DECODING * single + PERTURBED * made.perturbed * (new - 1)
    return tokens, 2.0 * (weights * alike + head * made.texts * new)
