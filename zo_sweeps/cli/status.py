"""The command `status`: how far a sweep is, and everything about one of its trials."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Sequence

from rich.console import Console
from rich.live import Live
from rich.text import Text

from zo_sweeps.cli.parser import grid_parser, parse, read, trial_ids
from zo_sweeps.cli.text import console, counted, listing, say, some
from zo_sweeps.core.document import to_text
from zo_sweeps.core.errors import UserError
from zo_sweeps.core.trial import TrialState
from zo_sweeps.core.units import count_text, duration, metric_text
from zo_sweeps.plan.build import Plan
from zo_sweeps.results.compare import flat
from zo_sweeps.results.facts import SweepStatus, TrialFacts, TrialStatus, status_facts, trial_facts
from zo_sweeps.schedule.ledger import driver_of
from zo_sweeps.tables.text_cells import plain

SCORES = ("dev/metric", "test/metric")
LISTED = 40  # trials; of a larger sweep `--trials` lists them
WATCH_SECONDS = 2.0


def status(given: Sequence[str]) -> int:
    """Show the progress of a sweep and list its trials; with a trial's id, everything about that trial."""
    parser = grid_parser("status", status.__doc__)
    parser.add_argument("--failed", action="store_true", help="list the trials that failed, with their errors")
    parser.add_argument("--trials", action="store_true", help="list the trials of a large sweep too")
    parser.add_argument("--watch", action="store_true", help="follow a running sweep to its end")
    parser.add_argument("--config", action="store_true", help="with an id: the trial's whole configuration")
    parser.add_json({"": SweepStatus, "with an id": TrialFacts})
    options = parse(parser, given)
    ids = trial_ids(options)
    if options.watch and (ids or options.json):
        raise UserError("--watch follows a whole sweep, as text", fix="leave out the id and --json")
    planned, to = read(options).plan, console()
    if options.watch:
        watch(planned, to, failed=options.failed, trials=options.trials)
    elif options.json:
        print(to_text(trial_facts(planned, ids[0]) if ids else status_facts(planned)))
    elif ids:
        show_trial(trial_facts(planned, ids[0]), to, config=options.config)
    else:
        show_status(status_facts(planned), to, failed=options.failed, trials=options.trials)
    return 0


def watch(planned: Plan, to: Console, *, failed: bool, trials: bool) -> None:
    """Show a sweep on a page of its own until it ends or Ctrl-C; then print its status as `show_status` does.

    The terminal is as before afterwards. Without one, the status is printed at the beginning and at the end.
    """
    folder = planned.config.folder
    if not to.is_terminal and driver_of(folder):
        show_progress(status_facts(planned), to)
    with Live(console=to, auto_refresh=False, screen=to.is_terminal) as live:
        while driver_of(folder):
            if to.is_terminal:
                live.update(_page(status_facts(planned), to), refresh=True)
            time.sleep(WATCH_SECONDS)
    show_status(status_facts(planned), to, failed=failed, trials=trials)


def _page(sweep: SweepStatus, to: Console) -> Text:
    """Return the page: at most as high as the terminal."""
    page = io.StringIO()
    shown = Console(file=page, width=to.width, force_terminal=True, color_system="standard", highlight=False)
    show_progress(sweep, shown)
    errors: dict[str, list[str]] = {}
    for trial in _failures(sweep):
        errors.setdefault(trial.error, []).append(trial.trial_id)
    for error, ids in errors.items():
        say(shown, f"{counted(len(ids), 'failure')} ({some(ids)}): {error}")
    lines = [*page.getvalue().splitlines()[: to.height - 1], "Ctrl-C leaves this page; the sweep goes on"]
    return Text.from_ansi("\n".join(lines))


def show_status(sweep: SweepStatus, to: Console, *, failed: bool, trials: bool) -> None:
    """Print counts by row and state, the driver, what runs where, failures (`failed`: their errors), and the trials."""
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
    _show_earlier(sweep, to)


def _show_earlier(sweep: SweepStatus, to: Console) -> None:
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
    """Print one trial: state, settings that differ (`config`: all), attempts, evaluations, metrics and traceback."""
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
