"""A sweep from its plan to its tables: state folder, tracking server, executor. Prints nothing: a `View` shows it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zo_sweeps.config.composer import Composer
from zo_sweeps.core.errors import UserError
from zo_sweeps.core.fingerprint import fingerprint
from zo_sweeps.core.trial import TrialState
from zo_sweeps.core.units import counted
from zo_sweeps.methods import registry
from zo_sweeps.plan.as_written import beside_written
from zo_sweeps.plan.build import Plan, build
from zo_sweeps.plan.order import ORDERS
from zo_sweeps.record.journal import JournalStore
from zo_sweeps.record.sweep_book import Command, SweepInfo, remember
from zo_sweeps.results import past_sweeps
from zo_sweeps.results import tables as readout
from zo_sweeps.results.facts import plan_facts, spent
from zo_sweeps.schedule.halving import Confirmation, Rungs, groups, searches
from zo_sweeps.schedule.ledger import Ledger, Standing, read_standing
from zo_sweeps.schedule.observer import OneCause, Remarks, Waits
from zo_sweeps.schedule.prediction import OPERATIONS, TimePredictions, predictions, slots_here, this_device
from zo_sweeps.schedule.snapshot import LiveFile, Snapshot, Summary, Watch
from zo_sweeps.schedule.spending import Caps
from zo_sweeps.schedule.sweep import Sweep
from zo_sweeps.schedule.this_host import crowded, for_this_host
from zo_sweeps.session.tracking import tracking
from zo_sweeps.tables import Table, to_csv, to_latex, to_markdown

STORE_SECONDS = 60.0  # time allowed for an unreachable MLflow store to come back, and for the final upload
IDLE_SECONDS = 5.0  # the same, for a named server and a sweep with nothing left to run
PROBED_SECONDS = 60.0  # of a sweep on the core of reference, from which ten for a probe are little


@dataclass(frozen=True)
class Result:
    """A sweep that has ended.

    tracking: the MLflow server's address, or the folder of the state folder's own store; "" without MLflow.
    """

    tables: Sequence[Table]
    summary: Summary
    seconds: float
    state_dir: Path
    tracking: str

    @property
    def status(self) -> str:
        """The sweep's end as an MLflow run status: FINISHED, FAILED or KILLED."""
        summary = self.summary
        if summary.interrupted or summary.over:
            return "KILLED"
        bad = sum(summary.counts.get(state, 0) for state in (TrialState.FAILED, TrialState.LOST, TrialState.PENDING))
        failed = bad or summary.stopped or summary.stopped_rows or summary.waiting or self.no_success
        return "FAILED" if failed else "FINISHED"

    @property
    def no_success(self) -> bool:
        """Whether every trial of the sweep diverged, ran out of memory, or was stopped."""
        ended = {state for state, n in self.summary.counts.items() if n}
        return bool(ended) and ended <= {TrialState.DIVERGED, TrialState.OUT_OF_MEMORY, TrialState.STOPPED}


class View:
    """The display of a sweep. This base class shows nothing; the command line's prints."""

    def say(self, text: str) -> None:
        """Show a line."""

    def progress(self) -> contextlib.AbstractContextManager[View]:
        """Return the display from the first trial to the last."""
        return contextlib.nullcontext(self)

    def update(self, snapshot: Snapshot) -> None:
        """Show the progress of the sweep."""

    def result(self, plan: Plan, result: Result) -> None:
        """Show the result, before the final upload to MLflow."""


def compose(
    grid: str, overrides: Sequence[str], state_dir: str | Path | None, config_dirs: Sequence[str | Path]
) -> tuple[Composer, Command]:
    """Compose a grid as the command line does; return the composer and the equivalent command.

    Raises UserError for anything unknown, misplaced or of the wrong type.
    """
    words = [f"+grid={grid}", *overrides, *([f"state_dir={state_dir}"] if state_dir is not None else [])]
    command = Command.of(words, tuple(map(str, config_dirs)))
    return Composer(words, command.config_dirs), command


def plan_here(composer: Composer) -> Plan:
    """Return the plan of the composed grid for this host.

    Raises UserError as `build` does, for tables and figures that could not be made when the trials have run, and for
    hooks that could not be called.
    """
    plan = build(composer)
    tracking().check_hooks(composer.run.on)
    readout.check(plan, composer)
    if plan.grid.figures and "figures" in registry.offered("part"):
        _part("figures")(plan, composer)
    return for_this_host(plan)


def run(
    plan: Plan, composer: Composer, command: Command, view: View, *, order: str = "grid", rerun: Sequence[str] = ()
) -> Result:
    """Run the trials that have no result yet, send the tables to MLflow, and call the user's hooks (`on`).

    Args:
        plan: of the trials that can run here; see `schedule.this_host.for_this_host`.
        command: stored in the state folder, for `recall`.
        order: one of `plan.order.ORDERS`.
        rerun: states and trial_ids to rerun; see `Sweep`.

    Raises UserError if the plan cannot hold a cap of its budget, as predicted, and `budget.partial` does not allow a
    part of it; if the state folder is not writable, the executor not available, or a tracker not installed. Raises
    HeadLostError if the cluster's head goes away: another process can then resume the sweep.
    """
    trackers, named = tracking(), plan.config.tracking
    trackers.check(named)
    if plan.config.budget.has_cap and not plan.config.budget.partial:
        if plan.config.budget.hours is not None:  # with a prediction, if there can be one
            predictions_of(plan, read_standing(plan.config.folder), view)
        if over := plan_facts(plan).over_budget:
            raise UserError("; ".join(over))
    state_dir, plan = plan.config.folder.resolve(), beside_written(plan, composer)
    sweep_id = fingerprint([plan.name, sorted(plan.every)])  # of these alone: a resumed sweep continues its MLflow run
    executor = plan.config.executor
    info = _info(plan, composer, sweep_id, command)
    with trackers.hooks(plan.config.on, plan.name, state_dir, view.say, len(plan.reasons)) as called:
        with (
            contextlib.closing(JournalStore(state_dir)) as store,
            Ledger(state_dir, sweep_id) as ledger,
            contextlib.closing(trackers.mirror(named, plan.name, info, state_dir, view.say, STORE_SECONDS)) as mirror,
            trackers.others(named, plan.name, info, plan.trials, state_dir, view.say) as others,
        ):
            for trial in plan.trials:
                mirror.register(trial)
            for line in (*composer.notes, *past_sweeps.since(plan, command), *crowded(plan), *trackers.notes):
                view.say(f"note: {line}")
            past_sweeps.save(plan, composer, state_dir, sweep_id)
            remember(state_dir, sweep_id, plan.name, command)
            began, live = time.monotonic(), LiveFile(state_dir)
            with view.progress() as progress:

                def grown(trial_id: str) -> None:
                    for notify in (mirror.notify, others):
                        notify(trial_id)

                def update(snapshot: Snapshot) -> None:
                    for shown in (progress, live, called):
                        shown.update(snapshot)

                summary = Sweep(
                    plan.trials,
                    executor.build(state_dir, plan.config.cluster.address),
                    store,
                    ledger,
                    (
                        Caps(plan.config.budget, spent(plan, ledger)),
                        OneCause({block: plan.grid.label(block) for block in plan.grid.blocks}),
                        Remarks(),
                        Waits(),
                        Watch(update, predictions_of(plan, ledger, view)),
                        Rungs(groups(plan)),
                        Confirmation(searches(plan)),
                    ),
                    rerun=rerun,
                    rounds=ORDERS[order](plan, ledger.outcomes),
                    options=executor,
                    on_events=grown,
                    say=progress.say,
                ).run()
            seconds = time.monotonic() - began
            tables = readout.tables(plan, composer, ledger)
            result = Result(tables, summary, seconds, state_dir, mirror.place)
            view.result(plan, result)
            files = {"table.tex": to_latex(*tables), "table.csv": to_csv(*tables)}
            try:
                files["report.html"] = _part("report")(plan, composer, ledger, str(command))
            except UserError as error:
                view.say(f"no report: {error}")
            mirror.finish(to_markdown(*tables), files, _aggregates(tables), result.status)
            idle = named.uri and not summary.ran  # a named server that does not answer is not waited for
            # Whatever the store misses stays in the journals.
            if left := mirror.drain(min(STORE_SECONDS, IDLE_SECONDS) if idle else STORE_SECONDS):
                view.say(f"MLflow has not taken {counted(left, 'trial')} yet; the next run of this command sends them")
        called.ended(result.status, result.summary.counts)
    return result


def predictions_of(plan: Plan, ledger: Standing, view: View) -> TimePredictions:
    """Return the predictions of a sweep's trials; this host is probed first if they will take long, and it was not."""
    made, here = predictions(plan, ledger), this_device(plan)
    left = sum(trial.operations for trial in plan.trials if not ledger.has_result(trial.trial_id))
    if here is None or made.speed or made.finished:
        return made
    if left / OPERATIONS < PROBED_SECONDS * slots_here(plan):
        return made
    view.say("measuring this machine, once: about ten seconds")
    try:
        probe_this_host(plan)
    except UserError as error:  # a sweep without predictions is worth having
        view.say(f"note: {error}")
    return predictions(plan, ledger)


def probe_this_host(plan: Plan) -> None:
    """Measure this host's speed with the threads of the plan's trials, and keep it. Cost: about ten seconds.

    Raises UserError if the probe fails, or if the nodes of a cluster run the trials.
    """
    from zo_sweeps.run.measure_speed import measure

    if plan.config.cluster.address:
        raise UserError("a probe is of this machine, and the nodes of a cluster run the trials", fix="omit --probe")
    measure(plan.config.executor.cpus_per_trial)


def _part(name: str) -> Callable[..., Any]:
    """Return a function that a package offers. Raises UserError, with what to install, without the package."""
    if error := registry.absent("part", name):
        raise error
    part: Callable[..., Any] = registry.load(registry.offered("part")[name])
    return part


def _info(plan: Plan, composer: Composer, sweep_id: str, command: Command) -> SweepInfo:
    """Return what trackers show of the sweep itself."""
    import yaml

    whole = {**composer.trial, **plan.config.to_json()}
    text = yaml.safe_dump(whole, sort_keys=False, allow_unicode=True)
    return SweepInfo(sweep_id=sweep_id, grid=plan.name, title=plan.title, command=str(command), config_yaml=text)


def _aggregates(tables: Sequence[Table]) -> Mapping[str, float]:
    """Return `table/row/column/mean` and `/std` of every cell that has a value, as metrics of the parent run."""
    values = {}
    for table in tables:
        for (block, column), cell in table.cells.items():
            for name, value in (("mean", cell.mean), ("std", cell.std)):
                if value is not None:
                    values[f"{table.spec.name}/{block}/{column}/{name}"] = value
    return values
