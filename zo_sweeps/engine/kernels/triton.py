# mypy: disable-error-code="import-not-found,import-untyped,no-untyped-def,untyped-decorator"
# Triton is absent where types are checked, and a kernel's arguments are pointers and constants without Python types.
"""gaussian.c for CUDA, in Triton: the same map, one group of 1024 elements per program, any number of terms per pass.

Multiplications and additions are compiled as written (`enable_fp_fusion=False`: neither LLVM nor ptxas contracts them
to fused multiply-adds), and `sqrt_rn` is the correctly rounded root, so that the result is bit-identical to the torch
expression in noise.py. noise.py imports this module on first use of a CUDA tensor and falls back to the expression if
triton is missing or gives different bits. Triton comes with torch's CUDA builds; nothing else needs it.

Cost: one read of `base` (if given) and one write of `out`. The first term is among the kernel's arguments; further
ones are copied to the device, a small asynchronous copy. Its arithmetic is the limit: see docs/SPEED.md.
"""

from collections.abc import Sequence
from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

LANES = tl.constexpr(512)  # counters per group; a group is 2 * LANES elements
UNIT = 8  # elements: an access of 16 bytes in half precision
OPTIONS = {"num_warps": 2, "enable_fp_fusion": False}


@triton.jit
def _member(k0, k1, scale, counter):
    """Return c z of one term for each counter: the first and the second member of the pair."""
    k0 = k0.to(tl.uint32, bitcast=True)
    k1 = k1.to(tl.uint32, bitcast=True)
    x = counter ^ k0
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = x ^ k1
    x = (x ^ (x >> 15)) * 0x846CA68B
    x = x ^ (x >> 16)
    y = x * 0x9E3779B1 + k0
    y = y ^ (y >> 15)

    near = (x | 1).to(tl.int32, bitcast=True).to(tl.float32)
    bits = (near.to(tl.int32, bitcast=True) & 0x7FFFFFFF) - 0x4EB504F3  # sqrt(1/2), times 2^31
    exponent = (bits >> 23).to(tl.float32)
    f = ((bits & 0x7FFFFF) + 0x3F3504F3).to(tl.float32, bitcast=True) - 1.0
    p = f * -0.23792209 + 0.3733571
    p = p * f - 0.4099266
    p = p * f + 0.49819487
    p = p * f - 0.66629016
    p = p * f + 1.0000223
    p = p * f - 2.000002
    r = tl.sqrt_rn(p * f - exponent * 1.3862944)

    t = y.to(tl.int32, bitcast=True).to(tl.float32) * 4.656612873077393e-10  # 2^-31
    t2 = t * t
    s = (((t2 * -0.004333095 + 0.07943434) * t2 - 0.64589286) * t2 + 1.570791) * t
    c = (((t2 * 0.00085819064 - 0.020810628) * t2 + 0.25365075) * t2 - 1.2336982) * t2 + 0.99999994
    c = (c.to(tl.uint32, bitcast=True) ^ (x & 0x80000000)).to(tl.float32, bitcast=True)
    return s * r * scale, c * r * scale


@triton.jit
def _store(out, base, total, at, count, HAS_BASE: tl.constexpr):
    wanted = (at >= 0) & (at < count)
    if HAS_BASE:
        total = tl.load(base + at, mask=wanted, other=0.0).to(tl.float32) + total
    tl.store(out + at, total.to(out.dtype.element_ty), mask=wanted)


# No specialization on argument values: noise.py checks the very code that runs, on a small block.
@triton.jit(do_not_specialize=["k0", "k1", "scale", "more", "start", "count"])
def _combine(out, base, k0, k1, scale, table, more, start, count, HAS_BASE: tl.constexpr, STEP: tl.constexpr):
    start = start.to(tl.int64) * STEP
    count = count.to(tl.int64) * STEP
    group = start // (2 * LANES) + tl.program_id(0)
    lane = tl.arange(0, LANES)
    counter = (group * LANES).to(tl.uint32) + lane.to(tl.uint32)
    first, second = _member(k0, k1, scale, counter)
    for term in range(more):
        c = tl.load(table + 2 * more + term).to(tl.float32, bitcast=True)
        a, b = _member(tl.load(table + term), tl.load(table + more + term), c, counter)
        first += a
        second += b
    at = group.to(tl.int64) * (2 * LANES) - start + lane  # index in `out` of the first half
    _store(out, base, first, at, count, HAS_BASE)
    _store(out, base, second, at + LANES, count, HAS_BASE)


def combine(
    out: Tensor, base: Tensor | None, start: int, words: Sequence[tuple[int, int]], scales: Sequence[float]
) -> None:
    """Set out = base + sum_k scales[k] * z_k at elements start, start+1, ...; contiguous, of any floating dtypes.

    Sums in fp32 and rounds once to the dtype of `out`. `base` may be `out`.
    """
    count, more, lanes = out.numel(), len(words) - 1, LANES.value
    if not count:
        return
    table = _table(words[1:], scales[1:], out.device) if more else _no_table(out.device)
    # Where start and count are multiples of UNIT, a thread reads and writes as many elements at once.
    step = 1 if start % UNIT or count % UNIT else UNIT
    groups = -(-(start + count) // (2 * lanes)) - start // (2 * lanes)
    with torch.cuda.device_of(out):
        _combine[(groups,)](
            out,
            out if base is None else base,
            *words[0],
            scales[0],
            table,
            more,
            start // step,
            count // step,
            HAS_BASE=base is not None,
            STEP=step,
            **OPTIONS,
        )


@triton.jit(do_not_specialize=["count", "keys"])
def _each(out, table, count, keys):
    group, k = tl.program_id(0), tl.program_id(1)
    lane = tl.arange(0, LANES)
    counter = (group * LANES).to(tl.uint32) + lane.to(tl.uint32)
    first, second = _member(tl.load(table + k), tl.load(table + keys + k), 1.0, counter)
    row, at = out + k.to(tl.int64) * count, group.to(tl.int64) * (2 * LANES) + lane
    _store(row, row, first, at, count, False)
    _store(row, row, second, at + LANES, count, False)


def each(out: Tensor, words: Sequence[tuple[int, int]]) -> None:
    """Set out[k] = z_k for each of at most 65,535 directions, in one launch; [K, *shape], contiguous."""
    count = out[0].numel()
    if count:
        with torch.cuda.device_of(out):
            table = _table(words, [1.0] * len(words), out.device)
            _each[(-(-count // (2 * LANES.value)), len(words))](out, table, count, len(words), **OPTIONS)


def _table(words: Sequence[tuple[int, int]], scales: Sequence[float], device: torch.device) -> Tensor:
    """Return the rows k0, k1 and scales (their bits) of several terms, [3, terms] int32."""
    host = torch.empty(3, len(words), dtype=torch.int32, pin_memory=device.type == "cuda")  # for an asynchronous copy
    host[:2] = torch.tensor(words, dtype=torch.int32).T
    host[2].view(torch.float32).copy_(torch.tensor(scales, dtype=torch.float32))
    return host.to(device, non_blocking=True)


@cache
def _no_table(device: torch.device) -> Tensor:
    return torch.empty(1, dtype=torch.int32, device=device)
