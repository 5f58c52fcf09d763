"""The output of `plan`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console

from zo_sweeps.cli.show.alike import Group, each, grouped
from zo_sweeps.cli.show.text import SOME, counted, listing, say, some
from zo_sweeps.core.units import bytes_text, count_text, duration
from zo_sweeps.results.facts.plan import PlanFacts, PlannedTrial

SHOWN = 0.01  # share of a trial's memory from which a part of it is named


def show_plan(plan: PlanFacts, to: Console, *, trials: bool) -> None:
    """Print the grid's rows with their trials, work and memory; what cannot run here; a time estimate.

    Args:
        trials: whether to list every trial, and to print each reason and note by itself.
    """
    say(to, f"grid {plan.grid}: {plan.title}")
    headers = ["row", "trials", "here", "done", "steps", "tokens", "memory", "device"]
    rows = [
        [
            row.label,
            str(row.trials),
            str(row.here),
            str(row.done),
            "/".join(map(str, row.steps)),
            count_text(row.forwarded_tokens),
            bytes_text(row.memory_bytes) if row.memory_bytes else "?",
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
    _memory(plan, to)
    show_limits(plan, to, whole=trials)
    say(to, _time(plan))
    if trials:
        listed = [(trial.label, trial.trial_id, trial.state if trial.here else "missing") for trial in plan.trials]
        listing(to, ("trial", "id", "state"), listed)


def show_summary(plan: PlanFacts, to: Console) -> None:
    """Print the size of a sweep before it starts, and the trials that cannot run here."""
    say(to, f"{plan.grid}: {counted(plan.runnable, 'trial')} for {plan.entries} table entries")
    show_limits(plan, to, whole=False)


def show_limits(plan: PlanFacts, to: Console, *, whole: bool) -> None:
    """Print why trials cannot run here, what limits them, and how they differ from the grid as written.

    Args:
        whole: whether each sentence is printed; otherwise those of one pattern are printed once.
    """
    trials = {trial.trial_id: trial for trial in plan.trials}
    rows = {row.block: row.label for row in plan.rows}
    told = each if whole else grouped
    obstacles, notes = (told({line.text: line.trials for line in lines}) for lines in (plan.obstacles, plan.notes))
    for group in obstacles:
        where = _where(group, trials, [plan.columns.get(trials[i].column, trials[i].column) for i in group.holds])
        say(to, f"cannot run here ({where}): {group.text}")
        _others(group, to)
    for group in notes:
        where = _where(group, trials, [rows.get(trials[i].block, trials[i].block) for i in group.holds])
        say(to, f"note: {group.text} ({where})")
        _others(group, to)
    for caveat in plan.caveats:
        say(to, f"note: {caveat}")
    if any(len(group.others) > SOME for group in (*obstacles, *notes)):
        say(to, "`plan --trials` prints every one of these sentences, and `plan --json` the trials of each")


def _where(group: Group, trials: Mapping[str, PlannedTrial], names: Sequence[str]) -> str:
    """Return the trials that a sentence holds for, by number and by the rows or columns that they are in."""
    if len(group.holds) == len(trials):
        return f"all {counted(len(trials), 'trial')}" if len(trials) > 1 else "1 trial"
    return f"{counted(len(group.holds), 'trial')}; {some(list(dict.fromkeys(names)))}"


def _others(group: Group, to: Console) -> None:
    if group.others:
        say(to, f"  likewise for {counted(len(group.others), 'other')}: {some(group.others)}")


def _memory(plan: PlanFacts, to: Console) -> None:
    """Print the estimated memory of the trial that needs the most, by part."""
    if not plan.largest_parts_bytes:
        return
    largest: PlannedTrial = next(trial for trial in plan.trials if trial.trial_id == plan.largest)
    parts = (
        f"{name} {bytes_text(part)}"
        for name, part in plan.largest_parts_bytes.items()
        if part >= SHOWN * largest.memory_bytes
    )
    say(to, f"memory of {largest.label}, the most: {', '.join(parts)}")


def _time(plan: PlanFacts) -> str:
    """Return an estimate from the speed of the plan's finished trials; no guess before there is one."""
    if plan.seconds_left is None:
        return "time: unknown until a trial of this plan has finished here (try scale=smoke)"
    if not plan.trials_left:
        return "time: every trial that can run here has a result"
    left = counted(plan.trials_left, "trial")
    return f"time: about {duration(plan.seconds_left)} for the {left} left, run one at a time"
