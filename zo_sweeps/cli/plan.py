"""The command `plan`: a grid's trials, their work and memory, and what cannot run here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rich.console import Console

from zo_sweeps.cli.parser import compose, grid_parser, parse
from zo_sweeps.cli.text import SOME, Sentences, console, counted, each, grouped, listing, say, say_group, some
from zo_sweeps.core.document import to_text
from zo_sweeps.core.units import bytes_text, count_text, duration, joules_text
from zo_sweeps.results.facts import PlanFacts, PlannedTrial, plan_facts
from zo_sweeps.session import session

LOADED = 0.5  # load per core from which a probe is called one under load
SHOWN = 0.01  # share of a trial's memory from which a part of it is named


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
        f"{len(plan.trials)} trials ({plan.entries} table entries), {plan.runnable} can run here, "
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
    told = each if whole else grouped
    obstacles, notes = (told({line.text: line.trials for line in lines}) for lines in (plan.obstacles, plan.notes))
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
        yield f"time: not known for some of the {left} left: their models' shapes are not known"
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
