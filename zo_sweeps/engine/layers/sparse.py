"""Layers of the sparse spaces: train k chosen entries of the target weights; freeze the rest."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from zo_sweeps.core.errors import UserError
from zo_sweeps.core.memory_parts import Part, counted_as
from zo_sweeps.engine import linear
from zo_sweeps.engine.layers.weight_only import Entries, WeightOnly
from zo_sweeps.engine.masks import Lazily, Masks
from zo_sweeps.engine.rows import sizes
from zo_sweeps.methods.space import InstalledSpace

# PyTorch warns once per process that CSR tensors are in beta; our tests compare the product with dense weights.
warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta", UserWarning)

Find = Callable[[int], Masks]  # step -> the masks in effect from that step on


class _InWeight:
    """Entries written into the weight of a Linear or Conv1D. `touched`: all that were ever added, ascending."""

    def __init__(self, weight: nn.Parameter) -> None:
        self._flat, self.dtype = weight.detach().view(-1), weight.dtype
        self.touched, self._original = torch.empty(0, dtype=torch.long, device=weight.device), self._flat[:0].clone()

    def read(self, index: Tensor) -> Tensor:
        """Return the entries at flat indices, in `dtype`."""
        return self._flat[index]

    @torch.no_grad()
    def write(self, index: Tensor, values: Tensor) -> None:
        """Write values at flat indices, all of them added before."""
        self._flat.index_copy_(0, index, values.to(self.dtype))

    def add(self, index: Tensor, values: Tensor | None) -> None:
        """Make further entries writable; `values` replaces those that stand there."""
        self.touched, self._original = _merged(self.touched, self._original, index, self._flat[index])
        if values is not None:
            self.write(index, values)

    def restore(self) -> None:
        self.write(self.touched, self._original)

    def tensors(self) -> list[Tensor]:
        """Return the tensors that it holds beside the layer's own."""
        return [self.touched, self._original]


class _BesideCodes:
    """Entries kept beside a layer's codes, and written into the decoded weight: as `_InWeight`."""

    def __init__(self, layer: WeightOnly) -> None:
        if layer.entries is not None:
            raise UserError("the package has trained entries already", fix="train another space, or export it merged")
        self._layer, self.dtype = layer, layer.codes.like.dtype
        self.touched = torch.empty(0, dtype=torch.long, device=layer.codes.like.device)
        self._values = torch.empty(0, dtype=self.dtype, device=layer.codes.like.device)
        self._at: tuple[Tensor, Tensor] | None = None  # the last index, and where it is in `touched`
        self._order: Tensor | None = None  # of the entries, as rows [out, in]; None: as they are

    def read(self, index: Tensor) -> Tensor:
        return self._values[self._place(index)]

    @torch.no_grad()
    def write(self, index: Tensor, values: Tensor) -> None:
        self._values[self._place(index)] = values.to(self.dtype)
        assert self._layer.entries is not None
        self._layer.entries.values = self._values if self._order is None else self._values[self._order]

    def add(self, index: Tensor, values: Tensor | None) -> None:
        if values is None:
            values = linear.as_stored(self._layer).view(-1)[index]
        self.touched, self._values = _merged(self.touched, self._values, index, values.to(self._values, copy=True))
        self._at, self._order, rows = None, None, self.touched
        if self._layer.transposed:
            out, into = self._layer.codes.shape
            rows, self._order = (self.touched % out * into + self.touched // out).sort()
        held = self._values if self._order is None else self._values[self._order]
        self._layer.entries = Entries(rows, held, self._layer.codes.shape)

    def restore(self) -> None:
        self._layer.entries = None

    def tensors(self) -> list[Tensor]:
        assert self._layer.entries is not None
        held = [self.touched, self._values, self._layer.entries.index, self._layer.entries.values]
        return [*held, *(self._at or ()), *([] if self._order is None else [self._order])]

    def _place(self, index: Tensor) -> Tensor:
        if self._at is None or self._at[0] is not index:
            self._at = index, torch.searchsorted(self.touched, index)
        return self._at[1]


def _merged(index: Tensor, values: Tensor, more: Tensor, theirs: Tensor) -> tuple[Tensor, Tensor]:
    """Return the union of two sets of entries, by ascending index; `more` ascends."""
    if not len(index):
        return more, theirs
    order = torch.cat([index, more]).sort()
    return order.values, torch.cat([values, theirs])[order.indices]


class _Layer:
    """One target layer: its mask, and the hooks that write the current values."""

    def __init__(self, layer: Any, index: Tensor, values: Tensor | None, apart: bool = False) -> None:
        self.layer, self.apart = layer, apart
        self.weight: nn.Parameter | None = None if isinstance(layer, WeightOnly) else layer.weight
        self.place = _BesideCodes(layer) if isinstance(layer, WeightOnly) else _InWeight(layer.weight)
        self.place.add(index, values)
        self.index = index
        self.param = nn.Parameter(self.place.read(index).to(torch.float32, copy=True), requires_grad=False)
        self.points: Tensor | None = None  # [P, k]
        # CSR row starts, columns, and the permutation of the entries into row order (None: already in order).
        self._pattern: tuple[Tensor, Tensor, Tensor | None] | None = None
        self.delta: Tensor | None = None  # [out, in], sparse: theta minus the weights, for the sparse matmul
        self.handles = [
            layer.register_forward_pre_hook(self._enter),
            layer.register_forward_hook(self._leave, always_call=True),
        ]

    def write(self, values: Tensor) -> None:
        """Write values into the weight at the chosen entries."""
        self.place.write(self.index, values)

    def move(self, index: Tensor) -> None:
        """Change the mask. Leaving entries keep their value in the weight's dtype; remaining ones their fp32 value."""
        self.write(self.param.detach())
        self.place.add(index[~torch.isin(index, self.place.touched)], None)
        values = self.place.read(index).float()
        if len(self.index) and len(index):
            place = torch.searchsorted(self.index, index).clamp_(max=len(self.index) - 1)
            stays = self.index[place] == index
            values[stays] = self.param.detach()[place[stays]]
        self.index, self._pattern = index, None
        self.param = nn.Parameter(values, requires_grad=False)

    @torch.no_grad()
    def restore(self) -> None:
        """Remove the hooks and write the original values back."""
        for handle in self.handles:
            handle.remove()
        self.place.restore()

    def tensors(self) -> list[Tensor]:
        """Return the tensors that it holds beside the layer's own and the trained values."""
        pattern = [part for part in self._pattern or () if part is not None]
        return [*self.place.tensors(), self.index, *pattern, *([] if self.delta is None else [self.delta.values()])]

    def use_sparse_matmul(self) -> None:
        """Apply theta as a separate sparse matmul from now on."""
        self.delta = self._matrix(self.param.detach() - self.place.read(self.index).float())

    def _enter(self, layer: Any, args: object) -> None:
        if self.delta is not None or self._multiplies_apart:
            return
        values = self.param if self.points is None or len(self.points) > 1 else self.points[0]
        if values.requires_grad and torch.is_grad_enabled():  # backpropagate to the k values
            assert self.weight is not None, "entries beside codes are not trained by backpropagation"
            moved = self.weight.detach().view(-1).index_copy(0, self.index, values.to(self.weight.dtype))
            layer._parameters["weight"] = moved.view_as(self.weight)
        else:
            with counted_as(Part.SPARSE):
                self.write(values.detach())

    def _leave(self, layer: Any, args: tuple[Tensor, ...], output: Tensor | None) -> Tensor | None:
        if self.weight is not None:
            layer.weight = self.weight
        if output is not None and self.delta is not None:
            self._add_product(output, linear.inputs(self.layer, args[0]), self.delta)
            return output
        if output is None:  # the forward raised
            return output
        if self._multiplies_apart:
            self._add_products(output, args[0], self.param.detach()[None] if self.points is None else self.points)
        elif self.points is not None and len(self.points) > 1:
            self._add_products(output, args[0], self.points)
        return output

    @property
    def _multiplies_apart(self) -> bool:
        return self.apart and not torch.is_grad_enabled()

    def _add_products(self, y: Tensor, x: Tensor, points: Tensor) -> None:
        """Add x_p S_p^T to y_p for each group p of the rows; S_p is point p minus the weight already multiplied.

        Cost: k multiplications per row, in fp32; in place, without a copy, for fp32 activations.
        """
        out, into = linear.shape(self.layer)
        x = linear.inputs(self.layer, x)
        with counted_as(Part.SPARSE):
            added = points - self.place.read(self.index).float()
        y, x = y.view(-1, out), x.reshape(-1, into)
        own = sizes(len(points), len(y))
        for y_p, x_p, values in zip(y.split(own), x.split(own), added, strict=True):
            if not len(x_p):
                continue
            with counted_as(Part.SPARSE):
                matrix = self._matrix(values)
            self._add_product(y_p, x_p, matrix)

    def _matrix(self, values: Tensor) -> Tensor:
        """Return a sparse [out, in] matrix with `values` at the chosen entries."""
        out, into = linear.shape(self.layer)
        if self._pattern is None:
            transposed = linear.is_transposed(self.layer)
            width = out if transposed else into
            row, column = self.index.div(width, rounding_mode="floor"), self.index.remainder(width)
            order = None
            if transposed:
                order = column.argsort(stable=True)
                row, column = column[order], row[order]
            starts = torch.zeros(out + 1, dtype=torch.int32, device=row.device)
            starts[1:] = torch.bincount(row, minlength=out).cumsum(0)
            self._pattern = (starts, column.int(), order)
        starts, columns, order = self._pattern
        values = values if order is None else values[order]
        return torch.sparse_csr_tensor(starts, columns, values, (out, into), check_invariants=False)

    @staticmethod
    def _add_product(y: Tensor, x: Tensor, S: Tensor) -> None:
        """Add x S^T to y, rows flattened."""
        y, x = y.view(-1, y.shape[-1]), x.reshape(-1, x.shape[-1])
        if y.dtype == torch.float32:
            y.t().addmm_(S, x.t())
        else:
            y += (S @ x.t().float()).t().to(y.dtype)


class Sparse(InstalledSpace):
    """A space whose theta is the k chosen entries in fp32 (eqs. 11 and 12: z in R^k); the other weights are frozen.

    Before each product the k values of theta, or of the point, are written into the weights (never added, so that
    nothing drifts); uninstalling restores the original values. Beyond a bare forward a point costs k writes and no
    memory. Several points in one forward (the paper's SparseAddMM, eq. 19) share the dense product at theta and add
    their own sparse products, which pays off for few rows (CPU time of two points in one forward against one after the
    other: 0.88 at 64 tokens per point, 1.05 at 256). With `apart`, every forward without gradients multiplies the k
    values separately, also of a single point, and writes nothing (SparseAddMM instead of SparseAdd, eq. 21): not chosen
    by the number of rows, as the two round differently (docs/SPEED.md). Over weights that are stored as codes, the
    entries are kept beside them, in the dtype of decoded values, and written into every decoded part.

    Args:
        masks: layer -> flat indices into its weight (see `engine.masks`).
        refresh: steps between masks ("dynamic"; 0: static). The first new mask is computed before step refresh + 1.
        find: step -> new masks, computed from the current weights.
        values: layer -> initial values of the entries; defaults to those of the weights.

    Memory: 12 bytes per entry, and the original values. With `refresh` over half-precision weights, an entry that
    leaves the mask is rounded to the weights' dtype.
    """

    batched = True

    def __init__(
        self,
        module: nn.Module,
        masks: Masks,
        refresh: int = 0,
        find: Find | None = None,
        apart: bool = False,
        values: Masks | None = None,
    ) -> None:
        if refresh and find is None:
            raise ValueError("`refresh` needs `find`, which computes the next mask")
        self._module, self._find, self.refresh, self.apart = module, find, refresh, apart
        self.layers: dict[str, _Layer] = {}
        self.params: dict[str, nn.Parameter] = {}
        self._set(masks, values or {})

    @property
    def masks(self) -> Masks:
        return {name: layer.index for name, layer in self.layers.items() if len(layer.index)}

    def hold(self, values: Mapping[str, Tensor]) -> None:
        for name, layer in self.layers.items():
            layer.points = values.get(f"{name}.weight")

    def changes_at(self, step: int) -> bool:
        return bool(self.refresh) and step > 1 and (step - 1) % self.refresh == 0

    def begin(self, step: int) -> None:
        assert self._find is not None
        self.write()
        self._set(self._find(step), {})

    def use_sparse_matmul(self) -> None:
        """Apply theta from now on as a separate sparse matmul over unchanged weights (SparseAddMM, eq. 19).

        For forwards at one fixed theta only.
        """
        for layer in self.layers.values():
            layer.use_sparse_matmul()

    def write(self) -> None:
        """Write theta into the weights, for callers that read them without running a forward."""
        for layer in self.layers.values():
            layer.write(layer.param.detach())

    def tensors(self) -> Iterator[tuple[Part, Tensor]]:
        yield from super().tensors()
        for layer in self.layers.values():
            yield from ((Part.SPARSE, tensor) for tensor in layer.tensors())

    def uninstall(self) -> None:
        for layer in self.layers.values():
            layer.restore()

    def _set(self, masks: Masks, values: Masks) -> None:
        for name in {**self.layers, **masks}:
            if name not in self.layers:
                layer = self._module.get_submodule(name)
                linear.check(layer, name)
                device, own = linear.like(layer).device, values.get(name)
                index, own = masks[name].to(device), None if own is None else own.to(device)
                self.layers[name] = _Layer(layer, index, own, self.apart)
            elif name in masks or len(self.layers[name].index):
                held = self.layers[name]
                held.move(masks[name].to(held.index.device) if name in masks else held.index[:0])
        self.params.clear()
        self.params.update({f"{name}.weight": layer.param for name, layer in self.layers.items() if len(layer.index)})


def weights(module: nn.Module, layers: Sequence[str]) -> Mapping[str, Tensor]:
    """Return the weights from which a mask may choose: layer -> weight, as the model stores it; codes are decoded."""
    return Lazily(layers, lambda name: linear.as_stored(module.get_submodule(name)))
