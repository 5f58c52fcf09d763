"""Half precision against fp32: the time of a forward, and what rounding leaves of projected gradients at each eps."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from zo_sweeps.core.caveats import NOISE_TO_SIGNAL
from zo_sweeps.core.host import interleaved
from zo_sweeps.engine.estimators.es import ES
from zo_sweeps.engine.estimators.rge import RGE
from zo_sweeps.engine.estimators.rge_one_sided import RGEOneSided
from zo_sweeps.engine.loss_noise import LossNoise, noise_to_signal
from zo_sweeps.engine.perturbations.gaussian import Gaussian
from zo_sweeps.engine.perturbations.low_rank import LowRank
from zo_sweeps.engine.perturbations.quantized import Quantized
from zo_sweeps.engine.precisions.bf16 import BF16
from zo_sweeps.engine.precisions.fp16 import FP16
from zo_sweeps.engine.precisions.fp32 import FP32
from zo_sweeps.engine.precisions.int4 import INT4
from zo_sweeps.engine.precisions.int8 import INT8
from zo_sweeps.engine.precisions.nf4 import NF4
from zo_sweeps.engine.spaces.codes import Codes
from zo_sweeps.engine.spaces.full import Full
from zo_sweeps.engine.spaces.lora_fa import LoRAFA
from zo_sweeps.engine.spaces.prefix import PrefixTuning
from zo_sweeps.engine.spaces.random_subset import RandomSubset
from zo_sweeps.engine.spaces.scales import Scales
from zo_sweeps.engine.spaces.vera import VeRA
from zo_sweeps.engine.step import Method, losses_at
from zo_sweeps.engine.train import no_joules
from zo_sweeps.engine.updates.sgd import SGD
from zo_sweeps.methods.estimator import Estimator
from zo_sweeps.methods.evaluation import Mode
from zo_sweeps.methods.parts import Model, ModelSource
from zo_sweeps.methods.points import Theta
from zo_sweeps.methods.precision import Precision, WeightOnlyPrecision
from zo_sweeps.methods.space import FullModel, Space
from zo_sweeps.methods.update import Rounding
from zo_sweeps.models.load import load
from zo_sweeps_bench.engine_parts import LLAMA_58M, BenchSteps, examples
from zo_sweeps_bench.measure import RatioRow

HALVES = {"bf16": torch.bfloat16, "fp16": torch.float16}
FORWARDS = ((1, 64), (32, 64))  # rows, tokens
DIRECTIONS, BATCH, TOKENS = 32, 4, 32
PLAIN = {"bf16": BF16(), "fp16": FP16()}
CODES = {"int8, bf16": INT8(compute="bf16"), "int8, fp16": INT8(), "int4, fp16": INT4(), "nf4, fp16": NF4()}
FIXED = {label: CODES[label] for label in ("int8, fp16", "nf4, fp16")}
MOVABLE = {label: codes for label, codes in CODES.items() if Theta.CODES in codes.stores}
SETTINGS: Sequence[tuple[str, Sequence[float], Space, Method, Mapping[str, Precision]]] = (
    ("full, rge", (1e-4, 1e-3), Full(), Method(RGE(), Gaussian(), SGD()), PLAIN),
    ("full, rge_one_sided", (1e-3, 1e-2), Full(), Method(RGEOneSided(q=4), Gaussian(), SGD()), PLAIN),
    ("full, es of rank 1", (1e-4, 1e-3), Full(), Method(ES(q=8), LowRank(rank=1, interval=1), SGD()), PLAIN),
    ("LoRA-FA, rge", (1e-3, 1e-2), LoRAFA(), Method(RGE(q=4), Gaussian(), SGD(), Mode.BOTH), {**PLAIN, **FIXED}),
    ("prefix, rge", (1e-2, 1e-1), PrefixTuning(), Method(RGE(), Gaussian(), SGD()), PLAIN),
    ("VeRA, rge", (1e-2, 1e-1), VeRA(), Method(RGE(), Gaussian(), SGD()), PLAIN),
    ("random 1 %, rge", (1e-3, 1e-2), RandomSubset(density=1e-2), Method(RGE(), Gaussian(), SGD()), {**PLAIN, **FIXED}),
    ("scales (QZO), rge with clip", (1e-4, 1e-3), Scales(), Method(RGE(clip=100), Gaussian(), SGD()), CODES),
    # Those of QES are the same numbers: it evaluates the same points, and takes another step.
    ("codes (QuZO), rge", (0.1, 1.0), Codes(), Method(RGE(), Quantized(), SGD(rounding=Rounding.STOCHASTIC)), MOVABLE),
)


def rows(rounds: int) -> Iterator[RatioRow]:
    """Measure all rows."""
    yield from _forwards(rounds)
    yield from noise()


def noise() -> Iterator[RatioRow]:
    """Measure the noise of losses over their signal, and compare the estimates with those of fp32, in every setting."""
    for name, scales, space, method, precisions in SETTINGS:
        for eps in scales:
            there = replace(method, estimator=replace(method.estimator, eps=eps))  # type: ignore[call-arg]  # all have it
            references: dict[Precision, Tensor] = {}
            for label, precision in precisions.items():
                whole = replace(precision, compute="fp32") if isinstance(precision, WeightOnlyPrecision) else FP32()
                if whole not in references:
                    references[whole], _ = estimates(space, there, whole)
                exact = references[whole]
                coefs, ratio = estimates(space, there, precision)
                correlation = float(torch.corrcoef(torch.stack([exact, coefs]))[0, 1])
                expected, size = expected_correlation(ratio, there.estimator), float(coefs.norm() / exact.norm())
                said = (
                    f"correlation with fp32 over {DIRECTIONS} directions: {correlation:.2f} ({expected:.2f} expected); "
                    f"size: {size:.2f} of theirs"
                )
                detail = {"correlation": correlation, "expected": expected, "size": size, "eps": eps}
                row = f"rounding noise over signal, {name}, {label}, eps={eps:g}"
                yield RatioRow(row, ratio, "of", NOISE_TO_SIGNAL, NOISE_TO_SIGNAL, said, detail)


def expected_correlation(ratio: float, estimator: Estimator) -> float:
    """Return the correlation of estimates with exact ones that a noise over signal predicts (see `LossNoise`)."""
    q, left = estimator.budget, 1 - ratio**2
    c = 2 * q / (q + 1) if isinstance(estimator, RGEOneSided) else q / (2 * q - 1)
    return math.sqrt(left / (left + c * ratio**2)) if left > 0 else 0.0


def estimates(space: Space, method: Method, precision: Precision) -> tuple[Tensor, float]:
    """Return the coefficients of DIRECTIONS directions on the demo model, and the noise over the signal of their steps.

    Each step has BATCH texts of TOKENS random tokens.
    """
    codes = precision if isinstance(precision, WeightOnlyPrecision) else None
    model = load(Model(), precision.dtype, torch.device("cpu"), codes)
    installed = space.install(model.module, model.layers_of(space), 0)
    bound = method.bind(installed.params)
    coefs: list[float] = []
    measured = []
    for step in range(1, DIRECTIONS // method.estimator.budget + 1):
        f = BenchSteps(model, installed, examples([TOKENS] * BATCH, step, 4096)).forward
        noisy = LossNoise(f, f, model.module, no_joules)
        points = bound.estimator.points(0, step)
        losses = losses_at(bound, model.module, installed, noisy, points)
        coefs += bound.estimator.combine(points, losses).coefs
        measured.append(noisy.result)
    return torch.tensor(coefs), noise_to_signal([pair for pair in measured if pair])


def _forwards(rounds: int) -> Iterator[RatioRow]:
    models = {
        name: load(Model(source=ModelSource.RANDOM, arch=LLAMA_58M), dtype, torch.device("cpu"))
        for name, dtype in {"fp32": torch.float32, **HALVES}.items()
    }
    for count, tokens in FORWARDS:
        data = examples([tokens] * count, 1)
        steps = {name: BenchSteps(model, FullModel(model.module), data) for name, model in models.items()}
        timed: Mapping[str, Callable[[], Tensor]] = {name: partial(_forward, one) for name, one in steps.items()}
        seconds = interleaved(timed, rounds)
        for name in HALVES:
            shape = f"{count} row{'s' * (count > 1)} of {tokens} tokens"
            gain = seconds["fp32"] / seconds[name]
            yield RatioRow(
                f"forward in {name}, 58 M, {shape}, against fp32", gain, "x", 1.0, 2.0, "the hardware", seconds
            )


@torch.inference_mode()
def _forward(steps: BenchSteps) -> Tensor:
    return steps.forward(1)
