"""The choice of a slot beside other drivers: what they hold, what they wait for, what is asked of Ray. No Ray."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from tests.schedule import fakes
from zo_sweeps.core.events import Start, Steps
from zo_sweeps.core.host import GIB
from zo_sweeps.core.trial import Needs, Trial
from zo_sweeps.methods.executor import Executor
from zo_sweeps.methods.trial_config import TrialConfig
from zo_sweeps.schedule.placement import Node
from zo_sweeps_ray import slots as ray_slots
from zo_sweeps_ray.choice import Agents
from zo_sweeps_ray.connection import Connection
from zo_sweeps_ray.fairness import Claim
from zo_sweeps_ray.slots import Slot, Slots

pytestmark = pytest.mark.unit
DESK = Node("1", "desk", "cpu", 2, 0, 4 * GIB)


def slots(limit: int | None = None, **free: float) -> Slots:
    """The slots of a driver that sees one node, with so much of it free."""
    made = Slots("module:function", Executor(slots=limit), Agents(), Claim("me, pid 1 on desk"))
    made.see([DESK], {"1": free})
    return made


def needing(memory: int, device: str = "auto") -> Trial:
    return fakes.trial(Path("unused"), "t", needs=Needs(device, memory))


def chosen(mine: Slots, trial: Trial) -> Slot | Node | None:
    """The idle slot that a trial gets, or the node of the one that is to be made."""
    slot = mine.choose(trial)
    return slot if slot is None or slot in list(mine) else slot.node


@pytest.mark.parametrize(
    ("free", "memory", "fits"),
    [
        ({"CPU": 2.0, "memory": 4.0 * GIB}, 4 * GIB, True),
        ({"CPU": 1.0, "memory": 4.0 * GIB}, 4 * GIB, True),
        ({"memory": 4.0 * GIB}, 0, False),  # Ray leaves out what is used up
        ({"CPU": 1.0, "memory": 1.0 * GIB}, 2 * GIB, False),
        ({"CPU": 1.0, "memory": 2.0 * GIB}, 2 * GIB, True),
    ],
)
def test_what_others_hold_is_not_given_out_again(free: dict[str, float], memory: int, fits: bool) -> None:
    assert chosen(slots(**free), needing(memory)) == (DESK if fits else None)


def test_an_actor_that_has_not_answered_is_counted_once_it_has() -> None:
    mine = slots(CPU=2.0, memory=4.0 * GIB)
    mine._slots.append(Slot(None, DESK, 0, trial=needing(GIB), memory_bytes=GIB))
    mine.see([DESK], {"1": {"CPU": 2.0, "memory": 4.0 * GIB}})  # Ray does not know of it yet
    assert chosen(mine, needing(3 * GIB)) == DESK
    assert chosen(mine, needing(4 * GIB)) is None
    mine._slots[0].heard = True
    mine.see([DESK], {"1": {"CPU": 1.0, "memory": 3.0 * GIB}})
    assert chosen(mine, needing(3 * GIB)) == DESK


def test_an_idle_actor_takes_trials_that_need_its_memory_and_not_much_less() -> None:
    mine = slots(limit=2, CPU=1.0, memory=4.0 * GIB)
    idle = Slot(None, DESK, 0, heard=True, memory_bytes=3 * GIB)
    mine._slots.append(idle)
    assert chosen(mine, needing(3 * GIB)) == idle
    assert chosen(mine, needing(GIB * 9 // 4)) == idle
    assert chosen(mine, needing(GIB * 3 // 2)) == DESK
    assert chosen(mine, needing(3 * GIB + 1)) == DESK


@pytest.mark.parametrize(
    ("needs", "free", "holds"),
    [
        (GIB // 2, 4.0, GIB),  # as any small trial
        (GIB * 3 // 2, 4.0, GIB * 15 // 8),  # a quarter more
        (GIB * 19 // 10, 4.0, 2 * GIB),  # two of them share the node
        (GIB * 19 // 10, 1.95, int(1.95 * GIB)),  # others hold the rest
        (2 * GIB, 4.0, 2 * GIB),
        (0, 4.0, 0),
    ],
)
def test_an_actor_holds_a_little_more_than_its_trial_needs_and_then_takes_others_like_it(
    needs: int, free: float, holds: int
) -> None:
    mine = slots(CPU=2.0, memory=free * GIB)
    held = needs + mine._spare(DESK, needs)
    assert held == holds
    idle = Slot(None, DESK, 0, memory_bytes=held)
    mine._slots.append(idle)
    assert chosen(mine, needing(needs)) == idle
    assert chosen(mine, needing(held)) == idle
    assert chosen(mine, needing(max(0, needs - GIB // 100))) == idle


def test_a_free_cpu_is_left_to_a_sweep_that_waits_and_has_had_less(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = slots(CPU=1.0, memory=4.0 * GIB)
    mine.hear([Claim("other", {"cpu": 0.0}, {"cpu": 1.0}, ("cpu",))])
    assert chosen(mine, needing(0)) == DESK, "it holds more"
    mine._slots.append(Slot(None, DESK, 0, trial=needing(0), heard=True))
    mine.see([DESK], {"1": {"CPU": 1.0, "memory": 4.0 * GIB}})
    mine.hear([Claim("other", {}, {"cpu": 0.0}, ("cpu",))])
    assert chosen(mine, needing(0)) is None
    mine.want(needing(0))
    claim = mine.claim()
    assert (claim.held, claim.wants) == ({"cpu": 1}, ("cpu",))
    monkeypatch.setattr(ray_slots, "LEFT_SECONDS", -1.0)
    assert chosen(mine, needing(0)) == DESK, "the other has not taken it: it may need more memory"
    monkeypatch.undo()
    assert chosen(mine, needing(0)) == DESK, "nor is the next one left to it"
    mine.hear([Claim("other", {}, {"cpu": 1.0})])
    assert mine.holders() == ["other"]


def test_a_slot_is_left_only_where_too_few_are_free_for_those_that_come_first() -> None:
    mine = slots(CPU=2.0, memory=4.0 * GIB)
    first, second = (Claim(name, {}, {}, ("cpu",)) for name in "ab")
    mine.hear([first])
    mine._used["cpu"] = 1.0
    assert chosen(mine, needing(0)) == DESK, "one for each"
    mine.hear([first, second])
    assert chosen(mine, needing(0)) is None


def test_what_another_sweep_claims_is_taken_before_ray_knows() -> None:
    mine = slots(CPU=2.0, memory=4.0 * GIB)
    mine.hear([Claim("other", held={"cpu": 1.0}, places={"1": (1, 1.0, 0, 3 * GIB)})])
    assert chosen(mine, needing(GIB)) == DESK
    assert chosen(mine, needing(2 * GIB)) is None, "its memory"
    mine.see([DESK], {"1": {"CPU": 1.0, "memory": 1.0 * GIB}})
    assert chosen(mine, needing(GIB)) == DESK, "and once only when Ray does"


def test_actors_that_wait_in_ray_for_a_slot_of_another_sweep_are_called_off() -> None:
    mine = slots(CPU=2.0, memory=4.0 * GIB)
    answered, new = (Slot(None, DESK, 0, trial=needing(0), heard=heard) for heard in (True, False))
    mine._slots += [answered, new]
    mine.hear([Claim("other", places={"2": (1, 1.0, 0, 0)})])
    assert mine.in_vain() == []
    mine.hear([Claim("other", places={"1": (1, 1.0, 0, 0)})])
    assert mine.in_vain() == [new], "three CPUs are asked for, of two"
    assert mine.claim().places == {"1": (2, 2, 0, 0)}
    leader = Slot(None, DESK, 0, trial=needing(0), heard=True, followers=[new])
    mine._slots[0] = leader
    assert mine.in_vain() == [], "a trial whose leader runs says itself what it does without a follower"
    leader.heard = False
    assert mine.in_vain() == [leader], "and is called off once, with its followers"


def test_idle_actors_are_given_back_where_another_sweep_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[object] = []
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(kill=ended.append))
    mine = slots(CPU=1.0, memory=4.0 * GIB)
    mine._slots.append(Slot("actor", DESK, 0, heard=True, idle_since=time.monotonic()))
    mine.hear([Claim("other", wants=("cuda",))])
    assert ended == []
    mine.hear([Claim("other", wants=("cpu",))])
    assert (ended, list(mine)) == (["actor"], [])


def test_time_counts_from_the_answer_of_a_process_to_the_end_of_its_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(ray_slots, "time", SimpleNamespace(monotonic=lambda: now[0]))
    mine = slots(CPU=2.0, memory=4.0 * GIB)
    slot = Slot(None, DESK, 0, heard=True)
    mine._slots.append(slot)
    mine.take(needing(0), 1, None)
    for now[0] in (100.2, 100.9):
        mine.see([DESK], {})
    now[0] = 101.5
    mine.free(slot)
    assert mine.claim().used == {"cpu": pytest.approx(1.5)}
    starting = mine.take(needing(0), 1, None)
    starting.heard, starting.began = False, 101.5
    now[0] = 104.0
    mine.see([DESK], {})
    mine.hear_of(starting, [])
    assert mine.claim().used == {"cpu": pytest.approx(1.5)}
    now[0] = 105.0
    mine.hear_of(starting, [Start(attempt=1, device={}, versions={}, resumed_from=0)])
    assert mine._start == 0
    now[0] = 106.0
    mine.hear_of(starting, [Steps(first=1, losses=(), seconds=0.0, tokens=0)])
    assert mine._start == 4.5, "until the first step: a base model is loaded before"


def test_an_autoscaler_is_asked_for_the_slots_that_waiting_trials_could_use() -> None:
    mine = slots(limit=8)
    assert mine.claim(20).asks[0] == 0, "nothing has waited"
    mine.want(needing(0, "jetson-orin-nano"))
    assert mine.claim(20).asks[0] == 0, "no autoscaler adds a board"
    mine.want(needing(0, "cuda"))
    mine.want(needing(0, "cpu"))
    assert mine.claim(20).asks[:2] == (8, {"CPU": 1, "GPU": 1.0})
    assert mine.claim(3).asks[:2] == (3, {"CPU": 1, "GPU": 1.0})


def test_a_divided_trial_takes_its_gpus_in_one_bundle() -> None:
    rack = Node("1", "rack", "cuda", 4, 4, 64 * GIB)
    mine = Slots("module:function", Executor(), Agents(), Claim("me, pid 1 on desk"))
    trial = fakes.trial(Path("unused"), "t", needs=Needs("cuda", 134 * GIB, layers=32, gpus=3))
    mine.see([rack], {"1": {"CPU": 4.0, "GPU": 2.0, "memory": 64.0 * GIB}})
    assert chosen(mine, trial) is None
    mine.see([rack], {"1": {"CPU": 4.0, "GPU": 4.0, "memory": 64.0 * GIB}})
    assert chosen(mine, trial) == rack
    mine.want(trial)
    assert mine.claim(1).asks[:2] == (1, {"CPU": 1, "GPU": 3.0})
    mine._slots.append(Slot(None, rack, 3, memory_bytes=0))
    assert chosen(mine, needing(0, "cuda")) == rack, "an actor with three GPUs is not taken for one"


def test_one_driver_asks_an_autoscaler_for_the_slots_of_all_with_their_labels(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[tuple[int, list[str]]] = []

    def request(bundles: list[Any], bundle_label_selectors: list[Any]) -> None:
        assert len(bundles) == len(bundle_label_selectors)
        named = [f"{bundle} {labels}" for bundle, labels in zip(bundles, bundle_label_selectors, strict=True)]
        asked.append((len(bundles), list(dict.fromkeys(named))))

    monkeypatch.setitem(sys.modules, "ray.autoscaler.sdk", SimpleNamespace(request_resources=request))
    first, second = (Connection(tmp_path, "10.0.0.1:6379") for _ in "ab")
    gpus = ({"CPU": 1, "GPU": 1.0}, {"zo.device": "a100"})
    one, two = Claim("a", asks=(150, *gpus)), Claim("b", asks=(250, {"CPU": 1}, {}))
    for _ in range(2):
        first.ask_for_nodes(one, [two])
        second.ask_for_nodes(two, [one])
    both = ["{'CPU': 1, 'GPU': 1.0} {'zo.device': 'a100'}", "{'CPU': 1} {}"]
    assert asked.pop() == (400, both)
    assert asked == [], "once, by one of them"
    first.ask_for_nodes(replace(one, asks=(140, *gpus)), [two])
    assert asked.pop() == (390, both)
    second.ask_for_nodes(two, [])  # the first has ended
    assert asked.pop() == (250, both[1:])


def test_a_gpu_that_trials_name_is_asked_for_by_its_label() -> None:
    mine = slots()
    config = MagicMock(spec=TrialConfig)
    config.device = SimpleNamespace(kind="cuda")
    mine.want(replace(needing(0, "a100"), config=config))
    assert mine.claim(3).asks == (3, {"CPU": 1, "GPU": 1.0}, {"zo.device": "a100"})
