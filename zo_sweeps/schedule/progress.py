"""The progress of a sweep on the screen: a live view on a terminal, plain lines anywhere else."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from zo_sweeps.core.trial import Outcome, Trial, TrialState
from zo_sweeps.core.units import duration
from zo_sweeps.methods.metric import Metric, Metrics
from zo_sweeps.schedule.snapshot import Running, Snapshot

STATUS_SECONDS = 15.0
ROWS = 8
TROUBLE = (TrialState.DIVERGED, TrialState.OUT_OF_MEMORY, TrialState.FAILED, TrialState.LOST)


class ProgressView:
    """A context manager; pass `update` to the sweep as `on_update` and `say` as `say`.

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
