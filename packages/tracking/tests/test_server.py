"""The MLflow server of a folder: it shows what was written without it, and is gone with the process that started it."""

from __future__ import annotations

import signal
import socket
import stat
import subprocess
import sys
import time
import urllib.error
import urllib.request
from base64 import b64encode
from configparser import ConfigParser
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from tests.record import made_up
from zo_sweeps.core.errors import UserError
from zo_sweeps.record.journal import JournalStore
from zo_sweeps.record.sweep_book import SweepInfo
from zo_sweeps_tracking import server
from zo_sweeps_tracking.runs import pages
from zo_sweeps_tracking.store import MlflowMirror

pytestmark = [pytest.mark.multiprocess, pytest.mark.slow]

USER = """
import sys, time
from zo_sweeps_tracking import server
print(server.start(sys.argv[1]).uri, flush=True)
time.sleep(600)
"""


def processes_of(folder: Path) -> list[psutil.Process]:
    """Every process with the folder's database in its command, or in the group of such a process."""
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        command = " ".join(process.info["cmdline"] or [])
        if str(folder / "mlflow" / "mlflow.db") in command and process.info["status"] != psutil.STATUS_ZOMBIE:
            found += [process, *process.children(recursive=True)]
    return found


def wait_until_gone(folder: Path, seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while processes_of(folder):
        assert time.monotonic() < deadline, processes_of(folder)
        time.sleep(0.2)


@pytest.mark.chaos
def test_a_server_shows_what_was_written_without_it_and_dies_with_its_parent_even_if_killed(tmp_path: Path) -> None:
    trial = made_up.trial(0, steps=20)
    JournalStore(tmp_path).append(trial.trial_id, made_up.whole(trial))
    mirror = MlflowMirror(None, "demo_grid", SweepInfo("5weeb", "demo_grid", "demo"), tmp_path, say=print)
    mirror.register(trial)
    mirror.finish("| a |", {"table.csv": "a,1"}, {}, "FINISHED")
    assert mirror.drain(120) == 0
    mirror.close(30)
    user = subprocess.Popen([sys.executable, "-c", USER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        assert user.stdout
        uri = user.stdout.readline().strip()
        while not server.is_healthy(uri):
            time.sleep(0.2)
        from mlflow import MlflowClient

        client = MlflowClient(uri)
        experiment = client.get_experiment_by_name("demo_grid")
        by_kind = {run.data.tags["zo.kind"]: run for run in client.search_runs([experiment.experiment_id])}
        assert by_kind["trial"].data.metrics["test/accuracy"] == 0.88
        files = {kind: {file.path for file in client.list_artifacts(run.info.run_id)} for kind, run in by_kind.items()}
        assert files == {
            "trial": {"config.yaml", "scalars.jsonl"},
            "sweep": {"provenance.json", "table.csv", "table.md"},
        }
        table = client.download_artifacts(by_kind["sweep"].info.run_id, "table.csv", str(tmp_path))
        assert Path(table).read_text() == "a,1"
        assert list(pages(uri, tmp_path)) == ["demo"]
    finally:
        user.send_signal(signal.SIGKILL)
        user.wait()
    wait_until_gone(tmp_path)


def test_a_used_port_is_a_users_error_before_anything_starts(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=rf"port {port} cannot be used.*in use; name a free one"):
            server.start(tmp_path, port)
    with pytest.raises(UserError, match="port 99999 cannot be used"):
        server.start(tmp_path, 99999)
    assert not processes_of(tmp_path)


def test_a_folder_that_cannot_be_written_is_a_users_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write: Not a directory"):
        server.start(tmp_path / "file")


def test_a_server_that_cannot_start_is_explained_by_its_log(tmp_path: Path) -> None:
    (tmp_path / "mlflow").mkdir()
    (tmp_path / "mlflow" / "mlflow.db").write_text("this is no database" * 100)
    with (
        closing(server.start(tmp_path)) as running,
        pytest.raises(
            UserError, match=r"the MLflow server ended while starting: .*file is not a database.*server\.log"
        ),
    ):
        running.wait()


def test_a_server_beyond_loopback_asks_for_a_password_and_knows_its_own_name_only(tmp_path: Path, monkeypatch) -> None:
    for name in ("MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            pytest.skip("no network beyond loopback")
        host = probe.getsockname()[0]
    running = server.start(tmp_path, host=host)
    try:
        running.wait()
        assert running.uri.startswith(f"http://{host}:")
        file = server.credentials(tmp_path)
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        settings = ConfigParser()
        settings.read(file)
        user, password = settings["mlflow"]["admin_username"], settings["mlflow"]["admin_password"]
        monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", user)
        monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", password)

        def asked(words: str | None, **headers: str) -> int:
            if words:
                headers["Authorization"] = "Basic " + b64encode(words.encode()).decode()
            url = f"{running.uri}/api/2.0/mlflow/experiments/search?max_results=1"
            opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
            try:
                return int(opener.open(urllib.request.Request(url, headers=headers), timeout=20).status)
            except urllib.error.HTTPError as error:
                return error.code

        assert asked(None) == 401
        assert asked(f"{user}:wrong-password") == 401
        assert asked(f"{user}:{password}") == 200
        assert asked(f"{user}:{password}", Host="evil.example") == 403
        with pytest.raises(OSError, match="refused"):
            socket.create_connection(("127.0.0.1", int(running.uri.rsplit(":", 1)[1])), 2)
        for process in processes_of(tmp_path):
            assert password not in " ".join(process.cmdline())
        assert password not in (tmp_path / "mlflow" / "server.log").read_text()
        import mlflow

        mlflow.MlflowClient(tracking_uri=running.uri).create_experiment("ours")
        for wrong, what in (("wrong", "the user and password in"), (None, "a request without")):
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("MLFLOW_TRACKING_PASSWORD", wrong) if wrong else None
                patch.delenv("MLFLOW_TRACKING_USERNAME") if wrong is None else None
                with pytest.raises(mlflow.MlflowException) as refused:
                    mlflow.MlflowClient(tracking_uri=running.uri).get_experiment_by_name("ours")
                named = "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD (the head's: mlflow/auth.ini)"
                assert server.silence(refused.value) == f"refuses {what} {named}"
                assert server.is_temporary(refused.value), "a password that is set later is taken"
        (leader,) = psutil.Process(running.process.pid).children()
        leader.kill()
        wait_until_gone(tmp_path)  # with the process that listens: no second server opens its database
        with pytest.raises(OSError, match=r"refused|reset"):  # reset: the kernel still has the end of a connection
            asked(None)
    finally:
        running.close()
