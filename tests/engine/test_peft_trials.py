"""Trials over every space, planned from configuration files and run by the worker on a small model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from zo_sweeps.config.composer import Composer
from zo_sweeps.core.errors import UserError
from zo_sweeps.core.events import ComputedMask, ScoredDev, Steps, read_event, write_event
from zo_sweeps.core.trial import TrialState
from zo_sweeps.methods import registry
from zo_sweeps.methods.space import Space
from zo_sweeps.methods.trial_config import TrialConfig
from zo_sweeps.plan.build import Plan, build
from zo_sweeps.run import run_trial as worker
from zo_sweeps.run import workbench as loaded

pytestmark = pytest.mark.unit
METHODS = ("dora", "vera", "mezo_lora", "prefix", "sensitive", "sensitive_task", "random_subset", "outliers")
TINY = {"model": "random_llama", "model.arch.hidden_size": 64, "model.arch.num_hidden_layers": 2}
SMALL = {"targets": ["q", "v"], "density": 0.01, "samples": 3, "length": 24}


class Events(list[Any]):
    def emit(self, event: Any) -> None:
        self.append(read_event(json.loads(json.dumps(write_event(event)))))


def plan(folder: Path, methods: Sequence[str] = METHODS, *overrides: str, **space: Any) -> Plan:
    """One block a method, its space made small; a block takes those of the options that its space has."""
    text = folder / "text" / "words.jsonl"
    if not text.exists():
        text.parent.mkdir()
        rows = [json.dumps({"text": f"a film of {i} parts, and every one of them is good"}) for i in range(5)]
        text.write_text("\n".join(rows))
    composer = Composer()
    blocks = {}
    for method in methods:
        options = composer.trial_part({"method": method})["space"]
        given = {**SMALL, "text": str(text), **space}
        blocks[method] = {"fixed": {"method": method, "space": {k: v for k, v in given.items() if k in options}}}
    grid = {
        "name": "small",
        "fixed": {
            **TINY,
            "task": "demo_remarks",
            "prompt": "mezo",
            "split": {"train": 8, "dev": 4, "test": 4},
            "train": {"steps": 4, "effective_batch": 2, "eval_every": 2},
            "evaluation": {"mode": "both"},
        },
        "blocks": blocks,
    }
    (folder / "grid").mkdir(exist_ok=True)
    (folder / "grid" / "small.yaml").write_text("# @package grid\n" + json.dumps(grid))
    return build(Composer(["+grid=small", *overrides], [str(folder)]))


def run(trial: Any, journal: Any = (), stop_after: int = 10**9) -> tuple[Any, Events]:
    events = Events()
    outcome = worker.run_trial(
        trial, events, list(journal), 1, lambda: sum(isinstance(e, ScoredDev) for e in events) >= stop_after
    )
    assert outcome.error == "" or outcome.state is TrialState.CANCELLED, outcome.error + outcome.traceback
    return outcome, events


@pytest.fixture(autouse=True)
def _own_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZO_SWEEPS_CACHE", str(tmp_path / "cache"))


def test_every_method_runs_and_its_memory_is_counted(tmp_path: Path) -> None:
    found = plan(tmp_path)
    assert len(found.trials) == len(METHODS)
    for trial in found.trials:
        outcome, _ = run(trial)
        assert outcome.state is TrialState.SUCCEEDED
        assert outcome.steps_done == 4
        trainable = outcome.metrics["trainable_parameters"]
        assert trainable == expected_trainable(trial)
    assert len(list((tmp_path / "cache" / "masks").glob("*.safetensors"))) == 2  # on the text, on the task


def expected_trainable(trial: Any) -> int:
    from zo_sweeps.models.families import describe

    config = TrialConfig.of(trial.config)
    count = config.space.trainable(describe(config.model.arch))
    assert count > 0
    return count


def test_a_mask_found_once_is_used_by_other_trials_and_named_in_the_journal(tmp_path: Path) -> None:
    first, second = (plan(tmp_path, ["sensitive"], f"seed={seed}").trials[0] for seed in (0, 1))
    assert first.trial_id != second.trial_id
    marks = []
    for trial in (first, second):
        _, events = run(trial)
        (mask,) = [event for event in events if isinstance(event, ComputedMask)]
        marks.append(mask.fingerprint)
    assert marks[0] == marks[1]
    assert len(list((tmp_path / "cache" / "masks").glob("*.json"))) == 1


@pytest.mark.parametrize("refresh", [0, 2])
@pytest.mark.parametrize("method", ["sensitive_task", "random_subset"])
def test_a_resumed_trial_ends_as_the_undisturbed_one(tmp_path: Path, method: str, refresh: int) -> None:
    (trial,) = plan(tmp_path, [method], refresh=refresh).trials
    whole, events = run(trial)
    stopped, begun = run(trial, stop_after=1)
    assert stopped.state is TrialState.CANCELLED
    resumed, rest = run(trial, begun)
    assert {k: v for k, v in resumed.metrics.items() if "/" in k} == {
        k: v for k, v in whole.metrics.items() if "/" in k
    }
    coefs = [c for e in [*begun, *rest] if isinstance(e, Steps) for c in e.coefs]
    assert coefs == [c for e in events if isinstance(e, Steps) for c in e.coefs]


def test_a_log_over_another_mask_is_not_continued(tmp_path: Path) -> None:
    (trial,) = plan(tmp_path, ["sensitive_task"]).trials
    _, begun = run(trial, stop_after=1)
    journal = [replace(e, fingerprint="0" * 16) if isinstance(e, ComputedMask) else e for e in begun]
    outcome = worker.run_trial(trial, Events(), journal, 2, lambda: False)
    assert outcome.state is TrialState.FAILED
    assert "differs from the one that this trial began with (0000000000000000)" in outcome.error


def test_another_wording_under_the_same_name_has_a_mask_of_its_own(tmp_path: Path) -> None:
    for wording in ("{{ sentence }} It was", "{{ sentence }} All in all it was"):
        (trial,) = plan(
            tmp_path, ["sensitive_task"], f'+task.dialects.mezo.template="{wording}"', "grid.relabel=true"
        ).trials
        run(trial)
    assert len(list((tmp_path / "cache" / "masks").glob("*.json"))) == 2


def test_trials_leave_the_base_model_as_it_was(tmp_path: Path) -> None:
    trials = plan(tmp_path, ["sensitive_task", "prefix", "vera"]).trials
    run(trials[0])
    warm = loaded.warm
    assert warm is not None
    before = {name: p.clone() for name, p in warm.model.module.named_parameters()}
    for trial in trials[1:]:
        run(trial)
    assert loaded.warm is warm
    for name, param in warm.model.module.named_parameters():
        assert torch.equal(param, before[name]), name
    assert set(before) == {name for name, _ in warm.model.module.named_parameters()}


def test_the_text_is_in_the_trials_identity_by_content(tmp_path: Path) -> None:
    first = plan(tmp_path, ["sensitive"]).trials[0]
    other = tmp_path / "elsewhere"
    other.mkdir()
    same = plan(other, ["sensitive"]).trials[0]
    assert same.trial_id == first.trial_id
    found = plan(tmp_path, ["sensitive"])
    (tmp_path / "text" / "words.jsonl").write_text('{"text": "something else altogether"}\n' * 5)
    changed = plan(tmp_path, ["sensitive"])
    assert changed.trials[0].trial_id != found.trials[0].trial_id


def test_what_cannot_be_is_said_when_the_grid_is_planned(tmp_path: Path) -> None:
    for wrong, message in (
        ({"scope": "model"}, "unknown scope 'model'"),
        ({"refresh": -1}, "space.refresh of sensitive must be at least 0, not -1"),
        ({"score": "gradient"}, "unknown score 'gradient'"),
    ):
        with pytest.raises(UserError, match=message):
            plan(tmp_path, ["sensitive", "outliers"], **wrong)
    missing = plan(tmp_path, ["sensitive", "outliers"], text="nowhere.jsonl").missing
    assert list(missing.values()) == ["no text at nowhere.jsonl (space.text, under data.dir)"]


def test_the_plan_knows_which_spaces_hold_several_points() -> None:
    from tests.engine.conftest import tiny_model
    from tests.engine.spaces_common import MEMBERS, install

    spaces = registry.members("space")
    for name in MEMBERS:
        space = spaces[name]
        assert issubclass(space, Space)
        assert install(name, tiny_model()).batched == space.batched, name
