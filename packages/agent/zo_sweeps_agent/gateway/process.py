"""The gateway as a child of the head's background process: started, started again when it ends, and stopped with it."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from zo_sweeps.core.host import die_with_parent
from zo_sweeps_ray.keeper import FIRST_WAIT, LONGEST_WAIT, STEADY

MODULE = "zo_sweeps_agent.gateway.serve"
LOG = "gateway.log"
END_SECONDS = 10.0  # for the answers under way


class GatewayProcess:
    """The process that serves `folder`.

    Args:
        arguments: of `MODULE`, after the folder.
        say: prints a line for the log.
    """

    def __init__(self, folder: Path, arguments: Sequence[str], say: Callable[[str], None]) -> None:
        self._folder, self._arguments, self._say = folder, arguments, say
        self._process: subprocess.Popen[bytes] | None = None
        self._began = 0.0
        self._wait = FIRST_WAIT

    def keep_up(self) -> None:
        """Start it if it does not run; after one that ended, with a growing pause. Returns at once."""
        now = time.monotonic()
        if self._process is not None:
            if (status := self._process.poll()) is None:
                if now - self._began > STEADY:
                    self._wait = FIRST_WAIT
                return
            if now - self._began < self._wait:
                return
            self._say(f"the gateway ended with status {status}; starting it again (see {self._folder / LOG})")
            self._wait = min(2 * self._wait, LONGEST_WAIT)
        self._began = now
        with open(self._folder / LOG, "ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", MODULE, str(self._folder), *self._arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=lambda: die_with_parent(signal.SIGTERM),
            )

    def stop(self) -> None:
        """End it."""
        if self._process is None:
            return
        self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(END_SECONDS)
        self._process.kill()
        self._process.wait()
