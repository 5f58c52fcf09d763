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
    parameters = [str(one) for one in inspect.signature(of).parameters.values()]
    back = inspect.signature(of).return_annotation
    result = "" if isinstance(of, type) or back is inspect.Signature.empty else f" -> {back}"
    text = f"{path}({', '.join(parameters)}){result}".replace("'", "")
    if len(text) > 90:
        text = f"{path}(\n    " + ",\n    ".join(parameters).replace("'", "") + f",\n){result}".replace("'", "")
    return f"```python\n{text}\n```"


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
