"""JSON that commands print: a dataclass per object, whose fields say what they hold.

    @dataclass(frozen=True)
    class Row:
        trials: int = key("number of trials")

`to_text(value)` prints it, and `keys(Row)` lists what it can hold, for `--help`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, field, fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

MARKS = {list: "[]", tuple: "[]", Sequence: "[]", dict: "{}", Mapping: "{}"}  # a type that holds several -> its mark


def key(text: str, default: Any = MISSING) -> Any:
    """Declare a field of a document.

    Args:
        text: what it holds, with the unit of a number.
        default: of a field that need not be given; a callable makes it.
    """
    if callable(default):
        return field(default_factory=default, metadata={"text": text})
    return field(default=default, metadata={"text": text})


def to_text(value: object) -> str:
    """Return a document, or a list of them, as JSON with one key per line."""
    return json.dumps(plain(value), indent=1, ensure_ascii=False, allow_nan=False)


def plain(value: Any) -> Any:
    """Return a value as JSON types; numbers that are not finite become null."""
    if isinstance(value, Enum):
        return plain(value.value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if is_dataclass(value) and not isinstance(value, type):
        return {one.name: plain(getattr(value, one.name)) for one in fields(value)}
    if isinstance(value, Mapping):
        return {str(name): plain(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    return str(value) if isinstance(value, Path) else value


def keys(document: type, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield (path, text) of every field of a document: "rows[].trials", and "running{}.step" below a mapping."""
    types = get_type_hints(document)
    for one in fields(document):
        path = prefix + one.name
        yield path, one.metadata["text"]
        part, mark = _part(types[one.name])
        if part is not None:
            yield from keys(part, f"{path}{mark}.")


def _part(kind: Any) -> tuple[type | None, str]:
    """Return (the document that a type is, or holds, and "[]" or "{}" where it holds several)."""
    if isinstance(kind, type) and is_dataclass(kind):
        return kind, ""
    origin = get_origin(kind)
    for argument in get_args(kind):
        part, mark = _part(argument)
        if part is not None:
            return part, MARKS.get(origin, "") + mark
    return None, ""
