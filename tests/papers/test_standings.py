"""`papers` after sweeps of two papers: what was run, how far from the published numbers, and how."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from zo_sweeps.results.papers import items, standings

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


def command(*arguments: str, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "zo_sweeps", *arguments, f"state_dir={folder}"],
        capture_output=True,
        text=True,
        env={**os.environ, "COLUMNS": "300", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_what_was_run_is_counted_and_compared_and_its_conditions_are_said(tmp_path: Path) -> None:
    small = ("scale=smoke", "executor=inline")
    command("+grid=bytebots_table1", "model=demo", "task=demo_remarks", *small, folder=tmp_path)
    command("+grid=prge_table9", "model=random_llama", *small, folder=tmp_path)
    found = standings(items(), tmp_path)
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
