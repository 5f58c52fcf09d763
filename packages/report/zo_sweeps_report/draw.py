"""Figures as PNG, SVG and PDF by matplotlib, which is imported at the first drawing and never opens a window."""

from __future__ import annotations

import io
import math
import re
import textwrap
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from zo_sweeps.core.errors import UserError
from zo_sweeps.core.units import visible
from zo_sweeps_report.figures import LEGEND, Figure, Series

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawing


# After Okabe and Ito's colours, which colour-blind readers can distinguish, each dark enough for a thin line on white;
# then the same with other markers and line styles.
COLORS = ("#0072b2", "#c75300", "#00805c", "#b5508f", "#a36a00", "#2486ba", "#1a1a1a", "#7a52c7")
MARKERS, STYLES = "os^Dv", ("-", "--", "-.", ":")
INK, GRID, PAPER, FAINT = "#000000", "#e6e6e6", "#ffffff", "#767676"
ACROSS = 3  # panels in a row
LONG = 28  # characters of a label of the y axis before it breaks
STYLE: dict[Any, Any] = {
    "text.parse_math": False,  # print a dollar or an underscore in a label as it is
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": GRID,
    "axes.edgecolor": INK,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.axisbelow": True,
    "svg.fonttype": "none",  # text, not outlines of letters
    "svg.hashsalt": "zo_sweeps",  # the same figure gives the same file
    "pdf.fonttype": 42,  # fonts embedded as TrueType: publishers refuse Type 3
}
FORMATS: dict[str, dict[str, Any]] = {  # a file's format -> its metadata, without what differs from day to day
    "png": {},
    "svg": dict.fromkeys(("Date", "Creator", "Format", "Type")),
    "pdf": dict.fromkeys(("CreationDate", "Creator", "Producer")),
}
PANEL, LETTER, HANDLE = 2.2, 0.06, 0.55  # inches: of a panel at least, of a legend's letter, of its line


def render(figure: Figure, form: str, width: float = 0.0) -> bytes:
    """Return the figure as a file of a format in FORMATS; see `renderings`."""
    return renderings(figure, [form], width)[form]


def renderings(figure: Figure, forms: Iterable[str], width: float = 0.0) -> dict[str, bytes]:
    """Return format -> file.

    Args:
        width: in inches, exactly, with texts of 8 points and without a title: for a column of a paper; 0: as it fits.
    """
    files = {}
    with drawing(figure, width) as drawn:
        for form in forms:
            out = io.BytesIO()
            whole = None if width else "tight"
            drawn.savefig(out, format=form, dpi=300 if width else 160, metadata=FORMATS[form], bbox_inches=whole)
            files[form] = out.getvalue()
    return files


@contextmanager
def drawing(figure: Figure, width: float = 0.0) -> Iterator[Drawing]:
    """Yield the drawn figure; width: as of `renderings`. Raises UserError if matplotlib is not installed."""
    try:
        from matplotlib import rc_context
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure as Drawing
    except ImportError:
        raise UserError("matplotlib is not installed", fix="pip install matplotlib") from None
    with rc_context({**STYLE, "font.size": 8} if width else STYLE):
        across = min(max(1, int(width / PANEL)) if width else ACROSS, len(figure.panels))
        down = math.ceil(len(figure.panels) / across)
        wide, high = figure.kind.size(figure, across, down)
        labels = list(dict.fromkeys(series.label for panel in figure.panels for series in panel.series))
        columns = min(LEGEND, len(labels)) or 1
        if width:
            columns = max(1, min(columns, int(width / (HANDLE + LETTER * max(map(len, labels), default=0)))))
            high += 0.19 * (math.ceil(len(labels) / columns) - math.ceil(len(labels) / LEGEND))
        drawn = Drawing(figsize=(width or wide, high), layout="constrained")
        FigureCanvasAgg(drawn)
        grid = drawn.subplots(down, across, squeeze=False, sharey=figure.same_scale)
        for i, axes in enumerate(grid.flat):
            if i < len(figure.panels):
                _panel(axes, figure, i, across)
            else:
                axes.axis("off")
        _legend(drawn, figure, columns)
        if figure.title and not width:
            drawn.suptitle(figure.title, fontsize=10, x=0.01, ha="left")
        yield drawn


def _panel(axes: Axes, figure: Figure, index: int, across: int) -> None:
    from matplotlib.ticker import LogFormatter

    panel = figure.panels[index]
    axes.set_title(panel.title, fontsize="medium")
    axes.set_xlabel(figure.x_label)
    if index % across == 0:
        axes.set_ylabel(textwrap.fill(figure.y_label, LONG))
    figure.kind.draw(axes, figure, panel)
    figure.kind.ticks(axes, figure, panel)
    if isinstance(axes.xaxis.get_major_formatter(), LogFormatter):  # it writes formulas, which are printed as they are
        axes.xaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_minor_formatter(LogFormatter())
    if not panel.series:
        axes.text(0.5, 0.5, "no finished run yet", transform=axes.transAxes, ha="center", color=FAINT)


def look(series: Series) -> tuple[str, str, str]:
    """Return a series' colour, line style and marker."""
    again, i = divmod(series.color, len(COLORS))
    return COLORS[i], STYLES[(again + series.style) % len(STYLES)], MARKERS[series.color % len(MARKERS)]


def published(axes: Axes, series: Series) -> None:
    """Draw a published series: hollow markers, dotted."""
    color, _, marker = look(series)
    axes.plot(series.x, series.y, ":", marker=marker, color=color, markerfacecolor=PAPER, label=series.label)


def banded(axes: Axes, series: Series, band: bool) -> None:
    """Draw a series as a line, with a band of one standard deviation if asked for."""
    color, style, marker = look(series)
    size = 3 if len(series.x) <= 25 else 0
    axes.plot(series.x, series.y, style, marker=marker, markersize=size, color=color, label=series.label)
    if band and len(series.x) == 1:
        axes.errorbar(series.x, series.y, [s or 0 for s in series.std], color=color, capsize=3)
    elif band:
        low = [y - (s or 0) for y, s in zip(series.y, series.std, strict=True)]
        high = [y + (s or 0) for y, s in zip(series.y, series.std, strict=True)]
        axes.fill_between(series.x, low, high, color=color, alpha=0.15, linewidth=0)


def _legend(drawn: Drawing, figure: Figure, columns: int) -> None:
    """Draw one legend for all panels, below them."""
    handles: dict[str, Any] = {}
    for axes in drawn.axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    if len(handles) > 1 or any(series.is_published for panel in figure.panels for series in panel.series):
        theirs = {series.label for panel in figure.panels for series in panel.series if series.is_published}
        labels = sorted(handles, key=theirs.__contains__)  # the published last
        drawn.legend(
            [handles[label] for label in labels], labels, loc="outside lower center", ncols=columns, frameon=False
        )


# Colours as drawn -> the page's: tokens of style.css, so that a figure follows the theme.
TOKENS = {
    **{color: f"var(--series-{i})" for i, color in enumerate(COLORS)},
    INK: "currentColor",
    GRID: "var(--line)",
    PAPER: "var(--paper)",
    FAINT: "var(--quiet)",
}
LINK = re.compile(r"#([\w-]+)")


def inline_svg(figure: Figure, prefix: str, svg: bytes = b"") -> str:
    """Return the figure as an <svg> element, its title a <title>, its ids with a prefix that is unique in the page.

    Args:
        svg: the figure without its title, if it is drawn already.

    A page's policy may forbid inline styles, so that they become attributes. Nothing in it names an address.
    """
    root = ET.fromstring(svg or render(replace(figure, title=""), "svg"))
    for element in root.iter():  # without namespaces
        element.tag = element.tag.rpartition("}")[2]
        element.attrib = {key.rpartition("}")[2]: value for key, value in element.attrib.items()}
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
