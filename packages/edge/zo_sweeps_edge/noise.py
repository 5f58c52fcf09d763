"""The engine's directions in operations that an exported program can have; Gaussian ones. PeZO's: pezo_noise.py.

A call names a direction by W addresses of two words: the hashes of each parameter's address (Gaussian), or one place in
two cycles (`Cycles`), which the caller computes; see `Program.words`.

Words, polynomials and the order of rounding of the Gaussian noise are those of `zo_sweeps.engine.noise`. Operations
that ExecuTorch does not have, or has in slow kernels (a comparison takes as long as a hundred additions, a broadcast as
five), are rewritten:

    j xor k0, ...         counters and keys are written out over the lanes first, once per parameter and not per element
    x >> s (logical)      (x >> s) and (2^(32 - s) - 1)
    frexp v               s = p - p (1 - 2^-24) with p = SCALE v: one unit in the last place of p, a power of two.
                          SCALE is such that |p| passes a power of two where |v| passes the engine's border, 2^k times
                          sqrt(1/2). Then v / s is exact.
    log2 |s|              log |s| / log 2, rounded to an integer: |s| is a power of two, and any kernel is near enough
    sign of x             s / |s|

Every other operation is an integer one, an IEEE addition, multiplication, division or square root, or exact, and each
is rounded separately: the result is bit-identical to the engine's. XNNPACK computes what it rounds so too (`_exact` in
xnnpack.py), on all cores. Its square root is an approximation: the root and the integers stay on ExecuTorch's kernels.

Cost: about 70 operations per pair of elements, each a pass over fp32 or int32 temporaries. The directions of a call are
made one after the other, by one loop in the program, so that neither its size nor the temporaries grow with them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch._higher_order_ops.map import map as map_over

from zo_sweeps.engine.noise import COS, LANES, LOG, M1, M2, M3, SIN, TWO_LN2, signed

GROUP = 2 * LANES  # elements of a group; each parameter begins at a new one
SCALE = 11863285.0  # about 2^23 sqrt(2)
ROUND = 1.5 * 2.0**23  # added and subtracted again, rounds to an integer


def padded(count: int) -> int:
    """Return the elements that a parameter of `count` elements occupies: whole groups."""
    return -(-count // GROUP) * GROUP


@dataclass(frozen=True)
class Cycles:
    """Where directions begin: direction t = (step - 1) q + query of a run at place t stride of two cycles.

    Args:
        stride: places from one direction to the next, at least 1.
        lengths: of the cycles.
    """

    stride: int
    lengths: tuple[int, int]

    def start(self, drawn: int) -> tuple[int, int]:
        """Return the places at which a direction begins, `drawn` others before it."""
        first, second = (drawn * self.stride % length for length in self.lengths)
        return first, second


class Noise(nn.Module):
    """The directions z of all parameters, each as one vector, from the words of their addresses.

    Attributes:
        addresses: W.
        cycles: where directions begin; None: parameters have addresses of their own.
    """

    addresses: int
    cycles: Cycles | None = None

    def forward(self, words: Tensor) -> Tensor:
        """Return z [D, d], fp32, each parameter padded to whole groups.

        Args:
            words: [D, W, 2] int32, the addresses of the directions.
        """
        if torch.compiler.is_exporting():
            directions: Tensor = map_over(self._direction, words)  # type: ignore[arg-type]  # it has no further inputs
            return directions
        return torch.stack([self._direction(one) for one in words])

    def _direction(self, words: Tensor) -> Tensor:
        """Return one direction, [d], from its addresses [W, 2]."""
        raise NotImplementedError


class GaussianNoise(Noise):
    """N(0, 1): each parameter from the hash of its own address.

    Args:
        sizes: elements per parameter, in the space's order.
    """

    counters: Tensor
    group: Tensor
    owner: Tensor
    factors: Tensor
    lanes: Tensor

    def __init__(self, sizes: Sequence[int]) -> None:
        super().__init__()
        self.addresses = len(sizes)
        groups = [padded(size) // GROUP for size in sizes]
        counters = torch.arange(max(groups) * LANES, dtype=torch.int32).view(-1, LANES)
        self.register_buffer(
            "counters", counters, persistent=False
        )  # of the largest parameter: its first rows serve all
        self.register_buffer("group", torch.cat([torch.arange(count) for count in groups]), persistent=False)
        owner = torch.arange(len(sizes)).repeat_interleave(torch.tensor(groups))
        self.register_buffer("owner", owner, persistent=False)
        factors = torch.tensor([signed(M1), signed(M2), signed(M3)], dtype=torch.int32)
        self.register_buffer("factors", factors.unsqueeze(1).repeat(1, LANES), persistent=False)
        self.register_buffer("lanes", torch.zeros(LANES, dtype=torch.int32), persistent=False)

    def _direction(self, words: Tensor) -> Tensor:
        k0, k1 = ((words[:, i : i + 1] + self.lanes).index_select(0, self.owner) for i in range(2))
        x, y = _words(self.counters.index_select(0, self.group), k0, k1, self.factors)
        return torch.stack(_pairs(x, y), dim=1).flatten()


def _mixed(x: Tensor, shift: int) -> Tensor:
    """Return x xor x >> shift."""
    high = torch.bitwise_right_shift(x, shift)  # arithmetic: copies of the sign come in at the left
    return torch.bitwise_xor(x, torch.bitwise_and(high, (1 << (32 - shift)) - 1))


def _words(counter: Tensor, k0: Tensor, k1: Tensor, factors: Tensor) -> tuple[Tensor, Tensor]:
    """Return both words of each counter, int32."""
    x = _mixed(torch.bitwise_xor(counter, k0), 16) * factors[0]
    x = _mixed(torch.bitwise_xor(x, k1), 15) * factors[1]
    x = _mixed(x, 16)
    return x, _mixed(x * factors[2] + k0, 15)


def _polynomial(coefficients: Sequence[float], x: Tensor) -> Tensor:
    """Evaluate a polynomial by Horner's rule, highest coefficient first."""
    first, *rest, last = coefficients
    value = x * first
    for c in rest:
        value = (value + c) * x
    return value + last


def _scale(v: Tensor) -> Tensor:
    """Return the power of two s, with the sign of v, for which v / s lies from sqrt(1/2) to sqrt(2)."""
    product = v * SCALE
    return product - product * (1.0 - 2.0**-24)


def _exponent(s: Tensor) -> Tensor:
    """Return log2 s of powers of two."""
    return torch.log(s) * (1.0 / math.log(2.0)) + ROUND - ROUND


def _root(w: Tensor) -> Tensor:
    """Return the correctly rounded square root, as ExecuTorch's is; PyTorch's on a CPU is off in 0.6 % of cases."""
    return torch.sqrt(w) if torch.compiler.is_exporting() else w.double().sqrt().float()


def _pairs(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return the two Gaussians of both words."""
    v = torch.bitwise_or(x, 1).to(torch.float32)
    scale = _scale(v)
    size, f = scale.abs(), v / scale - 1.0
    r = _root(_polynomial(LOG, f) * f - (_exponent(size) - 31.0) * TWO_LN2)
    t = y.to(torch.float32) * 2.0**-31
    square = t * t
    return _polynomial(SIN, square) * t * r, _polynomial(COS, square) * (scale / size) * r
