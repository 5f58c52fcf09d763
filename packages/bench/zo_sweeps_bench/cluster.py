"""Cluster benchmarks: scheduling overhead, time to recover a lost trial, the driver of thousands of running trials."""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from zo_sweeps.core.events import Start, Steps, only
from zo_sweeps.core.trial import Trial
from zo_sweeps.methods.executor import Executor
from zo_sweeps.record.journal import JournalStore
from zo_sweeps.record.sweep_book import SweepInfo
from zo_sweeps.schedule.backend import Backend
from zo_sweeps.schedule.ledger import Ledger
from zo_sweeps.schedule.observer import OneCause, Remarks, Waits
from zo_sweeps.schedule.snapshot import LiveFile, Snapshot, Watch
from zo_sweeps.schedule.spending import Caps
from zo_sweeps.schedule.sweep import Sweep
from zo_sweeps_bench.idle_trials import TARGET, ended, trials
from zo_sweeps_bench.measure import RatioRow
from zo_sweeps_bench.raylets import Cluster, Raylet, cluster, wait_for
from zo_sweeps_bench.simulated_slots import SimulatedSlots
from zo_sweeps_ray.cluster import environment
from zo_sweeps_ray.executor import RayBackend
from zo_sweeps_tracking.rows import points as metric_points
from zo_sweeps_tracking.store import MlflowMirror

RUNNING = (100, 300, 1000, 2000)  # trials at a time
WARM_UP = 20  # trials not timed, while processes start


def rows(rounds: int) -> Iterator[RatioRow]:
    """Measure all parts. `rounds` is ignored: each part takes minutes."""
    with tempfile.TemporaryDirectory() as folder:
        yield overhead(Path(folder) / "overhead")
        yield from losses(Path(folder))
        for running in RUNNING:
            yield reports(Path(folder) / f"running_{running}", running)
        yield points(Path(folder) / "points")


def overhead(folder: Path, count: int = 300) -> RatioRow:
    """Measure milliseconds per trial of trials that compute nothing."""
    ends: list[float] = []
    _sweep(folder, list(trials(count)), RayBackend(folder, options=Executor(slots=2), target=TARGET), _on_end(ends))
    milliseconds = (ends[-1] - ends[WARM_UP]) / (count - WARM_UP - 1) * 1000
    return RatioRow("scheduling a trial, 2 warm actors", milliseconds, "ms", 20, 10, "two fsyncs", {"trials": count})


def losses(folder: Path) -> Iterator[RatioRow]:
    """Measure the time until the trial of a killed or frozen node runs on another node."""
    goals: dict[str, tuple[Callable[[Raylet], None], float, float, str]] = {
        "killed": (Raylet.kill, 15, 5, "a connection that breaks"),
        "frozen": (Raylet.freeze, 30, 25, "20 s without a heartbeat"),
    }
    for how, (blow, must, aim, limit) in goals.items():
        with cluster() as nodes:
            seconds = _loss(folder / how, nodes, blow)
        yield RatioRow(f"from a {how} node to its trial running elsewhere", seconds, "s", must, aim, limit)


def _loss(folder: Path, nodes: Cluster, blow: Callable[[Raylet], None]) -> float:
    """Return the seconds from the failure to the first event of the second attempt, in a newly started process."""
    victims = [nodes.add("one"), nodes.add("two")]
    (trial,) = trials(1, steps=100_000, pause=0.05)
    began: list[float] = []

    def script() -> None:
        wait_for(lambda: only(Steps, store.read(trial.trial_id)), what="a step")
        (start,) = _starts(store, trial)
        began.append(time.time())
        blow(next(node for node in victims if node.name == start.node))
        wait_for(lambda: len(_starts(store, trial)) == 2, what="the second attempt")
        os.kill(os.getpid(), signal.SIGINT)

    store = JournalStore(folder)
    thread = threading.Thread(target=script)
    with environment({**nodes.token, "RAY_AUTH_TOKEN": None}):
        thread.start()
        _sweep(folder, [trial], RayBackend(folder, address=nodes.address, target=TARGET))
    thread.join()
    return _starts(store, trial)[1].time - began[0]


def reports(folder: Path, running: int, steps: int = 5) -> RatioRow:
    """Measure the driver's CPU per report, with simulated slots whose trials report step after step."""
    cpu: list[float] = []

    def around(deliveries: Iterator[None]) -> None:
        begin = time.process_time()
        for _ in deliveries:
            pass
        cpu.append((time.process_time() - begin) / running * 1000)

    _sweep(folder, list(trials(running, steps=steps)), SimulatedSlots(running, around), LiveFile(folder).update)
    _, *of_steps, of_end = cpu
    detail = {"ms per end": of_end, "load": round(os.getloadavg()[0], 1)}
    name = f"CPU of the driver per report, {running:,} trials running"
    return RatioRow(name, min(of_steps), "ms", 0.5, 0.25, "a line of a journal", detail)


def points(folder: Path, count: int = 32, steps: int = 1000) -> RatioRow:
    """Measure the upload of the journals of `count` finished trials of `steps` steps each to a store of their own."""
    store, known = JournalStore(folder), list(trials(count, steps=steps))
    total = 0
    for trial in known:
        events = ended(trial)
        store.append(trial.trial_id, events)
        total += len(metric_points(trial, events))
    mirror = MlflowMirror(None, "bench", SweepInfo("bench", "bench", "bench"), folder)
    assert mirror.drain(300) == 0  # it is open
    begin = time.perf_counter()
    for trial in known:
        mirror.register(trial)
    assert mirror.drain(300) == 0
    seconds = time.perf_counter() - begin
    mirror.close()
    return RatioRow(
        "metric points to MLflow", total / seconds, "/s", 1000, 5000, "SQLite", {"points": total, "runs": count}
    )


def _sweep(
    folder: Path, known: list[Trial], backend: Backend, on_update: Callable[[Snapshot], None] = lambda snapshot: None
) -> None:
    with contextlib.closing(JournalStore(folder)) as store, Ledger(folder) as ledger:
        observers = [Caps(), OneCause(), Remarks(), Waits(), Watch(on_update)]
        Sweep(known, backend, store, ledger, observers, say=lambda line: None).run()


def _on_end(ends: list[float]) -> Callable[[Snapshot], None]:
    return lambda snapshot: ends.append(time.perf_counter()) if snapshot.ended else None


def _starts(store: JournalStore, trial: Trial) -> list[Start]:
    return only(Start, store.read(trial.trial_id))
