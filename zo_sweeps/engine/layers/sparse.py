"""Layers of the sparse spaces: train k chosen entries of the target weights; freeze the rest."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from zo_sweeps.engine.linear import check, dense, is_transposed
from zo_sweeps.engine.masks import Masks
from zo_sweeps.methods.space import InstalledSpace

# PyTorch warns once per process that CSR tensors are in beta; our tests compare the product with dense weights.
warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta", UserWarning)

Find = Callable[[int], Masks]  # step -> the masks in effect from that step on


class _Layer:
    """One target layer: its mask, the original values, and the hooks that write the current values."""

    def __init__(self, linear: Any, index: Tensor, apart: bool = False) -> None:
        self.linear, self.index, self.apart = linear, index, apart
        self.weight: nn.Parameter = linear.weight
        # All entries ever trained, with their original values in the weights' dtype; indices ascending.
        self.touched, self.original = index, self.flat[index].clone()
        self.param = nn.Parameter(self.original.to(torch.float32, copy=True), requires_grad=False)
        self.points: Tensor | None = None  # [P, k]
        # CSR row starts, columns, and the permutation of the entries into row order (None: already in order).
        self._pattern: tuple[Tensor, Tensor, Tensor | None] | None = None
        self.delta: Tensor | None = None  # [out, in], sparse: theta minus the weights, for the sparse matmul
        self.handles = [
            linear.register_forward_pre_hook(self._enter),
            linear.register_forward_hook(self._leave, always_call=True),
        ]

    @property
    def flat(self) -> Tensor:
        return self.weight.detach().view(-1)

    @torch.no_grad()
    def write(self, values: Tensor) -> None:
        """Write values into the weight at the chosen entries."""
        self.flat.index_copy_(0, self.index, values.to(self.weight.dtype))

    def move(self, index: Tensor) -> None:
        """Change the mask. Leaving entries keep their value in the weight's dtype; remaining ones their fp32 value."""
        self.write(self.param.detach())
        new = index[~torch.isin(index, self.touched)]
        order = torch.cat([self.touched, new]).sort()
        self.original = torch.cat([self.original, self.flat[new]])[order.indices]
        self.touched = order.values
        values = self.flat[index].float()
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
        self.flat.index_copy_(0, self.touched, self.original)

    def use_sparse_matmul(self) -> None:
        """Apply theta as a separate sparse matmul from now on."""
        self.delta = self._matrix(self.param.detach() - self.flat[self.index].float())

    def _enter(self, linear: Any, args: object) -> None:
        if self.delta is not None or self._multiplies_apart:
            return
        values = self.param if self.points is None or len(self.points) > 1 else self.points[0]
        if values.requires_grad and torch.is_grad_enabled():  # backpropagate to the k values
            moved = self.flat.index_copy(0, self.index, values.to(self.weight.dtype))
            linear._parameters["weight"] = moved.view_as(self.weight)
        else:
            self.write(values.detach())

    def _leave(self, linear: Any, args: tuple[Tensor, ...], output: Tensor | None) -> Tensor | None:
        linear.weight = self.weight
        if output is not None and self.delta is not None:
            self._add_product(output, args[0], self.delta)
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
        out, into = dense(self.linear).shape
        added = points - self.flat[self.index].float()
        for y_p, x_p, values in zip(y.view(len(points), -1, out), x.reshape(len(points), -1, into), added, strict=True):
            self._add_product(y_p, x_p, self._matrix(values))

    def _matrix(self, values: Tensor) -> Tensor:
        """Return a sparse [out, in] matrix with `values` at the chosen entries."""
        out, into = dense(self.linear).shape
        if self._pattern is None:
            width = self.weight.shape[1]
            row, column = self.index.div(width, rounding_mode="floor"), self.index.remainder(width)
            order = None
            if is_transposed(self.linear):
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
    their own sparse products; this pays off where reading the weights dominates a forward, that is for few rows (19 M
    Llama shape, one CPU thread, density 0.001, two points in one forward against one after the other, CPU time: 0.88
    at 64 tokens per point, 1.05 at 256). With `apart`, every forward without gradients multiplies the k values
    separately, also of a single point, and writes nothing (SparseAddMM instead of SparseAdd, eq. 21).

    Args:
        masks: layer -> flat indices into its weight (see `engine.masks`).
        refresh: steps between masks ("dynamic"; 0: static). The first new mask is computed before step refresh + 1.
        find: step -> new masks, computed from the current weights.

    Memory: 12 bytes per entry, and the original values. With `refresh` over half-precision weights, an entry that
    leaves the mask is rounded to the weights' dtype.
    """

    batched = True

    def __init__(
        self, module: nn.Module, masks: Masks, refresh: int = 0, find: Find | None = None, apart: bool = False
    ) -> None:
        if refresh and find is None:
            raise ValueError("`refresh` needs `find`, which computes the next mask")
        self._module, self._find, self.refresh, self.apart = module, find, refresh, apart
        self.layers: dict[str, _Layer] = {}
        self.params: dict[str, nn.Parameter] = {}
        self._set(masks)

    @property
    def masks(self) -> Masks:
        return {name: layer.index for name, layer in self.layers.items() if len(layer.index)}

    def hold(self, values: Mapping[str, Tensor]) -> None:
        """Hold P points: `values` maps parameter names to [P, k]. Empty: theta itself."""
        for name, layer in self.layers.items():
            layer.points = values.get(f"{name}.weight")

    def changes_at(self, step: int) -> bool:
        return bool(self.refresh) and step > 1 and (step - 1) % self.refresh == 0

    def begin(self, step: int) -> None:
        assert self._find is not None
        self.write()
        self._set(self._find(step))

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

    def uninstall(self) -> None:
        for layer in self.layers.values():
            layer.restore()

    def _set(self, masks: Masks) -> None:
        for name in {**self.layers, **masks}:
            if name not in self.layers:
                linear: Any = self._module.get_submodule(name)
                check(linear, name)
                self.layers[name] = _Layer(linear, masks[name].to(linear.weight.device), self.apart)
            elif name in masks or len(self.layers[name].index):
                layer = self.layers[name]
                layer.move(masks[name].to(layer.index.device) if name in masks else layer.index[:0])
        self.params.clear()
        self.params.update({f"{name}.weight": layer.param for name, layer in self.layers.items() if len(layer.index)})


def weights(module: nn.Module, layers: Sequence[str]) -> dict[str, nn.Parameter]:
    """Return the weights from which a mask may choose: layer -> weight."""
    return {name: module.get_submodule(name).weight for name in layers}  # type: ignore[misc]
