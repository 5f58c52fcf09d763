"""Known-answer questions for joining agents, computed by processes of their own: torch stays out of the gateway's."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence

from zo_sweeps.methods.registry import absent
from zo_sweeps_agent.gateway.exchange import ProblemError
from zo_sweeps_agent.known_answers import Challenge, MachineAnswers
from zo_sweeps_agent.protocol import KnownPrograms

COUNT = 4  # of which a joining board gets one
AGAIN_SECONDS = 60.0
ANSWERS, PROGRAMS = "answers", "programs"  # kinds: for boards with torch, and for those with the light client
Known = tuple[Challenge | KnownPrograms, MachineAnswers]
# kind -> what computes the questions: it prints as many [challenge, answers] as its argument says, or {"error": line}
KINDS: Mapping[str, tuple[str, type[Challenge] | type[KnownPrograms]]] = {
    ANSWERS: ("zo_sweeps_agent.known_answers", Challenge),
    PROGRAMS: ("zo_sweeps_agent.known_programs", KnownPrograms),
}


class Challenges:
    """The questions of one kind.

    Args:
        kind: of KINDS.
        log: prints a line.
        known: questions that were computed before; without any, `start` computes them.
    """

    def __init__(self, kind: str, log: Callable[[str], None], known: Sequence[Known] = ()) -> None:
        self._module, self._shape = KINDS[kind]
        self._log, self._known = log, list(known)
        self._task: asyncio.Task[None] | None = None
        self._began = -math.inf
        self._why = "still computing"

    def start(self) -> None:
        """Compute questions, once; where that failed, again after AGAIN_SECONDS. Returns at once."""
        now, waits = time.monotonic(), self._task is None or self._task.done()
        if not self._known and waits and now - self._began >= AGAIN_SECONDS:
            self._began, self._why = now, "still computing"
            self._task = asyncio.create_task(self._compute())

    def stop(self) -> None:
        """End the process that computes them."""
        if self._task is not None:
            self._task.cancel()

    def draw(self) -> Known:
        """Return one of the questions. Raises ProblemError while there are none; the first call starts computing."""
        if not self._known:
            self.start()
            raise ProblemError(503, f"the head has no known answers yet: {self._why}", retry=2.0)
        return secrets.choice(self._known)

    async def _compute(self) -> None:
        if missing := absent("runtime", "executorch") if self._shape is KnownPrograms else None:
            self._why = str(missing)
            return
        command = [sys.executable, "-m", self._module, str(COUNT)]
        process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE, limit=2**26)
        assert process.stdout
        try:
            async for line in process.stdout:
                with contextlib.suppress(ValueError):
                    printed = json.loads(line)
                    if isinstance(printed, dict):
                        self._why = str(printed["error"])
                    else:
                        self._known.append((self._shape.read(printed[0]), MachineAnswers.read(printed[1])))
            if not self._known:
                status = await process.wait()
                self._why = f"its process ended with status {status}" if self._why == "still computing" else self._why
                self._log(f"{self._module} has computed nothing, so that no board can answer it: {self._why}")
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
