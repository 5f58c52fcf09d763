"""The benchmark of programs, on a tiny model."""

from __future__ import annotations

import pytest

pytest.importorskip("executorch", reason="needs the extra [edge]")

from tests.models.common import TINY
from zo_sweeps.bench import programs
from zo_sweeps.edge.rows import Frame

pytestmark = [pytest.mark.long, pytest.mark.multiprocess]


def test_a_step_is_compared_with_the_forward_of_its_rows() -> None:
    frame = Frame(shared=True, slots=2, places=1, tokens=16)
    first, second = programs.steps(
        {**TINY["llama"], "num_hidden_layers": 1}, q=1, batch=2, frame=frame, lengths=(8, 16), rounds=1
    )
    for row in (first, second):
        assert row.ratio == pytest.approx(row.detail["step, s"] / row.detail["forward, s"])
        assert row.detail["program, MiB"] > row.detail["program of the forward, MiB"] > 1, "of 4096 x 32 values, twice"
        assert row.detail["planned memory, MiB"] > row.detail["planned memory of the forward, MiB"] > 0
    assert "T=8," in first.name
    assert "T=16," in second.name
