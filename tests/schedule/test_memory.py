"""What was measured takes the place of what was estimated."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.schedule import fakes
from tests.schedule.driver import sweep
from zo_sweeps.core.trial import Needs, Outcome, Trial, TrialState
from zo_sweeps.devices.estimate import RUNTIME_BYTES
from zo_sweeps.schedule.executors import COLD, NO_SLOT
from zo_sweeps.schedule.inline_executor import InlineExecutor
from zo_sweeps.schedule.memory import QUANTUM, Measured, memory_key

pytestmark = pytest.mark.unit
GIB = 2**30
CONFIG = {
    "model": {"fingerprint": "m", "path": "/here"},
    "task": {"fingerprint": "t", "name": "sst2"},
    "space": {"name": "lora", "rank": 8},
    "estimator": {"name": "rge", "q": 4, "eps": 1e-3},
    "update": {"name": "sgd", "lr": 1e-3},
    "train": {"batch": 16, "steps": 100, "max_length": 64},
    "seed": 0,
}


def trial(name: str, **parts: object) -> Trial:
    return Trial(name, {**CONFIG, **parts}, needs=Needs("auto", 8 * GIB))


def peak(of: Trial, size: int, kind: str = "cpu", state: TrialState = TrialState.SUCCEEDED) -> Outcome:
    return Outcome(of.trial_id, state, {"peak_memory_bytes": float(size)}, device={"kind": kind})


@pytest.mark.parametrize(
    ("parts", "same"),
    [
        ({"seed": 3}, True),
        ({"update": {"name": "sgd", "lr": 1e-2}}, True),
        ({"model": {"fingerprint": "m", "path": "/there"}}, True),
        ({"train": {"batch": 16, "steps": 9, "max_length": 64}}, True),
        ({"train": {"batch": 32, "steps": 100, "max_length": 64}}, False),
        ({"estimator": {"name": "rge", "q": 8, "eps": 1e-3}}, False),
        ({"model": {"fingerprint": "other"}}, False),
        ({"space": {"name": "lora", "rank": 16}}, False),
        ({"update": {"name": "adam", "lr": 1e-3}}, False),
    ],
)
def test_trials_share_what_was_measured_when_model_method_and_batch_agree(parts: dict[str, object], same: bool) -> None:
    assert (memory_key(trial("a")) == memory_key(trial("b", **parts))) == same


def test_the_largest_peak_counts_with_a_margin_and_replaces_the_estimate_either_way() -> None:
    first, other = trial("a"), trial("b", seed=1)
    measured = Measured([first], {})
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
    measured = Measured([one], {"a": peak(one, GIB, state=TrialState.OUT_OF_MEMORY)})
    assert measured.corrected(one) == one
    measured.learn(one, peak(one, GIB, kind="cuda"))
    assert measured.corrected(one).needs.memory_bytes >= 1.1 * GIB + RUNTIME_BYTES


class Small(InlineExecutor):
    """An inline executor on a node of 4 GiB."""

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
