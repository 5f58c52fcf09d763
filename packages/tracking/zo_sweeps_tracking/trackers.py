"""Copies of a sweep in trackers other than MLflow (`tracking.also`), sent from the journals as trials end.

    state_dir/trackers/   NAME.jsonl: what the tracker has; NAME/EXPERIMENT/: its files

They show what MLflow shows: names, parameters, tags and points are those of `rows`. A run is one journal: its
id is the trial's and the time of the journal's first event, so a trial that was rerun is another run.
"""

from __future__ import annotations

import os
import re
import shutil
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from importlib.util import find_spec
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple

from zo_sweeps.core.errors import UserError, require_known
from zo_sweeps.core.events import Event, Uploaded
from zo_sweeps.core.files import locked, read_objects
from zo_sweeps.core.trial import Trial, TrialState
from zo_sweeps.core.units import counted
from zo_sweeps.record.journal import Journal, JournalStore, born, outcome, read_events
from zo_sweeps.record.sweep_book import SweepInfo, books
from zo_sweeps_tracking import rows
from zo_sweeps_tracking.server import reason

_NUMBER = re.compile(r"-?\d{1,9}(\.\d+)?(e[+-]?\d{1,3})?")  # and no fingerprint
_QUIET: dict[str, Any] = {"silent": True, "console": "off", "symlink": False}  # options of Weights & Biases' client
_QUIET |= {"disable_code": True, "disable_git": True, "disable_job_creation": True, "x_save_requirements": False}
_QUIET |= {"x_disable_machine_info": True, "x_disable_stats": True}
_QUIET |= {"x_disable_meta": True}  # the command line, and that may have a hook's credentials
_QUIET |= {"init_timeout": 20, "finish_timeout": 20, "finish_timeout_raises": True}  # seconds


class Run(NamedTuple):
    """A journal that has ended."""

    id: str
    name: str
    settings: dict[str, str]  # parameters and tags
    points: Sequence[rows.MetricPoint]
    succeeded: bool


class Wandb:
    """Weights & Biases. WANDB_MODE=offline leaves files for `wandb sync`; its own client finds the API key."""

    def __init__(self, folder: Path, project: str, group: str) -> None:
        self._folder, self._project, self._group = folder, project, group

    def send(self, run: Run) -> None:
        """Send a run; one whose sending was interrupted goes on. Raises the client's errors."""
        import wandb

        if os.environ.get("WANDB_MODE", "online") == "online" and not wandb.login(prompt=False):
            raise UserError("no API key: call `wandb login`, or set WANDB_MODE=offline")
        self._folder.mkdir(parents=True, exist_ok=True)
        for half in self._folder.glob(f"wandb/*run-*-{run.id}"):
            shutil.rmtree(half)
        curves = {point.key for point in run.points if point.step}
        steps: dict[int, dict[str, float]] = defaultdict(dict)
        for point in run.points:
            if point.key in curves:
                steps[point.step] |= {point.key: point.value, "_timestamp": point.time / 1000}
        with wandb.init(
            project=self._project,
            group=self._group,
            name=run.name,
            id=run.id,
            resume="allow",
            reinit="create_new",  # a run of the user's own, in this process, stays open
            dir=self._folder,
            config={key: float(text) if _NUMBER.fullmatch(text) else text for key, text in run.settings.items()},
            settings=wandb.Settings(**_QUIET),
        ) as sent:
            if sent.disabled:
                raise UserError("WANDB_MODE=disabled")
            for step in sorted(steps):
                sent.log(steps[step], step=step)
            sent.summary.update({point.key: point.value for point in run.points if point.key not in curves})
            sent.finish(exit_code=int(not run.succeeded))


class TensorBoard:
    """TensorBoard: a folder per run, whole when it appears. Its numbers have 32 bits."""

    def __init__(self, folder: Path, project: str, group: str) -> None:
        self._folder = folder

    def send(self, run: Run) -> None:
        """Write a run, in place of an earlier writing."""
        from torch.utils.tensorboard import SummaryWriter

        part = self._folder.parents[1] / "tensorboard.part"  # not below the folder for `tensorboard --logdir`
        for old in (part, *self._folder.glob(f"* {run.id}")):
            shutil.rmtree(old, ignore_errors=True)
        with SummaryWriter(str(part)) as writer:
            for point in run.points:
                writer.add_scalar(point.key, point.value, point.step, point.time / 1000)
            table = "\n".join(f"|{key}|{text}|" for key, text in run.settings.items())
            writer.add_text("settings", f"|key|value|\n|---|---|\n{table}", 0)
        self._folder.mkdir(parents=True, exist_ok=True)
        part.rename(self._folder / f"{run.name.replace('/', '_')[:50]} {run.id}")


TRACKERS: dict[str, type[TensorBoard] | type[Wandb]] = {"tensorboard": TensorBoard, "wandb": Wandb}


def check(names: Iterable[str]) -> None:
    """Raise UserError for a tracker that is not known, or whose package is missing."""
    for name in names:
        require_known("tracker", [name], TRACKERS, where="tracking.also")
        if find_spec(name) is None:
            raise UserError(f"tracking.also: {name} is not installed", fix=f"pip install 'zo-sweeps[{name}]'")


class _Outbox:
    """What one tracker lacks of one sweep."""

    def __init__(self, name: str, experiment: str, sweep: SweepInfo, trials: Sequence[Trial], state_dir: Path) -> None:
        self.name, self._experiment, self._folder = name, experiment, state_dir / "trackers"
        place = self._folder / name / re.sub(r"[^\w-]", "_", experiment)
        self._tracker = TRACKERS[name](place, experiment, f"{sweep.title} · {sweep.sweep_id}")
        self._common, self._journals = rows.common_parts(trials), JournalStore(state_dir)
        self._acknowledged = self._folder / f"{name}.jsonl"
        self._sent = self._read_sent()
        self._read: dict[tuple[str, float], int] = {}  # so much of a journal is read, and has no end

    def send(self, trial: Trial) -> bool:
        """Send a trial that has ended, unless it was sent. Raises the errors of the tracker's client."""
        try:
            began, size, events = self._ended(trial.trial_id)
        except UserError:  # a damaged journal, which MLflow's mirror names
            return False
        if not events:
            return False
        self._folder.mkdir(exist_ok=True)
        with locked(self._folder / f"{self.name}.lock"):  # a sweep and `sync` take turns
            self._sent = self._read_sent()
            if (trial.trial_id, began, size) in self._sent:
                return False
            settings = {**rows.params(trial.config), **rows.trial_tags(trial)}
            settings |= {**rows.event_tags(events), **rows.place_tags(events)}
            name = rows.run_name(trial, self._common) or trial.trial_id
            succeeded = settings["zo.state"] == TrialState.SUCCEEDED.value
            points = {(point.key, point.step): point for point in rows.points(trial, events)}  # a retry ends once more
            run_id = f"{trial.trial_id}-{1000 * began:.0f}"
            self._tracker.send(Run(run_id, name, settings, [*points.values()], succeeded))
            with Journal(self._acknowledged) as journal:
                journal.append(Uploaded(server=self._experiment, trial_id=trial.trial_id, born=began, bytes=size))
        return True

    def _read_sent(self) -> set[tuple[str, float, int]]:
        every = [one for one, _ in read_objects(self._acknowledged) if one]
        return {(one["trial_id"], one["born"], one["bytes"]) for one in every if one["server"] == self._experiment}

    def _ended(self, trial_id: str) -> tuple[float, int, list[Event]]:
        """Return when a journal began, its size and its events: none without an end, or if it was sent."""
        path = self._journals.path(trial_id)
        if (began := born(path)) is None or (trial_id, began, path.stat().st_size) in self._sent:
            return 0.0, 0, []
        events, size = read_events(path, self._read.get((trial_id, began), 0))
        ended = outcome(events)
        if ended is None or ended.never_ran:
            self._read[trial_id, began] = size
            return began, size, []
        events, size = read_events(path)
        return began, size, events


class Trackers(AbstractContextManager["Trackers"]):
    """Sends the trials of a sweep to trackers as they end, in a thread. Nothing that a tracker does fails the sweep.

    A context: at its end, the trials that have ended are waited for, `patience` seconds or, after an exception, one.
    """

    def __init__(
        self,
        names: Iterable[str],
        experiment: str,
        sweep: SweepInfo,
        trials: Sequence[Trial],
        state_dir: Path,
        say: Callable[[str], None],
        patience: float = 60.0,
    ) -> None:
        self._outboxes = [_Outbox(name, experiment, sweep, trials, state_dir) for name in dict.fromkeys(names)]
        self._say, self._patience = say, patience
        self._trials = {trial.trial_id: trial for trial in trials}
        self._grown: SimpleQueue[str | None] = SimpleQueue()
        for trial_id in self._trials:
            self.notify(trial_id)
        self._thread = threading.Thread(target=self._main, name="trackers", daemon=True)
        self._thread.start()

    def notify(self, trial_id: str) -> None:
        """Say that a trial's journal has grown. Cost: microseconds."""
        if self._outboxes:
            self._grown.put(trial_id)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._grown.put(None)
        self._thread.join(1.0 if kind else self._patience)
        for outbox in self._outboxes if self._thread.is_alive() else ():
            self._say(f"{outbox.name} has not taken all trials yet; {_resend(outbox.name)}")

    def _main(self) -> None:
        while self._outboxes and (trial_id := self._grown.get()) is not None:
            for outbox in list(self._outboxes):
                try:
                    outbox.send(self._trials[trial_id])
                except Exception as error:  # each client raises its own; the journals are kept
                    self._outboxes.remove(outbox)
                    self._say(f"{outbox.name} fails ({reason(error)}); the sweep goes on, and {_resend(outbox.name)}")


def _resend(name: str) -> str:
    return f"`python -m zo_sweeps sync tracking.also=[{name}]` sends them"


def sync(state_dir: Path, names: Iterable[str], say: Callable[[str], None] = print) -> None:
    """Send the ended trials of a state folder that these trackers lack; `say` a line per sweep.

    Raises UserError if a tracker fails.
    """
    for name in dict.fromkeys(names):
        for book in books(state_dir):
            outbox = _Outbox(name, book.experiment, book.sweep, book.trials, state_dir)
            try:
                sent = sum(map(outbox.send, book.trials))
            except Exception as error:  # each client raises its own
                fix = "the same command goes on where this one stopped"
                raise UserError(f"{name} fails ({reason(error)})", fix=fix) from None
            say(f"{book.sweep.title}: {counted(sent, 'trial')} sent to {name}")
