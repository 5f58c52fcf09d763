"""The addressed Gaussian noise of `zo_sweeps.engine.noise`, in operations that an exported program can have.

The words, the polynomials and the order of rounding are the engine's. Operations that ExecuTorch does not have, or has
in slow kernels (a comparison takes as long as a hundred additions, floor division as forty), are rewritten:

    x >> s (logical)      ((x and -2^s) / 2^s) and (2^(32 - s) - 1): the division is exact, and so truncates nothing
    frexp v               s = p - p (1 - 2^-24) with p = SCALE v: one unit in the last place of p, a power of two.
                          SCALE is such that |p| passes a power of two where |v| passes the engine's border, 2^k times
                          sqrt(1/2). Then v / s is exact.
    log2 |s|              a sum of five sigmoids |s| / (|s| + 2^c), a straight line in log2 |s| within 0.25 from 1 to
                          2^31, rounded to an integer
    sign of x             s / |s|

Every operation is an integer one, an IEEE addition, multiplication, division or square root, or exact. ExecuTorch's
portable and optimized kernels round each of them separately, and the result is bit-identical to the engine's. A
delegate may fuse or approximate (XNNPACK's differs in a quarter of the elements, by at most 5e-7), so that these nodes
are never delegated.

Cost: about 100 operations per pair of elements, each a pass over fp32 or int32 temporaries.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from zo_sweeps.engine.noise import COS, LANES, LOG, M1, M2, M3, SIN, TWO_LN2, signed

GROUP = 2 * LANES  # elements of a group; each parameter begins at a new one
SCALE = 11863285.0  # about 2^23 sqrt(2)
CENTRES, WIDTH, SHIFT, ROUND = tuple(2.0**c for c in (2.7, 9.0, 15.5, 22.0, 28.3)), 6.48, -0.7, 1.5 * 2.0**23


def padded(count: int) -> int:
    """Return the elements that a parameter of `count` elements occupies: whole groups."""
    return -(-count // GROUP) * GROUP


class Noise(nn.Module):
    """The direction z of all parameters as one vector, from the words of its address.

    Args:
        sizes: elements per parameter, in the space's order.
    """

    first: Tensor
    lane: Tensor
    owner: Tensor

    def __init__(self, sizes: Sequence[int]) -> None:
        super().__init__()
        groups = torch.tensor([padded(size) // GROUP for size in sizes])
        first = torch.cat([torch.arange(count, dtype=torch.int32) * LANES for count in groups.tolist()])
        self.register_buffer("first", first.unsqueeze(1), persistent=False)  # counter of each group's first lane
        self.register_buffer("lane", torch.arange(LANES, dtype=torch.int32), persistent=False)
        self.register_buffer("owner", torch.arange(len(sizes)).repeat_interleave(groups), persistent=False)

    def forward(self, words: Tensor) -> Tensor:
        """Return z, fp32, each parameter padded to whole groups.

        Args:
            words: [L, 2] int32, `engine.noise.words_of` each parameter.
        """
        keys = words.index_select(0, self.owner)
        counter = self.first + self.lane
        return torch.stack(_pairs(counter, keys[:, :1], keys[:, 1:]), dim=1).flatten()


def _mixed(x: Tensor, shift: int) -> Tensor:
    """Return x xor x >> shift."""
    whole = torch.bitwise_and(x, -(1 << shift))  # a multiple of 2^shift, so that the division is exact
    high = torch.div(whole, 1 << shift, rounding_mode="trunc")
    return torch.bitwise_xor(x, torch.bitwise_and(high, (1 << (32 - shift)) - 1))


def _words(counter: Tensor, k0: Tensor, k1: Tensor) -> tuple[Tensor, Tensor]:
    """Return both words of each counter, int32."""
    x = _mixed(torch.bitwise_xor(counter, k0), 16) * signed(M1)
    x = _mixed(torch.bitwise_xor(x, k1), 15) * signed(M2)
    x = _mixed(x, 16)
    return x, _mixed(x * signed(M3) + k0, 15)


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
    """Return log2 s of powers of two from 1 to 2^31."""
    steps = [s / (s + centre) for centre in CENTRES]
    line: Tensor = sum(steps[1:], steps[0]) * WIDTH + SHIFT
    return line + ROUND - ROUND


def _root(w: Tensor) -> Tensor:
    """Return the correctly rounded square root, as ExecuTorch's is; PyTorch's on a CPU is off in 0.6 % of cases."""
    return torch.sqrt(w) if torch.compiler.is_exporting() else w.double().sqrt().float()


def _pairs(counter: Tensor, k0: Tensor, k1: Tensor) -> tuple[Tensor, Tensor]:
    """Return both Gaussians of each counter."""
    x, y = _words(counter, k0, k1)
    v = torch.bitwise_or(x, 1).to(torch.float32)
    scale = _scale(v)
    size, f = scale.abs(), v / scale - 1.0
    r = _root(_polynomial(LOG, f) * f - (_exponent(size) - 31.0) * TWO_LN2)
    t = y.to(torch.float32) * 2.0**-31
    square = t * t
    return _polynomial(SIN, square) * t * r, _polynomial(COS, square) * (scale / size) * r
