"""What the steps in a journal have spent: seconds, joules, and the condition of the device meanwhile."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from zo_sweeps.core.events import Event, ScoredDev, Steps, only
from zo_sweeps.core.trial import JOULES_TO_TARGET, SECONDS_TO_TARGET

WINDOW = 1.0  # seconds of steps, at least, of which a peak of power is the mean: counters take 0.1 s at worst


def spent(reports: Sequence[Steps], steps: int) -> dict[str, float]:
    """Return the metrics `energy/…` and `device/…` of reports on so many steps, which may have lost their log.

    Those that not all reports allow are left out: a trial's joules are the sum over its attempts, and it has none if a
    part of one was not measured.
    """
    seconds, metrics = sum(report.seconds for report in reports), {}
    joules = sum(_joules(report) for report in reports)
    if seconds and not math.isnan(joules):
        metrics["energy/joules"] = joules
        metrics["energy/joules_per_step"] = joules / steps
        metrics["energy/mean_watts"] = joules / seconds
        metrics["energy/peak_watts"] = max(_windows(reports))
        if (share := _mean((report.seconds, report.own_share) for report in reports)) is not None:
            metrics["energy/own_share"] = share
    if celsius := [report.celsius for report in reports if report.celsius is not None]:
        metrics["device/celsius"] = max(celsius)
    if (mhz := _mean((report.seconds, report.mhz) for report in reports)) is not None:
        metrics["device/mhz"] = mhz
    for cause in ("heat", "power"):
        throttled = ((one.seconds, None if one.throttled is None else cause in one.throttled) for one in reports)
        if (share := _mean(throttled)) is not None:
            metrics[f"device/throttled_by_{cause}"] = share
    return metrics


def _windows(reports: Sequence[Steps]) -> list[float]:
    """Return the mean power over consecutive events of WINDOW seconds or more; a rest is a part of the last window."""
    windows, seconds, joules = [(0.0, 0.0)], 0.0, 0.0
    for report in reports:
        seconds, joules = seconds + report.seconds, joules + _joules(report)
        if seconds >= WINDOW:
            windows.append((seconds, joules))
            seconds = joules = 0.0
    last = windows.pop()
    windows.append((last[0] + seconds, last[1] + joules))
    return [joules / seconds for seconds, joules in windows if seconds]


def _mean(readings: Iterable[tuple[float, float | None]]) -> float | None:
    """Return the mean over time of (seconds, value), where there is a value; None without such a time."""
    known = [(seconds, value) for seconds, value in readings if value is not None]
    seconds = sum(seconds for seconds, _ in known)
    return sum(seconds * value for seconds, value in known) / seconds if seconds else None


def _joules(report: Steps) -> float:
    return math.nan if report.joules is None else report.joules


def until(events: Sequence[Event], reached: Callable[[float], bool]) -> dict[str, float]:
    """Return the seconds and joules of the steps up to the first evaluation on dev whose metric is `reached`.

    Both are infinite if there is no such evaluation. Joules are left out if a part of these steps was not measured.
    """
    dev = sorted((event.step, event.metric) for event in only(ScoredDev, events))
    target = next((step for step, metric in dev if reached(metric)), None)
    if target is None:
        return {SECONDS_TO_TARGET: math.inf, JOULES_TO_TARGET: math.inf}
    seconds, joules = spent_by(events, target)
    return {SECONDS_TO_TARGET: seconds, **({} if math.isnan(joules) else {JOULES_TO_TARGET: joules})}


def dev_within(events: Sequence[Event], seconds: float, by: Callable[[ScoredDev], float]) -> dict[str, float]:
    """Return the scores on dev of the evaluation with the lowest `by` whose steps took at most `seconds`; {}: none."""
    dev = [event for event in only(ScoredDev, events) if spent_by(events, event.step)[0] <= seconds]
    best = min(dev, key=lambda event: (by(event), event.step), default=None)
    named = {f"dev/{name}": value for name, value in best.metrics.items()} if best else {}
    return {**named, "dev/loss": best.loss, "dev/metric": best.metric} if best else {}


def spent_by(events: Sequence[Event], target: int) -> tuple[float, float]:
    """Return the seconds and joules of the steps up to one; joules are NaN if a part of them was not measured.

    A step's part of its event is an equal share. Cost: one pass.
    """
    seconds = joules = 0.0
    counted = 0
    for report in only(Steps, events):
        if report.first > counted:
            steps = len(report.losses)
            part = max(0, min(target - report.first + 1, steps)) / steps if steps else 0.0
            if part:
                seconds += part * report.seconds
                joules += part * _joules(report)
            counted = report.last
    return seconds, joules
