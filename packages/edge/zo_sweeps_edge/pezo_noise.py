"""PeZO's directions in operations that an exported program can have: look-ups of numbers that the program holds.

Both kinds are a stream of numbers from a place in two cycles on, which covers the parameters contiguously, as the
engine's: its values and scales, which `zo_sweeps.engine.pezo` computes, are the program's buffers. What is left per
number is a copy (pool), or an addition, a look-up and a product (on the fly), and so the bits are the engine's.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

from zo_sweeps.engine import pezo
from zo_sweeps.engine.perturbations.pezo_onthefly import PeZOOnTheFly
from zo_sweeps.engine.perturbations.pezo_pool import PeZOPool
from zo_sweeps_edge.noise import Cycles, Noise, padded


class StreamedNoise(Noise):
    """Directions cut from a stream: parameter l from its offset on; what pads it are the stream's next numbers.

    Args:
        sizes: elements per parameter, in the space's order.
        cycles: where directions begin.
    """

    addresses = 1

    def __init__(self, sizes: Sequence[int], cycles: Cycles) -> None:
        super().__init__()
        self.cycles = cycles
        offsets = accumulate(sizes, initial=0)
        self._spans = [(offset, offset + padded(size)) for offset, size in zip(offsets, sizes, strict=False)]
        self.length = max(end for _, end in self._spans)

    def _direction(self, words: Tensor) -> Tensor:
        stream = self._stream(words[:, 0], words[:, 1])
        return torch.cat([stream[start:end] for start, end in self._spans])

    def _stream(self, first: Tensor, second: Tensor) -> Tensor:
        """Return at least `length` numbers from these places of both cycles on, [1] int32 each."""
        raise NotImplementedError


class PooledNoise(StreamedNoise):
    """A pool of numbers, read cyclically from the start of the direction; the second cycle is not used.

    Cost: a look-up for each of the pool's N numbers, and a copy of d. Memory: 2 N numbers, and N if directions have
    scales of their own.

    Args:
        pool: bound to the parameters.
        seed: of the run.
    """

    numbers: Tensor
    factors: Tensor
    places: Tensor

    def __init__(self, pool: PeZOPool, sizes: Sequence[int], seed: int) -> None:
        super().__init__(sizes, Cycles(pool.stride, (pool.size, 1)))
        starts = 1 if pool.length == "pool" else pool.size  # whose scales differ
        scales = [pool.scale(seed, start) for start in range(starts)]
        self._scaled_before = len({*scales}) == 1
        numbers = pezo.pool(seed, pool.k, pool.stored_bits)
        if self._scaled_before:
            numbers = numbers * pezo.factor(*scales[0])
        else:
            factors = torch.stack([pezo.factor(*scale) for scale in scales])
            self.register_buffer("factors", factors, persistent=False)
        self.register_buffer("numbers", numbers.repeat(2), persistent=False)
        self.register_buffer("places", torch.arange(min(pool.size, self.length), dtype=torch.int32), persistent=False)

    def _stream(self, first: Tensor, second: Tensor) -> Tensor:
        numbers = self.numbers.index_select(0, first + self.places)
        if not self._scaled_before:
            numbers = numbers * self.factors.index_select(0, first)
        return numbers.repeat(-(-self.length // len(self.places)))


class RegisterNoise(StreamedNoise):
    """An array of n registers of b bits, read by clocks: the cycles are those of its rotation and of a register.

    A register's output is a place in the cycle of all states, P = 2^b - 1 of them, which is its phase plus the clock:

        z[c n + i] = values[phases[(first + c) mod n, i] + second + c mod P] factors[addresses[...] + second + c mod P]

    `factors`: those of length `block`. Places reach 3 P - 3, and rows 2 n - 2: tables are repeated, not taken modulo.

    Args:
        registers: bound to the parameters.
        seed: of the run.
    """

    values: Tensor
    phases: Tensor
    factors: Tensor
    addresses_of: Tensor
    turns: Tensor
    clocks: Tensor

    def __init__(self, registers: PeZOOnTheFly, sizes: Sequence[int], seed: int) -> None:
        n, period = registers.registers, (1 << registers.bits) - 1
        super().__init__(sizes, Cycles(registers.stride, (n, period)))
        values, phases, factors, addresses = registers.tables(seed, pezo.CPU)
        count = torch.arange(-(-self.length // n), dtype=torch.int32)
        self.register_buffer("values", values[:period].repeat(3), persistent=False)
        self.register_buffer("factors", factors[:period].repeat(3), persistent=False)
        self.register_buffer("phases", phases.repeat(2, 1), persistent=False)
        self.register_buffer("addresses_of", addresses.flatten().repeat(2), persistent=False)
        self.register_buffer("turns", count % n, persistent=False)
        self.register_buffer("clocks", count % period, persistent=False)

    def _stream(self, first: Tensor, second: Tensor) -> Tensor:
        turns, clocks = first + self.turns, second + self.clocks
        places = self.phases.index_select(0, turns) + clocks.unsqueeze(1)
        numbers = self.values.index_select(0, places.flatten()).view(places.shape)
        factors = self.factors.index_select(0, self.addresses_of.index_select(0, turns) + clocks)
        return (numbers * factors.unsqueeze(1)).flatten()
