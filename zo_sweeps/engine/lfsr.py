"""Maximal linear-feedback shift registers, and PeZO's array of them: integers at any clock, without running up to it.

A register of b bits holds a state s (bit i, from 1, is s >> (i - 1) & 1), which is also its output. One clock:

    f = xor of the bits TAPS[b] of s;    s <- (2 s + f) mod 2^b                                       (Fibonacci form)

The taps are the exponents of a primitive polynomial, so that a state that is not zero runs through all P = 2^b - 1 of
them: the state at clock c is cycle[(phase + c) mod P], and a register is its phase. An array of n registers gives n
integers a clock, rotated: at clock c the register in place i is (i + c) mod n, so that the one in first place has gone
to the end. The array repeats after lcm(n, P) clocks.

The paper says neither the polynomials nor the seeds. Here the phases of a seed are distinct for n <= P, and each is
used equally often (up to one) otherwise. Neighbouring outputs of a register share b - 1 bits, as they do in hardware
that clocks once a number.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from zo_sweeps.engine import noise
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
SEED_STEP = -2  # the noise address of what is drawn once a run: no training step has it


@lru_cache
def cycle(bits: int) -> Tensor:
    """All states in order, from state 1 on, [2^b - 1] int32. Computed once, 2^b - 1 clocks."""
    mask = sum(1 << (tap - 1) for tap in TAPS[bits])
    states, state = [], 1
    for _ in range((1 << bits) - 1):
        states.append(state)
        state = (state << 1 | (state & mask).bit_count() & 1) & ((1 << bits) - 1)
    return torch.tensor(states, dtype=torch.int32)


@lru_cache(maxsize=8)
def phases(seed: int, registers: int, bits: int) -> Tensor:
    """Where each register stands in the cycle at clock 0, [n] int64: a shuffle of the cycle, repeated if n > P."""
    words = noise.integers(NoiseKey(seed, SEED_STEP, 0), "lfsr", (1 << bits) - 1)
    shuffled = torch.argsort(words, stable=True)
    return shuffled[torch.arange(registers) % len(shuffled)]


def read(values: Tensor, windows: Tensor, clock: int, clocks: int) -> Tensor:
    """What registers give at clocks clock, clock + 1, ..., [clocks, m].

    Args:
        values: [2 P], what cycle[j mod P] stands for (the state itself, or what it is mapped to).
        windows: [n, m] int32, the phases of the m registers that clock c reads, by c mod n: `rotations` for the array.

    Cost: a copy, an addition and a look-up a number.
    """
    n, period = windows.shape[0], len(values) // 2
    step = torch.arange(clocks, dtype=torch.int32, device=values.device)
    index = windows.index_select(0, (step + clock % n) % n)
    index += ((step + clock % period) % period).unsqueeze(1)
    return values.index_select(0, index.view(-1)).view(index.shape)


def rotations(phases: Tensor) -> Tensor:
    """[n, n] int32: row c holds the phases in the order in which clock c (mod n) reads them."""
    return phases.repeat(2)[:-1].unfold(0, len(phases), 1).int().contiguous()
