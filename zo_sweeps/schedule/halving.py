"""Successive halving: the settings of a cell are compared on dev at rungs, and only the best go on.

A trial pauses after the evaluation of a rung. When every trial of its group is there, or has ended, a decision is
written to the journals as `rung` events, each with all trials that go on; it is never made again. Test is not read.

With `grid.select.seeds`, the settings of a cell are compared at the first seeds, and only the selected one has the
others.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import TYPE_CHECKING

from zo_sweeps.config.schema import SelectConfig
from zo_sweeps.core.errors import UserError
from zo_sweeps.core.events import Event, Rung, ScoredDev
from zo_sweeps.core.fingerprint import canonical_json
from zo_sweeps.core.trial import Outcome, Trial, TrialState
from zo_sweeps.methods.trial_config import TrialConfig
from zo_sweeps.plan.build import Plan, has_rungs
from zo_sweeps.schedule.observer import Observer

if TYPE_CHECKING:
    from zo_sweeps.schedule.snapshot import Running
    from zo_sweeps.schedule.sweep import Sweep


@dataclass(frozen=True)
class Rivals:
    """Trials that are compared with each other.

    Args:
        settings: the trial_ids of each setting, one per seed; settings in plan order.
        keep: share of the settings that go on after a rung.
        metric: of dev: "dev/loss", "dev/metric" or "dev/NAME".
        sign: 1 if lower is better, -1 if higher is.
    """

    settings: tuple[tuple[str, ...], ...]
    rungs: tuple[int, ...]
    keep: float
    metric: str
    sign: float


def groups(plan: Plan) -> list[Rivals]:
    """Return the groups of a plan's trials that have rungs.

    Raises UserError if a trial of a group cannot run here: the others would wait for it.
    """
    rule = plan.grid.select
    made: dict[str, dict[str, dict[str, None]]] = {}
    configs: dict[str, TrialConfig] = {}
    for cell in plan.cells:
        config = TrialConfig.of(plan.every[cell.trial_id].config)
        if not has_rungs(config):
            continue
        if why := plan.missing.get(cell.trial_id):
            raise UserError(
                f"train.halving compares all trials of {cell.block} on {cell.task}, and one cannot run: {why}",
                fix="leave that row or column out, or train.halving",
            )
        among = config.train.halving_among
        configs[among] = config
        made.setdefault(among, {}).setdefault(canonical_json(cell.hyperparameters), {})[cell.trial_id] = None
    rivals = []
    for among, settings in made.items():
        train = configs[among].train
        every = tuple(tuple(ids) for ids in settings.values())
        rivals.append(Rivals(every, train.rungs, train.halving_keep, rule.metric, _sign(rule)))
    return rivals


@dataclass(frozen=True)
class Search:
    """The settings of a cell, compared at their first seeds.

    Args:
        settings: (trial_ids of the first seeds, those of the others) of each setting; settings in plan order.
        metric, sign: as of `Rivals`.
    """

    settings: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]
    metric: str
    sign: float


def searches(plan: Plan) -> list[Search]:
    """Return the searches of a plan of which one setting alone has further seeds.

    Raises UserError if a trial of one cannot run here, and others can: these would be compared without it.
    """
    rule, found = plan.grid.select, dict[tuple[str, str], dict[str, tuple[list[str], list[str]]]]()
    for cell in plan.cells:
        settings = found.setdefault((cell.block, cell.task), {})
        first, others = settings.setdefault(canonical_json(cell.hyperparameters), ([], []))
        config = TrialConfig.of(plan.every[cell.trial_id].config)
        (others if config.train.confirms else first).append(cell.trial_id)
    made = []
    for (block, column), settings in found.items():
        ids = [trial_id for pair in settings.values() for of_seeds in pair for trial_id in of_seeds]
        missing = [plan.missing[trial_id] for trial_id in ids if trial_id in plan.missing]
        if any(others for _, others in settings.values()) and len(missing) < len(ids):
            if missing:
                what = f"grid.select.seeds compares all trials of {block} on {column}, and one cannot run: {missing[0]}"
                raise UserError(what, fix="leave that row or column out, or grid.select.seeds")
            pairs = tuple((tuple(first), tuple(others)) for first, others in settings.values())
            made.append(Search(pairs, rule.metric, _sign(rule)))
    return made


def _sign(rule: SelectConfig) -> float:
    return 1.0 if rule.mode == "min" else -1.0


def best(scores: Sequence[float], keep: float) -> list[int]:
    """Return the indices of the settings that go on, ascending: a share `keep` of them, rounded up.

    Args:
        scores: per setting; lower is better; NaN (a seed has no score) counts as last. Ties go to the first.
    """
    ranked = sorted(range(len(scores)), key=lambda i: (math.isnan(scores[i]), scores[i]))
    return sorted(ranked[: math.ceil(keep * len(scores) - 1e-9)])


class Rungs(Observer):
    """The groups of a sweep: trials at a rung whose rivals are all there go on, or are stopped. The last observer."""

    def __init__(self, groups: Sequence[Rivals]) -> None:
        self._groups = groups
        self._group = {trial_id: group for group in groups for ids in group.settings for trial_id in ids}
        # As the journals have it.
        self._scores: dict[tuple[str, int], float] = {}
        self._told: dict[str, set[int]] = {trial_id: set() for trial_id in self._group}
        self._kept: dict[tuple[Rivals, int], frozenset[str]] = {}
        self._ended: set[str] = set()  # trials that will reach no further rung

    def begins(self, sweep: Sweep) -> None:
        """Read from the journals how far the trials are, and what was decided."""
        self._sweep = sweep
        for trial_id in self._group:
            try:
                self._see(trial_id, sweep.store.read(trial_id))
            except UserError:  # a damaged journal fails its trial when that is launched
                continue
            if trial_id not in sweep.queue.held:
                self._ended.add(trial_id)
        for group in self._groups:
            self._judge(group)

    def ready(self, trial: Trial) -> str:
        return "it is at a rung, and its rivals are not" if self._rung(trial.trial_id) else ""

    def saw(self, run: Running, events: Sequence[Event]) -> None:
        if run.trial.trial_id in self._group:
            self._see(run.trial.trial_id, events)

    def ended(self, run: Running, outcome: Outcome, again: bool) -> None:
        group = self._group.get(run.trial.trial_id)
        if group is None or outcome.state is TrialState.STOPPED:
            return  # by the verdict in hand
        if not again and outcome.state not in (TrialState.PAUSED, TrialState.CANCELLED):
            self._ended.add(run.trial.trial_id)
        if self._judge(group):
            self._sweep.queue.sort()

    def looks(self, last: bool = False) -> None:
        """Say which trials cannot go on because rivals of theirs have not come to their rung."""
        if not last:
            return
        n, stop = sum(self._rung(trial_id) > 0 for trial_id in self._group.keys() - self._ended), self._sweep.stop
        if n and not stop.wanted and not stop.over:
            trials = f"{n} trial{'s wait' if n > 1 else ' waits'}"
            self._sweep.say(f"{trials} at a rung: other settings of their cell have neither reached it nor ended")

    def _see(self, trial_id: str, events: Iterable[Event]) -> None:
        """Take new events of a trial."""
        group = self._group[trial_id]
        for event in events:
            if isinstance(event, ScoredDev) and event.step in group.rungs:
                self._scores[trial_id, event.step] = _score(event, group.metric)
            elif isinstance(event, Rung):
                if trial_id in event.kept:  # if not, it has ended, or its driver was killed before it wrote so
                    self._told[trial_id].add(event.step)
                self._kept[group, event.step] = frozenset(event.kept)

    def _rung(self, trial_id: str) -> int:
        """Return the rung at which a trial waits and has not been told whether it goes on; 0: at none."""
        rungs = self._group[trial_id].rungs if trial_id in self._group else ()
        return next((s for s in rungs if (trial_id, s) in self._scores and s not in self._told[trial_id]), 0)

    def _judge(self, group: Rivals) -> bool:
        """Tell the trials of a group that wait whether they go on, where all are there; return whether any does.

        A trial that runs has not paused yet: the evaluation of a rung arrives before.
        """
        goes_on, settings, running = False, group.settings, self._sweep.running
        for step in group.rungs:
            kept = self._decision(group, settings, step)
            if kept is None:
                break
            waiting = (i for ids in settings for i in ids if i not in self._ended and i not in running)
            for trial_id in [i for i in waiting if self._rung(i) == step]:
                self._tell(trial_id, Rung(step=step, kept=tuple(sorted(kept))))
                goes_on |= trial_id in kept
            settings = tuple(ids for ids in settings if kept.issuperset(ids))
        return goes_on

    def _tell(self, trial_id: str, rung: Rung) -> None:
        """Write a decision to a trial's journal, and then stop the trial if it does not go on."""
        sweep, trial = self._sweep, self._sweep.trials[trial_id]
        self._told[trial_id].add(rung.step)
        sweep.store.append(trial_id, [rung])
        if trial_id not in rung.kept:
            self._ended.add(trial_id)
            paused = sweep.ledger.outcomes.get(trial_id, Outcome(trial_id, TrialState.PAUSED))
            why = f"stopped at {rung.step} of {trial.steps} steps, by successive halving on dev"
            sweep.conclude(trial, replace(paused, state=TrialState.STOPPED, steps_done=rung.step, error=why))

    def _decision(self, group: Rivals, settings: Sequence[Sequence[str]], step: int) -> frozenset[str] | None:
        """Return the trials that go on after a rung; None while one of them is still on its way."""
        if (group, step) not in self._kept:
            members = [trial_id for ids in settings for trial_id in ids]
            paused = {i for i in members if i not in self._sweep.running or step in self._told[i]}
            on_their_way = (i for i in members if (i, step) not in self._scores or i not in paused)
            if not self._ended.issuperset(on_their_way):
                return None
            means = [group.sign * fmean(self._scores.get((i, step), math.nan) for i in ids) for ids in settings]
            chosen = [settings[index] for index in best(means, group.keep)]
            self._kept[group, step] = frozenset(trial_id for ids in chosen for trial_id in ids)
        return self._kept[group, step]


def _score(event: ScoredDev, metric: str) -> float:
    name = metric.partition("/")[2]
    return float(getattr(event, name) if name in ("loss", "metric") else event.metrics.get(name, math.nan))


class Confirmation(Observer):
    """The searches of a sweep: trials of further seeds wait until a setting is selected at the first ones.

    Those of the other settings are stopped when the selected setting has a success at every seed; if one diverges, the
    next best is selected, as in a table. What was selected follows from the results, and is not recorded.
    """

    def __init__(self, searches: Sequence[Search]) -> None:
        self._searches = searches
        self._selected: dict[Search, int | None] = {}
        self._of = {i: (search, n) for search in searches for n, pair in enumerate(search.settings) for i in pair[1]}
        self._searches_of: dict[str, list[Search]] = {}
        self._over: set[str] = set()  # trials that have a result, or are not tried again

    def begins(self, sweep: Sweep) -> None:
        self._sweep = sweep
        for search in self._searches:
            for trial_id in dict.fromkeys(i for pair in search.settings for ids in pair for i in ids):
                self._searches_of.setdefault(trial_id, []).append(search)
        self._over = {trial_id for trial_id in self._searches_of if trial_id not in sweep.queue.held}
        for search in self._searches:
            self._judge(search)

    def ready(self, trial: Trial) -> str:
        if trial.trial_id not in self._of:
            return ""
        search, n = self._of[trial.trial_id]
        return "" if self._selected.get(search) == n else "its setting is not selected at the first seeds"

    def ended(self, run: Running, outcome: Outcome, again: bool) -> None:
        trial_id = run.trial.trial_id
        if again or outcome.state in (TrialState.PAUSED, TrialState.CANCELLED):
            return
        if outcome.state is TrialState.STOPPED and trial_id in self._of:  # by the judgement in hand
            return
        self._over.add(trial_id)
        for search in self._searches_of.get(trial_id, ()):
            if self._judge(search):
                self._sweep.queue.sort()

    def looks(self, last: bool = False) -> None:
        """Say which trials wait for a selection that cannot be made, or confirmed, now."""
        if not last:
            return
        n, stop = len(self._of.keys() & self._sweep.queue.held.keys()), self._sweep.stop
        if n and not stop.wanted and not stop.over:
            trials = f"{n} trial{'s wait' if n > 1 else ' waits'}"
            self._sweep.say(f"{trials} for a setting to be selected, at whose seeds trials have failed")

    def _judge(self, search: Search) -> bool:
        """Select a setting; return whether it is another than before. Stop what needs no run any more."""
        sweep, before = self._sweep, self._selected.get(search)
        if not self._over.issuperset(trial_id for first, _ in search.settings for trial_id in first):
            return False
        states = sweep.ledger.state
        scores = [search.sign * self._mean(search, first) for first, _ in search.settings]
        bad = TrialState.DIVERGED, TrialState.OUT_OF_MEMORY
        fit = (n for n, pair in enumerate(search.settings) if not any(states(i) in bad for i in pair[1]))
        sound = (n for n in fit if math.isfinite(scores[n]))
        self._selected[search] = selected = min(sound, key=lambda n: scores[n], default=None)
        if selected is None or all(states(i) is TrialState.SUCCEEDED for i in search.settings[selected][1]):
            for n, (first, others) in enumerate(search.settings):
                again = any(states(i).is_retryable for i in first)  # by --rerun, which may select the setting
                for trial_id in () if n == selected or again else others:
                    self._stop(trial_id)
        return selected != before

    def _mean(self, search: Search, trial_ids: Sequence[str]) -> float:
        if not all(self._sweep.ledger.state(trial_id) is TrialState.SUCCEEDED for trial_id in trial_ids):
            return math.nan
        return fmean(self._sweep.ledger.outcomes[i].metrics.get(search.metric, math.nan) for i in trial_ids)

    def _stop(self, trial_id: str) -> None:
        if trial_id in self._sweep.queue.held:
            why = "did not start: its setting was not selected"
            self._sweep.conclude(self._sweep.trials[trial_id], Outcome(trial_id, TrialState.STOPPED, error=why))
