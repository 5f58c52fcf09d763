"""PeZO, pre-generated: a pool of uniform numbers, reused cyclically."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from zo_sweeps.core.errors import UserError
from zo_sweeps.methods.definition import bound, option
from zo_sweeps.methods.perturbation import Perturbation
from zo_sweeps.methods.points import Layout, NoiseKey

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Rounding = Literal["none", "linear", "log"]


@dataclass(frozen=True)
class PeZOPool(Perturbation):
    """u_t[j] = s p[(o_t + j) mod N];  o_{t+1} = (o_t + d) mod N, for direction t = (step - 1) q + query, o_0 = 0.

    p ~ U(-1, 1)^N with N = 2^k - 1 is drawn once from the run's seed and never renewed; the next direction starts where
    the previous one stopped, across queries and steps. A direction covers the parameters in the space's order.

    Args:
        k: the pool has 2^k - 1 numbers. The paper's default is 12 ("4096").
        length: the vector whose modulus is scaled to a Gaussian's (eqs. 3 to 5). `pool`: p, scaled once before it is
            stored (the paper's section 3.2 for pre-generation). `perturbation`: u_t, d numbers, scaled for each
            direction (the letter of eq. 3).
        rounding: `none`, or s to the nearest power of two (`linear`, `log`: see `round_factor`). The paper rounds the
            factors of the on-the-fly table, and does not say so for the pool. Rounding multiplies the modulus by 1.15.

    Bit-identical on every device. Elements are not independent: parameters N positions apart always move alike, all
    directions lie in N dimensions, and there are N / gcd(N, d) of them; E[z z^T] is near I only over pools, and only
    between positions that differ mod N. Cost: a copy; memory: N numbers. Raises UserError if N divides d, because all
    directions would then be equal. Source: PeZO section 3.1, eqs. 3 to 5.
    """

    k: int = option(12, "the pool has 2^k - 1 numbers", least=2, most=24)
    length: Literal["pool", "perturbation"] = option("pool", "the vector that is scaled to a Gaussian's modulus")
    rounding: Rounding = option("none", "how the factor is rounded to a power of two")
    layout: Layout | None = bound()

    def bind(self, layout: Layout) -> PeZOPool:
        if layout.d % ((1 << self.k) - 1) == 0:
            raise UserError(
                f"2^{self.k} - 1 divides the number of parameters, {layout.d}: all directions would be the same",
                where="perturbation pezo_pool",
                fix=f"choose another k, such as {self.k - 1 if self.k > 2 else 3}",
            )
        return replace(self, layout=layout)

    def sample(self, key: NoiseKey, name: str, shape: torch.Size, device: torch.device) -> Tensor:
        import torch

        from zo_sweeps.engine.pezo_pool import cyclic, energy, scaled

        assert self.layout is not None, "bind the perturbation to the parameters first"
        d, N = self.layout.d, (1 << self.k) - 1
        start = self.layout.drawn_before(key) * d % N
        sums = energy(key.seed, self.k)
        if self.length == "pool":
            m, squares = N, sums[N]
        else:
            m, squares = d, d // N * sums[N] + sums[start + d % N] - sums[start]
        numbers = scaled(key.seed, self.k, squares**0.5, m, self.rounding, torch.device(device))
        return cyclic(numbers, (start + self.layout.offsets[name]) % N, shape.numel()).view(shape)
