"""A sweep hands its report to MLflow."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tables.test_html import Reader
from zo_sweeps.cli.main import main

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


@pytest.mark.long
def test_a_finished_sweep_leaves_its_report_as_an_artifact_of_its_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    small = ["train.steps=2", "train.eval_every=2", "update.lr=1e-2", "split.train=16", "split.dev=8", "split.test=8"]
    assert main(["executor=inline", "state_dir=state", "grid.seeds=[0]", *small]) == 0
    (page,) = (tmp_path / "state" / "mlflow").rglob("report.html")
    read = Reader(page.read_text(encoding="utf-8"))
    assert "executor=inline" in read.text
    roles = [given.get("role") for tag, given in read.attributes if tag == "svg"]
    assert roles.count("img") == 4  # the accuracy of the rows, and three curves
