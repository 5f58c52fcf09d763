"""The MLflow mirror: a browsable copy of the journals, sent in the background; it never blocks the sweep.

The journals are the truth. Whatever the store misses while it is unreachable, locked or full is sent when it is back,
by the next run of the sweep, or by `sync`. The store is a server's, or that of a state directory (state_dir/mlflow:
mlflow.db and artifacts/), which is written without a server, as one would lay it out.

Every call is idempotent: MLflow's SQL stores ignore a metric row that they have (same run, key, value, time and step),
a tag or an artifact replaces itself, and a run is looked up by its tags before it is created. Acknowledgements are
remembered for speed only: in memory, and for complete journals of ended trials in state_dir/mlflow/sent.jsonl, which
may be lost.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib
import json
import os
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from zo_sweeps.core.errors import UserError, nothing_run
from zo_sweeps.core.events import FinishedSweep, MadeFile, Uploaded, only
from zo_sweeps.core.files import read_objects, replace_text
from zo_sweeps.core.host import provenance
from zo_sweeps.core.trial import Trial, TrialState
from zo_sweeps.record import mlflow_points as rows
from zo_sweeps.record.journal import Journal, JournalStore, born, outcome, read_events
from zo_sweeps.record.server import ARTIFACTS, DATABASE, client_of, is_temporary, own_client, reason, silence
from zo_sweeps.record.sweep_book import BookContents, SweepBook, SweepInfo, books

_BATCH = 1000  # metrics, params and tags together, in one request
_BATCH_PARAMS = 100
_EXPERIMENT_TAGS = {"mlflow.experimentKind": "custom_model_development"}  # otherwise MLflow opens on traces and prompts


@dataclass
class _Sent:
    """The store's copy of one journal."""

    run_id: str
    born: float  # the time of the journal's first event; the journal of a forced rerun of the same trial has another
    status: str  # of the run
    params: dict[str, str]  # that the run still lacks
    tags: dict[str, str] = field(default_factory=dict)
    points: int = 0  # of the journal's that are there
    size: int = 0  # of the journal when all of it was there, in bytes


class SweepRuns:
    """The parent run of a sweep, which `began` first at this Unix time, and its child runs, one per trial.

    `trials` may grow. Call `open` first. Not thread-safe. Raises the MLflow client's errors; `is_temporary` tells which
    to retry.
    """

    def __init__(
        self,
        uri: str | None,
        experiment: str,
        sweep: SweepInfo,
        began: float,
        state_dir: Path,
        trials: Mapping[str, Trial],
    ) -> None:
        self._name, self._sweep, self._began, self._trials = experiment, sweep, began, trials
        self._uri, self._folder = uri and uri.rstrip("/"), state_dir / "mlflow"
        self.store = self._uri or str(self._folder / DATABASE)
        self._journals = JournalStore(state_dir)
        self._sent: dict[str, _Sent] = {}
        self._seen = -1  # the number of trials that names and views are made for

    # -- the sweep -----------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Find or create the experiment and the parent run; close the runs that a killed driver left running."""
        self._client = client_of(self._uri) if self._uri else own_client(self._folder / DATABASE)
        self._provenance = provenance()
        id_file = self._folder / "store_id"  # made once: drivers that share a server do not close each other's runs
        if not id_file.exists():
            replace_text(id_file, os.urandom(6).hex())
        self._store_id = id_file.read_text()
        experiment = self._find_experiment()
        self._experiment, self._artifacts = experiment.experiment_id, experiment.artifact_location
        self._server = f"{experiment.experiment_id}-{experiment.creation_time}"  # the same at any address
        sent = [event for event, _ in read_objects(self._folder / "sent.jsonl") if event]
        self._complete = {(e["trial_id"], e["born"], e["bytes"]) for e in sent if e.get("server") == self._server}
        self.parent = self._find_parent()
        self._close_running()
        self._see_trials()

    def finish(self, final: FinishedSweep) -> None:
        """Log the end that the sweep's book has to the parent run (tables and metrics), and end the run."""
        files, ms = final.files, int(final.time * 1000)
        for name, text in files.items():
            self._log_text(self.parent, text, name)
        points = [rows.MetricPoint(rows.clean_name(key), value, ms, 0) for key, value in final.metrics.items()]
        note = rows.sweep_note(self._sweep, self._experiment) + files.get("table.md", "")
        self._log(self.parent, points, {}, rows.clean_tags({"mlflow.note.content": note}))
        self._client.set_terminated(self.parent, final.status, ms)

    def abandon(self, parent_too: bool) -> None:
        """Close the runs that are still shown as running, because their driver exits."""
        self._close_running()
        if parent_too:
            self._client.set_terminated(self.parent, "KILLED")

    def _see_trials(self) -> None:
        """Set the views of the sweep, and what its runs are named after, to the trials that there are by now."""
        if self._seen != len(trials := list(self._trials.values())):
            for key, value in rows.view_tags(self._sweep.sweep_id, trials).items():
                self._client.set_experiment_tag(self._experiment, key, value)
            self._seen, self._common = len(trials), rows.common_parts(trials)

    def _find_experiment(self) -> Any:
        from mlflow.exceptions import MlflowException

        experiment = self._client.get_experiment_by_name(self._name)
        if experiment is None:
            try:
                # A server has a place for artifacts; its own store would be given one below the working directory.
                place = None if self._uri else ARTIFACTS + re.sub(r"[^\w-]", "_", self._name)
                self._client.create_experiment(self._name, place, _EXPERIMENT_TAGS)
            except MlflowException as error:
                if error.error_code != "RESOURCE_ALREADY_EXISTS":  # another sweep was faster
                    raise
        elif experiment.lifecycle_stage != "active":
            self._client.restore_experiment(experiment.experiment_id)
        return experiment or self._client.get_experiment_by_name(self._name)

    def _find_parent(self) -> str:
        sweep = self._sweep
        if run := self._find(f"tags.`zo.sweep_id` = '{sweep.sweep_id}' and tags.`zo.kind` = 'sweep'"):
            run_id = str(run.info.run_id)
            self._client.update_run(run_id, status="RUNNING")
        else:
            note = rows.sweep_note(sweep, self._experiment)
            tags = {**sweep.tags, "zo.kind": "sweep", "zo.grid": sweep.grid, "mlflow.note.content": note}
            run_id = self._make_run(sweep.title, self._began, tags)
        if sweep.config_yaml:
            self._log_text(run_id, sweep.config_yaml, "sweep.yaml")
        self._log_text(run_id, json.dumps(self._provenance, indent=2), "provenance.json")
        return run_id

    def _close_running(self) -> None:
        """Close the runs of this state directory that no driver runs; a trial that resumes reopens its own."""
        where = [experiment.experiment_id for experiment in self._client.search_experiments()]
        running = f"attributes.status = 'RUNNING' and tags.`zo.store` = '{self._store_id}'"
        while runs := self._client.search_runs(where, f"{running} and attributes.run_id != '{self.parent}'"):
            for run in runs:
                if "zo.trial_id" in run.data.tags:
                    self._client.set_tag(run.info.run_id, "zo.state", TrialState.LOST.value)
                self._client.set_terminated(run.info.run_id, rows.RUN_STATUS[TrialState.LOST])

    def _find(self, query: str) -> Any:
        """Return the oldest run of the experiment that matches; None if there is none."""
        runs = self._client.search_runs([self._experiment], query, order_by=["attributes.start_time"], max_results=1)
        return runs[0] if runs else None

    # -- one trial -----------------------------------------------------------------------------------------------------

    def send(self, trial: Trial) -> bool:
        """Send what the store lacks of the trial's journal; return False if that is nothing.

        After an error the next call looks up the run again and resends the whole journal. Raises UserError if the
        journal is damaged. Cost: about seven requests for a short trial, and the journal is read from its beginning.
        """
        try:
            return self._send(trial)
        except Exception as error:  # a refusal is any of MLflow's errors; `_send` again raises it if it stays
            self._sent.pop(trial.trial_id, None)
            if is_temporary(error) or isinstance(error, UserError):
                raise
            return self._send(trial)  # its run may have been deleted: retry once, with a new one

    def _send(self, trial: Trial) -> bool:
        path = self._journals.path(trial.trial_id)
        began = born(path)
        if began is None or (trial.trial_id, began, path.stat().st_size) in self._complete:
            return False
        events, size = read_events(path)
        ended = outcome(events)
        if ended and ended.never_ran:
            return False
        sent = self._sent.get(trial.trial_id)
        if sent is None or sent.born != began:
            sent = self._sent[trial.trial_id] = self._find_or_make_run(trial, began)
        if size == sent.size:
            return False
        points, tags = rows.points(trial, events), {**rows.event_tags(events), **rows.place_tags(events)}
        changed = {key: value for key, value in tags.items() if sent.tags.get(key) != value}
        self._log(sent.run_id, points[sent.points :], sent.params, changed)
        status = rows.RUN_STATUS[ended.state if ended else TrialState.RUNNING]
        if ended:
            self._log_text(sent.run_id, rows.scalar_log(events), "scalars.jsonl")
            for file in only(MadeFile, events):
                self._log_text(sent.run_id, file.text, file.name)
            if ended.traceback:
                self._log_text(sent.run_id, ended.traceback, "traceback.txt")
            self._client.set_terminated(sent.run_id, status, int(events[-1].time * 1000))
            with Journal(self._folder / "sent.jsonl") as acknowledged:
                acknowledged.append(Uploaded(server=self._server, trial_id=trial.trial_id, born=began, bytes=size))
        elif sent.status != status:
            self._client.update_run(sent.run_id, status=status)
        self._sent[trial.trial_id] = _Sent(sent.run_id, began, status, {}, tags, len(points), size)
        return True

    def _find_or_make_run(self, trial: Trial, began: float) -> _Sent:
        from mlflow.entities import Dataset, DatasetInput

        self._see_trials()
        params, config = rows.params(trial.config), trial.config.to_json()
        if run := self._find(f"tags.`zo.trial_id` = '{trial.trial_id}' and tags.`zo.journal` = '{began!r}'"):
            run_id, status = str(run.info.run_id), run.info.status
            # MLflow's parameters are immutable; a parameter outside the identity (a path) may differ by now.
            params = {key: value for key, value in params.items() if key not in run.data.params}
        else:
            tags = {
                "mlflow.parentRunId": self.parent,
                "zo.kind": "trial",
                "zo.journal": repr(began),
                "zo.state": TrialState.RUNNING.value,
                **rows.trial_tags(trial),
            }
            name = rows.run_name(trial, self._common) or trial.trial_id
            run_id, status = self._make_run(name, began, tags), "RUNNING"
        plain = json.loads(json.dumps(config))  # a tuple has no plain spelling in YAML
        self._log_text(run_id, yaml.safe_dump(plain, sort_keys=False, allow_unicode=True), "config.yaml")
        task = config.get("task", {})
        if task.get("fingerprint"):  # a trial without a model has no data set
            source = json.dumps(task.get("hub") or {"local": task.get("local")})
            dataset = Dataset(str(task.get("name", trial.task)), str(task["fingerprint"])[:36], "zo_sweeps", source)
            self._client.log_inputs(run_id, [DatasetInput(dataset, [])])
        return _Sent(run_id, began, status, params)

    def _make_run(self, name: str, began: float, tags: Mapping[str, Any]) -> str:
        """Create a run of this sweep with these tags and the sweep's common ones; return its id."""
        common = {
            "zo.sweep_id": self._sweep.sweep_id,
            "zo.store": self._store_id,
            "mlflow.source.name": self._sweep.command,
            "mlflow.source.type": "LOCAL",
            "mlflow.source.git.commit": self._provenance.get("git_commit"),
            **rows.version_tags(self._provenance),
        }
        run = self._client.create_run(self._experiment, int(began * 1000), rows.clean_tags({**common, **tags}), name)
        return str(run.info.run_id)

    def _log_text(self, run_id: str, text: str, name: str) -> None:
        """Log a text as an artifact: in the own store a file, where a server of that store looks for it."""
        if self._uri or not self._artifacts.startswith(ARTIFACTS):
            self._client.log_text(run_id, text, name)
        else:
            folder = self._folder / "artifacts" / self._artifacts.removeprefix(ARTIFACTS) / run_id / "artifacts"
            folder.mkdir(parents=True, exist_ok=True)
            replace_text(folder / name, text)

    def _log(
        self, run_id: str, points: Iterable[rows.MetricPoint], params: Mapping[str, str], tags: Mapping[str, str]
    ) -> None:
        """Log the rows in as few requests as the limits allow, tags last: a state is never ahead of its numbers."""
        from mlflow.entities import Metric, Param, RunTag

        metrics = [Metric(*point) for point in points]
        pairs = [Param(*pair) for pair in params.items()]
        tag_rows = [RunTag(*tag) for tag in tags.items()]
        while metrics or pairs or tag_rows:
            some, pairs = pairs[:_BATCH_PARAMS], pairs[_BATCH_PARAMS:]
            room = _BATCH - len(some) - len(tag_rows)
            batch, metrics = metrics[:room], metrics[room:]
            last, tag_rows = (tag_rows, []) if not metrics and not pairs else ([], tag_rows)
            self._client.log_batch(run_id, batch, some, last)


def pages(uri: str, folder: Path) -> dict[str, str]:
    """Return the title of each sweep of a state directory and the address of its trials, the newest first.

    Sweeps that this server does not know are left out.
    """
    client = client_of(uri)
    found = {}
    for book in sorted(books(folder), key=lambda book: -book.began):
        if experiment := client.get_experiment_by_name(book.experiment):
            found[book.sweep.title] = f"{uri}/{rows.link(experiment.experiment_id, book.sweep.sweep_id, rows.TABLE)}"
    return found


EVERY_SECONDS = 2.0  # between uploads, which take at most a tenth of a core
FIRST_WAIT, LONGEST_WAIT = 1.0, 30.0  # between attempts to reach the store


class MlflowMirror:
    """Sends the journals of a sweep to an MLflow store, in a thread: on a timer, and when `drain` asks for it.

    Args:
        uri: the server; None for the state directory's own store.
        experiment: name of the MLflow experiment; created if it is missing.
        say: prints a line for the user. An unreachable store is reported once.
        patience: grace period, in seconds, before that.

    No method raises because of the store; a full disk raises UserError, as it does for the journals. `close` ends the
    thread; anything unsent is sent the next time.
    """

    def __init__(
        self,
        uri: str | None,
        experiment: str,
        sweep: SweepInfo,
        state_dir: str | os.PathLike[str],
        *,
        say: Callable[[str], None] = print,
        patience: float = 0.0,
    ) -> None:
        self._folder, self._say = Path(state_dir).resolve(), say
        self._book = SweepBook(self._folder, experiment, sweep)
        self._journals = JournalStore(self._folder)
        self._trials: dict[str, Trial] = {}
        self._runs = SweepRuns(uri, experiment, sweep, self._book.began, self._folder, self._trials)
        self._speak_after = time.monotonic() + patience
        self._queue: Counter[str] = Counter()  # trial_id -> how often it was asked for
        self._final: FinishedSweep | None = None  # to be sent, after the queue
        self._opened = self._finished = self._answers = self._hurry = self._closing = False
        self._reported = self._refused = False
        self._changed = threading.Condition()
        # MLflow imports it. While it loads, it stands half made among Python's finders of packages, and torch, imported
        # beside it in another thread, fails at it: so it is loaded first.
        with contextlib.suppress(ImportError):
            importlib.import_module("importlib_metadata")
        self._thread = threading.Thread(target=self._main, name="mlflow-mirror", daemon=True)
        self._thread.start()

    def register(self, trial: Trial) -> None:
        """Register a trial, and queue the events that its journal already holds."""
        self._book.add(trial)
        self._trials[trial.trial_id] = trial
        if self._journals.path(trial.trial_id).exists():
            self.notify(trial.trial_id)

    def notify(self, trial_id: str) -> None:
        """Queue a registered trial whose journal has grown. Cost: microseconds."""
        with self._changed:
            self._queue[trial_id] += 1

    def finish(
        self,
        table_markdown: str,
        files: Mapping[str, str] | None = None,
        metrics: Mapping[str, float] | None = None,
        status: str = "FINISHED",
    ) -> None:
        """End the parent run once the queue is empty: FINISHED, FAILED, or KILLED for a sweep that was interrupted."""
        self._final = self._book.finish({"table.md": table_markdown, **(files or {})}, metrics or {}, status)

    def drain(self, timeout: float) -> int:
        """Wait until everything is sent, at most `timeout` seconds; return the number of trials still queued."""
        with self._changed:
            self._hurry = True
            self._changed.notify_all()
            self._changed.wait_for(
                lambda: self._closing or not self._lacks_something() or not self._thread.is_alive(), timeout
            )
            self._hurry = False
            return len(self._queue)

    def close(self, timeout: float = 5.0) -> None:
        """End the thread. If the store answers, runs that are still shown as running are closed as killed."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(timeout)
        self._book.close()

    def _lacks_something(self) -> bool:
        return not self._opened or bool(self._queue) or self._final is not None

    # -- the thread ----------------------------------------------------------------------------------------------------

    def _main(self) -> None:
        while (lock := lock_mirror(self._folder)) is None:  # an earlier sweep of this folder is still sending
            if self._closing:
                return
            time.sleep(0.2)
        retry_after = FIRST_WAIT
        while not self._closing:
            began = time.monotonic()
            try:
                self._upload()
                self._answers, retry_after = True, FIRST_WAIT
                pause = max(EVERY_SECONDS, 9 * (time.monotonic() - began))
            except Exception as error:  # whatever it is, the sweep goes on, and its journals are sent later
                self._answers = False
                self._closing |= not is_temporary(error)
                pause, retry_after = retry_after, min(2 * retry_after, LONGEST_WAIT)
                if not self._reported and (self._closing or time.monotonic() >= self._speak_after):
                    self._reported = True
                    what = f"MLflow at {self._runs.store} {silence(error)} ({reason(error)})"
                    kept = f"its results are kept in {self._folder}, and `python -m zo_sweeps sync` sends them"
                    self._say(f"{what}; the sweep goes on, {kept} if this does not")
            with self._changed:
                self._changed.notify_all()
                self._changed.wait_for(
                    lambda: self._closing or (self._answers and self._hurry and self._lacks_something()), pause
                )
        if self._answers:
            with contextlib.suppress(Exception):  # whatever it is, the next start closes them
                self._runs.abandon(parent_too=not self._finished)
        os.close(lock)

    def _upload(self) -> None:
        """Send what is queued. Raises what the store fails with for now, and its refusal of the sweep."""
        if not self._opened:
            self._runs.open()
            self._opened = True
        with self._changed:
            queued, final = list(self._queue), self._final
        for trial_id in queued:
            if self._closing:
                return
            with self._changed:
                asked = self._queue[trial_id] = self._queue.pop(trial_id)  # the last in turn if it fails
            with _going_on(f"trial {trial_id}", self._refuse):
                self._runs.send(self._trials[trial_id])
            with self._changed:
                if self._queue[trial_id] == asked:  # it has not grown meanwhile
                    del self._queue[trial_id]
        if final:
            with _going_on("the tables", self._refuse):
                self._runs.finish(final)
                self._finished = True
            self._final = None

    def _refuse(self, what: str, why: str) -> None:
        if not self._refused:
            self._refused = True
            self._say(f"MLflow does not take {what} ({why}); its journal is kept, the sweep goes on")


@contextlib.contextmanager
def _going_on(what: str, refused: Callable[[str, str], None]) -> Iterator[None]:
    """Report that the store refuses `what`, or cannot be sent it, and why; raise an error that may not last."""
    try:
        yield
    except Exception as error:  # MLflow, SQLAlchemy and the network each raise their own
        if is_temporary(error):
            raise
        refused(what, reason(error))


def lock_mirror(state_dir: Path) -> int | None:
    """Take the lock for sending from a state directory: a file descriptor, or None when another process holds it."""
    path = state_dir / "mlflow" / "mirror.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    return lock


def sync(state_dir: str | os.PathLike[str], uri: str | None = None, say: Callable[[str], None] = print) -> int:
    """Send everything in a state folder's journals that a store lacks, and `say` a line per sweep.

    Return the number of trials sent. Raises UserError if there is nothing to send, a sweep is sending from the folder,
    the store does not answer, or it refuses some of the rows; the rows that it accepted stay.
    """
    folder = Path(state_dir).resolve()
    sweeps = list(books(folder))
    if not sweeps:
        raise nothing_run(folder)
    lock = lock_mirror(folder)
    if lock is None:
        raise UserError("a sweep is running here and sends its own results", where=str(folder), fix="wait for its end")
    try:
        return sum(_send(book, folder, uri, say) for book in sweeps)
    finally:
        os.close(lock)


def _send(book: BookContents, folder: Path, uri: str | None, say: Callable[[str], None]) -> int:
    """Send one sweep. A trial that the store refuses, or whose journal is damaged, does not block the others."""
    trials = {trial.trial_id: trial for trial in book.trials}
    runs = SweepRuns(uri, book.experiment, book.sweep, book.began, folder, trials)
    sent, problems = 0, list[str]()
    try:
        runs.open()
        for trial in book.trials:
            with _going_on(f"trial {trial.trial_id}", lambda what, why: problems.append(f"{what}: {why}")):
                sent += runs.send(trial)
        if book.final:
            runs.finish(book.final)
        runs.abandon(parent_too=book.final is None)
    except Exception as error:  # as above; also of opening and finishing the sweep's run
        fix = "check tracking.uri; the same command goes on where this one stopped"
        raise UserError(f"MLflow at {runs.store} {silence(error)} ({reason(error)})", fix=fix) from None
    if problems:
        raise UserError(f"{len(problems)} of {len(book.trials)} trials were not sent; {problems[0]}", where=str(folder))
    say(f"{book.sweep.title}: {sent} trials sent to {runs.store}")
    return sent
