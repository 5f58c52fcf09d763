"""The queue of ready trials, in an order that reuses loaded base models, without head-of-line blocking."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator

from zo_sweeps.core.trial import Needs, Trial
from zo_sweeps.schedule.backend import NO_SLOT

Group = tuple[str, Needs, str]


class ReadyQueue:
    """Ready trials in plan order, in groups of the same base model, needs and `kind` (as `Trial.memory_key`).

    The trials of a group are interchangeable to a backend, so a choice costs O(groups), not O(trials), and a group
    that fits on no node now is skipped.
    """

    def __init__(self, trials: Iterable[Trial] = (), kind: Callable[[Trial], str] = lambda trial: "") -> None:
        self._kind = kind
        self._groups: dict[Group, deque[Trial]] = {}
        self._running: Counter[str] = Counter()
        for trial in trials:
            self.put(trial)

    def __len__(self) -> int:
        return sum(len(group) for group in self._groups.values())

    def __iter__(self) -> Iterator[Trial]:
        for group in self._groups.values():
            yield from group

    def put(self, trial: Trial, *, first: bool = False) -> None:
        """Add a trial at the end of its group, or at its front."""
        key = (trial.warm_key, trial.needs, self._kind(trial))
        group = self._groups.setdefault(key, deque())
        group.appendleft(trial) if first else group.append(trial)

    def take(self, fit: Callable[[Trial], int]) -> Trial | None:
        """Remove and return the next trial to start; None when `fit` (as in Backend) finds no slot for any.

        A trial that names its device comes first, because the others have more choice; then one whose base model a
        free slot holds, then the base model with the fewest running trials (so that slots spread over base models and
        each slot loads few), then plan order. Call `left` when the trial has ended.
        """
        best: tuple[bool, int, int] | None = None
        chosen: deque[Trial] | None = None
        for (warm_key, needs, _), group in self._groups.items():
            if not group:
                continue
            warmth = fit(group[0])
            rank = (needs.device != "auto", warmth, -self._running[warm_key])
            if warmth != NO_SLOT and (best is None or rank > best):
                best, chosen = rank, group
        if chosen is None:
            return None
        trial = chosen.popleft()
        self._running[trial.warm_key] += 1
        return trial

    def left(self, trial: Trial) -> None:
        """Note that a trial from `take` has stopped running."""
        self._running[trial.warm_key] -= 1

    def heads(self) -> list[tuple[Trial, int]]:
        """Return the first trial of every group and the number of trials in it."""
        return [(group[0], len(group)) for group in self._groups.values() if group]
