"""Projections whose weight is stored as codes, decoded some rows at a time; and spaces that train codes or scales."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zo_sweeps.core.memory_parts import Part, counted_as
from zo_sweeps.methods.evaluation import ELSEWHERE, ON_CPU
from zo_sweeps.methods.space import InstalledSpace

ENTRIES, ENTRY_VALUES = "entries", "entries_values"  # in `WeightOnly.stored`
MULTIPLE = 16  # a CPU's product by 95 rows of 11008 takes 1.4 times as long as that by 96


def rows_at_once(into: int, device: torch.device) -> int:
    """Return how many rows of a weight with `into` inputs are computed at a time: a multiple of 16."""
    values = ON_CPU if device.type == "cpu" else ELSEWHERE
    return max(1, -(-values // into // MULTIPLE)) * MULTIPLE


class Integers(nn.Parameter):
    """Codes from -largest to largest (at most 127), int8, without gradients; the tensor is used, not copied."""

    largest: int

    def __new__(cls, codes: Tensor, largest: int) -> Integers:
        made = super().__new__(cls, codes, requires_grad=False)
        made.largest = largest
        return made


class WeightCodes(nn.Module):
    """A weight [out, in] as codes, in buffers: the base of all schemes. Most have `scales` that multiply the codes.

    Called, it returns the function (start, stop) -> decoded rows [stop - start, in], whose bits depend on neither. A
    scheme is made from a weight in any floating-point dtype, encoded in fp32 some rows at a time, and the dtype of
    decoded values, which are rounded once. It registers the codes as the buffer `values`; all other buffers are there
    to decode them.
    """

    spacing: ClassVar[float] = 0.0  # of the levels that `inputs` rounds to, as a share of their range; 0: it does not

    def __init__(self, shape: tuple[int, int], dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        self.shape = shape
        self.register_buffer("like", torch.empty(0, dtype=dtype, device=device), persistent=False)
        self.like: Tensor
        self.values: Tensor  # registered by the scheme, as the scales
        self.scales: Tensor
        self.stored_scales: Tensor  # while they are trained

    def forward(self) -> Callable[[int, int], Tensor]:
        raise NotImplementedError

    def inputs(self, x: Tensor) -> Tensor:
        """Return activations as they are multiplied by the weight: x itself, unless the scheme rounds them."""
        return x

    def decoded_scales(self) -> Tensor:
        """Return the scales in fp32, of any shape."""
        return self.scales

    def train_scales(self) -> nn.Parameter:
        """Make the scales a parameter, in fp32, in place of the stored ones; return it."""
        parameter = nn.Parameter(self.decoded_scales().clone(), requires_grad=False)
        self.stored_scales = self.scales
        del self._buffers["scales"]
        self.register_parameter("scales", parameter)
        return parameter

    def freeze_scales(self) -> None:
        """Put the stored scales back."""
        del self._parameters["scales"]
        self.register_buffer("scales", self.stored_scales)
        del self.stored_scales

    def stored(self) -> dict[str, Tensor]:
        """Return its buffers by name, with trained values in place of those that they were trained from."""
        return dict(self.state_dict())

    def holding(self, shape: tuple[int, int], buffers: Mapping[str, Tensor]) -> WeightCodes:
        """Hold the codes of another weight [*shape], from the buffers that `stored` returned; return itself.

        Raises ValueError if they are buffers of another scheme.
        """
        own = {name: buffer.dtype for name, buffer in self.state_dict().items()}
        theirs = {name: buffer.dtype for name, buffer in buffers.items()}
        if theirs not in (own, {**own, "scales": torch.float32}):  # trained scales are in fp32
            raise ValueError(f"codes of other buffers: {', '.join(sorted(buffers))}, not {', '.join(sorted(own))}")
        self.shape = shape
        self._buffers.update(buffers)
        return self

    def tensors(self) -> Iterator[tuple[Part, Tensor]]:
        """Yield its buffers, and the part of the memory that each counts as."""
        for name, buffer in self.named_buffers():
            yield Part.WEIGHTS if name == "values" else Part.SCALES, buffer

    def dense(self) -> Tensor:
        """Return the decoded weight [out, in]."""
        rows: Tensor = self()(0, self.shape[0])
        return rows


class IntegerCodes(WeightCodes):
    """Integers from -`largest` to `largest`, times scales: codes that can be trained themselves.

    While they are trained, `integers` [out, in] are a parameter, int8, 1 byte each (else None), and `values` are empty.
    """

    largest: ClassVar[int]

    def __init__(self, shape: tuple[int, int], dtype: torch.dtype, device: torch.device) -> None:
        super().__init__(shape, dtype, device)
        self.register_parameter("integers", None)
        self.integers: Integers | None

    def unpack(self, values: Tensor) -> Tensor:
        """Return the stored integers [out, in], int8, contiguous; they may share the memory of `values`."""
        return values

    def pack(self, integers: Tensor) -> Tensor:
        """Return integers [out, in] as they are stored: the inverse of `unpack`."""
        return integers

    def stored(self) -> dict[str, Tensor]:
        buffers = super().stored()
        if self.integers is not None:
            buffers["values"] = self.pack(buffers.pop("integers"))
        return buffers

    def train_codes(self) -> Integers:
        """Make the integers a parameter, in place of the stored ones; return it."""
        self.integers = Integers(self.unpack(self.values), self.largest)
        self.values = self.values.new_empty(0)
        return self.integers

    def freeze_codes(self) -> None:
        """Store the integers as they are now."""
        assert self.integers is not None
        self.values = self.pack(self.integers.detach())
        self.integers = None


class Entries:
    """Chosen entries of a weight [out, in], beside its codes, in the dtype of decoded values; flat indices ascend."""

    def __init__(self, index: Tensor, values: Tensor, shape: tuple[int, int]) -> None:
        self.index, self.values = index, values
        borders = torch.arange(shape[0] + 1, device=index.device) * shape[1]
        self._ends: list[int] = torch.searchsorted(index, borders).tolist()
        self._into = shape[1]

    def write(self, start: int, rows: Tensor) -> None:
        """Replace the chosen entries among decoded rows that begin with row `start`."""
        first, last = self._ends[start], self._ends[start + len(rows)]
        if first < last:
            place = self.index[first:last] - start * self._into
            rows.view(-1).index_copy_(0, place, self.values[first:last])


class WeightOnly(nn.Module):
    """A projection y = x W^T + b over a frozen weight W that is stored as codes; a scheme may round x before.

    W is decoded at most 2^20 values at a time on a CPU (where they stay in cache), 2^26 elsewhere, once for all rows of
    x: for the 2qB rows of P-RGE's inner loop as for one. Backpropagation to x decodes W once more. `transposed`: the
    projection stored its weight as [in, out] (Conv1D). `entries` are values that replace the decoded ones, or None.
    """

    def __init__(self, codes: WeightCodes, bias: nn.Parameter | None, transposed: bool) -> None:
        super().__init__()
        self.codes, self.transposed = codes, transposed
        self.out_features, self.in_features = codes.shape
        self.bias: nn.Parameter | None
        self.register_parameter("bias", bias)
        self.entries: Entries | None = None

    def stored(self) -> dict[str, Tensor]:
        """Return the buffers of the codes, and the entries, as `Encoded.restored` takes them."""
        entries = self.entries
        beside = {} if entries is None else {ENTRIES: entries.index, ENTRY_VALUES: entries.values}
        return {**self.codes.stored(), **beside}

    def forward(self, x: Tensor) -> Tensor:
        (y,) = self._products((self.codes.inputs(x),), self.bias)
        return y

    def products(self, *inputs: Tensor) -> list[Tensor]:
        """Return x W^T for every input; see `zo_sweeps.engine.linear.products`."""
        return self._products(inputs, None)

    def multiply(self, inputs: Sequence[Tensor], bias: Tensor | None) -> list[Tensor]:
        """Return x W^T + b for every input, outside autograd; b is added before the result is rounded."""
        out = self.codes.shape[0]
        results: list[Tensor] = []
        for start, rows in self.parts():
            if len(rows) == out:
                return [F.linear(x, rows, bias) for x in inputs]
            results = results or [x.new_empty(*x.shape[:-1], out) for x in inputs]
            stop = start + len(rows)
            for x, y in zip(inputs, results, strict=True):
                y[..., start:stop] = F.linear(x, rows, None if bias is None else bias[start:stop])
        return results

    def _products(self, inputs: Sequence[Tensor], bias: Tensor | None) -> list[Tensor]:
        if torch.is_grad_enabled() and any(x.requires_grad for x in inputs):
            return list(_Products.apply(self, bias, *inputs))  # type: ignore[no-untyped-call]  # of torch
        return self.multiply(inputs, bias)

    def parts(self) -> Iterator[tuple[int, Tensor]]:
        """Yield (first row, decoded rows), as many rows at a time as one chunk holds."""
        out, into = self.codes.shape
        with counted_as(Part.WORKSPACE):
            decode = self.codes()
        rows = rows_at_once(into, self.codes.like.device)
        for start in range(0, out, rows):
            with counted_as(Part.WORKSPACE):
                decoded = decode(start, min(start + rows, out))
                if self.entries is not None:
                    self.entries.write(start, decoded)
            yield start, decoded

    def dense(self) -> Tensor:
        """Return W [out, in], decoded, with the entries."""
        return torch.cat([rows for _, rows in self.parts()])


class _Products(torch.autograd.Function):
    """The products of a weight with several inputs; the backward pass decodes the weight again."""

    @staticmethod
    def forward(ctx: Any, layer: WeightOnly, bias: Tensor | None, *inputs: Tensor) -> tuple[Tensor, ...]:
        ctx.layer = layer
        return tuple(layer.multiply(inputs, bias))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        layer: WeightOnly = ctx.layer
        wanted = [i for i in range(len(grads)) if ctx.needs_input_grad[2 + i]]
        found = {i: grads[i].new_zeros(*grads[i].shape[:-1], layer.in_features) for i in wanted}
        for start, rows in layer.parts():
            for i, total in found.items():
                total += grads[i][..., start : start + len(rows)] @ rows
        return None, None, *(found.get(i) for i in range(len(grads)))


class TrainedCodes(InstalledSpace):
    """The integer codes of the target layers, int8. One point per forward: it decodes every weight anew."""

    batched = False

    def __init__(self, module: nn.Module, layers: Sequence[str]) -> None:
        self._codes: dict[str, IntegerCodes] = {}
        for name in layers:
            layer = module.get_submodule(name)
            assert isinstance(layer, WeightOnly), f"{name} has no codes"
            assert isinstance(layer.codes, IntegerCodes), f"the codes of {name} are not integers"
            self._codes[f"{name}.codes"] = layer.codes
        self.params = {name: codes.train_codes() for name, codes in self._codes.items()}

    def tensors(self) -> Iterator[tuple[Part, Tensor]]:
        """Yield nothing: the codes are the model's own."""
        yield from ()

    def uninstall(self) -> None:
        """Store the codes as they are now: they have changed, so the caller must reload the base model."""
        for codes in self._codes.values():
            codes.freeze_codes()


class TrainedScales(InstalledSpace):
    """The scales of the target layers' codes, in fp32. One point per forward: it decodes every weight anew."""

    batched = False

    def __init__(self, module: nn.Module, layers: Sequence[str]) -> None:
        self._codes = {}
        for name in layers:
            layer = module.get_submodule(name)
            assert isinstance(layer, WeightOnly), f"{name} has no codes"
            self._codes[f"{name}.scales"] = layer.codes
        self.params = {name: codes.train_scales() for name, codes in self._codes.items()}

    def tensors(self) -> Iterator[tuple[Part, Tensor]]:
        yield from super().tensors()
        yield from ((Part.SCALES, codes.stored_scales) for codes in self._codes.values())

    def uninstall(self) -> None:
        for codes in self._codes.values():
            codes.freeze_scales()
