"""Figures as PNG and SVG by matplotlib, which is imported at the first drawing and never opens a window."""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from zo_sweeps.core.errors import UserError
from zo_sweeps.tables.figures import CURVE_X, Figure, Panel, Series

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawing

# After Okabe and Ito's colours, which colour-blind readers can distinguish, each dark enough for a thin line on white;
# then the same with other markers and line styles.
COLORS = ("#0072b2", "#c75300", "#00805c", "#b5508f", "#a36a00", "#2486ba", "#1a1a1a", "#7a52c7")
MARKERS, STYLES = "os^Dv", ("-", "--", "-.", ":")
INK, GRID, PAPER, FAINT = "#000000", "#e6e6e6", "#ffffff", "#767676"
ACROSS, LEGEND = 3, 3  # panels in a row, columns of the legend
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
}
FORMATS = ("png", "svg")


def render(figure: Figure, form: str) -> bytes:
    """Return the figure as a file of format `form`: "png" or "svg"."""
    out = io.BytesIO()
    with drawing(figure) as drawn:
        metadata: dict[str, Any] = {} if form == "png" else dict.fromkeys(("Date", "Creator", "Format", "Type"))
        drawn.savefig(out, format=form, dpi=160, metadata=metadata, bbox_inches="tight")
    return out.getvalue()


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
        drawn = Drawing(figsize=_size(figure, across, down), layout="constrained")
        FigureCanvasAgg(drawn)
        rows = figure.kind == "rows"
        grid = drawn.subplots(down, across, squeeze=False, sharey=figure.same_scale or rows)
        for i, axes in enumerate(grid.flat):
            if i < len(figure.panels):
                _panel(axes, figure, i)
            else:
                axes.axis("off")
        _legend(drawn, figure)
        if figure.title:
            drawn.suptitle(figure.title, fontsize=10, x=0.01, ha="left")
        yield drawn


def _size(figure: Figure, across: int, down: int) -> tuple[float, float]:
    """Return width and height in inches."""
    if figure.kind == "rows":
        return 2.4 + max(4.0, 2.4 * across), (0.9 + 0.26 * len(figure.ticks)) * down + 0.4
    wide = 1.0 + len(figure.ticks) / 8 if figure.ticks and across == 1 else 1.0
    labels = {series.label for panel in figure.panels for series in panel.series}
    legend = 0.21 * math.ceil(len(labels) / LEGEND) if len(labels) > 1 else 0.0
    return max(4.8, 3.4 * across) * min(wide, 2.2), (2.9 + 0.4 * bool(_turn(figure))) * down + legend


def _turn(figure: Figure) -> int:
    """Return the angle of the ticks' texts: 0 if they fit side by side."""
    return 30 if figure.ticks and max(map(len, figure.ticks)) > 6 and len(figure.ticks) > 3 else 0


def _panel(axes: Axes, figure: Figure, index: int) -> None:
    panel = figure.panels[index]
    axes.set_title(panel.title, fontsize=9)
    axes.set_xlabel(figure.x_label)
    if index % ACROSS == 0:
        axes.set_ylabel(textwrap.fill(figure.y_label, LONG))
    if figure.kind == "rows":
        _rows(axes, panel.series, figure.ticks)
    elif figure.kind == "bar":
        _bars(axes, panel.series)
    else:
        for series in panel.series:
            _line(axes, series, figure.kind)
    if figure.kind != "rows":
        _ticks(axes, figure, panel)
    if not panel.series:
        axes.text(0.5, 0.5, "no finished run yet", transform=axes.transAxes, ha="center", color=FAINT)


def _ticks(axes: Axes, figure: Figure, panel: Panel) -> None:
    if figure.ticks:
        turn = _turn(figure)
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


def _rows(axes: Axes, every: tuple[Series, ...], labels: tuple[str, ...]) -> None:
    for series in every:
        color = COLORS[series.color]
        if series.is_published:
            axes.plot(series.y, series.x, "D", color=COLORS[1], mfc=PAPER, markersize=5, zorder=4, label=series.label)
        elif series.n == 0:  # each seed
            axes.plot(series.y, series.x, "|", color=color, markersize=8, alpha=0.7, zorder=2, label=series.label)
        else:
            errors = [std or 0 for std in series.std]
            axes.errorbar(
                series.y, series.x, xerr=errors, fmt="o", color=color, capsize=0, zorder=3, label=series.label
            )
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(len(labels) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)


def _line(axes: Axes, series: Series, kind: str) -> None:
    color, style, marker = _look(series)
    if kind == "curve" and len(series.x) == 1 and not series.is_published:  # evaluated once: nothing was trained
        axes.axhline(series.y[0], color=color, linestyle=":", label=series.label)
        return
    if series.is_published:
        axes.plot(series.x, series.y, ":", marker=marker, color=color, markerfacecolor=PAPER, label=series.label)
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
            axes.plot(x, series.y, linestyle="", marker=marker, color=INK, mfc=color, zorder=3, label=series.label)
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
        theirs = {series.label for panel in figure.panels for series in panel.series if series.is_published}
        labels = sorted(handles, key=theirs.__contains__)  # the published last
        columns = min(len(labels), LEGEND)
        drawn.legend(
            [handles[label] for label in labels], labels, loc="outside lower center", ncols=columns, frameon=False
        )
