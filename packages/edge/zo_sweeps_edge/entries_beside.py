"""Trained entries of frozen weights in a program: a sparse product beside the projection, which stays a constant."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from zo_sweeps.engine import linear
from zo_sweeps.engine.layers.sparse import Sparse
from zo_sweeps.engine.layers.weight_only import WeightOnly
from zo_sweeps.methods.space import InstalledSpace


class EntriesBeside(nn.Module):
    """A projection and the moves of its entries: y_p = W x_p + b + S_p x_p, S_p = theta_p - W at the k entries.

    W is the weight as the program has it: of codes, as they decode. Unlike the engine's (`layers/sparse.py`), S_p
    multiplies activations that no precision has rounded: with 8-bit activations, y differs by at most half a level of
    its token for each entry, (s / 2) |S_p| 1, beside what roundings do. Products are added to y one after the other.

    Cost: k look-ups and products per token, and k additions in ExecuTorch's own kernels. Memory: 16 bytes per entry
    and token, while a layer computes.

    Args:
        layer: the projection. held: its entries, of an installed `Sparse`.
    """

    columns: Tensor
    rows: Tensor
    values: Tensor

    def __init__(self, layer: nn.Module, held: Any) -> None:
        super().__init__()
        out, into = linear.shape(layer)
        transposed, index = linear.is_transposed(layer), held.index
        major, minor = index // (out if transposed else into), index % (out if transposed else into)
        self.base, self._held = layer, held
        rows, columns = (minor, major) if transposed else (major, minor)
        self.register_buffer("rows", rows, persistent=False)
        self.register_buffer("columns", columns, persistent=False)
        self.register_buffer("values", linear.dense(layer).detach()[rows, columns].float(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.base.forward(x)  # without the hooks of the space, which would write into the weight
        moves = self._held.points - self.values
        terms = x.index_select(-1, self.columns).float().unflatten(0, (len(moves), -1)) * moves[:, None, None]
        return y.scatter_add(-1, self.rows.expand(*y.shape[:-1], -1), terms.flatten(0, 1).to(y.dtype))


@contextmanager
def entries_beside(module: nn.Module, space: InstalledSpace) -> Iterator[None]:
    """Hold an `EntriesBeside` in place of every layer whose entries the space trains; put the layers back at the end.

    The space must hold points meanwhile, for every forward.
    """
    held = space.layers if isinstance(space, Sparse) else {}
    layers = {name: module.get_submodule(name) for name in held}
    entries = {layer: layer.entries for layer in layers.values() if isinstance(layer, WeightOnly)}
    try:
        for coded in entries:  # its weight is then that of its codes alone
            coded.entries = None
        for name, layer in layers.items():
            module.set_submodule(name, EntriesBeside(layer, held[name]))
        yield
    finally:
        for name, layer in layers.items():
            module.set_submodule(name, layer)
        for coded, own in entries.items():
            coded.entries = own
