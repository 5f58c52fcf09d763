"""Digests that are the same in every process and on every machine: of values as canonical JSON, a trial's identity; and
of Python source by what it computes, comments, docstrings and formatting aside.
"""

from __future__ import annotations

import ast
import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zo_sweeps.core.files import cache_folder, replace_text


@dataclass(frozen=True)
class Canonical:
    """A value that `canonical` has returned: as a part of another it is taken as it is."""

    value: object


def canonical(value: object, where: str = "$") -> object:
    """Return `value` as JSON types, with one spelling for each value.

    Integral floats become integers (1.0 and 1 are the same hyper-parameter), mappings are sorted by key, tuples
    become lists. Raises TypeError, with the path, for values whose identity is not stable across processes
    (callables, sets, objects) and ValueError for non-finite numbers.
    """
    if value is None or isinstance(value, (str, bool)):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"cannot fingerprint {value} at {where}: a trial's configuration must be finite")
        return int(value) if value.is_integer() and abs(value) < 2**53 else value
    if isinstance(value, Mapping):
        bad = [key for key in value if not isinstance(key, str)]
        if bad:
            raise TypeError(f"cannot fingerprint the key {bad[0]!r} at {where}: keys must be strings")
        return {key: canonical(value[key], f"{where}.{key}") for key in sorted(value)}
    if isinstance(value, (list, tuple)):
        return [canonical(item, f"{where}[{i}]") for i, item in enumerate(value)]
    if isinstance(value, Canonical):
        return value.value
    raise TypeError(
        f"cannot fingerprint a {type(value).__name__} at {where}: it has no identity that is the same in every "
        "process; use a string, a number, a list or a mapping"
    )


def canonical_json(value: object) -> str:
    """Return the only spelling of `value` as JSON: sorted keys, no spaces, shortest round-trip floats, UTF-8."""
    return json.dumps(canonical(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def fingerprint(value: object) -> str:
    """Return the first 16 hex digits of the SHA-256 of `canonical_json(value)`."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()[:16]


_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
MOST = 5000  # digests kept; beyond, those of older sources are dropped
_NOT_MEANING = ("ctx", "kind", "type_comment", "type_ignores")


def digest(source: str | bytes) -> str:
    """Return 16 hex digits that depend on the syntax tree of a module only, without its docstrings.

    The same for every Python that parses the source. Raises SyntaxError for source that does not parse.
    """
    return hashlib.sha256(repr(_plain(ast.parse(source))).encode("utf-8", "surrogatepass")).hexdigest()[:16]


def file_digests(paths: Iterable[Path]) -> list[str]:
    """Return the digest of each file, read from the user's cache if a source with these bytes was parsed before.

    Cost: reading and hashing the files, and parsing those that are new to this machine, a millisecond each.
    """
    store = cache_folder() / "source_digests.json"
    known, new = _stored(store), dict[str, str]()
    own, found = Path(__file__).read_bytes(), []
    for path in paths:
        source = path.read_bytes()
        key = hashlib.sha256(own + source).hexdigest()[:32]  # with this module's, which defines the digest
        if key not in known and key not in new:
            new[key] = digest(source)
        found.append(known.get(key) or new[key])
    if new:
        with suppress(OSError):  # a cache that cannot be written is filled the next time
            store.parent.mkdir(parents=True, exist_ok=True)
            replace_text(store, json.dumps({**known, **new} if len(known) < MOST else new))
    return found


def _stored(store: Path) -> dict[str, str]:
    try:
        known = json.loads(store.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) and all(isinstance(value, str) for value in known.values()) else {}


def _plain(node: Any) -> Any:
    """Return a tree as nested lists of texts, without fields that are empty: later versions of Python add fields."""
    if isinstance(node, ast.AST):
        values = {name: value for name, value in ast.iter_fields(node) if name not in _NOT_MEANING}
        if isinstance(node, _DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            values["body"] = node.body[1:]
        return [
            type(node).__name__,
            *([name, _plain(value)] for name, value in values.items() if value not in (None, [])),
        ]
    return [_plain(item) for item in node] if isinstance(node, list) else repr(node)
