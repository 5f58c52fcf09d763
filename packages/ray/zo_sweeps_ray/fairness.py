"""Turns between the sweeps of one cluster: which of them a free slot is for. Trials that run are never interrupted.

Every driver leaves a claim at the head, and reads the others'. Free slots go to the sweep of the highest priority.
Among equals, users share a device equally, and so do the sweeps of a user: the CPU-seconds and CPUs of a sweep count as
many times as its user has sweeps on the device (as of a flow of that weight in fair queuing). A sweep keeps its slots
until it is ahead of one that waits by half of what handing over costs: the start of a process, which then loads a base
model. So shares are equal up to that, and up to the trials in flight.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

# A sweep may be ahead by this share of its own CPU-seconds, or of the seconds that a process takes to start.
SLACK, OF_START = 0.05, 0.5
SHORTEST, LONGEST = 1.0, 60.0  # CPU-seconds: bounds of what a start counts for

Held = tuple[float, ...]  # slots, CPUs, GPUs, bytes of main memory
Asks = tuple[int, Mapping[str, float], Mapping[str, str]]
NO_ASKS: Asks = (0, {}, {})


@dataclass(frozen=True)
class Claim:
    """What a sweep has of each device profile, and where it waits.

    Args:
        driver: its name, unique in the cluster.
        used: CPU-seconds of its trials, each counted `count` times, as of when it ran.
        held: CPUs that run its trials now, counted once.
        wants: profiles that could run a ready trial of it, for which it has no slot.
        places: node id -> what its processes hold there, those included that have not started yet.
        asks: what an autoscaler is to make room for: the number of slots, the resources and the labels of each.
    """

    driver: str
    used: Mapping[str, float] = field(default_factory=dict)
    held: Mapping[str, float] = field(default_factory=dict)
    wants: tuple[str, ...] = ()
    places: Mapping[str, Held] = field(default_factory=dict)
    user: str = ""
    priority: int = 0
    asks: Asks = NO_ASKS

    def is_on(self, device: str) -> bool:
        """Return whether it has slots of a device profile, or waits for one."""
        return device in self.wants or self.held.get(device, 0.0) > 0


def count(mine: Claim, others: Iterable[Claim], device: str) -> int:
    """Return how many times the slots of `mine` count: once per sweep of its user and priority on the device.

    `mine` counts wherever it is: it asks because it is about to use the device.
    """
    mates = (other for other in others if (other.user, other.priority) == (mine.user, mine.priority))
    return 1 + sum(other.driver != mine.driver and other.is_on(device) for other in mates)


def first_served(mine: Claim, others: Iterable[Claim], device: str, *, start: float | None = None) -> list[Claim]:
    """Return the sweeps that get a free slot of a device profile before `mine` does.

    Args:
        start: seconds that a process takes to start, if `mine` has an idle one in the slot; None: it has none.
    """
    others = list(others)
    every = [mine, *others]

    def standing(claim: Claim) -> tuple[float, float, str]:
        return claim.held.get(device, 0.0) * count(claim, every, device), claim.used.get(device, 0.0), claim.driver

    held, used, _ = mine_now = standing(mine)
    ahead = 0.0  # by so much a sweep with an idle process is ahead before it hands over
    if start is not None:
        ahead = max(min(max(OF_START * start, SHORTEST), LONGEST) * count(mine, others, device), SLACK * used)
    first = []
    for other in others:
        if device not in other.wants or other.priority < mine.priority:
            continue
        its_held, its, _ = its_now = standing(other)
        before = its_now < mine_now if start is None else its_held <= held and used - its > ahead
        if other.priority > mine.priority or before:
            first.append(other)
    return first


def base(others: Sequence[Claim], device: str, priority: int = 0) -> float | None:
    """Return the CPU-seconds from which a sweep that begins now counts: it need not catch up with hours.

    The least of the sweeps of its priority that wait, because one with all the slots it asked for may have had less;
    None if none is there.
    """
    others = [other for other in others if other.priority == priority]
    there = [other for other in others if device in other.wants] or [one for one in others if one.held.get(device)]
    return min((other.used.get(device, 0.0) for other in there), default=None)
