"""The local MLflow server: one a folder, shared, and gone when nobody needs it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from zo_sweeps.errors import UserError
from zo_sweeps.record import server

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
    began = time.perf_counter()
    running = server.start(tmp_path, stay=True)
    assert time.perf_counter() - began < 2
    running.close()
    time.sleep(1.5)
    assert processes_of(tmp_path)
    assert server.stop(tmp_path)
    assert not processes_of(tmp_path)
    assert not server.stop(tmp_path)


def test_a_used_port_is_a_users_error_before_anything_starts(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=rf"port {port} cannot be used.*in use; leave the port out"):
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
    running.close()
