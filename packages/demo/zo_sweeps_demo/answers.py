"""A model's answers to rows of dev before training and now, by the log of a run that goes on."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from zo_sweeps.core.errors import UserError
from zo_sweeps.core.events import Event
from zo_sweeps.core.trial import Trial
from zo_sweeps.methods.trial_config import TrialConfig

if TYPE_CHECKING:  # it loads torch, for which the page does not wait
    from zo_sweeps.session.answers import Answer

ROWS = 12  # that are shown
CHOSEN = 48  # rows that answers are chosen for, where an answer is one of a row's options
SHARE = 5  # times as long as a replay took, none follows it while the run goes on: a sixth of a core


@dataclass(frozen=True)
class Compared:
    """The answers before the first step and after `step`; error: why there are none."""

    step: int
    before: tuple[Answer, ...] = ()
    now: tuple[Answer, ...] = ()
    error: str = ""

    @property
    def changed(self) -> int:
        """How many rows have another answer."""
        return sum(one.text != other.text for one, other in zip(self.before, self.now, strict=True))

    @staticmethod
    def right(given: Sequence[Answer]) -> str:
        """Return how many answers are right, as text."""
        return "–" if any(one.right is None for one in given) else str(sum(one.right is True for one in given))

    @property
    def rows(self) -> list[tuple[Answer, Answer]]:
        """The rows to show, those with another answer first."""
        pairs = zip(self.before, self.now, strict=True)
        return sorted(pairs, key=lambda pair: pair[0].text == pair[1].text)[:ROWS]


class Background:
    """Answers in a thread of low priority, one question at a time: a run must not wait for its spectators."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, initializer=_one_thread)
        self._known: dict[str, Compared] = {}
        self._job: Future[None] | None = None
        self._rest = 0.0  # until when none is asked

    def latest(self, trial: Trial, journal: list[Event], step: int, *, sparing: bool) -> Compared | None:
        """Return the last answers of a trial, None before the first; ask for those after `step` if they are others.

        Args:
            sparing: whether to leave the processor to the run for a while after each replay.
        """
        known, asked = self._known.get(trial.trial_id), self._job is not None and not self._job.done()
        resting = sparing and time.monotonic() < self._rest
        if not asked and not resting and (known is None or known.step != step):
            self._job = self._pool.submit(self._compare, trial, journal, step, known)
        return known

    def _compare(self, trial: Trial, journal: list[Event], step: int, known: Compared | None) -> None:
        try:
            before = known.before if known and known.before else _answers(trial, journal, 0)
            if not self._known:  # the model is loaded: of low priority from now on, this thread alone on Linux
                os.nice(10)
            began = time.monotonic()
            made = Compared(step, before, _answers(trial, journal, step) if step else before)
            self._rest = time.monotonic() + SHARE * (time.monotonic() - began)
        except UserError as error:
            made = Compared(step, error=str(error))
        self._known[trial.trial_id] = made


def _answers(trial: Trial, journal: list[Event], step: int) -> tuple[Answer, ...]:
    from zo_sweeps.session.answers import answers

    generates = TrialConfig.of(trial.config).task.kind.generates
    return answers(trial, journal, step, "dev", ROWS if generates else CHOSEN)


def _one_thread() -> None:
    import torch

    torch.set_num_threads(1)


background = Background()
