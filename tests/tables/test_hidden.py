"""Labels of others: no spreadsheet runs one, and no character of one is hidden, whatever prints it."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from typing import Any

import pytest

from tests.tables.examples import record, spec
from zo_sweeps.cli.text import console, listing, say
from zo_sweeps.core.units import visible
from zo_sweeps.tables import Measure, Table, build, to_csv, to_html, to_latex, to_markdown, to_text

TURNED, ESCAPE = "ZO \u202e99.9\u202c", "a note\x1b[2K of \u200bothers"
FORMULAS = ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\n=1", "\r=1"]
HIDDEN = "\u202e\u202c\u200b\x1b\r"


def hostile() -> Table:
    rows = (("zo", TURNED), *((f"f{i}", formula) for i, formula in enumerate(FORMULAS)))
    records = [record({}, block=block, test=0.25) for block, _ in rows]
    return build(spec(rows=rows, columns=(("sst2", "=SST-2"),), title=TURNED, caveats=(ESCAPE,)), records)


RENDERERS: dict[str, Callable[[Table], str]] = {
    "text": to_text,
    "md": to_markdown,
    "latex": to_latex,
    "csv": to_csv,
    "html": to_html,
}


@pytest.mark.parametrize("name", RENDERERS)
def test_hidden_characters_are_shown(name: str) -> None:
    text = RENDERERS[name](hostile())
    assert not {*text} & {*HIDDEN}
    brackets = {"html": "&lt;{}&gt;", "md": "\\<{}>", "latex": r"\textless{{}}{}\textgreater{{}}"}.get(name, "<{}>")
    for code in ("U+202E", "U+202C", "U+200B", "U+001B"):
        assert brackets.format(code) in text


def test_no_text_of_a_csv_is_a_formula_and_its_numbers_are_numbers() -> None:
    lines = list(csv.DictReader(io.StringIO(to_csv(hostile()))))
    shown = ["'=1+1", "'+1", "'-1", "'@SUM(A1)", "'\t=1", "'\n=1", "'<U+000D>=1"]
    assert [line["row"] for line in lines] == [visible(TURNED), *shown]
    assert {line["column"] for line in lines} == {"'=SST-2"}
    assert {line["mean"] for line in lines} == {"25.0"}
    below = build(spec(measure=Measure("test/metric", "nats")), [record({}, test=-0.5)])
    (line,) = csv.DictReader(io.StringIO(to_csv(below)))
    assert line["mean"] == "-0.5"


def test_a_terminal_is_told_what_a_text_has(capsys: Any) -> None:
    say(console(), ESCAPE)
    listing(console(), ["row"], [[TURNED], ["plain"]])
    shown = capsys.readouterr().out
    assert not {*shown} & {*HIDDEN}
    assert "a note<U+001B>[2K of <U+200B>others" in shown
    assert "ZO <U+202E>99.9<U+202C>" in shown


def test_what_people_write_stays_as_it_is() -> None:
    for text in ("91.2 ± 0.4 −1.0 ε·√n …", "naïve 東京 👩\u200d🔬 می\u200cخواهم", "two\nlines\tand a tab"):
        assert visible(text) == text
