"""The output of `run`."""

from __future__ import annotations

import contextlib
import shlex

from rich.console import Console

from zo_sweeps.cli.show.result_files import table_width
from zo_sweeps.cli.show.text import counted, say
from zo_sweeps.core.trial import TrialState
from zo_sweeps.core.units import duration
from zo_sweeps.plan.build import Plan
from zo_sweeps.schedule.progress import ProgressView
from zo_sweeps.session.session import Progress, Result, View
from zo_sweeps.tables import to_text

EXIT = {"FINISHED": 0, "FAILED": 1, "KILLED": 130}  # MLflow status of the sweep -> exit status


class Terminal(View):
    """A view that prints: live or in plain lines while trials run, then the tables and the next command to run."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def say(self, text: str) -> None:
        say(self._console, text)

    def progress(self) -> contextlib.AbstractContextManager[Progress]:
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
