"""Trained entries beside constant weights, in ExecuTorch's runtime against the engine's products at several points."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

pytest.importorskip("executorch", reason="needs the extra [edge]")

from zo_sweeps.engine import linear
from zo_sweeps.engine.layers.sparse import Sparse
from zo_sweeps.engine.precisions.w4a8 import W4A8
from zo_sweeps_edge.entries_beside import EntriesBeside, entries_beside
from zo_sweeps_edge.export import compiled
from zo_sweeps_edge.quantized import QuantizedLinear, quantized_linears

pytestmark = [pytest.mark.multiprocess, pytest.mark.slow]
POINTS, ROWS, TOKENS, INTO, OUT, ENTRIES = 2, 4, 12, 64, 40, 300  # more than one entry in each row
UNIT = 2.0**-24


class Layer(nn.Module):
    """One projection at two points of its entries."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        draw = torch.manual_seed(0)
        plain: Any = Conv1D(OUT, INTO) if kind == "transposed" else nn.Linear(INTO, OUT)
        plain.weight.data.normal_(std=0.3, generator=draw)
        plain.requires_grad_(False)
        self.layer: Any = W4A8().stored(plain, plain.weight) if kind == "w4a8" else plain
        index = torch.randperm(INTO * OUT, generator=draw)[:ENTRIES].sort().values
        # Over codes, entries begin at the values before their rounding, as those of a mask found on them.
        own = plain.weight.detach().view(-1)[index].clone()
        self.space = Sparse(self, {"layer": index}, values={"layer": own})
        self.points = own + 0.1 * torch.randn(POINTS, ENTRIES, generator=draw)

    def forward(self, x: Tensor, points: Tensor) -> Tensor:
        self.space.hold({"layer.weight": points})
        y: Tensor = self.layer(x)
        self.space.hold({})
        return y


@pytest.mark.parametrize("kind", ["linear", "transposed", "w4a8"])
def test_a_program_s_product_is_the_engines(kind: str) -> None:
    """Roundings: of the n products and sums of a row, in either order; and of 8-bit activations, half a level each."""
    from executorch.runtime import Runtime

    model = Layer(kind)
    x = (
        torch.randn(ROWS, TOKENS, INTO, generator=torch.Generator().manual_seed(1))
        * torch.logspace(-2, 2, ROWS)[:, None, None]
    )
    expected = model(x, model.points)
    started = model.points[:1] * 0 + model.space.params["layer.weight"]
    entries = getattr(model.layer, "entries", None)
    with torch.no_grad(), entries_beside(model, model.space), quantized_linears(model):
        assert isinstance(model.layer, EntriesBeside)
        assert isinstance(model.layer.base, QuantizedLinear) == (kind == "w4a8")
        rows, columns, held = model.layer.rows, model.layer.columns, model.layer.values
        traced = torch.export.export(model, (x, model.points), strict=False)
    assert getattr(model.layer, "entries", None) is entries, "the layer is put back"
    data, _ = compiled({"forward": traced}, ["forward"])
    method = Runtime.get().load_program(data).load_method("forward")
    (found,) = method.execute([x, model.points])

    weight = linear.dense(model.layer).abs()
    size = x.abs() @ weight.t() + model.layer.bias.abs()
    moved, level = torch.zeros(POINTS, OUT, INTO), torch.zeros(())
    moved[:, rows, columns] = (model.points - held).abs()
    own = x.view(POINTS, -1, INTO)
    apart = own.abs() @ moved.transpose(1, 2)
    bound = 4 * (INTO + 16) * UNIT * (size + apart.view(size.shape))
    if kind == "w4a8":
        assert not torch.equal(held, started[0]), "codes decode to others"
        level = (x.amax(-1).clamp(min=0) - x.amin(-1).clamp(max=0)) / 255
        bound = bound + (level / 2).unsqueeze(2) * moved.sum(2).repeat_interleave(ROWS // POINTS, 0).unsqueeze(1)
    assert ((found - expected).abs() <= bound).all()
    plain = model(x, started.expand(POINTS, -1))
    assert ((plain - expected).abs() > bound).float().mean() > 0.5, "the bound tells the points from theta"
    assert model(x, model.points).equal(expected), "and the engine's layer computes as before"
