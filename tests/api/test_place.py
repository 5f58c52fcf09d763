"""A sweep whose trials ran with different numbers of threads: its printed table and its CSV say so."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import pytest

import zo_sweeps
from tests.cli.common import NOWHERE, in_process
from tests.plan.common import write_grid
from zo_sweeps.session import session

pytestmark = pytest.mark.multiprocess

SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1}
GRID: dict[str, Any] = {
    "name": "tiny",
    "fixed": {
        **{"model": "random_llama", "prompt": "mezo", "device": "cpu", "method": "prge", "estimator": {"q": 1}},
        **{f"model.arch.{name}": size for name, size in SIZES.items()},
        **{"train": {"steps": 4, "eval_every": 4, "batch": 4}, "split": {"train": 16, "dev": 4, "test": 4}},
    },
    "axes": {"task": ["demo_remarks"], "update": {"lr": [0.01]}},
    "blocks": {
        "vanilla": {"label": "Vanilla", "fixed": {"evaluation": {"mode": "sequential"}}},
        "inner": {"label": "Inner loop", "fixed": {"evaluation": {"mode": "inner"}}},
    },
    "tables": {
        "time": {"layout": "step_time", "rows": {"vanilla": "", "inner": ""}},
        "speedup": {"layout": "speedup", "rows": {"inner": ""}, "over": {"inner": "vanilla"}},
    },
}


@pytest.mark.long
def test_threads_that_differ_are_named_in_the_table_and_no_speed_up_is_stated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "STORE_SECONDS", 0.1)
    conf, state = write_grid(tmp_path / "conf", GRID), tmp_path / "state"
    common = ["executor=inline", NOWHERE]
    zo_sweeps.run("tiny", [*common, "~grid.blocks.inner", "~grid.tables.speedup"], state, [conf])
    frame = zo_sweeps.run("tiny", [*common, "executor.cpus_per_trial=2"], state, [conf])
    assert list(frame["state"]) == ["SUCCEEDED"] * 2
    given = ["table", "+grid=tiny", f"state_dir={state}", "--config-dir", str(conf)]
    text = " ".join(in_process(capsys, *given, "--format", "md").split())
    for words in ("measured on cpu, PyTorch, 1 thread", "measured on cpu, PyTorch, 2 threads", "places differ"):
        assert words in text
    assert "measured in different places: cpu, PyTorch, 1 thread against cpu, PyTorch, 2 threads" in text
    lines = list(csv.DictReader(io.StringIO(in_process(capsys, *given, "--format", "csv"))))
    (ratio,) = (line for line in lines if line["table"] == "tiny_speedup")
    assert (ratio["state"], ratio["mean"]) == ("PLACES_DIFFER", "")
    times = {line["row"]: line for line in lines if line["table"] == "tiny_time"}
    for row, threads in (("Vanilla", "1 thread"), ("Inner loop", "2 threads")):
        assert f"measured on cpu, PyTorch, {threads}" in times[row]["notes"]
        assert f"PyTorch, {threads}, 1 process, torch" in times[row]["places"]
        assert ", load " in times[row]["places"]
