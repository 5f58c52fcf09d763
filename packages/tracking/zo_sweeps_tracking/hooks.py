"""Hooks: a command or URL of the user's, called at a sweep's first result and end (`on.done`, `on.failed`, ...).

A hook is called in a thread, so that it neither delays nor fails the sweep, and has `SECONDS`; at the sweep's end they
are waited for. A command is run without a shell, so that no value of its environment is read as code.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import tempfile
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit

from zo_sweeps.config.schema import OnConfig
from zo_sweeps.core.errors import UserError
from zo_sweeps.schedule.backend import CannotJoinError, HeadLostError
from zo_sweeps.schedule.snapshot import Snapshot
from zo_sweeps.session.tracking import Told

SECONDS = 10.0  # for a command to end, or a server to answer
LONGEST = 200  # characters of a command's last line on standard error
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_URL = re.compile("https?://", re.IGNORECASE)


def check(on: OnConfig) -> None:
    """Raise UserError for a hook that cannot be called: a command that does not exist, an address that is none."""
    for event, hook in _hooks(on).items():
        _parsed(event, hook)


class Hooks(Told):
    """The hooks of one run of a sweep: a context manager around all of it, so that its lock is free when it has ended.

    Args:
        on: checked; see `check`.
        sweep: the name of its grid.
        state_dir: the state folder, for commands; a server is not told of paths.
        say: prints a line for the user; called from a thread.
        missing: the trials that cannot run here, which the sweep's own counts leave out.

    Call `update` with each snapshot and `ended` with the result. A block that ends by an error ends the sweep as
    FAILED, or KILLED for KeyboardInterrupt, except for a lost head: the sweep then goes on in another process.
    """

    def __init__(self, on: OnConfig, sweep: str, state_dir: Path, say: Callable[[str], None], missing: int) -> None:
        self._hooks, self._sweep, self._state_dir, self._say = _hooks(on), sweep, state_dir, say
        self._counts: dict[str, int] = {}
        self._missing = {"MISSING": missing} if missing else {}
        self._status = ""
        self._last: threading.Thread | None = None

    def update(self, snapshot: Snapshot) -> None:
        """Note how far the sweep is. Calls `first_result` when the first trial of this run has a result."""
        self._counts = {state.value: n for state, n in sorted(snapshot.counts.items())}
        if snapshot.ended and snapshot.ended[1].state.is_result and "first_result" in self._hooks:
            trial, outcome = snapshot.ended
            facts = {"trial_id": trial.trial_id, "label": trial.label, "state": outcome.state.value}
            self._call("first_result", "RUNNING", facts)
            del self._hooks["first_result"]

    def ended(self, status: str, counts: Mapping[Any, int]) -> None:
        """Note the end of the sweep: FINISHED, FAILED or KILLED."""
        self._status, self._counts = status, {state.value: n for state, n in sorted(counts.items()) if n}

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        """Call `done` or `failed`, and wait for the calls that have not ended."""
        if not isinstance(error, (HeadLostError, CannotJoinError)):
            if error is not None:
                self._status = "KILLED" if isinstance(error, KeyboardInterrupt) else "FAILED"
            self._call("done" if self._status == "FINISHED" else "failed", self._status)
        if self._last is not None:
            self._last.join(2 * SECONDS)
            if self._last.is_alive():  # an answer that trickles in
                self._say(f"{self._last.name}: has not ended after {2 * SECONDS:.0f} s, and is left")

    def _call(self, event: str, state: str, trial: Mapping[str, str] | None = None) -> None:
        """Call the hook of an event, if there is one, after those called before."""
        if (hook := self._hooks.get(event)) is None:
            return
        counts = self._counts | self._missing
        facts: dict[str, Any] = {"event": event, "sweep": self._sweep, "state": state, "counts": counts}
        if trial is not None:
            facts["trial"] = trial
        before = self._last

        def call() -> None:
            if before is not None:
                before.join()
            try:
                called = _parsed(event, hook)
                trouble = _run(called, facts, self._state_dir) if isinstance(called, list) else _post(called, facts)
            except Exception as error:  # a hook's trouble is never the sweep's
                trouble = type(error).__name__
            if trouble:
                self._say(f"on.{event}: {_named(hook)} {trouble}")

        self._last = threading.Thread(target=call, name=f"on.{event}", daemon=True)
        self._last.start()


def _hooks(on: OnConfig) -> dict[str, str]:
    """Return event -> its hook, of those that are set."""
    return {event: hook for event, hook in vars(on).items() if hook is not None}


def _named(hook: str) -> str:
    """Return a hook as messages name it: the host or the program alone, as the rest may hold a secret."""
    return str(urlsplit(hook).hostname) if _URL.match(hook) else shlex.split(hook)[0]


def _parsed(event: str, hook: str) -> SplitResult | list[str]:
    """Return the parts of a URL, or the words of a command, the program by its path."""
    if _URL.match(hook):
        try:
            parts = urlsplit(hook)
            if parts.hostname and parts.port != 0 and hook.isascii() and hook.isprintable() and " " not in hook:
                return parts
        except ValueError:  # of the port, or of brackets
            pass
        # The address is not repeated: it may hold a secret.
        raise UserError(f"on.{event} is no address", fix=f"write on.{event}=https://HOST/PATH, other signs as %XX")
    try:
        program, *words = shlex.split(hook)
    except ValueError as error:  # an open quotation, or no word at all
        what = f"cannot be read as a command ({error})" if hook.strip() else "is empty"
        raise UserError(f"on.{event} {what}", fix=f"write on.{event}='PROGRAM WORD …' or a URL") from None
    path = shutil.which(os.path.expanduser(program))
    if path is None:
        fix = "name a program on PATH, or an executable file; it is run without a shell"
        raise UserError(f"no such command: {program!r}", where=f"on.{event}", fix=fix)
    return [os.path.abspath(path), *words]


def _run(command: Sequence[str], facts: Mapping[str, Any], state_dir: Path) -> str:
    """Run a command; return what went wrong, "" if nothing did."""
    variables = {
        "ZO_EVENT": facts["event"],
        "ZO_SWEEP": facts["sweep"],
        "ZO_STATE": facts["state"],
        "ZO_COUNTS": json.dumps(facts["counts"]),
        "ZO_STATE_DIR": str(state_dir),
    }
    if trial := facts.get("trial"):
        variables |= {"ZO_TRIAL": trial["trial_id"], "ZO_TRIAL_LABEL": trial["label"], "ZO_TRIAL_STATE": trial["state"]}
    with tempfile.TemporaryFile() as errors:  # not a pipe, which a child that stays in the background keeps open
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            env={**os.environ, **variables},
            start_new_session=True,  # Ctrl-C is the sweep's
        )
        try:
            status = process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return f"took longer than {SECONDS:.0f} s and was ended"
        if not status:
            return ""
        errors.seek(max(0, errors.seek(0, os.SEEK_END) - (1 << 12)))
        lines = errors.read().decode(errors="replace").strip().splitlines()
    last = "".join(c for c in lines[-1] if c.isprintable())[:LONGEST] if lines else ""
    how = f"exited with {status}" if status > 0 else f"ended by {signal.Signals(-status).name}"
    return f"{how}: {last}" if last else how


class _Stay(urllib.request.HTTPRedirectHandler):
    """No redirect is followed: a POST would become a GET, and credentials would go to another address."""

    def redirect_request(self, *_: Any) -> None:
        return None


def _post(parts: SplitResult, facts: Mapping[str, Any]) -> str:
    """Post the facts as JSON; return what went wrong, "" if nothing did."""
    headers = {"Content-Type": "application/json", "User-Agent": "zo-sweeps"}
    if parts.username is not None:  # urllib would take it for a part of the host
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
    plain = parts._replace(netloc=parts.netloc.rpartition("@")[2], fragment="").geturl()
    request = urllib.request.Request(plain, json.dumps(facts).encode(), headers, method="POST")
    handlers: list[urllib.request.BaseHandler] = [_Stay()]
    if parts.hostname in _LOOPBACK:
        handlers.append(urllib.request.ProxyHandler({}))  # a proxy cannot reach this machine's loopback
    try:
        with urllib.request.build_opener(*handlers).open(request, timeout=SECONDS):
            return ""
    except urllib.error.HTTPError as error:
        error.close()
        return f"answered with {error.code}"
    except (OSError, http.client.HTTPException) as error:  # of a message, only the system's words: it may name the path
        reason = getattr(error, "reason", error)
        if isinstance(reason, TimeoutError):
            return f"did not answer within {SECONDS:.0f} s"
        return f"cannot be reached ({getattr(reason, 'strerror', None) or type(reason).__name__})"
