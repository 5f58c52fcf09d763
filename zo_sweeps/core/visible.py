"""Characters that nobody sees, shown: a label may come from a file of others, and must not turn the text around it."""

from __future__ import annotations

import re

# Control characters, marks of the direction of writing, characters of no width, halves of a pair. Tabs and the ends of
# lines stay, and so do the joiners (U+200C, U+200D), which scripts and emoji need.
_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)


def visible(text: str) -> str:
    """Return a text with each hidden character as `<U+202E>`."""
    return _HIDDEN.sub(lambda match: f"<U+{ord(match[0]):04X}>", text)
