"""Joules of real trials, by a counter that grows by 1 with each forward of the model: a step is then 1 J."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import LlamaModel

from tests.run.common import make, measured, run
from zo_sweeps.core.events import ScoredDev, Steps
from zo_sweeps.core.trial import TrialState
from zo_sweeps.devices.counters import Counter
from zo_sweeps.devices.energy import EnergyMeter
from zo_sweeps.engine.train import Scores
from zo_sweeps.run import recorder
from zo_sweeps.run.workbench import Workbench

ZO = ("method=prge", "train.steps=6", "update.lr=1e-2")


class Readings(Counter):
    """The forwards of all models of this process, and how often they were read."""

    definition = "readings of a test"
    has_cpu = False
    forwards = 0

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def joules(self) -> float:
        self.count += 1
        return float(Readings.forwards)


@pytest.fixture(autouse=True)
def _every_step_is_reported(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(recorder, "FLUSH_SECONDS", -1.0)

    def ran(module: torch.nn.Module, *_: Any) -> None:
        Readings.forwards += isinstance(module, LlamaModel)

    hook = torch.nn.modules.module.register_module_forward_hook(ran)
    yield
    hook.remove()


def meter_is(monkeypatch: pytest.MonkeyPatch, meter: EnergyMeter) -> None:
    monkeypatch.setattr(EnergyMeter, "of", classmethod(lambda cls, device: meter))


@pytest.mark.parametrize("overrides", [ZO, ("method=fo_lora_fa", "train.steps=6", "update.lr=1e-3")])
def test_every_step_is_measured_and_nothing_else(overrides: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    meter_is(monkeypatch, EnergyMeter(Readings()))
    before, score = Readings.forwards, Workbench.score

    def costly(bench: Workbench, examples: Any) -> Scores:
        Readings.forwards += 100
        return score(bench, examples)

    monkeypatch.setattr(Workbench, "score", costly)
    outcome, journal = run(make(*overrides))
    assert outcome.state is TrialState.SUCCEEDED, outcome.error
    assert Readings.forwards - before > 300, "dev is scored three times, test once"
    assert [event.joules for event in journal if isinstance(event, Steps)] == [1.0] * 6
    assert outcome.metrics["energy/joules"] == 6
    assert outcome.metrics["energy/joules_per_step"] == 1
    assert outcome.metrics["energy/mean_watts"] == pytest.approx(6 / outcome.metrics["train_seconds"])
    assert outcome.device["energy_definition"] == "readings of a test"
    assert not outcome.unmeasured


def test_a_resumed_trial_has_the_sum_of_its_parts_or_the_reason_why_not(monkeypatch: pytest.MonkeyPatch) -> None:
    trial = make(*ZO)
    meter_is(monkeypatch, EnergyMeter(Readings()))
    whole, journal = run(trial)
    half = next(i for i, event in enumerate(journal) if isinstance(event, ScoredDev))
    other = Readings()
    other.definition = "readings of another machine"
    meter_is(monkeypatch, EnergyMeter(other))
    resumed, events = run(trial, journal[:half], attempt=2)
    assert measured(resumed, events) == measured(whole, journal)
    assert resumed.metrics["energy/joules"] == 6
    assert resumed.device["energy_definition"] == "readings of a test; then readings of another machine"
    meter_is(monkeypatch, EnergyMeter(None, reason="no counter here"))
    lost, events = run(trial, journal[:half], attempt=2)
    assert measured(lost, events) == measured(whole, journal), "what is measured changes no result"
    assert "energy/joules" not in lost.metrics
    assert lost.unmeasured == {"energy/": "no counter here"}
    started = [replace(event, joules=None) if isinstance(event, Steps) else event for event in journal[:half]]
    meter_is(monkeypatch, EnergyMeter(Readings()))
    assert run(trial, started, attempt=2)[0].unmeasured == {"energy/": "an earlier attempt did not measure it"}


def test_a_trial_without_steps_claims_and_lacks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    counter: Any = Readings()
    meter_is(monkeypatch, EnergyMeter(counter))
    outcome, _ = run(make("method=zero_shot"))
    assert outcome.state is TrialState.SUCCEEDED, outcome.error
    assert counter.count == 0
    assert not [name for name in outcome.metrics if name.startswith("energy/")]
    assert not outcome.unmeasured
