"""MLflow's server for the store of a state directory: a child process of `ui` or of a head, which ends with its parent.

    state_dir/mlflow/   mlflow.db, artifacts/, server.log

A server that listens beyond loopback asks for a password, kept in `auth.ini`, which only its owner can read.
"""

from __future__ import annotations

import configparser
import contextlib
import http.client
import logging
import os
import re
import secrets
import signal
import sqlite3
import subprocess
import sys
import time
import urllib.request
from dataclasses import dataclass
from importlib import util
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from zo_sweeps.core.errors import UserError
from zo_sweeps.core.files import locked, replacing
from zo_sweeps.core.host import die_with_parent, free_port

if TYPE_CHECKING:
    from mlflow import MlflowClient

HOST = "127.0.0.1"
USER = "admin"
LOG = "server.log"
DATABASE, ARTIFACTS = "mlflow.db", "mlflow-artifacts:/"  # the latter is `artifacts/` to a server, wherever it is
_START_SECONDS = 90.0
_ENVIRONMENT = {
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",  # "true" starts eleven more processes for features not used here
    "MLFLOW_DISABLE_TELEMETRY": "true",
}
# MLflow's command waits for the process that listens and leaves it behind when it is ended: the group goes as a whole.
_WHOLE_GROUP = ("sh", "-c", 'trap "kill -KILL 0" TERM; "$@" & wait $!; kill -KILL 0', "sh")


@dataclass(frozen=True)
class Server:
    """A running server."""

    uri: str
    log: Path
    process: subprocess.Popen[bytes]

    @property
    def has_ended(self) -> bool:
        return self.process.poll() is not None

    def wait(self) -> None:
        """Wait until the server answers (a start takes about six seconds). Raises UserError if it does not."""
        deadline = time.monotonic() + _START_SECONDS
        while not is_healthy(self.uri):
            if self.has_ended or time.monotonic() > deadline:
                what = f"{'ended while starting' if self.has_ended else 'does not answer'}: {_last_line(self.log)}"
                raise UserError(f"the MLflow server {what}", where=str(self.log), fix="see that file")
            time.sleep(0.1)

    def close(self) -> None:
        """End the server. At once: its database is transactional, and clients resend."""
        self.process.terminate()
        self.process.wait()


def start(state_dir: str | os.PathLike[str], port: int | None = None, host: str = HOST) -> Server:
    """Start a server, which ends with this process; see `prepare`. Does not wait until it answers."""
    folder = _folder(state_dir)
    port = prepare(state_dir, port, host)
    command = [sys.executable, "-m", "mlflow", "server", "--workers", "1", "--host", host, "--port", str(port)]
    command += ["--backend-store-uri", f"sqlite:///{folder / DATABASE}"]
    command += ["--artifacts-destination", str(folder / "artifacts")]
    environment = {**os.environ, **_ENVIRONMENT}
    if not is_loopback(host):
        command += ["--app-name", "basic-auth", "--allowed-hosts", f"{host}:{port},localhost:{port},{HOST}:{port}"]
        command += ["--cors-allowed-origins", f"http://{host}:{port}"]
        environment["MLFLOW_AUTH_CONFIG_PATH"] = str(credentials(state_dir))
        environment["MLFLOW_FLASK_SERVER_SECRET_KEY"] = secrets.token_hex(32)
    with open(folder / LOG, "ab") as log:
        process = subprocess.Popen(
            [*_WHOLE_GROUP, *command],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=folder,
            env=environment,
            start_new_session=True,
            preexec_fn=lambda: die_with_parent(signal.SIGTERM),
        )
    return Server(f"http://{host}:{port}", folder / LOG, process)


def prepare(state_dir: str | os.PathLike[str], port: int | None = None, host: str = HOST) -> int:
    """Check that a server can start, make its folder and its password, and return its port: a free one for None.

    One that listens beyond loopback asks for a password, and answers to this name only. Raises UserError for a port in
    use, a folder that cannot be written, and a missing package for passwords.
    """
    folder = _folder(state_dir)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / LOG).open("ab").close()
    except OSError as error:
        fix = "choose another folder or give write access"
        raise UserError(f"cannot write: {error.strerror}", where=str(folder), fix=fix) from error
    if not is_loopback(host):
        if util.find_spec("flask_wtf") is None:
            raise UserError("MLflow's passwords need the package flask-wtf", fix="pip install 'mlflow[auth]'")
        _make_password(credentials(state_dir))
    return free_port(port, host)


def is_healthy(uri: str) -> bool:
    """Return whether an MLflow server answers at `uri` within two seconds."""
    handlers = [urllib.request.ProxyHandler({})] if HOST in uri else []  # a proxy cannot reach this machine's loopback
    try:
        with urllib.request.build_opener(*handlers).open(uri.rstrip("/") + "/health", timeout=2) as answer:
            return bool(answer.status == 200)
    except (OSError, http.client.HTTPException):
        return False


def credentials(state_dir: str | os.PathLike[str]) -> Path:
    """Return the file with the user and password of this state directory's server, made when a server first asks."""
    return _folder(state_dir) / "auth.ini"


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach `host`."""
    return host == "localhost" or host.startswith("127.") or host == "::1"


def _folder(state_dir: str | os.PathLike[str]) -> Path:
    return Path(state_dir).resolve() / "mlflow"


def _make_password(path: Path) -> None:
    """Make MLflow's settings file with a random password at first use; MLflow ships none."""
    if path.exists():
        return
    settings = configparser.ConfigParser()
    settings["mlflow"] = {
        "default_permission": "NO_PERMISSIONS",
        "database_uri": f"sqlite:///{path.parent}/auth.db",
        "admin_username": USER,
        "admin_password": secrets.token_urlsafe(24),
        "authorization_function": "mlflow.server.auth:authenticate_request_basic_auth",
        "auth_cache_ttl_seconds": "60",  # without a cache every request costs a slow hash of the password
    }
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        settings.write(file)


def _last_line(log: Path) -> str:
    """Return the last line of a log that names an error, or its last line if none does."""
    try:
        lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    except OSError:
        return "no log"
    errors = [line for line in lines if re.match(r"[\w.]*(Error|Exception)\b", line)]
    return (errors or lines or ["no output"])[-1]


def is_temporary(error: Exception) -> bool:
    """Return whether the same request may succeed later.

    The server is unreachable or reports its own fault; the database is locked, or its disk full.
    """
    return (status := _status(error)) >= 500 or status in (401, 403, 408, 429)


def _status(error: Exception) -> int:
    """Return the HTTP status of a store's error: 503 where none answers or takes it, 0 of any other error."""
    from mlflow.exceptions import MlflowException

    if isinstance(error, MlflowException):
        return int(error.get_http_status_code())
    if isinstance(error, (OSError, sqlite3.OperationalError)):  # all exceptions of `requests` are the former
        return int(getattr(getattr(error, "response", None), "status_code", 503))
    return 0


def silence(error: Exception) -> str:
    """Return what a store does that fails: it refuses the user or the sweep, does not answer, or is locked or full."""
    if not is_temporary(error):
        return "refuses the sweep"
    if "sqlite3." in str(error) or isinstance(error, sqlite3.Error):
        return "cannot be written"
    if _status(error) not in (401, 403):
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


def client_of(uri: str) -> MlflowClient:
    """Return a client of a server."""
    _set_environment()
    if urlsplit(uri).hostname == "127.0.0.1":  # a proxy cannot reach this machine's loopback
        for name in ("NO_PROXY", "no_proxy"):
            hosts = os.environ.get(name, "").split(",")
            if "127.0.0.1" not in hosts:
                os.environ[name] = ",".join(filter(None, [*hosts, "127.0.0.1"]))
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=uri)


def own_client(database: Path) -> MlflowClient:
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
