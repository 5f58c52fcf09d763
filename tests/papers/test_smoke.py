"""The loop of docs/SMOKE.md: every grid of the papers, small, on a machine without a GPU."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.papers.test_grids import TRIALS
from zo_sweeps.config.composer import Composer
from zo_sweeps.plan.build import build

TEXT = (Path(__file__).parents[2] / "docs" / "SMOKE.md").read_text(encoding="utf-8")
LINES = dict(re.findall(r"^(\w+)\|(.*)$", TEXT[TEXT.index("<<'GRIDS'") : TEXT.index("\nGRIDS\n")], re.MULTILINE))
NAMES = {**dict(re.findall(r'^([A-Z_]+)="(.*)"$', TEXT, re.MULTILINE)), "MODEL": "model=demo"}
QUANTIZED = ("prge_table3", "prge_fig5")  # nothing but 8 and 4 bits


def given(grid: str) -> list[str]:
    return re.sub(r"\$(\w+)", lambda name: NAMES[name[1]], LINES[grid]).split()


def test_the_loop_is_over_all_grids() -> None:
    assert set(LINES) == set(TRIALS)


@pytest.mark.parametrize("grid", LINES)
def test_a_line_of_the_loop_plans_its_grid(grid: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    plan = build(Composer([f"+grid={grid}", "scale=smoke", f"data.dir={tmp_path}", *given(grid)]))
    assert plan.every
    reasons = {re.sub(r"/\S+", "…", why) for why in plan.missing.values()}
    absent = {why for why in reasons if "weights cannot be stored as" in why}
    data = {why for why in reasons if why.startswith(("no folder", "no text"))}
    assert reasons == absent | data, "a hole that is not explained"
    assert (not plan.trials and not data) == (grid in QUANTIZED)


MEASURING = ("sensitive_gradients", "sensitive_fig1_inference", "pezo_table2_flops")


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.parametrize("grid", MEASURING)
def test_a_grid_runs_and_prints_its_tables_figures_and_report(grid: str, tmp_path: Path) -> None:
    lines = "".join(f'{{"text": "line {i} of a text that a mask is found on"}}\n' for i in range(8))
    (tmp_path / "lines.jsonl").write_text(lines)
    task = [f"gradients.text={tmp_path}/lines.jsonl", "task=demo_remarks"] if "gradients" in grid else []
    kept = [text for text in given(grid) if not text.startswith("task=")]

    def zo(*arguments: str) -> str:
        command = [sys.executable, "-m", "zo_sweeps", *arguments, f"state_dir={tmp_path / 'state'}"]
        env = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
        done = subprocess.run(command, capture_output=True, text=True, env=env)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        return done.stdout

    printed = zo(f"+grid={grid}", "scale=smoke", "executor=inline", *kept, *task)
    assert "failed" not in printed
    assert "not run" not in printed
    zo("figure", f"+grid={grid}")
    zo("report", f"+grid={grid}")
    page = (tmp_path / "state" / f"{grid}.html").read_text()
    assert "not run" not in page
    assert page.count("<svg") == page.count("</svg>") >= 1
    assert "No figures" not in page
