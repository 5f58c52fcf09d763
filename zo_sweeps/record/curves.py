"""A journal as curves: a run's measurements by step and by time."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from zo_sweeps.core.events import Event, ScoredDev, SquaredGradients, Steps, only
from zo_sweeps.record.journal import last_step


def trail(events: Sequence[Event]) -> dict[str, list[tuple[int, float, float]]]:
    """Return the curves: "train/loss", "dev/loss", "dev/metric" -> (step, seconds, value), by ascending step.

    A curve without points is []. A journal with gradient measurements adds "gradients/<mask>/<density>", from step 0.

    seconds: time of the steps so far, without evaluations and loading. A step's time is an equal share of its event's;
    a step that the journal holds twice counts once, as first written. Cost: one pass.
    """
    losses: dict[int, tuple[float, float]] = {}
    for report in only(Steps, events):
        each = report.seconds / max(1, len(report.losses))
        for i, loss in enumerate(report.losses):
            losses.setdefault(report.first + i, (each, loss))
    steps = range(1, last_step(events) + 1)
    clock = [0.0, *accumulate(losses[step][0] for step in steps)]
    dev = sorted({event.step: event for event in only(ScoredDev, events) if event.step < len(clock)}.items())
    curves = {
        "train/loss": [(step, clock[step], losses[step][1]) for step in steps],
        "dev/loss": [(step, clock[step], event.loss) for step, event in dev],
        "dev/metric": [(step, clock[step], event.metric) for step, event in dev],
    }
    for step, measured in sorted(gradients(events).items()):
        for name, share in measured.covered.items() if step < len(clock) else ():
            curves.setdefault(f"gradients/{name}", []).append((step, clock[step], share))
    return curves


def gradients(events: Sequence[Event]) -> dict[int, SquaredGradients]:
    """Return the measurements of gradients by step."""
    return {event.step: event for event in only(SquaredGradients, events)}
