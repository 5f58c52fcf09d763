"""Whether a program computes the engine's function: its scores and losses beside the engine's, at the same theta."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain

from zo_sweeps.core.errors import UserError
from zo_sweeps.engine.loss_noise import apart, noise_to_signal
from zo_sweeps.engine.losses import Scored
from zo_sweeps.engine.replay import replay
from zo_sweeps.engine.step import RunState, losses_at
from zo_sweeps.methods.space import InstalledSpace
from zo_sweeps.run.recorder import NOISE_STEPS
from zo_sweeps.run.workbench import Workbench

STEPS = NOISE_STEPS  # of a run, whose losses are compared
TOLERATED = 16  # units of rounding per layer, of the larger of a value and 1; two orders of summation are a few apart


def of_scores(bench: Workbench, theirs: Scored, ours: Scored) -> None:
    """Compare a program's scores with the engine's of the same examples. Raises UserError above TOLERATED."""
    for row, other in zip(chain(*ours.scores), chain(*theirs.scores), strict=True):
        _compare(bench, "score", "of the first rows", row, other)


def of_first_steps(
    bench: Workbench, space: InstalledSpace, losses: Mapping[int, Sequence[float]], coefs: Sequence[Sequence[float]]
) -> float:
    """Return what `loss_noise.noise_to_signal` returns of the differences between a program's losses and the engine's.

    The differences hold the rounding of both: of two forwards that round alike, sqrt(2) times that of one. Steps 1 to
    STEPS, whose theta is replayed, as the program's was; NaN if one of them is missing.

    Args:
        space: as it is before the first step; changed.
        losses: step -> the program's losses at its points, in the order of the estimator's.
        coefs: the run's coefficients.

    Raises UserError if a loss differs by more than TOLERATED allows. Cost: the forwards of STEPS steps.
    """
    method, rates, seed = bench.method().bind(space.params), bench.rates(), bench.config.seed
    state: RunState | None = None
    pairs = []
    for step in range(1, min(STEPS, bench.config.train.steps) + 1):
        if step not in losses:
            break
        points = method.estimator.points(seed, step)
        ours = losses_at(method, bench.model.module, space, bench.losses(space)(step), points)
        for own, other in zip(ours, losses[step], strict=True):
            _compare(bench, "loss", f"of step {step}", own, other)
        pairs.append(apart(ours, losses[step]))
        state = replay(method, space.params, [coefs[step - 1]], rates, seed=seed, state=state, first=step)
    return noise_to_signal(pairs) if len(pairs) == STEPS else float("nan")


def _compare(bench: Workbench, what: str, where: str, ours: float, theirs: float) -> None:
    arch, unit = bench.model.arch, bench.config.precision.unit
    units, most = abs(theirs - ours) / (unit * max(1.0, abs(ours))), TOLERATED * (arch.layers + 1)
    if not units <= most and theirs != ours:
        raise UserError(
            f"the program computes another function: a {what} {where} is {theirs:.9g}, and {ours:.9g} in PyTorch, "
            f"{units:,.0f} units of rounding apart, of at most {most}",
            fix="use device.delegate=none, and report the model's architecture",
        )
