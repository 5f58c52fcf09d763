"""The pages' style and library: contrast of their colours, their checks, and what is shipped with them."""

from __future__ import annotations

import re
from itertools import product

import pytest

from tests.results.pages import Page
from zo_sweeps.tables.html import STYLE
from zo_sweeps_report.draw import COLORS
from zo_sweeps_report.report import chart_library

pytestmark = pytest.mark.unit

TOKENS = dict(re.findall(r"--([\w-]+): light-dark\((#[0-9a-f]{6}, #[0-9a-f]{6})\)", STYLE.read_text(encoding="utf-8")))
TEXTS, LINES = ("ink", "quiet", "link", "bad"), ("edge", *(name for name in TOKENS if name.startswith("series-")))


def color(name: str, theme: int) -> str:
    return TOKENS[name].split(", ")[theme]


def luminance(text: str) -> float:
    """Relative luminance of #rrggbb, as WCAG 2 defines it."""
    parts = [int(text[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    dark, light = sorted(map(luminance, (one, other)))
    return (light + 0.05) / (dark + 0.05)


def test_contrast_is_that_of_the_standard() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)  # the standard's known near miss


@pytest.mark.parametrize(("name", "theme", "ground"), [*product(TEXTS, (0, 1), ("paper", "wash"))])
def test_texts_are_legible_in_both_themes(name: str, theme: int, ground: str) -> None:
    assert contrast(color(name, theme), color(ground, theme)) >= 4.5


@pytest.mark.parametrize(("name", "theme"), [*product(LINES, (0, 1))])
def test_lines_and_borders_of_controls_are_visible_in_both_themes(name: str, theme: int) -> None:
    assert contrast(color(name, theme), color("paper", theme)) >= 3


def test_the_lines_of_drawn_figures_have_the_colours_of_the_light_theme() -> None:
    assert tuple(color(f"series-{i}", 0) for i in range(len(COLORS))) == COLORS
    style = STYLE.read_text(encoding="utf-8")
    assert {*re.findall(r"#[0-9a-f]{3,6}\b", style)} == {c for pair in TOKENS.values() for c in pair.split(", ")}


def test_the_chart_library_is_the_published_one_with_its_licence_and_no_way_to_run_text() -> None:
    script, style = chart_library()
    assert "MIT License" in script
    assert "Copyright" in script
    assert not re.search(r"\beval\(|new Function|XMLHttpRequest|fetch\(|import\(", script)
    assert "://" not in script + style


def test_the_checks_of_a_page_find_what_is_wrong() -> None:
    text = (
        '<html><head><title></title></head><body><h1>a</h1><h3>b</h3><select id="x"></select><svg></svg><p id="x"></p>'
        '<a href="#nowhere">c</a><div tabindex="0" style="top:0"></div><script src="https://x"></script></body></html>'
    )
    page = Page(text)
    for fault in ("no lang", "no title", "h3 after h1", "id 'x' twice", "no target #nowhere", "svg without a name"):
        assert fault in page.faults()
    assert sum("label" in fault or "inline" in fault or "tab key" in fault for fault in page.faults()) == 3
    assert page.loaded() == {"https://x"}
