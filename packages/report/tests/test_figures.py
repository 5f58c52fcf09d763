"""What stands in a figure, and that it is drawn."""

from __future__ import annotations

import re
import struct
import xml.etree.ElementTree as ET
from dataclasses import dataclass, replace
from statistics import fmean, stdev
from typing import Any

import pytest

from tests.engine import contract
from tests.tables.examples import ACCURACY, LR, PUBLISHED, Q, measure, record, small
from zo_sweeps.core.errors import UserError
from zo_sweeps.core.events import SquaredGradients
from zo_sweeps.methods.registry import member
from zo_sweeps.tables import Record, build
from zo_sweeps.tables.published import names
from zo_sweeps_report.draw import FORMATS, TOKENS, drawing, inline_svg, render, renderings
from zo_sweeps_report.figure_kinds.line import Line
from zo_sweeps_report.figure_kinds.rows import MEAN, SEEDS, row_figure
from zo_sweeps_report.figure_kinds.rows import PUBLISHED as PUBLISHED_LABEL
from zo_sweeps_report.figures import TOLD_APART, Figure, FigureKind, FigureSpec, Panel, Runs, axis_label, kind_of_grid

pytestmark = pytest.mark.unit

COLUMNS = (("sst2", "SST-2"), ("rte", "RTE"))
SERIES = (("zo", "ZO"), ("pezo", "PeZO"))


def layout(**changes: Any) -> FigureSpec:
    values: dict[str, Any] = {
        "name": "grid_fig",
        "title": "Accuracy by q_1 ($)",
        "kind": "line",
        "x": Q,
        "y": "accuracy",
        "panels": "column",
        "series": SERIES,
        "columns": COLUMNS,
        "measure": ACCURACY,
    }
    values |= changes
    if isinstance(values["kind"], str):
        values["kind"] = kind_of_grid(values["kind"], "figure 'grid_fig'")
    return FigureSpec(**values)


def points(spec: FigureSpec, records: list[Record], lookup: Any, trail: Any = None, gradients: Any = None) -> Figure:
    return spec.kind.build(spec, records, lookup, Runs(trail, gradients))


curves = points


def cumulative(spec: FigureSpec, records: list[Record], lookup: Any, gradients: Any) -> Figure:
    return points(spec, records, lookup, None, gradients)


def curve(**changes: Any) -> FigureSpec:
    return layout(**{"kind": "curve", "x": "step", "y": "dev/loss", "measure": None, **changes})


def look(found: Record, key: str) -> Any:
    return found.hyperparameters.get(key)


def searched() -> list[Record]:
    """Two blocks, two columns, q of 1, 4 and 16, two rates, three seeds. The lower rate has the better dev loss."""
    return [
        record({Q: q, LR: lr}, seed, block=block, column=column, dev=lr, test=0.5 + q / 100 + lr + seed / 1000)
        for block in ("zo", "pezo")
        for column in ("sst2", "rte")
        for q in (4, 1, 16)
        for lr in (0.1, 0.2)
        for seed in range(3)
    ]


def trail(trial_id: str) -> dict[str, list[tuple[int, float, float]]]:
    seed = int(trial_id[-1])
    if trial_id.startswith("zero"):
        return {"dev/loss": [(0, 0.0, 0.7)]}
    return {
        "dev/loss": [(step, step * (1.0 + seed), 1 / step + seed) for step in range(10, 101 - 10 * seed, 10)],
        "train/loss": [(step, float(step), float(step)) for step in range(1, 401)],
    }


def test_a_remark_on_runs_that_are_drawn_stands_below_with_their_series() -> None:
    """Not on those that the selection left out, and not where time or memory is drawn."""
    line = "theta moves along 17 distinct directions only: the generator repeats"
    time = measure("step_time")
    repeating = [
        replace(
            one,
            metrics={
                **one.metrics,
                time.metric: 0.1,
                **({"directions": 17.0 if one.hyperparameters[LR] == 0.1 else 3.0} if one.block == "pezo" else {}),
            },
        )
        for one in searched()
    ]
    for figure in (points(layout(), repeating, look), curves(curve(), repeating, look, trail)):
        assert [note for note in figure.notes if "directions" in note] == [f"PeZO: {line}."]
    timed = points(layout(y="step_time", measure=time), repeating, look)
    assert timed.panels[0].series[1].y
    assert not [note for note in timed.notes if "directions" in note]
    other = [replace(one, metrics={**one.metrics, "other_code": 1.0}) for one in repeating]
    (note,) = [note for note in points(layout(y="step_time", measure=time), other, look).notes if "code" in note]
    assert note.startswith("ZO, PeZO: measured with other code")


@pytest.mark.parametrize("kind", ["line", "bar"])
def test_a_point_is_the_setting_selected_on_dev_at_that_x(kind: str) -> None:
    figure = points(layout(kind=kind), searched(), look)
    assert [panel.title for panel in figure.panels] == ["SST-2", "RTE"]
    series = figure.panels[1].series[0]
    assert figure.ticks == (() if kind == "line" else ("1", "4", "16"))
    assert series.x == ((1.0, 4.0, 16.0) if kind == "line" else (0.0, 1.0, 2.0))
    for q, y, std in zip((1, 4, 16), series.y, series.std, strict=True):
        values = [100 * (0.5 + q / 100 + 0.1 + seed / 1000) for seed in range(3)]
        assert (y, std) == (pytest.approx(fmean(values)), pytest.approx(stdev(values)))
    assert series.n == 3
    assert figure.log_x is (kind == "line")
    assert any("3 seeds" in note for note in figure.notes)


def test_columns_are_categories_in_their_order_in_one_panel() -> None:
    figure = points(layout(x="column", panels="", kind="bar"), [record({}, column="rte"), record({})], look)
    assert (figure.ticks, len(figure.panels)) == (("SST-2", "RTE"), 1)
    assert figure.panels[0].series[0].x == (0.0, 1.0)
    assert "No finished run yet: PeZO." in figure.notes


def test_a_key_makes_panels_too() -> None:
    figure = points(layout(x="column", panels=Q), searched(), look)
    assert [panel.title for panel in figure.panels] == ["q = 1", "q = 4", "q = 16"]


def test_published_points_stand_beside_ours_in_the_colour_of_their_series() -> None:
    given = ({"series": "pezo", "panel": "rte", "x": 8, "y": 60.0}, {"series": "pezo", "x": 4, "y": 61.0})
    figure = points(layout(published=given), searched(), look)
    found = [[series for series in panel.series if series.is_published] for panel in figure.panels]
    assert [(s.label, s.x, s.y) for s in found[0]] == [("PeZO, published", (4.0,), (61.0,))]
    assert [(s.x, s.y) for s in found[1]] == [((8.0, 4.0), (60.0, 61.0))]
    assert found[0][0].color == 1


def test_a_curve_is_the_mean_over_seeds_at_the_steps_that_all_have() -> None:
    records = [record({LR: lr}, seed, dev=lr) for lr in (0.1, 0.2) for seed in range(3)]
    figure = curves(curve(columns=COLUMNS[:1]), records, look, trail)
    (series,) = figure.panels[0].series
    assert series.x == tuple(float(step) for step in range(10, 81, 10))  # seed 2 ends at 80
    assert series.y == pytest.approx([1 / step + 1 for step in range(10, 81, 10)])
    assert series.std == pytest.approx([1.0] * 8)
    by_time = curves(curve(columns=COLUMNS[:1], x="seconds"), records, look, trail)
    assert by_time.panels[0].series[0].x == pytest.approx([2.0 * step for step in range(10, 81, 10)])


def test_training_losses_are_means_over_windows_and_the_note_says_so() -> None:
    figure = curves(curve(columns=COLUMNS[:1], y="train/loss"), [record({}, 0)], look, trail)
    (series,) = figure.panels[0].series
    assert len(series.x) == 40
    assert (series.x[0], series.y[0], series.x[-1]) == (10.0, 5.5, 400.0)
    assert any("windows of 10 steps" in note for note in figure.notes)


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"kind": "pie"}, "unknown kind of figure 'pie'"),
        ({"x": Q, "panels": ""}, "would be mixed"),
        ({"published": ({"series": "nobody", "x": 1, "y": 2},)}, "unknown series 'nobody'"),
        ({"published": ({"series": "zo", "x": 1},)}, "without 'y'"),
        ({"published": ({"series": "zo", "x": 1, "why": 2},)}, "unknown key of a published point 'why'"),
        ({"published": (3,)}, "a published point is a mapping, not 3"),
        (
            {"published": ({"series": ["zo"], "x": 1, "y": 2},)},
            "series of a published point is ['zo'], which is no text",
        ),
        ({"published": ({"series": "zo", "x": [1], "y": 2},)}, "x of a published point is [1], which is no text"),
        (
            {"published": ({"series": "zo", "x": "1", "y": "two"},)},
            "y of a published point is 'two', which is no number",
        ),
        (
            {"kind": "curve", "x": "step", "y": "dev/loss", "published": ({"series": "zo", "x": "1", "y": 2},)},
            "x of a published point is '1', which is no number",
        ),
        ({"kind": "curve", "x": "step", "y": "loss"}, "unknown y of a curve 'loss'"),
        ({"kind": "curve", "x": "hours", "y": "dev/loss"}, "unknown x of a curve 'hours'"),
    ],
)
def test_a_layout_that_cannot_be_drawn_is_refused(changes: dict[str, Any], part: str) -> None:
    with pytest.raises(UserError) as caught:
        layout(**changes)
    assert part in str(caught.value)


def test_an_x_that_no_trial_has_is_refused() -> None:
    with pytest.raises(UserError, match=r"no trial has a 'estimator\.k'"):
        points(layout(x="estimator.k"), searched(), look)


def drawn_examples() -> dict[str, Figure]:
    zero = (("zero", "Zero-shot"), *SERIES)
    runs = [*(record({}, seed, block=b) for b in ("zo", "pezo") for seed in range(3)), record({}, 0, block="zero")]
    return {
        "line": points(layout(published=({"series": "zo", "panel": "rte", "x": 4, "y": 60.0},)), searched(), look),
        "bar": points(
            layout(kind="bar", x="column", panels=""),
            [record({}, s, block=b) for b in ("zo", "pezo") for s in (0, 1)],
            look,
        ),
        "curve": curves(curve(series=zero, columns=COLUMNS[:1]), runs, look, trail),
        "nothing": points(layout(), [], look),
    }


@pytest.mark.parametrize("name", ["line", "bar", "curve", "nothing"])
def test_a_drawn_figure_has_an_artist_for_each_series_of_each_panel(name: str) -> None:
    figure = drawn_examples()[name]
    with drawing(figure) as drawn:
        shown = [axes for axes in drawn.axes if axes.axison]
        assert len(shown) == len(figure.panels)
        for axes, panel in zip(shown, figure.panels, strict=True):
            handles, labels = axes.get_legend_handles_labels()
            assert sorted(labels) == sorted(s.label for s in panel.series)
            assert len(handles) == len(labels)
            assert len(axes.patches) == (sum(len(s.x) for s in panel.series) if name == "bar" else 0)
            bands = [artist for artist in axes.collections if type(artist).__name__.startswith("FillBetween")]
            assert len(bands) == (2 if name == "curve" else 0)
            if name == "nothing":
                assert "no finished run yet" in [text.get_text() for text in axes.texts]


@pytest.mark.parametrize("name", ["line", "bar", "curve"])
def test_png_and_svg_are_whole_files_with_the_title_in_plain_letters(name: str) -> None:
    figure = drawn_examples()[name]
    png = render(figure, "png")
    width, height = struct.unpack(">II", png[16:24])
    assert png.startswith(b"\x89PNG")
    assert png.endswith(b"IEND\xaeB`\x82")
    assert min(width, height) > 300
    root = ET.fromstring(render(figure, "svg"))
    texts = ["".join(element.itertext()).strip() for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert figure.title in texts
    assert {series.label for series in figure.panels[0].series} <= set(texts)


def test_the_same_figure_is_the_same_file_and_names_no_address() -> None:
    figure = drawn_examples()["curve"]
    assert render(figure, "svg") == render(figure, "svg")
    inline = inline_svg(figure, "a")
    assert (inline[:4], inline[-6:]) == ("<svg", "</svg>")
    assert "://" not in inline


def test_a_second_measure_of_the_difference_of_two_metrics_is_named_on_the_axis() -> None:
    beyond = measure("memory_beyond_weights")
    records = [record({Q: 1}, metrics={"peak_memory_bytes": 3 * 2**30, "weights_bytes": 2**30})]
    figure = points(replace(layout(columns=COLUMNS[:1]), measure=beyond), records, look)
    assert (figure.y_label, figure.panels[0].series[0].y) == ("Peak memory beyond the weights (GiB)", (2.0,))


SHARES = {
    ("task_dynamic", 0.01): 0.5,
    ("task_dynamic", 0.001): 0.3,
    ("text_static", 0.01): 0.2,
    ("text_static", 0.001): 0.1,
}
CURVES = tuple((f"gradients/{mask}/{density}", f"{mask}, {density}") for mask, density in SHARES)


def covered(trial_id: str) -> dict[str, list[tuple[int, float, float]]]:
    return {name: [(0, 0.0, y), (2, 1.0, y / 2)] for (name, _), y in zip(CURVES, SHARES.values(), strict=True)}


def test_several_measurements_of_a_run_are_lines_alike_in_colour_by_density_and_in_style_by_mask() -> None:
    spec = curve(columns=COLUMNS[:1], series=SERIES[:1], curves=CURVES)
    figure = curves(spec, [record({})], look, covered)
    found = {series.label: series for series in figure.panels[0].series}
    assert list(found) == [label for _, label in CURVES]
    assert [(series.color, series.style) for series in found.values()] == [(0, 0), (1, 0), (0, 1), (1, 1)]
    assert found["text_static, 0.01"].y == (0.2, 0.1)
    assert figure.y_label == "Share of the squared gradient"
    with drawing(figure) as drawn:
        lines = [(line.get_color(), line.get_linestyle()) for line in drawn.axes[0].get_lines()]
    assert len(set(lines)) == 4
    both = curves(replace(spec, series=SERIES), [record({}), record({}, block="pezo")], look, covered)
    assert len({series.label for series in both.panels[0].series}) == 8


def looked(trial_id: str) -> dict[int, dict[str, list[float]]]:
    return {
        step: SquaredGradients(
            step=step,
            shares=(0.01, 0.1, 1.0),
            mean=(0.2, 0.5 + step / 1000, 1.0),
            std=(0.1, 0.2, 0.0),
            layers=1,
            covered={},
        )
        for step in range(0, 101, 10)
    }


def test_a_cumulative_curve_is_of_the_first_measurement_after_a_part_of_training() -> None:
    spec = layout(
        kind="cumulative", x="share", measure=None, columns=COLUMNS[:1], series=SERIES[:1], at=(0.1, 0.55, 1.0)
    )
    figure = cumulative(spec, [record({})], look, looked)
    assert [series.label for series in figure.panels[0].series] == ["step 10", "step 60", "step 100"]
    series = figure.panels[0].series[1]
    assert (series.x, series.y) == ((0.01, 0.1, 1.0), (0.2, 0.56, 1.0))
    assert series.std == (0.1, 0.2, 0.0)
    empty = cumulative(spec, [record({}, state="NOT_RUN")], look, looked)
    assert empty.panels[0].series == ()
    assert any("No finished run yet: ZO" in note for note in empty.notes)


def test_the_axis_of_shares_is_logarithmic_with_plain_numbers_and_the_band_is_drawn() -> None:
    spec = layout(kind="cumulative", x="share", measure=None, columns=COLUMNS[:1], series=SERIES[:1])
    with drawing(cumulative(spec, [record({})], look, looked)) as drawn:
        drawn.canvas.draw()
        (axes, *_) = drawn.axes
        assert axes.get_xscale() == "log"
        assert "0.01" in [label.get_text() for label in axes.get_xticklabels()]
        assert len(axes.collections) == 1


def test_a_series_of_a_ratio_is_the_named_series_over_its_own_where_both_have_a_point() -> None:
    times = {("zo", 1): 0.9, ("inner", 1): 0.5, ("zo", 4): 3.0, ("inner", 4): 2.5, ("zo", 16): 9.0}
    records = [
        record({Q: q}, block=block, metrics={"dev/loss": 0.5, "seconds_per_step": seconds})
        for (block, q), seconds in times.items()
    ]
    spec = layout(
        measure=measure("speedup"), panels="", columns=COLUMNS[:1], series=(("inner", "inner"),), over={"inner": "zo"}
    )
    figure = points(spec, records, look)
    (series,) = figure.panels[0].series
    assert (series.x, series.y) == ((1.0, 4.0), (0.9 / 0.5, 3.0 / 2.5))
    assert figure.y_label == "Speed-up (×)"


@pytest.mark.parametrize("name", names("table"))
def test_an_axis_is_named_in_words_with_its_unit(name: str) -> None:
    shown = measure(name)
    label = axis_label(shown, shown.unit, name)
    assert not {"_", "/"} & {*label.removesuffix(f"({shown.unit})")}
    assert label[0].isupper()
    assert label.endswith(f"({shown.unit})")


def test_a_panel_of_more_lines_than_can_be_told_apart_is_split_and_keeps_its_scale() -> None:
    series = tuple((f"row{i}", f"Row {i}") for i in range(TOLD_APART + 3))
    records = [record({Q: q}, block=block) for block, _ in series for q in (1, 4)]
    given = ({"series": "row10", "panel": "sst2", "x": 4, "y": 61.0},)
    figure = points(layout(series=series, columns=COLUMNS[:1], published=given), records, look)
    assert [panel.title for panel in figure.panels] == ["SST-2 (1 of 2)", "SST-2 (2 of 2)"]
    assert [len(panel.series) for panel in figure.panels] == [6, 6], "the published point follows its row"
    assert [label for panel in figure.panels for s in panel.series if not s.is_published for label in [s.label]] == [
        label for _, label in series
    ]
    with drawing(figure) as drawn:
        every = [axes for axes in drawn.axes if axes.axison]
        assert len({axes.get_ylim() for axes in every}) == 1
        for axes, panel in zip(every, figure.panels, strict=True):
            shown = {line.get_color() for line in axes.get_lines() if line.get_linestyle() != "None"}
            assert len(shown) == len({series.color for series in panel.series})


def test_the_figure_of_a_table_has_its_rows_with_values_seeds_and_published_numbers() -> None:
    spec, records = small()
    table = build(spec, records, PUBLISHED)
    figure = row_figure(table, "grid_result")
    assert figure.ticks == tuple(label for _, label in table.rows)
    assert [panel.title for panel in figure.panels] == [label for _, label in spec.columns]
    for panel, (key, _) in zip(figure.panels, spec.columns, strict=True):
        cells = [table.cells[block, key] for block, _ in table.rows]
        parts = {series.label: (series.y, series.std) for series in panel.series}
        have = [cell for cell in cells if cell.mean is not None]
        seeds = tuple(v for cell in cells if cell.n > 1 for v in dict.fromkeys(cell.values.values()))
        assert parts.get(MEAN, ((), ())) == (tuple(cell.mean for cell in have), tuple(cell.std for cell in have))
        assert parts.get(SEEDS, ((), ()))[0] == seeds
        assert parts.get(PUBLISHED_LABEL, ((), ()))[0] == tuple(c.published for c in cells if c.published is not None)
    with drawing(figure) as drawn:
        assert [label.get_text() for label in drawn.axes[0].get_yticklabels()] == list(figure.ticks)


def test_an_inline_figure_has_the_colours_of_the_page_and_no_inline_style() -> None:
    text = inline_svg(drawn_examples()["curve"], "f1")
    assert "style=" not in text
    assert "var(--series-0)" in text
    assert not [color for color in TOKENS if f'"{color}"' in text.lower()]
    root = ET.fromstring(text)
    assert root.get("aria-labelledby") == root[0].get("id") == "f1-title"
    assert root[0].text == drawn_examples()["curve"].title


def test_the_numbers_of_a_logarithmic_axis_are_no_formulas() -> None:
    found = [record(block=name, dev=x, test=0.5) for name, x in (("zo", 0.004), ("pezo", 0.7))]
    spec = layout(kind="scatter", columns=COLUMNS[:1], x="dev/loss", x_measure=measure("dev_loss"))
    with drawing(points(spec, found, look)) as drawn:
        (axes,) = drawn.axes
        drawn.canvas.draw()
        texts = [label.get_text() for label in axes.get_xticklabels(which="both")]
        assert axes.get_xscale() == "log"
    assert {"0.01", "0.1"} <= {*texts}
    assert not [text for text in texts if "$" in text]


def test_a_width_is_that_of_the_file_and_its_fonts_are_embedded() -> None:
    figure = points(layout(), searched(), look)
    for width in (3.3, 6.75):
        files = renderings(figure, FORMATS, width)
        assert files == renderings(figure, FORMATS, width), "the same figure gives the same files"
        assert struct.unpack(">I", files["png"][16:20]) == (round(300 * width),)
        (box,) = re.findall(rb"/MediaBox \[ 0 0 ([\d.]+) ", files["pdf"])
        assert float(box) == pytest.approx(72 * width)
        assert ET.fromstring(files["svg"]).get("width") == f"{72 * width:g}pt"
        kinds = {*re.findall(rb"/Subtype /(Type\w+|CIDFontType\w+|TrueType)", files["pdf"])}
        assert kinds == {b"Type0", b"CIDFontType2"}, "TrueType, not Type 3"
        assert b"CreationDate" not in files["pdf"]
    with drawing(figure, 3.3) as narrow, drawing(figure, 6.75) as wide, drawing(figure) as free:
        places = [[axes.get_subplotspec().colspan.start for axes in drawn.axes] for drawn in (narrow, wide, free)]
        assert places == [[0, 0], [0, 1], [0, 1]]
        assert (narrow.get_suptitle(), free.get_suptitle()) == ("", figure.title)


def test_a_run_that_is_evaluated_once_is_a_point_where_that_was_and_an_untrained_one_a_line() -> None:
    def at(step: int) -> Figure:
        return curves(
            curve(), [record(seed=seed) for seed in range(3)], look, lambda _: {"dev/loss": [(step, 1.0, 0.5)]}
        )

    for step, ends in ((20, (20, 20)), (0, (0, 1))):
        with drawing(at(step)) as drawn:
            (line, *_) = drawn.axes[0].get_lines()
            assert (min(line.get_xdata()), max(line.get_xdata())) == ends
            assert len(drawn.axes[0].containers) == (step > 0), "an error bar"


def check_kind(kind: FigureKind) -> None:
    """Every series is whole and drawn where its points are."""
    changes: dict[str, Any] = {"kind": kind, "columns": COLUMNS[:1]}
    if kind.over_training:
        changes |= {"x": "step", "y": "dev/loss", "measure": None}
    if kind.x_is_measured:
        changes |= {"x": "dev/loss", "x_measure": measure("dev_loss")}
    figure = kind.build(layout(**changes), searched(), look, Runs(trail, looked))
    (panel,) = figure.panels
    assert {series.label.partition(",")[0] for series in panel.series} >= {"ZO", "PeZO"}
    for series in panel.series:
        assert len(series.x) == len(series.y) == len(series.std) > 0
    with drawing(figure) as drawn:
        axes = drawn.axes[0]
        assert len(axes.lines) + len(axes.containers) + len(axes.collections) >= len(panel.series)
        named = {*axes.get_legend_handles_labels()[1], *(text.get_text() for text in axes.texts)}
        assert named == {series.label for series in panel.series}
        ends = axes.dataLim
        for series in panel.series:
            assert ends.x0 <= min(series.x) <= max(series.x) <= ends.x1, "its x are not on the x axis"
            assert ends.y0 <= min(series.y) <= max(series.y) <= ends.y1, "its y are not on the y axis"


@pytest.mark.parametrize(
    "name", [name for name in contract.names("figure_kind") if member("figure_kind", name).of_grid]
)
def test_every_kind_makes_whole_series_and_draws_each(name: str) -> None:
    check_kind(kind_of_grid(name, "here"))


def test_of_many_points_those_that_none_beats_in_both_measures_have_labels() -> None:
    values = {f"r{i}": (1.0 + i % 6, 0.9 - i / 100) for i in range(18)}  # (dev loss, accuracy)
    found = [record(block=name, dev=x, test=y) for name, (x, y) in values.items()]
    blocks = tuple((name, name) for name in values)
    spec = layout(kind="scatter", series=blocks, columns=COLUMNS[:1], x="dev/loss", x_measure=measure("dev_loss"))
    figure = points(spec, found, look)
    assert "Grey" in figure.notes[0]
    with drawing(figure) as drawn:
        assert [text.get_text() for text in drawn.axes[0].texts] == ["r0"], "it has the lowest loss and most accuracy"
        assert len(drawn.axes[0].lines) >= 18, "the others are points"
    few = points(replace(spec, series=blocks[:16]), found, look)
    assert not any("Grey" in note for note in few.notes)
    with drawing(few) as drawn:
        assert len(drawn.axes[0].texts) == 16


@dataclass(frozen=True)
class Turned(Line):
    """Draws y along x."""

    def draw(self, axes: Any, figure: Figure, panel: Panel) -> None:
        turned = [replace(one, x=one.y, y=one.x, std=(None,) * len(one.x)) for one in panel.series]
        super().draw(axes, figure, replace(panel, series=tuple(turned)))


@dataclass(frozen=True)
class FirstSeries(Line):
    """Forgets the series after the first."""

    def draw(self, axes: Any, figure: Figure, panel: Panel) -> None:
        super().draw(axes, figure, replace(panel, series=panel.series[:1]))


@pytest.mark.parametrize(("kind", "message"), [(Turned(), "not on the x axis"), (FirstSeries(), "PeZO|>= 2")])
def test_a_wrong_kind_of_figure_fails(kind: FigureKind, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_kind(kind)
