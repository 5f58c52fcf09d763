"""Memory benchmark: the peak of a step beyond the peak of inference on the same batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from zo_sweeps.bench.measure import Row
from zo_sweeps.bench.ours import Steps
from zo_sweeps.bench.shapes import examples, llama_58m
from zo_sweeps.devices.memory import MemoryMeter
from zo_sweeps.engine.layers.full import FullModel

MIB = 1 << 20


def rows(rounds: int) -> Iterator[Row]:
    """Measure the full space with q = 1 and q = 4."""
    model = llama_58m()
    data = examples([64] * 16, 2)
    space = FullModel(model.module)
    inference = _peak(torch.inference_mode()(lambda: Steps(model, space, data).forward(1)), rounds)
    causal: Any = model.module
    layer = sum(param.numel() for param in causal.model.layers[0].parameters()) * 4 / MIB
    logits = len(data) * model.arch.vocabulary * 4 / MIB
    for q in (1, 4):
        peak = _peak(Steps(model, space, data, q=q).one(), rounds)
        detail = {"inference, MiB": inference, "step, MiB": peak, "one layer, MiB": layer, "logits rows, MiB": logits}
        name = f"peak memory of a full-space step above inference, B=16 T=64, q={q}"
        yield Row(name, peak - inference, "MiB", layer + logits, 0, "0", detail)


def _peak(function: Callable[[], object], rounds: int) -> float:
    """Return the peak in MiB beyond the baseline, the minimum over the rounds after one warm-up."""
    peaks = []
    for _ in range(rounds + 1):
        meter = MemoryMeter("cpu")
        meter.start()
        function()
        meter.stop()
        peaks.append(meter.above_baseline / MIB)
    return min(peaks[1:])
