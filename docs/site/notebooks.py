"""A notebook as a page: its cells in order."""

from __future__ import annotations

import json
from pathlib import Path

from markdown import fence

ROOT = Path(__file__).resolve().parents[2]


def page(path: str) -> str:
    """Return a notebook's cells: text as it is, code in fences. `path` is below the repository's root."""
    cells = json.loads((ROOT / path).read_text(encoding="utf-8"))["cells"]
    texts = [(cell["cell_type"], "".join(cell["source"])) for cell in cells]
    return "\n\n".join(text if kind == "markdown" else fence(text, "python") for kind, text in texts)
