"""Rewards of texts, computed in a process of its own, which can be killed: a reward may never return.

The process is this module. It reads a line of JSON for the rewards, and then one per text, and answers each with one.
Around every text it sets the alarm whose signal ends it, also inside of a regular expression that does not end.
"""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from typing import IO

from zo_sweeps.core.errors import UserError
from zo_sweeps.methods import registry
from zo_sweeps.methods.definition import convert, write
from zo_sweeps.methods.reward import Reward

STARTING = 120.0  # seconds for the imports of the rewards
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

    Cost: about half a second for the process, once, and what the rewards import.
    """

    def __init__(self, rewards: Sequence[Reward], seconds: float, zero: bool, folders: Sequence[str] = ()) -> None:
        self._zero, self.errors = zero, 0
        self._seconds = seconds
        self._head = {"rewards": write(rewards), "folders": list(folders), "seconds": seconds}
        self._process: subprocess.Popen[str] | None = None

    def of(self, row: str, text: str) -> float:
        """Return the reward of a text for a row (as JSON). Raises UserError if it has none, unless that counts as 0."""
        if line := _exchange(self._process or self._start(), json.dumps([row, text])):
            answer = json.loads(line)
        else:
            answer = {"error": f"its reward {self._ended(f'took longer than {self._seconds:g} s')}"}
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
        line = _exchange(process, json.dumps(self._head))
        if why := json.loads(line)["error"] if line else self._ended(f"took longer than {STARTING:g} s"):
            raise UserError(f"the rewards cannot be computed: {why}", where="task.kind.rewards")
        return process

    def _ended(self, late: str) -> str:
        """Return how the process ended; the next text has a new one."""
        assert self._process is not None
        code, self._process = self._process.wait(), None
        return late if code == -signal.SIGALRM else f"ended its process with code {code}"


def _exchange(process: subprocess.Popen[str], line: str) -> str:
    """Return the answer to a line; "" if the process ends."""
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(f"{line}\n")
        process.stdin.flush()
    except BrokenPipeError:
        return ""
    return process.stdout.readline()


def _limited(seconds: float) -> None:
    """Let the kernel end this process after some seconds; 0: no longer."""
    signal.setitimer(signal.ITIMER_REAL, seconds)


def _serve(lines: IO[str], answers: IO[str]) -> None:
    def say(**answer: object) -> None:
        answers.write(f"{json.dumps(answer)}\n")
        answers.flush()

    head = json.loads(lines.readline())
    _limited(STARTING)
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
        _limited(head["seconds"])
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
