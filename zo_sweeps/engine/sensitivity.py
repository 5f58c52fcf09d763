"""Concentration of the gradient: the share of the squared gradient in the largest entries, and in a mask."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev

from torch import Tensor, nn

from zo_sweeps.engine.masks import Masks, Zeros, squared_gradients

DENSITIES = (1e-4, 1e-3, 1e-2)  # the fractions of the paper's Figure 8
SHARES = tuple(10 ** (k / 4) for k in range(-20, 1))  # 1e-5 to 1: the abscissas of the curve


@dataclass(frozen=True)
class Concentration:
    """The cumulative normalized squared gradient over the layers.

    Args:
        shares: shares of a layer's entries, ascending.
        mean, std: over the layers, of the share of the layer's squared gradient in these entries.
        layers: number of layers with a non-zero gradient.
    """

    shares: tuple[float, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    layers: int


def concentration(scores: Mapping[str, Tensor], shares: Sequence[float] = SHARES) -> Concentration:
    """Return the sum of a layer's k largest scores over the sum of all, with k = share * entries (at least one).

    Layers with zero gradient are left out. Source: Guo et al., 2024, Figures 2 and 7. Cost: a sort of every layer;
    memory: two fp64 copies of one layer.
    """
    curves = []
    for value in scores.values():
        cumulative = value.flatten().double().sort(descending=True).values.cumsum(0)
        total = float(cumulative[-1])
        if total > 0:
            counts = [max(1, round(share * len(cumulative))) for share in shares]
            curves.append([float(cumulative[count - 1]) / total for count in counts])
    by_share = list(zip(*curves, strict=True)) or [(0.0,)] * len(shares)
    return Concentration(tuple(shares), tuple(map(fmean, by_share)), tuple(map(pstdev, by_share)), len(curves))


def covered(scores: Mapping[str, Tensor], mask: Masks) -> float:
    """Return the mean over the layers of the share of the squared gradient at the mask's entries; see `concentration`.

    Source: Guo et al., 2024, Figures 3 and 8.
    """
    held = []
    for name, value in scores.items():
        flat = value.flatten().double()
        total = float(flat.sum())
        if total > 0:
            held.append(float(flat[mask[name].to(flat.device)].sum()) / total if name in mask else 0.0)
    return fmean(held) if held else 0.0


def gradient_of_mean(
    module: nn.Module,
    weights: Mapping[str, nn.Parameter],
    losses: Iterable[Callable[[], Tensor]],
    zeros: Zeros | None = None,
) -> Mapping[str, Tensor]:
    """Return [grad F(w)]_i^2 for every entry of `weights`, up to a common factor; F is the mean of `losses`.

    `module` holds the weights. No other parameter of it receives a gradient. `zeros`, cost, memory: see
    `masks.squared_gradients`.
    """
    chosen = {id(weight) for weight in weights.values()}
    others = [param for param in module.parameters() if param.requires_grad and id(param) not in chosen]
    for param in others:
        param.requires_grad_(False)
    try:
        return squared_gradients(weights, losses, "mean_gradient", zeros)
    finally:
        for param in others:
            param.requires_grad_(True)
