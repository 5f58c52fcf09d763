"""Whether a program computes the engine's function: its scores and losses beside the engine's, at the same theta."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from zo_sweeps.core.errors import UserError
from zo_sweeps.engine.loss_noise import apart, noise_to_signal
from zo_sweeps.engine.losses import Scored
from zo_sweeps.engine.step import losses_at
from zo_sweeps.methods.space import InstalledSpace
from zo_sweeps.run.recorder import NOISE_STEPS
from zo_sweeps.run.workbench import Workbench

STEPS = NOISE_STEPS  # of a run, whose losses are compared
TOLERATED = 16  # units of rounding per layer, of the larger of a value and 1; two orders of summation are a few apart


def of_scores(bench: Workbench, theirs: Scored, ours: Scored) -> None:
    """Compare a program's scores with the engine's of the same examples. Raises UserError above TOLERATED."""
    for row, other in zip(chain(*ours.scores), chain(*theirs.scores), strict=True):
        _compare(bench, "score", "of the first rows", row, other)


def of_step(
    bench: Workbench,
    space: InstalledSpace,
    step: int,
    losses: Sequence[float],
    measured: list[tuple[float, float]],
) -> None:
    """Compare a program's losses at the points of one of the first STEPS steps with the engine's.

    After the last of them `noise_to_signal` is recorded, which holds the rounding of both: of two forwards that round
    alike, sqrt(2) times that of one.

    Args:
        space: at theta before the step, as the program's was.
        losses: the program's, in the order of the estimator's points.
        measured: `loss_noise.apart` of the steps that were compared before; grows.

    Raises UserError if a loss differs by more than TOLERATED allows. Cost: the forwards of a step.
    """
    method = bench.method().bind(space.params)
    points = method.estimator.points(bench.config.seed, step)
    ours = losses_at(method, bench.model.module, space, bench.losses(space)(step), points)
    for own, other in zip(ours, losses, strict=True):
        _compare(bench, "loss", f"of step {step}", own, other)
    measured.append(apart(ours, losses))
    if len(measured) == STEPS:
        bench.recorder.take_noise_to_signal(noise_to_signal(measured))


def _compare(bench: Workbench, what: str, where: str, ours: float, theirs: float) -> None:
    arch, unit = bench.model.arch, bench.config.precision.unit
    units, most = abs(theirs - ours) / (unit * max(1.0, abs(ours))), TOLERATED * (arch.layers + 1)
    if not units <= most and theirs != ours:
        raise UserError(
            f"the program computes another function: a {what} {where} is {theirs:.9g}, and {ours:.9g} in PyTorch, "
            f"{units:,.0f} units of rounding apart, of at most {most}",
            fix="use device.delegate=none, and report the model's architecture",
        )
