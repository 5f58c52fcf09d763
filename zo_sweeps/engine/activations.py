"""The bases that directions take from a minibatch: of the inputs of each trained matrix's layer, during a forward."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn

from zo_sweeps.core.memory_parts import Part, counted_as
from zo_sweeps.engine import linear
from zo_sweeps.methods.perturbation import ActivationPerturbation, Basis, Params
from zo_sweeps.methods.points import NoiseKey


@contextmanager
def bases_of_inputs(
    module: nn.Module, params: Params, noise: ActivationPerturbation, key: NoiseKey
) -> Iterator[dict[str, Basis]]:
    """Fill the dict with a basis for each matrix whose layer computes within the block, by the parameter's name.

    Of the first inputs of each layer alone, all rows of the forward, padding included. A table that tokens are looked
    up in has none, also as the head of a tied model: its gradient is not of the head's inputs. Cost: `noise.basis` of
    each matrix; no inputs are kept.
    """
    layers = [*module.modules()]
    tables = {id(layer.weight) for layer in layers if isinstance(layer, nn.Embedding)}
    names = {id(param): name for name, param in params.items() if id(param) not in tables}
    bases: dict[str, Basis] = {}

    def keep(name: str, layer: nn.Module, args: tuple[Tensor]) -> None:
        if name not in bases:
            with counted_as(Part.WORKSPACE), torch.inference_mode(False), torch.no_grad():
                rows = args[0].reshape(-1, args[0].shape[-1])
                bases[name] = Basis(noise.basis(key, name, rows), linear.is_transposed(layer))

    hooks = [
        layer.register_forward_pre_hook(partial(keep, name))
        for layer in layers
        if linear.is_projection(layer) and (name := names.get(id(layer._parameters.get("weight"))))
    ]
    try:
        yield bases
    finally:
        for hook in hooks:
            hook.remove()


def digest_of(bases: Mapping[str, Basis]) -> float:
    """Return 52 bits of the SHA-256 of the bases' names and bytes, a whole number that a logged float holds exactly."""
    found = hashlib.sha256()
    for name in sorted(bases):
        found.update(f"{name}\n".encode())
        found.update(bases[name].columns.cpu().contiguous().numpy().data)
    return float(int(found.hexdigest()[:13], 16))
