"""Maximal linear-feedback shift registers, and PeZO's array of them: random access to the integers of any clock.

A register of b bits holds a state s (bit i, from 1, is s >> (i - 1) & 1), which is also its output. One clock:

    f = xor of the bits TAPS[b] of s;    s <- (2 s + f) mod 2^b                                       (Fibonacci form)

The taps are the exponents of a primitive polynomial, so that a non-zero state passes through all P = 2^b - 1 non-zero
states: the state at clock c is cycle[(phase + c) mod P], and a register is its phase. An array of n registers gives n
integers per clock, rotated: at clock c position i holds register (i + c) mod n. It repeats after lcm(n, P) clocks.

The paper specifies neither the polynomials nor the seeds. Here the phases of a seed are distinct for n <= P; otherwise
each is used equally often (up to one).
"""

from __future__ import annotations

import torch
from torch import Tensor

from zo_sweeps.engine import noise
from zo_sweeps.engine.noise import cached
from zo_sweeps.methods.perturbation import advance
from zo_sweeps.methods.points import NoiseKey

TAPS: dict[int, tuple[int, ...]] = {
    2: (2, 1),
    3: (3, 2),
    4: (4, 3),
    5: (5, 3),
    6: (6, 5),
    7: (7, 6),
    8: (8, 6, 5, 4),
    9: (9, 5),
    10: (10, 7),
    11: (11, 9),
    12: (12, 6, 4, 1),
    13: (13, 4, 3, 1),
    14: (14, 5, 3, 1),
    15: (15, 14),
    16: (16, 15, 13, 4),
}
SEED_STEP = -2  # noise address of the values drawn once per run; no training step uses it


def leap(bits: int) -> int:
    """Return the least number of clocks that replaces all b bits of a register and still leads through all its states.

    Over a period, two outputs so far apart are uncorrelated: no bit of one equals a bit of the other.
    """
    return advance("coprime", bits, (1 << bits) - 1)


@cached(32)
def cycle(bits: int, clocks: int = 1) -> Tensor:
    """Return all states in order, starting at state 1, [2^b - 1] int32. Cost: 2^b - 1 clocks, once.

    `clocks` between two outputs, coprime to 2^b - 1, give the states of the same cycle in another order.
    """
    mask = sum(1 << (tap - 1) for tap in TAPS[bits])
    states, state = [], 1
    for _ in range((1 << bits) - 1):
        states.append(state)
        state = (state << 1 | (state & mask).bit_count() & 1) & ((1 << bits) - 1)
    return torch.tensor(states, dtype=torch.int32)[torch.arange(len(states)) * clocks % len(states)]


@cached(8)
def phases(seed: int, registers: int, bits: int) -> Tensor:
    """Return each register's position in the cycle at clock 0, [n] int64: a shuffle of the cycle, repeated if n > P."""
    words = noise.integers(NoiseKey(seed, SEED_STEP, 0), "lfsr", (1 << bits) - 1)
    shuffled = torch.argsort(words, stable=True)
    return shuffled[torch.arange(registers) % len(shuffled)]


def read(values: Tensor, windows: Tensor, clock: int, clocks: int) -> Tensor:
    """Return the registers' outputs at clocks clock, clock + 1, ..., [clocks, m].

    `values` [2 P] are those of cycle[j mod P] (the state itself, or its image under a map); `windows` [n, m] int32 the
    phases of the m registers read at clock c, by c mod n: `rotations` for the array. Cost per number: a copy, an
    addition and a look-up.
    """
    n, period = windows.shape[0], len(values) // 2
    step = torch.arange(clocks, dtype=torch.int32, device=values.device)
    index = windows.index_select(0, (step + clock % n) % n)
    index += ((step + clock % period) % period).unsqueeze(1)
    return values.index_select(0, index.view(-1)).view(index.shape)


def rotations(phases: Tensor) -> Tensor:
    """Return [n, n] int32: row c holds the phases in the order in which clock c (mod n) reads them."""
    return phases.repeat(2)[:-1].unfold(0, len(phases), 1).int().contiguous()
