"""`papers`: everything that the papers number, the grid behind it, and how far it is here."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from zo_sweeps.config.composer import conf_dir
from zo_sweeps.results.papers import Item, items, standings

pytestmark = pytest.mark.unit

ITEMS = items()
NUMBERS = ("accuracy", "runtime", "memory", "flops", "figure", "claim")


@pytest.mark.parametrize("item", ITEMS, ids=lambda item: item.reference)
def test_every_table_and_figure_has_a_grid_or_says_why_not(item: Item) -> None:
    assert bool(item.grids) != bool(item.why)
    assert item.caption
    for grid in item.grids:
        assert (conf_dir() / "grid" / f"{grid}.yaml").is_file()


def test_every_grid_of_a_paper_is_behind_something() -> None:
    files = [yaml.safe_load(path.read_text()) for path in (conf_dir() / "grid").glob("*.yaml")]
    of_a_paper = {grid["name"] for grid in files if grid.get("paper")}
    assert of_a_paper == {grid for item in ITEMS for grid in item.grids}


def test_a_table_that_a_grid_cites_names_that_grid() -> None:
    grids = {item.reference: item.grids for item in ITEMS}
    for path in (conf_dir() / "grid").glob("*.yaml"):
        for table in yaml.safe_load(path.read_text())["tables"].values():
            if table.get("published"):
                assert grids[table["published"]] == (path.stem,)


def test_the_four_papers_are_there_with_all_that_has_numbers() -> None:
    assert {item.paper for item in ITEMS} == {"prge", "bytebots", "pezo", "sensitive"}
    assert len(ITEMS) == len({item.reference for item in ITEMS})
    without = {item.reference for item in ITEMS if item.kind in NUMBERS and not item.grids}
    assert without == {"prge/table4"}, "the phone"


def test_nothing_is_run_in_an_empty_folder(tmp_path: Path) -> None:
    assert {standing.state for standing in standings(ITEMS, tmp_path).values()} == {"not run"}


def command(*arguments: str, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "zo_sweeps", *arguments, f"state_dir={folder}"],
        capture_output=True,
        text=True,
        env={**os.environ, "COLUMNS": "300", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.e2e
@pytest.mark.slow
def test_what_was_run_is_counted_and_compared_and_its_conditions_are_said(tmp_path: Path) -> None:
    small = ("scale=smoke", "executor=inline")
    command("+grid=bytebots_table1", "model=demo", "task=demo_remarks", *small, folder=tmp_path)
    command("+grid=prge_table9", "model=random_llama", *small, folder=tmp_path)
    found = standings(ITEMS, tmp_path)
    table = found["bytebots/table1"]
    assert table.state == "complete"
    assert table.deviation.endswith(("% (MeZO (q=1, B=16), accuracy)", "% (P-RGE (q=4, B=4), accuracy)"))
    assert any("scale=smoke" in note for note in table.notes)
    assert any("demo" in note for note in table.notes)
    assert found["prge/table9"].state == "4 of 8 cells", "INT8 and NF4 cannot be had yet"
    assert found["pezo/table3"].state == "not run"
    printed = command("papers", folder=tmp_path)
    assert "no grid: needs an Android phone's NPU" in printed
    assert table.deviation in printed
