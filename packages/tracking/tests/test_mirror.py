"""The mirror against real MLflow stores: every row once, whatever is killed, lost or repeated."""

from __future__ import annotations

import resource
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.record import made_up
from zo_sweeps.core.errors import UserError
from zo_sweeps.core.trial import Trial, TrialState
from zo_sweeps.record.journal import JournalStore
from zo_sweeps.record.sweep_book import SweepBook, SweepInfo
from zo_sweeps_tracking import rows, server
from zo_sweeps_tracking.server import own_client
from zo_sweeps_tracking.store import MlflowMirror, sync

pytestmark = pytest.mark.multiprocess
SWEEP = SweepInfo(
    "5weeb", "demo_grid", "demo_grid · smoke", "python -m zo_sweeps +grid=demo_grid", config_yaml="a: 1\n"
)


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty database: MLflow takes a second to make one."""
    path = tmp_path_factory.mktemp("empty") / "mlflow.db"
    own_client(path)
    return path


@pytest.fixture
def uri(tmp_path: Path, empty: Path) -> str:
    """As MLflow names the state folder's own store, which a sweep has made."""
    (tmp_path / "mlflow").mkdir()
    shutil.copy(empty, tmp_path / "mlflow")
    return f"sqlite:///{tmp_path / 'mlflow' / 'mlflow.db'}"


@pytest.mark.long
def test_a_process_that_ends_between_two_tables_leaves_a_store_that_the_next_one_makes(tmp_path: Path) -> None:
    program = f"""
import os, pathlib, sqlalchemy
from sqlalchemy import event

@event.listens_for(sqlalchemy.engine.Engine, "after_cursor_execute")
def ended(connection, cursor, statement, *others):
    if "create table guardrails" in statement.lower():  # of the last ones
        os._exit(9)

from zo_sweeps_tracking.server import own_client
own_client(pathlib.Path({str(tmp_path)!r}, "mlflow.db"))
"""
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 9
    assert own_client(tmp_path / "mlflow.db").search_experiments()


def named(uri: str) -> str | None:
    """As a sweep names the store: `tracking.uri`."""
    return None if uri.startswith("sqlite:") else uri


@pytest.fixture
def experiment(request: pytest.FixtureRequest) -> str:
    return request.node.name[:100]


def client(uri: str) -> Any:
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=uri)


def runs(uri: str, experiment: str) -> list[Any]:
    found = client(uri).get_experiment_by_name(experiment)
    return list(client(uri).search_runs([found.experiment_id])) if found else []


def children(uri: str, experiment: str) -> dict[str, Any]:
    """Runs of trials by trial_id; more than one of a trial is an error."""
    trials = [run for run in runs(uri, experiment) if "zo.trial_id" in run.data.tags]
    by_id = {run.data.tags["zo.trial_id"]: run for run in trials}
    assert len(by_id) == len(trials), "two runs of one trial"
    return by_id


def parent(uri: str, experiment: str) -> Any:
    (run,) = [run for run in runs(uri, experiment) if run.data.tags["zo.kind"] == "sweep"]
    return run


def history(uri: str, run: Any) -> list[rows.MetricPoint]:
    """Every stored metric row of a run, doubled ones too."""
    found = []
    for key in run.data.metrics:
        rows_of_key = client(uri).get_metric_history(run.info.run_id, key)
        found += [rows.MetricPoint(m.key, m.value, m.timestamp, m.step) for m in rows_of_key]
    return sorted(found)


def assert_each_row_once(uri: str, experiment: str, store: JournalStore, trials: list[Trial]) -> None:
    found = children(uri, experiment)
    assert set(found) == {made.trial_id for made in trials}
    for made in trials:
        assert history(uri, found[made.trial_id]) == sorted(rows.points(made, store.read(made.trial_id)))


def page(uri: str, experiment: str) -> Any:
    """Everything a person could see of an experiment."""
    return sorted(
        (run.info.run_id, run.info.status, run.info.end_time, run.data.params, run.data.tags, history(uri, run))
        for run in runs(uri, experiment)
    )


def mirrored(
    uri: str, experiment: str, folder: Path, trials: list[Trial], *, finish: bool = True, lines: Any = None
) -> None:
    """One driver's life: register everything, send what the journals hold, end."""
    said: list[str] = [] if lines is None else lines
    mirror = MlflowMirror(named(uri), experiment, SWEEP, folder, say=said.append, patience=60)
    for made in trials:
        mirror.register(made)
    if finish:
        mirror.finish("| a |\n|---|\n| 1 |\n", {"table.csv": "a\n1\n"}, {"trials": len(trials)}, "FINISHED")
    assert mirror.drain(120) == 0
    mirror.close(30)
    if lines is None:
        assert said == []


@pytest.mark.parametrize("where", ["own store", pytest.param("server", marks=pytest.mark.long)])
def test_a_sweep_is_one_parent_with_a_run_a_trial_that_says_everything(
    where: str, request: pytest.FixtureRequest, experiment: str, tmp_path: Path
) -> None:
    uri: str = request.getfixturevalue("uri" if where == "own store" else "tracking")
    store = JournalStore(tmp_path)
    ends = [TrialState.SUCCEEDED, TrialState.DIVERGED, TrialState.OUT_OF_MEMORY, TrialState.CANCELLED]
    trials = [made_up.trial(seed, steps=20) for seed in range(len(ends))]
    for made, state in zip(trials, ends, strict=True):
        store.append(made.trial_id, made_up.whole(made, state=state, error="" if made is trials[0] else "why"))
    mirrored(uri, experiment, tmp_path, [*trials, made_up.trial(seed=99)])  # the last one never started

    assert_each_row_once(uri, experiment, store, trials)
    found, top = children(uri, experiment), parent(uri, experiment)
    assert [found[made.trial_id].info.status for made in trials] == ["FINISHED", "FAILED", "FAILED", "KILLED"]
    first = found[trials[0].trial_id]
    assert first.info.run_name == "seed 0 · LoRA-FA (q=2) · SST-2 · lr 0.0001"
    assert (first.data.tags["zo.step_time"], first.data.tags["zo.peak_memory"]) == ("100 ms", "117.7 MiB")
    assert first.info.start_time == int(made_up.BEGAN * 1000)
    assert first.data.params == rows.params(trials[0].config)
    assert first.data.tags["mlflow.parentRunId"] == top.info.run_id
    assert {found[made.trial_id].data.tags["zo.state"] for made in trials} == {state.value for state in ends}
    assert found[trials[1].trial_id].data.metrics["diverged"] == 1
    assert first.data.metrics["test/accuracy"] == 0.88
    (dataset,) = first.inputs.dataset_inputs
    assert (dataset.dataset.name, dataset.dataset.digest) == ("sst2", "da7a")

    def artifacts(run: Any) -> set[str]:
        if named(uri):
            return {file.path for file in client(uri).list_artifacts(run.info.run_id)}
        (folder,) = (tmp_path / "mlflow" / "artifacts").glob(f"*/{run.info.run_id}/artifacts")
        return {file.name for file in folder.iterdir()}

    assert artifacts(first) == {"config.yaml", "scalars.jsonl"}
    assert artifacts(top) == {"sweep.yaml", "provenance.json", "table.md", "table.csv"}
    if named(uri):
        log = Path(client(uri).download_artifacts(first.info.run_id, "scalars.jsonl", str(tmp_path)))
    else:
        (log,) = (tmp_path / "mlflow" / "artifacts").glob(f"*/{first.info.run_id}/artifacts/scalars.jsonl")
    assert log.read_text() == rows.scalar_log(store.read(trials[0].trial_id))
    assert (top.info.status, top.data.metrics) == ("FINISHED", {"trials": 5})
    assert top.data.tags["mlflow.source.name"] == SWEEP.command
    assert "| 1 |" in top.data.tags["mlflow.note.content"]


def test_sending_everything_again_adds_nothing(uri: str, experiment: str, tmp_path: Path) -> None:
    store, trials = JournalStore(tmp_path), [made_up.trial(seed, steps=30) for seed in range(3)]
    for made in trials:
        store.append(made.trial_id, made_up.whole(made))
    mirrored(uri, experiment, tmp_path, trials)
    before = page(uri, experiment)
    assert sync(tmp_path, named(uri), say=lambda line: None) == 0
    assert page(uri, experiment) == before
    for forgotten in ("", "{", '{"type": "sent"}\n'):  # what the server has acknowledged: lost, or torn
        (tmp_path / "mlflow" / "sent.jsonl").write_text(forgotten)
        assert sync(tmp_path, named(uri), say=lambda line: None) == 3
        assert page(uri, experiment) == before
    assert_each_row_once(uri, experiment, store, trials)


def test_a_sweep_that_sent_nothing_is_sent_whole_by_sync(uri: str, experiment: str, tmp_path: Path) -> None:
    store, trials = JournalStore(tmp_path), [made_up.trial(seed, steps=10) for seed in range(2)]
    for made in trials:
        store.append(made.trial_id, made_up.whole(made))
    book = SweepBook(tmp_path, experiment, SWEEP)
    for made in trials:
        book.add(made)
    book.finish({"table.md": "| a |"}, {}, "FINISHED")
    book.close()
    said: list[str] = []
    assert sync(tmp_path, named(uri), say=said.append) == 2
    assert said == [f"demo_grid · smoke: 2 trials sent to {tmp_path}/mlflow/mlflow.db"]
    assert_each_row_once(uri, experiment, store, trials)
    assert parent(uri, experiment).info.status == "FINISHED"


DRIVER = f"""
import os, signal, sys
from tests.record import made_up
from zo_sweeps.record.journal import JournalStore
from zo_sweeps.record.sweep_book import SweepInfo
from zo_sweeps_tracking.store import MlflowMirror
SWEEP = {SWEEP}
experiment, folder = sys.argv[1:]
store, mirror = JournalStore(folder), MlflowMirror(None, experiment, SWEEP, folder)
for seed in range(3):
    made = made_up.trial(seed, steps=40)
    store.append(made.trial_id, made_up.whole(made)[:5])
    mirror.register(made)
assert mirror.drain(120) == 0
store.append(made.trial_id, made_up.whole(made)[5:7])  # never sent by this driver
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_runs_of_a_killed_driver_are_closed_by_the_next_and_go_on_with_their_trials(
    uri: str, experiment: str, tmp_path: Path
) -> None:
    arguments = [sys.executable, "-c", DRIVER, experiment, str(tmp_path)]
    killed = subprocess.run(arguments, cwd=Path(__file__).parents[3], capture_output=True, text=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert {run.info.status for run in runs(uri, experiment)} == {"RUNNING"}
    before = {trial_id: run.info.run_id for trial_id, run in children(uri, experiment).items()}

    store, trials = JournalStore(tmp_path), [made_up.trial(seed, steps=40) for seed in range(3)]
    for made in trials[1:]:  # the first is not asked for any more
        rest = made_up.whole(made)[len(store.read(made.trial_id)) :]
        store.append(made.trial_id, [made_up.start(attempt=2, at=made_up.BEGAN + 100), *rest])
    mirrored(uri, experiment, tmp_path, trials[1:])

    found = children(uri, experiment)
    assert {trial_id: run.info.run_id for trial_id, run in found.items()} == before
    assert [found[made.trial_id].info.status for made in trials] == ["KILLED", "FINISHED", "FINISHED"]
    assert found[trials[0].trial_id].data.tags["zo.state"] == "LOST"
    assert found[trials[1].trial_id].data.tags["zo.attempt"] == "2"
    assert parent(uri, experiment).info.status == "FINISHED"
    assert_each_row_once(uri, experiment, store, trials)


def test_an_interrupted_sweep_leaves_no_run_open(uri: str, experiment: str, tmp_path: Path) -> None:
    store, made = JournalStore(tmp_path), made_up.trial(steps=40)
    store.append(made.trial_id, made_up.whole(made)[:4])
    mirrored(uri, experiment, tmp_path, [made], finish=False)
    assert {run.info.status for run in runs(uri, experiment)} == {"KILLED"}
    store.append(made.trial_id, [made_up.start(attempt=2), *made_up.whole(made)[4:]])
    mirrored(uri, experiment, tmp_path, [made])
    assert {run.info.status for run in runs(uri, experiment)} == {"FINISHED"}
    assert_each_row_once(uri, experiment, store, [made])


def test_what_is_not_part_of_the_identity_may_change_between_attempts(
    uri: str, experiment: str, tmp_path: Path
) -> None:
    store, made = JournalStore(tmp_path), made_up.trial(steps=20)
    store.append(made.trial_id, made_up.whole(made)[:3])
    mirrored(uri, experiment, tmp_path, [made], finish=False)
    before = made.config.to_json()
    config = {**before, "model": {**before["model"], "path": "/moved"}, "added": 1}
    moved = Trial.from_json({**made.to_json(), "config": config})
    store.append(made.trial_id, [made_up.start(attempt=2), *made_up.whole(made)[3:]])
    mirrored(uri, experiment, tmp_path, [moved])
    run = children(uri, experiment)[made.trial_id]
    assert (run.data.params["model.path"], run.data.params["added"]) == ("/models/0", "1")
    assert_each_row_once(uri, experiment, store, [made])


def test_a_forced_rerun_is_a_run_of_its_own(uri: str, experiment: str, tmp_path: Path) -> None:
    store, made = JournalStore(tmp_path), made_up.trial(steps=20)
    store.append(made.trial_id, made_up.whole(made))
    mirrored(uri, experiment, tmp_path, [made])
    store.set_aside(made.trial_id)
    store.append(made.trial_id, [replace(event, time=event.time + 1000) for event in made_up.whole(made)])
    mirrored(uri, experiment, tmp_path, [made])
    both = [run for run in runs(uri, experiment) if run.data.tags["zo.kind"] == "trial"]
    assert len(both) == 2
    assert [len(history(uri, run)) for run in both] == [len(rows.points(made, made_up.whole(made)))] * 2


def test_the_same_trials_are_shown_in_another_experiment_too(uri: str, experiment: str, tmp_path: Path) -> None:
    store, made = JournalStore(tmp_path), made_up.trial(steps=20)
    store.append(made.trial_id, made_up.whole(made))
    for name in (experiment, experiment + " again"):
        mirrored(uri, name, tmp_path, [made])
        assert_each_row_once(uri, name, store, [made])


def test_a_run_that_somebody_deleted_comes_back_when_its_trial_goes_on(
    uri: str, experiment: str, tmp_path: Path
) -> None:
    store, made = JournalStore(tmp_path), made_up.trial(steps=20)
    store.append(made.trial_id, made_up.whole(made)[:3])
    mirrored(uri, experiment, tmp_path, [made], finish=False)
    client(uri).delete_run(children(uri, experiment)[made.trial_id].info.run_id)
    store.append(made.trial_id, made_up.whole(made)[3:])
    mirrored(uri, experiment, tmp_path, [made])
    assert_each_row_once(uri, experiment, store, [made])


def test_a_run_whose_creation_was_not_acknowledged_is_found_again(
    uri: str, experiment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow import MlflowClient

    store, made = JournalStore(tmp_path), made_up.trial(steps=20)
    store.append(made.trial_id, made_up.whole(made))
    create, answers = MlflowClient.create_run, []

    def create_and_lose_the_answer(*arguments: Any) -> Any:
        answers.append(create(*arguments))
        if len(answers) < 3:  # of the sweep's run, and of the trial's
            raise ConnectionError("the connection was reset")
        return answers[-1]

    monkeypatch.setattr(MlflowClient, "create_run", create_and_lose_the_answer)
    mirrored(uri, experiment, tmp_path, [made])
    assert len(answers) == 2
    assert parent(uri, experiment).info.status == "FINISHED"
    assert_each_row_once(uri, experiment, store, [made])


def test_one_damaged_journal_is_said_and_the_others_are_sent(uri: str, experiment: str, tmp_path: Path) -> None:
    store, trials = JournalStore(tmp_path), [made_up.trial(seed, steps=20) for seed in range(3)]
    for made in trials:
        store.append(made.trial_id, made_up.whole(made))
    path, said = store.path(trials[1].trial_id), []
    path.write_bytes(path.read_bytes().replace(b'"losses"', b"losses"))
    mirrored(uri, experiment, tmp_path, trials, lines=said)
    assert len(said) == 1
    assert f"{path}:2" in said[0]
    assert set(children(uri, experiment)) == {trials[0].trial_id, trials[2].trial_id}


def test_the_sweep_does_not_wait_for_a_server_that_never_answers(tmp_path: Path) -> None:
    store = JournalStore(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as silent:  # takes the call, says nothing
        mirror = MlflowMirror(f"http://127.0.0.1:{silent.getsockname()[1]}", "nowhere", SWEEP, tmp_path, say=print)
        calls = []
        for seed in range(20):
            made = made_up.trial(seed, steps=10)
            mirror.register(made)
            store.append(made.trial_id, made_up.whole(made))
            mirror.notify(made.trial_id)
            if seed == 10:
                calls.append(silent.accept()[0])  # from here on, the sender waits for its answer
        assert mirror.drain(0.1) == 20
        for call in calls:
            call.close()
    mirror.close(5.0)


LOADING = f"""
import sys
from pathlib import Path
from zo_sweeps.record.sweep_book import SweepInfo
from zo_sweeps_tracking.store import MlflowMirror
assert "importlib_metadata" not in sys.modules
mirror = MlflowMirror(None, "nowhere", {SWEEP}, sys.argv[1])
assert hasattr(sys.modules["importlib_metadata"], "MetadataPathFinder"), "its finder serves the other threads' imports"
mirror.close(60.0)
"""


@pytest.mark.long
def test_the_thread_registers_no_half_made_finder_of_packages(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOADING, str(tmp_path)], cwd=Path(__file__).parents[3], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_a_server_away_is_said_once_and_nothing_is_lost(tmp_path: Path) -> None:
    store, said = JournalStore(tmp_path), []
    trials = [made_up.trial(seed, steps=10) for seed in range(100)]
    mirror = MlflowMirror("http://127.0.0.1:9", "nowhere", SWEEP, tmp_path, say=said.append)
    for made in trials:
        mirror.register(made)
        for event in made_up.whole(made):
            store.append(made.trial_id, [event])
            mirror.notify(made.trial_id)
    mirror.finish("table", {}, {}, "FINISHED")
    assert mirror.drain(3.0) == 100
    mirror.close(5.0)
    assert len(said) <= 1  # none if the import of mlflow took longer than all this
    with pytest.raises(UserError, match=r"MLflow at \S+ does not answer \(connection refused\); check tracking.uri"):
        sync(tmp_path, "http://127.0.0.1:9")


def test_a_store_that_is_no_database_is_said_at_once_and_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "mlflow").mkdir()
    (tmp_path / "mlflow" / "mlflow.db").write_text("this is no database" * 100)
    said: list[str] = []
    mirror = MlflowMirror(None, "nowhere", SWEEP, tmp_path, say=said.append)
    mirror.register(made_up.trial(0))
    mirror.finish("table", {}, {}, "FINISHED")
    mirror.drain(300.0)
    mirror._thread.join(60.0)
    assert not mirror._thread.is_alive(), "it gave up before the time was over"
    assert len(said) == 1
    assert (
        f"MLflow at {tmp_path}/mlflow/mlflow.db refuses the sweep (file is not a database); the sweep goes on"
        in said[0]
    )
    mirror.close()


@contextmanager
def locked(database: Path) -> Iterator[None]:
    """Have another program write to the database, without an end."""
    with closing(sqlite3.connect(database)) as other:
        other.execute("begin exclusive")
        yield


@contextmanager
def full(database: Path) -> Iterator[None]:
    """Let no file become larger than the database is."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (database.stat().st_size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("trouble", [locked, full])
def test_a_store_that_is_locked_or_full_for_a_while_then_has_everything_once(
    trouble: Any, uri: str, experiment: str, tmp_path: Path
) -> None:
    store, made, later = JournalStore(tmp_path), made_up.trial(0, steps=20), made_up.trial(1, steps=1000)
    store.append(made.trial_id, made_up.whole(made))
    mirrored(uri, experiment, tmp_path, [made])
    store.append(later.trial_id, made_up.whole(later))
    said: list[str] = []
    with trouble(tmp_path / "mlflow" / "mlflow.db"):
        mirror = MlflowMirror(None, experiment, SWEEP, tmp_path, say=said.append)
        for each in (made, later):
            mirror.register(each)
        mirror.finish("table", {}, {}, "FINISHED")
        assert mirror.drain(1.0) > 0
        if trouble is full:
            while not said:
                time.sleep(0.1)
            assert f"MLflow at {tmp_path}/mlflow/mlflow.db cannot be written (" in said[0]
    assert mirror.drain(60) == 0
    mirror.close(30)
    assert len(said) <= 1
    assert_each_row_once(uri, experiment, store, [made, later])
    assert {run.info.status for run in runs(uri, experiment)} == {"FINISHED"}


def test_nothing_to_sync_is_a_users_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nothing has been run in"):
        sync(tmp_path, "http://127.0.0.1:9")


@pytest.mark.chaos
@pytest.mark.slow
def test_32_writers_through_an_outage_of_the_server_leave_every_row_once(experiment: str, tmp_path: Path) -> None:
    folder, said, store = tmp_path / "server", [], JournalStore(tmp_path)
    first = server.start(folder)
    first.wait()
    port = int(first.uri.rsplit(":", 1)[1])
    trials = [made_up.trial(seed, steps=60, lr=1e-4 * (1 + seed % 4)) for seed in range(32)]
    mirror = MlflowMirror(first.uri, experiment, SWEEP, tmp_path, say=said.append)
    for made in trials:
        mirror.register(made)

    def write(made: Trial) -> None:
        for event in made_up.whole(made):
            store.append(made.trial_id, [event])
            mirror.notify(made.trial_id)
            time.sleep(0.4)

    writers = [threading.Thread(target=write, args=(made,)) for made in trials]
    for writer in writers:
        writer.start()
    while len(runs(first.uri, experiment)) < 6:
        time.sleep(0.1)
    first.close()  # in the middle of requests
    time.sleep(3)
    again = server.start(folder, port)
    for writer in writers:
        writer.join()
    mirror.finish("| a |", {}, {}, "FINISHED")
    assert mirror.drain(180) == 0
    mirror.close(30)
    try:
        assert len(said) == 1
        assert "does not answer" in said[0]
        assert_each_row_once(again.uri, experiment, store, trials)
        assert {run.info.status for run in runs(again.uri, experiment)} == {"FINISHED"}
    finally:
        again.close()
