"""The commands on sweeps of more and more trials that all have a result: CPU time and memory per further trial."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import yaml

from zo_sweeps.config.composer import Composer
from zo_sweeps.core.events import End, Uploaded
from zo_sweeps.core.trial import TrialState
from zo_sweeps.plan.build import build
from zo_sweeps.record.journal import Journal, JournalStore
from zo_sweeps.schedule.ledger import Ledger
from zo_sweeps_bench.idle_trials import ended
from zo_sweeps_bench.measure import RatioRow
from zo_sweeps_tracking.server import DATABASE, own_client

SIZES = (1_000, 10_000, 100_000)  # trials: ten rows of ten seeds, over more and more rates
PYTHON = [sys.executable, "-m", "zo_sweeps"]
GOALS = {  # ms of CPU per further trial: at most, aimed at, limited by
    "plan": (1.0, 0.3, "planning them"),
    "status": (1.0, 0.3, "planning them"),
    "table": (1.0, 0.3, "planning them"),
    "report": (10.0, 5.0, "a page per trial, of its journal"),
    "resume": (5.0, 1.0, "the plan as launched, and reading what MLflow has"),
}


@dataclass(frozen=True)
class Cost:
    """What a command took."""

    cpu: float  # s, of the process and those it waited for
    memory: float  # MiB, at its peak


def rows(rounds: int) -> Iterator[RatioRow]:
    """Measure the commands at all sizes. `rounds` is ignored: the largest size takes most of an hour, and 4 GB."""
    costs: dict[str, list[Cost]] = {}
    for count in SIZES:
        with tempfile.TemporaryDirectory() as folder:
            _start(Path(folder), count)
            filling = get_context("spawn").Process(target=_finish_all, args=(Path(folder),))
            filling.start()  # apart: a process begins with the peak of the one that starts it
            filling.join()
            assert not filling.exitcode
            for name in GOALS:
                costs.setdefault(name, []).append(_cost(Path(folder), name))
    for name, (must, aim, limit) in GOALS.items():
        yield _per_trial(f"`{name}`", costs[name], must, aim, limit)


def _per_trial(name: str, costs: Sequence[Cost], must: float, aim: float, limit: str) -> RatioRow:
    """Return the CPU per trial from the second largest size to the largest; the costs at every size are its detail."""
    (before, last), more = costs[-2:], SIZES[-1] - SIZES[-2]
    detail: dict[str, Any] = {"KiB per further trial": round(1024 * (last.memory - before.memory) / more, 2)}
    for size, cost in zip(SIZES, costs, strict=True):
        detail[f"{size:,} trials"] = {"s": round(cost.cpu, 2), "MiB": round(cost.memory)}
    milliseconds = 1000 * (last.cpu - before.cpu) / more
    return RatioRow(f"CPU of {name} per further finished trial", milliseconds, "ms", must, aim, limit, detail)


def _grid(count: int) -> dict[str, Any]:
    blocks = {f"b{i}": {"label": f"B={i}", "fixed": {"train": {"steps": 100, "batch": i}}} for i in range(1, 11)}
    return {
        "name": "many",
        "fixed": {"model": "demo", "prompt": "mezo", "method": "prge", "estimator": {"q": 2}},
        "axes": {"task": ["demo_remarks"], "update": {"lr": [1e-5 * (i + 1) for i in range(count // 100)]}},
        "seeds": list(range(10)),
        "blocks": blocks,
        "tables": {"accuracy": {"layout": "accuracy", "rows": dict.fromkeys(blocks, "")}},
    }


def _arguments(folder: Path) -> list[str]:
    return ["+grid=many", f"state_dir={folder / 'state'}", "executor=inline", "--config-dir", str(folder / "conf")]


def _start(folder: Path, count: int) -> None:
    """Start a sweep of `count` trials as a user does, until one runs."""
    conf, state = folder / "conf", folder / "state"
    (conf / "grid").mkdir(parents=True)
    (conf / "grid" / "many.yaml").write_text("# @package grid\n" + yaml.safe_dump(_grid(count)))
    driver = subprocess.Popen([*PYTHON, *_arguments(folder)], stdout=subprocess.DEVNULL, cwd=folder)
    while driver.poll() is None and not any(state.glob("journal/*/*.jsonl")):
        time.sleep(0.1)
    driver.send_signal(signal.SIGINT)
    assert driver.wait() == 130, "it ran"


def _finish_all(folder: Path) -> None:
    """Write a journal of every trial of the sweep, as succeeded in the ledger and as sent to MLflow."""
    overrides, state = _arguments(folder), folder / "state"
    experiment = own_client(state / "mlflow" / DATABASE).get_experiment_by_name("many")
    assert experiment is not None
    server = f"{experiment.experiment_id}-{experiment.creation_time}"
    with (
        contextlib.closing(JournalStore(state)) as store,
        Ledger(state) as ledger,
        Journal(state / "mlflow" / "sent.jsonl") as sent,
    ):
        for number, trial in enumerate(build(Composer(overrides[:3], overrides[4:])).every.values()):
            trial_id = trial.trial_id
            store.set_aside(trial_id)  # of the one that has begun
            *events, end = ended(trial, number % 97 / 97)
            store.append(trial_id, [*events, end])
            assert isinstance(end, End)
            ledger.write(trial_id, TrialState.SUCCEEDED, outcome=end.outcome)
            size, born = store.path(trial_id).stat().st_size, events[0].time
            sent.append(Uploaded(server=server, trial_id=trial_id, born=born, bytes=size))


def _cost(folder: Path, name: str) -> Cost:
    """Run a command on the sweep; "resume" is that which started it."""
    words = [] if name == "resume" else [name]
    process = subprocess.Popen([*PYTHON, *words, *_arguments(folder)], stdout=subprocess.DEVNULL, cwd=folder)
    _, status, used = os.wait4(process.pid, 0)
    assert status == 0, name
    return Cost(used.ru_utime + used.ru_stime, used.ru_maxrss / 1024)
