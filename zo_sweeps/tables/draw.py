"""Figures as PNG and SVG by matplotlib, which is imported at the first drawing and never opens a window."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from zo_sweeps.core.errors import UserError
from zo_sweeps.tables.figures import CURVE_X, Figure, Series

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawing

# Okabe and Ito's colours, which colour-blind readers can distinguish; then the same with other markers and line styles.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C6D31")
MARKERS, STYLES = "os^Dv", ("-", "--", "-.", ":")
ACROSS = 3  # panels in a row
STYLE: dict[Any, Any] = {
    "text.parse_math": False,  # print a dollar or an underscore in a label as it is
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e6e6e6",
    "axes.axisbelow": True,
    "svg.fonttype": "none",  # text, not outlines of letters
    "svg.hashsalt": "zo_sweeps",  # the same figure gives the same file
}
FORMATS = ("png", "svg")


def render(figure: Figure, form: str) -> bytes:
    """Return the figure as a file of format `form`: "png" or "svg"."""
    out = io.BytesIO()
    with drawing(figure) as drawn:
        metadata: dict[str, Any] = {} if form == "png" else dict.fromkeys(("Date", "Creator", "Format", "Type"))
        drawn.savefig(out, format=form, dpi=160, metadata=metadata, bbox_inches="tight")
    return out.getvalue()


def inline_svg(figure: Figure) -> str:
    """Return the figure as an <svg> element for a page, without prolog and namespace addresses."""
    text = render(figure, "svg").decode()
    return re.sub(r'\sxmlns(?::\w+)?="[^"]*"', "", text[text.index("<svg") :]).strip()


@contextmanager
def drawing(figure: Figure) -> Iterator[Drawing]:
    """Yield the drawn figure. Raises UserError if matplotlib is not installed."""
    try:
        from matplotlib import rc_context
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure as Drawing
    except ImportError:
        raise UserError("matplotlib is not installed", fix="pip install matplotlib") from None
    with rc_context(STYLE):
        across = min(ACROSS, len(figure.panels))
        down = math.ceil(len(figure.panels) / across)
        wide = 1.0 + len(figure.ticks) / 8 if figure.ticks and across == 1 else 1.0
        drawn = Drawing(figsize=(max(4.8, 3.4 * across) * min(wide, 2.2), 2.9 * down), layout="constrained")
        FigureCanvasAgg(drawn)
        grid = drawn.subplots(down, across, squeeze=False)
        for i, axes in enumerate(grid.flat):
            if i < len(figure.panels):
                _panel(axes, figure, i)
            else:
                axes.axis("off")
        _legend(drawn, figure)
        drawn.suptitle(figure.title, fontsize=10)
        yield drawn


def _panel(axes: Axes, figure: Figure, index: int) -> None:
    panel = figure.panels[index]
    axes.set_title(panel.title, fontsize=9)
    axes.set_xlabel(figure.x_label)
    if index % ACROSS == 0:
        axes.set_ylabel(figure.y_label)
    if figure.kind == "bar":
        _bars(axes, panel.series)
    else:
        for series in panel.series:
            _line(axes, series, figure.kind)
    if figure.ticks:
        turn = 30 if max(map(len, figure.ticks)) > 6 and len(figure.ticks) > 3 else 0
        axes.set_xticks(range(len(figure.ticks)), figure.ticks, rotation=turn, ha="right" if turn else "center")
    elif figure.kind == "cumulative":
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(lambda x, _: f"{x:g}")
    elif figure.x_label == CURVE_X["step"]:
        axes.locator_params(axis="x", integer=True)
    elif figure.kind == "line":
        if figure.log_x:
            axes.set_xscale("log")
        at = sorted({x for series in panel.series for x in series.x})
        axes.set_xticks(at, [f"{x:g}" for x in at])
        axes.minorticks_off()
    if not panel.series:
        axes.text(0.5, 0.5, "no finished run yet", transform=axes.transAxes, ha="center", color="#767676")


def _line(axes: Axes, series: Series, kind: str) -> None:
    color, style, marker = _look(series)
    if kind == "curve" and len(series.x) == 1 and not series.is_published:  # evaluated once: nothing was trained
        axes.axhline(series.y[0], color=color, linestyle=":", label=series.label)
        return
    if series.is_published:
        axes.plot(series.x, series.y, ":", marker=marker, color=color, markerfacecolor="white", label=series.label)
        return
    if kind in ("curve", "cumulative"):
        size = 3 if len(series.x) <= 25 else 0
        axes.plot(series.x, series.y, style, marker=marker, markersize=size, color=color, label=series.label)
        if series.n > 1 or kind == "cumulative":
            low = [y - (s or 0) for y, s in zip(series.y, series.std, strict=True)]
            high = [y + (s or 0) for y, s in zip(series.y, series.std, strict=True)]
            axes.fill_between(series.x, low, high, color=color, alpha=0.15, linewidth=0)
        return
    errors = [s or 0 for s in series.std]
    axes.errorbar(series.x, series.y, errors, fmt=style, marker=marker, color=color, capsize=3, label=series.label)


def _bars(axes: Axes, every: tuple[Series, ...]) -> None:
    ours = [series for series in every if not series.is_published]
    places = {series.color: i for i, series in enumerate(ours)}
    width = 0.8 / max(1, len(ours))
    for series in every:
        color, _, marker = _look(series)
        shift = (places.get(series.color, 0) - (len(ours) - 1) / 2) * width
        x = [value + shift for value in series.x]
        if series.is_published:
            axes.plot(x, series.y, linestyle="", marker=marker, color="black", mfc=color, zorder=3, label=series.label)
            continue
        errors = [s or 0 for s in series.std] if any(series.std) else None
        axes.bar(x, series.y, width * 0.92, yerr=errors, color=color, capsize=2, label=series.label)


def _look(series: Series) -> tuple[str, str, str]:
    again, i = divmod(series.color, len(COLORS))
    return COLORS[i], STYLES[(again + series.style) % len(STYLES)], MARKERS[series.color % len(MARKERS)]


def _legend(drawn: Drawing, figure: Figure) -> None:
    """Draw one legend for all panels, below them."""
    handles: dict[str, Any] = {}
    for axes in drawn.axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    if len(handles) > 1 or any(series.is_published for panel in figure.panels for series in panel.series):
        columns = min(len(handles), 3)
        drawn.legend(list(handles.values()), list(handles), loc="outside lower center", ncols=columns, frameon=False)
