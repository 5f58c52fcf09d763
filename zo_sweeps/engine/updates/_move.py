"""Helpers shared by the updates. Not a member of the axis."""

from __future__ import annotations

import torch
from torch import Tensor

from zo_sweeps.engine.integers import Integers, ghat_parts
from zo_sweeps.engine.rounding import stochastic, whole
from zo_sweeps.methods.perturbation import Perturbation
from zo_sweeps.methods.points import Estimate, NoiseKey
from zo_sweeps.methods.update import Params


def move(
    param: Tensor, direction: Tensor, lr: float, weight_decay: float, random: NoiseKey | None = None, name: str = ""
) -> None:
    """Set param <- param - lr * (direction + weight_decay * param), in place, in the parameter's dtype.

    With `random`, the address of the step's random rounding, a parameter `name` in half precision is computed in fp32
    and rounded stochastically.

    Decay is decoupled (as in AdamW: it never enters a moment or a sign), and the same for every update. It applies to
    parameters of two or more dimensions, that is to matrices and embeddings; biases, norms, magnitude and scale
    vectors, and the value vectors of sparse spaces do not decay. (MeZO's code excludes names that contain "bias",
    "layer_norm" or "layernorm": equivalent for OPT and RoBERTa, which have no other vectors.)
    """
    if weight_decay and param.dim() >= 2:
        direction = direction.add(param, alpha=weight_decay)
    if random is not None and param.dtype != torch.float32:
        stochastic(param.float().sub_(direction, alpha=lr), random, name, out=param)
        return
    param.sub_(direction.to(param.dtype), alpha=lr)


def move_integers(
    param: Integers,
    estimate: Estimate,
    noise: Perturbation,
    lr: float,
    weight_decay: float,
    random: NoiseKey,
    name: str,
) -> None:
    """Set codes <- codes - Q(lr * (ghat + weight_decay * codes)), in place, clipped to their range; Q is `whole`."""
    for start, codes, ghat in ghat_parts(estimate, noise, name, param):
        if weight_decay:
            ghat += codes.float().mul_(weight_decay)
        there = codes - whole(ghat.mul_(lr), random, name, start)
        codes.copy_(there.clamp_(-param.largest, param.largest))


def zeros(params: Params) -> dict[str, Tensor]:
    """Return an fp32 buffer for each parameter, whatever its dtype: 4 bytes per trainable value."""
    return {name: torch.zeros_like(param, dtype=torch.float32) for name, param in params.items()}
