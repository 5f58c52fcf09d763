"""One sweep in one MLflow store: its runs, found or created, and the journals sent to them. Every call is idempotent.

The store is a server's, or that of a state directory (state_dir/mlflow: mlflow.db and artifacts/), which is written
without a server, as one would lay it out.

MLflow's SQL stores ignore a metric row that they have (same run, key, value, time and step), a tag or an artifact
replaces itself, and a run is looked up by its tags before it is created. So a journal can be resent at any time.
Acknowledgements are remembered for speed only: in memory, and for complete journals of ended trials in
state_dir/mlflow/sent.jsonl, which may be lost.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from zo_sweeps.core.errors import UserError
from zo_sweeps.core.events import Event, FinishedSweep, MadeFile, Uploaded, only
from zo_sweeps.core.files import locked, read_objects, replace_text, replacing
from zo_sweeps.core.trial import Trial, TrialState
from zo_sweeps.record import mlflow_points as rows
from zo_sweeps.record import provenance
from zo_sweeps.record.journal import Journal, JournalStore, born, outcome, read_events
from zo_sweeps.record.server import ARTIFACTS, DATABASE
from zo_sweeps.record.sweep_book import SweepInfo, books

if TYPE_CHECKING:
    from mlflow import MlflowClient

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
    """The parent run of a sweep and its child runs, one per trial. Call `open` first. Not thread-safe.

    Args:
        uri: the server; None for the state directory's own store.
        began: when the sweep was first run (Unix time).

    Raises the MLflow client's errors; `is_temporary` tells which to retry.
    """

    def __init__(self, uri: str | None, experiment: str, sweep: SweepInfo, began: float, state_dir: Path) -> None:
        self._name, self._sweep, self._began = experiment, sweep, began
        self._uri, self._folder = uri and uri.rstrip("/"), state_dir / "mlflow"
        self._journals = JournalStore(state_dir)
        self._sent: dict[str, _Sent] = {}
        self._metrics: list[str] = []  # of the tasks seen so far, in the sweep's views

    @property
    def store(self) -> str:
        """The address of the server, or the database."""
        return self._uri or str(self._folder / DATABASE)

    # -- the sweep -----------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Find or create the experiment and the parent run; close the runs that a killed driver left running."""
        self._client = _client(self._uri) if self._uri else _own_client(self._folder / DATABASE)
        self._provenance = provenance.collect()
        self._store_id = _store_id(self._folder)
        experiment = self._find_experiment()
        self._experiment, self._artifacts = experiment.experiment_id, experiment.artifact_location
        self._server = f"{experiment.experiment_id}-{experiment.creation_time}"  # the same at any address
        sent = [event for event, _ in read_objects(self._folder / "sent.jsonl") if event]
        self._complete = {(e["trial_id"], e["born"], e["bytes"]) for e in sent if e.get("server") == self._server}
        self.parent = self._find_parent()
        self._close_running()
        self._show_metrics()

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

    def _show_metrics(self, *names: str) -> None:
        """Set the views of the sweep to show these metrics too."""
        self._metrics = [*self._metrics, *names]
        for key, value in rows.view_tags(self._sweep.sweep_id, self._metrics).items():
            self._client.set_experiment_tag(self._experiment, key, value)

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
        runs = self._search(f"tags.`zo.sweep_id` = '{sweep.sweep_id}' and tags.`zo.kind` = 'sweep'")
        if runs:
            run_id = runs[0].info.run_id
            self._client.update_run(run_id, status="RUNNING")
        else:
            note = rows.sweep_note(sweep, self._experiment)
            tags = {**sweep.tags, "zo.kind": "sweep", "zo.grid": sweep.grid, "mlflow.note.content": note}
            run_id = self._make_run(sweep.title, self._began, tags)
        if sweep.config_yaml:
            self._log_text(run_id, sweep.config_yaml, "sweep.yaml")
        self._log_text(run_id, json.dumps(self._provenance, indent=2), "provenance.json")
        return str(run_id)

    def _close_running(self) -> None:
        """Close the runs of this state directory that are shown as running although no driver runs them.

        A trial that resumes reopens its run with its next event.
        """
        experiments = [e.experiment_id for e in self._client.search_experiments()]
        query = f"attributes.status = 'RUNNING' and tags.`zo.store` = '{self._store_id}'"
        for run in self._search(query, experiments):
            run_id = run.info.run_id
            if "zo.trial_id" in run.data.tags:
                self._client.set_tag(run_id, "zo.state", TrialState.LOST.value)
                self._client.set_terminated(run_id, rows.RUN_STATUS[TrialState.LOST])
            elif run_id != self.parent:
                self._client.set_terminated(run_id, "KILLED")

    def _search(self, query: str, experiments: Sequence[str] = ()) -> list[Any]:
        """Return all runs that match, oldest first."""
        runs: list[Any] = []
        token = None
        where, order = list(experiments) or [self._experiment], ["attributes.start_time"]
        while True:
            page = self._client.search_runs(where, query, order_by=order, page_token=token)
            runs += page
            token = page.token
            if not token:
                return runs

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
            self._end(sent.run_id, events)
            with Journal(self._folder / "sent.jsonl") as acknowledged:
                whole = Uploaded(server=self._server, trial_id=trial.trial_id, born=began, bytes=size)
                acknowledged.append(whole)
        elif sent.status != status:
            self._client.update_run(sent.run_id, status=status)
        self._sent[trial.trial_id] = _Sent(sent.run_id, began, status, {}, tags, len(points), size)
        return True

    def _find_or_make_run(self, trial: Trial, began: float) -> _Sent:
        if (metric := rows.metric_of(trial)) not in self._metrics:
            self._show_metrics(metric)
        params = rows.params(trial.config)
        runs = self._search(f"tags.`zo.trial_id` = '{trial.trial_id}' and tags.`zo.journal` = '{began!r}'")
        if runs:
            run_id, status = str(runs[0].info.run_id), runs[0].info.status
            # MLflow's parameters are immutable; a parameter outside the identity (a path) may differ by now.
            params = {key: value for key, value in params.items() if key not in runs[0].data.params}
        else:
            tags = {
                "mlflow.parentRunId": self.parent,
                "zo.kind": "trial",
                "zo.journal": repr(began),
                "zo.state": TrialState.RUNNING.value,
                **rows.trial_tags(trial),
            }
            run_id, status = self._make_run(trial.label or trial.trial_id, began, tags), "RUNNING"
        self._log_text(run_id, _yaml(trial.config.to_json()), "config.yaml")
        self._log_dataset(run_id, trial)
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

    def _log_dataset(self, run_id: str, trial: Trial) -> None:
        from mlflow.entities import Dataset, DatasetInput

        task = trial.config.to_json().get("task", {})
        if task.get("fingerprint"):  # a trial without a model has no data set
            source = json.dumps(task.get("hub") or {"local": task.get("local")})
            dataset = Dataset(str(task.get("name", trial.task)), str(task["fingerprint"])[:36], "zo_sweeps", source)
            self._client.log_inputs(run_id, [DatasetInput(dataset, [])])

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

    def _end(self, run_id: str, events: Sequence[Event]) -> None:
        """End the run of a complete journal, with the scalar log as an artifact."""
        ended = outcome(events)
        assert ended is not None
        self._log_text(run_id, rows.scalar_log(events), "scalars.jsonl")
        for file in only(MadeFile, events):
            self._log_text(run_id, file.text, file.name)
        if ended.traceback:
            self._log_text(run_id, ended.traceback, "traceback.txt")
        self._client.set_terminated(run_id, rows.RUN_STATUS[ended.state], int(events[-1].time * 1000))


def pages(uri: str, folder: Path) -> dict[str, str]:
    """Return the title of each sweep of a state directory and the address of its trials, the newest first.

    Sweeps that this server does not know are left out.
    """
    client = _client(uri)
    found = {}
    for book in sorted(books(folder), key=lambda book: -book.began):
        if experiment := client.get_experiment_by_name(book.experiment):
            found[book.sweep.title] = f"{uri}/{rows.link(experiment.experiment_id, book.sweep.sweep_id, rows.TABLE)}"
    return found


def is_temporary(error: Exception) -> bool:
    """Return whether the same request may succeed later.

    The server is unreachable or reports its own fault; the database is locked, or its disk full.
    """
    from mlflow.exceptions import MlflowException

    if isinstance(error, MlflowException):
        status = error.get_http_status_code()
    elif isinstance(error, (OSError, sqlite3.OperationalError)):  # all exceptions of `requests` are the former
        status = getattr(getattr(error, "response", None), "status_code", 503)
    else:
        return False
    return status >= 500 or status in (401, 403, 408, 429)


def silence(error: Exception) -> str:
    """Return what a store does that fails for a while: it refuses the user, does not answer, or is locked or full."""
    from mlflow.exceptions import MlflowException

    own = error.get_http_status_code() if isinstance(error, MlflowException) else None
    status = getattr(getattr(error, "response", None), "status_code", own)
    if "sqlite3." in str(error) or isinstance(error, sqlite3.Error):
        return "cannot be written"
    if status not in (401, 403):
        return "does not answer"
    named = "the user and password in" if os.environ.get("MLFLOW_TRACKING_USERNAME") else "a request without"
    return f"refuses {named} MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD (the head's: mlflow/auth.ini)"


def reason(error: Exception) -> str:
    """Return an error's message in a few words."""
    text = str(error)
    for known in ("Connection refused", "timed out", "Name or service not known"):  # deep inside a chain of causes
        if known in text:
            return known.lower()
    return text.splitlines()[0][:200] if text else type(error).__name__


def _store_id(folder: Path) -> str:
    """Return a state directory's id, made once, so that drivers that share a server do not close each other's runs."""
    path = folder / "store_id"
    if not path.exists():
        replace_text(path, os.urandom(6).hex())
    return path.read_text()


def _yaml(config: Mapping[str, Any]) -> str:
    import yaml

    plain = json.loads(json.dumps(config))  # a tuple has no plain spelling in YAML
    return str(yaml.safe_dump(plain, sort_keys=False, allow_unicode=True))


def _client(uri: str) -> MlflowClient:
    """Return a client of a server."""
    _set_environment()
    if urlsplit(uri).hostname == "127.0.0.1":  # a proxy cannot reach this machine's loopback
        for name in ("NO_PROXY", "no_proxy"):
            hosts = os.environ.get(name, "").split(",")
            if "127.0.0.1" not in hosts:
                os.environ[name] = ",".join(filter(None, [*hosts, "127.0.0.1"]))
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=uri)


def _own_client(database: Path) -> MlflowClient:
    """Return a client of a database, which is made if it is absent (a second, and five to import MLflow)."""
    with contextlib.closing(sqlite3.connect(database)) as one:  # MLflow tries for two minutes what is no database
        one.execute("pragma schema_version")
    _set_environment()
    from mlflow import MlflowClient
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    for name in ("mlflow.store.db.utils", "alembic"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # a line per table, and tracebacks of what is raised anyway
    with locked(database.with_suffix(".lock")):
        if not database.stat().st_size:  # made aside: a process that ends between two tables leaves none of them here
            with replacing(database) as part:
                # As a server would make it: a client's has artifacts in the working directory.
                SqlAlchemyStore(f"sqlite:///{part}", ARTIFACTS).engine.dispose()
    return MlflowClient(tracking_uri=f"sqlite:///{database}")


def _set_environment() -> None:
    """Set the MLflow client's options, which it reads from the environment only."""
    # Blindly retrying create_run would create duplicates; we look the run up first.
    os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] = "0"
    os.environ["MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT"] = "true"
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_SQLALCHEMYSTORE_POOLCLASS", "NullPool")  # a database that was deleted is not kept
