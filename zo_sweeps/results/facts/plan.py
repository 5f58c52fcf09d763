"""The facts behind `plan`: a grid's trials, their work and memory, and what cannot run here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from zo_sweeps.core.document import key
from zo_sweeps.core.trial import Trial, TrialState
from zo_sweeps.plan.build import Plan, by_line
from zo_sweeps.plan.order import ORDERS, described
from zo_sweeps.record.journal import JournalStore
from zo_sweeps.results.past_trials import lines
from zo_sweeps.schedule import budget
from zo_sweeps.schedule.budget import Predicted
from zo_sweeps.schedule.ledger import Standing, read_standing
from zo_sweeps.schedule.prediction import Predictions, predictions, slots_here, speed_here


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
    seconds: float | None = key("predicted for all its trials that can run here, one at a time; null: not known")


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
    seconds: float | None = key("predicted, in a process that has its model; null: not known")
    joules: float | None = key("predicted of its steps, at the mean power of finished trials; null: not known")


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
    seconds_left: float | None = key("predicted for the trials without a result, one at a time; null: not known")
    trials_left: int = key("how many these are")
    slots: int | None = key("how many run at a time; null: a cluster's nodes run them")
    seconds_to_go: float | None = key("predicted for these trials on the slots, with the start of their processes")
    joules_left: float | None = key("predicted of their steps; null: no trial's energy was measured")
    device: str | None = key("what the predictions are for: processor or GPU, and threads; null: not known")
    probed: bool = key("whether they begin with a probe of this machine")
    load: float | None = key("the machine's load per core when it was probed")
    finished: int = key("how many finished trials of this plan correct them")
    elsewhere: Mapping[str, float | None] = key("other devices with finished trials -> seconds_left there")
    trouble: str = key("why the speed of this machine cannot be read, empty if it can")
    rows: Sequence[PlannedRow] = key("the grid's rows")
    largest: str = key("id of the trial that needs the most memory")
    largest_parts_bytes: Mapping[str, int] = key("its estimated memory by part, with that of the process")
    obstacles: Sequence[Line] = key("every reason why trials cannot run here, the most frequent first")
    notes: Sequence[Line] = key("what limits trials")
    caveats: Sequence[str] = key("how the trials differ from the grid as written")
    over_budget: Sequence[str] = key("a sentence on each cap of `budget` that the plan cannot hold, as predicted")
    order: str = key("the sizes of the rounds in which trials are started; empty: one round, in grid order")
    trials: Sequence[PlannedTrial] = key("all trials, in the order in which they are started")
    earlier: Sequence[str] = key("a sentence on finished trials of the state folder that are none of these")


def plan_facts(plan: Plan, order: str = "grid") -> PlanFacts:
    """Return the facts of a plan, with the results so far in its state folder.

    Args:
        order: one of `plan.order.ORDERS`.
    """
    standing = read_standing(plan.config.folder)
    largest = max(plan.every.values(), key=lambda trial: trial.needs.memory_bytes, default=None)
    left = [trial for trial in plan.trials if not standing.has_result(trial.trial_id)]
    guess = predictions(plan, standing)
    seconds_left = _sum(guess.seconds(trial) for trial in left)
    others = [device for device in guess.devices if device != guess.device]
    slots = None if guess.here is None else slots_here(plan)
    rounds = ORDERS[order](plan, standing.outcomes)
    to_go, joules_left = _to_go(guess, left, slots), _sum(guess.joules(trial) for trial in left)
    return PlanFacts(
        grid=plan.name,
        title=plan.grid.title,
        state_dir=str(plan.config.folder),
        columns=dict(plan.labels),
        entries=len(plan.cells),
        runnable=len(plan.trials),
        forwarded_tokens=sum(trial.cost for trial in plan.trials),
        seconds_left=seconds_left,
        trials_left=len(left),
        slots=slots,
        seconds_to_go=to_go,
        joules_left=joules_left,
        device=str(guess.device) if guess.device in guess.devices else None,
        probed=guess.speed is not None,
        load=guess.speed.load if guess.speed else None,
        finished=guess.finished[guess.device] if guess.device else 0,
        elsewhere={str(device): _sum(guess.seconds(trial, device) for trial in left) for device in others},
        trouble=speed_here(guess.here)[1] if guess.here else "",
        rows=_rows(plan, standing, guess),
        largest=largest.trial_id if largest else "",
        largest_parts_bytes=_parts(largest) if largest else {},
        obstacles=[Line(why, ids) for why, ids in plan.obstacles.items()],
        notes=[Line(remark, ids) for remark, ids in by_line(plan.remarks).items()],
        caveats=plan.caveats,
        over_budget=over(plan, standing, Predicted(to_go, joules_left)),
        order=described(plan, rounds),
        trials=sorted(_trials(plan, standing, guess), key=lambda trial: rounds.get(trial.trial_id, 0)),
        earlier=lines(plan, standing),
    )


def _rows(plan: Plan, standing: Standing, guess: Predictions) -> list[PlannedRow]:
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
                seconds=_sum(guess.seconds(trial) for trial in mine if trial.trial_id not in plan.reasons),
            )
        )
    return rows


def _trials(plan: Plan, standing: Standing, guess: Predictions) -> list[PlannedTrial]:
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
            seconds=guess.seconds(trial),
            joules=guess.joules(trial),
        )
        for trial_id, trial in plan.every.items()
    ]


def _parts(trial: Trial) -> dict[str, int]:
    parts = trial.needs.parts
    return {**parts, "process": trial.needs.memory_bytes - sum(parts.values())} if parts else {}


def _to_go(guess: Predictions, left: Sequence[Trial], slots: int | None) -> float | None:
    """Return the seconds that trials take on slots: at least those of the longest, and the start of a process each."""
    seconds = [guess.seconds(trial) for trial in left]
    total, known = _sum(seconds), [one for one in seconds if one is not None]
    if total is None or slots is None:
        return None
    return max(total / slots, *known) + guess.start if known else 0.0


def _sum(values: Iterable[float | None]) -> float | None:
    """Return the sum of numbers; None if one is not known."""
    listed = list(values)
    known = [one for one in listed if one is not None]
    return sum(known) if len(known) == len(listed) else None


def spent(plan: Plan, standing: Standing) -> budget.Spent:
    """Return what the plan's trials have cost so far, as far as its budget asks."""
    return budget.spent(plan.config.budget, standing, plan.every.keys(), JournalStore(plan.config.folder).read)


def over(plan: Plan, standing: Standing, left: budget.Predicted) -> Sequence[str]:
    """Return one line for each cap that the plan cannot hold, as predicted. Cost: without a cap, none."""
    caps = plan.config.budget
    if not caps.has_cap:
        return []
    return budget.over(caps, len(plan.trials), spent(plan, standing), left)
