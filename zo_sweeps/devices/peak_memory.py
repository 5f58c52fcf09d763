"""Peak memory of a trial, with the definition of the measurement."""

from __future__ import annotations

import contextlib
import ctypes
import gc
from pathlib import Path
from typing import Any

import psutil

from zo_sweeps.devices.counters import Ticker
from zo_sweeps.devices.probe import board, jetson_profile

CUDA = "peak memory allocated by torch on the GPU during the trial (torch.cuda.max_memory_allocated, weights included)"
RSS = "peak resident memory of the process during the trial (interpreter, libraries and weights included), "
KERNEL = RSS + "read from VmHWM, reset at the start"
SAMPLED = RSS + "sampled every 20 ms"
PERIOD = 0.02  # seconds


class MemoryMeter:
    """A meter of peak memory between `start()` and `stop()`.

    cuda: the allocator's peak. cpu: the process's peak resident memory, from the kernel if it can be reset (Linux),
    otherwise sampled. Jetson, where GPU and CPU share memory: the sum of both peaks, an upper bound, because they need
    not coincide; several GPUs likewise.

    It is made for torch devices or their names: one, or GPUs. `definition` says in one line what the number is;
    `baseline` is that number at the start, and `above_baseline`, set by `stop()`, is what the peak has beyond it.
    """

    def __init__(self, *devices: Any) -> None:
        self._cuda = [str(device) for device in devices if str(device).startswith("cuda")]
        self._host = _HostPeak() if not self._cuda or jetson_profile(board()) else None
        parts = [CUDA + f", summed over {len(self._cuda)} GPUs" * (len(self._cuda) > 1)] if self._cuda else []
        if self._host:
            parts.append(self._host.definition)
        self.definition = " + ".join(parts)
        self.baseline = self.above_baseline = 0

    def start(self) -> None:
        """Return freed memory to the system, so that an earlier trial's does not count, and reset the peaks.

        Cost: a garbage collection, of the objects made since the last `set_aside`.
        """
        gc.collect()
        self.baseline = self._host.start() if self._host else 0
        if self._cuda:
            import torch

            for gpu in self._cuda:
                torch.cuda.reset_peak_memory_stats(gpu)
                self.baseline += torch.cuda.memory_allocated(gpu)

    def stop(self) -> int:
        """Return the peak bytes since `start()`. Can be called repeatedly; measuring continues."""
        peak = self._host.read() if self._host else 0
        if self._cuda:
            import torch

            peak += sum(map(torch.cuda.max_memory_allocated, self._cuda))
        self.above_baseline = max(peak - self.baseline, 0)
        return peak


def set_aside() -> None:
    """Collect garbage, and exempt the objects that are left from later collections (gc.freeze).

    With torch and transformers imported, a process has 400,000 objects that stay to its end, and a collection that
    visits them all takes 0.1 to 0.5 s. An exempt object is still freed with the last reference to it, unless it is part
    of a cycle: then only after `gc.unfreeze()`.
    """
    gc.collect()
    gc.freeze()


def is_out_of_memory(error: Exception) -> bool:
    """Tell whether an exception says that memory ran out, on a GPU or in the process."""
    import torch

    if isinstance(error, (MemoryError, torch.cuda.OutOfMemoryError)):
        return True
    texts = ("can't allocate memory", "std::bad_alloc")  # of torch's CPU allocator, and of C++ beneath it
    return isinstance(error, RuntimeError) and any(text in str(error) for text in texts)


class _HostPeak:
    """Peak resident memory of this process."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._kernel = _reset_high_water()
        self._sampler: Ticker | None = None
        self._peak = 0
        self.definition = KERNEL if self._kernel else SAMPLED

    def start(self) -> int:
        with contextlib.suppress(OSError, AttributeError):  # glibc's alone: return freed memory to the system
            ctypes.CDLL(None).malloc_trim(0)
        if self._sampler:
            self._sampler.stop()
        self._peak = 0
        if self._kernel:
            _reset_high_water()
        else:  # a peak of less than PERIOD can be missed
            self._sampler = Ticker("memory-meter", PERIOD, self._sample)
        return self._sample()

    def read(self) -> int:
        if self._sampler:
            self._sampler.stop()
        return max(self._sample(), _high_water() if self._kernel else 0)

    def _sample(self) -> int:
        self._peak = max(self._peak, int(self._process.memory_info().rss))
        return self._peak


def _reset_high_water() -> bool:
    """Reset the kernel's peak to the process's current size (proc(5), clear_refs 5); return whether it worked."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
        return _high_water() > 0
    except (OSError, ValueError):
        return False


def _high_water() -> int:
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise ValueError("no VmHWM in /proc/self/status")
