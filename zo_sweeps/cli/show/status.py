"""The output of `status`."""

from __future__ import annotations

import json

from rich.console import Console

from zo_sweeps.cli.show.text import counted, listing, say, some
from zo_sweeps.core.trial import TrialState
from zo_sweeps.core.units import count_text, duration, metric_text
from zo_sweeps.results.compare import flat
from zo_sweeps.results.facts.status import SweepStatus, TrialStatus
from zo_sweeps.results.facts.trial import TrialFacts
from zo_sweeps.tables.text_cells import plain

SCORES = ("dev/metric", "test/metric")
LISTED = 40  # trials; of a larger sweep `--trials` lists them


def show_status(sweep: SweepStatus, to: Console, *, failed: bool, trials: bool) -> None:
    """Print counts by row and state, the process that runs the sweep, what runs where, the failures, and the trials.

    Args:
        failed: whether to print the errors of the trials that failed.
        trials: whether to list the trials of a large sweep too.
    """
    show_progress(sweep, to)
    if other := sum(trial.other_code for trial in sweep.trials):
        text = f"{other} measured with other code than today's: --rerun succeeded (or a trial's id) measures again"
        say(to, text)
    if failed:
        for trial in _failures(sweep):
            say(to, f"{trial.trial_id}  {trial.label}: {trial.error}")
    elif bad := _failures(sweep):
        say(to, f"{len(bad)} failed: `status --failed` prints their errors, `status ID` one's traceback")
    if trials or len(sweep.trials) <= LISTED:
        rows = [(trial.trial_id, trial.state, trial.label) for trial in sweep.trials]
        say(to, "")
        listing(to, ("id", "state", "trial"), rows)
    else:
        say(to, f"`status --trials` lists the ids of the {len(sweep.trials)} trials, `status ID` is about one")
    show_earlier(sweep, to)


def show_earlier(sweep: SweepStatus, to: Console) -> None:
    """Print the finished trials of other versions, with their scores and the trial of today that has their settings."""
    if not sweep.earlier:
        return
    rows = []
    for trial in sweep.earlier:
        scores = [f"{name} {metric_text(name, trial.metrics[name])}" for name in SCORES if name in trial.metrics]
        named = trial.label or "unknown"
        label = f"{trial.grid}: {named}" if trial.grid != sweep.grid else named
        rows.append((trial.trial_id, trial.state, label, ", ".join(scores), trial.made_by or "?", trial.like or "–"))
    say(to, "")
    listing(to, ("finished before", "state", "trial", "scores", "made by", "same settings"), rows)
    say(to, "same settings: a trial of today with the same value of every setting that both versions record")


def show_failures(sweep: SweepStatus, to: Console) -> None:
    """Print the failures by their errors, each error once."""
    errors: dict[str, list[str]] = {}
    for trial in _failures(sweep):
        errors.setdefault(trial.error, []).append(trial.trial_id)
    for error, ids in errors.items():
        say(to, f"{counted(len(ids), 'failure')} ({some(ids)}): {error}")


def _failures(sweep: SweepStatus) -> list[TrialStatus]:
    bad = {state.value.lower() for state in TrialState if state.is_retryable}
    return [trial for trial in sweep.trials if trial.state in bad]


def show_progress(sweep: SweepStatus, to: Console) -> None:
    """Print counts by row and state, and what runs where."""
    say(to, f"{sweep.grid} in {sweep.state_dir}: {f'running ({sweep.driver})' if sweep.driver else 'not running'}")
    states = [state for state in sweep.counts if any(state in row.counts for row in sweep.rows)]
    headers = ("row", "trials", *(state.replace("_", " ") for state in states))
    rows = [
        (row.label, str(sum(row.counts.values())), *(str(row.counts.get(state, "·")) for state in states))
        for row in sweep.rows
    ]
    listing(to, headers, rows)
    for why, held in sweep.stopped.items():
        say(to, f"stopped ({counted(held, 'trial')}): {why}")
    if sweep.driver:
        _live(sweep, to)


def _live(sweep: SweepStatus, to: Console) -> None:
    """Print what runs where, what waits and why, the rate, and the time to go."""
    rows = [
        (
            run.label,
            f"{run.step}/{run.steps}" if run.steps else "·",
            run.node,
            str(run.attempt),
            duration(run.seconds),
        )
        for run in sweep.running
    ]
    listing(to, ("running now", "step", "node", "attempt", "for"), rows)
    if len(sweep.nodes) > 1:
        listing(to, ("node", "running", "ended"), [(n.node, str(n.running), str(n.ended)) for n in sweep.nodes])
    for why, waiting in sweep.waiting.items():
        say(to, f"waiting ({counted(waiting, 'trial')}): {why}")
    rate = f", at {count_text(sweep.tokens_per_second)} forwarded tokens per second" if sweep.tokens_per_second else ""
    say(to, f"time to go: {duration(sweep.seconds_left)}{rate}")


def show_trial(trial: TrialFacts, to: Console, *, config: bool) -> None:
    """Print one trial: its state, in which settings it differs, its attempts, evaluations, metrics and traceback.

    Args:
        config: whether to print the whole configuration at the end.
    """
    say(to, f"{trial.trial_id}  {trial.label}")
    say(to, f"state {trial.state}, attempts {trial.started}, step {trial.step}/{trial.steps}")
    if trial.other_code:
        say(to, "measured with other code than today's: --rerun with its id measures it again")
    for number, attempt in enumerate(trial.attempts, 1):
        say(to, f"  attempt {number} on {attempt.node} ({attempt.device}), from step {attempt.from_step}")
    say(to, "")
    title = f"differs in {trial.grid}"
    listing(to, (title, "here"), [(name, plain(value)) for name, value in trial.differs.items()])
    same = len(flat(trial.configuration)) - len(trial.differs)
    say(to, f"{same} other settings are those of every trial of the grid{'' if config else '; --config prints all'}")
    for caveat in trial.caveats:
        say(to, f"note: {caveat}")
    if trial.evaluations:
        say(to, "")
        rows = [
            (f"{one.split} at step {one.step}", f"{one.loss:.4f}", f"{one.metric:.4f}") for one in trial.evaluations
        ]
        listing(to, ("evaluated", "loss", "metric"), rows)
    if trial.metrics:
        say(to, "")
        listing(to, ("measured", ""), [(name, metric_text(name, value)) for name, value in trial.metrics.items()])
    for name, why in trial.unmeasured.items():
        say(to, f"{name} not measured: {why}")
    if trial.error:
        say(to, f"\n{trial.error}\n{trial.traceback}")
    if config:
        say(to, "")
        to.print(
            json.dumps(trial.configuration, indent=1, sort_keys=True, ensure_ascii=False), markup=False, soft_wrap=True
        )
