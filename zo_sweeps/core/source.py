"""Digests of Python source by what it computes: comments, docstrings and formatting do not count."""

from __future__ import annotations

import ast
import hashlib
from functools import lru_cache
from pathlib import Path
from typing import Any

_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
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
