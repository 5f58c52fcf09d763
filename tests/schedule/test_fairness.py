"""Turns between sweeps, with a clock of their own: shares of CPU time, newcomers, waits. No Ray."""

from __future__ import annotations

import heapq
import random
from dataclasses import dataclass, field

import pytest

from zo_sweeps.schedule.fairness import SLACK_SECONDS, Claim, first_served

pytestmark = pytest.mark.unit
CPU = "cpu"


@dataclass
class Sweeping:
    """A sweep that always has trials to run, of `seconds` each on average."""

    name: str
    seconds: float
    begins: float = 0.0
    used: float = 0.0
    held: int = 0
    idle: int = 0
    base: float = 0.0
    took: list[float] = field(default_factory=list)

    def claim(self) -> Claim:
        return Claim(self.name, {CPU: self.base + self.used}, {CPU: float(self.held)}, (CPU,))


def simulate(sweeps: list[Sweeping], slots: int, seconds: float) -> None:
    """Run the sweeps on `slots` CPUs: each asks in a random order, and gives back an actor that it may not use."""
    chance = random.Random(7)
    ends: list[tuple[float, int]] = []
    present: list[Sweeping] = []
    now = 0.0
    while now < seconds:
        for one in sweeps:
            if one.begins <= now and one not in present:
                one.base = min((other.claim().used[CPU] for other in present), default=0.0)
                present.append(one)
        progress = True
        while progress:
            progress = False
            for one in chance.sample(present, len(present)):
                others = [other.claim() for other in present if other is not one]
                if one.idle and first_served(one.claim(), others, CPU, warm=True):
                    one.idle, progress = one.idle - 1, True
                free = slots - sum(other.held + other.idle for other in present)
                if one.idle or (free and not first_served(one.claim(), others, CPU, warm=False)):
                    one.idle -= bool(one.idle)
                    one.held += 1
                    one.took.append(now)
                    heapq.heappush(ends, (now + one.seconds * chance.uniform(0.5, 1.5), sweeps.index(one)))
                    progress = True
        before, (now, index) = now, heapq.heappop(ends)
        for one in present:
            one.used += one.held * (now - before)
        sweeps[index].held -= 1
        sweeps[index].idle += 1


@pytest.mark.parametrize("slots", [1, 2, 5])
def test_sweeps_with_trials_of_any_length_get_the_same_cpu_time_within_a_tenth(slots: int) -> None:
    sweeps = [Sweeping("a", 3.0), Sweeping("b", 10.0), Sweeping("c", 40.0)]
    simulate(sweeps, slots, 4000.0)
    fair = sum(one.used for one in sweeps) / 3
    assert fair == pytest.approx(slots * 4000 / 3, rel=0.02), "no slot stood idle"
    for one in sweeps:
        assert one.used == pytest.approx(fair, rel=0.1), one.name


def test_a_newcomer_shares_from_then_on_and_does_not_catch_up() -> None:
    sweeps = [Sweeping("a", 5.0), Sweeping("b", 5.0), Sweeping("late", 5.0, begins=1000.0)]
    simulate(sweeps, 2, 2000.0)
    assert sweeps[2].used == pytest.approx(2 * 1000 / 3, rel=0.1)
    assert sweeps[2].took[0] < 1000 + 4 * SLACK_SECONDS
    assert sweeps[0].used == pytest.approx(1000 + 2 * 1000 / 3, rel=0.1)


def test_a_sweep_alone_takes_everything_and_nobody_waits_for_one_that_wants_another_device() -> None:
    mine = Claim("a", {CPU: 1e6}, {CPU: 8.0}, (CPU,))
    assert first_served(mine, [], CPU, warm=False) is None
    other = Claim("b", {CPU: 0.0}, {}, ("cuda",))
    assert first_served(mine, [other], CPU, warm=False) is None
    waiting = Claim("b", {}, {}, (CPU,))
    assert first_served(mine, [waiting], CPU, warm=True) is waiting
    holds_more = Claim("b", {}, {CPU: 9.0}, (CPU,))
    assert first_served(mine, [holds_more], CPU, warm=True) is None


def test_a_loaded_process_is_kept_until_its_sweep_is_ahead_by_the_slack() -> None:
    waiting = Claim("b", {CPU: 100.0}, {}, (CPU,))
    near, far = (Claim("a", {CPU: 100 + SLACK_SECONDS + by}, {}, (CPU,)) for by in (-1, 1))
    assert first_served(near, [waiting], CPU, warm=True) is None
    assert first_served(far, [waiting], CPU, warm=True) is waiting
    assert first_served(near, [waiting], CPU, warm=False) is waiting, "a free slot goes to the one that has had less"
