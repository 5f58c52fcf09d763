"""Gradient checkpointing: the backward pass computes each layer again from its input."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


@contextmanager
def checkpointed(layers: Iterable[nn.Module]) -> Iterator[None]:
    """Keep only the inputs of each layer for the backward pass inside the block; forwards without gradients as before.

    The gradients are the same to the bit where the layers' kernels are deterministic. The layers must draw no random
    numbers (dropout is off) and keep no state from one forward to the next (no cache of keys and values).

    Cost: one more forward of the layers per backward; memory: one layer's activations, and an input [N, T, D] per
    layer. Source: Chen et al., Training Deep Nets with Sublinear Memory Cost, 2016.
    """
    before = {layer: vars(layer).get("forward") for layer in layers}  # of the instance, as after another `checkpointed`
    for layer in before:
        layer.forward = partial(_again, layer.forward)
    try:
        yield
    finally:
        for layer, forward in before.items():
            if forward is None:
                del layer.forward
            else:
                layer.forward = forward


def _again(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    if not torch.is_grad_enabled():
        return forward(*args, **kwargs)
    return checkpoint(forward, *args, use_reentrant=False, preserve_rng_state=False, **kwargs)
