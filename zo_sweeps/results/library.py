"""The chart library of the pages, as it was published, with its licence, version and checksums beside it."""

from __future__ import annotations

import hashlib
import json
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).parent / "web" / "uplot"


@cache
def chart_library() -> tuple[str, str]:
    """Return the chart library (script, style), the script with its licence as a comment.

    Raises ValueError if a file is not the one that was published.
    """
    source = json.loads((FOLDER / "SOURCE.json").read_text(encoding="utf-8"))
    texts = []
    for name, digest in source["sha256"].items():
        content = (FOLDER / name).read_bytes()
        if hashlib.sha256(content).hexdigest() != digest:
            raise ValueError(f"{name} is not that of {source['name']} {source['version']}")
        texts.append(content.decode().strip())
    script, style = texts
    licence = (FOLDER / "LICENSE").read_text(encoding="utf-8").strip()
    header, _, code = script.partition("\n")  # the library's own comment, which has its address
    assert header.startswith("/*!")
    return f"/* {source['name']} {source['version']}\n\n{licence}\n*/\n{code}", style
