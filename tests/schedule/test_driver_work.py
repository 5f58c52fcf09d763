"""What the driver does per report is the same however many trials run: calls are counted, not seconds."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.schedule.driver import sweep
from zo_sweeps.record import journal
from zo_sweeps.schedule import observer
from zo_sweeps.schedule.halving import Rivals, Search
from zo_sweeps.schedule.snapshot import Snapshot
from zo_sweeps_bench.idle_trials import trials
from zo_sweeps_bench.simulated_slots import SimulatedSlots

pytestmark = pytest.mark.unit
STEPS = 4


class Calls:
    """Counts calls of Python and C functions, and resumed generators, between `begin` and `end`."""

    def __init__(self) -> None:
        self.counts: dict[str, list[int]] = {"report": [], "end": [], "round": [], "last": []}

    def begin(self) -> None:
        self._n = 0
        gc.disable()
        sys.setprofile(self._note)

    def end(self, what: str) -> None:
        sys.setprofile(None)
        gc.enable()
        self.counts[what].append(self._n)

    def _note(self, frame: Any, event: str, what: Any) -> None:
        self._n += event in ("call", "c_call")


def work(folder: Path, running: int) -> tuple[dict[str, list[int]], list[Snapshot]]:
    """The calls of a report of each step, of an end and of each round, with so many trials running; and snapshots."""
    calls, shown, polls = Calls(), list[Snapshot](), 0
    middle = running // 2 | 1  # the second of a pair of rivals

    def around(reports: Iterator[None]) -> None:
        nonlocal polls
        if polls:
            calls.end("round")
        for number in range(running):
            if number == middle:
                calls.begin()
            next(reports)
            if number == middle:
                calls.end("report" if polls < STEPS else "end")
        polls += 1
        calls.begin()

    plan = list(trials(running, steps=STEPS))
    pairs = [((one.trial_id,), (other.trial_id,)) for one, other in zip(plan[::2], plan[1::2], strict=True)]
    groups = [Rivals(pair, (2,), 0.5, "dev/loss", 1.0) for pair in pairs]
    searches = [Search(tuple((ids, ()) for ids in pair), "dev/loss", 1.0) for pair in pairs]
    backend = SimulatedSlots(running, around)
    options: dict[str, Any] = {"on_update": shown.append, "say": lambda line: None}
    sweep(folder, plan, backend, groups=groups, searches=searches, **options)
    calls.end("last")
    return calls.counts, shown


def test_the_calls_per_report_end_and_round_do_not_depend_on_how_many_trials_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "_OPEN_FILES", 1)  # so that every report opens its trial's journal
    monkeypatch.setattr(observer, "WAITS_SECONDS", 0.0)  # in every round, not once per second
    monkeypatch.setattr(os, "fsync", lambda file: None)  # for a quicker test
    few, snapshots = work(tmp_path / "few", 10)
    many, _ = work(tmp_path / "many", 1000)
    assert few["report"][1:] == many["report"][1:], "after the first, which begins the journal"
    assert few["end"] == many["end"]
    assert few["round"] == many["round"]
    assert [len(counts) for counts in many.values()] == [STEPS, 1, STEPS, 1]
    assert 0 < max(many["report"]) < 500
    assert snapshots[-1].cost_done == snapshots[-1].cost_total == 10 * STEPS
