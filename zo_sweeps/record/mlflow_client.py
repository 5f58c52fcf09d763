"""One sweep on one MLflow server: finds or makes its runs and sends journals to them. Every call may be repeated."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from zo_sweeps.core.trial import Event, Trial, TrialState
from zo_sweeps.record import mlflow_points as rows
from zo_sweeps.record.cursors import Cursor, Cursors, store_id
from zo_sweeps.record.journal import JournalStore, outcome, read_events
from zo_sweeps.record.sweep_book import SweepInfo

_BATCH = 1000  # metrics, params and tags together, in one request
_BATCH_PARAMS = 100
_EXPERIMENT_TAGS = {"mlflow.experimentKind": "custom_model_development"}  # else the page opens on traces and prompts


class SweepRuns:
    """The parent run of a sweep and its child runs, one a trial. `open` comes first; `send` is safe in threads.

    `began` is when the sweep was first run (Unix seconds), `page` the address of its run for a browser.

    Raises what the MLflow client raises; `is_temporary` tells what to try again.
    """

    def __init__(
        self,
        uri: str,
        experiment: str,
        sweep: SweepInfo,
        began: float,
        state_dir: Path,
        provenance: Mapping[str, Any],
    ) -> None:
        _set_environment(uri)
        from mlflow import MlflowClient

        self._uri, self._client = uri.rstrip("/"), MlflowClient(tracking_uri=uri)
        self._name, self._sweep, self._began, self._provenance = experiment, sweep, began, provenance
        self._folder = state_dir / "mlflow"
        self._journals = JournalStore(state_dir)
        self._open_runs: set[str] = set()  # child runs that the server shows as RUNNING because of us

    # -- the sweep -----------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Find or make the experiment and the parent run; close what a killed driver left running."""
        experiment = self._find_experiment()
        self._experiment = experiment.experiment_id
        server = f"{experiment.experiment_id}-{experiment.creation_time}"  # the same at any address
        self._cursors = Cursors(self._folder / "cursors" / server)
        self._store = store_id(self._folder)
        self.parent = self._find_parent()
        self.page = f"{self._uri}/#/experiments/{self._experiment}/runs/{self.parent}?{rows.TRAINING}"
        self._close_orphans()

    def finish(self, files: Mapping[str, str], metrics: Mapping[str, float], status: str, when: float) -> None:
        """Put the tables and the sweep's own numbers on the parent run, and end it. `when`: Unix seconds."""
        from mlflow.entities import Metric, RunTag

        for name, text in files.items():
            self._client.log_text(self.parent, text, name)
        ms = int(when * 1000)
        points = [Metric(rows.clean_name(key), value, ms, 0) for key, value in metrics.items()]
        note = rows.sweep_note(self._sweep, self._experiment) + files.get("table.md", "")
        tags = [RunTag(*tag) for tag in rows.clean_tags({"mlflow.note.content": note}).items()]
        for start in range(0, max(1, len(points)), _BATCH - 1):
            self._client.log_batch(self.parent, points[start : start + _BATCH - 1], tags=tags)
        self._client.set_terminated(self.parent, status, ms)

    def abandon(self, parent_too: bool) -> None:
        """Close the runs that are still shown as running: their driver leaves."""
        for run_id in list(self._open_runs):
            self._close_lost(run_id)
        if parent_too:
            self._client.set_terminated(self.parent, "KILLED")

    def _find_experiment(self) -> Any:
        from mlflow.exceptions import MlflowException

        found = self._client.get_experiment_by_name(self._name)
        if found is None:
            try:
                self._client.create_experiment(self._name, tags=_EXPERIMENT_TAGS)
            except MlflowException as error:
                if error.error_code != "RESOURCE_ALREADY_EXISTS":  # another sweep was faster
                    raise
        elif found.lifecycle_stage != "active":
            self._client.restore_experiment(found.experiment_id)
        return found or self._client.get_experiment_by_name(self._name)

    def _find_parent(self) -> str:
        sweep = self._sweep
        found = self._search(f"tags.`zo.sweep_id` = '{sweep.sweep_id}' and tags.`zo.kind` = 'sweep'")
        if found:
            run_id = found[0].info.run_id
            self._client.update_run(run_id, status="RUNNING")
        else:
            tags = {
                **sweep.tags,
                "zo.kind": "sweep",
                "zo.sweep_id": sweep.sweep_id,
                "zo.grid": sweep.grid,
                "zo.store": self._store,
                "mlflow.source.name": sweep.command,
                "mlflow.source.type": "LOCAL",
                "mlflow.source.git.commit": self._provenance.get("git_commit"),
                "mlflow.note.content": rows.sweep_note(sweep, self._experiment),
                **rows.version_tags(self._provenance),
            }
            began = int(self._began * 1000)
            run = self._client.create_run(self._experiment, began, rows.clean_tags(tags), sweep.title)
            run_id = run.info.run_id
        if sweep.config_yaml:
            self._client.log_text(run_id, sweep.config_yaml, "sweep.yaml")
        self._client.log_text(run_id, json.dumps(self._provenance, indent=2), "provenance.json")
        return str(run_id)

    def _close_orphans(self) -> None:
        """Runs of this state directory that are shown as running, though their driver is gone.

        One whose trial goes on now is opened again by its next event.
        """
        experiments = [e.experiment_id for e in self._client.search_experiments()]
        query = f"attributes.status = 'RUNNING' and tags.`zo.store` = '{self._store}'"
        for run in self._search(query, experiments):
            if run.info.run_id == self.parent:
                continue
            if "zo.trial_id" in run.data.tags:
                self._close_lost(run.info.run_id)
            else:
                self._client.set_terminated(run.info.run_id, "KILLED")

    def _close_lost(self, run_id: str) -> None:
        self._client.set_tag(run_id, "zo.state", TrialState.LOST.value)
        self._client.set_terminated(run_id, rows.run_status(TrialState.LOST))
        self._open_runs.discard(run_id)

    def _search(self, query: str, experiments: Sequence[str] = ()) -> list[Any]:
        """All runs that fit, the oldest first."""
        found: list[Any] = []
        token = None
        while True:
            page = self._client.search_runs(
                list(experiments) or [self._experiment], query, order_by=["attributes.start_time"], page_token=token
            )
            found += page
            token = page.token
            if not token:
                return found

    # -- one trial -----------------------------------------------------------------------------------------------------

    def send(self, trial: Trial) -> None:
        """Send what the server has not acknowledged of the trial's journal. Costs about six requests a short trial.

        Raises UserError if the journal is damaged.
        """
        path = self._journals.path(trial.trial_id)
        cursor = self._cursors.load(trial.trial_id)
        first = _first_event(path)
        if first is None:
            return
        if cursor.born != first["time"]:
            cursor = Cursor(born=first["time"])
        events, end = read_events(path, cursor.offset)
        if not events:
            return
        params: dict[str, str] = {}
        if not cursor.run_id:
            run_id, params = self._find_or_make_run(trial, cursor.born)
            cursor = replace(cursor, run_id=run_id)
        tags = rows.event_tags(events)
        if any(event["type"] == "start" for event in events):
            tags |= rows.place_tags(events if not cursor.events else read_events(path)[0])
        self._log(cursor.run_id, rows.points(trial, events, cursor.steps), params, tags)
        self._show_state(cursor.run_id, path, events)
        self._cursors.save(trial.trial_id, cursor.advanced(len(events), end, rows.last_step_of(events)))

    def forget(self, trial: Trial) -> None:
        """Drop the cursor, so that the next `send` looks for the run again and replays everything."""
        self._cursors.forget(trial.trial_id)

    def _find_or_make_run(self, trial: Trial, born: float) -> tuple[str, dict[str, str]]:
        """The run of this journal, and the parameters that it still lacks."""
        params = rows.params(trial.config)
        found = self._search(f"tags.`zo.trial_id` = '{trial.trial_id}' and tags.`zo.journal` = '{born!r}'")
        if found:
            run_id = str(found[0].info.run_id)
            # Parameters cannot be changed in MLflow; those outside the identity (a path) may differ by now.
            params = {key: value for key, value in params.items() if key not in found[0].data.params}
        else:
            tags = {
                "mlflow.parentRunId": self.parent,
                "mlflow.source.name": self._sweep.command,
                "mlflow.source.type": "LOCAL",
                "mlflow.source.git.commit": self._provenance.get("git_commit"),
                "zo.kind": "trial",
                "zo.sweep_id": self._sweep.sweep_id,
                "zo.store": self._store,
                "zo.journal": repr(born),
                "zo.state": TrialState.RUNNING.value,
                **rows.version_tags(self._provenance),
                **rows.trial_tags(trial),
            }
            name = trial.label or trial.trial_id
            run = self._client.create_run(self._experiment, int(born * 1000), rows.clean_tags(tags), name)
            run_id = str(run.info.run_id)
        self._client.log_text(run_id, _yaml(trial.config), "config.yaml")
        self._log_dataset(run_id, trial)
        return run_id, params

    def _log_dataset(self, run_id: str, trial: Trial) -> None:
        from mlflow.entities import Dataset, DatasetInput

        task = trial.config.get("task", {})
        if "fingerprint" in task:
            source = json.dumps(task.get("hub") or {"local": task.get("local")})
            dataset = Dataset(str(task.get("name", trial.task)), str(task["fingerprint"])[:36], "zo_sweeps", source)
            self._client.log_inputs(run_id, [DatasetInput(dataset, [])])

    def _log(
        self, run_id: str, points: Iterable[rows.Point], params: Mapping[str, str], tags: Mapping[str, str]
    ) -> None:
        """The rows, in as few requests as the limits allow; tags last: a state is never ahead of its numbers."""
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

    def _show_state(self, run_id: str, path: Path, events: Sequence[Event]) -> None:
        """RUNNING after a start; ended, with the scalar log beside it, after an end."""
        ended = outcome(events)
        if ended is None:
            if any(event["type"] in ("start", "end") for event in events):
                self._client.update_run(run_id, status="RUNNING")
            self._open_runs.add(run_id)
            return
        everything, _ = read_events(path)
        self._client.log_text(run_id, rows.scalar_log(everything), "scalars.jsonl")
        if ended.traceback:
            self._client.log_text(run_id, ended.traceback, "traceback.txt")
        self._client.set_terminated(run_id, rows.run_status(ended.state), int(events[-1]["time"] * 1000))
        self._open_runs.discard(run_id)


def is_temporary(error: Exception) -> bool:
    """Whether the same request may succeed later: no server there, or one that has trouble of its own."""
    from mlflow.exceptions import MlflowException

    if isinstance(error, MlflowException):
        status = error.get_http_status_code()
    elif isinstance(error, OSError):  # all exceptions of `requests` are
        status = getattr(getattr(error, "response", None), "status_code", 503)
    else:
        return False
    return status >= 500 or status in (401, 403, 408, 429)


def _first_event(path: Path) -> Event | None:
    try:
        with open(path, "rb") as file:
            line = file.readline()
    except FileNotFoundError:
        return None
    if not line.endswith(b"\n"):
        return None
    try:
        return dict(json.loads(line))
    except ValueError:
        return read_events(path)[0][0]  # raises, naming the line


def _yaml(config: Mapping[str, Any]) -> str:
    import yaml

    plain = json.loads(json.dumps(config))  # a tuple has no plain spelling in YAML
    return str(yaml.safe_dump(plain, sort_keys=False, allow_unicode=True))


def _set_environment(uri: str) -> None:
    """MLflow's client takes these from nowhere else."""
    os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] = "0"  # a blind repeat of "create run" makes two; here we look first
    os.environ["MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT"] = "true"
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    if urlsplit(uri).hostname == "127.0.0.1":  # a proxy does not reach this machine
        for name in ("NO_PROXY", "no_proxy"):
            hosts = os.environ.get(name, "").split(",")
            if "127.0.0.1" not in hosts:
                os.environ[name] = ",".join(filter(None, [*hosts, "127.0.0.1"]))
