"""Check the built site as a reader meets it: offline, every link and anchor there, every picture described.

python docs/site/check.py FOLDER
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    """The addresses, ids and pictures of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.parts: list[str] = []  # what the browser loads to show the page
        self.undescribed: list[str] = []
        self.language = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.ids |= {given[name] for name in ("id", "name") if name in given}
        if tag == "html":
            self.language = given.get("lang", "")
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if tag == "img" and not given.get("alt"):
            self.undescribed.append(given.get("src", ""))
        if tag in ("img", "script", "iframe", "source") and "src" in given:
            self.parts.append(given["src"])
        if tag == "link" and given.get("rel") not in ("canonical", "search", "index", "next", "prev"):
            self.parts.append(given.get("href", ""))


def faults(folder: Path) -> Iterator[str]:
    """Yield a line per fault of the site in `folder`."""
    pages = {path: Page(path.read_text(encoding="utf-8")) for path in folder.rglob("*.html") if _ours(path, folder)}
    for path, page in pages.items():
        where = path.relative_to(folder)
        if not page.language:
            yield f"{where}: no language"
        yield from (f"{where}: a picture without a description: {source}" for source in page.undescribed)
        yield from (f"{where}: loads {part}" for part in page.parts if urlsplit(part).netloc)
        for link in [*page.links, *page.parts]:
            address = urlsplit(link)
            if address.scheme or address.netloc:
                continue
            target = (path.parent / unquote(address.path)).resolve() if address.path else path
            if not target.is_file():
                yield f"{where}: no such file: {link}"
            elif address.fragment and target in pages and unquote(address.fragment) not in pages[target].ids:
                yield f"{where}: no such place: {link}"
    for style in folder.rglob("*.css"):
        text = style.read_text(encoding="utf-8")
        yield from (
            f"{style.relative_to(folder)}: loads {one}" for one in re.findall(r"url\([\"']?(https?:[^)]*)", text)
        )


def _ours(path: Path, folder: Path) -> bool:
    """Whether a page is made by the site; a downloaded report is whole by itself."""
    return path.relative_to(folder).parts[0] not in ("_downloads", "_static")


if __name__ == "__main__":
    found = [*faults(Path(sys.argv[1]).resolve())]
    for line in found:
        print(line, file=sys.stderr)
    sys.exit(bool(found))
