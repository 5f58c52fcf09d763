"""A run_trial that does little work but real: a recurrence whose end depends on every step, and a file of what ran."""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from zo_sweeps.core.events import End, Event, Rung, ScoredDev, Sink, Start, Steps, Warned
from zo_sweeps.core.trial import Needs, Outcome, StoredConfig, Trial, TrialState
from zo_sweeps.record.journal import scalars

ANYWHERE = Needs()


def trial(
    folder: Path,
    name: str,
    *,
    steps: int = 5,
    warm: str = "m",
    needs: Needs = ANYWHERE,
    row: str = "",
    **behaviour,
) -> Trial:
    """A trial named `name`. Behaviour: pause (seconds a step), raises (on which attempts), dies (SIGKILL: at that step
    of those attempts), asked (SIGTERM: the same), ends (a state), leaves (sys.exit), gate (a file, awaited after step
    8), peak (bytes that it says it needed), rungs (step -> dev loss: where it pauses), eats (GiB that it takes: at step
    3 of its first attempt), warns (of which metrics)."""
    config = StoredConfig({"folder": str(folder), "seed": len(name), **behaviour})
    sizes = {"cost": float(steps), "steps": steps}
    return Trial(name, config, needs=needs, warm_key=warm, label=name, block=row, **sizes)


def trials(folder: Path, n: int, **behaviour) -> list[Trial]:
    return [trial(folder, f"t{i:03d}", **behaviour) for i in range(n)]


def note(task: Trial, what: str) -> None:
    folder = Path(task.config.to_json()["folder"])
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / f"{task.trial_id}.log", "a") as file:
        file.write(what + "\n")


def log_of(folder: Path, trial_id: str) -> list[str]:
    path = folder / f"{trial_id}.log"
    return path.read_text().split("\n")[:-1] if path.exists() else []


def completions(folder: Path, names: Iterable[str]) -> dict[str, int]:
    """How often each trial was run to its end."""
    return {name: sum(line.startswith("done") for line in log_of(folder, name)) for name in names}


def run_trial(
    task: Trial,
    sink: Sink,
    journal: list[Event],
    attempt: int,
    should_stop: Callable[[], bool],
) -> Outcome:
    config = task.config.to_json()
    coefs, losses = scalars(journal)
    done = len(losses)
    value = coefs[-1][0] if coefs else 0.1
    note(task, f"start attempt={attempt} from={done} pid={os.getpid()} threads={os.environ.get('OMP_NUM_THREADS')}")
    sink.emit(Start(attempt=attempt, device={}, versions={}, resumed_from=done))

    def end(state: TrialState, error: str = "") -> Outcome:
        metrics = {"dev/metric": value, "dev/loss": math.fsum(losses)} if state is TrialState.SUCCEEDED else {}
        if "peak" in config:
            metrics["peak_memory_bytes"] = float(config["peak"])
        outcome = Outcome(task.trial_id, state, metrics, steps_done=done, error=error)
        sink.emit(End(outcome=outcome))
        return outcome

    for metric in config.get("warns", []):
        sink.emit(Warned(metric=metric, text=f"poor {metric}"))
    for step in range(done + 1, task.steps + 1):
        while step > 8 and "gate" in config and not Path(config["gate"]).exists() and not should_stop():
            time.sleep(0.05)
        if should_stop():
            note(task, f"stopped at={done}")
            return end(TrialState.CANCELLED)
        if step == 3 and attempt in config.get("raises", []):
            raise ValueError(f"poisoned {task.trial_id}\nsecond line")
        if step == 3 and attempt == 1 and "eats" in config:
            held = [bytearray(os.urandom(1)) * 2**26 for _ in range(16 * config["eats"])]
            time.sleep(60)  # it is killed in here
            del held
        if step == 3 and attempt in config.get("leaves", []):
            raise SystemExit(3)
        if step == 3 and attempt in config.get("dies", []):
            time.sleep(1.2)  # long enough for the two steps before to have been drained
            os.kill(os.getpid(), signal.SIGKILL)
        if step == 3 and attempt in config.get("asked", []):
            os.kill(os.getpid(), signal.SIGTERM)
            while not should_stop():
                time.sleep(0.01)
        time.sleep(config.get("pause", 0.0))
        value = 3.7 * value * (1.0 - value)  # chaotic: a step that is left out or done twice shows
        losses.append(value * step)
        sink.emit(Steps(first=step, losses=(losses[-1],), coefs=((value,),), seconds=0.0, tokens=0))
        done = step
        if str(step) in config.get("rungs", {}):
            loss = config["rungs"][str(step)]
            sink.emit(ScoredDev(step=step, loss=loss, metric=math.nan))
            if step not in {event.step for event in journal if isinstance(event, Rung)}:
                return end(TrialState.PAUSED)
    note(task, f"done attempt={attempt}")
    return end(TrialState(config.get("ends", "SUCCEEDED")))
