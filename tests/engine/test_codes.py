"""Weights stored as codes: codes are the library's, products those of the decoded weights, and so are the spaces."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from tests.engine import contract
from tests.engine.conftest import TinyModel, make_examples, targets, tiny_model
from tests.engine.spaces_common import LINEAR, MEMBERS, SPARSE, definition, example_losses, nudge, weights_of
from zo_sweeps.engine import linear, losses, masks
from zo_sweeps.engine.batch import collate
from zo_sweeps.engine.codes.scaled import FourBitIntegers
from zo_sweeps.engine.estimators.rge import RGE
from zo_sweeps.engine.evaluate import evaluate
from zo_sweeps.engine.layers import weight_only
from zo_sweeps.engine.layers.weight_only import WeightOnly
from zo_sweeps.engine.losses import token_logprobs
from zo_sweeps.engine.perturbations.gaussian import Gaussian
from zo_sweeps.engine.precisions.int8 import INT8
from zo_sweeps.engine.replay import rebuild
from zo_sweeps.engine.schedules.constant import Constant
from zo_sweeps.engine.step import Method
from zo_sweeps.engine.train import Scores, StepDone, train
from zo_sweeps.engine.updates.sgd import SGD
from zo_sweeps.methods.evaluation import Mode
from zo_sweeps.methods.points import Estimate, NoiseKey
from zo_sweeps.methods.space import Found

pytestmark = pytest.mark.unit
CODED = [name for name in contract.names("precision") if contract.kind("precision", name).coded]
WEIGHT_ONLY = [name for name in CODED if not contract.kind("precision", name).rounds_activations]
FOUR_BIT = [name for name in CODED if contract.known("precision", name, {"double_quantization": True})]
OVER_CODES = [name for name in MEMBERS if not contract.kind("space", name).moves_base]
# (space, options): a sparse one has two ways to multiply by its entries.
PRODUCTS = [
    *(pytest.param(name, {}, id=name) for name in OVER_CODES if name not in SPARSE),
    *(
        pytest.param(name, {"product": product}, id=f"{name}-{product}")
        for name in OVER_CODES
        if name in SPARSE
        for product in ("add", "addmm")
    ),
]
SHAPES = [(64, 64), (100, 1376), (33, 37), (3, 5), (1, 64)]  # whole blocks, blocks over rows, a part of a block


def precision_of(name: str, **options: Any) -> Any:
    return contract.member("precision", name, **{**contract.known("precision", name, {"compute": "fp32"}), **options})


def weight_of(shape: tuple[int, int], seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def layer_of(weight: Tensor, precision: Any, bias: bool = True) -> WeightOnly:
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=bias, dtype=precision.dtype)
    return precision.stored(layer, weight).requires_grad_(False)


# Codes


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("name", FOUR_BIT)
def test_four_bit_codes_decode_as_the_librarys_own(name: str, double: bool, shape: tuple[int, int]) -> None:
    from bitsandbytes import functional

    weight, precision = weight_of(shape), precision_of(name, double_quantization=double, block=64)
    with torch.compiler.set_stance("force_eager"):
        padded = torch.nn.functional.pad(weight.flatten(), (0, -weight.numel() % 64))
        packed, state = functional.quantize_4bit(padded, blocksize=64, quant_type=name, compress_statistics=double)
        expected = functional.dequantize_4bit(packed, state).flatten()[: weight.numel()].view(shape)
    assert torch.equal(layer_of(weight, precision).dense(), expected)


@pytest.mark.parametrize("shape", SHAPES)
def test_eight_bit_codes_are_the_librarys_own(shape: tuple[int, int]) -> None:
    from bitsandbytes import functional

    weight = weight_of(shape).half()
    codes, scales, _ = functional.int8_vectorwise_quant(weight)
    ours = layer_of(weight, precision_of("int8")).codes
    assert torch.equal(ours.scales.flatten(), scales)
    # It divides in half precision, so that some values at the middle between two codes go the other way.
    off = (ours.values.int() - codes.int()).abs()
    assert off.max() <= 1
    assert off.float().mean() < 0.02
    expected = functional.int8_vectorwise_dequant(ours.values, scales)
    torch.testing.assert_close(ours.dense(), expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("options", [{}, {"double_quantization": True}, {"block": 1024}])
@pytest.mark.parametrize("name", CODED)
def test_codes_take_the_bytes_that_the_plan_counts(name: str, options: dict[str, Any], shape: tuple[int, int]) -> None:
    precision = precision_of(name, **contract.known("precision", name, options))
    layer = layer_of(weight_of(shape), precision)
    assert sum(buffer.nbytes for buffer in layer.codes.buffers()) == precision.code_bytes(*shape)


@pytest.mark.parametrize("shape", [(100, 1376), (33, 37)])
@pytest.mark.parametrize("options", [{}, {"double_quantization": True}])
@pytest.mark.parametrize("name", CODED)
def test_bits_do_not_depend_on_how_many_values_are_computed_at_a_time(
    name: str, options: dict[str, Any], shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    precision = precision_of(name, **contract.known("precision", name, options))
    whole = layer_of(weight_of(shape), precision)
    for values in (1, 100, 1 << 12):
        monkeypatch.setattr(weight_only, "ON_CPU", values)
        parts = layer_of(weight_of(shape), precision)
        for (key, one), (_, other) in zip(whole.codes.named_buffers(), parts.codes.named_buffers(), strict=True):
            assert torch.equal(one, other), key
        assert torch.equal(parts.dense(), whole.codes.dense())


@pytest.mark.parametrize("options", [{}, {"double_quantization": True}])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("name", CODED)
def test_codes_are_restored_from_their_buffers(name: str, transposed: bool, options: dict[str, Any]) -> None:
    precision = precision_of(name, **contract.known("precision", name, {"compute": "fp16", **options}))
    layer: Any = (Conv1D(33, 37) if transposed else nn.Linear(37, 33)).to(precision.dtype)
    stored = precision.stored(layer, layer.weight.detach())
    layer.register_parameter("weight", None)
    again = precision.restored(layer, (33, 37), stored.codes.state_dict())
    assert torch.equal(again.dense(), stored.dense())
    assert {key: value.nbytes for key, value in again.codes.named_buffers()} == {
        key: value.nbytes for key, value in stored.codes.named_buffers()
    }
    x = weight_of((3, 37)).to(precision.dtype)
    assert torch.equal(again(x), stored(x))


def test_codes_of_another_precision_are_refused() -> None:
    layer = nn.Linear(37, 33)
    codes = precision_of("int8").stored(layer, layer.weight.detach()).codes
    with pytest.raises(ValueError, match=r"codes of other buffers: scales, values, not"):
        precision_of("nf4").restored(layer, (33, 37), codes.state_dict())


# Products


@pytest.mark.parametrize("compute", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("values", [300, 1 << 20])
@pytest.mark.parametrize("name", WEIGHT_ONLY)
def test_a_forward_is_that_of_the_decoded_weight(
    name: str, values: int, compute: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = layer_of(weight_of((33, 37)), precision_of(name, compute=compute))
    x = weight_of((2, 5 * 37)).view(2, 5, 37).to(layer.codes.like.dtype)
    expected = nn.functional.linear(x, layer.dense(), layer.bias)
    monkeypatch.setattr(weight_only, "ON_CPU", values)
    # One rounding to the format; before it, fp32 sums in another order: n eps sum |x w|, at most.
    order = 37 * torch.finfo(torch.float32).eps * float((x.abs() @ layer.dense().t().abs()).max())
    torch.testing.assert_close(layer(x), expected, rtol=torch.finfo(x.dtype).eps, atol=order)
    assert layer(x).dtype == x.dtype


@pytest.mark.parametrize("values", [300, 1 << 20])
@pytest.mark.parametrize("name", WEIGHT_ONLY)
def test_backpropagation_is_that_of_the_decoded_weight(name: str, values: int, monkeypatch: pytest.MonkeyPatch) -> None:
    layer = layer_of(weight_of((33, 37)), precision_of(name))
    x, up = weight_of((7, 37), 1).requires_grad_(), weight_of((7, 33), 2)
    dense = layer.dense()
    (expected,) = torch.autograd.grad((nn.functional.linear(x, dense, layer.bias) * up).sum(), x)
    monkeypatch.setattr(weight_only, "ON_CPU", values)
    (found,) = torch.autograd.grad((layer(x) * up).sum(), x)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", WEIGHT_ONLY)
def test_a_conv1d_is_stored_by_its_outputs(name: str) -> None:
    base = Conv1D(33, 37).requires_grad_(False)
    layer = precision_of(name).stored(base, base.weight)
    assert linear.shape(layer) == (33, 37)
    assert linear.is_transposed(layer)
    assert linear.as_stored(layer).shape == base.weight.shape
    assert torch.equal(layer.dense(), precision_of(name).encode(base.weight.t().contiguous()).dense())
    x = weight_of((4, 37))
    torch.testing.assert_close(layer(x), x @ linear.as_stored(layer) + base.bias)


# Spaces


def coded_model(precision: Any) -> TinyModel:
    model = tiny_model()
    for name in targets(model, LINEAR):
        layer = model.module.get_submodule(name)
        parent = model.module.get_submodule(name.rpartition(".")[0])
        setattr(parent, name.rpartition(".")[2], precision.stored(layer, layer.weight.detach()))
    return model


def decoded_model(precision: Any) -> TinyModel:
    model = tiny_model()
    with torch.no_grad():
        for weight in weights_of(model).values():
            weight.copy_(precision.encode(weight.detach()).dense())
    return model


def placed(name: str, model: TinyModel, values: Callable[[str], Tensor] | None = None, **options: Any) -> Any:
    """The space in a model; a sensitive mask is that of the model before its encoding."""
    space, mask = definition(name, **options), None
    if space.needs_gradients:
        plain = tiny_model()
        found = masks.sensitive(weights_of(plain), example_losses(plain), space.density, space.scope)
        read = values or (lambda layer: linear.as_stored(model.module.get_submodule(layer)))
        mask = Found(found, {layer: read(layer).reshape(-1)[index] for layer, index in found.items()})
    return space.install(model.module, targets(model, LINEAR), 0, mask)


def objective_of(model: TinyModel) -> Callable[[int], Tensor]:
    batch = collate(make_examples(3), pad_id=0)
    return lambda P: losses.candidates(token_logprobs(model, batch, P), batch)


def trained(name: str, model: TinyModel, **options: Any) -> tuple[Any, list[tuple[float, ...]]]:
    space = placed(name, model, **options)
    examples = make_examples(8)
    batch_of = lambda step: collate([examples[step % 8]], pad_id=0)
    method = Method(RGE(2, 1e-2), Gaussian(), SGD(), Mode.INNER)
    events = train(
        method, model, space, batch_of, losses.candidates, Constant().over(1e-3, 6), lambda: Scores(0.0, 0.0, {}),
        seed=0, steps=6, eval_every=6,
    )  # fmt: skip
    return space, [event.coefs for event in events if isinstance(event, StepDone)]


@pytest.mark.parametrize(
    ("coded", "mode"),
    [*((coded, Mode.BOTH) for coded in WEIGHT_ONLY), ("nf4", Mode.SEQUENTIAL), ("nf4", Mode.INNER)],
)
@pytest.mark.parametrize(("name", "options"), PRODUCTS)
def test_the_losses_of_a_space_are_those_over_the_decoded_weights(
    coded: str, name: str, options: dict[str, str], mode: Mode
) -> None:
    precision, points = precision_of(coded), RGE(3, 1e-1).points(0, 1)
    found = []
    for model in (coded_model(precision), decoded_model(precision)):
        space = placed(name, model, **options)
        nudge(space)
        found.append(torch.tensor(evaluate(objective_of(model), model.module, space, Gaussian(), points, mode)))
    assert found[0].std() > 1e-3
    torch.testing.assert_close(found[0], found[1], rtol=3e-6, atol=3e-6)


@pytest.mark.parametrize(("name", "refresh"), [*((name, 0) for name in OVER_CODES), ("random_subset", 2)])
def test_training_over_codes_is_training_over_the_decoded_weights(name: str, refresh: int) -> None:
    precision, options = precision_of("nf4"), {"refresh": refresh} if refresh else {}
    over_codes, found = trained(name, coded_model(precision), **options)
    over_decoded, expected = trained(name, decoded_model(precision), **options)
    assert torch.tensor(expected).std() > 0
    torch.testing.assert_close(torch.tensor(found), torch.tensor(expected), rtol=1e-3, atol=1e-4)
    for key, param in over_decoded.params.items():
        torch.testing.assert_close(over_codes.params[key], param, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", OVER_CODES)
def test_replay_over_codes_has_the_bits_of_the_run(name: str) -> None:
    precision = precision_of("nf4")
    space, log = trained(name, coded_model(precision))
    again = placed(name, coded_model(precision))
    method = Method(RGE(2, 1e-2), Gaussian(), SGD(), Mode.INNER)
    rebuild(method, again, log, Constant().over(1e-3, 6), seed=0)
    assert all(torch.equal(again.params[key], param) for key, param in space.params.items())


@pytest.mark.parametrize("name", OVER_CODES)
def test_a_space_leaves_codes_as_they_were(name: str) -> None:
    model = coded_model(precision_of("nf4"))
    before = objective_of(model)(1)
    space = placed(name, model)
    nudge(space)
    assert not torch.equal(objective_of(model)(1), before)
    space.uninstall()
    assert torch.equal(objective_of(model)(1), before)


def test_sensitive_entries_keep_the_values_from_before_the_encoding() -> None:
    """Guo et al., Figure 4: the sensitive entries stay in 16 bit, beside the quantized rest."""
    precision, plain = precision_of("nf4"), weights_of(tiny_model())
    model = coded_model(precision)
    space = placed("sensitive", model, values=lambda layer: plain[layer].detach())
    for name, index in space.masks.items():
        layer = model.module.get_submodule(name)
        weight = layer.dense().view(-1)
        assert torch.equal(weight[index], plain[name].detach().view(-1)[index])
        rest = torch.ones(weight.numel(), dtype=torch.bool).index_fill_(0, index, False)
        assert torch.equal(weight[rest], layer.codes.dense().view(-1)[rest])
        assert not torch.equal(weight, layer.codes.dense().view(-1))


@pytest.mark.parametrize("name", ["lora", "lora_fa", "dora", "vera", "prefix"])
def test_backpropagation_through_codes_trains_a_space(name: str) -> None:
    precision = precision_of("nf4")
    gradients = []
    for model in (coded_model(precision), decoded_model(precision)):
        space = placed(name, model)
        nudge(space)
        for param in space.params.values():
            param.requires_grad_(True)
        objective_of(model)(1).sum().backward()
        gradients.append({key: param.grad for key, param in space.params.items()})
    for key, grad in gradients[1].items():
        assert grad.abs().max() > 0, key
        torch.testing.assert_close(gradients[0][key], grad, rtol=1e-4, atol=1e-6)


# Scales


def scaled(weight: Tensor, precision: Any, scales: Tensor) -> Tensor:
    """The weight of codes with other scales: they multiply a row, or a block of consecutive values."""
    codes = precision.encode(weight)
    codes.scales = torch.ones_like(codes.decoded_scales())
    unit = codes.dense().flatten()
    size = getattr(precision, "block", weight.shape[1])
    return (unit * scales.flatten().repeat_interleave(size)[: len(unit)]).view(weight.shape)


def of_scales(model: TinyModel) -> Any:
    return contract.member("space", "scales").install(model.module, targets(model, LINEAR), 0)


OPTIONS = [("int8", {}), ("nf4", {}), ("nf4", {"double_quantization": True}), ("fp4", {"block": 32})]


@pytest.mark.parametrize(("coded", "options"), OPTIONS)
def test_scales_multiply_the_codes_of_their_row_or_block(coded: str, options: dict[str, Any]) -> None:
    precision, plain = precision_of(coded, **options), weights_of(tiny_model())
    model = coded_model(precision)
    before = objective_of(model)(1)
    space = of_scales(model)
    assert torch.equal(objective_of(model)(1), before)
    assert {param.dtype for param in space.params.values()} == {torch.float32}
    points = RGE(2, 1e-2).points(0, 1)
    found = evaluate(objective_of(model), model.module, space, Gaussian(), points, Mode.SEQUENTIAL)
    expected = []
    for point in points:
        other = tiny_model()
        for name, weight in weights_of(other).items():
            theta = space.params[f"{name}.scales"]
            z = Gaussian().sample(point.key, f"{name}.scales", theta.shape, theta.device)
            moved = scaled(plain[name].detach(), precision, theta.detach() + point.scale * z)
            weight.data.copy_(moved)
        expected.append(objective_of(other)(1).item())
    assert torch.tensor(found).std() > 1e-4
    torch.testing.assert_close(torch.tensor(found), torch.tensor(expected), rtol=1e-5, atol=1e-5)
    space.uninstall()
    assert torch.equal(objective_of(model)(1), before)


@pytest.mark.parametrize(("coded", "options"), [*OPTIONS, ("w4a8", {})])
def test_as_many_scales_are_trained_as_the_precision_says(coded: str, options: dict[str, Any]) -> None:
    precision = precision_of(coded, **options)
    space = of_scales(coded_model(precision))
    for name, weight in weights_of(tiny_model()).items():
        assert space.params[f"{name}.scales"].numel() == precision.scales(*weight.shape)


@pytest.mark.parametrize(("coded", "options"), [*OPTIONS, ("int4", {})])
def test_scales_of_rows_and_blocks_are_vectors_and_do_not_decay(coded: str, options: dict[str, Any]) -> None:
    space = of_scales(coded_model(precision_of(coded, **options)))
    before = {name: param.detach().clone() for name, param in space.params.items()}
    SGD(weight_decay=0.5).apply(space.params, Estimate(((NoiseKey(0, 1, 0), 0.0),), (0.0,), 0.0), Gaussian(), {}, 0.1)
    for name, param in space.params.items():
        assert param.dim() == 1
        assert torch.equal(param, before[name])


def test_qzo_is_its_algorithm_1_and_replays_to_the_bit() -> None:
    """d = clip((f+ - f-) / 2 eps, -C, C); scales <- max(scales - lr d z, 0)."""
    precision, eps, clip, lr, steps = precision_of("nf4"), 1e-2, 0.5, 0.3, 5
    method = Method(RGE(1, eps, clip=clip), Gaussian(), SGD(nonnegative=True))
    examples = make_examples(8)
    batch_of = lambda step: collate([examples[step % 8]], pad_id=0)
    model = coded_model(precision)
    space = of_scales(model)
    events = train(
        method, model, space, batch_of, losses.candidates, Constant().over(lr, steps), lambda: Scores(0.0, 0.0, {}),
        seed=0, steps=steps, eval_every=steps,
    )  # fmt: skip
    log = [event.coefs for event in events if isinstance(event, StepDone)]

    other = coded_model(precision)
    reference = of_scales(other)
    clipped, zeros = 0, 0
    for step in range(1, steps + 1):
        batch = batch_of(step)
        f = lambda P, batch=batch: losses.candidates(token_logprobs(other, batch, P), batch)
        key = RGE(1, eps).points(0, step)[0].key
        directions = {name: Gaussian().sample(key, name, p.shape, p.device) for name, p in reference.params.items()}
        values = []
        with torch.no_grad():
            for sign in (1, -1):
                kept = {name: p.clone() for name, p in reference.params.items()}
                for name, p in reference.params.items():
                    p += sign * eps * directions[name]
                values.append(f(1).item())
                for name, p in reference.params.items():
                    p.copy_(kept[name])
            d = (values[0] - values[1]) / (2 * eps)
            clipped += abs(d) > clip
            d = max(-clip, min(clip, d))
            assert log[step - 1][0] == pytest.approx(d, rel=1e-3, abs=1e-3)
            for name, p in reference.params.items():
                p.copy_((p - lr * log[step - 1][0] * directions[name]).clamp(min=0))
                zeros += int((p == 0).sum())
    assert clipped
    assert zeros
    for name, p in reference.params.items():
        torch.testing.assert_close(space.params[name], p, rtol=1e-5, atol=1e-6)
    again = of_scales(coded_model(precision))
    rebuild(method, again, log, Constant().over(lr, steps), seed=0)
    assert all(torch.equal(again.params[name], p) for name, p in space.params.items())
    assert min(float(p.min()) for p in space.params.values()) == 0


@pytest.mark.parametrize("g", [30.0, -5000.0])
def test_the_preset_of_the_released_numbers_moves_the_quantization_step_as_the_release_does(g: float) -> None:
    """w = D c = s c / m: s + eps z is D + (eps / m) z. The release: eps 1e-3, lr 1e-7, C 100 for D."""
    preset = yaml.safe_load((Path(__file__).parents[2] / "conf/method/qzo_released.yaml").read_text())
    eps, clip = float(preset["estimator"]["eps"]), float(preset["estimator"]["clip"])
    lr, m = float(preset["update"]["lr"]), FourBitIntegers.largest
    assert eps / m == pytest.approx(1e-3)
    ours = g * 1e-3 / eps  # the same two losses, over another span
    moved = lr * max(-clip, min(clip, ours))
    assert moved / m == pytest.approx(1e-7 * max(-100, min(100, g)))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("compute", ["fp32", "bf16", "fp16"])
def test_8_bit_codes_on_a_gpu_are_multiplied_in_fp32_and_rounded_once(compute: Any) -> None:
    codes = INT8(compute=compute).encode(torch.randn(48, 96)).cuda()
    expected = codes.values.float().mul_(codes.scales / 127).to(codes.like.dtype)
    assert torch.equal(codes.dense(), expected)
