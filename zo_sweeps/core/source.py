"""Digests of Python source by what it computes: comments, docstrings and formatting do not count."""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Iterable
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from zo_sweeps.core.files import cache_folder, replace_text

_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
MOST = 5000  # digests kept; beyond, those of older sources are dropped
_NOT_MEANING = ("ctx", "kind", "type_comment", "type_ignores")


def digest(source: str | bytes) -> str:
    """Return 16 hex digits that depend on the syntax tree of a module only, without its docstrings.

    The same for every Python that parses the source. Raises SyntaxError for source that does not parse.
    """
    return hashlib.sha256(repr(_plain(ast.parse(source))).encode("utf-8", "surrogatepass")).hexdigest()[:16]


def file_digest(path: Path) -> str:
    """Return the digest of a file, cached in the process until its size or time changes."""
    stat = path.stat()
    return _file_digest(path, stat.st_mtime_ns, stat.st_size)


def file_digests(paths: Iterable[Path]) -> list[str]:
    """Return the digest of each file, read from the user's cache if a source with these bytes was parsed before.

    Cost: reading and hashing the files, and parsing those that are new to this machine, a millisecond each.
    """
    store = cache_folder() / "source_digests.json"
    known = _stored(store)
    own, found = Path(__file__).read_bytes(), []
    new: dict[str, str] = {}
    for path in paths:
        source = path.read_bytes()
        key = hashlib.sha256(own + source).hexdigest()[:32]  # with this module's, which defines the digest
        if (known.get(key) or new.get(key)) is None:
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


@lru_cache(maxsize=1024)
def _file_digest(path: Path, mtime_ns: int, size: int) -> str:
    return digest(path.read_bytes())


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
