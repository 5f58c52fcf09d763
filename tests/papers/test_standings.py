"""`papers` after sweeps: what counts as run, how far it is from the published numbers, and under which conditions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cli.common import NOWHERE, in_process
from tests.run.common import TINY
from zo_sweeps.results.papers import items, standings
from zo_sweeps.tables.published import read

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

TABLE = {
    "kind": "accuracy",
    "metric": "accuracy",
    "unit": "%",
    "caption": "Accuracy",
    "columns": ["Movie remarks"],
    "rows": {"Zero-shot": [50.0]},
    "grid": "mine",
}
GRID: dict[str, Any] = {
    "name": "mine",
    "fixed": {"model": "demo", "split": {"train": 8, "dev": 4, "test": 8}, "train": {"max_length": 32}},
    "axes": {"task": ["demo_remarks"]},
    "blocks": {"zero_shot": {"label": "Zero-shot", "fixed": {"method": "zero_shot"}}},
    "tables": {"accuracy": {"layout": "accuracy", "published": "mine/table1", "rows": {"zero_shot": "Zero-shot"}}},
}


@pytest.mark.long
def test_only_cells_with_the_settings_of_the_grid_as_written_count_and_are_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, state = tmp_path / "conf", tmp_path / "state"
    paper = {"paper": read("paper", "bytebots")["paper"], "tables": {"table1": TABLE}}
    for name, content, header in (("grid", GRID, "# @package grid\n"), ("paper", paper, "")):
        (folder / name).mkdir(parents=True)
        (folder / name / "mine.yaml").write_text(header + yaml.safe_dump(content, sort_keys=False))
    own = ("--config-dir", str(folder), "executor=inline", NOWHERE, f"state_dir={state}")
    (item,) = (one for one in items([folder]) if one.reference == "mine/table1")

    in_process(capsys, "+grid=mine", *own, "split.test=4")
    assert standings([item], state)[item.reference].state == "0 of 1 cells, 1 with other settings"
    in_process(capsys, "+grid=mine", *own, "grid.seeds=[5]", "device=cpu")
    whole = standings([item], state)[item.reference]
    assert whole.state == "complete"
    assert whole.deviation is not None
    assert (whole.deviation.unit, whole.deviation.row, whole.deviation.column) == ("%", "Zero-shot", "Movie remarks")

    small = ("grid.relabel=true", "scale=smoke", "executor=inline", NOWHERE, f"state_dir={state}")
    in_process(capsys, "+grid=prge_table9", *TINY, *small)
    table = standings(items(), state)["prge/table9"]
    assert table.state.startswith("0 of 8 cells")
    assert not table.deviation, "another model's numbers are not compared with the paper's"
    assert any("scale=smoke" in note for note in table.notes)
    assert any("random" in note for note in table.notes)
    assert standings(items(), state)["pezo/table3"].state == "not run"
    printed = in_process(
        capsys, "papers", "prge/table4", "prge/table14", "prge/table9", "bytebots", f"state_dir={state}"
    )
    assert "no grid: specifications" in printed
    assert "with other settings" in printed
    assert "cannot run here: " in printed
    assert "random weights" in printed
    numbers = in_process(capsys, "papers", "pezo/table6", f"state_dir={state}")
    assert "133120" in numbers, "a single table is printed with its numbers"
