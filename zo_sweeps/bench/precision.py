"""Half precision against fp32: the time of a forward, and what rounding leaves of projected gradients at each eps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from zo_sweeps.bench.measure import Row
from zo_sweeps.bench.ours import Steps, with_lora_fa
from zo_sweeps.bench.shapes import LLAMA_58M, Example, examples
from zo_sweeps.core.timing import interleaved
from zo_sweeps.engine.estimators.rge import RGE
from zo_sweeps.engine.layers.full import FullModel
from zo_sweeps.engine.perturbations.gaussian import Gaussian
from zo_sweeps.engine.rounding import resolution
from zo_sweeps.engine.step import Method, losses_at
from zo_sweeps.engine.updates.sgd import SGD
from zo_sweeps.methods.evaluation import Mode
from zo_sweeps.methods.parts import Model, ModelSource
from zo_sweeps.models.load import load

HALVES = {"bf16": torch.bfloat16, "fp16": torch.float16}
FORWARDS = ((1, 64), (32, 64))  # rows, tokens
EPS = (1e-4, 1e-3, 1e-2)
DIRECTIONS, BATCH, TOKENS = 16, 8, 32
RESOLVED = 0.3  # spacings of the loss: see `engine.rounding.resolution`


def rows(rounds: int) -> Iterator[Row]:
    """Measure all rows."""
    yield from _forwards(rounds)
    data = examples([TOKENS] * BATCH, 1, 4096)
    for eps in EPS:
        exact, _, _ = projected(torch.float32, data, eps)
        for name, dtype in HALVES.items():
            g, losses, span = projected(dtype, data, eps)
            ratio = resolution([g], losses[:1], span, dtype) / RESOLVED
            correlation = float(torch.corrcoef(torch.tensor([exact, g]))[0, 1])
            yield Row(
                f"resolution of projected gradients, {name}, eps={eps:g}, LoRA-FA on the demo model, of 0.3 spacings",
                ratio,
                "x",
                1.0,
                1.0,
                f"correlation with fp32's over {DIRECTIONS} directions: {correlation:.2f}",
                {"correlation": correlation, "spacings": ratio * RESOLVED, "eps": eps},
            )


def projected(
    dtype: torch.dtype, data: Sequence[Example], eps: float
) -> tuple[Sequence[float], Sequence[float], float]:
    """Return (projected gradients of DIRECTIONS directions, their losses, distance of a direction's two points)."""
    model = load(Model(), dtype, torch.device("cpu"))
    space = with_lora_fa(model, 16, 16)
    steps = Steps(model, space, data)
    method = Method(RGE(DIRECTIONS, eps), Gaussian(), SGD(), Mode.SEQUENTIAL).bind(space.params)
    points = method.estimator.points(0, 1)
    losses = losses_at(method, model.module, space, steps.forward, points)
    estimate = method.estimator.combine(points, losses)
    return estimate.coefs, losses, method.estimator.span


def _forwards(rounds: int) -> Iterator[Row]:
    models = {
        name: load(Model(source=ModelSource.RANDOM, arch=LLAMA_58M), dtype, torch.device("cpu"))
        for name, dtype in {"fp32": torch.float32, **HALVES}.items()
    }
    for count, tokens in FORWARDS:
        data = examples([tokens] * count, 1)
        steps = {name: Steps(model, FullModel(model.module), data) for name, model in models.items()}
        timed: Mapping[str, Callable[[], Tensor]] = {name: partial(_forward, one) for name, one in steps.items()}
        seconds = interleaved(timed, rounds)
        for name in HALVES:
            shape = f"{count} row{'s' * (count > 1)} of {tokens} tokens"
            gain = seconds["fp32"] / seconds[name]
            yield Row(f"forward in {name}, 58 M, {shape}, against fp32", gain, "x", 1.0, 2.0, "the hardware", seconds)


@torch.inference_mode()
def _forward(steps: Steps) -> Tensor:
    return steps.forward(1)
