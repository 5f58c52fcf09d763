"""`papers`: everything that the papers number, the grid behind it, and how far it is here."""

from __future__ import annotations

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
