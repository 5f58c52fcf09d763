"""The facts behind `status`: how far a sweep is, what runs where, and what failed."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from zo_sweeps.core.document import key
from zo_sweeps.core.trial import TrialState
from zo_sweeps.plan.build import Plan
from zo_sweeps.results import tables as readout
from zo_sweeps.results.past_trials import EarlierTrial, listed
from zo_sweeps.schedule.ledger import Standing, driver_of, read_standing
from zo_sweeps.schedule.snapshot import LiveRun, read_live

MISSING = "missing"


@dataclass(frozen=True)
class RowStatus:
    """A row of the grid."""

    block: str = key("name of the row in the grid's file")
    label: str = key("its printed name")
    counts: Mapping[str, int] = key("state, lower case -> number of trials; missing: they cannot run here")


@dataclass(frozen=True)
class TrialStatus:
    """A trial of the grid."""

    trial_id: str = key("hash of everything that changes its result")
    label: str = key("its printed name")
    state: str = key("its state, lower case; missing: it cannot run here")
    attempts: int = key("attempts started, ever")
    node: str = key("host of the last attempt")
    error: str = key("one line on a failure, or on why the sweep stopped the trial's row before it")
    other_code: bool = key("whether it was measured with other code than today's")
    metrics: Mapping[str, float] = key("measurements, in fractions, bytes, seconds and joules, under MLflow's names")


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
    states = {trial_id: _state(trial_id, plan, standing, bool(driver)) for trial_id in plan.every}
    live = read_live(folder) if driver else None
    late = time.time() - live["time"] if live else 0.0
    running = [replace(run, seconds=run.seconds + late) for run in live["running"]] if live else []
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
    state = standing.states.get(trial_id, TrialState.PENDING)
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
    outcome = standing.outcomes.get(trial_id)
    lost = "lost" if state == TrialState.LOST.value.lower() else ""
    return TrialStatus(
        trial_id=trial_id,
        label=plan.every[trial_id].label,
        state=state,
        attempts=standing.attempts.get(trial_id, 0),
        node=standing.nodes.get(trial_id, ""),
        error=(outcome.error if outcome else "") or lost or standing.held.get(trial_id, ""),
        other_code=readout.other_code(plan.every[trial_id], outcome),
        metrics=outcome.metrics if outcome else {},
    )
