"""PeZO, pre-generated: a pool of uniform numbers, reused cyclically."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from zo_sweeps.core.errors import UserError
from zo_sweeps.engine.later import Tensor, pezo, torch
from zo_sweeps.engine.perturbations._bases import Whole
from zo_sweeps.methods.definition import option
from zo_sweeps.methods.perturbation import Advance, Perturbation, advance, starts
from zo_sweeps.methods.points import Layout, NoiseKey


@dataclass(frozen=True)
class PeZOPool(Whole):
    """u_t[j] = s p[(o_t + j) mod N];  o_{t+1} = (o_t + a) mod N, for direction t = (step - 1) q + query, o_0 = 0.

    p ~ U(-1, 1)^N with N = 2^k - 1 is drawn once from the run's seed and never renewed. A direction covers the
    parameters in the space's order.

    Args:
        k: the paper's default is 12 ("4096").
        length: the vector whose modulus is scaled to a Gaussian's (eqs. 3 to 5). `pool`: p, scaled once before it is
            stored (section 3.2). `perturbation`: u_t, d numbers, scaled for each direction (the letter of eq. 3).
        rounding: of s; see `round_factor`. The paper rounds the factors of the on-the-fly table, and does not say so
            for the pool. Rounding multiplies the modulus by 1.15.
        advance: `leftover`: a = d, the next direction starts where the previous one stopped, across queries and steps
            (the paper). `coprime`: a is the next number after d that shares no factor with N.
        stored_bits: b, if p is stored as fixed-point numbers of b bits: rounded to multiples of 2^(1-b), at most 1 -
            2^(1-b), before it is scaled. The paper's hardware stores 12; its accuracy tables do not say.

    u_t depends on o_t = t a mod N alone, so that a run has N / gcd(N, a) directions, far fewer than its steps where N
    and d share a factor (9 for OPT-1.3B and k = 12), and N with `coprime`. Parameters N positions apart always move
    alike, and all directions lie in N dimensions; E[z z^T] is near I only over pools, and only between positions that
    differ mod N.

    Bit-identical on every device. Cost: a copy; memory: N numbers. Raises UserError if N divides a, because all
    directions would then be equal. Source: PeZO section 3.1, eqs. 3 to 5.
    """

    k: int = option(12, "the pool has 2^k - 1 numbers", least=2, most=24)
    length: Literal["pool", "perturbation"] = option("pool", "the vector that is scaled to a Gaussian's modulus")
    rounding: Literal["none", "linear", "log"] = option("none", "how the factor is rounded to a power of two")
    advance: Advance = option("leftover", "where the next direction starts: at the left-overs, or so that none repeats")
    stored_bits: int | None = option(None, "bits of a stored number, such as 12; null: fp32", least=4, most=24)

    @property
    def size(self) -> int:
        """N, the pool's numbers."""
        return (1 << self.k) - 1

    def directions(self, d: int) -> int:
        return starts(advance(self.advance, d, self.size), self.size)

    def second_moment(self, shape: torch.Size) -> float | None:
        m = self.size if self.length == "pool" else self.layout.d
        return pezo.expected_norm(m) ** 2 / m if self.rounding == "none" else None

    def bind(self, layout: Layout) -> Perturbation:
        if self.directions(layout.d) == 1:
            raise UserError(
                f"2^{self.k} - 1 divides the number of parameters, {layout.d}: all directions would be the same",
                where="perturbation pezo_pool",
                fix="set perturbation.advance=coprime or choose another k",
            )
        return super().bind(layout)

    def sample(self, key: NoiseKey, name: str, shape: torch.Size, device: torch.device) -> Tensor:
        N = self.size
        start = self.layout.drawn_before(key) * self.stride % N
        stored, scale = (key.seed, self.k, self.stored_bits), self.scale(key.seed, start)
        numbers = pezo.scaled(*stored, *scale, torch.device(device))
        return pezo.cyclic(numbers, (start + self.layout.offsets[name]) % N, shape.numel()).view(shape)

    @property
    def stride(self) -> int:
        """a, the places from one direction's start to the next."""
        return advance(self.advance, self.layout.d, self.size)

    def scale(self, seed: int, start: int) -> tuple[float, int, str]:
        """Return the arguments of `pezo.factor` for the direction that starts at a place of the pool."""
        d, N, sums = self.layout.d, self.size, pezo.energy(seed, self.k, self.stored_bits)
        m, squares = (
            (N, sums[N]) if self.length == "pool" else (d, d // N * sums[N] + sums[start + d % N] - sums[start])
        )
        return squares**0.5, m, self.rounding
