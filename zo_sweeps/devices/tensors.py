"""The tensors alive at the peak of some work, by part of a trial's memory: exact, the same on every machine."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from zo_sweeps.core.memory_parts import Part, continue_as, current

FOREVER = 1 << 62
aten = torch.ops.aten
WITHIN: Mapping[Any, Callable[..., int]] = {  # operator -> bytes of its temporaries, of those too large to leave out
    aten.logsumexp.default: lambda x, *_: x.nbytes,  # the exponentials
}


@dataclass
class _Storage:
    """One storage, alive from operator number `born` until before operator number `died`."""

    bytes: int
    part: Part
    born: int
    died: int = FOREVER
    reference: Any = None  # weak; its callback sets `died`


class Tensors(TorchDispatchMode):
    """Follows the storages of all tensors that operators read or make within the block, and their ends.

    Views share a storage, which counts once. A new storage belongs to the part that is marked (see
    `core.memory_parts`); one that is older than the block, and not claimed, is workspace. Temporaries within an
    operator are not seen, except those in WITHIN. Values are not changed: every operator runs as it would.

    Args:
        device: only storages on it count.

    Cost: some ten microseconds per operator.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch gives its modes no types
        self._device = device.type
        self._clock = 0
        self._gradients: torch.Size | None = None
        self._every: list[_Storage] = []
        self._alive: dict[int, _Storage] = {}  # by the address of torch's own object, unique while it lives

    def claim(self, tensor: Tensor, part: Part) -> None:
        """Count a tensor as `part`, from the beginning if it is new here; the first claim of a storage holds."""
        self._see(tensor, part, born=0)

    def __enter__(self) -> Tensors:
        continue_as(Part.WORKSPACE)
        super().__enter__()  # type: ignore[no-untyped-call]  # as above
        return self

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        # A tensor made from Python numbers is first seen as an input.
        born = self._clock + 1 if func is aten.lift_fresh.default else 0
        for tensor in _tensors(args, kwargs):
            self._see(tensor, Part.WORKSPACE, born)
        result = func(*args, **kwargs)
        self._clock += 1
        part = current()
        for tensor in _tensors(result):
            is_gradient = tensor.shape == self._gradients and part is not Part.WORKSPACE
            self._see(tensor, Part.TRAINABLE if is_gradient else part, self._clock)
        if func in WITHIN:
            self._every.append(_Storage(WITHIN[func](*args), part, self._clock, self._clock + 1))
        return result

    def regard(self, tensor: Tensor, part: Part) -> None:
        """Count a tensor as `part`, whatever it counted as before."""
        for storage in _storages(tensor):
            if storage._cdata in self._alive:
                self._alive[storage._cdata].part = part

    def left_over(self, part: Part) -> None:
        """Count as `part` what was made in the block as workspace and is still alive."""
        for known in self._alive.values():
            if known.born and known.part is Part.WORKSPACE:
                known.part = part

    def gradients_of(self, shape: torch.Size) -> None:
        """Count the tensors of a shape as trainable state, not as activations or logits.

        For a weight that is used twice: autograd makes two gradients of it, of which only the sum is the parameter's.
        """
        self._gradients = shape

    def at_peak(self) -> dict[Part, int]:
        """Return the bytes by part at the moment when most are alive, the first one of equals."""
        changes: dict[int, int] = {}
        for one in self._every:
            changes[one.born] = changes.get(one.born, 0) + one.bytes
            changes[one.died] = changes.get(one.died, 0) - one.bytes
        alive = most = peak = 0
        for moment in sorted(changes):
            alive += changes[moment]
            if alive > most:
                most, peak = alive, moment
        parts = dict.fromkeys(Part, 0)
        for one in self._every:
            if one.born <= peak < one.died:
                parts[one.part] += one.bytes
        return parts

    def _see(self, tensor: Tensor, part: Part, born: int) -> None:
        for storage in _storages(tensor):
            address, size = storage._cdata, storage.nbytes()
            known = self._alive.get(address)
            if known is not None and known.bytes == size:
                continue
            if known is not None:  # resized
                self._end(known)
                part, born = known.part, self._clock
            elif not size or storage.device.type != self._device:
                continue
            made = _Storage(size, part, born)
            made.reference = weakref.ref(storage, partial(self._gone, made, address))
            self._alive[address] = made
            self._every.append(made)

    def _gone(self, storage: _Storage, address: int, _: object) -> None:
        self._end(storage)
        if self._alive.get(address) is storage:
            del self._alive[address]

    def _end(self, storage: _Storage) -> None:
        storage.died, storage.reference = self._clock + 1, None


def _tensors(*values: Any) -> Iterator[Tensor]:
    """Yield the tensors among an operator's arguments or results; torch's own walk takes longer than a small one."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(*value)
        elif isinstance(value, dict):
            yield from _tensors(*value.values())


def _storages(tensor: Tensor) -> Iterator[torch.UntypedStorage]:
    """Yield the storages of a tensor; of a sparse matrix, those of its parts."""
    if tensor.layout is torch.strided:
        yield tensor.untyped_storage()
    elif tensor.layout is torch.sparse_csr:
        parts = (tensor.crow_indices(), tensor.col_indices(), tensor.values())
        yield from chain.from_iterable(map(_storages, parts))
