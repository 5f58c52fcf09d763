"""Shares of three sweeps in the two slots of one cluster, while all three have trials that wait. Real Ray, no work.

A sweep is a process of its own:

    python -m zo_sweeps_bench.shares STATE ADDRESS COUNT
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from zo_sweeps.core.trial import Trial
from zo_sweeps.record.journal import JournalStore
from zo_sweeps.schedule.ledger import Ledger
from zo_sweeps.schedule.sweep import Sweep
from zo_sweeps_bench.idle_trials import TARGET, trials
from zo_sweeps_bench.measure import RatioRow
from zo_sweeps_bench.raylets import SOURCES, Cluster, cluster
from zo_sweeps_ray.executor import RayBackend

SLOTS = 2
STEP_SECONDS, STEPS = 0.1, (10, 20)  # of a trial: 1 to 2 s
COUNT = 40  # trials of a sweep
LATER_SECONDS = 15.0
JOINED = "joined"  # a file of a sweep's state folder: when it had joined
MUST, AIM = 10.0, 5.0  # per cent


@dataclass(frozen=True)
class SweepWork:
    """What a sweep did, in Unix seconds.

    Args:
        joined: when it had joined the cluster.
        trials: from and until when each of its trials ran.
    """

    joined: float
    trials: Sequence[tuple[float, float]]

    @classmethod
    def of(cls, state: Path, trials: Sequence[Trial], joined: float) -> SweepWork:
        """Read the journals of a sweep that has ended."""
        with contextlib.closing(JournalStore(state)) as store:
            events = [store.read(trial.trial_id) for trial in trials]
        return cls(joined, [(journal[0].time, journal[-1].time) for journal in events])

    def within(self, first: float, last: float) -> float:
        """Return the slot-seconds of its trials in a window."""
        return sum(max(0.0, min(end, last) - max(begin, first)) for begin, end in self.trials)


def rows(rounds: int) -> Iterator[RatioRow]:
    """Measure; `rounds` is ignored: it takes some minutes."""
    scenarios = {
        "started together, one with twice the trials": [(0.0, COUNT), (0.0, COUNT), (0.0, 2 * COUNT)],
        f"one started {LATER_SECONDS:.0f} s later": [(0.0, 2 * COUNT), (0.0, 2 * COUNT), (LATER_SECONDS, COUNT)],
    }
    for name, sweeps in scenarios.items():
        with tempfile.TemporaryDirectory() as folder, cluster() as nodes:
            nodes.add("board", cpus=SLOTS)
            yield row(name, run(Path(folder), nodes, sweeps))


def run(folder: Path, nodes: Cluster, sweeps: Sequence[tuple[float, int]]) -> list[SweepWork]:
    """Run sweeps side by side, each given as its start (seconds) and its number of trials; return when they worked."""
    began, drivers = time.monotonic(), []
    for number, (later, count) in enumerate(sweeps):
        time.sleep(max(0.0, began + later - time.monotonic()))
        state = folder / str(number)
        command = [sys.executable, "-m", __spec__.name, str(state), nodes.address, str(count)]
        environment = {**nodes.environment, **nodes.token}
        drivers.append(subprocess.Popen(command, env=environment, cwd=SOURCES, stdout=subprocess.DEVNULL))
    try:
        for driver in drivers:
            assert driver.wait(600) == 0
    finally:
        for driver in drivers:
            driver.kill()
    states = [folder / str(number) for number in range(len(sweeps))]
    return [
        SweepWork.of(state, _trials(count), float((state / JOINED).read_text()))
        for state, (_, count) in zip(states, sweeps, strict=True)
    ]


def row(name: str, sweeps: Sequence[SweepWork]) -> RatioRow:
    """Return the largest distance of a sweep's share from an equal one, in per cent of that, while all have trials."""
    distance, detail = off_equal(sweeps, SLOTS)
    lengths = [STEP_SECONDS * steps for steps in STEPS]
    limit = "the start of a process, and the trials in flight"
    name = f"three sweeps on two slots, {name}: off an equal share"
    return RatioRow(name, distance, "%", MUST, AIM, limit, {"seconds_of_a_trial": lengths, **detail})


def off_equal(sweeps: Sequence[SweepWork], slots: int) -> tuple[float, dict[str, Any]]:
    """Return the largest distance from an equal share, in per cent of that, while all sweeps have trials, and details.

    That is from when the last of them joined until the first of them has begun its last trial.
    """
    first = max(work.joined for work in sweeps)
    last = min(max(begin for begin, _ in work.trials) for work in sweeps)
    seconds = [work.within(first, last) for work in sweeps]
    equal = sum(seconds) / len(seconds)
    distance = 100 * max(abs(one - equal) for one in seconds) / equal if equal else 100.0
    return distance, {
        "slots": slots,
        "trials": [len(work.trials) for work in sweeps],
        "window_seconds": round(last - first, 1),
        "slot_seconds": [round(one, 1) for one in seconds],
        "trials_ended_in_window": [sum(first < end <= last for _, end in work.trials) for work in sweeps],
        "slots_at_work": round(sum(seconds) / (last - first) / slots, 3) if last > first else 0.0,
    }


def _trials(count: int) -> list[Trial]:
    """Return trials whose lengths vary evenly."""
    short, long = STEPS
    lengths = [short + 7 * number % (long - short + 1) for number in range(count)]
    return [replace(trial, steps=n) for trial, n in zip(trials(count, pause=STEP_SECONDS), lengths, strict=True)]


def main(state: str, address: str, count: str) -> None:
    """Run the sweep of one driver."""
    folder, joined = Path(state), list[float]()
    backend = RayBackend(folder, address=address, target=TARGET)
    with contextlib.closing(JournalStore(folder)) as store, Ledger(folder) as ledger:
        Sweep(_trials(int(count)), backend, store, ledger, say=lambda line: joined.append(time.time())).run()
    (folder / JOINED).write_text(str(joined[0]))


if __name__ == "__main__":
    main(*sys.argv[1:])
