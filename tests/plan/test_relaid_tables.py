"""A table that the command line gives another layout: planned on the papers' grids, and without their numbers."""

from __future__ import annotations

import pytest

from zo_sweeps.config.composer import Composer
from zo_sweeps.plan.build import build
from zo_sweeps.results import tables as readout
from zo_sweeps.schedule.ledger import Standing


@pytest.mark.parametrize(("grid", "table"), [("prge_table3", "step_time"), ("llama2_superglue", "runtime")])
def test_a_paper_s_table_can_show_energy(grid: str, table: str) -> None:
    words = [f"+grid={grid}", f"grid.tables.{table}.layout=energy"]
    composer = Composer(words)
    plan = build(composer)
    readout.check(plan, composer)
    (made,) = readout.tables(plan, composer, Standing(), [table])
    assert made.spec.measure.unit == "J/step"
    assert made.published is None
    assert readout.OTHER in made.spec.caveats
    assert [label for _, label in made.rows], "the rows keep their names"


@pytest.mark.parametrize(("only", "rows"), [("zero_shot,mezo", ["mezo"]), ("zero_shot", ["zero_shot"])])
def test_a_table_of_steps_leaves_out_rows_that_take_none_beside_others(only: str, rows: list[str]) -> None:
    composer = Composer(["+grid=quickstart", f"grid.only=[{only}]"])
    (table,) = readout.tables(build(composer), composer, Standing(), ["runtime"])
    assert [block for block, _ in table.rows] == rows
