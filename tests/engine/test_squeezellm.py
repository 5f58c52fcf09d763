"""SqueezeLLM: k-means near the optimum, tables and codes that are those of plain definitions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from zo_sweeps.engine import masks
from zo_sweeps.engine.codes.lookup import QUANTILES, centroids
from zo_sweeps.engine.precisions.squeezellm import SqueezeLLM
from zo_sweeps.methods.precision import WeightOnlyPrecision

pytestmark = pytest.mark.unit
K = 16


def drawn(kind: str, rows: int, n: int) -> tuple[Tensor, Tensor]:
    """Normal values, and weights: alike, exponential, or with the heavy tail of squared gradients."""
    generator = torch.Generator().manual_seed(n)
    values = torch.randn(rows, n, generator=generator) * 0.02
    uniform = torch.rand(rows, n, generator=generator)
    by_column = torch.rand(1, n, generator=generator).pow(-1.5)
    heavy = torch.randn(rows, n, generator=generator).pow(4) * by_column.clamp(max=1e4)
    return values, {"ones": torch.ones(rows, n), "exponential": -uniform.log(), "heavy": heavy}[kind]


def error(values: Tensor, weights: Tensor, found: Tensor) -> np.ndarray[Any, Any]:
    """The weighted squared error of every row, each value taken to its nearest centroid."""
    off = (values.double()[:, :, None] - found[:, None, :]).square().amin(dim=2)
    return (weights.double() * off).sum(dim=1).numpy()


def least(values: Tensor, weights: Tensor) -> float:
    """The least error of one row with K clusters, by the dynamic program over all its intervals."""
    x, order = values.double().sort()
    s = weights.double()[order].numpy()
    sums = [np.concatenate([[0.0], np.cumsum(part)]) for part in (s, s * x.numpy(), s * x.numpy() ** 2)]
    w, wx, wxx = (part[None, :] - part[:, None] for part in sums)
    cost = np.maximum(wxx - np.divide(wx**2, w, out=np.zeros_like(w), where=w > 0), 0)
    cost[np.tril_indices(len(cost), -1)] = np.inf
    best = cost[0]
    for _ in range(K - 1):
        best = (best[:, None] + cost).min(axis=0)
    return float(best[-1])


@pytest.mark.parametrize("n", [40, 288, 512])
@pytest.mark.parametrize("kind", ["ones", "exponential", "heavy"])
def test_the_error_is_within_2_percent_of_the_least_and_no_worse_than_scikit_learns(kind: str, n: int) -> None:
    from sklearn.cluster import KMeans

    values, weights = drawn(kind, 8, n)
    ours = error(values, weights, centroids(values, weights, K))
    optimum = np.array([least(*row) for row in zip(values, weights, strict=True)])
    assert (ours >= optimum * (1 - 1e-9)).all()
    assert (ours <= optimum * 1.02).all()
    other = [
        KMeans(K, n_init=3, random_state=0).fit(x.double().numpy()[:, None], sample_weight=s.double().numpy()).inertia_
        for x, s in zip(values, weights, strict=True)
    ]
    assert ours.sum() <= sum(other)


@pytest.mark.parametrize("levels", [16, 32])
@pytest.mark.parametrize("share", [0.1, 0.5, 1.0])
def test_no_level_of_values_that_tie_is_lost_where_some_have_no_weight(levels: int, share: float) -> None:
    values, weights = drawn("heavy", 8, 800)
    values = (values * levels * 8).round().clamp(-levels // 2, levels // 2 - 1) * 1e-3  # as of a coarser checkpoint
    weights *= torch.rand(weights.shape, generator=torch.Generator().manual_seed(1)) <= share
    ours = error(values, weights, centroids(values, weights, K))
    optimum = np.array([least(*row) for row in zip(values, weights, strict=True)])
    scale = (weights.double() * values.double().square()).sum(dim=1).numpy()
    assert (ours <= optimum * 1.02 + scale / QUANTILES**3).all(), (
        "a level of less weight may fall between two quantiles"
    )


def test_rows_are_independent_and_values_without_weight_do_not_count() -> None:
    values, weights = drawn("heavy", 5, 100)
    weights[:, ::3] = 0
    together = centroids(values, weights, K)
    for row in range(5):
        assert torch.equal(centroids(values[row : row + 1], weights[row : row + 1], K), together[row : row + 1])
    values[:, ::3] = values[:, 1:2]  # within the range of the others
    assert torch.allclose(centroids(values, weights, K), together, rtol=0.05, atol=1e-3)
    assert torch.equal(centroids(values, torch.zeros_like(values), K), centroids(values, torch.ones_like(values), K))


@pytest.mark.parametrize("distinct", [1, 2, 15, 16])
def test_as_many_values_as_centroids_are_met_exactly(distinct: int) -> None:
    levels = torch.linspace(-1, 3, distinct)
    values = levels[torch.arange(64) % distinct].repeat(2, 1)
    found = centroids(values, torch.rand(2, 64, generator=torch.Generator().manual_seed(0)) + 0.1, K)
    assert found.isfinite().all()
    assert (found.diff(dim=1) >= 0).all()
    assert error(values, torch.ones_like(values), found).max() < 1e-12


# Codes


@pytest.mark.parametrize("compute", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("shape", [(64, 64), (33, 37), (3, 5), (1, 200)])
@pytest.mark.parametrize("weighted", [False, True])
def test_values_are_the_nearest_of_their_rows_table_and_kept_ones_their_own(
    weighted: bool, shape: tuple[int, int], compute: Any
) -> None:
    weight, sensitivity = drawn("heavy", *shape)
    precision: Any = SqueezeLLM(compute=compute, kept=0.02)
    codes = precision.encode_weighted(weight, sensitivity) if weighted else precision.encode(weight)
    table, found = codes.table.float(), codes.dense()
    kept = masks.top({"w": sensitivity if weighted else weight.abs()}, 0.02)["w"]
    nearest = table.gather(1, (weight[:, :, None] - table[:, None, :]).abs().argmin(dim=2))
    expected = nearest.view(-1).index_copy(0, kept, weight.view(-1)[kept].to(found.dtype).float())
    assert found.dtype == precision.dtype
    torch.testing.assert_close(found.float().view(-1), expected, rtol=0, atol=1e-7)  # of two alike, either


def test_a_table_holds_the_weighted_means_of_the_values_that_are_not_kept() -> None:
    weight, sensitivity = drawn("heavy", 6, 300)
    precision: Any = SqueezeLLM(compute="fp32", kept=0.01)
    codes = precision.encode_weighted(weight, sensitivity)
    kept = masks.top({"w": sensitivity}, 0.01)["w"]
    counted = sensitivity.clone().view(-1).index_fill(0, kept, 0).view_as(sensitivity).double()
    chosen = (weight[:, :, None] - codes.table[:, None, :]).abs().argmin(dim=2)
    for row in range(6):
        for c in chosen[row].unique():
            mine = chosen[row] == c
            if counted[row][mine].sum() > 0:
                mean = (counted[row] * weight[row].double())[mine].sum() / counted[row][mine].sum()
                assert float(codes.table[row, c]) == pytest.approx(float(mean), abs=1e-6)


def test_sensitivities_of_a_conv1d_are_oriented_as_its_weight() -> None:
    weight, sensitivity = drawn("exponential", 33, 37)
    precision: WeightOnlyPrecision = SqueezeLLM(compute="fp32")
    linear, conv = nn.Linear(37, 33), Conv1D(33, 37)
    ours: Any = precision.stored(conv, weight.t(), sensitivity.t())
    expected: Any = precision.stored(linear, weight, sensitivity)
    assert torch.equal(ours.codes.dense(), expected.codes.dense())
    assert not torch.equal(ours.codes.dense(), precision.stored(linear, weight).codes.dense())
