"""The reference of the Python interface, from its docstrings: the public names of zo_sweeps and of its engine."""

from __future__ import annotations

import inspect
import re
import sys
from dataclasses import is_dataclass
from importlib import import_module
from typing import Any

from markdown import docstring, table
from options import HEAD, rows

from zo_sweeps.methods.definition import Definition


def page(module: str) -> str:
    """Return a section per public name of a module, and per name that a docstring of theirs refers to."""
    loaded = import_module(module)
    return "\n\n".join(_entry(f"{module}.{name}", getattr(loaded, name)) for name in loaded.__all__)


def _entry(path: str, of: Any, level: int = 3) -> str:
    member = isinstance(of, type) and issubclass(of, Definition)  # its arguments are its options
    parts = [f"{'#' * level} {path}", _signature(path, of), docstring(of, arguments=not member)]
    if member and (own := [*rows(of, "")]):
        parts.append(table(HEAD, own))
    elif isinstance(of, type):
        parts += [_method(name, one) for name, one in vars(of).items() if not name.startswith("_") and one.__doc__]
    parts += [_entry(named, _at(named), level + 1) for named in _named(of) if named != path]
    return "\n\n".join(parts)


def _signature(path: str, of: Any) -> str:
    if isinstance(of, type) and not is_dataclass(of):
        return ""
    described = inspect.signature(of)
    parameters = _parameters(described)
    plain = isinstance(of, type) or described.return_annotation is inspect.Signature.empty
    result = "" if plain else f" -> {described.return_annotation}"
    text = f"{path}({', '.join(parameters)}){result}"
    if len(text) > 90:
        text = f"{path}(\n" + "".join(f"    {one},\n" for one in parameters) + f"){result}"
    return f"```python\n{text}\n```"


def _parameters(described: inspect.Signature) -> list[str]:
    """Return `name: type = default` of each parameter; the docstrings' types are text already."""
    texts = []
    for one in described.parameters.values():
        if one.kind is one.KEYWORD_ONLY and "*" not in texts:
            texts.append("*")
        text = one.name if one.annotation is one.empty else f"{one.name}: {one.annotation}"
        default = "..." if "factory" in repr(one.default) else getattr(one.default, "value", one.default)
        texts.append(
            text if one.default is one.empty else f"{text} = {default!r}" if default != "..." else f"{text} = ..."
        )
    return texts


def _method(name: str, of: Any) -> str:
    if isinstance(of, property):
        return f"**{name}**: {docstring(of)}"
    if inspect.isfunction(of):
        parameters = ", ".join(list(inspect.signature(of).parameters)[1:])
        return f"**{name}({parameters})**: {docstring(of)}"
    return ""


def _named(of: Any) -> list[str]:
    return re.findall(r"[Ss]ee `(zo_sweeps\.[\w.]+)`", of.__doc__ or "")


def _at(path: str) -> Any:
    """Return what a dotted path names; a module goes before a function of the same name."""
    module, _, name = path.rpartition(".")
    import_module(module)
    return getattr(sys.modules[module], name)
