"""A quantized projection run by ExecuTorch's XNNPACK delegate, against the engine's own."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("executorch", reason="ExecuTorch comes with the extra [edge]")

from zo_sweeps.engine.codes.scaled import rounded
from zo_sweeps.engine.layers.low_rank import LowRankLinear
from zo_sweeps.engine.layers.weight_only import WeightOnly
from zo_sweeps.engine.precisions.nf4 import NF4
from zo_sweeps.engine.precisions.w4a8 import W4A8
from zo_sweeps.methods.points import NoiseKey
from zo_sweeps_edge.quantized import QuantizedLinear, quantized_linears

pytestmark = [pytest.mark.unit, pytest.mark.slow]
POINTS, ROWS, INTO, OUT, GROUP = 2, 48, 176, 40, 32  # 176 is no multiple of 32
UNIT = torch.finfo(torch.float32).eps / 2  # relative rounding of fp32
Delegate = Callable[[Tensor, Tensor], Tensor]  # (x [2, 48, 176], B [2, 40, 4]) -> y [2, 48, 40]


class Layer(nn.Module):
    """LoRA-FA over a quantized projection, at two points."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        plain = nn.Linear(INTO, OUT).requires_grad_(False)
        base = W4A8(group_size=GROUP).stored(plain, plain.weight)
        self.layer = LowRankLinear(base, 4, 8.0, "uniform", False, NoiseKey(0, -1, 0), "layer")

    def forward(self, x: Tensor, B: Tensor) -> Tensor:
        self.layer.points = {"B": B}
        y: Tensor = self.layer(x)
        self.layer.points = {}
        return y


def inputs(seed: int) -> Tensor:
    x = torch.randn(POINTS, ROWS, INTO, generator=torch.Generator().manual_seed(seed))
    x = x * torch.logspace(-3, 3, ROWS).unsqueeze(1)
    x[0, 0], x[0, 1], x[0, 2] = 0, x[0, 1].abs(), -x[0, 2].abs()
    return x


NO_B = torch.zeros(POINTS, OUT, 4)
SOME_B = torch.randn(NO_B.shape, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def model() -> Layer:
    return Layer()


@pytest.fixture(scope="module")
def edge(model: Layer) -> Any:
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir import to_edge_transform_and_lower

    with torch.no_grad(), quantized_linears(model), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert isinstance(model.layer.base, QuantizedLinear)
        traced = torch.export.export(model, (inputs(0), NO_B), strict=False)
        return to_edge_transform_and_lower(traced, partitioner=[XnnpackPartitioner()])


@pytest.fixture(scope="module")
def data(edge: Any) -> bytes:
    return bytes(edge.to_executorch().buffer)


@pytest.fixture(scope="module")
def delegate(data: bytes) -> Delegate:
    from executorch.runtime import Runtime

    method = Runtime.get().load_program(data).load_method("forward")

    def run(x: Tensor, B: Tensor) -> Tensor:
        assert data, "the runtime reads the weights from these bytes"
        (y,) = method.execute([x, B])
        return y.clone()  # the next call writes to the same memory

    return run


def bound(x: Tensor, base: Any) -> Tensor:
    """How far a delegate's product may be from the engine's, at most.

    Both have the same integers q and codes c, but for the q of an x at the middle of two levels. Roundings of the
    engine's n products and sums, of the delegate's per group, of 1 / s, s and the bias: relative to |Q8(x)| |W| + |b|.
    1 / s may be two ulps off: an x / s as near to a middle, or to the border that the zero point's rounding moves,
    may be one level off, which is s |w|.
    """
    W = base.dense().abs()
    size = rounded(x).abs() @ W.t() + base.bias.abs()
    low, high = x.amin(-1, keepdim=True).clamp(max=0), x.amax(-1, keepdim=True).clamp(min=0)
    step = ((high - low) / 255).clamp(min=1e-30)

    def near_a_middle(level: Tensor) -> Tensor:
        return ((level - level.floor()) - 0.5).abs() <= 8 * UNIT * level.abs()

    ends = near_a_middle(-low / step) & ((x == low) | (x == high))
    doubtful = (near_a_middle(x / step) | ends).float() * step
    return (INTO + INTO / GROUP + 16) * UNIT * size + doubtful @ W.t()


@pytest.mark.parametrize("seed", range(5))
def test_the_delegates_product_is_the_engines(seed: int, model: Layer, delegate: Delegate) -> None:
    x = inputs(seed)
    difference = (delegate(x, NO_B) - model(x, NO_B)).abs()
    assert (difference <= bound(x, model.layer.base)).all()
    dense = model.layer.base.dense()
    unrounded = (nn.functional.linear(x, dense, model.layer.base.bias) - model(x, NO_B)).abs()
    assert (unrounded > bound(x, model.layer.base)).float().mean() > 0.9, "the bound tells rounded activations apart"


def test_the_projection_is_delegated_as_one_and_no_operation_is_left_outside(edge: Any) -> None:
    targets = {str(node.target) for node in edge.exported_program().graph.nodes if node.op == "call_function"}
    assert not {target for target in targets if "affine" in target or "linear" in target}
    assert any("executorch_call_delegate" in target for target in targets)


def test_the_program_has_the_layers_own_bytes(data: bytes, model: Layer) -> None:
    """Two codes share a byte, and a scale has 16 bits, as `code_bytes` says; XNNPACK rearranges them when it loads."""
    codes = model.layer.base.codes
    for stored in (codes.values, codes.scales):
        assert stored.view(torch.uint8).numpy().tobytes() in data
    assert W4A8(group_size=GROUP).code_bytes(OUT, INTO) == codes.values.nbytes + codes.scales.nbytes


def test_rows_do_not_depend_on_the_others(delegate: Delegate) -> None:
    x = inputs(0)
    other = x.clone()
    other[:, ::2] = inputs(1)[:, ::2]
    assert torch.equal(delegate(other, NO_B)[:, 1::2], delegate(x, NO_B)[:, 1::2])


def test_the_low_rank_points_beside_it_are_not_quantized(model: Layer, delegate: Delegate) -> None:
    x = inputs(0)
    added = model.layer.scaling * (x @ model.layer.A.t()) @ SOME_B.transpose(1, 2)
    # Roundings: those of the product A x over 176 values, of that with B over 4, and of the sum with y.
    size = model.layer.scaling * (x.abs() @ model.layer.A.abs().t()) @ SOME_B.abs().transpose(1, 2)
    found = delegate(x, SOME_B) - delegate(x, NO_B)
    assert ((found - added).abs() <= UNIT * (2 * (INTO + 8) * size + 4 * delegate(x, NO_B).abs())).all()
    assert added.abs().median() > 0.01


def test_layers_are_put_back_and_others_left_alone() -> None:
    plain = nn.Linear(64, 8)
    other = NF4(compute="fp32").stored(plain, plain.weight.detach())
    module = nn.Sequential(W4A8().stored(plain, plain.weight.detach()), nn.Sequential(other, nn.Linear(8, 8)))
    before = dict(module.named_modules())
    with quantized_linears(module):
        assert isinstance(module[0], QuantizedLinear)
        assert isinstance(module[1][0], WeightOnly)
    assert dict(module.named_modules()) == before
