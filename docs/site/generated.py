"""What pages of the site say of the code, as Markdown, made from the code whenever the site is built."""

from __future__ import annotations

import re
from collections.abc import Callable

import commands
import groups
import notebooks
import options
import papers
import python

GENERATORS: dict[str, Callable[..., str]] = {
    "commands": commands.page,
    "groups": groups.page,
    "members": options.members,
    "notebook": notebooks.page,
    "papers": papers.page,
    "parts": options.parts,
    "python": python.page,
    "run": options.run,
}
_LINE = re.compile(r"^<!-- generated: (\w+)((?: \S+)*) -->$", re.MULTILINE)


def fill(text: str) -> str:
    """Put what is generated in place of each line `<!-- generated: NAME ARGUMENTS -->`."""
    return _LINE.sub(lambda line: GENERATORS[line[1]](*line[2].split()), text)
