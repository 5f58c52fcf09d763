"""`papers` after sweeps of two papers: what was run, how far from the published numbers, and how."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.common import NOWHERE, in_process
from zo_sweeps.results.papers import items, standings

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


def test_what_was_run_is_counted_and_compared_and_its_conditions_are_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = f"state_dir={tmp_path}"
    small = ("scale=smoke", "executor=inline", NOWHERE, state)
    in_process(capsys, "+grid=bytebots_table1", "model=demo", "task=demo_remarks", *small)
    in_process(capsys, "+grid=prge_table9", "model=random_llama", *small)
    found = standings(items(), tmp_path)
    table = found["bytebots/table1"]
    assert table.state == "complete"
    assert table.deviation.endswith(("% (MeZO (q=1, B=16), accuracy)", "% (P-RGE (q=4, B=4), accuracy)"))
    assert any("scale=smoke" in note for note in table.notes)
    assert any("demo" in note for note in table.notes)
    assert found["prge/table9"].state == "4 of 8 cells", "INT8 and NF4 cannot be had yet"
    assert found["pezo/table3"].state == "not run"
    printed = in_process(capsys, "papers", "prge/table4", "prge/table9", "bytebots", state)
    assert "no grid: needs an Android phone's NPU" in printed
    assert table.deviation in printed
    assert "Cannot run here: [reason] number of trials" in printed
    assert "weights cannot be stored as nf4 yet" in printed
    numbers = in_process(capsys, "papers", "pezo/table6", state)
    assert "133120" in numbers, "a single table is printed with its numbers"
