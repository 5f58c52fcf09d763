"""Addressed noise: z is a pure function of (seed, step, query, parameter name, element index).

A tensor's elements, in order, form groups of 2 * LANES: the first half of group g uses word 0 of the counters
j = LANES * g + lane, the second half word 1. All integers are modulo 2^32 and >> is the logical shift:

    x = j xor k0;  x = (x xor x>>16) * M1;  x = x xor k1;  x = (x xor x>>15) * M2;  x = x xor x>>16      (word 0)
    y = x * M3 + k0;  y = y xor y>>15                                                                  (word 1)

(k0, k1) are the two halves of BLAKE2b("seed/step/query/name"). A word w becomes the uniform u = ((w>>9) + 1/2) / 2^23,
which fp32 holds exactly and which is never 0 or 1. The two words of a counter, as signed integers, become two Gaussians
by the Box-Muller transform (|x| / 2^31 and y / 2^31 are first rounded to fp32):

    r = sqrt(-2 ln(|x or 1| / 2^31));  t = y / 2^31;  z_0 = r sin(pi t / 2);  z_1 = sign(x) r cos(pi t / 2)

ln, sin and cos are the polynomials in `_pairs`: fp32 additions and multiplications, each rounded separately (no fused
multiply-add). These and the square root are IEEE operations, so that z is bit-identical on every device, compiled or
not. It differs from the exact map by at most 2e-6 (1 + |z|). The largest |z| is 6.6.

A sum of directions is rounded in this order: s = c_0 z_0;  s = s + c_i z_i;  out = base + s.

The words need only multiplication, xor, and, and shifts, the operations that an exported program may use. Cost: 18
integer and about 50 float operations per pair; of signs 18 integer operations per 64 elements. On a CPU with a C
compiler `combine` runs kernels/gaussian.c, several times faster than the torch expressions and bit-identical (checked
when it is loaded). On CUDA, if triton is there, Gaussians are by kernels/triton.py, checked on first use on a device.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache, partial, reduce, wraps
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor

from zo_sweeps.core.memory_parts import Part, counted_as
from zo_sweeps.engine.kernels import native
from zo_sweeps.methods.points import NoiseKey

M1, M2, M3 = 0x7FEB352D, 0x846CA68B, 0x9E3779B1
LANES = 512
BLOCK = 1 << 7  # groups per block of the torch expression: its int32 and fp32 temporaries stay in the cores' L2 caches
ROOT_HALF, EXPONENT = 0x3F3504F3, 31 << 23  # the bits of sqrt(1/2); the factor 2^31 in the exponent's bits
LOG = (-0.23792209, 0.3733571, -0.4099266, 0.49819487, -0.66629016, 1.0000223, -2.000002)  # -2 ln(1 + f) / f, in f
SIN = (-0.004333095, 0.07943434, -0.64589286, 1.570791)  # sin(pi t / 2) / t, in t^2
COS = (0.00085819064, -0.020810628, 0.25365075, -1.2336982, 0.99999994)  # cos(pi t / 2), in t^2
TWO_LN2 = 1.3862944

P = ParamSpec("P")
T = TypeVar("T", Tensor, tuple[Tensor, Tensor])
Terms = Sequence[tuple[NoiseKey, float]]
# (out, base, start, words, scales): any implementation of `_expression`.
Run = Callable[[Tensor, Tensor | None, int, Sequence[tuple[int, int]], Sequence[float]], None]
log = logging.getLogger(__name__)


def cached(size: int) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Keep a function's last `size` results, of positional arguments, as functools.lru_cache does, unless torch traces.

    A tensor made during a trace has no values (it is a subclass of Tensor): kept, it would be uninitialized memory for
    the rest of the process.
    """

    def decorate(make: Callable[P, T]) -> Callable[P, T]:
        known: dict[object, T] = {}

        @wraps(make)
        def get(*args: P.args, **kwargs: P.kwargs) -> T:
            if args in known:
                return known[args]
            made = make(*args, **kwargs)
            parts = made if isinstance(made, tuple) else (made,)
            if all(type(part) is torch.Tensor for part in parts):
                while len(known) >= size:
                    known.pop(next(iter(known)), None)
                known[args] = made
            return made

        return get

    return decorate


def signed(word: int) -> int:
    """Return the int32 with the same bits as the unsigned 32-bit `word`."""
    return word - (1 << 32) if word >= 1 << 31 else word


@lru_cache(maxsize=65536)
def words_of(key: NoiseKey, name: str) -> tuple[int, int]:
    """Return (k0, k1), the 64-bit address of a parameter's direction, as two int32."""
    digest = hashlib.blake2b(f"{key.seed}/{key.step}/{key.query}/{name}".encode(), digest_size=8).digest()
    return signed(int.from_bytes(digest[:4], "little")), signed(int.from_bytes(digest[4:], "little"))


@cached(256)
def _constant(value: float, dtype: torch.dtype = torch.int32) -> Tensor:
    """Return a number as a 0-d tensor: faster than a Python number, which every operation would convert again."""
    return torch.tensor(value, dtype=dtype)


def _mix(x: Tensor, shift: int, spare: Tensor) -> None:
    """Set x = x xor x >> shift."""
    torch.bitwise_right_shift(x, _constant(shift), out=spare)
    x ^= spare.bitwise_and_(_constant((1 << (32 - shift)) - 1))


def _hash(x: Tensor, k0: int, k1: int, spare: Tensor) -> tuple[Tensor, Tensor]:
    """Return both words of each counter (int32). The first overwrites the counters."""
    x ^= k0
    _mix(x, 16, spare)
    x *= _constant(signed(M1))
    x ^= k1
    _mix(x, 15, spare)
    x *= _constant(signed(M2))
    _mix(x, 16, spare)
    y = x * _constant(signed(M3))
    y += k0
    _mix(y, 15, spare)
    return x, y


def integers(key: NoiseKey, name: str, count: int, device: torch.device | str = "cpu", *, start: int = 0) -> Tensor:
    """Return the raw words of elements start..start+count-1, [count] int32."""
    return _words(*words_of(key, name), start, count, device)


def _words(k0: int, k1: int, start: int, count: int, device: torch.device | str) -> Tensor:
    group = 2 * LANES
    first, last = start // group, -(-(start + count) // group)
    counter = torch.arange(first * LANES, last * LANES, dtype=torch.int32, device=device)
    halves = _hash(counter, k0, k1, torch.empty_like(counter))
    words = torch.stack([half.view(-1, LANES) for half in halves], dim=1)
    return words.flatten()[start - first * group :][:count]


def uniform(
    key: NoiseKey, name: str, shape: torch.Size, device: torch.device | str = "cpu", *, start: int = 0
) -> Tensor:
    """Return U(0, 1) numbers of `shape`, fp32: those of the elements start, start + 1, ...."""
    words = integers(key, name, shape.numel(), device, start=start)
    return words.bitwise_right_shift_(9).bitwise_and_(0x7FFFFF).float().add_(0.5).mul_(2.0**-23).view(shape)


def _polynomial(coefficients: Sequence[float], x: Tensor, out: Tensor) -> Tensor:
    """Evaluate a polynomial by Horner's rule, highest coefficient first, every operation rounded."""
    first, *rest, last = (_constant(c, torch.float32) for c in coefficients)
    torch.mul(x, first, out=out)
    for c in rest:
        out.add_(c).mul_(x)
    return out.add_(last)


def square_root(w: Tensor, out: Tensor) -> Tensor:
    """Compute the correctly rounded square root; torch's own on a CPU is a unit off, in up to a fifth of cases."""
    return torch.sqrt(w, out=out) if w.is_cuda else out.copy_(w.double().sqrt_())


def _pairs(counter: Tensor, k0: int, k1: int, spare: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return, for each counter (int32), r and its factors for both Gaussians. Overwrites `counter` and `spare`."""
    bits = spare[0].view(torch.int32)
    x, y = _hash(counter, k0, k1, bits)
    f, exponent, r, t = spare[0], spare[1], spare[2], spare[3]
    f.copy_(torch.bitwise_or(x, _constant(1), out=exponent.view(torch.int32)))
    bits.bitwise_and_(_constant(0x7FFFFFFF)).sub_(_constant(ROOT_HALF + EXPONENT))
    # |x| / 2^31 = (1 + f) 2^exponent, with 1 + f from sqrt(1/2) to sqrt(2)
    exponent.copy_(torch.bitwise_right_shift(bits, _constant(23), out=r.view(torch.int32)))
    bits.bitwise_and_(_constant(0x7FFFFF)).add_(_constant(ROOT_HALF))
    f.sub_(_constant(1.0, torch.float32))
    w = _polynomial(LOG, f, r).mul_(f).sub_(exponent.mul_(_constant(TWO_LN2, torch.float32)))
    square_root(w, r)
    t.copy_(y).mul_(_constant(2.0**-31, torch.float32))
    t2 = torch.mul(t, t, out=exponent)
    first = _polynomial(SIN, t2, f).mul_(t)
    second = _polynomial(COS, t2, t)
    second.view(torch.int32).bitwise_xor_(x.bitwise_and_(_constant(-(1 << 31))))
    return r, first, second


def _expression(
    out: Tensor, base: Tensor | None, start: int, words: Sequence[tuple[int, int]], scales: Sequence[float]
) -> None:
    """Compute `native.combine` in torch operations, on any device; all arguments flat."""
    group, stop = 2 * LANES, start + out.numel()
    last = -(-stop // group)
    block = min(BLOCK if out.device.type == "cpu" else last, last - start // group)
    lanes = torch.arange(block * LANES, dtype=torch.int32, device=out.device)
    counter, spare = torch.empty_like(lanes), torch.empty(4, len(lanes), device=out.device)
    sums = torch.empty(block, 2, LANES, device=out.device)
    for begin in range(start // group, last, max(block, 1)):
        groups = min(block, last - begin)
        used, first, end = groups * LANES, begin * group, (begin + groups) * group
        whole = base is None and start <= first and end <= stop
        total = out[first - start : end - start].view(groups, 2, LANES) if whole else sums[:groups]
        for i, ((k0, k1), scale) in enumerate(zip(words, scales, strict=True)):
            torch.add(lanes[:used], begin * LANES, out=counter[:used])
            r, *members = (part.view(groups, LANES) for part in _pairs(counter[:used], k0, k1, spare[:, :used]))
            for half, member in enumerate(members):
                term = torch.mul(member, r, out=member if i else total[:, half])
                if scale != 1:
                    term.mul_(scale)
                if i:
                    total[:, half].add_(term)
        if not whole:
            a, b = max(start, first), min(stop, end)
            wanted, place = total.flatten()[a - first : b - first], slice(a - start, b - start)
            if base is None:
                out[place] = wanted
            else:
                torch.add(base[place], wanted, out=out[place])


def _sign_expression(
    out: Tensor, base: Tensor | None, start: int, words: Sequence[tuple[int, int]], scales: Sequence[float]
) -> None:
    """As `_expression`, of signs."""
    first, last = start // 32, -(-(start + out.numel()) // 32)
    signs_of = _signs_of_bytes(out.device)

    def term(address: tuple[int, int], scale: float) -> Tensor:
        drawn = _words(*address, first, last - first, out.device).view(torch.uint8).int()
        return signs_of.index_select(0, drawn).view(-1)[start - 32 * first :][: out.numel()].mul_(scale)

    total = reduce(Tensor.add_, map(term, words, scales))
    out.copy_(total if base is None else total.add_(base))


def _rounded(
    run: Run, out: Tensor, base: Tensor | None, start: int, words: Sequence[tuple[int, int]], scales: Sequence[float]
) -> None:
    """Apply `run`, which supports fp32 only, to `out` and `base` of any dtype: sum in fp32 and round once."""
    total = torch.empty(out.shape, device=out.device)
    run(total, None, start, words, scales)
    out.copy_(total if base is None else total.add_(base))


def _same_bits(run: Run, expression: Run, device: torch.device, dtype: torch.dtype, add: bool) -> bool:
    """Tell whether `run` on `device` is bit-identical to the torch expression on the CPU; `add`: with a base."""
    words, scales, base = [(-5, 17), (1 << 30, -(1 << 30))], [0.3, -1.7], torch.linspace(-1, 1, 5 * LANES, dtype=dtype)
    for start in (3 * LANES + 1, 3 * LANES):  # the CUDA kernel has code of its own for multiples of 8
        ours, theirs = torch.empty_like(base), torch.empty_like(base, device=device)
        _rounded(expression, ours, base if add else None, start, words, scales)
        run(theirs, base.to(device) if add else None, start, words, scales)
        if not torch.equal(ours, theirs.cpu()):
            return False
    return True


@lru_cache(maxsize=1)
def _native() -> ctypes.CDLL | None:
    """Return the compiled maps if they can be built and are bit-identical to the torch expressions, else None."""
    code = native.library()
    if code is None:
        return None
    maps = ((code.zo_combine, _expression), (code.zo_signs, _sign_expression))
    cpu = torch.device("cpu")
    same = [_same_bits(partial(native.combine, run), expression, cpu, torch.float32, True) for run, expression in maps]
    return code if all(same) else None


@cache
def _triton(device: torch.device, dtype: torch.dtype, add: bool) -> Run | None:
    """Return the CUDA kernel for `out` (and a base) of `dtype` if it runs and is bit-identical to the expression."""
    try:
        from zo_sweeps.engine.kernels import triton

        if _same_bits(triton.combine, _expression, device, dtype, add):
            return triton.combine
        why = "its bits differ from the torch expression's"
    except Exception as error:  # no triton, no compiler for its launcher, an old device: anything can be raised
        why = f"{type(error).__name__}: {error}"
    log.debug("%s on %s falls back from triton to torch operations: %s", dtype, device, why)
    return None


def _runner(out: Tensor, base: Tensor | None, of_signs: bool) -> Run:
    """Return the fastest implementation for these tensors."""
    same_dtype = base is None or base.dtype == out.dtype
    if out.is_cuda and not of_signs and same_dtype and out.dtype in (torch.float32, torch.bfloat16, torch.float16):
        kernel = _triton(out.device, out.dtype, base is not None)
        if kernel is not None:
            return kernel
    run: Run = _sign_expression if of_signs else _expression
    if out.device.type == "cpu" and (code := _native()) is not None:
        run = partial(native.combine, code.zo_signs if of_signs else code.zo_combine)
    return run if same_dtype and out.dtype == torch.float32 else partial(_rounded, run)


def combine(
    terms: Terms,
    name: str,
    shape: torch.Size,
    device: torch.device | str = "cpu",
    *,
    base: Tensor | None = None,
    out: Tensor | None = None,
    start: int = 0,
    of_signs: bool = False,
) -> Tensor:
    """Return base + sum_i c_i z(key_i) for the terms (key_i, c_i): summed in fp32, rounded once to the dtype of `out`.

    z is Gaussian, or `of_signs`. The result, of this shape, holds the elements start, start + 1, ... of the parameter
    `name`; `base` has as many, and defaults to zero. `out` is contiguous, may be `base` itself, and defaults to a new
    tensor of the dtype of `base`, or fp32.

    Cost: one pass over `shape`, whatever the number of terms; the directions are never stored.
    """
    if out is None:
        out = torch.empty(shape, device=device, dtype=torch.float32 if base is None else base.dtype)
    flat, source = out.view(-1), None if base is None else base.reshape(-1)
    words = [words_of(key, name) for key, _ in terms]
    _runner(flat, source, of_signs)(flat, source, start, words, [scale for _, scale in terms])
    return out


def each(addresses: Sequence[tuple[NoiseKey, str]], shape: torch.Size, device: torch.device | str = "cpu") -> Tensor:
    """Return the directions of several (key, name), [K, *shape] fp32: the bits of `gaussian`, in one call.

    Of many small ones, calls and launches are the cost.
    """
    out = torch.empty(len(addresses), *shape, device=device)
    words = [words_of(key, name) for key, name in addresses]
    if out.device.type == "cpu" and (code := _native()) is not None:
        native.each(code.zo_combine, out, words)
    elif out.is_cuda and _triton(out.device, torch.float32, False) is not None:
        from zo_sweeps.engine.kernels import triton

        triton.each(out, words)
    else:
        for row, address in zip(out, words, strict=True):
            _expression(row.view(-1), None, 0, [address], [1.0])
    return out


def is_compiled() -> bool:
    """Tell whether `combine` runs the compiled map on this machine's CPU."""
    return _native() is not None


def expression(out: Tensor, key: NoiseKey, name: str) -> Tensor:
    """Fill `out` with z(key) by the torch expression, never by compiled code: the oracle of `combine`."""
    _expression(out.view(-1), None, 0, [words_of(key, name)], [1.0])
    return out


def gaussian(key: NoiseKey, name: str, shape: torch.Size, device: torch.device | str = "cpu") -> Tensor:
    """Return N(0, 1) numbers of `shape`, fp32; see the module's docstring for the map."""
    return combine([(key, 1.0)], name, shape, device)


def signs(key: NoiseKey, name: str, shape: torch.Size, device: torch.device | str = "cpu") -> Tensor:
    """Return 2 bit - 1 with bit j mod 32 (lowest first) of word j // 32: a new fp32 tensor of +1 and -1."""
    out = torch.empty(shape, device=device)
    _sign_expression(out.view(-1), None, 0, [words_of(key, name)], [1.0])
    return out


@cached(8)
def _signs_of_bytes(device: torch.device) -> Tensor:
    """Return [256, 8], the signs of a byte's bits, lowest bit first."""
    byte, bit = torch.arange(256, device=device).unsqueeze(1), torch.arange(8, device=device)
    return ((byte >> bit & 1) * 2 - 1).float()


@dataclass(frozen=True)
class Sampler:
    """Scores whose argmax is a draw from softmax(logits / temperature), by addressed Gumbel noise.

        s_v = logits_v / temperature - log(-log u_v)

    u_v is the uniform number with the address (seed, step, text/row), element t V + v: t counts the tokens of a text,
    row the texts of a minibatch. The texts of all points of a step share their noise, as they share its examples: their
    rewards differ by theta alone. Cost per token: V uniform numbers per text, drawn once for all points; memory: these,
    and a copy of the logits.
    """

    seed: int
    step: int
    temperature: float

    def __call__(self, rows: Sequence[int], token: int, logits: Tensor) -> Tensor:
        """Return s of the next token of each row, [N, V], after `token` tokens; logits [N, V]."""
        key, size = NoiseKey(self.seed, self.step, 0), logits[0].shape
        start = token * size.numel()
        with counted_as(Part.WORKSPACE):
            drawn = {row: uniform(key, f"text/{row}", size, logits.device, start=start) for row in {*rows}}
            for u in drawn.values():
                u.log_().neg_().log_()
        scores = logits / self.temperature
        for of_row, row in zip(scores, rows, strict=True):
            of_row.sub_(drawn[row])
        return scores
