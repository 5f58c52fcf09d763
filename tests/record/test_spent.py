"""Joules and conditions of a trial's steps from its journal, against sums done by hand."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from zo_sweeps.core.events import ScoredDev, Steps
from zo_sweeps.core.trial import JOULES_TO_TARGET, SECONDS_TO_TARGET
from zo_sweeps.record.spent import dev_within, spent, until
from zo_sweeps_report.metric_meanings import METRICS

pytestmark = pytest.mark.unit


def steps(first: int, count: int, seconds: float, **more: Any) -> Steps:
    return Steps(first=first, losses=(1.0,) * count, seconds=seconds, tokens=1, **more)


def dev(step: int, metric: float) -> ScoredDev:
    return ScoredDev(step=step, loss=1.0, metric=metric)


MEASURED = [
    steps(1, 4, 2.0, joules=20.0, celsius=50.0, mhz=1000.0, throttled=(), own_share=1.0),
    steps(5, 2, 1.0, joules=40.0, celsius=71.5, mhz=700.0, throttled=("heat",), own_share=0.7),
    steps(7, 2, 1.0, joules=12.0, celsius=66.0, mhz=700.0, throttled=("heat", "power"), own_share=1.0),
]


def test_a_trials_energy_is_the_sum_over_its_events_and_its_condition_their_mean_or_worst() -> None:
    metrics = spent(MEASURED, 8)
    assert metrics == pytest.approx(
        {
            "energy/joules": 72,
            "energy/joules_per_step": 9,
            "energy/mean_watts": 18,
            "energy/peak_watts": 40,
            "energy/own_share": (2 * 1 + 1 * 0.7 + 1 * 1) / 4,
            "device/celsius": 71.5,
            "device/mhz": 850,
            "device/throttled_by_heat": 0.5,
            "device/throttled_by_power": 0.25,
        }
    )
    assert metrics.keys() <= METRICS.keys()


def test_a_part_without_joules_leaves_no_energy_and_the_rest_of_the_readings() -> None:
    lacking = replace(MEASURED[1], joules=None, mhz=None)
    metrics = spent([MEASURED[0], lacking, MEASURED[2]], 8)
    assert not [name for name in metrics if name.startswith("energy/")]
    assert metrics["device/mhz"] == pytest.approx((2 * 1000 + 700) / 3)
    assert metrics["device/celsius"] == 71.5
    assert spent([], 0) == {}
    assert spent([steps(1, 2, 1.0)], 2) == {}


def test_a_peak_is_no_shorter_than_a_second_and_no_step_is_left_out_of_it() -> None:
    burst = [steps(1, 1, 0.01, joules=1.0), steps(2, 1, 0.99, joules=9.0), steps(3, 1, 1.0, joules=5.0)]
    assert spent(burst, 3)["energy/peak_watts"] == pytest.approx(10), "a counter's late update is no peak of 100 W"
    assert spent([*burst, steps(4, 1, 0.5, joules=30.0)], 4)["energy/peak_watts"] == pytest.approx(35 / 1.5)
    assert spent([steps(1, 1, 0.1, joules=2.0)], 1)["energy/peak_watts"] == pytest.approx(20), "all there is"


@pytest.mark.parametrize(
    ("metrics", "expected"),
    [
        ((0.9, 0.1, 0.1), (2.0, 20.0)),
        ((0.5, 0.8, 0.9), (3.0, 60.0)),
        ((0.5, 0.6, 0.9), (3.5, 66.0)),  # half of the last event
        ((0.5, 0.6, 0.7), (math.inf, math.inf)),
    ],
)
def test_what_a_target_took_ends_at_the_first_evaluation_that_reaches_it(
    metrics: tuple[float, float, float], expected: tuple[float, float]
) -> None:
    at = (dev(4, metrics[0]), dev(6, metrics[1]), dev(7, metrics[2]))
    events = [MEASURED[0], at[0], MEASURED[1], at[1], MEASURED[2], at[2]]
    found: Mapping[str, float] = until(events, lambda metric: metric >= 0.8)
    assert (found[SECONDS_TO_TARGET], found[JOULES_TO_TARGET]) == pytest.approx(expected)


def test_joules_to_a_target_need_the_steps_up_to_it_only_and_a_step_counts_once() -> None:
    unmeasured = steps(7, 2, 1.0)
    events = [MEASURED[0], MEASURED[0], MEASURED[1], unmeasured, dev(6, 0.8), dev(8, 0.9)]
    assert until(events, lambda metric: metric >= 0.8)[JOULES_TO_TARGET] == pytest.approx(60)
    assert until(events, lambda metric: metric >= 0.9) == pytest.approx({SECONDS_TO_TARGET: 4})
    assert until([dev(0, 0.9)], lambda metric: metric >= 0.8) == {SECONDS_TO_TARGET: 0, JOULES_TO_TARGET: 0}


@pytest.mark.parametrize(("seconds", "step"), [(2.0, 4), (2.4, 4), (3.0, 6), (60.0, 6), (1.9, None)])
def test_the_scores_within_a_time_are_the_best_of_the_evaluations_up_to_it(seconds: float, step: int | None) -> None:
    losses = {4: 0.9, 6: 0.5, 8: 0.7}
    evaluated = [ScoredDev(step=at, loss=loss, metric=at, metrics={"f1": 2 * at}) for at, loss in losses.items()]
    got = dev_within([*MEASURED, *evaluated], seconds, lambda event: event.loss)
    assert got == ({} if step is None else {"dev/loss": losses[step], "dev/metric": step, "dev/f1": 2 * step})
