"""Members in a folder of the user's, in a process that is given nothing but the trial's JSON."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.cli.common import NOWHERE, in_process
from tests.conftest import REPO
from tests.plan.common import TINY
from tests.run.common import SMALL, measured, run
from tests.run.common import TINY as TINY_MODEL
from zo_sweeps.config.composer import Composer
from zo_sweeps.core.errors import UserError
from zo_sweeps.core.events import Steps
from zo_sweeps.core.trial import Outcome, StoredConfig, Trial, TrialState
from zo_sweeps.methods import registry, trial_config
from zo_sweeps.methods.trial_config import TrialConfig, code_of
from zo_sweeps.plan.build import build
from zo_sweeps.schedule.ledger import read_standing

LEAGUE = REPO / "packages/league/zo_sweeps_league"
PAGE = (REPO / "docs" / "adding" / "perturbation.md").read_text(encoding="utf-8")
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
from tests.run.common import measured, run
from zo_sweeps.core.trial import Trial
for trial in json.load(sys.stdin):
    outcome, journal = run(Trial.from_json(trial))
    found = measured(outcome, journal) if outcome.steps_done else {}
    print(json.dumps([outcome.state.value, outcome.error, outcome.traceback, found.get("scores"), found.get("log")]))
"""


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def write(folder: Path) -> Path:
    for name, text in MEMBERS.items():
        file = folder / "mine" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return folder / "mine"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write(tmp_path)


def planned(folder: Path, *overrides: str) -> Trial:
    left_out = [
        f"~grid.blocks.{name}"
        for name in ("zero_shot", "fo_full", "mezo", "fo_lora_fa", "fo_lora_fa_layerwise", "zo_lora_fa_q1")
    ]
    few = ["train.steps=3", "estimator.q=2", "update.lr=0.05", *SMALL, *TINY_MODEL, *left_out]
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


@dataclass(frozen=True)
class Elsewhere:
    """Trials that ran in a process of their own: (state, error, traceback, scores, log) of each."""

    missing: Path  # a folder of members that is not there any more
    trial: Trial  # of members in another one, which is
    ran: list[Any]
    without_members: list[Any]
    without_folder: list[Any]


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Elsewhere:
    missing, there = (write(tmp_path_factory.mktemp(name)) for name in ("missing", "there"))
    with registry.using_folders(()):
        trials = planned(missing, *OWN), planned(missing), planned(there, *OWN, METRICS)
    assert {TrialConfig.of(trial.config).members for trial in trials[:2]} == {(str(missing),)}
    shutil.rmtree(missing)
    done = subprocess.run(
        [sys.executable, "-c", ELSEWHERE],
        cwd=REPO,
        input=json.dumps([trial.to_json() for trial in trials]),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    without_folder, without_members, ran = (json.loads(line) for line in done.stdout.splitlines()[-3:])
    return Elsewhere(missing, trials[2], ran, without_members, without_folder)


@pytest.mark.multiprocess
def test_a_perturbation_an_update_and_a_metric_of_the_user_s_run_from_the_trial_s_json_alone(
    elsewhere: Elsewhere,
) -> None:
    trial = elsewhere.trial
    config = TrialConfig.of(trial.config)
    assert (config.perturbation.name, config.update.name) == ("flipped", "clipped")
    outcome, journal = run(trial)
    assert outcome.state is TrialState.SUCCEEDED, outcome.traceback or outcome.error
    here = measured(outcome, journal)
    assert elsewhere.ran == ["SUCCEEDED", "", "", here["scores"], json.loads(json.dumps(here["log"]))]
    wrong = 2 * 12 * (1 - outcome.metrics["test/accuracy"])
    assert outcome.metrics["test/misses"] == pytest.approx(wrong)
    (folder,) = map(Path, config.members)
    options = (planned(folder, *OWN, METRICS, other) for other in ("update.most=0.1", "perturbation.stretch=0.6"))
    assert len({trial.trial_id, *(other.trial_id for other in options)}) == 3


@pytest.mark.multiprocess
def test_a_folder_that_is_missing_is_one_line_with_its_name_and_stops_no_trial_that_needs_nothing_of_it(
    elsewhere: Elsewhere,
) -> None:
    assert elsewhere.without_members[:3] == ["SUCCEEDED", "", ""]
    state, error, traceback, _, _ = elsewhere.without_folder
    assert (state, traceback) == ("FAILED", "")
    assert error.startswith("UserError: unknown perturbation 'flipped'")
    assert f"the folder {elsewhere.missing}, given with --config-dir, is not on this machine" in error
    assert "\n" not in error


def test_a_stored_configuration_with_an_unknown_kind_is_refused_with_the_choices(folder: Path) -> None:
    data = planned(folder).config.to_json()
    with pytest.raises(UserError, match=r"unknown kind 'so'.*choose from: .*zo"):
        TrialConfig.of(StoredConfig({**data, "method": {**data["method"], "kind": "so"}}))


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
        from zo_sweeps.engine.layers.low_rank import Wrapped

        return Wrapped(module, [], lambda base, name: base)
'''


def test_a_space_that_matches_no_layer_is_refused_in_the_plan_and_else_in_the_trial(folder: Path) -> None:
    (folder / "space").mkdir()
    for count in (0, 7):
        text = NOTHING.replace("{count}", str(count)).replace("Nothing", f"Nothing{count}")
        (folder / "space" / f"nothing_{count}.py").write_text(text)
    with pytest.raises(UserError, match=r"space 'nothing_0' trains no parameter of model 'random_llama'"):
        planned(folder, "space=nothing_0", "~grid.fixed.space")
    outcome, _ = run(planned(folder, "space=nothing_7", "~grid.fixed.space"))
    assert outcome.state is TrialState.FAILED
    assert outcome.error.startswith("UserError: space 'nothing_7' trains no parameter")


# --- code that has changed since


@pytest.mark.multiprocess
@pytest.mark.long
def test_a_page_s_own_member_runs_again_once_it_computes_something_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (source,) = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    file = tmp_path / source.splitlines()[0].removeprefix("# ")
    file.parent.mkdir(parents=True)
    conf = file.parents[1]
    (conf / "grid").mkdir()
    zo = {**TINY["blocks"]["zo"], "fixed": {**TINY["blocks"]["zo"]["fixed"], "perturbation": "three_point"}}
    (conf / "grid" / "tiny.yaml").write_text("# @package grid\n" + json.dumps({**TINY, "blocks": {"zo": zo}}))
    command = ["+grid=tiny", "executor=inline", NOWHERE, "update.lr=0.1", f"state_dir={tmp_path / 'state'}"]
    command += ["train.steps=2", "split.train=8", "split.dev=8", "split.test=8"]
    command += ["--config-dir", str(conf)]
    losses = lambda: [one.metrics["dev/loss"] for one in read_standing(tmp_path / "state").outcomes.values()]

    file.write_text(source)
    assert "1 run now" in in_process(capsys, *command)
    (first,) = losses()
    (formula,) = re.findall(r"return (.*)", source)
    file.write_text(source.replace(formula, "0 * u"))
    assert "1 run now" in in_process(capsys, *command)
    (_, second) = losses()
    assert second != first
    file.write_text(source + "# as it was\n")
    assert "1 run now" in in_process(capsys, *command, "--rerun", "succeeded")
    assert sorted(losses()) == sorted([first, second])


def test_a_result_names_the_code_that_measured_it_and_of_attempts_with_different_code_both(folder: Path) -> None:
    trial = planned(folder)
    today = code_of(TrialConfig.of(trial.config))
    outcome, journal = run(trial)
    assert (outcome.code, journal[0].code) == (today, today)
    assert Outcome.read(outcome.to_json()) == outcome
    first = [replace(journal[0], code="another"), *(e for e in journal if isinstance(e, Steps))]
    assert run(trial, first, attempt=2)[0].code == f"another+{today}"


def test_the_code_of_a_trial_is_that_of_the_engine_and_of_the_members_that_it_uses(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = TrialConfig.of(planned(folder).config)
    every = {"zo": config, "sign": TrialConfig.of(planned(folder, "update=sign").config)}
    before = {name: code_of(one) for name, one in every.items()}
    assert len({*before.values()}) == 2

    def changes(name: str) -> set[str]:
        """The trials whose code another content of a file changes."""
        digests = trial_config.file_digests
        with monkeypatch.context() as patch:
            one = lambda file, digest: "x" if file == trial_config.ROOT / name else digest
            patch.setattr(trial_config, "file_digests", lambda files: list(map(one, files, digests(files))))
            trial_config._digest.cache_clear()
            after = {name: code_of(one) for name, one in every.items()}
        trial_config._digest.cache_clear()
        return {name for name in every if after[name] != before[name]}

    common = ["engine/step.py", "engine/noise.py", "engine/losses.py", "tasks/scoring.py", "run/workbench.py"]
    common += [f"methods/{name}.py" for name in ("perturbation", "points", "evaluation", "space")]
    for name in (*common, "devices/peak_memory.py"):
        assert (trial_config.ROOT / name).is_file()
        assert changes(name) == {"zo", "sign"}, name
    assert changes("engine/updates/sgd.py") == {"zo"}
    assert changes("engine/precisions/_encoded.py") == {"zo", "sign"}
    for name in ("updates/sign.py", "perturbations/_bases.py", "__init__.py"):
        assert changes(str(LEAGUE / name)) == {"sign"}, "of a package, its member and what is none"
    for name in ("cli/main.py", "engine/spaces/dora.py", str(LEAGUE / "updates" / "muon.py")):
        assert changes(name) == set()
