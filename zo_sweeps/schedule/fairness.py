"""Turns between the sweeps of one cluster: which of them a free slot is for. Trials that run are never interrupted.

Every driver leaves a claim at the head each second and reads the others'. A sweep keeps its slots until it is ahead of
one that waits by some CPU-seconds, so that a loaded base model serves more than one trial.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

SLACK_SECONDS, SLACK = 15.0, 0.05  # a sweep may be ahead by so many CPU-seconds, or by this share of its own


@dataclass(frozen=True)
class Claim:
    """What a sweep has of each device profile, and where it waits.

    Args:
        driver: its name, unique in the cluster.
        used: CPU-seconds of its trials.
        held: CPUs that run its trials now.
        wants: profiles that could run a ready trial of it, for which it has no slot.
    """

    driver: str
    used: Mapping[str, float] = field(default_factory=dict)
    held: Mapping[str, float] = field(default_factory=dict)
    wants: tuple[str, ...] = ()


def first_served(mine: Claim, others: Iterable[Claim], device: str, *, warm: bool) -> Claim | None:
    """Return a sweep that gets a free slot of a device profile before `mine` does; None if there is none.

    Args:
        warm: `mine` has an idle process in the slot.
    """
    held, used = mine.held.get(device, 0.0), mine.used.get(device, 0.0)
    for other in others:
        if device not in other.wants or other.held.get(device, 0.0) > held:
            continue
        its = other.used.get(device, 0.0)
        if warm:
            before = used - its > max(SLACK_SECONDS, SLACK * used)
        else:
            before = (other.held.get(device, 0.0), its, other.driver) < (held, used, mine.driver)
        if before:
            return other
    return None
