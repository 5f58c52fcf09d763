"""Evaluation of f in theta itself: perturb, restore, and record how far rounding makes theta drift.

This is the option `evaluation.restore=in_place`, as in MeZO; the default (see evaluate.py) never writes to theta.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import closing

import torch
from torch import Tensor

from zo_sweeps.engine.evaluate import Objective
from zo_sweeps.engine.rounding import probe
from zo_sweeps.methods.perturbation import Perturbation
from zo_sweeps.methods.points import NoiseKey, Point
from zo_sweeps.methods.update import Params


class InPlace:
    """Evaluation that moves theta to each point in turn, theta <- theta + delta * z, and restores it at the end.

    A two-sided query costs three passes over the parameters (delta = eps, -2 eps, eps) and one forward per point. delta
    * z is rounded before it is added, as in MeZO's code. The rounding error that a step's passes leave in theta is part
    of the run: `replay` repeats the passes, without the forwards, and is bit-identical.

    `drift`: max over elements of |sum over steps of (theta after the passes - theta before)|, at up to PROBE evenly
    spaced elements of each parameter. Memory: one parameter's noise, and the probes.
    """

    def __init__(self) -> None:
        self._drifted: dict[str, Tensor] = {}

    @property
    def drift(self) -> float:
        """The largest drift of any probed element so far; see the class."""
        return max((total.abs().max().item() for total in self._drifted.values()), default=0.0)

    def losses(self, objective: Objective, params: Params, noise: Perturbation, points: Sequence[Point]) -> list[float]:
        """Return f at each point, in order."""
        losses: list[float] = []
        with closing(self._visits(params, noise, points)) as visits:  # closing restores theta if f raises
            for _ in visits:
                with torch.inference_mode():
                    losses += objective(1).tolist()
        return losses

    def walk(self, params: Params, noise: Perturbation, points: Sequence[Point]) -> None:
        """Run the passes without the forwards: theta ends up as if f had been evaluated at the points."""
        for _ in self._visits(params, noise, points):
            pass

    def _visits(self, params: Params, noise: Perturbation, points: Sequence[Point]) -> Generator[None, None, None]:
        """Move theta to each point in turn; yield once at each."""
        before = {name: probe(param).float() for name, param in params.items()}
        key, scale = points[0].key, 0.0
        try:
            for point in points:
                if point.key != key:
                    _shift(params, noise, key, -scale)
                    key, scale = point.key, 0.0
                _shift(params, noise, key, point.scale - scale)
                scale = point.scale
                yield
        finally:
            _shift(params, noise, key, -scale)
        for name, param in params.items():
            moved = probe(param).float() - before[name]
            previous = self._drifted.get(name)
            # If the space has changed its parameters meanwhile, measure the new ones from here on.
            self._drifted[name] = moved if previous is None or previous.shape != moved.shape else previous + moved


@torch.no_grad()
def _shift(params: Params, noise: Perturbation, key: NoiseKey, delta: float) -> None:
    """Set theta <- theta + delta * z(key)."""
    if delta:
        for name, param in params.items():
            z = noise.sample(key, name, param.shape, param.device)
            param.add_(z.mul_(delta).to(param.dtype))
