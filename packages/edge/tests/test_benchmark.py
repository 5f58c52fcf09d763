"""The benchmark of programs, on a tiny model."""

from __future__ import annotations

import pytest

pytest.importorskip("executorch", reason="needs the extra [edge]")

from tests.models.common import TINY
from zo_sweeps_edge import benchmark as programs
from zo_sweeps_edge.rows import Frame

pytestmark = [pytest.mark.long, pytest.mark.multiprocess]


def test_a_step_is_compared_with_the_forward_of_its_rows() -> None:
    frame = Frame(shared=True, slots=2, places=1, tokens=16)
    rows = list(
        programs.steps({**TINY["llama"], "num_hidden_layers": 1}, q=1, batch=2, frame=frame, lengths=(8, 16), rounds=1)
    )
    for row in rows:
        assert row.ratio == pytest.approx(row.detail["step, s"] / row.detail["forward, s"])
        assert row.detail["program, MiB"] > row.detail["program of the forward, MiB"] > 1, "of 4096 x 32 values, twice"
        assert row.detail["planned memory, MiB"] > row.detail["planned memory of the forward, MiB"] > 0
    shapes = [(form, length) for length in (8, 16) for form in ("seed", "dual")]
    for row, (form, length) in zip(rows, shapes, strict=True):
        assert f"form {form}, q=1, B=2 T={length}," in row.name
