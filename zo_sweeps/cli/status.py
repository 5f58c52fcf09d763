"""The commands `plan` and `status`: what a sweep will do, how far it is, and everything about one of its trials."""

from __future__ import annotations

import io
import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence

from rich.console import Console
from rich.live import Live
from rich.text import Text

from zo_sweeps.cli.parser import compose, grid_parser, parse, read, trial_ids
from zo_sweeps.cli.text import SOME, Sentences, console, grouped, listing, say, say_group, some
from zo_sweeps.core.document import to_text
from zo_sweeps.core.errors import UserError
from zo_sweeps.core.trial import TrialState
from zo_sweeps.core.units import bytes_text, count_text, counted, duration, joules_text, metric_text
from zo_sweeps.plan.build import Plan
from zo_sweeps.results.facts import (
    PlanFacts,
    PlannedTrial,
    SweepStatus,
    TrialFacts,
    TrialStatus,
    plan_facts,
    status_facts,
    trial_facts,
)
from zo_sweeps.results.trial_record import flat
from zo_sweeps.schedule.ledger import driver_of
from zo_sweeps.session import session
from zo_sweeps.tables.text_cells import plain

LOADED = 0.5  # load per core from which a probe is called one under load
SHOWN = 0.01  # share of a trial's memory from which a part of it is named
SCORES = ("dev/metric", "test/metric")
LISTED = 40  # trials; of a larger sweep `--trials` lists them
WATCH_SECONDS = 2.0
UNTIL = ("done", "failed", "stalled")


def plan(given: Sequence[str]) -> int:
    """Show a grid's trials, their work, time and memory, and what cannot run here, and why. Launches nothing."""
    parser = grid_parser("plan", plan.__doc__)
    parser.add_argument("--trials", action="store_true", help="list every trial, and every sentence about some")
    parser.add_order()
    text = "first measure this machine, in about ten seconds; its speed is kept for later plans and runs. Without it, "
    text += "or finished trials, no time is predicted; a run of more than a minute measures them itself"
    parser.add_argument("--probe", action="store_true", help=text)
    parser.add_json({"": PlanFacts})
    options = parse(parser, given)
    planned = session.plan_here(compose(options)[0])
    if options.probe:
        session.probe_this_host(planned)
    facts = plan_facts(planned, options.order)
    if options.json:
        print(to_text(facts))
    else:
        show_plan(facts, console(), trials=options.trials)
    return 0


def show_plan(plan: PlanFacts, to: Console, *, trials: bool) -> None:
    """Print the grid's rows, their work, memory and time, and what cannot run here; `trials`: one by one."""
    say(to, f"grid {plan.grid}: {plan.title}")
    headers = ["row", "trials", "here", "done", "steps", "tokens", "memory", "time", "device"]
    rows = [
        [
            row.label,
            str(row.trials),
            str(row.here),
            str(row.done),
            "/".join(map(str, row.steps)),
            count_text(row.forwarded_tokens),
            bytes_text(row.memory_bytes) if row.memory_bytes else "?",
            duration(row.seconds) if row.here else "–",
            "/".join(row.devices),
        ]
        for row in plan.rows
    ]
    devices = list(dict.fromkeys(row[-1] for row in rows))
    if len(devices) == 1:  # said once, below
        headers, rows = headers[:-1], [row[:-1] for row in rows]
    listing(to, headers, rows)
    say(
        to,
        f"{counted(len(plan.trials), 'trial')} ({plan.entries} table entries), {plan.runnable} can run here, "
        f"about {count_text(plan.forwarded_tokens)} forwarded tokens; tasks: {', '.join(plan.columns.values())}"
        + (f"; device: {devices[0]}" if len(devices) == 1 else ""),
    )
    if plan.largest_parts_bytes:
        largest = next(trial for trial in plan.trials if trial.trial_id == plan.largest)
        named = {name: part for name, part in plan.largest_parts_bytes.items() if part >= SHOWN * largest.memory_bytes}
        parts = ", ".join(f"{name} {bytes_text(part)}" for name, part in named.items())
        say(to, f"memory of {largest.label}, the most: {parts}")
    show_limits(plan, to, whole=trials)
    over = (f"over the budget: {line}" for line in plan.over_budget)
    for line in filter(None, (plan.order, *over, *plan.earlier, *_time(plan))):
        say(to, line)
    if trials:
        listed = [(trial.label, trial.trial_id, trial.state if trial.here else "missing") for trial in plan.trials]
        listing(to, ("trial", "id", "state"), listed)


def show_summary(plan: PlanFacts, to: Console) -> None:
    """Print the size of a sweep before it starts, and the trials that cannot run here."""
    say(to, f"{plan.grid}: {counted(plan.runnable, 'trial')} for {plan.entries} table entries")
    if plan.order:
        say(to, plan.order)
    show_limits(plan, to, whole=False)
    for line in plan.earlier:
        say(to, line)


def show_limits(plan: PlanFacts, to: Console, *, whole: bool) -> None:
    """Print why trials cannot run here, what limits them, how they differ; unless `whole`, each pattern once."""
    trials = {trial.trial_id: trial for trial in plan.trials}
    rows = {row.block: row.label for row in plan.rows}
    statements = ({line.text: line.trials for line in lines} for lines in (plan.obstacles, plan.notes))
    obstacles, notes = (grouped(lines, apart=whole) for lines in statements)
    for group in obstacles:
        where = _where(group, trials, [plan.columns.get(trials[i].column, trials[i].column) for i in group.holds])
        say_group(to, f"cannot run here ({where}): {group.text}", group)
    for group in notes:
        where = _where(group, trials, [rows.get(trials[i].block, trials[i].block) for i in group.holds])
        say_group(to, f"note: {group.text} ({where})", group)
    for caveat in plan.caveats:
        say(to, f"note: {caveat}")
    if any(len(group.others) > SOME for group in (*obstacles, *notes)):
        say(to, "`plan --trials` prints every one of these sentences, and `plan --json` the trials of each")


def _where(group: Sentences, trials: Mapping[str, PlannedTrial], names: Sequence[str]) -> str:
    """Return the trials that a sentence holds for, by number and by the rows or columns that they are in."""
    if len(group.holds) == len(trials):
        return f"all {counted(len(trials), 'trial')}" if len(trials) > 1 else "1 trial"
    return f"{counted(len(group.holds), 'trial')}; {some(list(dict.fromkeys(names)))}"


def _time(plan: PlanFacts) -> Iterator[str]:
    """Yield the predicted time and energy of the trials without a result, and what the prediction rests on."""
    if plan.trouble:
        yield f"note: {plan.trouble}"
    if not plan.runnable:
        yield "time: no trial can run here, for the reasons above"
        return
    if not plan.trials_left:
        yield "time: every trial that can run here has a result"
        return
    left = counted(plan.trials_left, "trial")
    if plan.device is None:
        where = "" if plan.slots is None else "; plan --probe measures this machine, in about ten seconds"
        yield f"time: not known until a trial of this plan has finished here{where}"
    elif plan.seconds_left is None:
        what = "programs, circuits and models of unknown shape"
        yield f"time: not known for some of the {left} left: no speed is known of {what}"
    else:
        taken, how = plan.seconds_left, "run one at a time"
        if plan.seconds_to_go is not None and plan.slots:
            taken, how = plan.seconds_to_go, f"{plan.slots} at a time"
        yield f"time: about {duration(taken)} for the {left} left, {how} ({_source(plan)})"
    if plan.joules_left is not None:
        yield f"energy: about {joules_text(plan.joules_left)}, of their steps"
    for device, seconds in plan.elsewhere.items():
        yield f"time on {device}: about {duration(seconds)}, run one at a time"


def _source(plan: PlanFacts) -> str:
    """Return what a prediction rests on, and for which device it is."""
    loaded = " under load" if (plan.load or 0.0) > LOADED else ""
    parts = [f"a probe{loaded}"] if plan.probed else []
    parts += [counted(plan.finished, "finished trial")] if plan.finished else []
    return f"by {' and '.join(parts)}; {plan.device}"


def status(given: Sequence[str]) -> int:
    """Show the progress of a sweep and list its trials; with a trial's id, everything about that trial."""
    parser = grid_parser("status", status.__doc__)
    parser.add_argument("--failed", action="store_true", help="list the trials that failed, with their errors")
    parser.add_argument("--trials", action="store_true", help="list the trials of a large sweep too")
    parser.add_argument("--watch", action="store_true", help="follow a running sweep to its end")
    text = "wait for the sweep's end (done), or for its first trial that failed or stalls; may be repeated. The exit "
    text += "status is 0 if every trial that can run here has a result, 3 if some failed or are left, 4 if one stalls, "
    text += "5 after --timeout"
    parser.add_argument("--until", action="append", choices=UNTIL, default=[], help=text)
    text = "longest wait of --until; default: none"
    parser.add_argument("--timeout", type=float, default=math.inf, metavar="SECONDS", help=text)
    parser.add_argument("--config", action="store_true", help="with an id: the trial's whole configuration")
    parser.add_json({"": SweepStatus, "with an id": TrialFacts})
    options = parse(parser, given)
    ids = trial_ids(options)
    if len(ids) > 1:
        raise UserError(f"{len(ids)} trials to show", fix="give one id; `compare ID ID` shows two")
    if options.watch and (ids or options.json):
        raise UserError("--watch follows a whole sweep, as text", fix="leave out the id and --json")
    if options.until and (ids or options.watch):
        raise UserError("--until waits for a whole sweep", fix="leave out the id and --watch")
    planned, to = read(options).plan, console()
    code = waited(planned, options.until, options.timeout) if options.until else 0
    if options.watch:
        watch(planned, to, failed=options.failed, trials=options.trials)
    elif options.json:
        print(to_text(trial_facts(planned, ids[0]) if ids else status_facts(planned)))
    elif ids:
        show_trial(trial_facts(planned, ids[0]), to, config=options.config)
    else:
        show_status(status_facts(planned), to, failed=options.failed, trials=options.trials)
    return code


def waited(planned: Plan, until: Sequence[str], timeout: float) -> int:
    """Wait until a sweep has ended, or as `--until` says; return the exit status."""
    end = time.monotonic() + timeout
    while True:
        sweep = status_facts(planned)
        stalled, failed = any(run.stalled for run in sweep.running), bool(_failures(sweep))
        if "stalled" in until and stalled:
            return 4
        if not sweep.driver or ("failed" in until and failed):
            return 3 if failed or TrialState.PENDING.value.lower() in sweep.counts else 0
        if time.monotonic() >= end:
            return 5
        time.sleep(min(WATCH_SECONDS, max(0.0, end - time.monotonic())))


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
        say(to, f"{other} measured with other code than today's: --rerun succeeded (or a trial's id) measures again")
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
    """Print counts by row and state; of a sweep that runs: what runs where, what waits and why, and the time to go."""
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
    if not sweep.driver:
        return
    rows = []
    for run in sweep.running:
        step = f"{run.step}/{run.steps}" if run.steps else "·"
        rows.append((run.label, step, run.node, str(run.attempt), duration(run.seconds)))
    listing(to, ("running now", "step", "node", "attempt", "for"), rows)
    if len(sweep.nodes) > 1:
        listing(to, ("node", "running", "ended"), [(n.node, str(n.running), str(n.ended)) for n in sweep.nodes])
    for run in sweep.running:
        if run.stalled:
            say(to, f"stalled: {run.label} has reported nothing for {duration(run.silent)}")
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
    if evaluated := trial.evaluations:
        say(to, "")
        rows = [(f"{one.split} at step {one.step}", f"{one.loss:.4f}", f"{one.metric:.4f}") for one in evaluated]
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
        text = json.dumps(trial.configuration, indent=1, sort_keys=True, ensure_ascii=False)
        to.print(text, markup=False, soft_wrap=True)
