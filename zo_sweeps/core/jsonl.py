"""Reading of JSON lines files to which another process may be appending, or was when it was killed."""

from __future__ import annotations

import json
import os
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
