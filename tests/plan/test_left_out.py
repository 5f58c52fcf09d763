"""What becomes of a grid's tables and figures when the command line removes a block."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.plan.common import changed, named, planned, write_grid
from zo_sweeps.config.composer import Composer
from zo_sweeps.core.errors import UserError
from zo_sweeps.plan.build import build
from zo_sweeps.results import tables as readout
from zo_sweeps.schedule.ledger import Standing

pytestmark = pytest.mark.unit


def test_a_removed_block_is_no_row_and_no_series_and_what_shows_nothing_else_is_gone() -> None:
    composer = Composer(["+grid=quickstart", "~grid.blocks.fo_lora_fa"])
    found = readout.tables(build(composer), composer, Standing())
    assert [[block for block, _ in table.rows] for table in found] == [
        ["zero_shot", "fo_full", "mezo", "fo_lora_fa_layerwise", "zo_lora_fa_q1", "zo_lora_fa_q4"],
        ["fo_full", "mezo", "fo_lora_fa_layerwise", "zo_lora_fa_q1", "zo_lora_fa_q4"],
        ["fo_full", "mezo", "fo_lora_fa_layerwise", "zo_lora_fa_q1", "zo_lora_fa_q4"],
    ]
    every = named("prge_fig3").grid
    gone = next(iter(every.blocks))
    figures = named("prge_fig3", f"~grid.blocks.{gone}").grid.figures
    shown = [block for figure in figures.values() for block in figure.series]
    assert gone in {block for figure in every.figures.values() for block in figure.series}
    assert shown
    assert gone not in shown
    assert gone not in {point["series"] for figure in figures.values() for point in figure.published}


def test_a_ratio_goes_with_either_of_its_blocks() -> None:
    for gone in ("tinyllama_zo", "tinyllama_inner"):
        speedup = named("prge_table3", f"~grid.blocks.{gone}").grid.tables["speedup"]
        assert "tinyllama_inner" not in {*speedup.rows, *speedup.over}
        assert "llama2_inner" in speedup.rows


def test_a_row_of_a_block_that_never_was_is_still_an_error(tmp_path: Path) -> None:
    folder = write_grid(tmp_path, changed(tables={"accuracy": {"layout": "accuracy", "rows": {"zoo": "ZO"}}}))
    composer = Composer(["+grid=tiny"], [str(folder)])
    with pytest.raises(UserError, match="unknown block 'zoo'"):
        readout.tables(build(composer), composer, Standing())


DIFFERS = {"about": "precision", "text": "NF4; the paper: SqueezeLLM"}


@pytest.mark.parametrize(
    ("differs", "refused"),
    [
        ({"rows": ["zoo"]}, "unknown block 'zoo'"),
        ({"columns": ["sst2"]}, "unknown column 'sst2'"),
        ({"about": "precison"}, "unknown aspect 'precison'"),
    ],
)
def test_a_difference_of_a_row_column_or_aspect_that_is_none_is_refused_by_the_plan(
    tmp_path: Path, differs: dict[str, Any], refused: str
) -> None:
    of_table = {"accuracy": {"layout": "accuracy", "rows": {"zo": "ZO"}, "differs": [{**DIFFERS, **differs}]}}
    for grid in (changed(differs=[{**DIFFERS, **differs}]), changed(tables=of_table)):
        with pytest.raises(UserError, match=refused):
            planned(tmp_path, grid)


def test_a_difference_goes_with_its_rows_and_with_its_settings(tmp_path: Path) -> None:
    blocks = {**changed()["blocks"], "zero": {"label": "Zero", "fixed": {"method": "zero_shot"}}}
    tables = {"accuracy": {"layout": "accuracy", "rows": {"zo": "", "zero": ""}}}
    of_all = {"about": "data", "text": "made up"}
    grid = changed(blocks=blocks, tables=tables, differs=[{**DIFFERS, "rows": ["zo"]}, of_all])
    folder = str(write_grid(tmp_path, grid))

    def noted(*overrides: str) -> list[tuple[str, tuple[str, ...]]]:
        composer = Composer(["+grid=tiny", *overrides], [folder])
        (table,) = readout.tables(build(composer), composer, Standing())
        return [(flag.about, flag.rows) for flag in table.spec.flags]

    assert noted() == [("precision", ("zo",)), ("data", ())]
    assert noted("~grid.blocks.zo") == noted("+grid.blocks.zo.fixed.precision=bf16") == [("data", ())]
    assert noted("~grid.blocks.zero") == [("precision", ("zo",)), ("data", ())]
    assert noted("split.test=4") == []
