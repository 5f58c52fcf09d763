"""JSON objects as dataclasses, whose fields say what they hold: those that commands print, those that others send.

    @dataclass(frozen=True)
    class Row:
        trials: int = key("number of trials")

`to_text(value)` prints it, and `keys(Row)` lists what it can hold, for `--help`.

    @dataclass(frozen=True)
    class Offer(Shape):
        lease: str = item(most=64)
        attempt: int = item(most=10_000)

`Offer.read(value)` checks what a peer sent, and `offer.to_json()` is the way back. A field that no definition names is
dropped, so that it goes no further.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from enum import Enum
from functools import cache, partial
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

S = TypeVar("S", bound="Shape")
Read = Callable[[Any], Any]
MARKS = {list: "[]", tuple: "[]", Sequence: "[]", dict: "{}", Mapping: "{}"}  # a type that holds several -> its mark
TEXT, ENTRIES, WHOLE = 200, 64, 2**53  # the most characters, entries of a list or a mapping, and the largest integer
# Characters that move a terminal's cursor, and halves of characters.
CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]")


def _field(default: Any, **metadata: object) -> Any:
    """Declare a field, which need not be given if it has a default; a callable makes that."""
    if callable(default):
        return field(default_factory=default, metadata=metadata)
    return field(default=default, metadata=metadata)


def key(text: str, default: Any = MISSING) -> Any:
    """Declare a field that is printed; `text` says what it holds, with the unit of a number."""
    return _field(default, text=text)


def to_text(value: object) -> str:
    """Return a document, or a list of them, as JSON with one key per line; numbers that are not finite become null."""
    return json.dumps(plain(value), indent=1, ensure_ascii=False, allow_nan=False)


def plain(value: Any, *, finite: bool = True) -> Any:
    """Return a value as JSON types; if they must be `finite`, other numbers become null."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, float):
        return value if math.isfinite(value) or not finite else None
    if is_dataclass(value) and not isinstance(value, type):
        return {one.name: plain(getattr(value, one.name), finite=finite) for one in fields(value)}
    if isinstance(value, Mapping):
        return {str(name): plain(one, finite=finite) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(one, finite=finite) for one in value]
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
    for argument in get_args(kind):
        part, mark = _part(argument)
        if part is not None:
            return part, MARKS.get(get_origin(kind), "") + mark
    return None, ""


class MalformedError(ValueError):
    """An object that is not what its definition accepts; the message names the field."""


@dataclass(frozen=True)
class Bounds:
    """What is accepted in a field. Integers are at least 0; without `most`, floats may be NaN."""

    most: float | None = None  # the largest number, or the most characters of a text
    entries: int = ENTRIES  # the most of a list or a mapping; `most` is then of each
    pattern: re.Pattern[str] | None = None  # of a whole text
    depth: int = 0  # of a mapping to Any: how deep it may be nested, `entries` being of all levels; 0: any


def item(default: Any = MISSING, **bounds: Any) -> Any:
    """Declare a field of a shape; see `Bounds`."""
    return _field(default, bounds=Bounds(**bounds))


@dataclass(frozen=True)
class Shape:
    """The base of the dataclasses that are read from JSON.

    Fields are of type str, int, float, bool, Any (taken as it is), an enumeration of texts, another shape, one of these
    or None, a tuple of one of these, or a mapping from texts to one of these. Control characters in texts are replaced
    by "?".
    """

    @classmethod
    def read(cls: type[S], value: Any) -> S:
        """Return the object of parsed JSON. Raises MalformedError that names the first bad field."""
        if not isinstance(value, dict):
            raise MalformedError(f"{cls.__name__}: a JSON object is needed")
        found = {}
        for name, read, required in _readers(cls):  # type: ignore[arg-type]  # mypy does not see that types are hashable
            if name not in value:
                if required:
                    raise MalformedError(f"{cls.__name__}: {name!r} is missing")
                continue
            try:
                found[name] = read(value[name])
            except MalformedError as error:
                raise MalformedError(f"{cls.__name__}: wrong {name!r}: {error}") from None
        return cls(**found)  # whose `__post_init__` may raise MalformedError, too

    def to_json(self) -> dict[str, Any]:
        """Return the object as plain JSON types."""
        return {one.name: plain(getattr(self, one.name), finite=False) for one in fields(self)}


@cache
def _readers(cls: type[Shape]) -> list[tuple[str, Read, bool]]:
    """Return name, reader and whether it must be there, of every field."""
    types = get_type_hints(cls)
    return [
        (
            f.name,
            _reader(types[f.name], f.metadata.get("bounds", Bounds())),
            f.default is MISSING and f.default_factory is MISSING,
        )
        for f in fields(cls)
    ]


def _reader(kind: Any, bounds: Bounds) -> Read:
    """Return the function that checks a value of a type."""
    origin, arguments, most = get_origin(kind), get_args(kind), bounds.most
    if kind is Any:
        return lambda value: value
    if origin in (Union, UnionType):
        one = _reader(next(each for each in arguments if each is not NoneType), bounds)
        return lambda value: None if value is None else one(value)
    if origin is tuple:
        as_they_are = arguments[0] is float and most is None  # a log is mostly these
        return partial(_list, _reader(arguments[0], bounds), bounds.entries, as_they_are)
    if origin is not None and arguments[1] is Any:
        return partial(_object, bounds.entries, bounds.depth)
    if origin is not None:
        return partial(_mapping, _reader(arguments[1], bounds), bounds.entries)
    if issubclass(kind, Shape):
        of_shape: Read = kind.read
        return of_shape
    text = partial(_text, TEXT if most is None else int(most), bounds.pattern)
    if issubclass(kind, Enum):
        return partial(_member, {one.value: one for one in kind}, text)
    whole = partial(_whole, WHOLE if most is None else int(most))
    readers: Mapping[type, Read] = {str: text, bool: _truth, int: whole, float: partial(_number, most)}
    return readers[kind]


def _text(most: int, pattern: re.Pattern[str] | None, value: Any) -> str:
    if not isinstance(value, str) or len(value) > most:
        raise MalformedError(f"a text of at most {most} characters is needed")
    if pattern and not pattern.fullmatch(value):
        raise MalformedError(f"a text like {pattern.pattern} is needed")
    return value if value.isprintable() else CONTROL.sub("?", value)


def _member(members: Mapping[str, Enum], text: Read, value: Any) -> Enum:
    if text(value) not in members:
        raise MalformedError(f"{value[:40]!r}")
    return members[value]


def _truth(value: Any) -> bool:
    if not isinstance(value, bool):
        raise MalformedError("true or false is needed")
    return value


def _whole(most: int, value: Any) -> int:
    if type(value) is not int or not 0 <= value <= most:
        raise MalformedError(f"a whole number from 0 to {most} is needed")
    return value


def _number(most: float | None, value: Any) -> float:
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise MalformedError("a number is needed")
    if (most is not None and not abs(value) <= most) or (isinstance(value, int) and abs(value) > WHOLE):
        raise MalformedError(f"a number of at most {WHOLE if most is None else most:g} is needed")
    return value  # a whole number stays one, so that JSON is written as it was read


def _list(one: Read, entries: int, floats: bool, value: Any) -> tuple[Any, ...]:
    if not isinstance(value, (list, tuple)) or len(value) > entries:
        raise MalformedError(f"a list of at most {entries} entries is needed")
    if floats and {*map(type, value)} == {float}:
        return tuple(value)
    return tuple(map(one, value))


def _object(entries: int, depth: int, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict) or len(value) > entries:
        raise MalformedError(f"an object of at most {entries} fields is needed")
    level: list[Any] = [value] if depth else []
    left = entries
    for _ in range(depth):
        left -= sum(map(len, level))
        within = [each for one in level for each in (one.values() if isinstance(one, dict) else one)]
        level = [each for each in within if isinstance(each, (dict, list))]
    if level or left < 0:
        raise MalformedError(f"an object of at most {entries} entries in {depth} levels is needed")
    return value


def _mapping(one: Read, entries: int, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict) or len(value) > entries:
        raise MalformedError(f"a mapping of at most {entries} entries is needed")
    return {_text(TEXT, None, name): one(each) for name, each in value.items()}
