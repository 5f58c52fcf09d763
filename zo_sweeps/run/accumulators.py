"""Storage for sums over examples that a device need not hold: main memory, or a file that the system pages."""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil
import torch
from torch import Tensor

from zo_sweeps.core.errors import UserError
from zo_sweeps.core.files import cache_folder
from zo_sweeps.devices.estimate import SCORES_BYTES
from zo_sweeps.devices.probe import board, jetson_profile


def zeros(shapes: Mapping[str, torch.Size], device: torch.device) -> Mapping[str, Tensor]:
    """Return zeros of these shapes, fp32, on the CPU, for sums of what `device` computes.

    They are in main memory up to SCORES_BYTES, which a plan counts, and, if the device has a memory of its own, up to
    half of the main memory that is available. Beyond that they are in a file of the cache folder. Values do not depend
    on it. Raises UserError if the file cannot be written.
    """
    shared = device.type == "cpu" or jetson_profile(board())
    room = SCORES_BYTES if shared else max(SCORES_BYTES, psutil.virtual_memory().available // 2)
    if sum(shape.numel() for shape in shapes.values()) * 4 <= room:
        return {name: torch.zeros(shape) for name, shape in shapes.items()}
    return Mapped(shapes, cache_folder())


class Mapped(Mapping[str, Tensor]):
    """Tensors of zeros, fp32, in a nameless file that is mapped into memory and ends with the object.

    The system keeps as much of the file in memory as is free, and may write any of it back. Only the tensor that was
    accessed last is resident in this process, so that the others count neither as its memory nor in `MemoryMeter`.

    Raises UserError if the folder cannot be written, or the disk has no room.
    """

    def __init__(self, shapes: Mapping[str, torch.Size], folder: Path) -> None:
        page, size = mmap.ALLOCATIONGRANULARITY, 0
        self._shapes, self._spans, self._last = dict(shapes), {}, ""
        for name, shape in shapes.items():
            length = -(-4 * shape.numel() // page) * page
            self._spans[name] = size, length
            size += length
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder) as file:
                os.posix_fallocate(file.fileno(), 0, size)  # a full disk is an error here, and a signal later
                self._map = mmap.mmap(file.fileno(), size)
        except OSError as error:
            what = f"cannot store {size / 1e9:.1f} GB of squared gradients ({error.strerror})"
            raise UserError(what, where=str(folder), fix="set ZO_SWEEPS_CACHE to a folder on a larger disk") from None

    def __getitem__(self, name: str) -> Tensor:
        if self._last not in ("", name):
            self._map.madvise(mmap.MADV_DONTNEED, *self._spans[self._last])
        self._last, shape = name, self._shapes[name]
        start, _ = self._spans[name]
        return torch.frombuffer(self._map, dtype=torch.float32, count=shape.numel(), offset=start).view(shape)

    def __iter__(self) -> Iterator[str]:
        return iter(self._shapes)

    def __len__(self) -> int:
        return len(self._shapes)
