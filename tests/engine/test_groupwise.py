"""Groupwise 4-bit codes under 8-bit activations: codes are torchao's, activations rounded per token, products exact."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.engine.conftest import TinyModel, targets
from tests.engine.spaces_common import LINEAR, nudge
from tests.engine.test_codes import (
    PRODUCTS,
    coded_model,
    decoded_model,
    layer_of,
    objective_of,
    placed,
    precision_of,
    trained,
    weight_of,
)
from zo_sweeps.engine.codes.scaled import Groupwise, rounded
from zo_sweeps.engine.estimators.rge import RGE
from zo_sweeps.engine.evaluate import evaluate
from zo_sweeps.engine.layers.low_rank import DoraLinear
from zo_sweeps.engine.perturbations.gaussian import Gaussian
from zo_sweeps.engine.replay import rebuild
from zo_sweeps.engine.schedules.constant import Constant
from zo_sweeps.engine.step import Method, step
from zo_sweeps.engine.updates.sgd import SGD
from zo_sweeps.methods.evaluation import Mode
from zo_sweeps.methods.points import NoiseKey

pytestmark = pytest.mark.unit
SHAPES = [(64, 128), (100, 704), (33, 37), (3, 5)]  # whole groups, and rows whose last group is filled up
UNIT = torch.finfo(torch.float32).eps / 2  # relative rounding of fp32


def activations(rows: int, into: int) -> Tensor:
    """Rows of many scales; the first ones are zero, of one sign, constant, and zero but for one value."""
    x = weight_of((rows, into), 1) * torch.logspace(-6, 6, rows).unsqueeze(1)
    x[0], x[1], x[2], x[3], x[4, 1:] = 0, x[1].abs(), -x[2].abs(), 3.0, 0
    return x


# Codes


@pytest.mark.parametrize("group", [32, 64, 256])
@pytest.mark.parametrize("shape", SHAPES)
def test_codes_are_the_librarys_own(shape: tuple[int, int], group: int) -> None:
    quantization = pytest.importorskip("torchao.quantization", reason="torchao comes with the extra [edge]")
    from torchao.quantization.granularity import PerGroup

    weight = weight_of(shape) * torch.logspace(-30, 3, shape[0]).unsqueeze(1)
    weight[0] = 0
    weight[1, 0] = 20 * weight[1].abs().max()
    filled = F.pad(weight, (0, -shape[1] % group))
    theirs: Any = nn.Linear(filled.shape[1], shape[0], bias=False)
    theirs.weight = nn.Parameter(filled)
    config = quantization.Int8DynamicActivationIntxWeightConfig(
        weight_dtype=torch.int4, weight_granularity=PerGroup(group)
    )
    quantization.quantize_(theirs, config)
    ours = layer_of(weight, precision_of("w4a8", group_size=group)).codes
    assert isinstance(ours, Groupwise)
    assert torch.equal(ours.unpack(0, shape[0]).flatten(1), theirs.weight.qdata)
    assert torch.equal(ours.scales, theirs.weight.scale.to(torch.bfloat16))
    assert not theirs.weight.zero_point.any()


@pytest.mark.parametrize("shape", SHAPES)
def test_codes_are_the_nearest_and_decode_exactly(shape: tuple[int, int]) -> None:
    weight = weight_of(shape)
    layer = layer_of(weight, precision_of("w4a8"))
    groups = F.pad(weight, (0, -shape[1] % 32)).view(shape[0], -1, 32)
    scale = groups.abs().amax(dim=2, keepdim=True) / 7.5
    codes = layer.codes.unpack(0, shape[0])
    assert codes.min() >= -8
    assert codes.max() <= 7
    # The largest value of a group may be half a step above the largest code.
    assert ((codes * scale - groups).abs() <= 0.5 * scale * (1 + 1e-5)).all()
    assert layer.codes.scales.dtype == torch.bfloat16
    assert torch.equal(layer.codes.scales, scale.squeeze(2).to(torch.bfloat16))
    exact = codes.double() * layer.codes.scales.double().unsqueeze(2)
    assert torch.equal(layer.dense().double(), exact.flatten(1)[:, : shape[1]])


# Activations


def test_activations_have_256_levels_of_their_row() -> None:
    x = activations(64, 128)
    low, high = x.double().amin(1, keepdim=True).clamp(max=0), x.double().amax(1, keepdim=True).clamp(min=0)
    step = ((high - low) / 255).clamp(min=1e-30)
    level = rounded(x).double() / step
    assert ((level - level.round()).abs() <= 255 * 8 * UNIT).all()
    zero = (-low / step).round()
    assert (level.round() >= -zero).all()
    assert (level.round() <= 255 - zero).all()
    # Half a step to the nearest level; zero is a level, so that the ends are up to half a step outside the levels.
    assert ((rounded(x) - x).abs() <= 0.5 * step * (1 + 255 * 8 * UNIT)).all()
    assert torch.equal(rounded(x)[0], torch.zeros(128))


def test_rounding_follows_a_row_alone_and_its_scale() -> None:
    x = activations(64, 128)
    whole = rounded(x)
    for row, expected in zip(x, whole, strict=True):
        assert torch.equal(rounded(row), expected)
    assert torch.equal(rounded(x.view(8, 8, 128)), whole.view(8, 8, 128))
    assert torch.equal(rounded(4 * x), 4 * whole)
    assert torch.equal(rounded(F.pad(x, (0, 5))), F.pad(whole, (0, 5))), "zeros that fill up a group change nothing"


def test_activations_are_rounded_as_the_librarys_own() -> None:
    """torchao divides by s, and XNNPACK multiplies by 1 / s: they agree but for ulps of s and for middles of levels."""
    pytest.importorskip("torchao", reason="torchao comes with the extra [edge]")
    from torchao.quantization import IntxUnpackedToInt8Tensor

    x = activations(64, 128)
    unit = (torch.eye(128, dtype=torch.int8), torch.ones(128, 4), torch.zeros(128, 4, dtype=torch.int8))
    weight = IntxUnpackedToInt8Tensor(*unit, torch.int4, (1, 32), torch.float32, "int8_asym_per_token")
    torch.testing.assert_close(rounded(x), F.linear(x, weight), rtol=8 * UNIT, atol=0)


# Products


def reference(x: Tensor, layer: Any) -> tuple[Tensor, Tensor]:
    """(y, |Q8(x)| |W|^T + |b|) in double precision: integer products of a group, times its scale, times the row's."""
    out, into = layer.codes.shape
    x64 = x.double()
    step = ((x64.amax(1).clamp(min=0) - x64.amin(1).clamp(max=0)) / 255).unsqueeze(1)
    q = (rounded(x) / step).round()
    codes, scales = layer.codes.unpack(0, out).double(), layer.codes.scales.double()
    q = F.pad(q, (0, codes.shape[1] * codes.shape[2] - into)).view(len(x), codes.shape[1], -1)
    sums = torch.einsum("ngk,ogk->nog", q, codes)
    size = torch.einsum("ngk,ogk->nog", q.abs(), codes.abs())
    bias = layer.bias.double()
    return step * (sums * scales).sum(2) + bias, step * (size * scales).sum(2) + bias.abs()


@pytest.mark.parametrize("shape", SHAPES)
def test_a_forward_is_that_of_integer_products(shape: tuple[int, int]) -> None:
    x = weight_of((9, shape[1]), 2)
    layer = layer_of(weight_of(shape), precision_of("w4a8"))
    expected, size = reference(x, layer)
    # Q8(x) has three roundings: of 1 / s, s and its product with a level. A sum of n products has n, and the bias one.
    assert ((layer(x) - expected).abs() <= (shape[1] + 4) * UNIT * size).all()
    assert (layer(x) - F.linear(x, layer.dense(), layer.bias)).abs().max() > 1e-4, "activations are rounded"


def test_scales_that_are_trained_multiply_the_codes() -> None:
    layer = layer_of(weight_of((33, 37)), precision_of("w4a8"), bias=False)
    x = weight_of((4, 37), 2)
    before = layer(x)
    with torch.no_grad():
        layer.codes.train_scales().mul_(2)
    assert torch.equal(layer(x), 2 * before)
    layer.codes.freeze_scales()
    assert torch.equal(layer(x), before)


# Spaces


def rounding_model() -> TinyModel:
    """The decoded weights as plain projections, and activations rounded before each."""
    model = decoded_model(precision_of("w4a8"))
    for name in targets(model, LINEAR):
        model.module.get_submodule(name).register_forward_pre_hook(lambda _, args: rounded(args[0]))
    return model


@pytest.mark.parametrize("mode", [Mode.SEQUENTIAL, Mode.INNER, Mode.BOTH])
@pytest.mark.parametrize(("name", "options"), [one for one in PRODUCTS if one.id != "dora"])
def test_the_losses_of_a_space_are_those_over_decoded_weights_and_rounded_activations(
    name: str, options: dict[str, str], mode: Mode
) -> None:
    points = RGE(3, 1e-1).points(0, 1)
    found = []
    for model in (coded_model(precision_of("w4a8")), rounding_model()):
        space = placed(name, model, **options)
        nudge(space)
        found.append(torch.tensor(evaluate(objective_of(model), model.module, space, Gaussian(), points, mode)))
    assert found[0].std() > 1e-3
    torch.testing.assert_close(found[0], found[1], rtol=3e-6, atol=3e-6)


def test_one_point_in_a_forward_of_sparse_entries_is_as_several() -> None:
    """Entries beside the codes are multiplied by rounded activations, written into the weight or as a product."""
    points = RGE(3, 1e-1).points(0, 1)
    found = []
    for mode in (Mode.SEQUENTIAL, Mode.BOTH):
        model = coded_model(precision_of("w4a8"))
        space = placed("random_subset", model)
        nudge(space)
        found.append(torch.tensor(evaluate(objective_of(model), model.module, space, Gaussian(), points, mode)))
    torch.testing.assert_close(found[0], found[1], rtol=1e-5, atol=1e-5)


def test_dora_rounds_activations_and_no_factors() -> None:
    base = layer_of(weight_of((33, 37)), precision_of("w4a8"))
    layer = DoraLinear(base, 4, 8.0, "gaussian", True, NoiseKey(0, -1, 0), "layer").requires_grad_(False)
    x, W = weight_of((5, 37), 2), base.dense()
    layer.B.copy_(weight_of((33, 4), 3))
    merged = W + 2 * layer.B @ layer.A
    scale = layer.m / torch.linalg.vector_norm(merged, dim=1)
    expected = base.bias + scale * (rounded(x) @ W.t() + 2 * (x @ layer.A.t()) @ layer.B.t())
    torch.testing.assert_close(layer(x), expected, rtol=1e-5, atol=1e-5)


def test_replay_has_the_bits_of_the_run() -> None:
    space, log = trained("lora_fa", coded_model(precision_of("w4a8")))
    again = placed("lora_fa", coded_model(precision_of("w4a8")))
    rebuild(Method(RGE(2, 1e-2), Gaussian(), SGD(), Mode.INNER), again, log, Constant().over(1e-3, 6), seed=0)
    assert all(torch.equal(again.params[key], param) for key, param in space.params.items())
    assert any(param.any() for param in space.params.values())


def test_training_lowers_the_loss() -> None:
    model = coded_model(precision_of("w4a8"))
    space, f = placed("lora_fa", model), objective_of(model)
    before = f(1).detach()[0]
    method = Method(RGE(4, 1e-2), Gaussian(), SGD(), Mode.INNER)
    state = method.init(space.params)
    for number in range(1, 41):
        _, state = step(method, model.module, space, f, state, seed=0, step=number, lr=0.03)
    assert f(1).detach()[0] < 0.8 * before
