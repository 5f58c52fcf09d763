"""The facts behind `status ID`: everything about one trial."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from zo_sweeps.core.document import key
from zo_sweeps.core.errors import unknown
from zo_sweeps.core.trial import Trial, TrialState
from zo_sweeps.plan.build import Plan
from zo_sweeps.results import tables as readout
from zo_sweeps.results.compare import flat
from zo_sweeps.results.past_trials import earlier
from zo_sweeps.schedule.ledger import read_standing


@dataclass(frozen=True)
class Attempt:
    """An attempt at a trial."""

    node: str = key("where it ran")
    device: str = key("device profile, and the runtime if it is not torch")
    from_step: int = key("steps that were done before")


@dataclass(frozen=True)
class Evaluation:
    """An evaluation of a trial."""

    split: str = key("dev, or test with the selected weights")
    step: int = key("step whose weights were evaluated")
    loss: float = key("mean loss")
    metric: float = key("the task's first metric, in its recorded unit (accuracy: a fraction)")


@dataclass(frozen=True)
class TrialFacts:
    """One trial."""

    trial_id: str = key("hash of everything that changes its result")
    label: str = key("its printed name")
    grid: str = key("name of the grid")
    state: str = key("its state, lower case")
    started: int = key("attempts started, ever")
    step: int = key("steps in its journal")
    steps: int = key("steps in all")
    caveats: Sequence[str] = key("how the sweep differs from the grid as written")
    differs: Mapping[str, Any] = key("settings in which trials of the grid differ -> this trial's value")
    attempts: Sequence[Attempt] = key("the attempts that a node has reported")
    evaluations: Sequence[Evaluation] = key("by split and step")
    metrics: Mapping[str, float] = key("measurements, in fractions, bytes, seconds and joules, under MLflow's names")
    unmeasured: Mapping[str, str] = key("how names of metrics begin that could not be measured -> the reason")
    other_code: bool = key("whether it was measured with other code than today's")
    error: str = key("one line on a failure")
    traceback: str = key("of a failure")
    configuration: Mapping[str, Any] = key("the whole resolved configuration")


def trial_facts(plan: Plan, name: str) -> TrialFacts:
    """Return the facts of the trial whose id begins with `name`, of the plan or made by another version.

    Raises UserError if no or several trials do, or its journal is damaged. Cost: reads its journal, and
    the configurations of all trials of the grid.
    """
    standing = read_standing(plan.config.folder)
    before = {trial_id: trial for group in earlier(plan, standing) for trial_id, trial in group.trials.items()}
    every = {**plan.every, **before}
    matching = [trial_id for trial_id in every if trial_id.startswith(name)]
    if len(matching) != 1:
        raise unknown("trial", name, list(plan.every)[:5], where=f"grid {plan.name}")
    from zo_sweeps.record.journal import JournalStore, evals, last_step, outcome, places

    (trial_id,) = matching
    trial = every[trial_id]
    events = JournalStore(plan.config.folder).read(trial_id, ended=standing.has_result(trial_id))
    ended = outcome(events)
    return TrialFacts(
        trial_id=trial_id,
        label=trial.label,
        grid=plan.name,
        state=standing.states.get(trial_id, TrialState.PENDING).value.lower(),
        started=standing.attempts.get(trial_id, 0),
        step=last_step(events),
        steps=trial.steps,
        caveats=plan.caveats,
        differs=_differs(plan, trial),
        attempts=[Attempt(*place) for place in places(events)],
        evaluations=[
            Evaluation(split, step, scores.loss, scores.metric)
            for (split, step), scores in sorted(evals(events).items())
        ],
        metrics=ended.metrics if ended else {},
        unmeasured=ended.unmeasured if ended else {},
        other_code=readout.other_code(trial, standing.outcomes.get(trial_id)),
        error=ended.error if ended else "",
        traceback=ended.traceback if ended else "",
        configuration=trial.config.to_json(),
    )


def _differs(plan: Plan, trial: Trial) -> dict[str, Any]:
    """Return the settings of a trial that some other trial of the plan has otherwise, or not at all."""
    every = [flat(trial.config.to_json()) for trial in plan.every.values()]
    own = flat(trial.config.to_json())
    absent = object()
    return {name: value for name, value in own.items() if any(one.get(name, absent) != value for one in every)}
