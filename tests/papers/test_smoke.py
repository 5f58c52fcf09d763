"""The loop of jobs/smoke.sh: every grid of the papers, small, on a machine without a GPU."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.cli.common import NOWHERE, in_process
from tests.conftest import REPO
from tests.papers.test_grids import TRIALS
from tests.plan.common import PLACES
from tests.run.common import TINY
from zo_sweeps.config.composer import Composer
from zo_sweeps.plan.build import build

FILE = REPO / "jobs" / "smoke.sh"
TEXT = FILE.read_text(encoding="utf-8")
LINES = dict(re.findall(r"^(\w+)\|(.*)$", TEXT[TEXT.index("<<GRIDS") : TEXT.index("\nGRIDS\n")], re.MULTILINE))
NAMES = dict(re.findall(r'^([A-Z_]+)="(.*)"$', TEXT, re.MULTILINE))


def given(grid: str) -> list[str]:
    return re.sub(r"\$(\w+)", lambda name: NAMES[name[1]], re.sub("^MODEL", "model=demo", LINES[grid])).split()


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of data without any."""
    return tmp_path_factory.mktemp("data")


@pytest.mark.unit
def test_the_loop_is_over_all_grids() -> None:
    assert set(LINES) == set(TRIALS)


@pytest.mark.multiprocess
def test_folders_with_spaces_are_one_argument_each(tmp_path: Path) -> None:
    (tmp_path / "python").write_text("#!/bin/sh\nprintf '<%s>' \"$@\"; echo\n")
    (tmp_path / "python").chmod(0o755)
    places = {"DATA": "/d a", "MODEL": "/m b", "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    ran = subprocess.run(["bash", FILE], env=places, capture_output=True, text=True, check=True, cwd=tmp_path).stdout
    lines = {line.split("><")[2].removeprefix("+grid="): line for line in ran.splitlines() if "scale=smoke" in line}
    assert lines.keys() == LINES.keys()
    for grid, line in lines.items():
        assert "<data.dir=/d a>" in line
        own = [text for text in given(grid) if text != "model=demo"]
        chosen = ["model=local", "model.path=/m b"] if LINES[grid].startswith("MODEL") else []
        assert line.endswith("".join(f"<{text}>" for text in (f"state_dir=smoke/{grid}", *chosen, *own)))


# Grids of the shape of another one: of the same paper, with the same axes, other models, tasks or densities.
ALIKE = (
    *("pezo_fig3_rngs", "pezo_fig4", "pezo_table3", "pezo_table6", "prge_fig4", "prge_fig5", "prge_table4"),
    *("prge_table5", "prge_table6", "sensitive_adam", "sensitive_fig5_rte", "sensitive_fig5_wic", "sensitive_fig6"),
    *("sensitive_table1b", "sensitive_table1c"),
)


@pytest.mark.unit
@pytest.mark.parametrize("grid", [pytest.param(one, marks=pytest.mark.long) if one in ALIKE else one for one in LINES])
def test_a_line_of_the_loop_plans_its_grid(grid: str, empty: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    overrides = ["grid.relabel=true", "scale=smoke", f"data.dir={empty}", *given(grid)]
    plan = build(Composer([f"+grid={grid}", *overrides]), PLACES)
    assert plan.every
    reasons = {re.sub(r"/\S+", "…", why) for why in plan.missing.values()}
    data = {why for why in reasons if why.startswith(("no folder", "no text"))}
    assert reasons == data, "a hole that is not explained"
    assert plan.trials or data


MEASURING = ("pezo_table2_flops", "sensitive_gradients", "sensitive_fig1_inference")


@pytest.mark.long  # tests/e2e runs other grids and prints their tables, tests/results writes figures and reports
@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.parametrize("grid", MEASURING)
def test_a_grid_runs_and_prints_its_tables_figures_and_report(
    grid: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = "".join(f'{{"text": "line {i} of a text that a mask is found on"}}\n' for i in range(8))
    (tmp_path / "lines.jsonl").write_text(lines)
    task = [f"gradients.text={tmp_path}/lines.jsonl", "task=demo_remarks"] if "gradients" in grid else []
    kept = [text for text in given(grid) if not text.startswith("task=")]
    kept += TINY[1:] if "model=random_llama" in kept else []
    state = f"state_dir={tmp_path / 'state'}"
    printed = in_process(
        capsys, f"+grid={grid}", "grid.relabel=true", "scale=smoke", "executor=inline", NOWHERE, state, *kept, *task
    )
    assert "failed" not in printed
    assert "not run" not in printed
    in_process(capsys, "figure", f"+grid={grid}", state)
    in_process(capsys, "report", f"+grid={grid}", state)
    page = (tmp_path / "state" / f"{grid}.html").read_text()
    assert "not run" not in page
    assert page.count("<svg") == page.count("</svg>") >= 1
    assert "No figures" not in page
