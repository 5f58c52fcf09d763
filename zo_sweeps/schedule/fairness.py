"""Turns between the sweeps of one cluster: which of them a free slot is for. Trials that run are never interrupted.

Every driver leaves a claim at the head, and reads the others'. A sweep keeps its slots until it is ahead of one that
waits by half of what handing over costs: the start of a process, which then loads a base model. So sweeps that wait for
each other share a device equally up to that, and up to the trials in flight.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

# A sweep may be ahead by this share of its own CPU-seconds, or of the seconds that a process takes to start.
SLACK, OF_START = 0.05, 0.5
SHORTEST, LONGEST = 1.0, 60.0  # CPU-seconds: bounds of what a start counts for

Held = tuple[int, float, int, int]  # slots, CPUs, GPUs, bytes of main memory


@dataclass(frozen=True)
class Claim:
    """What a sweep has of each device profile, and where it waits.

    Args:
        driver: its name, unique in the cluster.
        used: CPU-seconds of its trials.
        held: CPUs that run its trials now.
        wants: profiles that could run a ready trial of it, for which it has no slot.
        places: node id -> what its processes hold there, those included that have not started yet.
    """

    driver: str
    used: Mapping[str, float] = field(default_factory=dict)
    held: Mapping[str, float] = field(default_factory=dict)
    wants: tuple[str, ...] = ()
    places: Mapping[str, Held] = field(default_factory=dict)


def first_served(mine: Claim, others: Iterable[Claim], device: str, *, start: float | None = None) -> list[Claim]:
    """Return the sweeps that get a free slot of a device profile before `mine` does.

    Args:
        start: seconds that a process takes to start, if `mine` has an idle one in the slot; None: it has none.
    """
    held, used = mine.held.get(device, 0.0), mine.used.get(device, 0.0)
    first = []
    for other in others:
        if device not in other.wants or other.held.get(device, 0.0) > held:
            continue
        its = other.used.get(device, 0.0)
        if start is None:
            before = (other.held.get(device, 0.0), its, other.driver) < (held, used, mine.driver)
        else:
            before = used - its > max(min(max(OF_START * start, SHORTEST), LONGEST), SLACK * used)
        if before:
            first.append(other)
    return first


def base(others: Sequence[Claim], device: str) -> float | None:
    """Return the CPU-seconds from which a sweep that begins now counts: it need not catch up with hours.

    The least of those that wait, because one with all the slots it asked for may have had less; None if none is there.
    """
    there = [other for other in others if device in other.wants] or [one for one in others if one.held.get(device)]
    return min((other.used.get(device, 0.0) for other in there), default=None)
