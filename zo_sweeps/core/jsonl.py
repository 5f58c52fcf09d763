"""Reading of JSON lines files to which another process may be appending, or was when it was killed."""

from __future__ import annotations

import json
import os
from typing import Any


def read_objects(path: str | os.PathLike[str], offset: int = 0) -> list[tuple[dict[str, Any] | None, int]]:
    """Return (object, byte offset of its end) for every complete line from byte `offset` on; [] without a file.

    A last line without a newline is torn and left out. A complete line that is not a JSON object gives None: the caller
    decides whether that is an error (see `line_number`).
    """
    try:
        with open(path, "rb") as file:
            file.seek(offset)
            data = file.read()
    except (FileNotFoundError, NotADirectoryError):
        return []
    objects: list[tuple[dict[str, Any] | None, int]] = []
    for line in data.split(b"\n")[:-1]:
        offset += len(line) + 1
        try:
            value = json.loads(line.decode("utf-8", "surrogatepass"))
        except ValueError:  # covers bad JSON and bad UTF-8
            value = None
        objects.append((value if isinstance(value, dict) else None, offset))
    return objects


def line_number(path: str | os.PathLike[str], end: int) -> int:
    """Return the number, from 1, of the line that ends at byte `end`."""
    with open(path, "rb") as file:
        return file.read(end).count(b"\n")
