"""Masks: the k entries of the weights that a sparse space trains, and the share of the gradient that they hold.

A mask is a sorted list of flat indices for each layer, and a function of weights, batches and an address: it is
reproducible, up to the rounding of gradients between kinds of device.

The paper (Guo et al., 2024, "Zeroth-Order Fine-Tuning of LLMs with Extreme Sparsity") leaves two choices open:

- `scope`. `per_layer` (default): the k = density * (entries of the layer) largest of each layer, as in its figures,
  which sort the parameters "for each linear layer". `global`: the k = density * (entries of all layers) largest of all,
  as in its definition 3 (argmax over all d). The denominator is the target layers' entries: no embeddings, head,
  biases, norms.
- `score`. `fisher` (default): mean of the squared gradients of single examples, the empirical Fisher of its workflow.
  `mean_gradient`: square of the mean gradient, as in its figures. With one example both equal its definition 3.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import fmean, pstdev
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from zo_sweeps.engine import noise
from zo_sweeps.methods.points import NoiseKey
from zo_sweeps.methods.space import share

Masks = dict[str, Tensor]  # layer -> [k] int64 flat indices into its weight, ascending
Scope = Literal["per_layer", "global"]
Score = Literal["fisher", "mean_gradient"]
Zeros = Callable[[Mapping[str, torch.Size]], Mapping[str, Tensor]]  # shapes -> zeros of these shapes, fp32, CPU
DENSITIES = (1e-4, 1e-3, 1e-2)  # the fractions of the paper's Figure 8
SHARES = tuple(10 ** (k / 4) for k in range(-20, 1))  # 1e-5 to 1: the abscissas of the curve


class Lazily(Mapping[str, Tensor]):
    """layer -> a tensor that is computed at every access, so that one layer is in memory at a time."""

    def __init__(self, names: Iterable[str], compute: Callable[[str], Tensor]) -> None:
        self._names, self._compute = tuple(names), compute

    def __getitem__(self, name: str) -> Tensor:
        return self._compute(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def top(scores: Mapping[str, Tensor], density: float, scope: Scope = "per_layer") -> Masks:
    """Return the entries with the largest `scores` (layer -> of each entry), a `density` share; ties go to the first.

    At least one entry per layer (per_layer), or in total (global); layers without one are left out. Cost: a selection
    over d entries; memory: a copy of one layer.
    """
    if not 0 < density <= 1:
        raise ValueError(f"density must be above 0 and at most 1, not {density}")
    if scope not in ("per_layer", "global"):
        raise ValueError(f"scope must be per_layer or global, not {scope!r}")
    if scope == "per_layer":
        return {name: _first_largest(value.flatten(), share(value.numel(), density)) for name, value in scores.items()}
    k = share(sum(value.numel() for value in scores.values()), density)
    # An entry among the k largest of all is among the k largest of its layer.
    best = {name: _first_largest(value.flatten(), min(k, value.numel())) for name, value in scores.items()}
    chosen = _first_largest(torch.cat([scores[name].flatten()[index] for name, index in best.items()]), k)
    masks, start = {}, 0
    for name, index in best.items():
        mine = chosen[(chosen >= start) & (chosen < start + len(index))] - start
        start += len(index)
        if len(mine):
            masks[name] = index[mine]
    return masks


def outliers(weights: Mapping[str, Tensor], density: float, scope: Scope = "per_layer") -> Masks:
    """Return the entries of largest magnitude."""
    return top(Lazily(weights, lambda name: weights[name].detach().abs()), density, scope)


def random(weights: Mapping[str, Tensor], density: float, key: NoiseKey) -> Masks:
    """Draw density * numel entries of each layer without replacement: the entries with the smallest addressed integers.

    The same entries on every device. Cost: one integer per entry of the weights.
    """
    masks = {}
    for name, weight in weights.items():
        words = noise.integers(key, f"{name}.mask", weight.numel(), weight.device)
        masks[name] = _first_largest(words.bitwise_not_(), share(weight.numel(), density))
    return masks


def squared_gradients(
    weights: Mapping[str, nn.Parameter],
    losses: Iterable[Callable[[], Tensor]],
    score: Score = "fisher",
    zeros: Zeros | None = None,
) -> Mapping[str, Tensor]:
    """Return the score of every entry of `weights`, fp32, on the weight's device; see the module's docstring.

    Args:
        losses: one function per example, which runs the forward and returns a scalar.
        zeros: returns the layers' sums over the examples at their start, 0, fp32, on the CPU, in any kind of storage;
            defaults to main memory.

    Raises ArithmeticError if a gradient is not finite. Cost: a forward and a backward per example, which move every
    gradient to main memory. Memory: on the device, one example's activations and one layer's gradient; where `zeros`
    are, 4 bytes per entry; in main memory, 6 bytes per entry of one layer. A layer moves to the device when it is read.
    """
    if score not in ("fisher", "mean_gradient"):
        raise ValueError(f"score must be fisher or mean_gradient, not {score!r}")
    shapes = {name: weight.shape for name, weight in weights.items()}
    total = zeros(shapes) if zeros else {name: torch.zeros(shape) for name, shape in shapes.items()}
    # fp16 gradients of a mean loss underflow; scaling by a power of two neither rounds nor reorders them.
    scale = 1024.0 if any(weight.dtype == torch.float16 for weight in weights.values()) else 1.0

    def taker(name: str) -> Callable[[Tensor], None]:
        def take(weight: Tensor) -> None:
            assert weight.grad is not None
            gradient, weight.grad = weight.grad.cpu().float().div_(scale), None
            total[name].add_(gradient.square_() if score == "fisher" else gradient)

        return take

    # Unfused attention: on a GPU fused kernels sum gradients in no fixed order, and masks must be reproducible.
    with ExitStack() as undo, torch.enable_grad(), sdpa_kernel(SDPBackend.MATH):
        for name, weight in weights.items():
            undo.callback(weight.requires_grad_, weight.requires_grad)
            weight.requires_grad_(True)
            undo.callback(weight.register_post_accumulate_grad_hook(taker(name)).remove)
        for loss in losses:
            (loss() * scale).backward()
    for name, value in total.items():
        if not math.isfinite(float(value.sum())):
            raise ArithmeticError(f"the gradient of {name} is not finite; the sensitive entries cannot be found")
        if score == "mean_gradient":
            value.square_()
    devices = {name: weight.device for name, weight in weights.items()}
    return Lazily(devices, lambda name: total[name].to(devices[name]))


def sensitive(
    weights: Mapping[str, nn.Parameter],
    losses: Iterable[Callable[[], Tensor]],
    density: float,
    scope: Scope = "per_layer",
    score: Score = "fisher",
    zeros: Zeros | None = None,
) -> Masks:
    """Return the entries with the largest squared gradients (definition 3): `top` of `squared_gradients`."""
    return top(squared_gradients(weights, losses, score, zeros), density, scope)


@dataclass(frozen=True)
class Concentration:
    """The cumulative normalized squared gradient over the layers."""

    shares: tuple[float, ...]  # of a layer's entries, ascending
    mean: tuple[float, ...]  # over the layers, of the share of the squared gradient in these entries
    std: tuple[float, ...]
    layers: int  # those with a non-zero gradient


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
    `squared_gradients`.
    """
    chosen = {id(weight) for weight in weights.values()}
    with ExitStack() as undo:
        for param in module.parameters():
            if param.requires_grad and id(param) not in chosen:
                undo.callback(param.requires_grad_, True)
                param.requires_grad_(False)
        return squared_gradients(weights, losses, "mean_gradient", zeros)


def _first_largest(values: Tensor, k: int) -> Tensor:
    """Return the indices of the k largest values, ascending; ties go to the first."""
    edge = torch.topk(values, k).values[-1]
    above = (values > edge).nonzero().flatten()
    at = (values == edge).nonzero().flatten()[: k - len(above)]
    return torch.cat([above, at]).sort().values
