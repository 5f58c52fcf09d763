"""What a trial's record says of the place where its costs were measured."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psutil
import pytest
import torch

from tests.run.common import make, run
from zo_sweeps.core.events import Start
from zo_sweeps.core.host import processor
from zo_sweeps.core.place import apart, places
from zo_sweeps.core.trial import TrialState
from zo_sweeps.devices import energy
from zo_sweeps.devices.energy import Load
from zo_sweeps.devices.probe import probe
from zo_sweeps.run import runner

pytestmark = pytest.mark.unit

STEPS = ("method=prge", "train.steps=4", "train.eval_every=2", "update.lr=1e-2")


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_a_record_has_device_runtime_threads_versions_and_the_load_before_and_during() -> None:
    outcome, journal = run(make(*STEPS))
    (start,) = (event for event in journal if isinstance(event, Start))
    for device in (start.device, outcome.device):
        facts = {name: device[name] for name in ("kind", "name", "runtime", "threads", "processes")}
        assert facts == {"kind": "cpu", "name": processor(), "runtime": "torch", "threads": 1, "processes": 1}
        assert device["versions"]["torch"]
    assert 0 <= start.device["load"]["before"] <= 1
    assert outcome.device["load"].keys() == {"before", "during"}
    assert "earlier" not in outcome.device


def test_a_resumed_trial_keeps_the_place_of_each_attempt_that_ran_steps() -> None:
    trial, asked = make(*STEPS), iter(range(100))
    stopped, journal = run(trial, stop=lambda: next(asked) >= 2)
    assert stopped.state is TrialState.CANCELLED
    torch.set_num_threads(2)
    outcome, _ = run(trial, journal, attempt=2)
    (before,) = outcome.device["earlier"]
    assert before["load"] == stopped.device["load"]
    assert (before["threads"], outcome.device["threads"]) == (1, 2)
    assert apart(places(outcome.device)) == (
        "measured in different places: cpu, PyTorch, 2 threads against cpu, PyTorch, 1 thread"
    )


def test_a_trial_on_the_cpu_of_a_gpu_node_is_not_described_as_of_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = {"kind": "cuda", "profile": "cuda", "name": "A GPU", "gpus": ["A GPU"]}
    monkeypatch.setattr(runner, "probe", lambda: {**probe(), **gpu})
    outcome, _ = run(make(*STEPS))
    assert [outcome.device[name] for name in ("kind", "profile", "name")] == ["cpu", "cpu", processor()]


@pytest.mark.parametrize(
    ("own", "every", "share"),
    [(8.0, 8.0, 0.0), (4.0, 16.0, 0.3), (0.0, 40.0, 1.0), (0.0, 100.0, 1.0), (9.0, 8.0, 0.0)],
)
def test_the_load_is_the_cpu_time_of_others_over_that_of_all_cores(
    own: float, every: float, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """10 s on 4 cores: 40 s of CPU time."""
    clock: dict[str, Any] = {"seconds": 100.0, "cpu": (7.0, 1000.0)}
    monkeypatch.setattr(energy.time, "monotonic", lambda: clock["seconds"])
    monkeypatch.setattr(energy, "cpu_seconds", lambda: clock["cpu"])
    monkeypatch.setattr(energy, "busy_cores", lambda: 1.0)
    monkeypatch.setattr(energy, "cores", lambda: 4)
    monkeypatch.setattr(psutil, "cpu_count", lambda: 4)
    meter = Load()
    assert meter.read() == {"before": 0.25}, "nothing can be told of no time"
    clock |= {"seconds": 110.0, "cpu": (7.0 + own, 1000.0 + every)}
    assert meter.read() == {"before": 0.25, "during": share}
