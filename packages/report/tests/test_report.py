"""The page on a sweep, its figures and its comparisons, from ledgers and journals on disk."""

from __future__ import annotations

import base64
import html
import json
import os
import re
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TextIO
from urllib.parse import unquote

import pytest

from tests.cli.common import in_process
from tests.results.common import GRID, composed, fill, outcome
from tests.results.pages import Page
from tests.tables.test_html import Reader
from zo_sweeps.cli.main import main
from zo_sweeps.config.composer import Composer
from zo_sweeps.config.schema import GridTable
from zo_sweeps.core.errors import UserError
from zo_sweeps.core.trial import TrialState
from zo_sweeps.methods.trial_config import TrialConfig
from zo_sweeps.plan.build import Plan
from zo_sweeps.results import tables as readout
from zo_sweeps.results.facts import status_facts
from zo_sweeps.schedule.ledger import Ledger, read_standing
from zo_sweeps.schedule.snapshot import LiveRun
from zo_sweeps.tables import to_html
from zo_sweeps.tables.text_cells import notes
from zo_sweeps_report import commands, report
from zo_sweeps_report import sweep_figures as charts
from zo_sweeps_report.draw import drawing
from zo_sweeps_report.figure_kinds.search import BEYOND, FAILED, LINE, RUNS, SELECTED
from zo_sweeps_report.report import curve_data
from zo_sweeps_report.trial_pages import TrialPages

COMMAND = "python -m zo_sweeps +grid=tiny state_dir=state"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("report")


@pytest.fixture(scope="module")
def swept(folder: Path) -> tuple[Composer, Plan]:
    composer, plan = composed(folder)
    fill(plan, folder)
    return composer, plan


@pytest.fixture(scope="module")
def page(folder: Path, swept: tuple[Composer, Plan]) -> str:
    return report.html(*(swept[1], swept[0]), read_standing(folder / "state"), COMMAND)


def test_the_report_holds_every_table_and_figure(page: str, folder: Path, swept: tuple[Composer, Plan]) -> None:
    read = Reader(page)
    for table in readout.tables(swept[1], swept[0], read_standing(folder / "state")):
        assert any(
            found[1:] and [row[0] for row in found[1:]] == [label for _, label in table.rows] for found in read.tables
        )
        title = table.spec.title.removeprefix(f"{swept[1].title}: ")
        assert title[:1].upper() + title[1:] in read.text
    assert [given.get("role") for tag, given in read.attributes if tag == "svg"].count("img") == len(
        GRID["figures"]
    ) + 3


def test_the_report_needs_nothing_but_itself_and_can_be_read_by_everyone(page: str) -> None:
    checked = Page(page)
    assert "://" not in page
    assert checked.loaded() == set()
    assert checked.policy_faults() == []
    assert checked.faults() == []


def test_a_cell_links_to_the_page_of_its_trial_and_the_page_to_the_report_its_seeds_and_its_commands(
    folder: Path, swept: tuple[Composer, Plan]
) -> None:
    composer, plan = swept
    standing = read_standing(folder / "state")
    read = Page(report.html(plan, composer, standing, COMMAND, trials="t/"))
    assert [given["id"] for given, _ in read.all("tr") if "id" in given] == [], "the page has no line of a trial"
    cells = [cell for table in readout.tables(plan, composer, standing) for cell in table.cells.values()]
    linked = [given["href"] for given, _ in read.all("a") if given["href"].startswith("t/")]
    bad = [i for i in plan.every if standing.state(i) in report.BAD]
    first = [cell.trial_ids[0] for cell in cells if cell.mean is not None and cell.trial_ids]  # a rank has none
    assert {*linked} == {"t/index.html", *(f"t/{trial_id}.html" for trial_id in (*first, *bad))}
    pages = TrialPages(plan, standing, COMMAND, "../r.html", "assets")
    assert pages.ran == [*plan.every]
    rows = Reader(pages.index()).tables[0][1:]
    assert [(row[0], row[-1]) for row in rows] == [(trial.label, i) for i, trial in plan.every.items()]
    one = next(i for i, t in plan.every.items() if t.label == "ZO · Movie remarks · q 4 · lr 0.1 · seed 0")
    for text in (pages.index(), pages.page(one), pages.page(bad[0])):
        checked = Page(text)
        assert (checked.faults(), checked.policy_faults()) == ([], [])
        assert checked.loaded() == {"assets/style.css", "assets/page.js"}
        assert "../r.html" in [given["href"] for given, _ in checked.all("a")]
    text = pages.page(one)
    others = {given["href"].removesuffix(".html") for given, _ in Page(text).all("a")}
    assert {plan.every[i].label[-1] for i in others & {*plan.every}} == {"1", "2"}, "the other seeds"
    scores, settings, *_ = Reader(text).tables
    assert ["estimator.q", "4"] in settings
    assert ["dev", "10 (selected)", "", "0.5000", "80.0"] in scores
    assert f"{COMMAND} --rerun {one}" in Reader(text).text
    (_, loss, *_), config = Page(text).all("figcaption"), json.loads(Page(text).all("pre")[-1][1])
    assert loss[1] == "Dev accuracy (%): 80 to 80; to step 20"
    assert config == plan.every[one].config.to_json()
    failed = Reader(pages.page(bad[1])).text
    assert "went wrong with <seed> 2" in failed
    assert "A processor (cpu)" in failed


def test_the_pages_of_trials_that_have_not_changed_stay(tmp_path: Path) -> None:
    _, plan = composed(tmp_path)
    fill(plan, tmp_path)
    state, there = tmp_path / "state", tmp_path / "pages"

    def write(command: str = COMMAND) -> list[str]:
        """Mark every page, write, and return the ids of the trials whose page is new."""
        for path in there.glob("*.html"):
            last = path.stat().st_mtime
            path.write_text("old")
            os.utime(path, (last, last))
        TrialPages(plan, read_standing(state), command, "r.html", ".").write(there)
        assert (there / "index.html").read_text() != "old"
        return [i for i in plan.every if (there / f"{i}.html").read_text() != "old"]

    assert write() == [*plan.every]
    assert write() == []
    first, *_ = plan.every
    with Ledger(state) as ledger:
        ledger.write(first, TrialState.SUCCEEDED, attempt=2, outcome=outcome(plan, first))
    assert write() == [first]
    assert write("another command") == [*plan.every]


def test_a_report_of_a_sweep_that_runs_is_loaded_again_and_says_what_runs(
    folder: Path, swept: tuple[Composer, Plan]
) -> None:
    composer, plan = swept
    label, standing = "ZO · <now>", read_standing(folder / "state")
    now = LiveRun("a" * 16, label, "host-b", 1, step=7, steps=20, seconds=90.0, silent=0.0, stalled=False)
    live = replace(status_facts(plan), running=[now], seconds_left=100.0)
    text = report.html(plan, composer, standing, COMMAND, live=live)
    assert Page(text).faults() == []
    again = [given["content"] for given, _ in Page(text).all("meta") if given.get("http-equiv") == "refresh"]
    assert again == [str(report.REFRESH)]
    assert ["7/20", "2 min", "host-b", "ZO · <now>"] in [row for table in Reader(text).tables for row in table]
    assert "refresh" not in report.html(plan, composer, standing, COMMAND)


@pytest.mark.long
def test_watching_writes_until_the_sweep_has_ended(
    folder: Path,
    swept: tuple[Composer, Plan],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    drivers, pauses, readers = ["pid 1", "pid 1", ""], list[float](), list[TextIO]()

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        readers.append((tmp_path / "a b.html").open())

    monkeypatch.setattr(commands, "driver_of", lambda _: drivers.pop(0))
    monkeypatch.setattr(commands, "time", SimpleNamespace(monotonic=time.monotonic, sleep=sleep))
    given = ["+grid=tiny", f"state_dir={folder / 'state'}", "--config-dir", str(folder / "conf")]
    in_process(capsys, "report", *given, "--watch", "--output", str(tmp_path / "a b.html"))
    assert (drivers, len(pauses)) == ([], 2)
    assert min(pauses) >= report.REFRESH
    text = (tmp_path / "a b.html").read_text()
    assert "refresh" not in text
    for reader in readers:  # of a page that was replaced while a browser loaded it
        with reader:
            assert "refresh" in reader.read()
    linked = {given["href"] for given, _ in Page(text).all("a") if given["href"].startswith("a%20b_trials/")}
    assert len(linked) > 3
    assert all((tmp_path / unquote(name)).is_file() for name in linked)


def test_tables_and_cards_say_which_way_is_good(page: str, folder: Path, swept: tuple[Composer, Plan]) -> None:
    """The table of accuracies has a rank, of which less is better."""
    read = Page(page)
    headings = [text for _, text in read.all("h3")]
    assert "Time per step (ms/step) ↓" in headings
    columns = [text.strip() for _, text in read.all("th")]
    assert {"Movie remarks ↑", "Rank ↓"} <= {*columns}
    cards = [text for _, text in read.all("dt")]
    assert any(text.endswith("on Movie remarks ↑") for text in cards)
    (table, *_) = readout.tables(swept[1], swept[0], read_standing(folder / "state"))
    assert "Movie remarks ↑" not in to_html(table), "what `table` prints is as it was"


def test_every_figure_can_be_saved_from_the_page(page: str) -> None:
    links = [(given["download"], given["href"]) for given, _ in Page(page).all("a") if "download" in given]
    names = [
        f"tiny_{name}"
        for name in ("search_update_lr", "search_estimator_q", "search_update_lr_estimator_q", "by_q", "curve")
    ]
    assert [name for name, _ in links] == [f"{name}.{form}" for name in names for form in ("png", "svg", "pdf")]
    begins = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}
    for name, address in links:
        head, _, content = address.partition(";base64,")
        assert head in ("data:image/png", "data:image/svg+xml", "data:application/pdf")
        assert base64.b64decode(content).startswith(begins[name.rpartition(".")[2]])


def test_footnotes_notes_and_hyper_parameters_are_printed_once(page: str, swept: tuple[Composer, Plan]) -> None:
    text = Reader(page).text
    tables = readout.tables(swept[1], swept[0], read_standing(swept[1].config.folder))
    for note in {note for table in tables for note in (*table.footnotes, *notes(table))}:
        assert text.count(note) == 1
    assert text.count("Selected hyper-parameters") == 1


def test_data_in_the_page_stays_data(tmp_path: Path) -> None:
    """A label that would end the script, begin a tag or close an attribute, in tables, figures and the chart's data."""
    hostile = "</script><script>alert(1)</script>\"'><img src=x onerror=alert(1)> <!--"
    grid = {**GRID, "title": hostile, "blocks": {"zo": {**GRID["blocks"]["zo"], "label": hostile}}, "figures": {}}
    grid["tables"] = {"accuracy": {"layout": "accuracy", "rows": {"zo": ""}}}
    composer, plan = composed(tmp_path, grid)
    fill(plan, tmp_path)
    text = report.html(plan, composer, read_standing(tmp_path / "state"), hostile)
    checked = Page(text)
    assert (checked.loaded(), checked.faults(), checked.policy_faults()) == (set(), [], [])
    assert len(checked.all("img")) == 0
    (data,) = [content for given, content in checked.all("script") if given.get("id") == "curve-data"]
    assert json.loads(data)["rows"][0]["label"] == hostile


def test_the_chart_has_every_run_of_the_selected_settings_with_seed_id_and_forwards(
    folder: Path, swept: tuple[Composer, Plan]
) -> None:
    _, plan = swept
    data = curve_data(plan, read_standing(folder / "state"))
    (row,) = data["rows"]  # zero-shot has no curve
    (part,) = row["parts"]
    assert part["setting"] == "q 4, lr 0.01"
    assert [run["seed"] for run in part["runs"]] == [0, 1, 2]
    for run in part["runs"]:
        config = TrialConfig.of(plan.every[run["id"]].config)
        assert run["forwards"] == 2 * config.estimator.budget * config.train.batch
        assert run["curves"]["dev/loss"] == [[10, 20], [5.0, 10.0], [0.5, 0.5]]
        assert run["curves"]["dev/metric"][2] == [80.0, 80.0]
    assert [one["key"] for one in data["y"]] == ["dev/loss", "dev/metric", "train/loss"]


def test_the_report_says_what_failed_where_it_ran_and_how_to_run_it_again(page: str) -> None:
    text = Reader(page).text
    for part in (
        "went wrong with <seed> 1",
        "went wrong with <seed> 2",
        "host-a",
        "A processor (cpu)",
        "torch 2.13.0",
        "Memory: resident size.",
        COMMAND,
        "A & B <compared>",
        "Selected hyper-parameters",
        "q · lr",
    ):
        assert part in text, part
    assert html.escape(COMMAND) in page
    assert "on host-a" in text


def test_rows_are_paired_over_the_seeds_that_zero_shot_serves_too(page: str) -> None:
    (forest,) = [table for table in Reader(page).tables if table[0][0].startswith("row − ")]
    assert (forest[0][0], forest[1][0], forest[1][4]) == ("row − Zero-shot", "ZO", "3")


def test_the_reference_is_the_row_that_most_are_compared_with_or_mezo(swept: tuple[Composer, Plan]) -> None:
    def reference(**changes: object) -> str:
        grid = replace(plan.grid, **changes)
        return report.reference_row(replace(plan, config=replace(plan.config, grid=grid)))

    _, plan = swept
    zo = plan.grid.blocks["zo"]
    assert reference() == ""
    mezo = {**plan.grid.blocks, "first": replace(zo, fixed={"method": "mezo"})}
    assert reference(blocks=mezo) == "first"
    compared = GridTable(rows={"zo": ""}, over={"zo": "zero_shot"})
    assert reference(blocks=mezo, tables={"difference": compared}) == "zero_shot"


def test_a_report_of_nothing_is_a_page_too(tmp_path: Path) -> None:
    composer, plan = composed(tmp_path)
    text = Reader(report.html(plan, composer, read_standing(tmp_path / "state"), COMMAND)).text
    assert "Nothing has been run." in text
    assert "No trial failed" in text


def test_the_figure_of_a_grid_selects_at_each_x_and_knows_the_published_point(
    folder: Path, swept: tuple[Composer, Plan]
) -> None:
    composer, plan = swept
    by_q, curve = charts.figures(plan, composer, read_standing(folder / "state"))
    ours, published = by_q.panels[0].series
    assert ours.x == (1.0, 2.0, 4.0)
    assert ours.y == pytest.approx([71.1, 72.1, 74.1])  # at q=4 the better rate has a seed that diverged
    assert (published.x, published.y) == ((2.0,), (90.0,))
    assert [series.x for series in curve.panels[0].series] == [(10.0, 20.0)]


def test_a_searched_axis_has_a_figure_with_every_run_the_selected_setting_and_those_without_a_value(
    folder: Path, swept: tuple[Composer, Plan]
) -> None:
    """`fill` gives a dev loss of 1 / (q + 1) - lr; at q=4 and lr=0.1 seed 1 diverged and seed 2 failed."""
    _, plan = swept
    figures = charts.searches(plan, read_standing(folder / "state"))
    assert [*figures] == ["search_update_lr", "search_estimator_q", "search_update_lr_estimator_q"]
    together = [(s.y, s.mark) for s in figures.pop("search_update_lr_estimator_q").panels[0].series]
    means = [(lr, q, pytest.approx(1 / (q + 1) - lr)) for lr in (0.01, 0.1) for q in (1, 2, 4) if (lr, q) != (0.1, 4)]
    assert sorted(together) == [(y, SELECTED if y[:2] == (0.01, 4) else RUNS) for y in means], "the best but one"
    by_rate, by_q = ({s.mark: s for s in figure.panels[0].series} for figure in figures.values())
    assert by_rate[LINE].x == (0.01, 0.1)
    assert by_rate[LINE].y == pytest.approx((1 / 5 - 0.01, 1 / 3 - 0.1)), "at 0.1, q=4 is no candidate"
    assert by_q[LINE].y == pytest.approx((1 / 2 - 0.1, 1 / 3 - 0.1, 1 / 5 - 0.01))
    assert (by_rate[LINE].n, by_rate[LINE].std) == (3, pytest.approx((0.0, 0.0)))
    assert (by_rate[SELECTED].x, by_rate[SELECTED].y) == ((0.01,), pytest.approx((0.19,)))
    assert by_q[SELECTED].x == (4.0,)
    runs = sorted((lr, 1 / (q + 1) - lr) for lr in (0.01, 0.1) for q in (1, 2, 4) for _ in range(3))
    runs.remove((0.1, 1 / 5 - 0.1)), runs.remove((0.1, 1 / 5 - 0.1))
    assert [*zip(by_rate[RUNS].x, by_rate[RUNS].y, strict=True)] == [(x, pytest.approx(y)) for x, y in runs]
    assert (by_rate[FAILED].x, by_q[FAILED].x) == ((0.1,), (4.0,))
    figure = figures["search_update_lr"]
    assert "×: no value. ZO (0.1: 1 diverged, 0.1: 1 failed)" in figure.notes
    assert (figure.title, figure.log_x, figure.y_label) == ("Dev loss of ZO by learning rate", True, "Dev loss (nats)")
    with drawing(figure) as drawn:
        (axes,) = drawn.axes
        assert axes.get_xscale() == "log"
        assert [label.get_text() for label in axes.get_xticklabels()] == ["0.01", "0.1"]
        low, high = axes.get_ylim()
        assert low < min(by_rate[RUNS].y) < max(by_rate[RUNS].y) < high


def test_the_setting_that_the_first_seed_selects_and_a_later_one_fails_with_is_marked_in_no_figure(
    tmp_path: Path,
) -> None:
    _, plan = composed(tmp_path, {**GRID, "select": {**GRID.get("select", {}), "seeds": 1}})
    fill(plan, tmp_path)
    found = charts.searches(plan, read_standing(tmp_path / "state"))
    marked = [s.y[:2] for s in found["search_update_lr_estimator_q"].panels[0].series if s.mark == SELECTED]
    by_rate = [s.x for s in found["search_update_lr"].panels[0].series if s.mark == SELECTED]
    assert (marked, by_rate) == ([(0.01, 4.0)], [(0.01,)]), "not 0.1, the best of seed 0"


def test_a_run_far_from_the_others_is_drawn_at_the_edge_and_the_rule_says_which_value_is_good(tmp_path: Path) -> None:
    grid = {**GRID, "select": {"metric": "dev/metric", "mode": "max"}}
    _, plan = composed(tmp_path, grid)
    fill(plan, tmp_path)
    far = next(i for i, t in plan.every.items() if t.label == "ZO · Movie remarks · q 1 · lr 0.1 · seed 2")
    for given, mark, y in ((0.1, BEYOND, 10.0), (0.9, RUNS, 90.0)):
        with Ledger(tmp_path / "state") as ledger:
            for i, trial in plan.every.items():
                spread = 0.01 * TrialConfig.of(trial.config).seed
                ended = outcome(plan, i)
                value = given if i == far else 0.8 - spread
                ledger.write(i, ended.state, outcome=replace(ended, metrics={**ended.metrics, "dev/metric": value}))
        (panel,) = charts.searches(plan, read_standing(tmp_path / "state"))["search_update_lr"].panels
        by_mark = {series.mark: series for series in panel.series}
        assert pytest.approx(y) in by_mark[mark].y
        assert (BEYOND in by_mark) == (mark == BEYOND)


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"y": "accuracies"}, "unknown y 'accuracies'"),
        ({"kind": "pie"}, "unknown kind of figure 'pie'"),
    ],
)
def test_a_figure_that_the_grid_spells_wrong_is_one_clear_line(
    tmp_path: Path, changes: dict[str, object], part: str
) -> None:
    figures = {"by_q": {**GRID["figures"]["by_q"], "published": [], **changes}}
    composer, plan = composed(tmp_path, {**GRID, "figures": figures})
    with pytest.raises(UserError) as caught:
        charts.figures(plan, composer, read_standing(tmp_path))
    assert part in str(caught.value)
    with pytest.raises(UserError, match="unknown figure 'loss'"):
        charts.figures(plan, composer, read_standing(tmp_path), ["loss"])


@pytest.mark.multiprocess
def test_the_commands_write_figures_reports_and_html_tables(
    folder: Path,
    swept: tuple[Composer, Plan],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(folder)
    state = f"state_dir={folder / 'state'}"
    given = ["+grid=tiny", state, "--config-dir", str(folder / "conf")]
    in_process(capsys, "figure", *given)
    files = sorted(path.name for path in (folder / "state" / "figures").iterdir())
    assert files == ["tiny_by_q.png", "tiny_by_q.svg", "tiny_curve.png", "tiny_curve.svg"]
    in_process(capsys, "report", *given, "--output", "r.html")
    assert Reader((folder / "r.html").read_text()).tables
    tables = in_process(capsys, "table", *given, "--format", "html")
    assert tables.startswith("<!DOCTYPE html>")
    assert len(Reader(tables).tables) == 4  # two, each with its selected hyper-parameters
    named = in_process(capsys, "figure", *given, "--output", "a.png")
    assert ("a_by_q.png" in named, "a_curve.png" in named) == (True, True)
    assert sorted(path.name for path in folder.glob("a*.png")) == ["a_by_q.png", "a_curve.png"]
    in_process(capsys, "figure", *given, "--figure", "curve", "--output", "b.svg")
    assert (folder / "b.svg").is_file()
    searched = ["--figure", "search_update_lr", "--format", "pdf", "--width", "84mm"]
    assert in_process(capsys, "figure", *given, *searched).split()[-1].endswith("tiny_search_update_lr.pdf")
    pdf = (folder / "state" / "figures" / "tiny_search_update_lr.pdf").read_bytes()
    assert [float(box) for box in re.findall(rb"/MediaBox \[ 0 0 ([\d.]+) ", pdf)] == [pytest.approx(84 / 25.4 * 72)]
    for wrong in ("3.3", "0.1in", "1..2in", "width"):
        assert main(["figure", *given, "--width", wrong]) == 2
        assert "is no width from 1.5in to 20in" in capsys.readouterr().err
    assert main(["figure", *given, "--format", "gif"]) == 2
    assert "unknown kind of file 'gif'" in capsys.readouterr().err
    assert main(["report", *given, "--output", "."]) == 2
    assert ". is a folder in --output; name a file" in capsys.readouterr().err
    assert main(["figure", *given, "--format", "pdf", "--output", "a.png"]) == 2
    assert "omit --format" in capsys.readouterr().err
    assert main(["figure", *given, "--figure", "curve", "--output", "a.gif"]) == 2
    assert "unknown kind of file 'gif'" in capsys.readouterr().err
