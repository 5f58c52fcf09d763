"""Every grid under forty overrides: each label, title and published number holds for the trials behind it."""

from __future__ import annotations

import pytest

from tests.labels import walk

pytestmark = pytest.mark.unit

PAIRS = [(grid, number) for number in range(len(walk.OVERRIDES)) for grid in walk.GRIDS]
SPREAD = [(walk.GRIDS.index(grid) + 3 * number + 27) % 40 == 0 for grid, number in PAIRS]  # league with one seed


@pytest.mark.long
def test_every_grid_holds_what_it_prints_as_it_is_written() -> None:
    assert {grid: made.faults for grid in walk.GRIDS if (made := walk.written(grid)).faults} == {}
    assert sum(len(walk.written(grid).numbers) for grid in walk.GRIDS) > 700, "the walk sees the published numbers"


def test_the_walk_meets_every_grid_and_every_override() -> None:
    spread = [pair for pair, chosen in zip(PAIRS, SPREAD, strict=True) if chosen]
    assert len(walk.OVERRIDES) == 40
    assert {grid for grid, _ in spread} == {*walk.GRIDS}
    assert {number for _, number in spread} == {*range(40)}


@pytest.mark.parametrize(
    ("grid", "number"),
    [
        pytest.param(*pair, id=f"{pair[0]}-{pair[1]}", marks=[] if chosen else [pytest.mark.long])
        for pair, chosen in zip(PAIRS, SPREAD, strict=True)
    ],
)
def test_what_is_printed_under_an_override_holds_for_the_trials_behind_it(grid: str, number: int) -> None:
    assert [*walk.faults(grid, number)] == [], " ".join(walk.overrides(grid, number))
