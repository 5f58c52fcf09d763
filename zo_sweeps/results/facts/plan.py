"""The facts behind `plan`: a grid's trials, their work and memory, and what cannot run here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from zo_sweeps.core.document import key
from zo_sweeps.core.trial import Trial, TrialState
from zo_sweeps.plan.build import Plan, by_line
from zo_sweeps.schedule.ledger import Standing, read_standing


@dataclass(frozen=True)
class PlannedRow:
    """A row of the grid."""

    block: str = key("name of the row in the grid's file")
    label: str = key("its printed name")
    trials: int = key("number of its trials; several rows can share one")
    here: int = key("how many of them can run here")
    done: int = key("how many of them have a result")
    steps: Sequence[int] = key("steps per trial, ascending")
    forwarded_tokens: float = key("estimated work of all its trials; a backward pass counts as two forwards")
    memory_bytes: int | None = key("estimated peak of the trial that needs the most; null: not known")
    devices: Sequence[str] = key("device profiles that its trials ask for")


@dataclass(frozen=True)
class PlannedTrial:
    """A trial of the grid."""

    trial_id: str = key("hash of everything that changes its result")
    label: str = key("its printed name")
    block: str = key("the first row that asks for it")
    column: str = key("the first column that asks for it")
    hyperparameters: Mapping[str, Any] = key("values of the searched axes")
    seed: int = key("the first seed that asks for it")
    steps: int = key("optimization steps")
    forwarded_tokens: float = key("estimated work")
    memory_bytes: int = key("estimated peak; 0: not known")
    here: bool = key("whether it can run here; `obstacles` says why not")
    state: str = key("its state in the state folder, lower case")


@dataclass(frozen=True)
class Line:
    """A sentence that holds for some trials."""

    text: str = key("the sentence")
    trials: Sequence[str] = key("ids of the trials that it holds for")


@dataclass(frozen=True)
class PlanFacts:
    """A grid as it would run here."""

    grid: str = key("name of the grid")
    title: str = key("its title")
    state_dir: str = key("state folder")
    columns: Mapping[str, str] = key("column -> its printed name")
    entries: int = key("number of table entries; some share a trial")
    runnable: int = key("number of trials that can run here")
    forwarded_tokens: float = key("estimated work of these")
    seconds_left: float | None = key("for the trials without a result, one at a time; null until one has finished here")
    trials_left: int = key("how many these are")
    rows: Sequence[PlannedRow] = key("the grid's rows")
    largest: str = key("id of the trial that needs the most memory")
    largest_parts_bytes: Mapping[str, int] = key("its estimated memory by part, with that of the process")
    obstacles: Sequence[Line] = key("every reason why trials cannot run here, the most frequent first")
    notes: Sequence[Line] = key("what limits trials")
    caveats: Sequence[str] = key("how the trials differ from the grid as written")
    trials: Sequence[PlannedTrial] = key("all trials, in the grid's order")


def plan_facts(plan: Plan) -> PlanFacts:
    """Return the facts of a plan, with the results so far in its state folder."""
    standing = read_standing(plan.config.folder)
    largest = max(plan.every.values(), key=lambda trial: trial.needs.memory_bytes, default=None)
    left = [trial for trial in plan.trials if not standing.has_result(trial.trial_id)]
    rate = _rate(plan, standing)
    return PlanFacts(
        grid=plan.name,
        title=plan.grid.title,
        state_dir=str(plan.config.folder),
        columns=dict(plan.labels),
        entries=len(plan.cells),
        runnable=len(plan.trials),
        forwarded_tokens=sum(trial.cost for trial in plan.trials),
        seconds_left=sum(trial.cost for trial in left) / rate if rate else None,
        trials_left=len(left),
        rows=_rows(plan, standing),
        largest=largest.trial_id if largest else "",
        largest_parts_bytes=_parts(largest) if largest else {},
        obstacles=[Line(why, ids) for why, ids in plan.obstacles.items()],
        notes=[Line(remark, ids) for remark, ids in by_line(plan.remarks).items()],
        caveats=plan.caveats,
        trials=_trials(plan, standing),
    )


def _rows(plan: Plan, standing: Standing) -> list[PlannedRow]:
    rows = []
    for block in plan.grid.blocks:
        ids = list(dict.fromkeys(cell.trial_id for cell in plan.cells if cell.block == block))
        if not ids:
            continue
        mine = [plan.every[i] for i in ids]
        rows.append(
            PlannedRow(
                block=block,
                label=plan.grid.label(block),
                trials=len(mine),
                here=sum(i not in plan.reasons for i in ids),
                done=sum(map(standing.has_result, ids)),
                steps=sorted({trial.steps for trial in mine}),
                forwarded_tokens=sum(trial.cost for trial in mine),
                memory_bytes=max(trial.needs.memory_bytes for trial in mine) or None,
                devices=sorted({trial.needs.device for trial in mine}),
            )
        )
    return rows


def _trials(plan: Plan, standing: Standing) -> list[PlannedTrial]:
    first = {cell.trial_id: cell for cell in reversed(plan.cells)}
    return [
        PlannedTrial(
            trial_id=trial_id,
            label=trial.label,
            block=first[trial_id].block,
            column=first[trial_id].task,
            hyperparameters=first[trial_id].hyperparameters,
            seed=first[trial_id].seed,
            steps=trial.steps,
            forwarded_tokens=trial.cost,
            memory_bytes=trial.needs.memory_bytes,
            here=trial_id not in plan.reasons,
            state=standing.states.get(trial_id, TrialState.PENDING).value.lower(),
        )
        for trial_id, trial in plan.every.items()
    ]


def _parts(trial: Trial) -> dict[str, int]:
    parts = trial.needs.parts
    return {**parts, "process": trial.needs.memory_bytes - sum(parts.values())} if parts else {}


def _rate(plan: Plan, standing: Standing) -> float:
    """Return the forwarded tokens per second of the plan's finished trials; 0 before there is one."""
    ended = ((trial, standing.outcomes.get(trial.trial_id)) for trial in plan.trials)
    done = [(trial.cost, outcome.metrics.get("wall_seconds", 0.0)) for trial, outcome in ended if outcome]
    seconds = sum(spent for _, spent in done)
    return sum(cost for cost, spent in done if spent) / seconds if seconds else 0.0
