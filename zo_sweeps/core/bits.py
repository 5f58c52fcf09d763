"""Lists of truth values as text: a bit each, in hexadecimal."""

from __future__ import annotations

from collections.abc import Sequence


def packed(values: Sequence[bool]) -> str:
    """Return the values as hexadecimal digits, the first in the highest bit; the last byte is filled up with 0."""
    bits = "".join("1" if value else "0" for value in values)
    return bytes(int(bits[i : i + 8].ljust(8, "0"), 2) for i in range(0, len(bits), 8)).hex()


def unpacked(text: str, count: int) -> tuple[bool, ...]:
    """Return the first `count` values of a packed text. Raises ValueError if it holds fewer, or is not hexadecimal."""
    bits = "".join(f"{byte:08b}" for byte in bytes.fromhex(text))
    if len(bits) < count:
        raise ValueError(f"{len(bits)} bits for {count} values")
    return tuple(bit == "1" for bit in bits[:count])
