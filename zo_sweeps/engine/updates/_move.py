"""What the updates share. Not a member of the axis."""

from __future__ import annotations

import torch
from torch import Tensor

from zo_sweeps.methods.update import Params


def move(param: Tensor, direction: Tensor, lr: float, weight_decay: float) -> None:
    """param <- param - lr * (direction + weight_decay * param), in place, in the parameter's dtype.

    Decay is decoupled (AdamW's form: it never enters a moment or a sign), and the same for every update. It falls on
    the parameters that have two or more dimensions, that is on matrices and embeddings; biases, norms, magnitude and
    scale vectors, and the value vectors of sparse spaces are left alone. (MeZO's code leaves out the names with "bias",
    "layer_norm" or "layernorm" in them: the same for OPT and RoBERTa, whose only vectors these are.)
    """
    if weight_decay and param.dim() >= 2:
        direction = direction.add(param, alpha=weight_decay)
    param.sub_(direction.to(param.dtype), alpha=lr)


def zeros(params: Params) -> dict[str, Tensor]:
    """A buffer for each parameter, fp32 whatever the parameter is: 4 bytes a trainable value."""
    return {name: torch.zeros_like(param, dtype=torch.float32) for name, param in params.items()}
