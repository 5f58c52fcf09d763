"""A local MLflow server for one state directory: started on demand and reference-counted; it stops with its last user.

    state_dir/mlflow/   mlflow.db, artifacts/, server.log, server.json (pid, started, port), users.lock, start.lock

Every process that uses the server holds a shared lock on users.lock; a watcher process (`_watch.py`) ends the server
when none is held. A server that listens beyond loopback asks for a password, kept in `auth.ini`, which only its owner
can read.
"""

from __future__ import annotations

import configparser
import contextlib
import fcntl
import http.client
import json
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import util
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zo_sweeps.core.errors import UserError
from zo_sweeps.core.files import replace_text

if TYPE_CHECKING:
    import psutil

HOST = "127.0.0.1"
USER = "admin"
_START_SECONDS = 90.0
_ENVIRONMENT = {
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",  # "true" starts eleven more processes for features not used here
    "MLFLOW_DISABLE_TELEMETRY": "true",
}


@dataclass
class LocalServer:
    """A server that this process uses, until `close` or the process's end."""

    uri: str
    folder: Path
    _lock: int = -1

    def wait(self, timeout: float = _START_SECONDS) -> None:
        """Wait until the server answers (the first start takes about six seconds). Raises UserError if it does not."""
        deadline = time.monotonic() + timeout
        while not is_healthy(self.uri):
            alive = _read(self.folder) is not None
            if not alive or time.monotonic() > deadline:
                what = "does not answer" if alive else "ended while starting"
                log = self.folder / "server.log"
                raise UserError(f"the MLflow server {what}: {_last_line(log)}", where=str(log), fix="see that file")
            time.sleep(0.1)

    def close(self) -> None:
        """Stop using the server; its last user ends it."""
        if self._lock < 0:
            return
        with contextlib.suppress(BlockingIOError):  # other processes use it
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if (server := _read(self.folder)) and not server["stay"]:
                _kill(self.folder, server["pid"])
        os.close(self._lock)
        self._lock = -1


def start(
    state_dir: str | os.PathLike[str], port: int | None = None, *, stay: bool = False, host: str = HOST
) -> LocalServer:
    """Use the server of this state directory; start it if there is none. Does not wait until it answers.

    Args:
        port: the port of a new server; None takes a free one. A running server keeps its own.
        stay: a new server outlives its users, until `stop`.
        host: the address that it listens on. Beyond loopback it asks for a password, and answers to this name only.

    Raises UserError for a port in use, a folder that cannot be written, and a missing package for passwords.
    """
    folder = Path(state_dir).resolve() / "mlflow"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        users = os.open(folder / "users.lock", os.O_RDWR | os.O_CREAT, 0o644)
        starter = os.open(folder / "start.lock", os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise UserError(
            f"cannot write: {error.strerror}", where=str(folder), fix="choose another folder or give write access"
        ) from error
    try:
        fcntl.flock(starter, fcntl.LOCK_EX)  # concurrent commands start only one server
        fcntl.flock(users, fcntl.LOCK_SH)
        server = _read(folder) or _spawn(folder, port, stay, host)
    except BaseException:
        os.close(users)
        raise
    finally:
        os.close(starter)
    _log_in(folder, server)
    return LocalServer(f"http://{server['host']}:{server['port']}", folder, users)


def stop(state_dir: str | os.PathLike[str]) -> bool:
    """End the server of this state directory even if it is in use; return False if none runs."""
    folder = Path(state_dir).resolve() / "mlflow"
    try:
        starter = os.open(folder / "start.lock", os.O_RDWR)
    except OSError:
        return False
    try:
        fcntl.flock(starter, fcntl.LOCK_EX)  # the record of a server that is started meanwhile is not removed
        server = _read(folder)
        if server:
            _kill(folder, server["pid"])
    finally:
        os.close(starter)
    return server is not None


@contextlib.contextmanager
def local_server(state_dir: str | os.PathLike[str], port: int | None = None) -> Iterator[str]:
    """Use the state directory's server inside the `with` block; yield its URI. It may still be starting."""
    server = start(state_dir, port)
    try:
        yield server.uri
    finally:
        server.close()


def is_healthy(uri: str) -> bool:
    """Return whether an MLflow server answers at `uri` within two seconds."""
    handlers = [urllib.request.ProxyHandler({})] if HOST in uri else []  # a proxy cannot reach this machine's loopback
    try:
        with urllib.request.build_opener(*handlers).open(uri.rstrip("/") + "/health", timeout=2) as answer:
            return bool(answer.status == 200)
    except (OSError, http.client.HTTPException):
        return False


def ended(state_dir: str | os.PathLike[str], uri: str) -> str:
    """Return the last line of its log if this state directory's own server is meant by `uri` and has ended; else ""."""
    folder = Path(state_dir).resolve() / "mlflow"
    try:
        port = json.loads((folder / "server.json").read_text())["port"]
    except (OSError, ValueError, KeyError):
        return ""
    return _last_line(folder / "server.log") if uri.endswith(f":{port}") and _read(folder) is None else ""


def credentials(state_dir: str | os.PathLike[str]) -> Path:
    """Return the file with the user and password of this state directory's server, made when a server first asks."""
    return Path(state_dir).resolve() / "mlflow" / "auth.ini"


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach `host`."""
    return host == "localhost" or host.startswith("127.") or host == "::1"


def _spawn(folder: Path, port: int | None, stay: bool, host: str) -> dict[str, Any]:
    guarded = not is_loopback(host)
    if guarded and util.find_spec("flask_wtf") is None:
        raise UserError("MLflow's passwords need the package flask-wtf", fix="pip install 'mlflow[auth]'")
    port = _free_port(port, host)
    command = [sys.executable, "-m", "mlflow", "server", "--workers", "1", "--host", host, "--port", str(port)]
    command += ["--backend-store-uri", f"sqlite:///{folder}/mlflow.db"]
    command += ["--artifacts-destination", str(folder / "artifacts")]
    environment = {**os.environ, **_ENVIRONMENT}
    if guarded:
        command += ["--app-name", "basic-auth", "--allowed-hosts", f"{host}:{port},localhost:{port},{HOST}:{port}"]
        command += ["--cors-allowed-origins", f"http://{host}:{port}"]
        environment["MLFLOW_AUTH_CONFIG_PATH"] = str(_passwords(folder))
        environment["MLFLOW_FLASK_SERVER_SECRET_KEY"] = secrets.token_hex(32)
    if not stay:
        command = [sys.executable, str(Path(__file__).with_name("_watch.py")), str(folder / "users.lock"), *command]
    with open(folder / "server.log", "ab") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=folder,
            env=environment,
            start_new_session=True,  # Ctrl-C reaches the sweep alone, which still has runs to close
        )
    server: dict[str, Any] = {"pid": process.pid, "started": _started(process.pid), "port": port, "stay": stay}
    server |= {"host": host, "guarded": guarded}
    replace_text(folder / "server.json", json.dumps(server))
    return server


def _passwords(folder: Path) -> Path:
    """Return MLflow's settings file, made with a random password at first use; MLflow ships none."""
    path = folder / "auth.ini"
    if not path.exists():
        settings = configparser.ConfigParser()
        settings["mlflow"] = {
            "default_permission": "NO_PERMISSIONS",
            "database_uri": f"sqlite:///{folder}/auth.db",
            "admin_username": USER,
            "admin_password": secrets.token_urlsafe(24),
            "authorization_function": "mlflow.server.auth:authenticate_request_basic_auth",
            "auth_cache_ttl_seconds": "60",  # without a cache every request costs a slow hash of the password
        }
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            settings.write(file)
    return path


def _log_in(folder: Path, server: dict[str, Any]) -> None:
    """Set user and password in the environment, where MLflow's client reads them, unless the user has set them."""
    if server["guarded"] and "MLFLOW_TRACKING_USERNAME" not in os.environ:
        settings = configparser.ConfigParser(interpolation=None)
        settings.read(folder / "auth.ini")
        os.environ["MLFLOW_TRACKING_USERNAME"] = settings["mlflow"]["admin_username"]
        os.environ["MLFLOW_TRACKING_PASSWORD"] = settings["mlflow"]["admin_password"]


def _read(folder: Path) -> dict[str, Any] | None:
    """Return the contents of server.json; None if all processes of the server are gone, or their ids were reused."""
    try:
        server = json.loads((folder / "server.json").read_text())
    except (OSError, ValueError):
        return None
    started = _started(server["pid"])
    if started is not None and abs(started - server["started"]) < 1:
        return dict(server)
    return dict(server) if any(_runs_in(process, folder) for process in _group(server["pid"])) else None


def _group(group: int) -> list[psutil.Process]:
    """Return the processes of a group: the one that listens outlives its leader, which only waits for it."""
    import psutil

    members = []
    for process in psutil.process_iter():
        with contextlib.suppress(OSError):
            if os.getpgid(process.pid) == group:
                members.append(process)
    return members


def _runs_in(process: psutil.Process, folder: Path) -> bool:
    import psutil

    try:
        return process.status() != psutil.STATUS_ZOMBIE and process.cwd() == str(folder)
    except psutil.Error:
        return False


def _started(pid: int) -> float | None:
    import psutil

    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else process.create_time()
    except psutil.Error:
        return None


def _kill(folder: Path, group: int) -> None:
    """End the server's process group: SIGTERM, and SIGKILL after five seconds."""
    import psutil

    members = _group(group)
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, number)
        _, members = psutil.wait_procs(members, timeout=5)
    (folder / "server.json").unlink(missing_ok=True)


def _free_port(port: int | None, host: str = HOST) -> int:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a server stopped a minute ago does not count
        try:
            probe.bind((host, port or 0))
        except (OSError, OverflowError) as error:
            raise UserError(
                f"port {port} cannot be used for the MLflow page: {getattr(error, 'strerror', error)}",
                fix="omit the port to take a free one, or end the program that uses it",
            ) from error
        return int(probe.getsockname()[1])


def _last_line(log: Path) -> str:
    """Return the last line of a log that names an error, or its last line if none does."""
    try:
        lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    except OSError:
        return "no log"
    errors = [line for line in lines if re.match(r"[\w.]*(Error|Exception)\b", line)]
    return (errors or lines or ["no output"])[-1]
