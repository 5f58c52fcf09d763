"""gaussian.c, built with the machine's C compiler if there is one, and run on as many threads as torch uses.

A build takes half a second, once per process, on first use; the shared object is loaded from a private folder, which is
removed at once. Nothing is kept between processes, so nothing can be stale. Without a compiler noise.py falls back to
its torch expression, which is bit-identical.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor

SOURCE = Path(__file__).with_name("gaussian.c")
GROUP = 1024  # elements: a tensor is split between threads at multiples of it
FLAGS = ("-O3", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", "-shared", "-fPIC")
# The first set that compiles is used. Compilers use the widest vectors only on request.
TUNING = (("-march=native", "-mprefer-vector-width=512"), ("-march=native",), ("-mcpu=native",), ())
PER_THREAD = 1 << 17  # elements: with fewer, starting a thread costs more than it saves


@lru_cache(maxsize=1)
def library() -> ctypes.CDLL | None:
    """Build and load the code; return None if there is no C compiler or it fails."""
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if compiler is None:
        return None
    with tempfile.TemporaryDirectory(prefix="zo_sweeps-") as folder:
        target = Path(folder) / "gaussian.so"
        for tuning in TUNING:
            try:
                command = [compiler, *FLAGS, *tuning, "-o", str(target), str(SOURCE)]
                subprocess.run(command, check=True, capture_output=True, timeout=60)
                built = ctypes.CDLL(str(target))
            except (OSError, subprocess.SubprocessError):
                continue
            pointer, size = ctypes.c_void_p, ctypes.c_int64
            for function in (built.zo_combine, built.zo_signs):
                function.argtypes = [pointer, pointer, size, size, ctypes.c_int32, pointer, pointer]
                function.restype = None
            return built
    return None


@lru_cache(maxsize=1)
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads - 1, thread_name_prefix="zo_sweeps-noise")


def combine(
    function: Callable[..., None],
    out: Tensor,
    base: Tensor | None,
    start: int,
    words: Sequence[tuple[int, int]],
    scales: Sequence[float],
) -> None:
    """Set out = base + sum_k scales[k] * z_k at elements start, start+1, ...; contiguous fp32 on the CPU.

    Args:
        function: of `library`: what z is.
    """
    count, terms = out.numel(), len(words)
    keys = (ctypes.c_uint32 * (2 * terms))(*(word & 0xFFFFFFFF for pair in words for word in pair))
    factors = (ctypes.c_float * terms)(*scales)
    to, source = out.data_ptr(), None if base is None else base.data_ptr()

    def part(first: int, last: int) -> None:
        """Compute elements first..last-1 of `out`."""
        at = None if source is None else source + 4 * first
        function(to + 4 * first, at, start + first, last - first, terms, keys, factors)

    threads = min(torch.get_num_threads(), count * terms // PER_THREAD, count // GROUP)
    if threads <= 1:
        part(0, count)
        return
    share = -(-count // threads)
    cuts = [0, *(((start + i * share) // GROUP) * GROUP - start for i in range(1, threads)), count]
    waiting = [_pool(torch.get_num_threads()).submit(part, a, b) for a, b in pairwise(cuts[1:])]
    part(cuts[0], cuts[1])
    for other in waiting:
        other.result()


def each(function: Callable[..., None], out: Tensor, words: Sequence[tuple[int, int]]) -> None:
    """Set out[k] = z_k for each direction; [K, *shape], contiguous fp32 on the CPU."""
    count = out[0].numel()
    if count >= PER_THREAD:
        for row, address in zip(out, words, strict=True):
            combine(function, row, None, 0, [address], [1.0])
        return
    keys = (ctypes.c_uint32 * (2 * len(words)))(*(word & 0xFFFFFFFF for pair in words for word in pair))
    to, first, one = out.data_ptr(), ctypes.addressof(keys), (ctypes.c_float * 1)(1.0)
    for k in range(len(words)):
        function(to + 4 * count * k, None, 0, count, 1, first + 8 * k, one)
