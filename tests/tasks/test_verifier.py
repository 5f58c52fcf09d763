"""The process that rewards are computed in."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from zo_sweeps.core.errors import UserError
from zo_sweeps.methods import registry
from zo_sweeps.methods.reward import Reward
from zo_sweeps.tasks.rewards.exact import Exact
from zo_sweeps.tasks.rewards.number import Number
from zo_sweeps.tasks.verifier import Verifier

pytestmark = pytest.mark.multiprocess

SLOW = """
import re, os, signal, time
from dataclasses import dataclass
from zo_sweeps.methods.reward import Reward

@dataclass(frozen=True)
class Odd(Reward):
    examples = (({}, "fine", 1.0), ({}, "half", 0.5))

    def of(self, row, text):
        print("not an answer")
        if text == "raise":
            raise KeyError("absent")
        if text == "hang":
            re.match("(a+)+$", 40 * "a" + "b")  # holds the interpreter: no thread or handler of Python could end it
        if text == "die":
            os._exit(3)
        if text == "fork" and os.fork() == 0:  # it has the pipe to the trial, and outlives its parent
            while True:
                time.sleep(1)
        if text in ("fork", "alarm"):
            signal.setitimer(signal.ITIMER_REAL, 0)  # as of a library with a limit of its own
            time.sleep(100)
        return {"half": 0.5, "nan": float("nan")}.get(text, 1.0)
"""


@pytest.fixture
def odd(tmp_path: Path) -> Any:
    (tmp_path / "reward").mkdir()
    (tmp_path / "reward" / "odd.py").write_text(SLOW)
    with registry.using_folders([tmp_path]):
        yield registry.member("reward", "odd")()


def test_a_sum_is_weighted() -> None:
    verifier = Verifier((Number(weight=0.5), Exact(weight=0.25)), 10.0, False)
    row = json.dumps({"answer": "7"})
    assert [verifier.of(row, text) for text in ("7", "It is 7.", "8")] == [0.75, 0.5, 0.0]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("raise", "its reward raised KeyError: 'absent', of the text 'raise' in task.kind.rewards"),
        ("hang", "its reward took longer than 0.5 s, of the text 'hang'"),
        ("die", "its reward ended its process with code 3"),
        ("fork", "its reward took longer than 0.5 s"),
        ("alarm", "its reward took longer than 0.5 s"),
        ("nan", "its reward is nan"),
    ],
)
def test_an_error_is_one_line_or_counts_as_zero_and_later_texts_are_rewarded(
    odd: Reward, tmp_path: Path, text: str, why: str
) -> None:
    folders = [str(tmp_path)]
    strict, lenient = (Verifier((odd,), 0.5, zero, folders) for zero in (False, True))
    with pytest.raises(UserError) as error:
        strict.of("{}", text)
    assert why in str(error.value)
    assert "\n" not in str(error.value)
    assert strict.of("{}", "half") == 0.5
    assert [lenient.of("{}", one) for one in ("fine", text, "half")] == [1.0, 0.0, 0.5]
    assert (strict.errors, lenient.errors) == (0, 1)


def test_the_process_ends_with_the_verifier(odd: Reward, tmp_path: Path) -> None:
    verifier = Verifier((odd,), 60.0, False, [str(tmp_path)])
    assert verifier.of("{}", "half") == 0.5
    assert verifier._process is not None
    group = verifier._process.pid
    os.killpg(group, 0)
    del verifier
    with pytest.raises(ProcessLookupError):
        os.killpg(group, 0)


def test_a_reward_that_cannot_start_is_said() -> None:
    verifier = Verifier((Broken(),), 1.0, True)
    with pytest.raises(UserError, match=r"the rewards cannot be computed: UserError: unknown reward 'test_verifier'"):
        verifier.of("{}", "")


@dataclass(frozen=True)
class Broken(Reward):
    """In no folder that the process knows."""
