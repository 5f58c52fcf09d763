"""Trials on a board without torch: the light client runs a bundle, and the lines of its log are the lease's events.

    leases/ID/bundle/    the files from the head, as links, and the client's log.jsonl

The log is written again from the events at each start of the client: what the head has, it goes on from.

    python -m zo_sweeps_agent.agent.light CLIENT     one process per slot, as `trials` has them
"""

from __future__ import annotations

import base64
import hashlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from zo_sweeps.core.errors import UserError
from zo_sweeps.core.events import ClientLine, End, only
from zo_sweeps.core.files import locked, read_objects, replace_text
from zo_sweeps.core.host import die_with_parent
from zo_sweeps.core.light_client import BUSY, DIVERGED, DONE, LOG, NAME, Line, scoring, text_of
from zo_sweeps.core.trial import Outcome, TrialState
from zo_sweeps.devices.probe import Host, l4t
from zo_sweeps.record.journal import Journal
from zo_sweeps_agent.agent.spool import FRUITLESS, Spool
from zo_sweeps_agent.agent.trials import end_of, serve
from zo_sweeps_agent.known_answers import MachineAnswers
from zo_sweeps_agent.protocol import KnownPrograms

MODULE = "zo_sweeps_agent.agent.light"
LOOK_SECONDS = 0.2  # between looks at the log
HELP_SECONDS, ANSWER_SECONDS = 30.0, 300.0  # for the client's help, and for one known answer


def checked(client: Path) -> Path:
    """Return the absolute path of a light client that starts here. Raises UserError for anything else."""
    client = client.expanduser().absolute()
    fix = "build it for this board: packages/edge/ANDROID.md"
    try:
        done = subprocess.run([client, "--help"], capture_output=True, text=True, timeout=HELP_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        why = getattr(error, "strerror", None) or f"no answer in {HELP_SECONDS:.0f} s"
        raise UserError(f"the light client does not start ({why})", where=f"--client {client}", fix=fix) from None
    if done.returncode != DONE or NAME not in done.stdout:
        why = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]
        raise UserError(f"this is no light client that runs here ({why})", where=f"--client {client}", fix=fix)
    return client


def digest(client: Path) -> str:
    """Return what tells one build of the client from another."""
    return hashlib.sha256(client.read_bytes()).hexdigest()[:16]


def host(found: Mapping[str, Any]) -> Host:
    """Return the facts of this machine, from those of `devices.probe`: the client stands for ExecuTorch."""
    return Host.read({**found, "executorch": True, "l4t": l4t(), "host": socket.gethostname()})


def answers(client: Path, challenge: KnownPrograms) -> MachineAnswers:
    """Return the client's answers to the head's known-answer programs; see `known_programs`."""
    noise: set[str] = set()
    losses: dict[str, tuple[float, ...]] = {}
    failed: dict[str, str] = {}
    for precision, bundle in challenge.programs.items():
        with tempfile.TemporaryDirectory(prefix="zo-known-") as name:
            for file, text in bundle.files.items():
                (Path(name) / Path(file).name).write_bytes(base64.b64decode(text))
            try:
                line = _scored(client, Path(name), challenge.at)
            except UserError as error:
                failed[precision] = str(error)
                continue
        noise.add(str(line["theta"]))
        losses[precision] = tuple(float(score) for row in line["scores"] for score in row)
    return MachineAnswers(tuple(sorted(noise)), losses, failed)


def _scored(client: Path, bundle: Path, step: int) -> Line:
    """Return the line with the scores of dev after a step of the bundle's log. Raises UserError."""
    command = [str(client), str(bundle), *scoring("dev", step)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=ANSWER_SECONDS)
    except subprocess.TimeoutExpired:
        raise UserError(f"the light client took longer than {ANSWER_SECONDS:.0f} s") from None
    lines = [line for line, _ in read_objects(bundle / LOG) if line is not None and line["type"] == "scores"]
    if done.returncode != DONE or not lines:
        raise UserError(f"the light client: {end_of(done.returncode, done.stderr)}")
    return lines[-1]


def run(client: Path, words: Mapping[str, Any], should_stop: Callable[[], bool]) -> None:
    """Run the client on the bundle of a lease, and append its log to the lease's events as it grows."""
    folder = Path(words["run"])
    with locked(folder / "lock"):
        spool = Spool(folder)
        if "client" not in spool.trial:
            spool.lose("this board runs exported programs alone")
            return
        bundle = folder / "bundle"
        bundle.mkdir(exist_ok=True)
        for file in Path(words["folders"]["bundle"]).iterdir():
            if not (bundle / file.name).exists():
                os.link(file, bundle / file.name)
        with Journal(folder / "events.jsonl") as journal:
            ended = _Run(client, bundle, spool, journal, should_stop).to_its_end()
            if ended is not None:
                journal.append(End(outcome=ended))


class _Run:
    """The client on one bundle, started again where it is killed."""

    def __init__(
        self, client: Path, bundle: Path, spool: Spool, journal: Journal, should_stop: Callable[[], bool]
    ) -> None:
        self._spool, self._journal, self._should_stop = spool, journal, should_stop
        self._command: Sequence[str | Path] = [client, bundle, *map(str, spool.trial["client"])]
        self._log, self._messages = bundle / LOG, bundle.with_name("messages")

    def to_its_end(self) -> Outcome | None:
        """Return the outcome of the run; None if the client is killed again and again, which loses the lease."""
        ended = partial(Outcome, self._spool.trial_id)
        killed, how = 0, ""
        while killed < FRUITLESS:
            status, lines = self._once()
            if status is None:
                return ended(TrialState.CANCELLED, error="stopped on request")
            if status in (DONE, DIVERGED):
                return ended(TrialState.SUCCEEDED)
            if status == BUSY:  # of an agent that was killed a moment ago
                time.sleep(LOOK_SECONDS)
            elif status > 0:
                return ended(TrialState.FAILED, error=self._end_of(status))
            else:
                how = self._end_of(status)
                killed = 1 if any(line["type"] != "start" for line in lines) else killed + 1
        self._spool.lose(f"the light client {how}, {FRUITLESS} times in a row without a step")
        return None

    def _once(self) -> tuple[int | None, list[Line]]:
        """Run the client; return its exit status (None: it was stopped) and the new lines of its log."""
        text = text_of(event.line for event in only(ClientLine, self._spool.journal))
        replace_text(self._log, text)
        offset, new = len(text.encode()), []
        with self._messages.open("wb") as messages:
            process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=messages,
                preexec_fn=lambda: die_with_parent(signal.SIGKILL),
            )
        while True:
            stopped, status = self._should_stop(), process.poll()
            if stopped and status is None:
                process.kill()
                status = process.wait()
            lines = []
            for line, end in read_objects(self._log, offset):
                if line is None:  # zeros after a power cut: the next start cuts them off
                    break
                lines.append(line)
                offset = end
            self._journal.extend([ClientLine(line=line) for line in lines])
            new += lines
            if status is not None:
                return (None if stopped else status), new
            time.sleep(LOOK_SECONDS)

    def _end_of(self, status: int) -> str:
        return end_of(status, self._messages.read_text(errors="replace"))


if __name__ == "__main__":
    serve(partial(run, Path(sys.argv[1])))
