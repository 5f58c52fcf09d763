"""The reference of the configuration, from the definitions that the command line reads."""

from __future__ import annotations

import inspect
import io
import re
import tokenize
import types
from collections.abc import Iterator
from dataclasses import MISSING, Field, fields
from enum import Enum
from typing import Any, Literal, Union, get_args, get_origin

from markdown import code, docstring, escape, table

from zo_sweeps.config import schema
from zo_sweeps.methods import registry
from zo_sweeps.methods.definition import hints, write
from zo_sweeps.methods.definition import options as options_of
from zo_sweeps.methods.executor import Budget
from zo_sweeps.methods.task import Dialect, Gym, Hub, Lengths, Task
from zo_sweeps.methods.trial_config import TrialConfig

HEAD = ("key", "type", "range", "default", "what it is")
NAMES = {bool: "true or false", int: "integer", float: "number", str: "text", Any: "anything", type(None): "null"}
COUNTS = "†"  # marks the options that count towards a trial's id
FILLED_IN = {f"{part}.{name}" for part, every in schema.FILLED_IN.items() for name in every}


def kind(of: Any) -> str:
    """Return a type in words: `integer or null`, `list of text`, choices as they are typed."""
    origin, inner = get_origin(of), get_args(of)
    if origin in (Union, types.UnionType):
        return " or ".join(map(kind, inner))
    if origin is Literal:
        return ", ".join(code(str(one)) for one in inner if one != "")
    if isinstance(of, type) and issubclass(of, Enum):
        return ", ".join(code(one.value) for one in of)
    if origin in (tuple, list):
        return f"list of {kind(inner[0])}" if inner else "list"
    if origin is not None and len(inner) == 2:
        return f"mapping to {kind(inner[1])}"
    return NAMES.get(of, getattr(of, "__name__", str(of)).lower() if isinstance(of, type) else str(of))


def range_of(option: Field[Any]) -> str:
    limits = {"least": "≥", "above": ">", "most": "≤", "below": "<"}
    values = {sign: option.metadata.get(key) for key, sign in limits.items()}
    return ", ".join(f"{sign} {value:g}" for sign, value in values.items() if value is not None)


def default_of(option: Field[Any]) -> str:
    if option.default_factory is not MISSING:
        value = write(option.default_factory())
    elif option.default is MISSING:
        return "required"
    else:
        value = write(option.default)
    if value is None:
        return "null"
    return code(str(value).lower() if isinstance(value, bool) else str(value)) if value not in ("", {}, []) else "empty"


def rows(of: Any, path: str) -> Iterator[tuple[str, ...]]:
    """Yield the line of each option of a definition; `path` is the key of the definition itself."""
    types_of = hints(of)
    for one in options_of(of):
        if f"{path}.{one.name}" in FILLED_IN or "set by the planner" in one.metadata.get("help", ""):
            continue
        key = code(f"{path}.{one.name}" if path else one.name) + (COUNTS if one.metadata.get("identity", True) else "")
        yield key, kind(types_of[one.name]), range_of(one), default_of(one), escape(one.metadata.get("help", ""))


def parts() -> str:
    """Return a section per part of a trial that is not an axis: model, device, training, splits, data, task."""
    sections = [(name, part, name) for name, part in schema.TYPED.items()]
    sections += [("task", Task, "task"), ("task, a dialect", Dialect, "task.dialects.NAME")]
    sections += [("task, its data set on the hub", Hub, "task.hub"), ("task, its generator", Gym, "task.gym")]
    sections += [("task, its lengths", Lengths, "task.lengths")]
    text = [f"### {title}\n\n{docstring(part)}\n\n{table(HEAD, rows(part, path))}" for title, part, path in sections]
    seed = next(one for one in fields(TrialConfig) if one.name == "seed")
    own = ("`seed`" + COUNTS, "integer", "", default_of(seed), escape(seed.metadata["help"]))
    return "\n\n".join([table(HEAD, [own]), *text])


def members(axis: str) -> str:
    """Return a section per member of an axis: what it computes and costs, and its options."""
    names = {
        "kind": "method",
        "task_kind": "task.kind",
        "reward": "task.kind.rewards",
        "objective": "train.objective",
        "metric": "task.metric",
    }
    path = names.get(axis, axis)
    sections = []
    for name, member in registry.members(axis).items():
        lines = [*rows(member, path)]
        sections.append(
            f"### {name}\n\n{docstring(member, arguments=False)}" + (f"\n\n{table(HEAD, lines)}" if lines else "")
        )
    return "\n\n".join(sections)


def run() -> str:
    """Return a table per part of a run's configuration and of a grid file."""
    config = {one.name: one for one in fields(schema.Config)}
    text = []
    for name in ("state_dir", "scale", "cluster", "tracking", "on"):
        one = config[name]
        made = one.default_factory() if one.default_factory is not MISSING else None
        if made is None:
            text.append(table(HEAD[:1] + HEAD[3:4], [(code(name), code(str(one.default)))]))
        else:
            text.append(f"### {name}\n\n{_plain(type(made), name)}")
    text.append(f"### budget\n\n{docstring(Budget)}\n\n{table(HEAD, rows(Budget, 'budget'))}")
    files = {
        "A grid": (schema.GridConfig, "grid"),
        "A block of it (printed rows)": (schema.BlockConfig, "grid.blocks.NAME"),
        "The choice of a setting": (schema.SelectConfig, "grid.select"),
        "A table": (schema.GridTable, "grid.tables.NAME"),
        "A figure": (schema.GridFigure, "grid.figures.NAME"),
    }
    return "\n\n".join([*text, *(f"### {title}\n\n{_plain(part, path)}" for title, (part, path) in files.items())])


def _plain(part: Any, path: str) -> str:
    """Return the table of a dataclass whose fields are explained by the comments behind them."""
    said = _comments(part)
    lines = []
    for one in fields(part):
        default = default_of(one)
        if getattr(type(None if one.default_factory is MISSING else one.default_factory()), "__dataclass_fields__", {}):
            default = "see below"
        words = re.sub(r"\bdict\[str, (\w+)]", r"mapping to \1", str(one.type))
        words = re.sub(r"\blist\[(.*)]", r"list of \1", words).replace("None", "null").replace(" | ", " or ")
        for name, shown in (("str", "text"), ("int", "integer"), ("float", "number"), ("bool", "true or false")):
            words = re.sub(rf"\b{name}\b", shown, words)
        lines.append((code(f"{path}.{one.name}"), escape(words), default, escape(said.get(one.name, ""))))
    return table(("key", "type", "default", "what it is"), lines)


def _comments(part: Any) -> dict[str, str]:
    """Return the comment on the line of each field of a class."""
    said, name = {}, ""
    for token in tokenize.generate_tokens(io.StringIO(inspect.cleandoc("\n" + inspect.getsource(part))).readline):
        if token.type == tokenize.NAME and re.match(r"\s+\w+: ", token.line):
            name = token.line.split(":")[0].strip()
        if token.type == tokenize.COMMENT and token.line.strip().startswith(f"{name}: "):
            said[name] = token.string.lstrip("# ")
    return said
