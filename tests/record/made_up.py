"""Trials and journals made by rule, as a worker would write them."""

from __future__ import annotations

import math
import random

from zo_sweeps.core.events import End, Event, ScoredDev, ScoredTest, Start, Steps
from zo_sweeps.core.trial import Outcome, StoredConfig, Trial, TrialState

BEGAN = 1_790_000_000.25


def trial(seed: int = 0, steps: int = 40, lr: float = 1e-4, q: int = 2, name: str = "LoRA-FA") -> Trial:
    config = {
        "model": {"name": "tiny", "path": f"/models/{seed}", "arch": {"hidden_size": 64}, "fingerprint": "m0de1"},
        "task": {"name": "sst2", "metric": "accuracy", "hub": {"path": "nyu-mll/glue"}, "fingerprint": "da7a"},
        "method": {"name": name.lower(), "kind": "zo"},
        "estimator": {"name": "rge", "q": q, "eps": 1e-2},
        "update": {"name": "sgd", "lr": lr},
        "train": {"steps": steps, "batch": 16, "eval_every": 10},
        "seed": seed,
    }
    trial_id = f"{seed:04x}{int(lr * 1e9):08x}{q:04x}"
    label = f"{name} (q={q}) · SST-2 · lr {lr:g} · seed {seed}"
    block = f"{name} (q={q})"
    return Trial(trial_id, StoredConfig(config), steps=steps, label=label, grid="demo_grid", block=block, task="sst2")


def start(attempt: int = 1, at: float = BEGAN, resumed_from: int = 0) -> Start:
    device = {"kind": "cpu", "name": "Test CPU", "memory_definition": "peak RSS over the baseline"}
    versions = {"zo_sweeps": "0.1.0", "torch": "2.13.0"}
    return Start(time=at, attempt=attempt, device=device, versions=versions, resumed_from=resumed_from)


def steps(made: Trial, first: int, last: int, at: float) -> Steps:
    """Steps first to last; their numbers depend on nothing but trial and step."""
    losses, coefs = [], []
    for step in range(first, last + 1):
        noise = random.Random(f"{made.trial_id} {step}")
        lr = made.config.to_json()["update"]["lr"]
        losses.append(0.35 + 0.5 * math.exp(-step * lr * 400) + noise.gauss(0, 0.04))
        coefs.append(tuple(noise.gauss(0, 3) for _ in range(made.config.to_json()["estimator"]["q"])))
    count, log = len(losses), {"losses": tuple(losses), "coefs": tuple(coefs)}
    return Steps(time=at, first=first, **log, seconds=0.1 * count, tokens=512 * count)


def evaluation(made: Trial, step: int, at: float) -> ScoredDev:
    metric = 0.9 - 0.4 * math.exp(-step * made.config.to_json()["update"]["lr"] * 400)
    return ScoredDev(time=at, step=step, loss=1 - metric, metric=metric, seconds=1)


def end(made: Trial, at: float, state: TrialState = TrialState.SUCCEEDED, error: str = "") -> End:
    metrics = {"train_seconds": 0.1 * made.steps, "wall_seconds": 0.2 * made.steps, "tokens_per_second": 5120.0}
    metrics |= {"seconds_per_step": 0.1, "peak_memory_bytes": 123456789.0}
    if state is TrialState.SUCCEEDED:
        metrics |= {"dev/metric": 0.9, "dev/loss": 0.1, "test/metric": 0.88, "test/loss": 0.12}
    outcome = Outcome(
        made.trial_id,
        state,
        metrics,
        selected_step=made.steps,
        steps_done=made.steps,
        device=start().device,
        error=error,
    )
    return End(time=at, outcome=outcome)


def whole(made: Trial, chunk: int = 10, state: TrialState = TrialState.SUCCEEDED, error: str = "") -> list[Event]:
    """An undisturbed run: an evaluation after every `chunk` steps."""
    events, at = [start()], BEGAN
    for first in range(1, made.steps + 1, chunk):
        last = min(first + chunk - 1, made.steps)
        at += 0.1 * (last - first + 1)
        events.append(steps(made, first, last, at))
        events.append(evaluation(made, last, at + 0.01))
    if state is TrialState.SUCCEEDED:
        events.append(ScoredTest(time=at + 0.5, step=made.steps, loss=0.12, metric=0.88))
    return [*events, end(made, at + 1, state, error)]
