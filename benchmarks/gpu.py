"""GPU benchmarks: the perturbation pass against memory bandwidth, products with codes, a step of a 7B model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from benchmarks import codes, sparse
from benchmarks.codes import awaited
from zo_sweeps.bench.measure import RatioRow
from zo_sweeps.bench.workload import LLAMA_58M, BenchSteps, examples
from zo_sweeps.core.errors import UserError
from zo_sweeps.core.host import interleaved
from zo_sweeps.engine import noise
from zo_sweeps.engine.layers.full import FullModel
from zo_sweeps.methods.parts import Model, ModelSource
from zo_sweeps.methods.points import NoiseKey
from zo_sweeps.models.causal import CausalModel
from zo_sweeps.models.load import load
from zo_sweeps.tasks.encode import EncodedExample

ELEMENTS = 1 << 28
TOKENS = 64
LLAMA_2_7B = {  # 6.74 G parameters
    **LLAMA_58M,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "max_position_embeddings": 4096,
}


def rows(rounds: int) -> Iterator[RatioRow]:
    """Measure all GPU rows. Raises UserError without a GPU."""
    if not torch.cuda.is_available():
        raise UserError("torch sees no CUDA GPU here", where="benchmarks gpu", fix="run it on a GPU node")
    device = torch.device("cuda")
    for dtype in (torch.float16, torch.float32):
        yield perturbation(device, dtype, ELEMENTS, rounds)
    for shape in codes.LARGE:
        yield from codes.products(device, shape, "fp16", rounds)
        for kind in ("fp16", "int8", "nf4"):
            yield sparse.products(device, shape, kind, "fp16", rounds)
    model = load(Model(source=ModelSource.RANDOM, arch=LLAMA_2_7B), torch.float16, device)
    yield step(model, examples([TOKENS], 1), "Llama-2-7B shape, fp16", rounds)


def perturbation(device: torch.device, dtype: torch.dtype, elements: int, rounds: int) -> RatioRow:
    """Time theta + eps z, written to another tensor, against a copy: both read and write every element once."""
    theta = torch.randn(elements, device=device).to(dtype)
    out, key = torch.empty_like(theta), NoiseKey(0, 1, 0)
    functions = {
        "copy": lambda: out.copy_(theta),
        "perturbation": lambda: noise.combine([(key, 1e-3)], "w", theta.shape, device, base=theta, out=out),
    }
    seconds = interleaved({name: awaited(function, device) for name, function in functions.items()}, rounds)
    moved = 2 * elements * theta.element_size()
    kernel = device.type == "cuda" and noise._triton(torch.device("cuda", 0), dtype, True) is not None
    detail = {**{f"{name}, GB/s": moved / value / 1e9 for name, value in seconds.items()}, "triton": kernel}
    name = f"perturbation pass, {dtype}, {elements / 2**20:.4g} Mi elements, against a copy".replace("torch.", "")
    return RatioRow(name, seconds["copy"] / seconds["perturbation"], "x", 0.8, 0.95, "1x: copy bandwidth", detail)


def step(model: CausalModel, data: list[EncodedExample], what: str, rounds: int) -> RatioRow:
    """Time a full-parameter MeZO step (q=1) against two forwards and two passes that read and write every weight."""
    steps = BenchSteps(model, FullModel(model.module), data)
    device = steps.device

    def forwards() -> None:
        with torch.inference_mode():
            steps.forward(1)
            steps.forward(1)

    @torch.no_grad()
    def passes() -> None:
        for _ in range(2):
            for param in steps.space.params.values():
                param.mul_(1.0)

    functions: dict[str, Callable[[], Any]] = {"ours": steps.one(), "two forwards": forwards, "two passes": passes}
    seconds = interleaved({name: awaited(function, device) for name, function in functions.items()}, rounds)
    limit = seconds["two forwards"] + seconds["two passes"]
    name = f"full-parameter step, {what}, B={len(data)} T={TOKENS}, against two forwards and two weight passes"
    return RatioRow(name, seconds["ours"] / limit, "of", 1.25, 1.0, "1.00", seconds)
