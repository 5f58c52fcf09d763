"""The local MLflow server: one a folder, shared, and gone when nobody needs it."""

from __future__ import annotations

import json
import os
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
from pathlib import Path

import psutil
import pytest

from zo_sweeps.core.errors import UserError
from zo_sweeps.record import server
from zo_sweeps.record.mlflow_client import is_temporary, silence

pytestmark = [pytest.mark.multiprocess, pytest.mark.slow]

USER = """
import sys, time
from zo_sweeps.record import server
running = server.start(sys.argv[1])
running.wait()
print(running.uri, flush=True)
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


def test_users_of_a_folder_share_a_server_that_ends_with_the_last_even_if_killed(tmp_path: Path) -> None:
    users = [subprocess.Popen([sys.executable, "-c", USER, str(tmp_path)], stdout=subprocess.PIPE) for _ in range(2)]
    try:
        uris = {user.stdout.readline() for user in users if user.stdout}
        assert len(uris) == 1, "two that start at once share one"
        uri = uris.pop().decode().strip()
        users[0].kill()  # whichever started it
        time.sleep(1.5)
        assert server.is_healthy(uri)
        mine = server.start(tmp_path, port=1)  # one that runs keeps its port
        assert mine.uri == uri
        users[1].kill()
        time.sleep(1.5)
        assert server.is_healthy(uri)
        mine.close()
        assert not processes_of(tmp_path), "the last user's close waits for the end"
        assert not (tmp_path / "mlflow" / "server.json").exists()
    finally:
        for user in users:
            user.kill()
            user.wait()


def test_a_server_dies_with_its_only_user_killed_while_it_starts(tmp_path: Path) -> None:
    code = USER.replace("running.wait()\n", "")
    user = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE)
    assert user.stdout
    user.stdout.readline()
    assert processes_of(tmp_path)
    user.send_signal(signal.SIGKILL)
    user.wait()
    wait_until_gone(tmp_path)


def test_starting_does_not_wait_and_a_server_asked_to_stay_is_ended_by_stop(tmp_path: Path) -> None:
    running = server.start(tmp_path, stay=True)
    assert not server.is_healthy(running.uri)  # it is still loading MLflow
    running.close()
    time.sleep(1.5)
    assert processes_of(tmp_path)
    assert server.stop(tmp_path)
    assert not processes_of(tmp_path)
    assert not server.stop(tmp_path)


def test_a_used_port_is_a_users_error_before_anything_starts(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=rf"port {port} cannot be used.*in use; omit the port"):
            server.start(tmp_path, port)
    with pytest.raises(UserError, match="port 99999 cannot be used"):
        server.start(tmp_path, 99999)
    assert not processes_of(tmp_path)


def test_a_folder_that_cannot_be_written_is_a_users_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write: Not a directory"):
        server.start(tmp_path / "file")


@pytest.mark.parametrize("stale", ["another process", "gone", "torn"])
def test_a_stale_server_file_is_not_believed(tmp_path: Path, stale: str) -> None:
    folder = tmp_path / "mlflow"
    folder.mkdir()
    entry = {"pid": os.getpid() if stale == "another process" else 2**22 - 1, "started": 1.0, "port": 9, "stay": False}
    (folder / "server.json").write_text("{" if stale == "torn" else json.dumps(entry))
    assert not server.stop(tmp_path)
    running = server.start(tmp_path)
    assert not running.uri.endswith(":9")
    running.close()
    assert not processes_of(tmp_path)


def test_a_server_that_cannot_start_is_explained_by_its_log(tmp_path: Path) -> None:
    (tmp_path / "mlflow").mkdir()
    (tmp_path / "mlflow" / "mlflow.db").write_text("this is no database" * 100)
    running = server.start(tmp_path)
    with pytest.raises(UserError, match=r"the MLflow server ended while starting: .*server\.log"):
        running.wait()
    assert "file is not a database" in server.ended(tmp_path, running.uri)
    assert server.ended(tmp_path, "http://127.0.0.1:9") == "", "not the folder's own"
    running.close()


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
    running = server.start(tmp_path, stay=True, host=host)
    try:
        running.wait()
        assert running.uri.startswith(f"http://{host}:")
        file = server.credentials(tmp_path)
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        settings = ConfigParser()
        settings.read(file)
        user, password = settings["mlflow"]["admin_username"], settings["mlflow"]["admin_password"]
        assert (os.environ["MLFLOW_TRACKING_USERNAME"], os.environ["MLFLOW_TRACKING_PASSWORD"]) == (user, password)

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
        again = server.start(tmp_path)  # a sweep on the head uses the same one
        assert again.uri == running.uri
        again.close()
        import mlflow

        mlflow.MlflowClient(tracking_uri=running.uri).create_experiment("ours")
        for wrong, what in (("wrong", "the user and password in"), (None, "a request without")):
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("MLFLOW_TRACKING_PASSWORD", wrong) if wrong else None
                patch.delenv("MLFLOW_TRACKING_USERNAME") if wrong is None else None
                with pytest.raises(mlflow.MlflowException) as refused:
                    mlflow.MlflowClient(tracking_uri=running.uri).get_experiment_by_name("ours")
                named = "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD (the head's: mlflow/auth.ini)"
                assert silence(refused.value) == f"refuses {what} {named}"
                assert is_temporary(refused.value), "a password that is set later is taken"
        os.kill(json.loads((tmp_path / "mlflow" / "server.json").read_text())["pid"], signal.SIGKILL)
        again = server.start(tmp_path)
        assert again.uri == running.uri, "the process that listens goes on: no second server opens its database"
        assert asked(None) == 401
        again.close()
    finally:
        running.close()
        server.stop(tmp_path)
    assert not processes_of(tmp_path)
