"""The choice of the fastest format: by what was measured on a machine, once."""

from __future__ import annotations

import pytest

from zo_sweeps.config.composer import Composer
from zo_sweeps.core.errors import UserError
from zo_sweeps.devices import speed
from zo_sweeps.devices.speed import FormatTimes, format_times
from zo_sweeps.methods.trial_config import TrialConfig
from zo_sweeps.plan.build import build

pytestmark = pytest.mark.unit
ROUNDING = {"fp32": 1e-7, "bf16": 8e-3, "fp16": 1e-3}


def times(bf16: float, fp16: float) -> FormatTimes:
    seconds = {"fp32": [1.0, 8.0], "bf16": [bf16, 8 * bf16], "fp16": [fp16, 8 * fp16]}
    return FormatTimes(seconds, ROUNDING, "2026-11-23")


@pytest.mark.parametrize(
    ("bf16", "fp16", "name"),
    [(0.5, 5.0, "bf16"), (2.0, 5.0, "fp32"), (0.5, 0.52, "fp16"), (0.98, 0.98, "fp32"), (0.5, 0.6, "bf16")],
)
def test_the_fastest_wins_and_of_equals_the_one_that_rounds_the_finest(bf16: float, fp16: float, name: str) -> None:
    assert times(bf16, fp16).fastest() == name
    assert times(bf16, fp16).fastest(eps=1e-4) == "fp32"
    assert times(bf16, fp16).gain("bf16") == [1 / bf16, 1 / bf16]


def test_a_machine_is_measured_once_and_again_if_the_file_is_damaged(tmp_path, monkeypatch) -> None:
    runs = []
    monkeypatch.setenv("ZO_SWEEPS_CACHE", str(tmp_path))
    monkeypatch.setattr(speed, "measure", lambda device: runs.append(device) or dict(times(0.5, 5.0).seconds))
    for damaged, count in ((False, 1), (False, 1), (True, 2), (False, 2)):
        if damaged:
            (file,) = (tmp_path / "formats").iterdir()
            file.write_text("{}")
        speed._format_times.cache_clear()  # as in another process
        found = format_times("cpu")
        assert found.fastest() == "bf16"
        assert found.rounding["bf16"] == 2**-7
        assert runs == ["cpu"] * count
    speed._format_times.cache_clear()


@pytest.mark.parametrize("name", ["fp32", "bf16"])
def test_the_fastest_precision_is_a_trial_of_that_precision(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = times(0.5 if name == "bf16" else 2.0, 5.0)
    monkeypatch.setattr(speed, "_format_times", lambda *_: measured)
    grid = ["+grid=quickstart", "grid.seeds=[0]", "device=cpu", "estimator.eps=0.01"]
    fastest = build(Composer([*grid, "precision=fastest"]))
    assert {TrialConfig.of(trial.config).precision.name for trial in fastest.trials} == {name}
    assert {*fastest.every} == {*build(Composer([*grid, f"precision={name}"])).every}
    (note,) = (text for text in fastest.caveats if text.startswith(f"precision=fastest is {name} here"))
    assert measured.line(1e-2) in note
    assert not any("fastest" in text for text in build(Composer([*grid, "precision=auto"])).caveats)


def test_a_precision_that_rounds_coarser_than_eps_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "_format_times", lambda *_: times(0.5, 5.0))
    plan = build(
        Composer(["+grid=quickstart", "grid.seeds=[0]", "device=cpu", "precision=fastest", "estimator.eps=1e-3"])
    )
    configs = [TrialConfig.of(trial.config) for trial in plan.trials]
    assert {c.precision.name for c in configs if c.method.kind.estimates} == {"fp32"}
    assert any("bf16 is faster, and rounds too coarsely for estimator.eps=0.001" in text for text in plan.caveats)


def test_it_is_not_measured_here_for_trials_that_run_elsewhere() -> None:
    with pytest.raises(UserError, match="the trials run on others"):
        build(Composer(["+grid=quickstart", "precision=fastest", "cluster.address=head:6379"]))
