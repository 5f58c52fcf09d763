"""What was measured takes the place of what was estimated."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from tests.schedule import fakes
from tests.schedule.driver import sweep
from zo_sweeps.config.composer import Composer
from zo_sweeps.core.trial import Needs, Outcome, StoredConfig, Trial, TrialState
from zo_sweeps.devices.estimate import RUNTIME_BYTES
from zo_sweeps.methods.trial_config import TrialConfig
from zo_sweeps.plan.availability import memory_key
from zo_sweeps.plan.build import build
from zo_sweeps.schedule.backend import COLD, NO_SLOT
from zo_sweeps.schedule.executors.inline import InlineBackend
from zo_sweeps.schedule.prediction import QUANTUM, MemoryPeaks

pytestmark = pytest.mark.unit
GIB = 2**30
CONFIG = [
    *("+grid=quickstart", "grid.relabel=true", "grid.seeds=[0]", "grid.tables={}", "device=cpu"),
    *("method=prge", "evaluation.mode=inner"),
    *(
        f"~grid.blocks.{name}"
        for name in ("zero_shot", "fo_full", "mezo", "fo_lora_fa", "fo_lora_fa_layerwise", "zo_lora_fa_q1")
    ),
    *("space=lora", "space.rank=8", "estimator.q=4", "update.lr=1e-3", "train.batch=16", "train.steps=100"),
    *("train.max_length=64", "split.train=24", "split.dev=8", "split.test=12"),
]


@pytest.fixture(scope="module")
def planned() -> Trial:
    (made,) = build(Composer(CONFIG)).trials
    return made


def trial(name: str, seed: int = 0) -> Trial:
    return replace(fakes.trial(Path(name), name), config=StoredConfig({"seed": seed}), needs=Needs("auto", 8 * GIB))


def peak(of: Trial, size: int, kind: str = "cpu", state: TrialState = TrialState.SUCCEEDED) -> Outcome:
    return Outcome(of.trial_id, state, {"peak_memory_bytes": float(size)}, device={"kind": kind})


@pytest.mark.parametrize(
    ("parts", "same"),
    [
        ({"seed": 3}, True),
        ({"update": {"name": "sgd", "lr": 1e-2}}, True),
        ({"model": {"path": "/there", "name": "renamed"}}, True),
        ({"train": {"steps": 9}}, True),
        ({"train": {"batch": 32}}, False),
        ({"train": {"max_length": 32}}, False),
        ({"train": {"logits": "all"}}, False),
        ({"train": {"packing": False}}, False),
        ({"prompt": {"shared": True}}, False),
        ({"estimator": {"q": 8}}, False),
        ({"model": {"fingerprint": "other"}}, False),
        ({"space": {"rank": 16}}, False),
        ({"space": {"name": "lora_fa"}}, False),
        ({"update": MappingProxyType({"name": "adam", "lr": 1e-3})}, False),  # not merged: it has other options
    ],
)
def test_trials_share_what_was_measured_when_model_method_and_batch_agree(
    planned: Trial, parts: dict[str, Any], same: bool
) -> None:
    config = planned.config.to_json()
    for name, change in parts.items():
        config[name] = {**config[name], **change} if isinstance(change, dict) else change
    other = TrialConfig.of(StoredConfig(config))
    assert other != planned.config
    assert (memory_key(other) == planned.memory_key) == same


def test_the_largest_peak_counts_with_a_margin_and_replaces_the_estimate_either_way() -> None:
    first, other = trial("a"), trial("b", seed=1)
    measured = MemoryPeaks([first], {})
    assert measured.corrected(other) == other
    measured.learn(first, peak(first, 2 * GIB))
    measured.learn(first, peak(first, GIB))
    low = measured.corrected(other).needs.memory_bytes
    assert 2.2 * GIB <= low <= 2.2 * GIB + QUANTUM
    measured.learn(other, peak(other, 20 * GIB))
    assert measured.corrected(first).needs.memory_bytes >= 22 * GIB
    assert measured.corrected(replace(other, needs=Needs("cuda", 8 * GIB))).needs.device == "cuda"


def test_a_gpus_peak_is_without_its_context_and_a_trial_that_failed_teaches_nothing() -> None:
    one = trial("a")
    measured = MemoryPeaks([one], {"a": peak(one, GIB, state=TrialState.OUT_OF_MEMORY)})
    assert measured.corrected(one) == one
    measured.learn(one, peak(one, GIB, kind="cuda"))
    assert measured.corrected(one).needs.memory_bytes >= 1.1 * GIB + RUNTIME_BYTES


class Small(InlineBackend):
    """An inline backend on a node of 4 GiB."""

    def fit(self, trial: Trial) -> int:
        return COLD if trial.needs.memory_bytes <= 4 * GIB else NO_SLOT

    def refusal(self, trial: Trial) -> str:
        return "" if self.fit(trial) else "too large"


def test_a_finished_trial_lets_others_of_its_kind_fit_also_in_a_later_run(tmp_path: Path) -> None:
    def made(name: str, memory: int) -> Trial:
        return fakes.trial(tmp_path / "w", name, needs=Needs("auto", memory), peak=GIB)

    estimated_too_high = made("b", 8 * GIB)
    first = sweep(tmp_path, [estimated_too_high], Small(fakes_target()))
    assert (first.ran, first.waiting) == (0, {"too large": 1})
    both = sweep(tmp_path, [estimated_too_high, made("a", 2 * GIB)], Small(fakes_target()))
    assert both.counts == {TrialState.SUCCEEDED: 2}
    later = sweep(tmp_path, [made("a", 2 * GIB), estimated_too_high, made("c", 8 * GIB)], Small(fakes_target()))
    assert later.counts == {TrialState.SUCCEEDED: 3}


def fakes_target() -> str:
    return "tests.schedule.fakes:run_trial"
