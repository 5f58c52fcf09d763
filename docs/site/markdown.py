"""Plain text as Markdown: tables, and docstrings as this project writes them."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Sequence

_SPECIAL = re.compile(r"([\\*_\[\]<>{}|#~$^])")
_ENTRY = re.compile(r" {4}(\S[^:]*): (.*)", re.DOTALL)


def escape(text: str) -> str:
    """Return text of which Markdown reads nothing but code between backquotes."""
    parts = re.split(r"(``.*?``|`[^`]*`)", text, flags=re.DOTALL)
    return "".join(part if part.startswith("`") else _SPECIAL.sub(r"\\\1", part) for part in parts)


def code(text: str) -> str:
    return f"`{text}`" if "`" not in text else f"`` {text} ``"


def fence(text: str, language: str = "text") -> str:
    ticks = "`" * max(3, 1 + max((len(run) for run in re.findall(r"`+", text)), default=0))
    return f"{ticks}{language}\n{text.strip(chr(10))}\n{ticks}"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table, without columns that are empty; a `|` within a cell is escaped, whether in code or not."""
    lines: list[Sequence[str]] = [head, *rows]
    lines = [*zip(*(column for column in zip(*lines, strict=True) if len(lines) == 1 or any(column[1:])), strict=True)]
    lines.insert(1, ["---"] * len(lines[0]))
    return "\n".join("| " + " | ".join(re.sub(r"(?<!\\)\|", r"\\|", cell) for cell in line) + " |" for line in lines)


def docstring(of: object, *, arguments: bool = True) -> str:
    """Return a docstring as Markdown: paragraphs, arguments as a list unless unwanted, indented lines as they are."""
    blocks = re.split(r"\n\s*\n", inspect.cleandoc(of.__doc__ or ""))
    return "\n\n".join(_block(one) for one in blocks if one.strip() and (arguments or not one.startswith("Args:")))


def _block(block: str) -> str:
    head, _, rest = block.partition("\n")
    if head in ("Args:", "Attributes:", "Methods:") and rest:
        return "\n".join(f"- {code(name)}: {_inline(what)}" for name, what in _entries(rest))
    if all(line.startswith("  ") for line in block.splitlines()):
        return fence(inspect.cleandoc("\n" + block))
    return _inline(block)


def _entries(text: str) -> list[tuple[str, str]]:
    """Return (name, what is said of it) of the lines below `Args:`; deeper lines go on."""
    joined = re.sub(r"\n {5,}", " ", text)
    matches = [_ENTRY.fullmatch(line) for line in joined.splitlines()]
    return [(match[1], match[2]) for match in matches if match]


def _inline(text: str) -> str:
    return escape(" ".join(text.split()))
