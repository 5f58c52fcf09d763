"""The paper's grid on real data, small: `+grid=llama2_superglue ... scale=smoke`."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest

from tests.cli.common import NOWHERE, in_process

pytestmark = [pytest.mark.e2e, pytest.mark.realdata, pytest.mark.slow]

# Every row of the paper's table, one learning rate; a task that is there and one that is not.
LESS = ["task=sst2,winogrande", "update.lr=1e-4", "train.steps=2", "split.dev=4", "split.test=4"]


@pytest.mark.long
def test_the_smoke_run_names_what_is_missing_and_fills_every_other_cell(
    tmp_path: Path, shared: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = f"model.path='{shared / 'models' / 'imdb-llama-6m'}'"
    where = ["model=local", model, f"data.dir='{shared / 'data'}'", "scale=smoke", f"state_dir={tmp_path / 'state'}"]
    command = ["+grid=llama2_superglue", *where, *LESS, "executor=inline", NOWHERE]
    said = in_process(capsys, *command)
    missing, began = said.index("cannot run here"), said.index("trials to run on")
    assert missing < began, "what is missing is said before anything runs"
    assert "WinoGrande" in said[missing:began]
    table = in_process(capsys, "table", *command, "--format", "csv")
    cells = list(csv.DictReader(io.StringIO(table)))
    here = [cell for cell in cells if cell["column_key"] == "sst2"]
    assert {cell["column_key"] for cell in cells} == {"sst2", "winogrande"}
    assert [cell for cell in here if not cell["mean"]] == []
    assert len({cell["block"] for cell in here} - {""}) == 16
    assert [cell for cell in cells if cell["column_key"] == "winogrande" and cell["mean"]] == []
    assert "; 0 run now" in in_process(capsys, *command)
