"""Hooks against a real server on loopback and real commands; in a sweep, in tests/api/test_face.py."""

from __future__ import annotations

import json
import shlex
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from zo_sweeps.config.schema import OnConfig
from zo_sweeps.core.errors import UserError
from zo_sweeps.core.trial import Outcome, StoredConfig, Trial, TrialState
from zo_sweeps.record.sweep_book import Command
from zo_sweeps.schedule.backend import HeadLostError
from zo_sweeps.schedule.snapshot import Snapshot
from zo_sweeps_tracking import hooks

pytestmark = pytest.mark.multiprocess
Calls = list[tuple[str, str, dict[str, Any]]]  # path, Authorization header, body


@contextmanager
def server(status: int = 200, wait: threading.Event | None = None) -> Iterator[tuple[str, Calls]]:
    """A server that answers with `status`, after `wait`: host:port, and what was posted to it."""
    calls: Calls = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            calls.append((self.path, self.headers.get("Authorization", ""), body))
            if wait is not None:
                wait.wait(10)
            self.send_response(status)
            self.send_header("Location", "/elsewhere")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    made = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=made.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"127.0.0.1:{made.server_port}", calls
    finally:
        if wait is not None:
            wait.set()
        made.shutdown()
        thread.join()
        made.server_close()


def script(folder: Path, text: str) -> str:
    """A command that runs a shell script: its name is quoted, as it has a space."""
    path = folder / "a hook"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return shlex.quote(str(path))


def ended(name: str, state: TrialState) -> Snapshot:
    trial = Trial(name, StoredConfig({}), label=f"trial {name}")
    return Snapshot(2, {state: 1, TrialState.PENDING: 1}, 1, 1, 1, 1, (), ended=(trial, Outcome(name, state)))


def called(folder: Path, on: OnConfig, *snapshots: Snapshot, status: str = "FINISHED") -> list[str]:
    """Run a sweep that has these snapshots; return the lines that its hooks said."""
    said: list[str] = []
    hooks.check(on)
    with hooks.Hooks(on, "grid", folder, said.append, 3) as made:
        for snapshot in snapshots:
            made.update(snapshot)
        made.ended(status, {TrialState.SUCCEEDED: 2})
    return said


def test_a_url_gets_each_event_once_and_in_order_with_its_credentials_in_a_header(tmp_path: Path) -> None:
    with server() as (at, calls):
        url = f"http://me:p%40ss@{at}/T0KEN?x=1"
        snapshots = [ended("a", TrialState.FAILED), ended("b", TrialState.DIVERGED), ended("c", TrialState.SUCCEEDED)]
        assert called(tmp_path, OnConfig(done=url, failed=url, first_result=url), *snapshots) == []
    assert [(path, header) for path, header, _ in calls] == [("/T0KEN?x=1", "Basic bWU6cEBzcw==")] * 2
    trial = {"trial_id": "b", "label": "trial b", "state": "DIVERGED"}
    counts = {"DIVERGED": 1, "PENDING": 1, "MISSING": 3}
    first = {"event": "first_result", "sweep": "grid", "state": "RUNNING", "counts": counts}
    last = {"event": "done", "sweep": "grid", "state": "FINISHED", "counts": {"SUCCEEDED": 2, "MISSING": 3}}
    assert [body for _, _, body in calls] == [{**first, "trial": trial}, last]


def test_a_command_gets_the_event_in_its_environment_and_no_shell(tmp_path: Path) -> None:
    to = tmp_path / "out"
    hook = script(tmp_path, f'env | grep ^ZO_ | sort > {to}; echo "$1" >> {to}') + " '$(echo no); `x`'"
    assert called(tmp_path, OnConfig(first_result=hook), ended("b", TrialState.SUCCEEDED)) == []
    *variables, word = to.read_text().splitlines()
    got = dict(line.split("=", 1) for line in variables)
    assert word == "$(echo no); `x`"
    assert {key: got[key] for key in ("ZO_EVENT", "ZO_SWEEP", "ZO_STATE", "ZO_STATE_DIR", "ZO_TRIAL")} == {
        "ZO_EVENT": "first_result",
        "ZO_SWEEP": "grid",
        "ZO_STATE": "RUNNING",
        "ZO_STATE_DIR": str(tmp_path),
        "ZO_TRIAL": "b",
    }
    assert (got["ZO_TRIAL_LABEL"], got["ZO_TRIAL_STATE"]) == ("trial b", "SUCCEEDED")
    assert json.loads(got["ZO_COUNTS"]) == {"SUCCEEDED": 1, "PENDING": 1, "MISSING": 3}


def test_an_error_ends_a_sweep_as_failed_or_killed_but_a_lost_head_is_no_end(tmp_path: Path) -> None:
    states = []
    with server() as (at, calls):
        on = OnConfig(done=f"http://{at}/done", failed=f"http://{at}/failed")
        for error in (UserError("a full disk"), KeyboardInterrupt(), HeadLostError("gone")):
            with pytest.raises(type(error)), hooks.Hooks(on, "grid", tmp_path, states.append, 0):
                raise error
        for status in ("FAILED", "KILLED"):
            called(tmp_path, on, status=status)
    assert [path for path, _, _ in calls] == ["/failed"] * 4
    assert [body["state"] for _, _, body in calls] == ["FAILED", "KILLED", "FAILED", "KILLED"]
    assert states == []


def test_what_goes_wrong_is_one_line_without_the_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with server(302) as (at, calls):
        said = called(tmp_path, OnConfig(done=f"http://me:secret@{at}/T0KEN"))
    assert len(calls) == 1, "a redirect is not followed"
    said += called(tmp_path, OnConfig(done=f"http://me:secret@{at}/T0KEN"))  # nothing listens there now
    said += called(tmp_path, OnConfig(done=script(tmp_path, "echo a; echo no luck >&2; exit 3") + " secret"))
    monkeypatch.setattr(hooks, "SECONDS", 0.2)
    said += called(tmp_path, OnConfig(done=script(tmp_path, "sleep 60 & sleep 60")))
    with server(wait=threading.Event()) as (at, _):
        said += called(tmp_path, OnConfig(done=f"http://{at}/T0KEN"))
    program = tmp_path / "a hook"
    assert said == [
        "on.done: 127.0.0.1 answered with 302",
        "on.done: 127.0.0.1 cannot be reached (Connection refused)",
        f"on.done: {program} exited with 3: no luck",
        f"on.done: {program} took longer than 0 s and was ended",
        "on.done: 127.0.0.1 did not answer within 0 s",
    ]


@pytest.mark.parametrize(
    ("hook", "error"),
    [
        ("no-such-program x", "no such command: 'no-such-program' in on.failed; name a program on PATH"),
        ("sh 'x", r"on.failed cannot be read as a command \(No closing quotation\)"),
        ("  ", "on.failed is empty"),
        ("https://", "on.failed is no address"),
        ("http://host:port/secret", "on.failed is no address; write on.failed=https://HOST/PATH"),
        ("http://host/a b", "on.failed is no address"),
    ],
)
def test_a_hook_that_cannot_be_called_is_refused_before_the_launch(hook: str, error: str) -> None:
    with pytest.raises(UserError, match=error) as raised:
        hooks.check(OnConfig(failed=hook))
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize("text", ["on.done=x", "++on.done=x", "on={done: x}", "+on={failed: x}", "~on.done"])
def test_no_form_of_a_hook_is_kept_with_the_command(text: str) -> None:
    assert Command.of(["+grid=g", text, "update.lr=1e-3"]).overrides == ("+grid=g", "update.lr=1e-3")
