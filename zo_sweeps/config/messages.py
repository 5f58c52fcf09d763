"""Hydra's and OmegaConf's messages as one line, and keys that nothing declares."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, get_args, get_type_hints

from zo_sweeps.config.schema import Config
from zo_sweeps.core.errors import UserError, unknown
from zo_sweeps.methods.definition import Locate

KINDS = {"Integer": "an integer", "Float": "a number", "Boolean": "true or false", "String": "text"}
SCALARS = {str: "text (in quotes, if it has ': ' in it)", int: "an integer", float: "a number"}


def explained(error: Exception, overrides: Sequence[str], locate: Locate) -> UserError:
    """Reduce Hydra's and OmegaConf's messages to one line: the problem, its place, the choices, the likely fix."""
    chain: list[str] = []
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, UserError):  # of an interpolation that is refused
            full = re.search(r"full_key: (\S+)", "\n".join(chain))
            key = full[1] if full and full[1] != "_dummy_" else ""  # Hydra's name for an option of the defaults list
            return UserError(cause.what, where=f"{key} ({locate(key)})" if key else "", fix=cause.fix)
        chain.append(str(cause))
        cause = cause.__cause__ or cause.__context__
    text = "\n".join(chain)
    full = re.search(r"full_key: (\S+)", text)
    key, last = full[1] if full else "a key", next(iter(chain[-1].splitlines()), "")
    if found := re.search(r"Could not find '([^']+)'", text):
        group, _, name = found[1].rpartition("/")
        listed = re.search(r"Available options in '[^']*':\n((?:\t.+\n?)*)", text)
        choices = listed[1].split() if listed else ()
        return unknown(group or "configuration", name, choices, where=locate(found[1]))
    if found := re.search(r"Could not override '([^']+)'\. No match in the defaults list", text):
        group = found[1].split("@")[0]
        given = next((text for text in overrides if text.startswith(f"{group}=")), f"{group}=NAME")
        return UserError(f"{group} is not in the defaults list", fix=f"to append to your default list use +{given}")
    if found := re.search(r"Key '([^']+)' (?:not in|is not in) '?(\w+)", text):
        path = full[1] if full else found[1]
        return unknown("key", path, siblings(path), where=locate(path))
    if found := re.search(r"Interpolation key '([^']*)' not found", text):
        return UserError(f"${{{found[1]}}} names no key", where=f"{key} ({locate(key)})" if full else "")
    if found := re.search(r"Multiple values for ([\w/]+)", text):
        return UserError(f"{found[1]} is given twice", fix="name it once")
    what, fix = "", last
    if found := re.search(r"Value '(.*?)' of type '(.*?)' could not be converted to (\w+)", text):
        what, fix = f"{key}={found[1]!r}", f"it must be {KINDS.get(found[3], found[3])}"
    elif found := re.search(r"Invalid value assigned: (\w+) is not a (\w+)", text):
        what, fix = key, f"it must be a {'list' if found[2].startswith('List') else found[2]}"
    elif found := re.search(r"Error merging override (\S+?)=(.)", text):
        what = key = found[1]
        if re.search(r"\s+Cannot assign \w+ to Dict", text):
            fix = "its entries must be mappings" if found[2] == "[" else "it must be a mapping"
    if what:
        return UserError(f"{what} has the wrong type", where=locate(key), fix=fix)
    return UserError(" ".join(chain[0].split()), fix="" if chain[-1] == chain[0] else last)


def strangers(value: Any, path: str) -> Iterator[str]:
    """Yield the dotted keys below `value` that its dataclasses do not declare."""
    if is_dataclass(value):
        known = {f.name for f in fields(value)}
        yield from (f"{path}.{key}" for key in vars(value) if key not in known)
        value = {name: getattr(value, name) for name in known}
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from strangers(inner, f"{path}.{key}" if path else str(key))


def nested(value: Any, path: str) -> Iterator[tuple[str, str]]:
    """Yield the dotted keys below `value` with a mapping or list for a text or number, and what it must be.

    OmegaConf checks the entries of a list[str] or dict[str, str] unless they are containers.
    """
    if not is_dataclass(value):
        return
    hints = get_type_hints(type(value))
    for f in fields(value):
        inner, path_of = getattr(value, f.name), f"{path}.{f.name}"
        yield from nested(inner, path_of)
        entries = enumerate(inner) if isinstance(inner, list) else inner.items() if isinstance(inner, Mapping) else ()
        for key, entry in entries:
            yield from nested(entry, f"{path_of}.{key}")
            if isinstance(entry, (Mapping, list)) and (kind := SCALARS.get(get_args(hints[f.name])[-1])):
                yield f"{path_of}.{key}", kind


def siblings(path: str) -> list[str]:
    node: Any = Config
    parts = path.split(".")
    for part in parts[:-1]:
        hints = get_type_hints(node) if is_dataclass(node) else {}
        node = hints.get(part)
    if not is_dataclass(node):
        return []
    return [".".join([*parts[:-1], f.name]) for f in fields(node)]
