"""The linear maps of a shift register over GF(2): its clock, and any number of clocks at once."""

from __future__ import annotations

from collections.abc import Sequence


def clock(state: int, taps: Sequence[int], bits: int) -> int:
    """Return the state after one clock: s <- (2 s + xor of its taps) mod 2^b, as in `engine/lfsr.py`."""
    feedback = sum(state >> (tap - 1) for tap in taps) & 1
    return (state << 1 | feedback) & ((1 << bits) - 1)


def power(taps: Sequence[int], bits: int, clocks: int) -> list[int]:
    """Return the images of the unit vectors, bit 0 first, under `clocks` clocks. Cost: b^2 log(clocks) operations."""
    result, square = [1 << i for i in range(bits)], [clock(1 << i, taps, bits) for i in range(bits)]
    while clocks:
        if clocks & 1:
            result = [image(square, one) for one in result]
        square = [image(square, one) for one in square]
        clocks >>= 1
    return result


def image(images: Sequence[int], state: int) -> int:
    """Return the image of a state: the xor of those of its bits."""
    result = 0
    for i, one in enumerate(images):
        if state >> i & 1:
            result ^= one
    return result


def verilog(images: Sequence[int], argument: str) -> str:
    """Return the Verilog of the map, as a concatenation from the top bit on."""
    width = len(images)
    masks = [sum((one >> row & 1) << column for column, one in enumerate(images)) for row in range(width)]
    return "{" + ", ".join(f"^({argument} & {width}'h{mask:x})" for mask in reversed(masks)) + "}"
