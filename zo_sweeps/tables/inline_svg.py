"""A drawn figure as an <svg> element of a page: in the page's font and colours, with a title, without inline styles."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from dataclasses import replace

from zo_sweeps.core.visible import visible
from zo_sweeps.tables.draw import COLORS, FAINT, GRID, INK, PAPER, render
from zo_sweeps.tables.figures import Figure

# Colours as drawn -> the page's: tokens of style.css, so that a figure follows the theme.
TOKENS = {
    **{color: f"var(--series-{i})" for i, color in enumerate(COLORS)},
    INK: "currentColor",
    GRID: "var(--line)",
    PAPER: "var(--paper)",
    FAINT: "var(--quiet)",
}
LINK = re.compile(r"#([\w-]+)")


def inline_svg(figure: Figure, prefix: str) -> str:
    """Return the figure as an <svg> element. Its title is a <title>, not drawn.

    A page's policy may forbid inline styles, so that they become attributes. Nothing in it names an address.

    Args:
        prefix: of the ids in it; unique in the page.
    """
    root = _without_namespaces(ET.fromstring(render(replace(figure, title=""), "svg")))
    for parent in root.iter():
        for child in [c for c in parent if c.tag in ("metadata", "style")]:
            parent.remove(child)
    used = {name for element in root.iter() for value in element.attrib.values() for name in LINK.findall(value)}
    for element in root.iter():
        element.text = visible(element.text or "")
        _restyle(element)
        if (own := element.attrib.pop("id", "")) in used:
            element.set("id", f"{prefix}-{own}")
        for key, value in element.attrib.items():
            if key == "href" or "url(#" in value:
                element.set(key, LINK.sub(rf"#{prefix}-\1", value))
    width = root.attrib.pop("width", "").removesuffix("pt")
    root.attrib.pop("height", "")
    root.attrib.pop("version", "")
    title = ET.Element("title", {"id": f"{prefix}-title"})
    title.text = visible(figure.title)
    root.insert(0, title)
    whole = {"role": "img", "aria-labelledby": f"{prefix}-title", "width": f"{float(width) * 4 / 3:.0f}"}
    root.attrib.update({**whole, "fill": "currentColor", "stroke-linejoin": "round", "stroke-linecap": "butt"})
    return ET.tostring(root, encoding="unicode").strip()


def _without_namespaces(root: ET.Element) -> ET.Element:
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
        element.attrib = {key.rpartition("}")[2]: value for key, value in element.attrib.items()}
    return root


def _restyle(element: ET.Element) -> None:
    """Turn an element's inline style into attributes, and its colours into the page's."""
    style = element.attrib.pop("style", "")
    for part in filter(None, map(str.strip, style.split(";"))):
        key, _, value = part.partition(":")
        if key == "font":
            size = re.search(r"([\d.]+)px", value)
            element.set("font-size", size[1] if size else "9")
            if "bold" in value or re.search(r"\b[6-9]00\b", value):
                element.set("font-weight", "600")
        elif key != "font-family":
            element.set(key.strip(), value.strip())
    for key in ("fill", "stroke"):
        value = element.get(key, "").lower()
        if value in TOKENS:
            element.set(key, TOKENS[value])
