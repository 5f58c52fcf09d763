"""Definitions: the options of one part of a trial, with types, ranges and help, and their conversion from and to JSON.

The command line, grids, presets, `trial_id`, `--help` and the reference pages all take a part's options from here.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from types import ModuleType, NoneType, UnionType
from typing import Any, ClassVar, Literal, TypeVar, Union, get_args, get_origin

from zo_sweeps.core import fingerprint
from zo_sweeps.core.errors import UserError, together, unknown
from zo_sweeps.core.host import is_ours

T = TypeVar("T")
Member = TypeVar("Member", bound="Definition")
Locate = Callable[[str], str]  # dotted key -> the file or flag that set it, for error messages
NOWHERE: Locate = lambda key: ""


def option(
    default: Any = MISSING,
    help: str = "",
    *,
    least: float | None = None,
    most: float | None = None,
    above: float | None = None,
    below: float | None = None,
    identity: bool = True,
    added: bool = False,
    kw_only: bool = False,
) -> Any:
    """Declare a field of a definition.

    Args:
        default: the default value, or a factory of it (such as `dict`); omitted for a required option.
        help: one line, with the unit.
        least, most, above, below: the range of a number: at least, at most, strictly above, strictly below.
        identity: whether its value affects a trial's result, and therefore counts towards the trial_id.
        added: an option added after trials were recorded: its default counts as its absence did, so their ids stay.
        kw_only: whether it is a keyword-only argument.
    """
    metadata = {"help": help, "least": least, "most": most, "above": above, "below": below}
    metadata |= {"option": True, "identity": identity, "added": added}
    if callable(default):
        return field(default_factory=default, metadata=metadata, kw_only=kw_only)
    return field(default=default, metadata=metadata, kw_only=kw_only)


def bound() -> Any:
    """Declare a field that `bind` sets: not an option, never read or written, not part of the identity."""
    return field(default=None, metadata={"option": False}, repr=False, kw_only=True)


def options(of: Any) -> tuple[Field[Any], ...]:
    """Return the fields that a user can set, of a class or its instance."""
    return _options(of if isinstance(of, type) else type(of))


@cache
def _options(cls: type) -> tuple[Field[Any], ...]:
    return tuple(f for f in fields(cls) if f.metadata.get("option", True))


@cache
def hints(cls: Any) -> Mapping[str, Any]:
    """Return the types of a dataclass's options, each resolved in the module that declares it."""
    types: dict[str, Any] = {}
    wanted = {f.name for f in options(cls)}
    for base in reversed(cls.__mro__):
        declared: dict[str, Any] = vars(base).get("__annotations__", {})
        known = vars(sys.modules[base.__module__])
        types |= {
            name: eval(kind, known) if isinstance(kind, str) else kind
            for name, kind in declared.items()
            if name in wanted
        }
    return types


def read(cls: type[T], data: Mapping[str, Any], path: str = "", locate: Locate = NOWHERE) -> T:
    """Build the dataclass `cls` from a mapping.

    Args:
        path: dotted key of the mapping itself, for messages.
        locate: dotted key -> the file or flag that set it, for messages.

    Raises UserError listing every unknown key (with the closest match), missing required option, wrong type and value
    out of range.
    """
    known = {f.name: f for f in options(cls)}
    strange = [_join(path, key) for key in data if key not in known]
    errors = [unknown("key", key, [_join(path, name) for name in known], where=locate(key)) for key in strange]
    types: Mapping[str, Any] = hints(cls)  # type: ignore[arg-type]  # mypy asks whether instances can be hashed
    values = {}
    for name, f in known.items():
        full = _join(path, name)
        try:
            if name in data:
                values[name] = convert(types[name], data[name], full, locate)
            elif f.default is MISSING and f.default_factory is MISSING and not strange:  # a misspelt key is not missing
                raise UserError(f"{full} is missing", where=locate(path), fix=str(f.metadata.get("help", "")))
        except UserError as error:
            errors.append(error)
    if issubclass(cls, Checked):
        errors += [UserError(text, where=locate(_join(path, name))) for name, text in cls.outside(values)]
    if errors:
        raise together(errors)
    return cls(**values)


def write(value: Any, counted: bool = False) -> Any:
    """Convert a definition, or the value of one of its fields, to plain JSON types: the inverse of `read`.

    Args:
        counted: for the trial_id: without the fields that do not affect a trial's result (see `identity`).
    """
    if value is None or type(value) in (str, int, float, bool):  # the common case first
        return value
    if isinstance(value, Enum):
        return value.value
    if own := getattr(value, "to_identity" if counted else "to_json", None):
        return own()
    if is_dataclass(value):
        return _fields(value, counted)
    if isinstance(value, Mapping):
        return {str(key): write(item, counted) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [write(item, counted) for item in value]
    return value


def _fields(value: Any, counted: bool) -> dict[str, Any]:
    """Return the options of a dataclass as JSON; `counted` as of `write`."""
    if not counted:
        return {f.name: write(getattr(value, f.name)) for f in options(value)}
    kind: Any = type(value)  # as of `hints`
    own = ((name, getattr(value, name), absent) for name, absent in _counted(kind))
    return {name: write(item, True) for name, item, absent in own if item != absent}


def identity(value: Any) -> Any:
    """Convert a value as `write` does, without the fields that do not affect a trial's result (`identity=False`)."""
    return write(value, counted=True)


def own_source(kind: type[Definition]) -> str:
    """Return a digest of the source of a member and its bases outside of this project's packages; "" if there are none.

    Comments, docstrings and formatting do not count.
    """
    return _own_source(kind)  # type: ignore[arg-type]  # as of `hints`, in `read`


@cache
def _own_source(kind: Any) -> str:
    names = {base.__module__ for base in kind.__mro__ if issubclass(base, Definition)}
    return "".join(_source_of(sys.modules[name]) for name in sorted(names) if not is_ours(name))


@cache
def _source_of(module: ModuleType) -> str:
    """Return the digest of a module's file as it was when first asked for: the code that is loaded."""
    return fingerprint.digest(Path(module.__file__).read_bytes()) if module.__file__ else ""


@cache
def _counted(cls: Any) -> tuple[tuple[str, Any], ...]:
    """Return the options that count towards the trial_id, each with the value that does not; MISSING: all do."""
    counted = (f for f in options(cls) if f.metadata.get("identity", True))
    return tuple((f.name, f.default if f.metadata.get("added") else MISSING) for f in counted)


def convert(kind: Any, value: Any, path: str, locate: Locate = NOWHERE) -> Any:
    """Convert `value` to the type `kind`.

    Raises UserError for a value of another type, an unknown choice, or a number that is not finite.
    """
    origin = get_origin(kind)
    if kind is Any:
        return value
    if origin in (Union, UnionType):
        if value is None and NoneType in get_args(kind):
            return None
        others = [one for one in get_args(kind) if one is not NoneType]
        if len(others) == 1:
            return convert(others[0], value, path, locate)
        for one in others:
            if isinstance(value, get_origin(one) or one):
                return convert(one, value, path, locate)
        raise _wrong(value, path, locate, " or ".join(_called(one) for one in others))
    if origin is Literal:
        if value not in get_args(kind):
            raise unknown(path.rpartition(".")[2], value, map(str, get_args(kind)), where=locate(path) or path)
        return value
    if origin is tuple:
        if not isinstance(value, (list, tuple)):
            raise _wrong(value, path, locate, f"a list, such as [{value}]")
        one = get_args(kind)[0]
        return tuple(convert(one, item, path, locate) for item in value)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        if not isinstance(value, Mapping):
            raise _wrong(value, path, locate, "a mapping")
        one = get_args(kind)[1]
        return {str(key): convert(one, item, _join(path, str(key)), locate) for key, item in value.items()}
    if kind is float and isinstance(value, (int, float)) and not isinstance(value, bool):
        if not abs(value) <= sys.float_info.max:  # true also for NaN and for integers beyond the range of float
            raise UserError(f"{path}={value!r} is not a finite number", where=locate(path))
        return float(value)
    if isinstance(value, kind) and not (kind is int and isinstance(value, bool)):
        return value
    if issubclass(kind, Enum):
        choices = [member.value for member in kind]
        if value not in choices:
            raise unknown(path.rpartition(".")[2], value, choices, where=locate(path) or path)
        return kind(value)
    if hasattr(kind, "read"):
        return kind.read(value, path, locate)
    if isinstance(kind, type) and is_dataclass(kind):
        if not isinstance(value, Mapping):
            raise _wrong(value, path, locate, "a mapping")
        return read(kind, value, path, locate)
    raise _wrong(value, path, locate, _called(kind))


@cache
def _ranged(cls: Any) -> tuple[Field[Any], ...]:
    """Return the options that have a range."""
    limits = ("least", "most", "above", "below")
    return tuple(f for f in options(cls) if any(f.metadata.get(key) is not None for key in limits))


def _limits(f: Field[Any], value: Any) -> str:
    """Describe the range of an option if `value` lies outside it; return "" otherwise."""
    least, most, above, below = (f.metadata.get(key) for key in ("least", "most", "above", "below"))
    if value is None or isinstance(value, (str, bool)):
        return ""
    low, high = (-math.inf if least is None else least), (math.inf if most is None else most)
    if low <= value <= high and (above is None or value > above) and (below is None or value < below):
        return ""
    if least is not None and most is not None:
        return f"from {least:g} to {most:g}"
    words = {"above": above, "at least": least, "below": below, "at most": most}
    return " and ".join(f"{word} {limit:g}" for word, limit in words.items() if limit is not None)


def _wrong(value: object, path: str, locate: Locate, wanted: str) -> UserError:
    fix = f"it must be {wanted}"
    if isinstance(value, list):
        fix += f"; several make an axis: {path}={','.join(map(str, value))}"
    return UserError(f"{path}={value!r} has the wrong type", where=locate(path), fix=fix)


def _called(kind: Any) -> str:
    names = {bool: "true or false", int: "an integer", float: "a number", str: "a name"}
    return names.get(kind, f"a {getattr(kind, '__name__', kind)}")


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


@dataclass(frozen=True)
class Checked:
    """A dataclass that checks its numbers against the ranges that its options declare.

    Raises UserError when constructed with a number out of range.
    """

    def __post_init__(self) -> None:
        for _, text in self.outside(vars(self)):
            raise UserError(text)

    @classmethod
    def outside(cls, values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        """Yield (option, message) for each value that is out of its option's range."""
        for f in _ranged(cls):  # type: ignore[arg-type]  # as of `hints`, in `read`
            if f.name in values and (limits := _limits(f, values[f.name])):
                yield f.name, f"{cls._called(f.name)} must be {limits}, not {values[f.name]}"

    @classmethod
    def _called(cls, option: str) -> str:
        return f"{cls.__name__.lower()}.{option}"  # a part's class is named after its key: Train, train.steps


@dataclass(frozen=True)
class Definition(Checked):
    """One member of an axis, as a frozen dataclass whose fields are its options.

    A member's file has one public class, whose `name` is the file's stem. It imports torch only inside the functions
    that compute, so that planning does not pay for the import.
    """

    axis: ClassVar[str] = ""
    name: ClassVar[str] = ""
    numerics: ClassVar[int] = 1  # raised whenever the results of trials with the member change, as `NUMERICS` for all
    bare: ClassVar[bool] = False  # in JSON, as in YAML, a member without options is its name alone

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "name" not in cls.__dict__:
            cls.name = cls.__module__.rpartition(".")[2]

    @classmethod
    def read(cls: type[Member], data: Any, path: str = "", locate: Locate = NOWHERE) -> Member:
        """Return the member of this axis that `data` describes: its name, or a mapping {name: ..., options}.

        Raises UserError for an unknown member or option.
        """
        from zo_sweeps.methods.registry import member, names

        entry = {"name": data} if isinstance(data, str) else data
        if not isinstance(entry, Mapping) or not isinstance(entry.get("name"), str):
            raise UserError(f"{path or cls.axis} names no {cls.axis}", where=locate(path), fix=f"write {cls.axis}=NAME")
        where = "" if entry["name"] in names(cls.axis) else locate(path)  # which looks at files
        kind = member(cls.axis, entry["name"], where=where)
        assert issubclass(kind, cls)
        values = {key: value for key, value in entry.items() if key != "name"}
        return read(kind, values, path or cls.axis, locate)

    def to_json(self) -> Any:
        """Return {name: ..., options}, or a bare name, as `read` accepts."""
        own = _fields(self, counted=False)
        return self.name if self.bare and not own else {"name": self.name, **own}

    def to_identity(self) -> dict[str, Any]:
        """Return what counts of the member towards the trial_id: its own source and numerics as well."""
        source = own_source(type(self))
        further = {
            **({"source": source} if source else {}),
            **({"numerics": self.numerics} if self.numerics > 1 else {}),
        }
        return {"name": self.name, **_fields(self, counted=True), **further}

    @classmethod
    def defaults(cls) -> dict[str, Any]:
        """Return {name: ..., options} with every option at its default; None for one that has none."""
        values = {f.name: f.default if f.default is not MISSING else None for f in options(cls)}
        values |= {f.name: f.default_factory() for f in options(cls) if f.default_factory is not MISSING}
        return {"name": cls.name, **write(values)}

    @classmethod
    def _called(cls, option: str) -> str:
        return f"{cls.axis}.{option} of {cls.name}"


def public_classes(module: str) -> list[type[Definition]]:
    """Return the public members that a loaded module itself defines; imported ones do not count."""
    return [
        item
        for name, item in vars(sys.modules[module]).items()
        if isinstance(item, type)
        and issubclass(item, Definition)
        and item.__module__ == module
        and not name.startswith("_")
    ]
