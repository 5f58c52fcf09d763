"""TLS for Ray's connections: who has the token is believed, and nobody else; what Ray's processes inherit."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from zo_sweeps.core.errors import UserError
from zo_sweeps_ray import cluster, keeper
from zo_sweeps_ray.connection import Connection
from zo_sweeps_ray.keeper import Keeper

pytestmark = pytest.mark.unit
TOKEN, OTHER = "a" * 64, "b" * 64


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (cluster.TLS, "RAY_TLS_CA_CERT", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)


@contextlib.contextmanager
def server(token: str) -> Iterator[str]:
    """A head that asks for a certificate, as Ray does; without a token one without TLS, which sends at once."""
    context = None
    if token:
        files = cluster.tls_variables(token)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(str(files["RAY_TLS_SERVER_CERT"]), str(files["RAY_TLS_SERVER_KEY"]))
        context.load_verify_locations(str(files["RAY_TLS_CA_CERT"]))
        context.verify_mode = ssl.CERT_REQUIRED
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    plain, _ = listener.accept()
                    with plain, contextlib.suppress(OSError):
                        if context is None:
                            plain.sendall(b"\x00\x00\x12\x04\x00\x00\x00\x00\x00")  # HTTP/2's first frame
                            continue
                        with context.wrap_socket(plain, server_side=True) as encrypted:
                            encrypted.recv(1)

        threading.Thread(target=serve, daemon=True).start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def test_processes_that_begin_together_have_one_certificate(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[Path] = []
    write, together, token = cluster._write_certificates, threading.Barrier(4), secrets.token_hex(32)

    def slow(folder: Path, token: str, names: list[str]) -> None:
        written.append(folder)
        time.sleep(0.1)
        write(folder, token, names)

    def begin(_: int) -> dict[str, str | None]:
        together.wait()
        return cluster.tls_variables(token)

    monkeypatch.setattr(cluster, "_write_certificates", slow)
    with ThreadPoolExecutor(4) as pool:
        files, *_ = pool.map(begin, range(4))
    assert len(written) == 1
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(str(files["RAY_TLS_SERVER_CERT"]), str(files["RAY_TLS_SERVER_KEY"]))
    shutil.rmtree(written[0])


def joining(folder: Path, token: str, address: str) -> dict[str, str | None]:
    (folder / "token").write_text(token)
    return cluster.tls_environment(cluster.token_environment(folder / "token"), address)


def test_machines_with_the_token_know_each_other_and_others_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = cluster.tls_variables(TOKEN)
    assert Path(str(files["RAY_TLS_SERVER_KEY"])).stat().st_mode & 0o077 == 0
    monkeypatch.setattr(cluster, "_addresses", lambda: ["localhost", "10.0.0.7", "fe80::1"])  # another machine's
    assert cluster.tls_variables(TOKEN) != files
    with server(TOKEN) as address:
        assert joining(tmp_path, TOKEN, address) == cluster.tls_variables(TOKEN)
        with pytest.raises(UserError, match="refuses the token"):
            joining(tmp_path, OTHER, address)


def test_a_head_without_tls_is_taken_on_this_machine_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with server("") as address:
        assert set(joining(tmp_path, TOKEN, address).values()) == {None}
        monkeypatch.setattr(cluster, "_addresses", lambda: ["10.0.0.7"])
        with pytest.raises(UserError, match="does not speak TLS, so the token would cross the network"):
            joining(tmp_path, TOKEN, address)
        monkeypatch.setenv(cluster.TLS, "0")
        assert joining(tmp_path, TOKEN, address) == {}, "as the user says"


def test_the_token_of_the_environment_or_of_a_file_makes_the_authority(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    with server(TOKEN) as address:
        of_file = cluster.tls_environment(cluster.token_environment(tmp_path / "token"), address)
        assert of_file == cluster.tls_variables(TOKEN)
        monkeypatch.setenv("RAY_AUTH_TOKEN", TOKEN)
        assert cluster.tls_environment({"RAY_AUTH_MODE": "token"}, address) == of_file
        assert cluster.tls_environment({"RAY_AUTH_MODE": "disabled"}, address) == {}
        monkeypatch.setenv("RAY_AUTH_TOKEN", OTHER)
        with pytest.raises(UserError, match="refuses the token in the variable RAY_AUTH_TOKEN; copy the token file"):
            cluster.tls_environment({"RAY_AUTH_MODE": "token"}, address)


def test_no_process_of_rays_inherits_the_tracking_servers_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor, with it, the processes of trials: on the head's node, and in a cluster of a driver's own."""
    secret = "MLFLOW_TRACKING_PASSWORD"
    monkeypatch.setenv(secret, "x")
    (tmp_path / "token").write_text(TOKEN)
    seen: list[Any] = []
    monkeypatch.setattr(keeper, "subprocess", SimpleNamespace(Popen=lambda *_, env, **__: seen.append(env), DEVNULL=-3))
    node = "127.0.0.1:1", tmp_path / "token", "id", (), "", tmp_path, tmp_path / "log", 0, True
    Keeper(print, *node, tls=True)._start("module")
    monkeypatch.setattr(Connection, "_init", lambda self, **_: seen.append(dict(os.environ)))
    connection = Connection(tmp_path, None)
    connection.start_local(1)
    connection._opened.close()
    assert [secret in environment for environment in seen] == [False, False]
    assert seen[0][cluster.TLS] == "1"
    assert os.environ[secret] == "x", "the driver's own mirror needs it"
