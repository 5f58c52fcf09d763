"""The DataFrame of a sweep against its ledger."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import zo_sweeps
from zo_sweeps.core.errors import UserError
from zo_sweeps.schedule.ledger import read_standing

from .common import composed, fill, outcome


def test_the_frame_has_a_line_a_trial_that_says_what_the_ledger_says(tmp_path: Path) -> None:
    _, plan = composed(tmp_path)
    fill(plan, tmp_path)
    found = zo_sweeps.results("tiny", state_dir=tmp_path / "state", config_dirs=[str(tmp_path / "conf")])
    standing = read_standing(tmp_path / "state")
    assert set(found["trial_id"]) == set(plan.every)
    assert len(found) == len(plan.every) == 1 + 2 * 3 * 3
    for line in found.to_dict("records"):
        ended, config = outcome(plan, line["trial_id"]), plan.every[line["trial_id"]].config.to_json()
        assert line["state"] == standing.states[line["trial_id"]].value == ended.state.value
        assert (line["seed"], line["block"] == "zo") == (config["seed"], config["method"]["kind"] == "zo")
        for name in ("dev/loss", "test/metric", "seconds_per_step", "wall_seconds"):
            assert line[name] == ended.metrics[name] if name in ended.metrics else line[name] != line[name]
        if line["block"] == "zo":
            assert (line["estimator.q"], line["update.lr"]) == (config["estimator"]["q"], config["update"]["lr"])
        assert (line["node"], line["error"]) == ("host-a", ended.error)
    zo = found[found["block"] == "zo"].groupby("estimator.q")["test/metric"].mean()
    assert zo[2] == pytest.approx(0.721)


def test_a_sweep_that_never_ran_is_a_frame_of_trials_not_run(tmp_path: Path) -> None:
    composed(tmp_path)
    found = zo_sweeps.results("tiny", ["update.lr=0.5"], tmp_path / "none", [str(tmp_path / "conf")])
    assert set(found["state"]) == {"NOT_RUN"}
    assert not (tmp_path / "none").exists()


def test_without_overrides_the_frame_is_that_of_the_last_sweep_of_the_grid(tmp_path: Path) -> None:
    command = {
        "grid": "quickstart",
        "overrides": ["+grid=quickstart", "grid.seeds=[7]"],
        "config_dirs": [],
        "started": 1,
    }
    (tmp_path / "sweeps").mkdir()
    (tmp_path / "sweeps" / "x.json").write_text(json.dumps(command))
    assert set(zo_sweeps.results("quickstart", state_dir=tmp_path)["seed"]) == {7}
    with pytest.warns(UserWarning, match="none of these trials has run in .*; the last sweep of the grid there: "):
        other = zo_sweeps.results("quickstart", ["grid.seeds=[8]"], tmp_path)
    assert set(other["seed"]) == {8}


def test_a_wrong_name_is_one_clear_line() -> None:
    with pytest.raises(UserError, match=r"unknown grid 'quikstart'.*did you mean 'quickstart'"):
        zo_sweeps.results("quikstart")


@pytest.mark.multiprocess
def test_importing_the_package_loads_neither_pandas_nor_torch() -> None:
    code = (
        "import sys, zo_sweeps; zo_sweeps.results; print(*({'pandas', 'torch', 'hydra', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == ""
