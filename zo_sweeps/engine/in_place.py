"""f evaluated in theta itself: perturb, restore, and keep account of how far rounding drives theta away.

The option `evaluation.restore=in_place`, MeZO's own way; the default (see evaluate.py) never writes to theta.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import closing

import torch
from torch import Tensor

from zo_sweeps.engine.evaluate import Objective
from zo_sweeps.methods.perturbation import Perturbation
from zo_sweeps.methods.points import NoiseKey, Point
from zo_sweeps.methods.update import Params

PROBE = 1024  # elements of a parameter that the drift is measured at


class InPlace:
    """Stands theta at one point after the other by theta <- theta + delta * z, and back at the end.

    A two-sided query costs three passes over the parameters (delta = eps, -2 eps, eps) and one forward a point. delta *
    z is rounded before it is added, as in MeZO's code. What the passes of a step leave in theta, because additions
    round, is a part of the run: `replay` repeats the passes, without the forwards, and has the same bits.

    `drift`: max over elements of |sum over steps of (theta after the passes - theta before)|, at up to PROBE evenly
    spaced elements of each parameter. Memory: one parameter's noise, and the probes.
    """

    def __init__(self) -> None:
        self._drifted: dict[str, Tensor] = {}

    @property
    def drift(self) -> float:
        return max((total.abs().max().item() for total in self._drifted.values()), default=0.0)

    def losses(self, objective: Objective, params: Params, noise: Perturbation, points: Sequence[Point]) -> list[float]:
        """f at each point, in order."""
        losses: list[float] = []
        with closing(self._visits(params, noise, points)) as visits:  # closed, and theta put back, when f raises
            for _ in visits:
                with torch.inference_mode():
                    losses += objective(1).tolist()
        return losses

    def walk(self, params: Params, noise: Perturbation, points: Sequence[Point]) -> None:
        """The passes alone: leaves in theta what evaluating f at the points would."""
        for _ in self._visits(params, noise, points):
            pass

    def _visits(self, params: Params, noise: Perturbation, points: Sequence[Point]) -> Generator[None, None, None]:
        """Yields once at each point."""
        before = {name: _probe(param) for name, param in params.items()}
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
            moved = _probe(param) - before[name]
            past = self._drifted.get(name)
            # A space that changed its parameters on the way has others to be measured from now on.
            self._drifted[name] = moved if past is None or past.shape != moved.shape else past + moved


@torch.no_grad()
def _shift(params: Params, noise: Perturbation, key: NoiseKey, delta: float) -> None:
    """theta <- theta + delta * z(key)."""
    if delta:
        for name, param in params.items():
            z = noise.sample(key, name, param.shape, param.device)
            param.add_(z.mul_(delta).to(param.dtype))


def _probe(param: Tensor) -> Tensor:
    flat = param.detach().flatten()
    return flat[:: max(1, flat.numel() // PROBE)][:PROBE].float().clone()
