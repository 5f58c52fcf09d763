"""The command that runs a grid: what it prints, live on a terminal."""

from __future__ import annotations

import contextlib
import math
import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from zo_sweeps.cli.browse import table_width
from zo_sweeps.cli.parser import compose, grid_parser, parse
from zo_sweeps.cli.status import show_summary
from zo_sweeps.cli.text import console, say
from zo_sweeps.core.trial import Outcome, Trial, TrialState
from zo_sweeps.core.units import counted, duration
from zo_sweeps.methods import registry
from zo_sweeps.methods.metric import Metric, Metrics
from zo_sweeps.plan.build import Plan
from zo_sweeps.results.facts import plan_facts
from zo_sweeps.schedule.snapshot import Running, Snapshot
from zo_sweeps.schedule.sweep import check_rerun
from zo_sweeps.schedule.this_host import must_have_work
from zo_sweeps.session import session
from zo_sweeps.session.session import Result, View
from zo_sweeps.tables import to_text

if TYPE_CHECKING:
    from zo_sweeps.config.composer import Composer
    from zo_sweeps.record.sweep_book import Command

STATUS_SECONDS = 15.0
ROWS = 8
TROUBLE = (TrialState.DIVERGED, TrialState.OUT_OF_MEMORY, TrialState.FAILED, TrialState.LOST)
EXIT = {"FINISHED": 0, "FAILED": 1, "KILLED": 130}  # MLflow status of the sweep -> exit status


def run(given: Sequence[str]) -> int:
    """Run a grid: plan it, run the trials that have no result yet, print its tables. The default command."""
    parser = grid_parser("run", run.__doc__)
    text = (
        "rerun trials that ended as failed, lost, diverged, out_of_memory, stopped or succeeded, or one trial by its "
    )
    text += "id; earlier results of theirs are set aside"
    parser.add_argument("--rerun", action="append", default=[], metavar="STATE|TRIAL_ID", help=text)
    parser.add_order()
    options = parse(parser, given)
    composer, command = compose(options)
    address, supervisor = composer.run.cluster.address, registry.offered("part").get("supervisor")
    if not (address and supervisor):  # without the package that has it nothing joins a cluster, as the plan says
        return _sweep(composer, command, options.order, options.rerun)

    # --rerun takes effect when the sweep begins, and not once more after the head was away.
    again = lambda first: _sweep(composer, command, options.order, options.rerun if first else [])
    supervise: Callable[[str, Callable[[bool], int]], int] = registry.load(supervisor)
    return supervise(address, again)


def _sweep(composer: Composer, command: Command, order: str, rerun: Sequence[str]) -> int:
    to = console()
    planned = session.plan_here(composer)
    must_have_work(planned)
    check_rerun(rerun, planned.every)
    show_summary(plan_facts(planned, order), to)
    result = session.run(planned, composer, command, Terminal(to), order=order, rerun=rerun)
    return EXIT[result.status]


class Terminal(View):
    """A view that prints: live or in plain lines while trials run, then the tables and the next command to run."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def say(self, text: str) -> None:
        say(self._console, text)

    @contextlib.contextmanager
    def progress(self) -> Iterator[View]:
        view, to = ProgressView(self._console), self._console
        live = Live(console=to, get_renderable=view.page, refresh_per_second=2, transient=True)
        with live if to.is_terminal else contextlib.nullcontext():
            yield view

    def result(self, plan: Plan, result: Result) -> None:
        if result.tables:
            text = to_text(*result.tables, width=table_width(self._console))
            self._console.print(f"\n{text}", markup=False, soft_wrap=True)
        summary = result.summary
        counts = ", ".join(f"{n} {state.value.lower()}" for state, n in sorted(summary.counts.items()) if n)
        self.say(
            f"\n{plan.name}: {counts or 'nothing to do'}; {summary.ran} run now in {duration(result.seconds)}, "
            f"{summary.already_done} already done before"
        )
        if plan.reasons:
            self.say(f"not run here: {counted(len(plan.reasons), 'trial')}, for the reasons above the first trial")
        for why, count in summary.waiting.items():
            self.say(f"waiting ({counted(count, 'trial')}): {why}")
        for why in filter(None, [summary.stopped, *summary.stopped_rows.values()]):
            self.say(f"stopped: {why}")
        if summary.over:
            self.say(f"stopped by {summary.over}")
        self.say(f"results: {result.state_dir}" + (f"   MLflow: {result.tracking}" if result.tracking else ""))
        self.say(f"next: {_next(plan, result)}")


def _next(plan: Plan, result: Result) -> str:
    prefix, folder, counts = "python -m zo_sweeps", plan.config.state_dir, result.summary.counts
    state = f" state_dir={shlex.quote(str(folder))}" if folder != "zo_runs" else ""
    if result.summary.over:
        cap = result.summary.over.partition("=")[0]
        return f"the same command with a larger {cap} goes on where this one stopped"
    if result.summary.interrupted or any(counts.get(s, 0) for s in (TrialState.PENDING, TrialState.RUNNING)):
        return "the same command goes on where this one stopped"
    if any(counts.get(s, 0) for s in (TrialState.FAILED, TrialState.LOST)):
        return f"{prefix} status --failed{state}   then the same command with --rerun failed"
    if result.no_success:
        return "no trial succeeded; the same command with other settings, such as a lower update.lr or train.batch"
    page = f"{prefix} ui{state}   or   " if result.tracking else ""
    return f"{page}{prefix} table --format latex{state}"


class ProgressView(View):
    """The display while trials run: on a terminal the page of a live view, with a line per trial that failed above it;
    anywhere else a line per trial that ends, and a status line at most every STATUS_SECONDS.
    """

    def __init__(self, console: Console) -> None:
        self._console, self._printed = console, time.monotonic()
        self._last: Snapshot | None = None

    def update(self, snapshot: Snapshot) -> None:
        self._last, live = snapshot, self._console.is_terminal
        if snapshot.ended:
            trial, outcome = snapshot.ended
            if not live or outcome.state.is_retryable:
                eta = "" if live else f"  ETA {duration(snapshot.eta_seconds)}"
                self.say(f"[{_ended(snapshot)}/{snapshot.total}] {ended_line(trial, outcome)}{eta}")
        elif not live and time.monotonic() - self._printed >= STATUS_SECONDS:
            self.say(status_line(snapshot))

    def say(self, text: str) -> None:
        self._printed = time.monotonic()
        self._console.print(Text(text), soft_wrap=True)

    def page(self) -> RenderableType:
        """Return the live view: a bar, the status line, what runs and what waits."""
        if self._last is None:
            return Text("starting…", style="dim")
        bar = Table.grid(padding=(0, 1))
        done = self._last.cost_done / (self._last.cost_total or 1.0)
        bar.add_row(ProgressBar(total=1.0, completed=done, width=32), f"{done:4.0%}", status_line(self._last))
        rows = Table.grid(padding=(0, 2))
        for run in list(self._last.running)[:ROWS]:  # the list at once: the sweep's thread goes on
            label = Text(run.trial.label or run.trial.trial_id)
            steps = f"{run.step}/{run.trial.steps}" if run.trial.steps else "evaluating"
            stalled = "  stalled" if run.stalled else ""
            rows.add_row(Text(f"  {steps}{_dev(run)}{stalled}"), label, Text(run.node, style="dim"))
        hidden = len(self._last.running) - ROWS
        more = [Text(f"  and {hidden} more", style="dim")] if hidden > 0 else []
        waits = [Text(f"  {n} waiting: {reason}", style="dim") for reason, n in self._last.waiting.items()]
        return Group(bar, rows, *more, *waits)


def status_line(snapshot: Snapshot) -> str:
    """Return one line with the trials done, running and failed, and the ETA."""
    counts = snapshot.counts
    parts = [f"{_ended(snapshot)}/{snapshot.total} trials", f"{len(snapshot.running)} running"]
    parts += [f"{counts[state]} {state.value.lower()}" for state in TROUBLE if state in counts]
    if waiting := sum(snapshot.waiting.values()):
        parts.append(f"{waiting} waiting")
    if stalled := sum(run.stalled for run in list(snapshot.running)):
        parts.append(f"{stalled} stalled")
    return ", ".join([*parts, f"ETA {duration(snapshot.eta_seconds)}"])


def ended_line(trial: Trial, outcome: Outcome) -> str:
    """Return one line on a trial's end: state, label, its metrics or error, and its duration."""
    shown: list[str] = [f"{outcome.state.value:<9}", trial.label or trial.trial_id]
    printed = _metric(trial).printed
    measured: dict[str, Callable[[float], str]] = {
        "dev/metric": lambda x: f"dev {printed(x)}",
        "test/metric": lambda x: f"test {printed(x)}",
        "wall_seconds": duration,
    }
    shown += [form(outcome.metrics[name]) for name, form in measured.items() if name in outcome.metrics]
    return "  ".join([*shown, outcome.error] if outcome.error else shown)


def _metric(trial: Trial) -> Metric:
    """Return the first metric of the trial's task."""
    return Metrics.read(trial.config.to_json().get("task", {}).get("metric", "accuracy"), "task.metric")[0]


def _dev(run: Running) -> str:
    """Return the scores of an attempt's last evaluation: "  dev 62.5, loss 0.6931"; "" before the first."""
    if run.dev is None:
        return ""
    score = _metric(run.trial).printed(run.dev.metric) if math.isfinite(run.dev.metric) else "–"
    return f"  dev {score}, loss {format(run.dev.loss, '.4g') if math.isfinite(run.dev.loss) else '–'}"


def _ended(snapshot: Snapshot) -> int:
    return sum(n for state, n in snapshot.counts.items() if state.is_result or state.is_retryable)
