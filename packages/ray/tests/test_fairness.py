"""Turns between sweeps: what drivers choose from each other's claims, on nodes and a clock of their own. No Ray."""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.schedule import fakes
from zo_sweeps.core.events import Steps
from zo_sweeps.core.host import GIB
from zo_sweeps.core.trial import Trial
from zo_sweeps.methods.executor import Executor
from zo_sweeps.schedule.placement import Node
from zo_sweeps_ray import slots as ray_slots
from zo_sweeps_ray.executor import FIRST_SECONDS, REFUSED_SECONDS, TURN_SECONDS
from zo_sweeps_ray.fairness import LONGEST, OF_START, SHORTEST, SLACK, Claim, base, first_served
from zo_sweeps_ray.slots import Slot, Slots

pytestmark = pytest.mark.unit
CPU = "cpu"
START_SECONDS = 1.5  # of a process
REPORT_SECONDS = 0.3  # until Ray shows at the head what is free on a node
NOTE_SECONDS = 2.0  # between notes on the agents
TRIAL = fakes.trial(Path("unused"), "t")
STEP = Steps(first=1, losses=(), seconds=0.0, tokens=0)


@dataclass(eq=False)
class Actor:
    """A process, from when Ray had CPUs for it."""

    begins: float = math.inf


class World:
    """One node, or one agent, and its clock. Ray gives free CPUs to the actor that was asked for first."""

    def __init__(self, node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
        self.node, self.now, self.sweeps = node, 0.0, list[Sweeping]()
        self.claims: dict[str, Claim] = {}
        self.actors: list[Actor] = []
        self.seen: list[tuple[float, float]] = [(-math.inf, node.cpus)]  # when, and how many CPUs were free
        self.leases: dict[str, int] = {}
        self.noted: tuple[float, dict[str, int]] = (-math.inf, {})
        self.refused = 0
        monkeypatch.setattr(ray_slots, "time", SimpleNamespace(monotonic=lambda: self.now))
        monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(kill=self.end))

    def start(self, *_: object) -> Actor:
        self.actors.append(Actor())
        self._schedule()
        return self.actors[-1]

    def end(self, actor: Actor) -> None:
        self.actors.remove(actor)
        self._schedule()

    def _schedule(self) -> None:
        for actor in self.actors[: int(self.node.cpus)]:
            actor.begins = min(actor.begins, self.now + START_SECONDS)
        self.seen = [*self.seen[-200:], (self.now, max(0.0, self.node.cpus - len(self.actors)))]

    def run(self, seconds: float = math.inf) -> None:
        """Go on until every sweep has ended, or for so long."""
        end = self.now + seconds
        while self.now < end and not all(one.is_over for one in self.sweeps):
            self.now = min(one.due() for one in self.sweeps)
            for one in self.sweeps:
                if one.due() <= self.now:
                    one.act()

    def free(self) -> dict[str, dict[str, float]]:
        if self.node.is_agent:
            return {}
        known = [cpus for when, cpus in self.seen if when <= self.now - REPORT_SECONDS]
        return {self.node.node_id: {"CPU": known[-1], "memory": float(self.node.memory_bytes)}}

    def nodes(self, driver: str) -> list[Node]:
        if self.now - self.noted[0] >= NOTE_SECONDS:
            self.noted = (self.now, dict(self.leases))
        return [replace(self.node, leased=sum(n for name, n in self.noted[1].items() if name != driver))]


class Sweeping:
    """A sweep as `Sweep` and `RayBackend` run one: rounds of launches, a look at the others, a wait."""

    def __init__(
        self,
        world: World,
        name: str,
        lengths: Sequence[float],
        begins: float = 0.0,
        user: str = "ada",
        priority: int = 0,
    ) -> None:
        self.name, self.world, self.planned, self.lengths = name, world, lengths, list(lengths)
        self.slots = Slots("module:function", Executor(), self, Claim(name, user=user, priority=priority))  # type: ignore[arg-type]
        self.slots._start_actor = world.start  # type: ignore[method-assign]
        self.work: list[tuple[float, float]] = []
        self.last_start = math.inf
        self._runs: list[tuple[Slot, Actor, float]] = []  # with its process, and the length of its trial
        self._joined, self._looked, self._next = begins, -math.inf, begins
        world.sweeps.append(self)

    def takes(self, trial: Trial) -> bool:
        """Return whether agents take a trial."""
        return True

    def slot(self, node: Node, threads: int, target: str) -> Any:
        """Return a stand-in for the slot of the agent."""
        self._lease = Actor(self.world.now)
        return SimpleNamespace(give_up=lambda trial_id, attempt: None)

    @property
    def is_over(self) -> bool:
        return not self.lengths and not self._runs

    def due(self) -> float:
        """When it does something next."""
        if self.is_over:
            return math.inf
        return min([self._next, *(process.begins + length for _, process, length in self._runs)])

    def act(self) -> None:
        now, world = self.world.now, self.world
        for run in list(self._runs):
            slot, process, length = run
            if process.begins <= now and not slot.heard:
                self.slots.hear_of(slot, [STEP])
            if process.begins + length <= now:
                self.work.append((process.begins, now))
                self.slots.free(slot)
                self._runs.remove(run)
                world.leases[self.name] = world.leases.get(self.name, 0) - 1
        if self.is_over:  # its driver ends, and its processes with it
            del world.claims[self.name]
            for slot in list(self.slots):
                self.slots.drop(slot)
            return
        self.slots.begin_round()
        while self.lengths:
            if self.slots.choose(TRIAL) is None or now - self._joined < FIRST_SECONDS:
                self.slots.want(TRIAL)
                break
            slot = self.slots.take(TRIAL, 1, None)
            if world.node.is_agent and sum(world.leases.values()) == world.node.slots:
                world.refused += 1
                self.slots.drop(slot)
                self.slots.avoid(world.node, REFUSED_SECONDS)
                continue
            world.leases[self.name] = world.leases.get(self.name, 0) + 1
            process = self._lease if world.node.is_agent else slot.actor
            process.begins = max(process.begins, now)
            self._runs.append((slot, process, self.lengths.pop(0)))
            self.last_start = now
        if now - self._looked >= TURN_SECONDS or self.last_start == now:
            self._looked = now
            self.slots.see(world.nodes(self.name), world.free())
            world.claims[self.name] = self.slots.claim()
            self.slots.hear([claim for name, claim in world.claims.items() if name != self.name])
            vain = self.slots.in_vain()
            for run in [run for run in self._runs if run[0] in vain]:
                self._runs.remove(run)
                self.slots.drop(run[0])
                self.lengths.append(run[2])
        self._next = now + TURN_SECONDS


def shares(world: World) -> list[float]:
    """The slot-seconds of each sweep while all have trials that wait."""
    first = max(min(begin for begin, _ in one.work) for one in world.sweeps)
    last = min(min(one.last_start, world.now) for one in world.sweeps)
    return [sum(max(0.0, min(end, last) - max(begin, first)) for begin, end in one.work) for one in world.sweeps]


def lengths(seconds: float, count: int, seed: int) -> list[float]:
    chance = random.Random(seed)
    return [seconds * chance.uniform(2 / 3, 4 / 3) for _ in range(count)]


def node(cpus: int) -> Node:
    return Node("1", "desk", CPU, cpus, 0, 64 * GIB)


AGENT = Node("agent:board", "board", "jetson-orin-nano", 4, 0, 8 * GIB, slots=1)


@pytest.mark.parametrize("where", [node(2), node(5), AGENT], ids=["2 slots", "5 slots", "agent"])
@pytest.mark.parametrize("later", [0.0, 20.0])
def test_three_sweeps_get_equal_shares_within_a_tenth_while_all_have_trials(
    where: Node, later: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last has twice the trials, or begins later and has as many as they have left."""
    world, count = World(where, monkeypatch), 20 * (where.slots or int(where.cpus))
    for number, trials in enumerate((count, count, 2 * count) if not later else (2 * count, 2 * count, count)):
        Sweeping(world, "abc"[number], lengths(1.5, trials, number), later if number == 2 else 0.1 * number)
    world.run()
    assert [len(one.work) for one in world.sweeps] == [len(one.planned) for one in world.sweeps], "each trial once"
    assert world.refused <= 2
    got = shares(world)
    assert got == pytest.approx([sum(got) / 3] * 3, rel=0.1)
    assert sum(got) > count * 1.5, "the time in which all have trials is most of it"


@pytest.mark.parametrize("where", [node(2), node(5), AGENT], ids=["2 slots", "5 slots", "agent"])
@pytest.mark.parametrize("later", [0.0, 20.0])
def test_users_get_equal_shares_within_a_tenth_whatever_the_number_of_their_sweeps(
    where: Node, later: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two sweeps of one user, the second of which may begin later, and one of another."""
    world, slots = World(where, monkeypatch), where.slots or int(where.cpus)
    for number, (user, begins) in enumerate([("ada", 0.0), ("ada", later), ("ole", 0.1)]):
        Sweeping(world, "abc"[number], lengths(1.5, 400 * slots, number), begins, user)
    world.run(later + 200.0)
    one, two, other = shares(world)
    assert one + two == pytest.approx(other, rel=0.1)
    assert one == pytest.approx(two, rel=0.15)
    assert world.refused <= 2


def test_a_sweep_of_higher_priority_gets_every_slot_that_frees_up_and_those_below_share_the_rest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(node(4), monkeypatch)
    low, other = (Sweeping(world, name, lengths(1.5, 60, n)) for n, name in enumerate("ab"))
    world.run(20)
    high = Sweeping(world, "c", lengths(1.5, 40, 3), world.now, "ole", priority=1)
    world.run()
    first, last = min(begin for begin, _ in high.work), high.last_start
    started = [begin for one in (low, other) for begin, _ in one.work if first + START_SECONDS + 2.0 < begin < last]
    assert started == [], "none after the trials that ran and their processes made way"
    assert [len(one.work) for one in world.sweeps] == [60, 60, 40]


def test_trials_of_any_length_get_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(node(2), monkeypatch)
    for number, seconds in enumerate((3.0, 10.0, 30.0)):
        Sweeping(world, "abc"[number], lengths(seconds, int(1500 / seconds), number))
    world.run(900)
    got = shares(world)
    assert got == pytest.approx([sum(got) / 3] * 3, rel=0.1)
    assert sum(got) > 0.8 * 2 * 900, "no slot is idle, but for the start of processes"


def test_a_sweep_alone_takes_everything_and_nobody_waits_for_one_that_wants_another_device() -> None:
    mine = Claim("a", {CPU: 1e6}, {CPU: 8.0}, (CPU,))
    assert first_served(mine, [], CPU) == []
    other = Claim("b", {CPU: 0.0}, {}, ("cuda",))
    assert first_served(mine, [other], CPU) == []
    waiting = Claim("b", {}, {}, (CPU,))
    assert first_served(mine, [waiting, other], CPU, start=1.0) == [waiting]
    holds_more = Claim("b", {}, {CPU: 9.0}, (CPU,))
    assert first_served(mine, [holds_more], CPU, start=1.0) == []


def test_a_higher_priority_goes_before_whatever_it_has_had_and_a_lower_one_never() -> None:
    mine = Claim("b", {CPU: 5.0}, {CPU: 1.0}, (CPU,), user="ada")
    high = Claim("c", {CPU: 900.0}, {CPU: 7.0}, (CPU,), user="ole", priority=1)
    low = Claim("a", {}, {}, (CPU,), user="ole", priority=-1)
    for start in (None, 3.0):
        assert first_served(mine, [low, high], CPU, start=start) == [high]
        assert first_served(high, [low, mine], CPU, start=start) == []
    assert base([mine, high, low], CPU, 1) == 900
    assert base([mine, high, low], CPU, 2) is None


def test_the_slots_of_a_user_with_two_sweeps_count_twice() -> None:
    two = [Claim(name, {CPU: 9.0}, {CPU: 1.0}, (CPU,), user="ada") for name in "ab"]
    other = Claim("c", {CPU: 9.0}, {CPU: 2.0}, (CPU,), user="ole")
    elsewhere = Claim("d", {"cuda": 9.0}, {"cuda": 1.0}, user="ole")
    assert first_served(other, [*two, elsewhere], CPU) == two, "two and two CPUs: the names decide"
    assert first_served(two[0], [two[1], other, elsewhere], CPU) == []
    more = Claim("c", {CPU: 9.0}, {CPU: 1.0}, (CPU,), user="ole")
    assert first_served(two[0], [two[1], more], CPU) == [more]


@pytest.mark.parametrize(
    ("start", "used", "slack"),
    [(0.1, 9.0, SHORTEST), (8.0, 9.0, 4.0), (500.0, 9.0, LONGEST), (8.0, 1000.0, 50.0)],
)
def test_a_process_is_kept_until_its_sweep_is_ahead_by_half_its_start_or_a_twentieth(
    start: float, used: float, slack: float
) -> None:
    assert (OF_START, SLACK) == (0.5, 0.05)
    near, far = (Claim(name, {CPU: used - slack + by}, {}, (CPU,), user=name) for name, by in (("b", 0.1), ("c", -0.1)))
    mine = Claim("a", {CPU: used}, {}, (CPU,))
    assert first_served(mine, [near, far], CPU, start=start) == [far]
    assert first_served(mine, [near, far], CPU) == [near, far], "a free slot goes to the one that has had less"


def test_a_sweep_that_begins_counts_from_the_least_of_those_that_wait() -> None:
    limited = Claim("a", {CPU: 5.0}, {CPU: 1.0})  # it has all the slots that it asked for
    waiting, other = (Claim(name, {CPU: used}, {}, (CPU,)) for name, used in (("b", 70.0), ("c", 80.0)))
    ended = Claim("d", {CPU: 1.0})
    assert base([limited, waiting, other, ended], CPU) == 70
    assert base([limited, ended], CPU) == 5
    assert base([ended], CPU) is None
