"""Print the notes of a release, from CHANGELOG.md; exit with a line if the tag is not one of a release.

    python .ci/release.py v0.1.0

A release has a tag `v` + the version in zo_sweeps/core/host.py, that version in CITATION.cff, and a section with that
version and a date in CHANGELOG.md.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def notes(tag: str, root: Path = ROOT) -> str:
    """Return the section of the tag's version. Raises ValueError if the tag, the version and the files do not agree."""
    (version,) = re.findall(r'^VERSION = "(.*)"$', (root / "zo_sweeps/core/host.py").read_text(), re.MULTILINE)
    if tag != f"v{version}":
        raise ValueError(
            f"the tag is {tag}, and zo_sweeps/core/host.py says {version}: tag v{version}, or change it there"
        )
    if not re.search(rf"^version: {re.escape(version)}$", (root / "CITATION.cff").read_text(), re.MULTILINE):
        raise ValueError(f"CITATION.cff has another version than {version}: change it there")
    text = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    found = re.search(rf"^## \[{re.escape(version)}\] - ([^\n]*)\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    if not found or not re.fullmatch(r"\d{4}-\d{2}-\d{2}", found[1].strip()):
        said = f"says {found[1].strip()!r}" if found else "has no section"
        raise ValueError(f"CHANGELOG.md {said} for {version}: write its heading as ## [{version}] - YYYY-MM-DD")
    return found[2].strip() + "\n"


if __name__ == "__main__":
    try:
        print(notes(sys.argv[1]), end="")
    except ValueError as error:
        sys.exit(str(error))
