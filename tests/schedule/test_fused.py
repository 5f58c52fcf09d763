"""Trials in one process that share forwards: which, how many, with what memory; their ends, losses and stops."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.schedule import fakes
from tests.schedule.driver import TARGET, sweep
from zo_sweeps.config.composer import Composer
from zo_sweeps.core.errors import UserError
from zo_sweeps.core.trial import Needs, Trial, TrialState
from zo_sweeps.record.journal import JournalStore, scalars
from zo_sweeps.schedule import fused
from zo_sweeps.schedule.backend import COLD, NO_SLOT
from zo_sweeps.schedule.inline_backend import InlineBackend
from zo_sweeps.schedule.queue import ReadyQueue
from zo_sweeps.schedule.ray_backend import RayBackend

GIB = 2**30
PARTS = {"weights": 8 * GIB, "scales": GIB, "trainable": GIB // 4, "activations": GIB // 2, "logits": GIB // 4}


def alike(folder: Path, n: int, **behaviour: Any) -> list[Trial]:
    return fakes.trials(folder, n, shares_forwards=True, **behaviour)


def shared(folder: Path, names: list[str]) -> list[str]:
    """What each trial noted of those beside it, last attempt."""
    return [[line for line in fakes.log_of(folder, name) if line.startswith("together")][-1] for name in names]


class Places:
    """A backend with so many processes, the largest of so many bytes."""

    def __init__(self, count: int, most: int) -> None:
        self.count, self.most = count, most

    def places(self, trial: Trial) -> int:
        return self.count

    def fit(self, trial: Trial) -> int:
        return COLD if trial.needs.memory_bytes <= self.most else NO_SLOT


@pytest.mark.unit
def test_a_process_of_n_trials_needs_the_weights_once_and_the_rest_n_times_with_padding(tmp_path: Path) -> None:
    (trial,) = alike(tmp_path, 1, needs=Needs(memory_bytes=10 * GIB, parts=PARTS))
    assert fused.lead(trial, 1) is trial
    needs = fused.lead(trial, 4).needs
    assert needs.memory_bytes == 10 * GIB + (2 * 4 - 1) * GIB  # one GiB of a trial is its own
    assert needs.beside == 3


@pytest.mark.unit
@pytest.mark.parametrize(
    ("ready", "places", "most", "beside"),
    [(12, 1, 99, 7), (5, 1, 99, 4), (6, 2, 99, 2), (12, 4, 99, 2), (2, 4, 99, 0), (12, 1, 17, 3), (12, 1, 11, 0)],
)
def test_the_places_share_the_trials_out_as_far_as_memory_allows(
    tmp_path: Path, ready: int, places: int, most: int, beside: int
) -> None:
    trials = alike(tmp_path, ready, needs=Needs(memory_bytes=10 * GIB, parts=PARTS))
    queue = ReadyQueue(trials)
    first = queue.take(lambda trial: COLD)
    assert first is trials[0]
    found = fused.beside(first, queue, Places(places, most * GIB), lambda trial: trial)  # type: ignore[arg-type]
    assert found == trials[1 : 1 + beside]
    assert len(queue) == ready - 1 - beside


@pytest.mark.unit
def test_only_trials_of_one_round_and_those_that_can_share_are_together(tmp_path: Path) -> None:
    trials = alike(tmp_path, 6)
    queue = ReadyQueue(trials, rounds={trial.trial_id: i // 3 for i, trial in enumerate(trials)})
    first = queue.take(lambda trial: COLD)
    assert first is not None
    assert fused.beside(first, queue, Places(1, GIB), lambda trial: trial) == trials[1:3]  # type: ignore[arg-type]
    queue = ReadyQueue(fakes.trials(tmp_path, 6))
    first = queue.take(lambda trial: COLD)
    assert first is not None
    assert fused.beside(first, queue, Places(1, GIB), lambda trial: trial) == []  # type: ignore[arg-type]


@pytest.mark.unit
def test_a_process_of_several_trials_ends_each_by_itself(tmp_path: Path) -> None:
    """One fails and is retried, one diverges; every journal is the one of a trial that ran alone."""
    plan, work = alike(tmp_path / "w", 10), tmp_path / "w"
    plan[3] = fakes.trial(work, "t003", shares_forwards=True, raises=[1])
    plan[5] = fakes.trial(work, "t005", shares_forwards=True, ends="DIVERGED")
    summary = sweep(tmp_path, plan, fuse=True)
    assert summary.counts == {TrialState.SUCCEEDED: 9, TrialState.DIVERGED: 1}
    names = [trial.trial_id for trial in plan]
    assert shared(work, [*names[:3], *names[4:8]]) == ["together with 7"] * 7
    store, alone = JournalStore(tmp_path), JournalStore(tmp_path / "alone")
    sweep(tmp_path / "alone", plan, fuse=False)
    for name in names:
        assert scalars(store.read(name, ended=True)) == scalars(alone.read(name, ended=True))


@pytest.mark.unit
def test_a_full_disk_ends_all_of_a_process_and_nothing_is_lost(tmp_path: Path) -> None:
    plan = alike(tmp_path / "w", 4, pause=0.2)
    store = JournalStore(tmp_path)
    append, calls = JournalStore.append, []

    def full(self: JournalStore, trial_id: str, events: list[Any]) -> None:
        calls.append(trial_id)
        if len(calls) == 6:
            raise OSError(28, "No space left on device")
        append(self, trial_id, events)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(JournalStore, "append", full)
        with pytest.raises(OSError, match="No space left"):
            sweep(tmp_path, plan, fuse=True)
    assert sweep(tmp_path, plan, fuse=True).counts == {TrialState.SUCCEEDED: 4}
    ended = [scalars(store.read(trial.trial_id, ended=True)) for trial in plan]
    assert all(one == ended[0] for one in ended)  # the recurrence, each step once


@pytest.mark.unit
def test_options_that_exclude_each_other_are_refused() -> None:
    executor = Composer(["executor.fuse=auto", "executor.workers=2"]).run.executor
    with pytest.raises(UserError, match=r"executor.fuse=auto.*executor.workers=1, or executor.fuse=off"):
        fused.check(executor)
    fused.check(Composer(["executor.fuse=auto"]).run.executor)
    assert InlineBackend().places(fakes.trials(Path(), 1)[0]) == 1


@pytest.mark.multiprocess
def test_an_actor_that_dies_gives_back_all_its_trials(tmp_path: Path) -> None:
    work = tmp_path / "w"
    plan = alike(work, 6, pause=0.05)
    plan[1] = fakes.trial(work, "t001", shares_forwards=True, dies=[1])
    summary = sweep(tmp_path, plan, RayBackend(tmp_path, slots=2, target=TARGET), fuse=True)
    assert summary.counts == {TrialState.SUCCEEDED: 6}
    names = [trial.trial_id for trial in plan]
    assert set(fakes.completions(work, names).values()) == {1}
    firsts = [fakes.log_of(work, name)[0] for name in names]
    pids = [line.split("pid=")[1].split()[0] for line in firsts]
    assert len(set(pids[:3])) == len(set(pids[3:])) == 1, "three trials in each of two processes"
    attempts = [sum(line.startswith("start") for line in fakes.log_of(work, name)) for name in names]
    assert attempts[1] == 2
    assert attempts[3:] == [1, 1, 1]
    store = JournalStore(tmp_path)
    ended = [scalars(store.read(name, ended=True)) for name in names]
    assert all(one == ended[0] for one in ended)
