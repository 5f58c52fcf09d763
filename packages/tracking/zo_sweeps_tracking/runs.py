"""A sweep's runs in an MLflow store: the parent run, and one per trial, from its journal.

Every call is idempotent: MLflow's SQL stores ignore a metric row that they have (same run, key, value, time and step),
a tag or an artifact replaces itself, and a run is looked up by its tags before it is created. Acknowledgements are
remembered for speed only: in memory, and for complete journals of ended trials in state_dir/mlflow/sent.jsonl, which
may be lost.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from zo_sweeps.core.errors import UserError
from zo_sweeps.core.events import FinishedSweep, MadeFile, Uploaded, only
from zo_sweeps.core.files import read_objects, replace_text
from zo_sweeps.core.host import provenance
from zo_sweeps.core.trial import Trial, TrialState
from zo_sweeps.record.journal import Journal, JournalStore, born, outcome, read_events
from zo_sweeps.record.sweep_book import SweepInfo, books
from zo_sweeps_tracking import rows
from zo_sweeps_tracking.server import ARTIFACTS, DATABASE, client_of, is_temporary, own_client

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
