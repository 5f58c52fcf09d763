"""The rounding noise of a step's losses, measured against their spread: whether an estimate is signal or rounding."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial

import torch
from torch import Tensor, nn

from zo_sweeps.engine.evaluate import Objective
from zo_sweeps.engine.layers.weight_only import WeightCodes


class LossNoise:
    """An objective that also measures the rounding noise of a step's losses against their spread.

        noise = |c(f') - c(f)| / sqrt(2 (P - 1)),  signal = |c(f)| / sqrt(P - 1),  c(f) = f - mean(f)

    f are the losses of the step's P points, f' those of the same points with every rounding drawn anew: the outputs of
    each embedding of `module` are multiplied by 1 + u and 1 - u in turn, u the relative spacing of their dtype, or of
    the levels of rounded activations. What that does to the function itself is common to the points, to within u of the
    signal, and so is any rounding that does not depend on the point: c removes both.

    Signal includes noise, r = noise / signal. If every loss has independent noise on top of its exact value, estimates
    correlate with exact ones at 1 / sqrt(1 + c r^2 / (1 - r^2)): c = q / (2q - 1) for q pairs of points (sqrt(1 - r^2)
    for one), and 2q / (q + 1) for q points that share the loss at theta. `bench precision` measures both. Not in
    r: what rounding theta's own values to a half-precision dtype does at a point, which f and f' share.

    `again` is another f of the same batch, which keeps activations of its own (`Below`).

    Cost: one more forward of each point of a step that is measured, in the attributes `seconds` and `joules` (by the
    counter of that name), no part of the step; no memory but what `again` keeps.
    """

    def __init__(self, f: Objective, again: Objective, module: nn.Module, joules: Callable[[], float]) -> None:
        self._f, self._again, self._module, self._counter = f, again, module, joules
        self._pairs: list[tuple[float, float]] = []
        self.seconds = self.joules = 0.0

    @staticmethod
    def is_measured(step: int) -> bool:
        """Tell whether to measure at a step: 2 to 9, 16, 32, 64, ..., so at 18 of 20,000 steps."""
        return step > 1 and (step < 10 or step & (step - 1) == 0)

    def __call__(self, points: int) -> Tensor:
        losses = self._f(points)
        first = losses.tolist()  # waits for the device
        spent, began = self._counter(), time.perf_counter()
        with _rounded_anew(self._module):
            self._pairs += zip(first, self._again(points).tolist(), strict=True)
        self.seconds += time.perf_counter() - began
        self.joules += self._counter() - spent
        return losses

    @property
    def result(self) -> tuple[float, float] | None:
        """(noise, signal) of the points evaluated so far; None for fewer than two, or if f' is not finite."""
        if len(self._pairs) < 2:
            return None
        noise = _deviation([again - loss for loss, again in self._pairs]) / math.sqrt(2)
        return (noise, _deviation([loss for loss, _ in self._pairs])) if math.isfinite(noise) else None


def apart(losses: Sequence[float], others: Sequence[float]) -> tuple[float, float]:
    """Return (noise, signal) of a step's points from two machines' losses: noise is the rounding of both."""
    return _deviation([other - loss for loss, other in zip(losses, others, strict=True)]), _deviation(losses)


def noise_to_signal(measured: Iterable[tuple[float, float]]) -> float:
    """Return the root mean square of the noise over that of the signal, of several steps; NaN without a signal."""
    pairs = list(measured)
    signal = math.hypot(*(signal for _, signal in pairs))
    return math.hypot(*(noise for noise, _ in pairs)) / signal if signal else math.nan


def _deviation(values: Sequence[float]) -> float:
    mean = sum(values) / len(values)
    return math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1))


@contextmanager
def _rounded_anew(module: nn.Module) -> Iterator[None]:
    layers = list(module.modules())
    levels = max((layer.spacing for layer in layers if isinstance(layer, WeightCodes)), default=0.0)
    with ExitStack() as hooks:
        for layer in layers:
            if isinstance(layer, nn.Embedding):
                hooks.callback(layer.register_forward_hook(partial(_shaken, levels)).remove)
        yield


def _shaken(levels: float, layer: nn.Module, args: object, output: Tensor) -> Tensor:
    spacing = max(levels, torch.finfo(output.dtype).eps)
    factors = output.new_ones(output.shape[-1])
    factors[::2] += spacing
    factors[1::2] -= spacing
    return output * factors
