"""Rewards of texts, computed in a process of its own, which can be killed: a reward may never return.

The process is this module. It reads a line of JSON for the rewards, and then one per text, and answers each with one.
It is killed when a text's time is over, with what it has started; where nobody is left to do that, an alarm ends it.
"""

from __future__ import annotations

import json
import math
import os
import select
import signal
import subprocess
import sys
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import IO

from zo_sweeps.core.errors import UserError
from zo_sweeps.methods import registry
from zo_sweeps.methods.definition import convert, write
from zo_sweeps.methods.reward import Reward

STARTING = 120.0  # seconds for the imports of the rewards
LATER = 5.0  # seconds
SHOWN = 60  # characters of a text in a message


class Verifier:
    """The rewards of one task.

    Args:
        rewards: whose weighted sum is a text's reward.
        seconds: the longest that they may take for one text.
        zero: whether an error counts as a reward of 0.
        folders: of the user's own members.

    Attributes:
        errors: texts that counted as 0 because of an error.

    Cost: about half a second for the process, once, and what the rewards import. It ends with the object.
    """

    def __init__(self, rewards: Sequence[Reward], seconds: float, zero: bool, folders: Sequence[str] = ()) -> None:
        self._zero, self.errors = zero, 0
        self._seconds = seconds
        self._head = {"rewards": write(rewards), "folders": list(folders), "seconds": seconds}
        self._process: subprocess.Popen[str] | None = None
        self._end: Callable[[], None] = lambda: None

    def of(self, row: str, text: str) -> float:
        """Return the reward of a text for a row (as JSON). Raises UserError if it has none, unless that counts as 0."""
        line = _exchange(self._process or self._start(), json.dumps([row, text]), self._seconds)
        answer = json.loads(line) if line else {"error": f"its reward {self._ended(line, self._seconds)}"}
        if "reward" in answer:
            return float(answer["reward"])
        if not self._zero:
            shown = text if len(text) <= SHOWN else f"{text[:SHOWN]}..."
            fix = "correct the reward, or count such a text as 0 with kind.errors=zero"
            raise UserError(f"{answer['error']}, of the text {shown!r}", where="task.kind.rewards", fix=fix)
        self.errors += 1
        return 0.0

    def _start(self) -> subprocess.Popen[str]:
        paths = os.pathsep.join(path for path in sys.path if path)
        self._process = process = subprocess.Popen(
            [sys.executable, "-m", __spec__.name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # an interrupt from the keyboard is the trial's, which ends it between steps
            env={**os.environ, "PYTHONPATH": paths, "CUDA_VISIBLE_DEVICES": ""},
        )
        self._end = weakref.finalize(self, _end, process)
        line = _exchange(process, json.dumps(self._head), STARTING)
        if why := json.loads(line)["error"] if line else self._ended(line, STARTING):
            raise UserError(f"the rewards cannot be computed: {why}", where="task.kind.rewards")
        return process

    def _ended(self, line: str | None, seconds: float) -> str:
        """End the process, and return why; the next text has a new one."""
        assert self._process is not None
        process, self._process = self._process, None
        if line is not None:  # it closed its output
            with suppress(subprocess.TimeoutExpired):
                process.wait(LATER)
        self._end()
        return (
            f"took longer than {seconds:g} s" if line is None else f"ended its process with code {process.returncode}"
        )


def _end(process: subprocess.Popen[str]) -> None:
    """Kill a process and those that it has started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    for pipe in filter(None, (process.stdin, process.stdout)):
        with suppress(BrokenPipeError):
            pipe.close()
    process.wait()


def _exchange(process: subprocess.Popen[str], line: str, seconds: float) -> str | None:
    """Return the answer to a line; "" if the process ends, None if the time is over."""
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(f"{line}\n")
        process.stdin.flush()
    except BrokenPipeError:
        return ""
    answered = select.poll()  # unlike `select`, for any number of open files
    answered.register(process.stdout, select.POLLIN)
    return process.stdout.readline() if answered.poll(1000 * seconds) else None


def _limited(seconds: float) -> None:
    """Let the kernel end this process after some seconds; 0: no longer."""
    signal.setitimer(signal.ITIMER_REAL, seconds)


def _serve(lines: IO[str], answers: IO[str]) -> None:
    def say(**answer: object) -> None:
        answers.write(f"{json.dumps(answer)}\n")
        answers.flush()

    head = json.loads(lines.readline())
    _limited(STARTING + LATER)
    try:
        registry.use_folders(head["folders"])
        rewards: tuple[Reward, ...] = convert(tuple[Reward, ...], head["rewards"], "rewards")
        for reward in rewards:
            row, text, _ = type(reward).examples[0]
            type(reward)().of(row, text)
    except Exception as error:  # a reward may be anyone's
        return say(error=f"{type(error).__name__}: {error}")
    _limited(0)
    say(error="")
    for line in lines:
        row, text = json.loads(line)
        _limited(head["seconds"] + LATER)
        try:
            columns = json.loads(row)
            value = math.fsum(reward.weight * float(reward.of(columns, text)) for reward in rewards)
            answer = {"reward": value} if math.isfinite(value) else {"error": f"its reward is {value}"}
        except Exception as error:  # as above
            answer = {"error": " ".join(f"its reward raised {type(error).__name__}: {error}".split())}
        _limited(0)
        say(**answer)


if __name__ == "__main__":
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a reward prints is no answer
    _serve(sys.stdin, answers)
