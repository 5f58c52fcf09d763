"""Numbers that the kernel writes into files below /sys."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

SYS = Path("/sys")


class UnreadableError(Exception):
    """Something that cannot be read here, with the reason in one line."""


def number(path: Path) -> int:
    """Return the integer in a file. Raises UnreadableError naming the file."""
    try:
        return int(path.read_text())
    except PermissionError:
        raise UnreadableError(f"{path} is for root alone") from None
    except (OSError, ValueError) as error:
        raise UnreadableError(f"{path}: {getattr(error, 'strerror', None) or 'not a number'}") from None


def numbers(files: Iterable[Path]) -> list[int]:
    """Return the integers in files, without those that cannot be read (a disabled sensor)."""
    values = []
    for path in files:
        try:
            values.append(number(path))
        except UnreadableError:
            continue
    return values


def text(path: Path) -> str:
    """Return a file's text without white space around it; "" if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
