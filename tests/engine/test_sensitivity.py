"""The cumulative squared gradient, what a mask holds of it, and a sparse product beside the weights."""

from __future__ import annotations

import pytest
import torch

from tests.engine.conftest import make_examples, targets, tiny_model
from zo_sweeps.engine import losses, masks
from zo_sweeps.engine.batch import collate
from zo_sweeps.engine.layers.sparse import Sparse
from zo_sweeps.engine.losses import token_logprobs
from zo_sweeps.engine.masks import concentration, covered, gradient_of_mean
from zo_sweeps.engine.spaces.sensitive import Sensitive
from zo_sweeps.methods.space import Found

pytestmark = pytest.mark.unit


def each_loss(model, n: int = 5):
    for example in make_examples(n):
        batch = collate([example], pad_id=0)
        yield lambda batch=batch: losses.candidates(token_logprobs(model, batch), batch)[0]


def test_the_curve_is_the_sorted_normalized_cumulative_sum_by_layer() -> None:
    scores = {"a": torch.tensor([[1.0, 4.0], [3.0, 2.0]]), "b": torch.tensor([5.0, 0.0, 0.0, 5.0])}
    found = concentration(scores, (0.01, 0.25, 0.5, 0.75, 1.0))
    of_a, of_b = [0.4, 0.4, 0.7, 0.9, 1.0], [0.5, 0.5, 1.0, 1.0, 1.0]
    assert found.mean == pytest.approx([(a + b) / 2 for a, b in zip(of_a, of_b, strict=True)])
    assert found.std == pytest.approx([abs(a - b) / 2 for a, b in zip(of_a, of_b, strict=True)])
    assert found.layers == 2


def test_a_layer_without_a_gradient_is_left_out() -> None:
    scores = {"a": torch.tensor([1.0, 3.0]), "dead": torch.zeros(4)}
    assert concentration(scores, (0.5,)).mean == (0.75,)
    assert concentration(scores, (0.5,)).layers == 1
    assert covered(scores, {"a": torch.tensor([0]), "dead": torch.tensor([2])}) == 0.25


def test_a_mask_holds_what_stands_at_its_entries_and_no_mask_of_its_size_holds_more_than_the_largest() -> None:
    generator = torch.Generator().manual_seed(3)
    scores = {name: torch.rand(40, 50, generator=generator) ** 8 for name in "ab"}
    best = masks.top(scores, 0.01)
    drawn = {name: torch.randperm(2000, generator=generator)[:20] for name in "ab"}
    for mask in (best, drawn):
        shares = [float(scores[n].flatten()[mask[n]].sum() / scores[n].sum()) for n in "ab"]
        assert covered(scores, mask) == pytest.approx(sum(shares) / 2, rel=1e-6)
    assert covered(scores, best) == pytest.approx(concentration(scores, (0.01,)).mean[0], rel=1e-9)
    assert covered(scores, drawn) < covered(scores, best)
    assert covered(scores, {"a": best["a"]}) < covered(scores, best), "a layer without a mask holds nothing"


def test_the_gradient_is_that_of_the_mean_loss_and_a_training_run_does_not_notice() -> None:
    model = tiny_model()
    weights = {name: model.module.get_submodule(name).weight for name in targets(model)}
    for param in model.module.parameters():
        param.requires_grad_(True)  # as in backpropagation through all parameters
    found = gradient_of_mean(model.module, weights, each_loss(model))
    assert all(param.requires_grad and param.grad is None for param in model.module.parameters())
    mean = torch.stack([loss() for loss in each_loss(model)]).mean()
    expected = torch.autograd.grad(mean, list(weights.values()))
    for (name, value), gradient in zip(found.items(), expected, strict=True):
        torch.testing.assert_close(value / 25, gradient.square(), rtol=1e-3, atol=1e-9, msg=name)


def test_theta_has_the_layers_order_whatever_that_of_the_mask() -> None:
    """A stored mask has its names' order; directions over the whole vector (PeZO's) depend on theta's."""
    model = tiny_model()
    layers = targets(model)
    found = masks.outliers({name: model.module.get_submodule(name).weight for name in layers}, 0.1)
    assert sorted(layers) != list(layers), "a test that can fail"
    mask = Found(dict(sorted(found.items())), {})
    space = Sensitive().install(model.module, layers, 0, mask)
    assert list(space.params) == [f"{name}.weight" for name in layers]


@pytest.mark.parametrize("points", [1, 2])
def test_products_apart_write_nothing_and_are_the_loss_at_the_same_points(points: int) -> None:
    """SparseAddMM (eq. 19) instead of SparseAdd (eq. 21), for one point per forward and for several."""
    model = tiny_model()
    weights = {name: model.module.get_submodule(name).weight for name in targets(model)}
    found = masks.outliers(weights, 0.1)
    before = {name: param.clone() for name, param in model.module.named_parameters()}
    ids = torch.arange(1, 13)[None].repeat(points, 1)
    seen = {}
    for apart in (False, True):
        space = Sparse(model.module, found, apart=apart)
        space.hold({name: torch.stack([p + 0.1 * (i + 1) for i in range(points)]) for name, p in space.params.items()})
        with torch.inference_mode():
            at_points = model.module(ids).logits
            if apart:
                assert all(torch.equal(param, before[name]) for name, param in model.module.named_parameters())
            space.hold({})
            next(iter(space.params.values())).data += 0.2  # theta has moved
            seen[apart] = torch.cat([at_points, model.module(ids).logits])
        space.uninstall()
    assert (seen[True][0] - seen[True][-1]).abs().max() > 1e-2, "a test that can fail"
    torch.testing.assert_close(seen[True], seen[False], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 0.1)])
def test_a_product_beside_the_weights_is_the_product_with_theta_written_into_them(
    dtype: torch.dtype, tolerance: float
) -> None:
    """SparseAddMM and SparseAdd (Guo et al., eqs. 19 and 21) are one function."""
    model = tiny_model()
    model.module.to(dtype)
    before = {name: param.clone() for name, param in model.module.named_parameters()}
    weights = {name: model.module.get_submodule(name).weight for name in targets(model)}
    ids = torch.arange(1, 13)[None]

    def logits(beside: bool) -> torch.Tensor:
        space = Sparse(model.module, masks.outliers(weights, 0.1))
        for param in space.params.values():
            param.data += 0.3
        if beside:
            space.use_sparse_matmul()
        with torch.inference_mode():
            found = model.module(ids).logits.float()
        if beside:
            assert all(torch.equal(param, before[name]) for name, param in model.module.named_parameters())
        space.uninstall()
        return found

    written, beside = logits(False), logits(True)
    with torch.inference_mode():
        base = model.module(ids).logits.float()
    assert (written - base).abs().max() > 10 * tolerance, "a test that can fail"
    torch.testing.assert_close(beside, written, rtol=0, atol=tolerance)
