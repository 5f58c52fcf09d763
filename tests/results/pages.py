"""What every page must keep: parsed, one line per fault."""

from __future__ import annotations

import base64
import hashlib
import re
from html.parser import HTMLParser
from itertools import pairwise

VOID = {"meta", "br", "hr", "img", "link", "input"}
CONTROLS = ("select", "input", "button", "textarea")


class Page(HTMLParser):
    """A page's elements in order, as (tag, attributes, text of it and of what is in it), and its faults."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str], list[str]]] = []
        self._open: list[tuple[str, dict[str, str], list[str]]] = []
        self.feed(text)
        assert self._open == [], self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        made = (tag, {key: value or "" for key, value in attrs}, list[str]())
        self.elements.append(made)
        if tag not in VOID:
            self._open.append(made)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {key: value or "" for key, value in attrs}, []))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop()[0] == tag

    def handle_data(self, data: str) -> None:
        for _, _, text in self._open:
            text.append(data)

    def all(self, *tags: str) -> list[tuple[dict[str, str], str]]:
        return [(attributes, "".join(text)) for tag, attributes, text in self.elements if tag in tags]

    def faults(self) -> list[str]:
        """Headings in order, one h1, a language, a title, labels, names of figures, ids that are unique and known."""
        found = []
        (whole,) = [attributes for attributes, _ in self.all("html")]
        found += [] if whole.get("lang") else ["no lang"]
        found += [] if any(text.strip() for _, text in self.all("title")) else ["no title"]
        regions = [a["aria-label"] for _, a, _ in self.elements if a.get("role") == "region"]
        found += [f"region {name!r} twice" for name in {*regions} if regions.count(name) > 1]
        levels = [int(tag[1]) for tag, _, _ in self.elements if re.fullmatch("h[1-6]", tag)]
        found += [] if levels[:1] == [1] and levels.count(1) == 1 else [f"not one h1, first: {levels}"]
        found += [f"h{b} after h{a}" for a, b in pairwise(levels) if b > a + 1]
        ids = [attributes["id"] for _, attributes, _ in self.elements if "id" in attributes]
        found += [f"id {name!r} twice" for name in {*ids} if ids.count(name) > 1]
        for _, attributes, _ in self.elements:
            for key in ("for", "aria-labelledby", "aria-describedby"):
                if key in attributes and attributes[key] not in ids:
                    found.append(f"{key}={attributes[key]!r}")
            if (href := attributes.get("href", "")).startswith("#") and href[1:] not in ids:
                found.append(f"no target {href}")
        labelled = {attributes.get("for") for attributes, text in self.all("label") if text.strip()}
        for tag, attributes, text in self.elements:
            if tag in CONTROLS and not (
                attributes.get("aria-label") or attributes.get("id") in labelled or (tag == "button" and "".join(text))
            ):
                found.append(f"{tag} without a label: {attributes}")
            hidden = attributes.get("aria-hidden") == "true"  # what it shows is also in words
            if (
                tag == "svg"
                and not hidden
                and not (attributes.get("role") == "img" and attributes.get("aria-labelledby") in ids)
            ):
                found.append("svg without a name")
            if tag == "img" and not attributes.get("alt"):
                found.append("img without alt")
            if attributes.get("tabindex", "0") != "0":
                found.append(f"tabindex {attributes['tabindex']}")
            if "tabindex" in attributes and not attributes.get("aria-label"):
                found.append(f"a stop of the tab key without a name: {tag}")
            if "style" in attributes or any(key.startswith("on") for key in attributes):
                found.append(f"an inline style or handler in {tag}")
        return found

    def loaded(self) -> set[str]:
        """Everything that a browser would fetch: addresses of scripts, styles, images, frames and svg references."""
        refs = {"script": "src", "link": "href", "img": "src", "iframe": "src", "object": "data", "use": "href"}
        found = {a[refs[tag]] for tag, a, _ in self.elements if tag in refs and a.get(refs[tag])}
        found |= {
            url for _, text in self.all("style") for url in re.findall(r"(?:url\(|@import)\s*['\"]?([^'\")]+)", text)
        }
        return {url for url in found if not url.startswith(("data:,", "#"))}

    def policy_faults(self) -> list[str]:
        """Inline scripts and styles that the page's own policy does not allow, and what it allows beyond them."""
        (policy,) = [a["content"] for a, _ in self.all("meta") if a.get("http-equiv") == "Content-Security-Policy"]
        rules = {rule.split()[0]: rule.split()[1:] for rule in policy.split(";")}
        found = [] if rules["default-src"] == ["'none'"] else [f"default-src {rules['default-src']}"]
        found += [f"{k} {v}" for k, v in rules.items() if {"'unsafe-inline'", "'unsafe-eval'", "*", "https:"} & {*v}]
        for tag in ("script", "style"):
            for attributes, text in self.all(tag):
                digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
                if not attributes and f"'sha256-{digest}'" not in rules[f"{tag}-src"]:
                    found.append(f"a {tag} that is not allowed: {text[:40]!r}")
        return found
