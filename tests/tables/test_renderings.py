"""Markdown, LaTeX, CSV and plain text of one table that shows every state."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from zo_sweeps.tables import Table, build, to_csv, to_latex, to_markdown, to_text
from zo_sweeps.tables.html import to_html
from zo_sweeps.tables.published import load
from zo_sweeps.tables.records import Measure, Rule
from zo_sweeps.tables.renderings import latex_escape, published_to_text
from zo_sweeps.tables.text_cells import main_grid, notes, plain

from .examples import LR, PUBLISHED, Q, measure, record, shuffled, small, spec

GOLDEN = Path(__file__).parent / "golden"
FORMATS: dict[str, Callable[[Table], str]] = {
    "md": to_markdown,
    "tex": to_latex,
    "csv": to_csv,
    "txt": lambda table: to_text(table, width=100),
}


@pytest.fixture(scope="module")
def table() -> Table:
    layout, records = small()
    return build(layout, records, PUBLISHED)


@pytest.mark.parametrize("suffix", FORMATS)
def test_the_rendering_is_the_golden_one(table: Table, suffix: str) -> None:
    """After an intended change: UPDATE_GOLDEN=1 pytest tests/tables, and read the diff."""
    path, text = GOLDEN / f"small.{suffix}", FORMATS[suffix](table)
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("suffix", FORMATS)
def test_the_order_of_the_records_does_not_reach_the_page(table: Table, suffix: str) -> None:
    layout, records = small()
    assert FORMATS[suffix](build(layout, shuffled(records, 3), PUBLISHED)) == FORMATS[suffix](table)


@pytest.mark.parametrize("suffix", ["md", "tex", "txt"])
def test_every_note_and_the_selected_hyperparameters_are_printed(table: Table, suffix: str) -> None:
    text = " ".join(FORMATS[suffix](table).split())
    for part in ("scale=smoke: 20 steps, not comparable", "the last line", "Selected hyper-parameters", "5e-7"):
        assert part in text
    assert "P-RGE (arXiv:2409.15520), Table 2" in text


def test_markdown_is_aligned_in_its_raw_text(table: Table) -> None:
    lines = [line for line in to_markdown(table).splitlines() if line.startswith("|")]
    first = [line for line in lines if len(line) == len(lines[0])]
    assert len(first) == 2 + len(table.rows)
    assert all([i for i, c in enumerate(line) if c == "|"][-1] == len(lines[0]) - 1 for line in first)


def test_markdown_escapes_what_would_end_a_cell_or_start_markup() -> None:
    text = to_markdown(build(spec(rows=(("zo", "a|b *c* <d> `e`"),)), []))
    assert r"a\|b \*c\* \<d> \`e\`" in text


def test_csv_has_one_line_a_cell_with_numbers_that_are_those_of_the_cell(table: Table) -> None:
    rows = list(csv.DictReader(io.StringIO(to_csv(table))))
    assert len(rows) == len(table.cells)
    for row in rows:
        cell = table.cells[row["block"], row["column_key"]]
        for name in ("mean", "std", "published", "difference"):
            assert (float(row[name]) if row[name] else None) == getattr(cell, name)
        assert (int(row["n"]), row["state"]) == (cell.n, cell.state.value)
        assert (json.loads(row["selected"]) if row["selected"] else {}) == cell.selected
        assert tuple(row["trial_ids"].split()) == cell.trial_ids


def test_several_tables_are_one_csv_with_a_line_per_measure() -> None:
    """minutes (seconds per step): two measures, so two lines; then the cells of the next table, below one header."""
    layout, records = small()
    runtime = replace(layout, name="runtime", measure=measure("runtime"), published="", published_rows={})
    times, scores = build(runtime, records), build(layout, records, PUBLISHED)
    text = to_csv(times, scores)
    assert text.count("table,row,") == 1
    rows = list(csv.DictReader(io.StringIO(text)))
    assert len(rows) == 2 * len(times.cells) + len(scores.cells)
    assert len({(row["table"], row["block"], row["column_key"], row["measure"]) for row in rows}) == len(rows)
    beside = times.spec.measure.beside
    assert beside
    for row in (row for row in rows if row["measure"] == beside.metric):
        cell = times.cells[row["block"], row["column_key"]]
        assert (float(row["mean"]) if row["mean"] else None, row["unit"]) == (cell.beside, beside.unit)


def times(*seconds: float, name: str = "runtime", title: str = "A sweep: time per step") -> Table:
    """A table of step times whose rows select lr 0.1."""
    layout = spec(name=name, title=title, measure=measure("step_time"), rows=(("zo", "ZO"), ("fo", "FO")))
    records = [
        replace(record({LR: lr}, seed, block=block, dev=lr), metrics={"dev/loss": lr, "seconds_per_step": value})
        for block, value in zip(("zo", "fo"), seconds, strict=True)
        for lr in (0.1, 0.2)
        for seed in (0, 1)
    ]
    return build(layout, records)


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        (Rule(), "by the lowest mean dev/loss over seeds."),
        (Rule("dev/metric", "max", 2), "by the highest mean dev/metric over the first 2 seeds."),
        (Rule(seeds=1), "by the lowest dev/loss of the first seed; the selected one alone runs the others."),
    ],
)
def test_a_table_says_at_which_seeds_settings_were_compared(rule: Rule, said: str) -> None:
    layout, records = small()
    assert said in " ".join(to_text(build(replace(layout, rule=rule), records), width=100).split())


def test_what_tables_share_is_printed_once_below_the_last() -> None:
    layout, records = small()
    accuracy = build(replace(layout, title="A sweep: accuracy"), records, PUBLISHED)
    tables = [accuracy, times(0.1, 0.2), times(1.0, 2.0, name="cost", title="A sweep: cost as time per step")]
    for text in (to_text(*tables, width=100), to_markdown(*tables)):
        flat = " ".join(text.split())
        assert flat.count("A sweep") == 1
        assert flat.count("Selected hyper-parameters") == 1
        assert flat.count("Settings are selected by the lowest mean dev/loss over seeds.") == 1
        assert flat.count("Median wall-clock of a training step.") == 1, "the two tables have the same measure"
        assert flat.count("Mean ± sample standard deviation over n=2 seeds.") == 1
        notes = flat.index("best so far: not every trial")
        assert (
            max(
                flat.index(part)
                for part in ("Accuracy (%)", "Time per step (ms/step)", "Cost as time per step (s/step)")
            )
            < notes
        )
    lines = to_text(*tables, width=100).splitlines()
    assert sum(line.startswith("[") for line in lines) == len(accuracy.footnotes), "the others have none of their own"


def test_tables_that_select_otherwise_name_their_settings_apart() -> None:
    one, other = times(0.1, 0.2), times(0.3, 0.4, name="cost", title="A sweep: cost as time per step")
    changed = {key: replace(cell, selected={LR: 0.2}) for key, cell in other.cells.items()}
    text = to_text(one, replace(other, cells=changed))
    assert "Selected hyper-parameters: Time per step: ZO: lr = 0.1" in text
    assert "Selected hyper-parameters: Cost as time per step: ZO: lr = 0.2" in text


def test_rows_and_columns_with_one_label_each_have_their_own_selected_setting() -> None:
    rows, columns = (("zo", "Ours"), ("fo", "Ours")), (("sst2", "A task"), ("rte", "A task"))
    rates = {(block, column): i for i, (block, column) in enumerate(product(dict(rows), dict(columns)))}
    records = [record({LR: lr}, block=block, column=column) for (block, column), lr in rates.items()]
    table = build(spec(rows=rows, columns=columns, title="A sweep: accuracy"), records)
    text = to_text(table, replace(table, spec=replace(table.spec, title="A sweep: again")))
    lines = [line.split() for line in text.splitlines() if line.startswith("Ours: lr")]
    assert lines == [["Ours:", "lr", "0", "1"], ["Ours:", "lr", "2", "3"]]


def test_footnotes_of_several_tables_are_numbered_through() -> None:
    table = times(0.1, 0.2)
    cells = {key: replace(cell, notes=()) for key, cell in table.cells.items()}
    marked = [replace(table, cells=cells, footnotes=(note,), row_notes={"zo": (note,), "fo": ()}) for note in "pqp"]
    text = to_text(*marked)
    assert [line for line in text.splitlines() if line.startswith("[")] == ["[a] p", "[b] q"]
    assert [line.split()[1] for line in text.splitlines() if line.startswith("ZO ")] == ["[a]", "[b]", "[a]"]


def test_a_footnote_of_every_value_is_a_note_without_marks() -> None:
    table = times(0.1, 0.2)
    both = ("of all", "of one")
    rows = {key: replace(cell, notes=both if key[0] == "zo" else both[:1]) for key, cell in table.cells.items()}
    marked = replace(table, cells=rows, footnotes=both)
    text = to_text(marked, marked)
    assert text.count("Every value: of all.") == 1
    assert "[a] of one" in text
    assert "[b]" not in text
    assert text.count("100.0 ± 0.0 [a]") == 2, "the marks are numbered again"


def test_numbers_are_in_a_unit_that_fits_them_except_beside_published_ones_and_in_csv() -> None:
    table = times(0.0123, 0.0456)
    text = to_text(table)
    assert "(ms/step)" in text
    assert "12.3 ± 0.0" in text
    assert ",0.0123," in to_csv(table)
    assert ",s/step," in to_csv(table)
    assert "(s/step)" in to_text(times(1.5, 2.5)), "a unit with values from 1 to 1000 stays"
    published = {key: replace(cell, published=0.01) for key, cell in table.cells.items()}
    assert "(s/step)" in to_text(replace(table, cells=published))


def test_a_value_without_a_spread_is_of_one_run_unless_it_is_over_columns_or_rows() -> None:
    columns = (("sst2", "SST-2"), ("rte", "RTE"))
    rows = (("z", "Zero-shot"), ("zo", "ZO"))
    once = [record(block="z", column=key, also=(1, 2)) for key, _ in columns]
    thrice = [record(column=key, seed=seed, test=0.8 + 0.01 * seed) for key, _ in columns for seed in range(3)]
    unless = "A value without ± is of one run, unless it is an average, a rank, a ratio or a difference."
    for average, records, line in (
        (False, once, "Every value is of one run."),
        (False, [*once, *thrice], "A value without ± is of one run."),
        (True, [*once, *thrice], unless),
        (True, once, unless),
    ):
        assert line in notes(build(spec(rows=rows, columns=columns, average=average), records))


def test_a_number_that_rounds_to_zero_has_no_sign() -> None:
    table = build(spec(measure=Measure(metric="test/metric", unit="", digits=3)), [record(test=-0.0004)])
    assert "0.000" in to_text(table).split()


def test_marks_are_in_the_order_of_the_notes() -> None:
    table = build(spec(), [record()])
    cell = replace(table.cells["zo", "sst2"], notes=("two", "one"))
    table = replace(table, cells={("zo", "sst2"): cell}, footnotes=("one", "two"))
    assert main_grid(table).rows[0][1].marks == ("a", "b")


def test_latex_names_its_packages_in_its_first_line(table: Table) -> None:
    text = to_latex(table, table)
    assert text.startswith("% in the preamble: \\usepackage{booktabs,graphicx}\n\\begin{table}")
    assert (text.count("% in the preamble"), text.count("\\begin{table}")) == (1, 2)


@pytest.mark.parametrize(("kind", "like"), [("population", "our second one"), ("sample", "our first one")])
def test_every_format_prints_the_published_deviation_and_ours_of_both_kinds(kind: str, like: str) -> None:
    """Of 91, 92, 94: s = 1.53 with ddof=1, 1.25 with ddof=0."""
    published = replace(PUBLISHED, std={"ZO-Full (q=1)": {"SST-2": 0.7}}, std_kind=kind, std_note="over 5 seeds")
    layout = spec(rows=(("full", "ZO-Full"),), published_rows={"full": "ZO-Full (q=1)"})
    records = [record({}, seed, block="full", test=test) for seed, test in enumerate((0.91, 0.92, 0.94))]
    table = build(layout, records, published)
    for text in (to_markdown(table), to_text(table), to_latex(table).replace(r"$\pm$", "±"), to_html(table)):
        assert "92.3 ± 1.5 / 1.2" in text
        assert "pub. 94.7 ± 0.7," in text
        assert "Mean ± sample / population standard deviation over n=3 seeds" in text
        sentence = f"There, ± is the {kind} standard deviation (over 5 seeds): compare it with {like}."
        assert sentence in " ".join(text.split())
    row = next(csv.DictReader(io.StringIO(to_csv(table))))
    assert [float(row[name]) for name in ("std", "std_population")] == pytest.approx([1.5275252, 1.2472191])
    assert (row["published_std"], row["published_std_kind"]) == ("0.7", kind)


def test_a_deviation_of_many_seeds_is_printed_once() -> None:
    """From ten seeds on the two kinds differ by 5 % at most."""
    published = replace(PUBLISHED, std={"ZO-Full (q=1)": {"SST-2": 0.7}}, std_kind="not stated")
    layout = spec(rows=(("full", "ZO-Full"),), published_rows={"full": "ZO-Full (q=1)"})
    records = [record({}, seed, block="full", test=0.9 + seed % 2 / 100) for seed in range(10)]
    text = to_markdown(build(layout, records, published))
    assert "90.5 ± 0.5 (pub. 94.7 ± 0.7, −4.2)" in text
    assert "There, ± is a standard deviation.\n" in text


def test_latex_escapes_every_special_character() -> None:
    assert latex_escape("50% a_b & #1 $x ~ ^ {z} \\") == (
        r"50\% a\_b \& \#1 \$x \textasciitilde{} \textasciicircum{} \{z\} \textbackslash{}"
    )
    assert latex_escape("91.2 ± 0.4, −1.0 – ↑") == r"91.2 $\pm$ 0.4, $-$1.0 -- $\uparrow$"


def begun() -> Table:
    """A table with a row and a note that begin as an option of LaTeX's line break does."""
    rows = (("zo", "*ours"), ("fo", "[1] LOZO"))
    return build(spec(rows=rows, footnotes=("* a row of ours", "[1] their code")), [record(), record(block="fo")])


def test_latex_takes_no_text_at_the_begin_of_a_line_for_an_option_of_the_line_break() -> None:
    lines = to_latex(begun()).splitlines()
    assert {"{}*ours", "{}[1] LOZO"} == {line.partition(" &")[0] for line in lines if line.endswith("90.0 \\\\")}
    assert not [line for line in lines if line.startswith(("*", "["))]
    assert "{}* a row of ours \\\\\n{}[1] their code" in "\n".join(lines)


def document(*tables: str) -> str:
    """A landscape page of LaTeX tables."""
    packages = r"\usepackage[a4paper,landscape,margin=15mm]{geometry}\usepackage{booktabs}\usepackage{graphicx}"
    return "\n".join([r"\documentclass[10pt]{article}", packages, r"\begin{document}", *tables, r"\end{document}", ""])


@pytest.mark.multiprocess
@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="no pdflatex here (apt: texlive-latex-recommended)")
def test_the_latex_document_compiles_and_fits_the_page(table: Table, tmp_path: Path) -> None:
    layout, records = small()
    runtime = replace(layout, measure=measure("runtime"), published="", published_rows={}, average=True)
    tables = map(to_latex, (table, build(runtime, records), begun()))
    (tmp_path / "tables.tex").write_text(document(*tables), encoding="utf-8")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "tables.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, errors="replace", timeout=300)
    assert done.returncode == 0, done.stdout[-2000:]
    assert (tmp_path / "tables.pdf").stat().st_size > 1000
    assert "Overfull" not in done.stdout


@pytest.mark.parametrize("width", [60, 80, 100, 120, 150, 400])
def test_plain_text_keeps_to_the_width_of_the_terminal(table: Table, width: int) -> None:
    text = to_text(table, width=width)
    assert max(map(len, text.splitlines())) <= width
    assert text.count("92.3 ± 0.3") == 1


def test_plain_text_of_a_long_but_narrow_table_is_transposed() -> None:
    columns = tuple((f"task{i}", f"task-{i}") for i in range(30))
    records = [record({}, column=key, test=i / 100) for i, (key, _) in enumerate(columns)]
    lines = to_text(build(spec(columns=columns), records), width=80).splitlines()
    assert [line.split() for line in lines if line.startswith("task-7")] == [["task-7", "7.0"]]


def test_a_table_without_a_search_prints_no_second_table() -> None:
    assert "Selected" not in to_markdown(build(spec(), [record({})]))


def test_two_axes_that_end_alike_are_printed_in_full() -> None:
    records = [record({"update.lr": 1e-4, "head.lr": 1e-3, Q: 2})]
    assert "update.lr · head.lr · q" in to_text(build(spec(), records), width=100)


def test_hyperparameters_are_printed_as_people_write_them() -> None:
    records = [record({LR: lr, Q: 1, "evaluation.mode": "both"}, dev=lr) for lr in (1e-7, 5e-7)]
    assert "1e-7↓ · 1 · both" in to_text(build(spec(), records), width=100)
    assert [plain(value) for value in (20240102, 1_000_001, 0.00015, 1.2345678e-7, True)] == [
        *("20240102", "1000001", "0.00015", "1.2345678e-7", "True")
    ]


@pytest.mark.multiprocess
def test_the_tables_import_in_a_moment_and_without_heavy_packages() -> None:
    code = (
        "import sys, zo_sweeps.tables;"
        "heavy = {'torch', 'ray', 'mlflow', 'transformers', 'pandas', 'numpy', 'yaml', 'rich'} & set(sys.modules);"
        "print(*sorted(heavy), end='')"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == ""


def test_a_papers_own_table_is_printed_within_the_width_with_all_its_numbers() -> None:
    for reference in ("sensitive/table1a", "pezo/table6", "prge/table8"):
        table = load(reference)
        text = published_to_text(table, 80)
        if reference != "prge/table8":  # its lists of values are wider than a terminal
            assert max(map(len, text.splitlines())) <= 80
        for row, values in table.rows.items():
            assert row in text
            assert all(str(value) in text for value in values.values() if value is not None)
    assert "94.7 ± 0.4" in published_to_text(load("sensitive/table1a"))
