"""The output of `run`: a live view of its progress on a terminal, plain lines anywhere else, then the tables."""

from __future__ import annotations

import contextlib
import math
import shlex
import time
from collections.abc import Callable

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from zo_sweeps.cli.browse import table_width
from zo_sweeps.cli.text import counted, say
from zo_sweeps.core.trial import Outcome, Trial, TrialState
from zo_sweeps.core.units import duration
from zo_sweeps.methods.metric import Metric, Metrics
from zo_sweeps.plan.build import Plan
from zo_sweeps.schedule.snapshot import Running, Snapshot
from zo_sweeps.session.session import ProgressDisplay, Result, View
from zo_sweeps.tables import to_text

STATUS_SECONDS = 15.0
ROWS = 8
TROUBLE = (TrialState.DIVERGED, TrialState.OUT_OF_MEMORY, TrialState.FAILED, TrialState.LOST)


class ProgressView:
    """A context manager; pass `update` to `schedule.snapshot.Watch` and `say` to the sweep.

    Args:
        console: defaults to standard output. A terminal gets the live view, anything else one line per trial that ends
            and a status line at most every STATUS_SECONDS.
    """

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(highlight=False)
        self._last: Snapshot | None = None
        self._printed = time.monotonic()
        self._live = (
            Live(console=self._console, get_renderable=self._render, refresh_per_second=2, transient=True)
            if self._console.is_terminal
            else None
        )

    def __enter__(self) -> ProgressView:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()

    def update(self, snapshot: Snapshot) -> None:
        """Show the sweep's progress."""
        self._last = snapshot
        if snapshot.ended:
            trial, outcome = snapshot.ended
            if self._live is None or outcome.state.is_retryable:  # on a terminal only failures stay in view
                eta = "" if self._live else f"  ETA {duration(snapshot.eta_seconds)}"
                self.say(f"[{_terminal(snapshot)}/{snapshot.total}] {ended_line(trial, outcome)}{eta}")
        elif self._live is None and time.monotonic() - self._printed >= STATUS_SECONDS:
            self.say(status_line(snapshot))

    def say(self, text: str) -> None:
        """Print a line (above the live view)."""
        self._printed = time.monotonic()
        self._console.print(Text(text), soft_wrap=True)

    def _render(self) -> RenderableType:
        if self._last is None:
            return Text("starting…", style="dim")
        bar = Table.grid(padding=(0, 1))
        done = self._last.cost_done / (self._last.cost_total or 1.0)
        bar.add_row(ProgressBar(total=1.0, completed=done, width=32), f"{done:4.0%}", status_line(self._last))
        rows = Table.grid(padding=(0, 2))
        for run in self._last.running[:ROWS]:
            label = Text(run.trial.label or run.trial.trial_id)
            rows.add_row(Text(f"  {steps(run)}{dev(run)}"), label, Text(run.node, style="dim"))
        hidden = len(self._last.running) - ROWS
        more = [Text(f"  and {hidden} more", style="dim")] if hidden > 0 else []
        waits = [Text(f"  {n} waiting: {reason}", style="dim") for reason, n in self._last.waiting.items()]
        return Group(bar, rows, *more, *waits)


def status_line(snapshot: Snapshot) -> str:
    """Return one line with the trials done, running and failed, and the ETA."""
    counts = snapshot.counts
    parts = [f"{_terminal(snapshot)}/{snapshot.total} trials", f"{len(snapshot.running)} running"]
    parts += [f"{counts[state]} {state.value.lower()}" for state in TROUBLE if state in counts]
    if waiting := sum(snapshot.waiting.values()):
        parts.append(f"{waiting} waiting")
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


def steps(run: Running) -> str:
    """Return an attempt's progress in steps: "120/1000"."""
    return f"{run.step}/{run.trial.steps}" if run.trial.steps else "evaluating"


def dev(run: Running) -> str:
    """Return the scores of an attempt's last evaluation: "  dev 62.5, loss 0.6931"; "" before the first."""
    if run.dev is None:
        return ""
    score = _metric(run.trial).printed(run.dev.metric) if math.isfinite(run.dev.metric) else "–"
    return f"  dev {score}, loss {format(run.dev.loss, '.4g') if math.isfinite(run.dev.loss) else '–'}"


def _terminal(snapshot: Snapshot) -> int:
    return sum(n for state, n in snapshot.counts.items() if state.is_result or state.is_retryable)


EXIT = {"FINISHED": 0, "FAILED": 1, "KILLED": 130}  # MLflow status of the sweep -> exit status


class Terminal(View):
    """A view that prints: live or in plain lines while trials run, then the tables and the next command to run."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def say(self, text: str) -> None:
        say(self._console, text)

    def progress(self) -> contextlib.AbstractContextManager[ProgressDisplay]:
        return ProgressView(self._console)

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
        self.say(f"results: {result.state_dir}   MLflow: {result.tracking}")
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
    return f"{prefix} ui{state}   or   {prefix} table --format latex{state}"
