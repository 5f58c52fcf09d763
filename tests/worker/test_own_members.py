"""Members in a folder of the user's, in a process that is given nothing but the trial's JSON."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.conftest import REPO
from tests.worker.common import SMALL, measured, run
from zo_sweeps.config.composer import Composer
from zo_sweeps.core.errors import UserError
from zo_sweeps.core.trial import Stored, Trial, TrialState
from zo_sweeps.methods.trial_config import TrialConfig
from zo_sweeps.plan.build import build

MEMBERS = {
    "perturbation/flipped.py": '''
from dataclasses import dataclass

from zo_sweeps.engine.perturbations.gaussian import Gaussian
from zo_sweeps.methods.definition import option
from zo_sweeps.methods.perturbation import Perturbation


@dataclass(frozen=True)
class Flipped(Perturbation):
    """Gaussian noise, stretched and with its sign turned."""

    stretch: float = option(1.5, "factor", above=0)

    def sample(self, key, name, shape, device):
        return -self.stretch * Gaussian().sample(key, name, shape, device)
''',
    "update/clipped.py": '''
from dataclasses import dataclass, replace

from zo_sweeps.engine.updates.sgd import SGD
from zo_sweeps.methods.definition import option
from zo_sweeps.methods.update import Update


@dataclass(frozen=True)
class Clipped(Update):
    """SGD whose projected gradients are clipped."""

    most: float = option(0.5, "largest projected gradient", above=0)

    def apply(self, params, estimate, noise, state, lr):
        terms = tuple((key, max(-self.most, min(self.most, weight))) for key, weight in estimate.terms)
        return SGD().apply(params, replace(estimate, terms=terms), noise, state, lr)
''',
    "metric/misses.py": '''
from dataclasses import dataclass

from zo_sweeps.methods.definition import option
from zo_sweeps.methods.metric import Metric


@dataclass(frozen=True)
class Misses(Metric):
    """Number of wrong rows, weighted."""

    display = "misses"
    unit, unit_size, digits, better = "", 1.0, 0, "lower"

    weight: float = option(1.0, "of a wrong row", above=0)

    def compute(self, predictions, references):
        return self.weight * sum(p != g for p, g in zip(predictions, references, strict=True))
''',
}
OWN = ["perturbation=flipped", "perturbation.stretch=0.5", "update=clipped", "update.most=0.25"]
METRICS = "task.metric=[accuracy,{name:misses,weight:2.0}]"
ELSEWHERE = """
import json, sys, torch
torch.set_num_threads(1)
from tests.worker.common import measured, run
from zo_sweeps.core.trial import Trial
outcome, journal = run(Trial.from_json(json.load(sys.stdin)))
found = measured(outcome, journal) if outcome.steps_done else {}
print(json.dumps([outcome.state.value, outcome.error, outcome.traceback, found.get("scores"), found.get("log")]))
"""


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in MEMBERS.items():
        file = tmp_path / "mine" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return tmp_path / "mine"


def planned(folder: Path, *overrides: str) -> Trial:
    left_out = [f"~grid.blocks.{name}" for name in ("zero_shot", "fo_lora_fa", "zo_lora_fa_q1")]
    few = ["train.steps=3", "estimator.q=2", "update.lr=0.05", *SMALL, *left_out]
    given = [
        "+grid=quickstart",
        "grid.seeds=[3]",
        "grid.relabel=true",
        "grid.tables={}",
        "method=prge",
        *few,
        *overrides,
    ]
    (trial,) = build(Composer(given, [str(folder)])).trials
    return trial


def elsewhere(trial: Trial) -> list[Any]:
    """The trial run in a process of its own: (state, error, traceback, scores, log)."""
    done = subprocess.run(
        [sys.executable, "-c", ELSEWHERE],
        cwd=REPO,
        input=json.dumps(trial.to_json()),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    found: list[Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.multiprocess
def test_a_perturbation_an_update_and_a_metric_of_the_user_s_run_from_the_trial_s_json_alone(folder: Path) -> None:
    trial = planned(folder, *OWN, METRICS)
    config = TrialConfig.of(trial.config)
    assert (config.perturbation.name, config.update.name) == ("flipped", "clipped")
    outcome, journal = run(trial)
    assert outcome.state is TrialState.SUCCEEDED, outcome.traceback or outcome.error
    here = measured(outcome, journal)
    assert elsewhere(trial) == ["SUCCEEDED", "", "", here["scores"], json.loads(json.dumps(here["log"]))]
    wrong = 2 * 12 * (1 - outcome.metrics["test/accuracy"])
    assert outcome.metrics["test/misses"] == pytest.approx(wrong)
    options = (planned(folder, *OWN, METRICS, other) for other in ("update.most=0.1", "perturbation.stretch=0.6"))
    assert len({trial.trial_id, *(other.trial_id for other in options)}) == 3


@pytest.mark.multiprocess
def test_a_folder_that_is_missing_is_one_line_with_its_name(folder: Path) -> None:
    trial = planned(folder, *OWN)
    shutil.rmtree(folder)
    state, error, traceback, _, _ = elsewhere(trial)
    assert (state, traceback) == ("FAILED", "")
    assert error.startswith("UserError: unknown perturbation 'flipped'")
    assert f"the folder {folder}, given with --config-dir, is not on this machine" in error
    assert "\n" not in error


@pytest.mark.multiprocess
def test_a_missing_folder_without_members_of_the_trial_stops_nothing(folder: Path) -> None:
    trial = planned(folder)
    assert TrialConfig.of(trial.config).members == (str(folder),)
    shutil.rmtree(folder)
    assert elsewhere(trial)[:3] == ["SUCCEEDED", "", ""]


def test_a_stored_configuration_with_an_unknown_kind_is_refused_with_the_choices(folder: Path) -> None:
    data = planned(folder).config.to_json()
    with pytest.raises(UserError, match=r"unknown kind 'so'.*choose from: .*zo"):
        TrialConfig.of(Stored({**data, "method": {**data["method"], "kind": "so"}}))


def test_all_that_is_wrong_with_a_stored_configuration_is_one_line(folder: Path) -> None:
    trial = planned(folder)
    data = trial.to_json()
    data["config"]["estimator"]["name"] = "rgee"
    data["config"]["update"]["lr"] = "high"
    outcome, _ = run(Trial.from_json(data))
    assert outcome.error.startswith("UserError: unknown estimator 'rgee'")
    assert "update.lr='high' has the wrong type" in outcome.error
    assert "\n" not in outcome.error


NOTHING = '''
from dataclasses import dataclass

from zo_sweeps.methods.space import Space


@dataclass(frozen=True)
class Nothing(Space):
    """A space whose layers this model does not have."""

    def trainable(self, arch):
        return {count}

    def install(self, module, layers, seed, mask=None):
        from zo_sweeps.engine.layers.wrapped import Wrapped

        return Wrapped(module, [], lambda base, name: base)
'''


def test_a_space_that_matches_no_layer_is_refused_in_the_plan_and_else_in_the_trial(folder: Path) -> None:
    (folder / "space").mkdir()
    for count in (0, 7):
        text = NOTHING.replace("{count}", str(count)).replace("Nothing", f"Nothing{count}")
        (folder / "space" / f"nothing_{count}.py").write_text(text)
    with pytest.raises(UserError, match=r"space 'nothing_0' trains no parameter of model 'demo'"):
        planned(folder, "space=nothing_0", "~grid.fixed.space")
    outcome, _ = run(planned(folder, "space=nothing_7", "~grid.fixed.space"))
    assert outcome.state is TrialState.FAILED
    assert outcome.error.startswith("UserError: space 'nothing_7' trains no parameter")
