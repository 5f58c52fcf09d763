"""How many settings and seeds the grid as written has in each cell, whatever was asked for."""

from __future__ import annotations

import pytest

from tests.plan.common import named
from zo_sweeps.config.composer import Composer
from zo_sweeps.plan.as_written import extents, of_grid

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("grid", ["quickstart", "sensitive_table1a", "pezo_table6", "bytebots_table1"])
def test_what_a_plan_of_the_whole_grid_has_is_what_the_grid_has_as_written(grid: str) -> None:
    composer = Composer([f"+grid={grid}"])
    assert extents(named(grid), composer) == of_grid(composer.as_written())


def test_what_was_asked_for_does_not_change_the_grid_as_written() -> None:
    whole = extents(named("quickstart"), Composer(["+grid=quickstart"]))
    assert whole["zo_lora_fa_q1", "demo_remarks"] == (3, 2)
    assert whole["zero_shot", "demo_remarks"] == (1, 1), "nothing in it depends on the seed"
    for overrides in (["update.lr=0.1"], ["grid.seeds=[0]"], ["seed=0"], ["scale=smoke", "~grid.blocks.zo_lora_fa_q1"]):
        words = ["+grid=quickstart", *overrides]
        assert extents(named("quickstart", *overrides), Composer(words)) == whole
    rows = extents(named("sensitive_table1a"), Composer(["+grid=sensitive_table1a"]))
    assert rows["zero_shot", "rte"] == (1, 3), "an untrained model is scored on rows that the seed draws"
