"""The named choices of the configuration: the files of a folder of conf, with the comment that each begins with."""

from __future__ import annotations

import re
from pathlib import Path

import yaml
from markdown import code, escape, table

CONF = Path(__file__).resolve().parents[2] / "conf"


def page(group: str) -> str:
    """Return a table of the files in conf/<group>: name, how it is printed, what its first lines say of it."""
    return table(("name", "printed as", "what it is"), map(_row, sorted((CONF / group).glob("*.yaml"))))


def _row(path: Path) -> tuple[str, str, str]:
    text = path.read_text(encoding="utf-8")
    data = yaml.safe_load(text)
    said = re.match(r"(?:# @package .*\n)?((?:# .*\n)*)", text)
    comment = " ".join(line[2:] for line in (said[1] if said else "").splitlines())
    return f"[{code(path.stem)}](../../conf/{path.parent.name}/{path.name})", escape(_printed(data)), escape(comment)


def _printed(data: dict[str, object]) -> str:
    return str(
        data.get("display") or re.sub(r"\{(\w+)[.\w]*\}", r"[\1]", str(data.get("title") or ""))
    )  # [model]: its name
