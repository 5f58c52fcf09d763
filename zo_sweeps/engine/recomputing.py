"""Backpropagation that computes activations again instead of keeping them (gradient checkpointing)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial

from torch import nn
from torch.utils.checkpoint import checkpoint


@contextmanager
def recomputed(blocks: Iterable[nn.Module]) -> Iterator[None]:
    """Keep the inputs of `blocks` for a backward pass, and nothing from within them.

    The backward pass runs each block's forward again, just before it needs the activations; their bits, and those of
    the gradients, are the same, as the blocks are deterministic (models are in evaluation mode). Cost: one more forward
    of the blocks per backward. Memory: the blocks' inputs, and the activations of one block at a time. Source: Chen et
    al., 2016, arXiv:1604.06174.
    """
    held = list(blocks)
    for block in held:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False, preserve_rng_state=False)
    try:
        yield
    finally:
        for block in held:
            del block.forward  # the instance's; the class has its own
