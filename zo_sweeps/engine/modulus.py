"""PeZO's adaptive modulus scaling: scale uniform numbers to a Gaussian vector's expected length (eqs. 3 to 5).

    scaled u = s u,   s = E||g||_2 / ||u||_2,   E||g||_2 = sqrt(2) Gamma((m + 1) / 2) / Gamma(m / 2)

with g ~ N(0, I_m). The calling member chooses the vector u, and with it the length m: the paper uses the dimension of
the perturbation in eq. 3, the pool's size for the pool, and the number of generators for the table of factors.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def expected_norm(m: int) -> float:
    """Return E||g||_2 of g ~ N(0, I_m), m >= 1; relative error below 1e-11.

    Eq. 5, exp(log 2 / 2 + lgamma((m + 1) / 2) - lgamma(m / 2)); from m = 10^4 on, where the difference of two large
    logarithms would lose its digits, sqrt(m - 1/2 + 1/(8 m)) (its error is 1/(32 m^3)).
    """
    if m >= 10_000:
        return math.sqrt(m - 0.5 + 0.125 / m)
    return math.exp(0.5 * math.log(2) + math.lgamma((m + 1) / 2) - math.lgamma(m / 2))


def round_factor(factor: Tensor, rounding: str) -> Tensor:
    """Return the factors (> 0) unchanged, or as the nearest power of two, so that scaling is a shift.

    `linear` minimizes |factor - 2^e| (the boundary is 1.5 * 2^e), `log` minimizes |log2 factor - e| (the boundary is
    sqrt(2) * 2^e); the paper only says "nearest". Ties go to the larger power.
    """
    if rounding == "none":
        return factor
    mantissa, exponent = torch.frexp(factor)  # factor = mantissa * 2^exponent, 1/2 <= mantissa < 1
    up = mantissa >= (0.75 if rounding == "linear" else math.sqrt(0.5))
    return torch.ldexp(torch.ones_like(factor), exponent - 1 + up.int())
