"""A journal as curves: what a run measured, by step and by time."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from zo_sweeps.core.trial import Event
from zo_sweeps.record.journal import evals, last_step


def trail(events: Sequence[Event]) -> dict[str, list[tuple[int, float, float]]]:
    """ "train/loss", "dev/loss", "dev/metric" -> (step, seconds, value), in step order; an absent one is [].

    Where gradients were looked at, "gradients/<mask>/<density>" too, from step 0 on.

    seconds: of the steps so far, evaluations and loading not counted. A step's time is its share of its event's; a step
    that stands in the journal twice counts once, as first written. Cost: one pass.
    """
    losses: dict[int, tuple[float, float]] = {}
    for event in events:
        if event["type"] == "steps":
            each = event["seconds"] / max(1, len(event["losses"]))
            for i, loss in enumerate(event["losses"]):
                losses.setdefault(event["first"] + i, (each, loss))
    steps = range(1, last_step(events) + 1)
    clock = [0.0, *accumulate(losses[step][0] for step in steps)]
    dev = sorted(
        (step, event) for (split, step), event in evals(events).items() if split == "dev" and step < len(clock)
    )
    found = {
        "train/loss": [(step, clock[step], losses[step][1]) for step in steps],
        "dev/loss": [(step, clock[step], event["loss"]) for step, event in dev],
        "dev/metric": [(step, clock[step], event["metric"]) for step, event in dev],
    }
    for step, event in sorted(gradients(events).items()):
        for name, share in event["covered"].items() if step < len(clock) else ():
            found.setdefault(f"gradients/{name}", []).append((step, clock[step], share))
    return found


def gradients(events: Sequence[Event]) -> dict[int, Event]:
    """Step -> the event `gradients` of it."""
    return {event["step"]: event for event in events if event["type"] == "gradients"}
