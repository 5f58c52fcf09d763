"""Which k entries of the weights a sparse space moves: sensitive, random, or outliers.

A mask is a sorted list of flat indices for each layer, and a function of weights, batches and an address: the same mask
is found again, up to the rounding of gradients between kinds of device.

The paper (Guo et al., 2024, "Zeroth-Order Fine-Tuning of LLMs with Extreme Sparsity") leaves two choices open:

- `scope`. `per_layer` (default): k = density * (entries of the layer) largest of each layer, as its figures sort the
  parameters "for each linear layer". `global`: k = density * (entries of all layers) largest of all together, as its
  definition 3 (argmax over all d). The denominator is the target layers' entries: no embeddings, head, biases, norms.
- `score`. `fisher` (default): mean of the squared gradients of single examples, the empirical Fisher of its workflow.
  `mean_gradient`: square of the mean gradient, as its figures. With one example both are its definition 3.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from zo_sweeps.engine import noise
from zo_sweeps.methods.points import NoiseKey
from zo_sweeps.methods.space import share

Masks = dict[str, Tensor]  # layer -> [k] int64 flat indices into its weight, rising
Scope = Literal["per_layer", "global"]
Score = Literal["fisher", "mean_gradient"]


def top(scores: Mapping[str, Tensor], density: float, scope: Scope = "per_layer") -> Masks:
    """The entries with the largest scores; of equal ones the first.

    Args:
        scores: layer -> score of each entry.
        density: share of the entries that are taken, at least one a layer (per_layer) or in all (global).

    Layers of which none is taken are left out. Cost: a selection over d entries, memory of a layer's copy.
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
    """The entries of largest magnitude."""
    return top({name: weight.detach().abs() for name, weight in weights.items()}, density, scope)


def random(weights: Mapping[str, Tensor], density: float, key: NoiseKey) -> Masks:
    """density * numel entries of each layer, drawn without replacement: those with the smallest addressed integers.

    The same entries on every device. Cost: one integer for every entry of the weights.
    """
    masks = {}
    for name, weight in weights.items():
        words = noise.integers(key, f"{name}.mask", weight.numel(), weight.device)
        masks[name] = _first_largest(words.bitwise_not_(), share(weight.numel(), density))
    return masks


def squared_gradients(
    weights: Mapping[str, nn.Parameter], losses: Iterable[Callable[[], Tensor]], score: Score = "fisher"
) -> dict[str, Tensor]:
    """The score of every entry of `weights`, fp32; see the module's text.

    Args:
        losses: one for each example: runs the forward, returns a scalar.

    Raises ArithmeticError when a gradient is not finite. Cost: a forward and a backward for each example; memory:
    4 bytes an entry, the activations of one example, the gradient of one layer at a time.
    """
    if score not in ("fisher", "mean_gradient"):
        raise ValueError(f"score must be fisher or mean_gradient, not {score!r}")
    total = {name: torch.zeros_like(weight, dtype=torch.float32) for name, weight in weights.items()}
    # fp16 gradients of a mean loss underflow; a power of two scales them without rounding and changes no order.
    scale = 1024.0 if any(weight.dtype == torch.float16 for weight in weights.values()) else 1.0
    asked = {name: weight.requires_grad for name, weight in weights.items()}
    handles = []

    def taker(name: str) -> Callable[[Tensor], None]:
        def take(weight: Tensor) -> None:
            assert weight.grad is not None
            gradient, weight.grad = weight.grad.float().div_(scale), None
            total[name].add_(gradient.square_() if score == "fisher" else gradient)

        return take

    try:
        for name, weight in weights.items():
            weight.requires_grad_(True)
            handles.append(weight.register_post_accumulate_grad_hook(taker(name)))
        # plain attention: the fused ones add up gradients in no fixed order on a GPU, and a mask must be found again
        with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH):
            for loss in losses:
                (loss() * scale).backward()
    finally:
        for handle in handles:
            handle.remove()
        for name, weight in weights.items():
            weight.requires_grad_(asked[name])
    for name, value in total.items():
        if not math.isfinite(float(value.sum())):
            raise ArithmeticError(f"the gradient of {name} is not finite; the sensitive entries cannot be found")
        if score == "mean_gradient":
            value.square_()
    return total


def sensitive(
    weights: Mapping[str, nn.Parameter],
    losses: Iterable[Callable[[], Tensor]],
    density: float,
    scope: Scope = "per_layer",
    score: Score = "fisher",
) -> Masks:
    """The entries with the largest squared gradients (definition 3): `top` of `squared_gradients`."""
    return top(squared_gradients(weights, losses, score), density, scope)


def _first_largest(values: Tensor, k: int) -> Tensor:
    """Indices of the k largest, rising; of equal values at the edge the first ones."""
    edge = torch.topk(values, k).values[-1]
    above = (values > edge).nonzero().flatten()
    at = (values == edge).nonzero().flatten()[: k - len(above)]
    return torch.cat([above, at]).sort().values
