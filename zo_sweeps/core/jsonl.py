"""Reading of JSON lines files to which another process may be appending, or was when it was killed."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

from zo_sweeps.core.errors import UserError


def read_lines(path: str | os.PathLike[str], offset: int = 0) -> list[tuple[bytes, int]]:
    """Return (line without its newline, byte offset of its end) for every complete line from byte `offset` on.

    A last line without a newline is torn and left out. Without a file: []. Raises UserError if it cannot be read.
    """
    try:
        with open(path, "rb") as file:
            file.seek(offset)
            data = file.read()
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}", fix="it must be a file that you may read") from error
    lines = []
    for line in data.split(b"\n")[:-1]:
        offset += len(line) + 1
        lines.append((line, offset))
    return lines


def parse_object(line: bytes) -> dict[str, Any] | None:
    """Return the JSON object that a line holds; None if it holds none."""
    try:
        value = json.loads(line.decode("utf-8", "surrogatepass"))
    except (ValueError, RecursionError):  # bad JSON, bad UTF-8, brackets without end
        return None
    return value if isinstance(value, dict) else None


def read_objects(path: str | os.PathLike[str], offset: int = 0) -> list[tuple[dict[str, Any] | None, int]]:
    """Return (object, byte offset of its end) for every complete line from byte `offset` on; see `read_lines`.

    A complete line that is not a JSON object gives None: the caller decides whether that is an error (see
    `line_number`).
    """
    return [(parse_object(line), end) for line, end in read_lines(path, offset)]


def line_number(path: str | os.PathLike[str], end: int) -> int:
    """Return the number, from 1, of the line that ends at byte `end`."""
    with open(path, "rb") as file:
        return file.read(end).count(b"\n")


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
