"""The queue of ready trials, in an order that reuses loaded base models, without head-of-line blocking."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from zo_sweeps.core.trial import Needs, Trial, TrialState
from zo_sweeps.schedule.backend import NO_SLOT
from zo_sweeps.schedule.ledger import Ledger
from zo_sweeps.schedule.observer import Observer

Group = tuple[str, Needs, str, frozenset[str]]


class ReadyQueue:
    """Ready trials in plan order, in groups of the same base model, needs, memory key and nodes to avoid.

    The trials of a group are interchangeable to a backend, so a choice costs O(groups), not O(trials), and a group
    that fits on no node now is skipped.

    `rounds` has the round in which each trial_id is due, ascending; {}: one round.
    """

    def __init__(self, trials: Iterable[Trial] = (), rounds: Mapping[str, int] | None = None) -> None:
        self._rounds = rounds or {}
        self._avoided: dict[str, frozenset[str]] = {}  # trial_id -> the nodes where it was lost
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
        """Add a trial at the end of its group, or at its front; a new group then comes before its equals."""
        key = self._group(trial)
        if first and not self._groups.get(key):
            self._groups = {key: deque(), **{other: group for other, group in self._groups.items() if other != key}}
        group = self._groups.setdefault(key, deque())
        group.appendleft(trial) if first else group.append(trial)

    def _group(self, trial: Trial) -> Group:
        away = self._avoided.get(trial.trial_id, frozenset())
        return trial.warm_key, trial.needs, trial.memory_key, away

    def avoid(self, trial: Trial, node: str) -> None:
        """Note where a trial was lost, before it is put again: it may go to other nodes than those alike."""
        self._avoided[trial.trial_id] = self._avoided.get(trial.trial_id, frozenset()) | {node}

    def take(self, fit: Callable[[Trial], int]) -> Trial | None:
        """Remove and return the next trial to start; None when `fit` (as in Backend) finds no slot for any.

        The earliest round comes first. In it, a trial that names its device, because the others have more choice; then
        one whose base model a free slot holds, then the base model with the fewest running trials (so that slots spread
        over base models and each slot loads few), then plan order. Call `left` when the trial has ended.
        """
        best: tuple[int, bool, int, int] | None = None
        chosen: deque[Trial] | None = None
        for (warm_key, needs, *_), group in self._groups.items():
            if not group:
                continue
            warmth = fit(group[0])
            due = -self._rounds.get(group[0].trial_id, 0)
            rank = (due, needs.device != "auto", warmth, -self._running[warm_key])
            if warmth != NO_SLOT and (best is None or rank > best):
                best, chosen = rank, group
        if chosen is None:
            return None
        trial = chosen.popleft()
        self._running[trial.warm_key] += 1
        return trial

    def withdraw(self, which: Callable[[Trial], bool]) -> list[Trial]:
        """Remove and return the trials for which `which` holds."""
        withdrawn = [trial for trial in self if which(trial)]
        for key, group in self._groups.items():
            self._groups[key] = deque(trial for trial in group if not which(trial))
        return withdrawn

    def left(self, trial: Trial) -> None:
        """Note that a trial from `take` has stopped running."""
        self._running[trial.warm_key] -= 1

    def heads(self) -> list[tuple[Trial, int]]:
        """Return the first trial of every group and the number of trials in it."""
        return [(group[0], len(group)) for group in self._groups.values() if group]


class Pending:
    """The trials without a result that do not run: queued, or held back by an observer.

    Attributes:
        held: the latter, by trial_id.
    """

    def __init__(self, queue: ReadyQueue, observers: Sequence[Observer], ledger: Ledger) -> None:
        self.queue, self._observers, self._ledger = queue, observers, ledger
        self.held: dict[str, Trial] = {}

    def __iter__(self) -> Iterator[Trial]:
        yield from (*self.queue, *self.held.values())

    def offer(self, trial: Trial, *, first: bool = False) -> None:
        """Queue a trial, or hold it back with the reason in the ledger."""
        ledger, trial_id = self._ledger, trial.trial_id
        reason, known = self._reason(trial), ledger.held.get(trial_id, "")
        if reason != known and ledger.state(trial_id) is TrialState.PENDING:
            ledger.write(trial_id, TrialState.PENDING, error=reason)
        if reason:
            self.held[trial_id] = trial
        else:
            self.held.pop(trial_id, None)
            self.queue.put(trial, first=first)

    def sort(self) -> None:
        """Ask the observers again which trials may start; call it when the answer of one has changed."""
        for trial in (*self.queue.withdraw(lambda trial: bool(self._reason(trial))), *self.held.values()):
            self.offer(trial, first=self._ledger.state(trial.trial_id) is TrialState.PAUSED)

    def _reason(self, trial: Trial) -> str:
        return next((reason for observer in self._observers if (reason := observer.ready(trial))), "")
