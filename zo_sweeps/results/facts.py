"""The facts behind `plan`, `status` and `status ID`: documents that are printed as text or as JSON."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from zo_sweeps.core.document import key
from zo_sweeps.core.errors import unknown
from zo_sweeps.core.events import Event
from zo_sweeps.core.trial import Trial, TrialState, parts_of
from zo_sweeps.methods.definition import write
from zo_sweeps.methods.trial_config import TrialConfig
from zo_sweeps.plan.build import Plan, by_line
from zo_sweeps.plan.order import ORDERS, described
from zo_sweeps.record.journal import JournalStore, evals, last_step, outcome, places
from zo_sweeps.results import tables as readout
from zo_sweeps.results.past_sweeps import EarlierTrial, earlier, lines, listed
from zo_sweeps.results.trial_record import TrialRecord, flat, recorded
from zo_sweeps.schedule import spending
from zo_sweeps.schedule.ledger import Standing, driver_of, read_standing
from zo_sweeps.schedule.prediction import TimePredictions, predictions, slots_here
from zo_sweeps.schedule.snapshot import LiveRun, expected, read_live

MISSING = "missing"


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
class Statement:
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
    obstacles: Sequence[Statement] = key("every reason why trials cannot run here, the most frequent first")
    notes: Sequence[Statement] = key("what limits trials")
    caveats: Sequence[str] = key("how the trials differ from the grid as written")
    over_budget: Sequence[str] = key("a sentence on each cap of `budget` that the plan cannot hold, as predicted")
    order: str = key("the sizes of the rounds in which trials are started; empty: one round, in grid order")
    trials: Sequence[PlannedTrial] = key("all trials, in the order in which they are started")
    earlier: Sequence[str] = key("a sentence on finished trials of the state folder that are none of these")


def plan_facts(plan: Plan, order: str = "grid") -> PlanFacts:
    """Return the facts of a plan, with the results so far in its state folder; order: one of `plan.order.ORDERS`."""
    standing = read_standing(plan.config.folder)
    largest = max(plan.every.values(), key=lambda trial: trial.needs.memory_bytes, default=None)
    parts = largest.needs.parts if largest else {}
    left = [_rest(trial, standing) for trial in plan.trials if not standing.has_result(trial.trial_id)]
    guess = predictions(plan, standing)
    share = expected(left)
    seconds_left = _total(left, share, guess.seconds)
    others = [device for device in guess.devices if device != guess.device]
    caps, trials = plan.config.budget, round(sum(expected(plan.trials).values()))
    slots = None if guess.here is None else slots_here(plan)
    rounds = ORDERS[order](plan, standing.outcomes)
    to_go, joules_left = _to_go(guess, left, seconds_left, slots), _total(left, share, guess.joules)
    return PlanFacts(
        grid=plan.name,
        title=plan.title,
        state_dir=str(plan.config.folder),
        columns=dict(plan.labels),
        entries=len(plan.cells),
        runnable=len(plan.trials),
        forwarded_tokens=_total(plan.trials, expected(plan.trials), lambda trial: trial.cost) or 0.0,
        seconds_left=seconds_left,
        trials_left=len(left),
        slots=slots,
        seconds_to_go=to_go,
        joules_left=joules_left,
        device=str(guess.device) if guess.device in guess.devices else None,
        probed=guess.speed is not None,
        load=guess.speed.load if guess.speed else None,
        finished=guess.finished[guess.device] if guess.device else 0,
        elsewhere={str(one): _total(left, share, partial(guess.seconds, device=one)) for one in others},
        trouble=guess.trouble,
        rows=_rows(plan, standing, guess),
        largest=largest.trial_id if largest else "",
        largest_parts_bytes={**parts, "process": largest.needs.memory_bytes - sum(parts.values())}
        if largest and parts
        else {},
        obstacles=[Statement(why, ids) for why, ids in plan.obstacles.items()],
        notes=[Statement(remark, ids) for remark, ids in by_line(plan.remarks).items()],
        caveats=plan.caveats,
        over_budget=spending.over(caps, trials, spent(plan, standing), to_go, joules_left) if caps.has_cap else [],
        order=described(plan, rounds),
        trials=sorted(_trials(plan, standing, guess), key=lambda trial: rounds.get(trial.trial_id, 0)),
        earlier=lines(plan, standing),
    )


def _rows(plan: Plan, standing: Standing, guess: TimePredictions) -> list[PlannedRow]:
    rows = {block: [plan.every[i] for i in _ids(plan, block)] for block in plan.grid.blocks}
    share = expected(plan.every.values())
    return [
        PlannedRow(
            block=block,
            label=plan.grid.label(block),
            trials=len(mine),
            here=sum(trial.trial_id not in plan.reasons for trial in mine),
            done=sum(standing.has_result(trial.trial_id) for trial in mine),
            steps=sorted({trial.steps for trial in mine}),
            forwarded_tokens=_total(mine, share, lambda trial: trial.cost) or 0.0,
            memory_bytes=max(trial.needs.memory_bytes for trial in mine) or None,
            devices=sorted({trial.needs.device for trial in mine}),
            seconds=_total([trial for trial in mine if trial.trial_id not in plan.reasons], share, guess.seconds),
        )
        for block, mine in rows.items()
        if mine
    ]


def _trials(plan: Plan, standing: Standing, guess: TimePredictions) -> list[PlannedTrial]:
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
            state=standing.state(trial_id).value.lower(),
            seconds=guess.seconds(trial),
            joules=guess.joules(trial),
        )
        for trial_id, trial in plan.every.items()
    ]


def _rest(trial: Trial, standing: Standing) -> Trial:
    """Return a trial that an attempt can resume, with the operations of the steps that are left."""
    last = standing.outcomes.get(trial.trial_id)
    resumes = isinstance(trial.config, TrialConfig) and trial.config.method.kind.resumes
    done = last.steps_done / trial.steps if last and resumes and trial.steps else 0.0
    return replace(trial, operations=trial.operations * max(1 - done, 0.01))


def _to_go(guess: TimePredictions, left: Sequence[Trial], total: float | None, slots: int | None) -> float | None:
    """Return the seconds that trials take on slots: at least those of the longest, and the start of a process each."""
    known = [one for trial in left if (one := guess.seconds(trial)) is not None]
    if total is None or slots is None:
        return None
    return max(total / slots, *known) + guess.start if known else 0.0


def _total(trials: Iterable[Trial], share: Mapping[str, float], cost: Callable[[Trial], float | None]) -> float | None:
    """Return the sum of a cost of those trials that are expected to run; None if one is not known."""
    costs = [(share[trial.trial_id], cost(trial)) for trial in trials]
    known = [part * one for part, one in costs if one is not None]
    return sum(known, 0.0) if len(known) == len(costs) else None


def spent(plan: Plan, standing: Standing) -> spending.Spent:
    """Return what the plan's trials have cost so far, as far as its budget asks."""
    return spending.spent(plan.config.budget, standing, plan.every.keys(), JournalStore(plan.config.folder).read)


@dataclass(frozen=True)
class RowStatus:
    """A row of the grid."""

    block: str = key("name of the row in the grid's file")
    label: str = key("its printed name")
    counts: Mapping[str, int] = key("state, lower case -> number of trials; missing: they cannot run here")


@dataclass(frozen=True)
class TrialStatus(TrialRecord):
    """A trial of the grid. If it cannot run here, its state is "missing"; its error may be why its row was stopped."""

    attempts: int = key("attempts started, ever")
    node: str = key("host of the last attempt")
    other_code: bool = key("whether it was measured with other code than today's")


@dataclass(frozen=True)
class NodeStatus:
    """A machine that has taken part in the sweep."""

    node: str = key("its name")
    running: int = key("trials that run there now")
    ended: int = key("trials whose last attempt has ended there")


@dataclass(frozen=True)
class SweepStatus:
    """A sweep."""

    grid: str = key("name of the grid")
    state_dir: str = key("state folder")
    driver: str | None = key("the process that runs it, null if none does")
    counts: Mapping[str, int] = key("state, lower case -> number of trials")
    rows: Sequence[RowStatus] = key("the grid's rows; several can share a trial")
    nodes: Sequence[NodeStatus] = key("the machines of the sweep")
    running: Sequence[LiveRun] = key("the trials that run now")
    stopped: Mapping[str, int] = key("why a row was stopped -> number of its trials that wait for the next run")
    waiting: Mapping[str, int] = key("reason -> number of trials that no node can take now")
    tokens_per_second: float | None = key("forwarded tokens, mean since the driver started; null if not running")
    seconds_left: float | None = key("null if not running, or not known yet")
    trials: Sequence[TrialStatus] = key("all trials, in the grid's order")
    earlier: Sequence[EarlierTrial] = key("finished trials of the folder that no command shows: made by other versions")


def status_facts(plan: Plan) -> SweepStatus:
    """Return the facts of a plan's sweep, from the ledger and the driver's last note."""
    folder = plan.config.folder
    standing, driver = read_standing(folder), driver_of(folder)
    live = read_live(folder) if driver else None
    runs = [run for run in live["running"] if run.trial_id in plan.every] if live else []
    if live and live["running"] and not runs:
        driver, live = "", None  # the driver is another grid's
    states = {trial_id: _state(trial_id, plan, standing, bool(driver)) for trial_id in plan.every}
    late = time.time() - live["time"] if live else 0.0
    running = [replace(run, seconds=run.seconds + late, silent=run.silent + late) for run in runs]
    return SweepStatus(
        grid=plan.name,
        state_dir=str(folder),
        driver=driver or None,
        counts=_counts(list(states.values())),
        rows=[
            RowStatus(block, plan.grid.label(block), _counts([states[i] for i in _ids(plan, block)]))
            for block in plan.grid.blocks
        ],
        nodes=_nodes(plan, standing, running),
        running=running,
        stopped=Counter(standing.held[trial_id] for trial_id in plan.every if trial_id in standing.held),
        waiting=live["waiting"] if live else {},
        tokens_per_second=live.get("tokens_per_second") if live else None,
        seconds_left=live["eta_seconds"] if live else None,
        trials=[_trial(trial_id, states[trial_id], plan, standing) for trial_id in plan.every],
        earlier=listed(plan, standing),
    )


def _ids(plan: Plan, block: str) -> list[str]:
    return list(dict.fromkeys(cell.trial_id for cell in plan.cells if cell.block == block))


def _state(trial_id: str, plan: Plan, standing: Standing, running: bool) -> str:
    state = standing.state(trial_id)
    if state in (TrialState.CANCELLED, TrialState.PAUSED) or (state is TrialState.RUNNING and not running):
        state = TrialState.PENDING
    return MISSING if trial_id in plan.reasons and state is TrialState.PENDING else state.value.lower()


def _counts(states: Sequence[str]) -> dict[str, int]:
    counts = Counter(states)
    return {state: counts[state] for state in (*(s.value.lower() for s in TrialState), MISSING) if counts[state]}


def _nodes(plan: Plan, standing: Standing, running: Sequence[LiveRun]) -> list[NodeStatus]:
    now = Counter(run.node for run in running)
    ended = Counter(standing.nodes[i] for i in plan.every if i in standing.nodes and i in standing.outcomes)
    return [NodeStatus(node, now[node], ended[node]) for node in sorted({*now, *ended})]


def _trial(trial_id: str, state: str, plan: Plan, standing: Standing) -> TrialStatus:
    trial = plan.every[trial_id]
    facts = recorded(trial, standing)
    lost = "lost" if state == TrialState.LOST.value.lower() else ""
    return TrialStatus(
        **{**facts, "state": state, "error": facts["error"] or lost or standing.held.get(trial_id, "")},
        attempts=standing.attempts.get(trial_id, 0),
        node=standing.nodes.get(trial_id, ""),
        other_code=readout.other_code(trial, standing.outcomes.get(trial_id)),
    )


@dataclass(frozen=True)
class Attempt:
    """An attempt at a trial."""

    node: str = key("where it ran")
    device: str = key("device profile, and the runtime if it is not torch")
    from_step: int = key("steps that were done before")


@dataclass(frozen=True)
class DevEvaluation:
    """An evaluation of a trial."""

    split: str = key("dev, or test with the selected weights")
    step: int = key("step whose weights were evaluated")
    loss: float = key("mean loss")
    metric: float = key("the task's first metric, in its recorded unit (accuracy: a fraction)")


@dataclass(frozen=True)
class TrialFacts(TrialRecord):
    """One trial."""

    started: int = key("attempts started, ever")
    step: int = key("steps in its journal")
    steps: int = key("steps in all")
    caveats: Sequence[str] = key("how the sweep differs from the grid as written")
    differs: Mapping[str, Any] = key("settings in which trials of the grid differ -> this trial's value")
    attempts: Sequence[Attempt] = key("the attempts that a node has reported")
    evaluations: Sequence[DevEvaluation] = key("by split and step")
    unmeasured: Mapping[str, str] = key("how names of metrics begin that could not be measured -> the reason")
    other_code: bool = key("whether it was measured with other code than today's")
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
    (trial_id,) = matching
    trial = every[trial_id]
    events = JournalStore(plan.config.folder).read(trial_id, ended=standing.has_result(trial_id))
    return described_trial(plan, standing, trial, events, differing([*plan.every.values(), trial]))


def differing(trials: Iterable[Trial]) -> frozenset[str]:
    """Return the names of the settings that do not have one value in all trials. Cost: reads every part once."""
    absent, found = object(), set[str]()
    configs = [parts_of(trial.config) for trial in trials]
    for part in {name: None for config in configs for name in config}:
        objects = {id(one): one for one in (config.get(part, absent) for config in configs)}
        first, *others = ({} if one is absent else flat({part: write(one)}) for one in objects.values())
        found |= {name for one in others for name in {*one, *first} if one.get(name, absent) != first.get(name, absent)}
    return frozenset(found)


def described_trial(
    plan: Plan, standing: Standing, trial: Trial, events: Sequence[Event], names: Collection[str]
) -> TrialFacts:
    """Return the facts of a trial from its journal; names: of the settings in which trials of the grid differ."""
    ended = outcome(events)
    ended_so = {"error": ended.error, "metrics": ended.metrics} if ended else {"error": "", "metrics": {}}
    configuration = trial.config.to_json()
    return TrialFacts(
        **{**recorded(trial, standing), "grid": plan.name, **ended_so},
        started=standing.attempts.get(trial.trial_id, 0),
        step=last_step(events),
        steps=trial.steps,
        caveats=plan.caveats,
        differs={name: value for name, value in flat(configuration).items() if name in names},
        attempts=[Attempt(*place) for place in places(events)],
        evaluations=[
            DevEvaluation(split, step, scores.loss, scores.metric)
            for (split, step), scores in sorted(evals(events).items())
        ],
        unmeasured=ended.unmeasured if ended else {},
        other_code=readout.other_code(trial, standing.outcomes.get(trial.trial_id)),
        traceback=ended.traceback if ended else "",
        configuration=configuration,
    )
