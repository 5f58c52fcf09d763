"""A driver to be killed: `python -m tests.schedule.driver STATE inline|ray|HOST:PORT PLAN`; PLAN: JSON trials."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from zo_sweeps.core.trial import Trial
from zo_sweeps.methods.executor import Executor
from zo_sweeps.record.journal import JournalStore
from zo_sweeps.schedule.backend import Backend
from zo_sweeps.schedule.executors.inline import InlineBackend
from zo_sweeps.schedule.halving import Confirmation, Rungs
from zo_sweeps.schedule.ledger import Ledger
from zo_sweeps.schedule.observer import OneCause, Remarks, Waits
from zo_sweeps.schedule.snapshot import Summary, Watch
from zo_sweeps.schedule.spending import Caps
from zo_sweeps.schedule.sweep import Sweep
from zo_sweeps_ray.executor import RayBackend

TARGET = "tests.schedule.fakes:run_trial"


def sweep(state: Path, trials: list[Trial], backend: Backend | None = None, **options) -> Summary:
    store = JournalStore(state)
    retries = {name: options.pop(name) for name in ("retries_failed", "retries_lost") if name in options}
    options["options"] = Executor(**retries)
    take = lambda name, default=None: options.pop(name, default)  # the rest is the loop's
    observers = (
        take("caps", Caps()), OneCause(take("rows")), Remarks(), Waits(),
        Watch(take("on_update", lambda snapshot: None), take("predictions")), Rungs(take("groups", ())),
        Confirmation(take("searches", ())),
    )  # fmt: skip
    with Ledger(state) as ledger:
        backend = backend or InlineBackend(TARGET, threads=0)
        return Sweep(trials, backend, store, ledger, observers, **options).run()


if __name__ == "__main__":
    state = Path(sys.argv[1])
    where: dict[str, Any] = {"options": Executor(slots=2)} if sys.argv[2] == "ray" else {"address": sys.argv[2]}
    backend = InlineBackend(TARGET, threads=0) if sys.argv[2] == "inline" else RayBackend(state, target=TARGET, **where)
    plan = [Trial.from_json(entry) for entry in json.loads(Path(sys.argv[3]).read_text())]
    print("ready", flush=True)
    summary = sweep(state, plan, backend, say=lambda line: print(line, flush=True))
    print(summary, flush=True)
    sys.exit(130 if summary.interrupted else 0)
