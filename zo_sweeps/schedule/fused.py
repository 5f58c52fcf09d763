"""Attempts in one process that share forwards (`executor.fuse`): the choice of their trials, and their threads."""

from __future__ import annotations

import importlib
import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from zo_sweeps.core.errors import UserError
from zo_sweeps.core.memory import Part, counted_as, current
from zo_sweeps.core.trial import Outcome, Sink, Trial
from zo_sweeps.methods.executor import Executor
from zo_sweeps.schedule.backend import NO_SLOT, Attempt, Backend, run_guarded
from zo_sweeps.schedule.queue import ReadyQueue

MOST = 8  # trials in a process: more gain little, and end later
PADDED = 2  # as `engine.together.PADDED`: tokens of a shared forward per token of its trials
TICK_SECONDS = 0.25
STORED = (Part.WEIGHTS, Part.SCALES, Part.SPARSE)  # what the trials of a process have once


def check(executor: Executor) -> None:
    """Raise UserError for options that exclude each other."""
    if executor.fuse == "auto" and executor.workers > 1:
        what = "trials that share forwards run in one process, and executor.workers divides a trial among several"
        raise UserError(what, where="executor.fuse=auto", fix="executor.workers=1, or executor.fuse=off")


def beside(trial: Trial, queue: ReadyQueue, backend: Backend, corrected: Callable[[Trial], Trial]) -> list[Trial]:
    """Take the trials from the queue that share a process with one that was taken; [] if there is no room for any.

    Every free place of the backend gets a like share of the trials that are alike.
    """
    if not trial.shares_forwards:
        return []
    count = min(MOST, math.ceil((queue.alike(trial) + 1) / max(1, backend.places(trial))))
    while count > 1 and backend.fit(lead(corrected(trial), count)) == NO_SLOT:
        count //= 2
    return queue.take_alike(trial, count - 1)


def lead(trial: Trial, count: int) -> Trial:
    """Return a trial with the needs of a process that runs so many like it; as it is, if it runs alone."""
    if count == 1:
        return trial
    needs = trial.needs
    own = sum(size for part, size in needs.parts.items() if Part(part) not in STORED)
    return replace(
        trial, needs=replace(needs, memory_bytes=needs.memory_bytes + (PADDED * count - 1) * own, beside=count - 1)
    )


def run_together(
    target: str,
    attempts: Sequence[tuple[Attempt, Sink]],
    should_stop: Callable[[], bool],
    tick: Callable[[], None] = lambda: None,
) -> list[Outcome]:
    """Run attempts in this process, each in a thread of its own, one of which computes at a time.

    Args:
        target: the RunTrial, as "module:function"; the module has the `Gathering` of `zo_sweeps.run`.
        should_stop: called between the steps of each.
        tick: called a few times per second, in this thread.
    """
    gathering = importlib.import_module(target.partition(":")[0]).Gathering(len(attempts))
    outcomes: dict[int, Outcome] = {}

    def run(i: int, attempt: Attempt, sink: Sink) -> None:
        trial, journal, number = attempt.trial, attempt.journal, attempt.number
        outcomes[i] = run_guarded(target, trial, sink, journal, number, should_stop, gathering=gathering)

    threads = [threading.Thread(target=partial(run, i, *each), daemon=True) for i, each in enumerate(attempts)]
    with counted_as(current()):  # the threads' marks interleave
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive():
                thread.join(TICK_SECONDS)
                tick()
    return [outcomes[i] for i in range(len(attempts))]
