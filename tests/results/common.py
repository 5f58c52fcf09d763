"""A grid on the demo model whose trials are written into a ledger and journals by the code that writes real ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.plan.common import TINY, write_grid
from zo_sweeps.config.composer import Composer
from zo_sweeps.core.events import End, Event, ScoredDev, Start, Steps
from zo_sweeps.core.trial import Outcome, TrialState
from zo_sweeps.plan.build import Plan, build
from zo_sweeps.record.journal import JournalStore
from zo_sweeps.schedule.ledger import Ledger

GRID: dict[str, Any] = {
    **TINY,
    "title": "A & B <compared>",
    "seeds": [0, 1, 2],
    "blocks": {
        "zero_shot": {"label": "Zero-shot", "fixed": {"method": "zero_shot"}},
        "zo": {
            "label": "ZO",
            "fixed": {"method": "prge", "train": {"steps": 20, "eval_every": 10}},
            "axes": {"estimator": {"q": [1, 2, 4]}, "update": {"lr": [0.01, 0.1]}},
        },
    },
    "tables": {
        "accuracy": {"layout": "accuracy", "rows": {"zero_shot": "Zero-shot", "zo": "ZO"}, "rank": True},
        "time": {"layout": "step_time", "rows": {"zo": "ZO"}},
    },
    "figures": {
        "by_q": {"kind": "line", "x": "estimator.q", "y": "accuracy", "series": {"zo": ""},
                 "published": [{"series": "zo", "x": 2, "y": 90.0}]},
        "curve": {"kind": "curve", "x": "step", "y": "dev/loss"},
    },
}  # fmt: skip
DEVICE = {
    "kind": "cpu",
    "profile": "cpu",
    "name": "A processor",
    "cores": 2,
    "memory_bytes": 2**34,
    "gpus": [],
    "runtime": "torch",
    "threads": 1,
    "versions": {"python": "3.11.7", "torch": "2.13.0"},
    "memory_definition": "resident size",
}
BAD = {1: TrialState.DIVERGED, 2: TrialState.FAILED}  # seeds of q=4, lr=0.1


def composed(folder: Path, grid: dict[str, Any] = GRID) -> tuple[Composer, Plan]:
    conf = write_grid(folder / "conf", grid)
    composer = Composer(["+grid=tiny", f"state_dir={folder / 'state'}"], [str(conf)])
    return composer, build(composer)


def outcome(plan: Plan, trial_id: str) -> Outcome:
    config = plan.every[trial_id].config.to_json()
    seed, q, lr = config["seed"], config["estimator"].get("q", 1), config["update"].get("lr", 0.0)
    if config["method"]["kind"] != "zero_shot" and (q, lr) == (4, 0.1) and seed in BAD:
        return Outcome(trial_id, BAD[seed], device=DEVICE, error=f"went wrong with <seed> {seed}")
    metrics = {"dev/loss": 1 / (q + 1) - lr, "dev/metric": 0.8, "test/metric": 0.7 + q / 100 + seed / 1000}
    timed = {"wall_seconds": 3.0} if config["method"]["kind"] == "zero_shot" else {"seconds_per_step": q / 10}
    return Outcome(trial_id, TrialState.SUCCEEDED, {**metrics, **timed}, selected_step=10, steps_done=20, device=DEVICE)


def fill(plan: Plan, folder: Path) -> None:
    """Every trial of the plan, ended as `outcome` says."""
    state = folder / "state"
    with Ledger(state) as ledger:
        journals = JournalStore(state)
        for trial_id, trial in plan.every.items():
            ended = outcome(plan, trial_id)
            ledger.write(trial_id, TrialState.RUNNING, attempt=1)
            steps = trial.steps
            events: list[Event] = [Start(attempt=1, device={}, versions={}, resumed_from=0)]
            for first in range(1, steps, 10):
                losses = [1 / step for step in range(first, first + 10)]
                log = {"losses": tuple(losses), "coefs": ((0.1,),) * 10}
                events.append(Steps(first=first, **log, seconds=5.0, tokens=0, joules=30.0))
                events.append(ScoredDev(step=first + 9, loss=0.5, metric=0.8))
            events.append(End(outcome=ended))
            journals.append(trial_id, events)
            ledger.write(trial_id, ended.state, attempt=1, node="host-a", error=ended.error, outcome=ended)
        journals.close()
