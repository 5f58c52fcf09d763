"""SparseAdd against SparseAddMM: the two ways in which the entries of a sparse space enter a product."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from zo_sweeps.core.host import interleaved
from zo_sweeps.engine.layers.sparse import Sparse
from zo_sweeps.engine.masks import Masks, random
from zo_sweeps.methods.points import NoiseKey
from zo_sweeps_bench.codes import LARGE, SMALL, Compute, awaited, projection, schemes
from zo_sweeps_bench.measure import RatioRow

ROWS = (1, 4, 16, 64, 256, 1024)
DENSITY = 1e-3  # the papers'
KINDS: tuple[tuple[str, Compute], ...] = (("fp32", "fp32"), ("bf16", "bf16"), ("int8", "bf16"), ("nf4", "bf16"))


def rows(rounds: int) -> Iterator[RatioRow]:
    """Measure all rows."""
    for shape in (SMALL, LARGE[0]):
        for kind, compute in KINDS:
            yield products(torch.device("cpu"), shape, kind, compute, rounds)


def products(device: torch.device, shape: tuple[int, int], kind: str, compute: Compute, rounds: int) -> RatioRow:
    """Time a product at a point of a sparse space in either way, and the bare GEMM, interleaved, for each of ROWS.

    `fixed theta` is SparseAddMM with its sparse matrix made once, as for generation; its SparseAdd writes nothing, and
    is the product of the weights alone. The ratio is that of SparseAdd over SparseAddMM for one row, where the latter
    is meant to pay off; the detail has all, of the bare GEMM.
    """
    dense = projection(device, shape, compute)
    mask = random({"layer": dense.weight}, DENSITY, NoiseKey(0, -1, 0))
    layers = {
        "SparseAdd": _with(mask, dense, kind, compute),
        "SparseAddMM": _with(mask, dense, kind, compute, apart=True),
        "SparseAddMM, fixed theta": _with(mask, dense, kind, compute, fixed=True),
    }
    detail: dict[str, float] = {}
    for count in ROWS:
        x = torch.randn(count, shape[1], device=device, dtype=dense.weight.dtype)
        functions: dict[str, Callable[[], Any]] = {"GEMM": partial(F.linear, x, dense.weight)}
        functions |= {name: partial(layer, x) for name, layer in layers.items()}
        with torch.inference_mode():
            seconds = interleaved({name: awaited(function, device) for name, function in functions.items()}, rounds)
        detail |= {f"{count} rows, {name}": seconds[name] / seconds["GEMM"] for name in layers}
        detail[f"{count} rows, GEMM, s"] = seconds["GEMM"]
    out, into = shape
    weights = kind if kind == compute else f"{kind} ({compute})"
    return RatioRow(
        f"SparseAdd against SparseAddMM, {weights}, {out} x {into}, {DENSITY:.1%}, 1 row",
        detail["1 rows, SparseAdd"] / detail["1 rows, SparseAddMM"],
        "of",
        1.1,
        1.0,
        f"{1 / detail['1 rows, SparseAddMM']:.2f}: the bare GEMM",
        detail,
    )


def _with(
    mask: Masks, dense: nn.Linear, kind: str, compute: Compute, *, apart: bool = False, fixed: bool = False
) -> nn.Module:
    """Return a projection with a sparse space whose theta has moved."""
    layer: nn.Module = projection(dense.weight.device, (dense.out_features, dense.in_features), compute)
    if kind != compute:
        layer = schemes(compute)[kind].stored(layer, dense.weight)
    space = Sparse(nn.ModuleDict({"layer": layer}), mask, apart=apart)
    for param in space.params.values():
        param.data.add_(0.01)
    if fixed:
        space.use_sparse_matmul()
    return layer
