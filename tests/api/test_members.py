"""Members of the user's own, without a checkout: a Python file in a --config-dir folder, an installed package."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.api.conftest import GRID
from tests.cli.common import ENVIRONMENT, NOWHERE
from tests.conftest import REPO
from tests.plan.common import write_grid
from tests.run.common import make
from zo_sweeps.core.trial import Trial, TrialState
from zo_sweeps.methods.trial_config import TrialConfig
from zo_sweeps.run.recorder import Nowhere
from zo_sweeps.run.run_trial import run_trial

HALF = '''
import math
from dataclasses import dataclass

import torch

from zo_sweeps.engine import noise
from zo_sweeps.methods.perturbation import Perturbation
from zo_sweeps.methods.points import NoiseKey


@dataclass(frozen=True)
class Half(Perturbation):
    """z_j = sqrt(2), 0 or -sqrt(2), with probabilities 1/4, 1/2 and 1/4."""

    def sample(self, key: NoiseKey, name: str, shape: torch.Size, device: torch.device) -> torch.Tensor:
        u = noise.uniform(key, name, shape, device)
        return ((u > 3 / 4).float() - (u < 1 / 4).float()).mul_(math.sqrt(2))
'''
# In a process of its own: a member once loaded is there for the rest of the process.
SCRIPT = """
import json, sys
import zo_sweeps
from zo_sweeps.session import session

if __name__ == "__main__":
    session.STORE_SECONDS = 0.1
    overrides, conf = json.loads(sys.argv[1])
    columns = ["trial_id", "state", "error", "dev/loss", "test/loss"]
    for executor in ("inline", "ray"):
        words = [*overrides, f"executor={executor}"]
        planned = [trial.config.perturbation.name for trial in zo_sweeps.plan("forms", words, executor, [conf]).trials]
        frame = zo_sweeps.run("forms", words, executor, [conf])
        print(json.dumps([planned, sorted(frame[columns].values.tolist())]))
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one member and a grid, and a package that offers another member."""
    folder = tmp_path_factory.mktemp("own")
    blocks = {"lora_fa": GRID["blocks"]["lora_fa"]}
    write_grid(folder / "my_conf", {**GRID, "blocks": blocks}, "forms")
    (folder / "my_conf" / "perturbation").mkdir()
    (folder / "my_conf" / "perturbation" / "half.py").write_text(HALF)
    info = folder / "site" / "halves-1.0.dist-info"
    info.mkdir(parents=True)
    (folder / "site" / "halves.py").write_text(HALF)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: halves\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[zo_sweeps.perturbation]\noffered = halves:Half\n")
    return folder


def ran(place: Path) -> list[Any]:
    """What the script says of a sweep over both members, here and on Ray."""
    script = place / "script.py"
    script.write_text(SCRIPT)
    overrides = ["perturbation=half,offered", "grid.relabel=true", "train.steps=2", NOWHERE]
    done = subprocess.run(
        [sys.executable, str(script), json.dumps([overrides, "my_conf"])],
        cwd=place,
        env={**os.environ, **ENVIRONMENT, "PYTHONPATH": os.pathsep.join([str(REPO), str(place / "site")])},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.long  # tests/run/test_own_members.py runs such members from a trial's JSON
@pytest.mark.multiprocess
@pytest.mark.slow
def test_members_of_a_folder_and_of_a_package_run_here_and_in_workers_with_the_same_result(place: Path) -> None:
    (planned, inline), on_ray = ran(place)
    assert planned == ["half", "offered"]
    assert [row[1:3] for row in inline] == [["SUCCEEDED", ""]] * 2
    (_, _, _, *half), (_, _, _, *offered) = inline
    assert half == offered, "the same directions under two names"
    assert on_ray == [planned, inline]


@pytest.mark.unit
def test_a_machine_without_the_folder_says_so_in_one_line(tmp_path: Path) -> None:
    data = make("estimator.q=1", "update.lr=1e-3").to_json()
    data["config"]["members"] = [str(tmp_path), str(tmp_path / "my_conf")]
    elsewhere = Trial.from_json(data)
    assert TrialConfig.of(elsewhere.config).perturbation.name == "gaussian", "a folder that is not needed may be absent"
    data["config"]["perturbation"] = {"name": "of_my_own"}
    outcome = run_trial(elsewhere, Nowhere(), [], 1, lambda: False)
    assert outcome.state is TrialState.FAILED
    assert "unknown perturbation 'of_my_own'" in outcome.error
    assert f"the folder {tmp_path / 'my_conf'}, given with --config-dir, is not on this machine" in outcome.error
    assert outcome.traceback == ""
