"""The process that examines this machine for the agent, into which torch is not loaded.

It tries the kernels, then computes the answers to the head's challenge: torch and the libraries beside it are imported
once. A kernel can end it, or leave the GPU unusable for it; then another one goes on.

    python -m zo_sweeps_agent.agent.examiner      reads "probe", "host", "host apart" and challenges, one JSON per line
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import IO, Any

from zo_sweeps.core.errors import UserError
from zo_sweeps.devices import kernels
from zo_sweeps.devices.probe import Host, probe, unchanging
from zo_sweeps_agent.known_answers import Challenge, MachineAnswers, answer

SECONDS = 600.0  # for a slow board to import torch and try its kernels
MODULE = "zo_sweeps_agent.agent.examiner"
PROBE, HOST, APART = "probe", "host", "host apart"  # the last: with the kernels in a further process


class _EndedError(Exception):
    """The process ended, or took too long."""


class Examiner:
    """The process, started when it is asked, and kept until `end`."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._open = ExitStack()  # of files, while it runs
        self._errors: IO[str]

    def probe(self) -> dict[str, Any]:
        """Return what this machine is; see `devices.probe`. Raises UserError when it cannot be examined."""
        try:
            found: dict[str, Any] = self._ask(PROBE)
            return found
        except _EndedError as error:
            raise UserError(f"cannot examine this machine: {error}") from None

    def host(self) -> Host:
        """Return what this machine is, and which kernels run. Raises UserError when it cannot be examined."""
        try:
            try:
                found = Host.read(self._ask(HOST))
            except _EndedError:
                return Host.read(self._ask(APART))
        except _EndedError as error:
            raise UserError(f"cannot examine this machine: {error}") from None
        if any(found.codes.values()):
            self.end()  # a kernel that failed may have broken what this process has of the GPU
        return found

    def answers(self, challenge: Challenge, troubles: Mapping[str, str]) -> MachineAnswers:
        """Return this machine's answers to the head's known-answer questions: see `known_answers.answer`.

        Args:
            troubles: precision -> why its kernels do not run here, "" if they do; such a one is not tried.

        Raises UserError when they cannot be computed.
        """
        bad = {name: why for name, why in troubles.items() if why and name in challenge.precisions}
        asked = replace(challenge, precisions=tuple(name for name in challenge.precisions if name not in bad))
        try:
            found = MachineAnswers.read(self._ask(asked.to_json()))
        except _EndedError as error:
            raise UserError(f"cannot answer the head's questions: {error}") from None
        return replace(found, failed={**found.failed, **bad})

    def _ask(self, question: Any) -> Any:
        """Return the process's answer. Raises _EndedError."""
        if self._process is None:
            self._errors = self._open.enter_context(tempfile.TemporaryFile("w+"))  # noqa: SIM115 (`end` closes it)
            command, pipe = [sys.executable, "-m", MODULE], subprocess.PIPE
            self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=self._errors, text=True)
            for one in (self._process.stdin, self._process.stdout):
                assert one
                self._open.enter_context(one)
        process = self._process
        assert process.stdin
        assert process.stdout
        timer = threading.Timer(SECONDS, process.kill)
        timer.start()
        try:
            process.stdin.write(json.dumps(question) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except OSError:
            line = ""
        finally:
            late = not timer.is_alive()
            timer.cancel()
        if line:
            return json.loads(line)
        process.kill()
        self._errors.seek(0)
        last = (self._errors.read().strip().splitlines() or [f"status {process.wait()}"])[-1]
        self.end()
        raise _EndedError(f"it took longer than {SECONDS:.0f} s" if late else last)

    def end(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._process = None
        with suppress(OSError):  # words that it did not read
            self._open.close()


def main() -> None:
    """Answer until the agent ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    for line in sys.stdin:
        asked = json.loads(line)
        found: Mapping[str, Any]
        if asked == PROBE:
            found = probe()
        elif asked in (HOST, APART):
            found = unchanging(kernels.troubles if asked == APART else kernels.troubles_here).to_json()
        else:
            found = answer(Challenge.read(asked)).to_json()
        print(json.dumps(found), file=answers, flush=True)


if __name__ == "__main__":
    main()
