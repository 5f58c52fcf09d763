"""Sweeps as commands of their own, on clusters that tests take apart, and what must not depend on that."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.cli.common import ENVIRONMENT
from tests.schedule.nodes import wait_for
from zo_sweeps.core.events import Start, Steps

# A busy machine takes its time: what must not happen is that nothing goes on.
PATIENCE = 120.0  # seconds in which some trial ends
INLINE = """
import sys
from pathlib import Path
from zo_sweeps.config.composer import Composer
from zo_sweeps.plan.build import build
from zo_sweeps.record.journal import JournalStore
from zo_sweeps.schedule.executors.inline import InlineBackend
from zo_sweeps.schedule.ledger import Ledger
from zo_sweeps.schedule.sweep import Sweep
state = Path(sys.argv[1])
plan = build(Composer(sys.argv[3:], [sys.argv[2]]))
with Ledger(state) as ledger:
    print(Sweep(plan.trials, InlineBackend(), JournalStore(state), ledger).run())
"""


def words(grid: str, conf: Path, uri: str = "") -> list[str]:
    """A grid of `conf` for any CPU, recorded at `uri`; "": by the state folder's own server."""
    where = [f"tracking.uri={uri}"] if uri else []
    return [f"+grid={grid}", "device.kind=cpu", "grid.relabel=true", "--config-dir", str(conf), *where]


class Driver:
    """A sweep on the cluster at `address`, as a command of its own; what it says goes to `log`."""

    def __init__(
        self,
        folder: Path,
        words: list[str],
        address: str,
        token: Mapping[str, str],
        prefix: tuple[str, ...] = (),
        state: Path | None = None,
    ) -> None:
        self.folder, self.state, self.log = folder, state or folder / "state", folder / "log"
        command = [*prefix, sys.executable, "-m", "zo_sweeps", *words]
        command += [f"state_dir={self.state}", f"cluster.address={address}"]
        with open(self.log, "a") as log:
            self.process = subprocess.Popen(
                command,
                cwd=self.folder,
                env={**os.environ, **ENVIRONMENT, **token},
                stdout=log,
                stderr=log,
                text=True,
                start_new_session=True,
            )

    @property
    def said(self) -> str:
        return self.log.read_text()

    def ledger(self) -> list[dict[str, Any]]:
        return ledger_of(self.state)

    def done(self) -> int:
        return sum(entry["state"] == "SUCCEEDED" for entry in self.ledger())

    def lost(self) -> list[dict[str, Any]]:
        return [entry for entry in self.ledger() if entry["state"] == "LOST"]

    def runs_on(self, node: str) -> bool:
        """A trial's last attempt began on the node and has no outcome yet."""
        from zo_sweeps.record.journal import JournalStore, outcome

        store = JournalStore(self.state)
        return any(
            begun[-1].node == node and outcome(store.read(trial_id)) is None
            for trial_id in store
            if (begun := starts(self.state, trial_id))
        )

    def until(self, trials: int) -> None:
        """That many trials have succeeded; some trial in every `PATIENCE`."""
        self._while_trials_end(lambda: self.done() >= trials or self.process.poll() is not None)
        assert self.process.poll() is None, self.said

    def finish(self) -> int:
        """Its exit status."""
        self._while_trials_end(lambda: self.process.poll() is not None)
        return self.process.wait()

    def _while_trials_end(self, over: Callable[[], bool]) -> None:
        while not over():
            done = self.done()
            wait_for(lambda n=done: over() or self.done() > n, PATIENCE, f"another trial\n{self.said}")


def run_inline(state: Path, conf: Path, *words: str) -> Path:
    """The state folder of the same trials, run one after the other in one process."""
    command = [sys.executable, "-c", INLINE, str(state), str(conf), *words]
    done = subprocess.run(command, env={**os.environ, **ENVIRONMENT}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return state


def ledger_of(state: Path) -> list[dict[str, Any]]:
    path = state / "ledger.jsonl"
    lines = path.read_text().splitlines(True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def outcomes(state: Path) -> dict[str, Any]:
    """Everything of every result that does not depend on time and place."""
    found = {}
    for entry in ledger_of(state):
        if entry["state"] == "SUCCEEDED":
            assert entry["trial_id"] not in found, "a trial that succeeded twice"
            metrics = {k: v for k, v in entry["outcome"]["metrics"].items() if k.startswith(("dev/", "test/"))}
            found[entry["trial_id"]] = (
                metrics,
                entry["outcome"].get("selected_step"),
                entry["outcome"].get("steps_done"),
            )
    return found


def starts(state: Path, trial_id: str) -> list[Start]:
    from zo_sweeps.record.journal import JournalStore

    return [event for event in JournalStore(state).read(trial_id) if isinstance(event, Start)]


def logs(state: Path) -> dict[str, Any]:
    """Every trial's losses, coefficients and evaluations; each step is in its journal once."""
    from zo_sweeps.record.journal import JournalStore, evals, scalars

    found = {}
    for trial_id in (store := JournalStore(state)):
        events = store.read(trial_id, ended=True)
        steps = [e.first + i for e in events if isinstance(e, Steps) for i in range(len(e.losses))]
        assert steps == list(range(1, len(steps) + 1)), f"{trial_id}: {steps}"
        scores = {key: (event.loss, event.metric) for key, event in evals(events).items()}
        found[trial_id] = (scalars(events), scores)
    return found
