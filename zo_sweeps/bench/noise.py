"""Noise benchmark: nanoseconds per element against `normal_`, and an attention layer's direction."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from zo_sweeps.bench.measure import Row
from zo_sweeps.core.timing import interleaved
from zo_sweeps.engine import noise
from zo_sweeps.methods.points import NoiseKey

ELEMENTS = 1 << 22
LAYER = (4, 4096, 4096)  # the projections of an attention layer of Llama2-7B: PeZO, section 2.3


def rows(rounds: int) -> Iterator[Row]:
    """Measure the torch expression and the compiled map, on one thread and on all."""
    out, key = torch.empty(ELEMENTS), NoiseKey(0, 1, 0)
    here = torch.get_num_threads()
    seconds: dict[str, float] = {}
    compiled = noise.is_compiled()

    def compiled_fill() -> None:
        noise.combine([(key, 1.0)], "w", out.shape, out=out)

    try:
        for threads in dict.fromkeys((1, here)):
            torch.set_num_threads(threads)
            functions: dict[str, Callable[[], Any]] = {
                "normal_": out.normal_,
                "expression": partial(noise.expression, out, key, "w"),
            }
            if compiled:
                functions["compiled"] = compiled_fill
            for name, value in interleaved(functions, rounds).items():
                seconds[f"{name}/{threads}"] = value
    finally:
        torch.set_num_threads(here)
    detail = {f"{name} threads, ns": round(value / ELEMENTS * 1e9, 3) for name, value in seconds.items()}
    limit = "memory bandwidth"
    normal = seconds[f"normal_/{here}"]
    yield Row("noise, torch expression", normal / seconds[f"expression/{here}"], "x", 1, 1, limit, detail)
    if compiled:
        yield Row("noise, compiled", normal / seconds[f"compiled/{here}"], "x", 2, 4, limit, detail)
        if here > 1:
            scaling = seconds["compiled/1"] / seconds[f"compiled/{here}"]
            yield Row(f"noise, compiled, {here} threads against 1", scaling, "x", 1, here, str(here), detail)
    yield _layer(rounds)


def _layer(rounds: int) -> Row:
    """Time a direction for an attention layer, against the products of its projections with a token."""
    weights, token = torch.empty(LAYER), torch.ones(LAYER[-1])
    drawn = interleaved({"numbers": weights.normal_, "products": lambda: weights @ token}, rounds)
    detail = {f"{name}, ms": round(seconds * 1e3, 3) for name, seconds in drawn.items()}
    name = "Gaussian numbers of an attention layer, against its products"
    limit = "5900 in PeZO 2.3, whose products are an FPGA's"
    return Row(name, drawn["numbers"] / drawn["products"], "of", 5900, 1, limit, detail)
