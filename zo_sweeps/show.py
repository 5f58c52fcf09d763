"""What the commands print: plans, standings, tables, checks. Reads; changes nothing."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table as Rows

from zo_sweeps import results
from zo_sweeps.config import Composer
from zo_sweeps.errors import UserError, unknown
from zo_sweeps.plan import Plan
from zo_sweeps.schedule.ledger import Standing, driver_of, read_standing
from zo_sweeps.schedule.progress import duration
from zo_sweeps.tables import Table, to_csv, to_latex, to_markdown, to_text
from zo_sweeps.trial import TrialState

FORMATS: dict[str, Callable[[Table], str]] = {
    "text": lambda table: to_text(table, 120),
    "md": to_markdown,
    "latex": to_latex,
    "csv": to_csv,
}
GIB = 2**30


def _standing(planned: Plan) -> tuple[Path, Standing]:
    folder = Path(planned.config["state_dir"]).expanduser()
    return folder, read_standing(folder)


def _rows(*columns: str) -> Rows:
    table = Rows(box=None, pad_edge=False, header_style="bold")
    for i, name in enumerate(columns):
        table.add_column(name, justify="left" if i == 0 else "right", no_wrap=i == 0)
    return table


def _say(console: Console, text: str) -> None:
    console.print(text, markup=False, soft_wrap=True)


def summary(planned: Plan, console: Console) -> None:
    """Two lines before a sweep starts: how much, and what cannot run here."""
    _say(console, f"{planned.name}: {len(planned.trials)} trials for {len(planned.cells)} table entries")
    _missing(planned, console)
    for caveat in planned.caveats:
        _say(console, f"note: {caveat}")


def _missing(planned: Plan, console: Console) -> None:
    for why, count in Counter(planned.missing.values()).most_common():
        tasks = sorted({planned.labels[planned.every[i].task] for i, text in planned.missing.items() if text == why})
        _say(console, f"missing here ({count} trials; {', '.join(tasks)}): {why}")


def plan(planned: Plan, console: Console, *, trials: bool) -> None:
    """The grid's blocks with their trials, work and memory; what is missing; how long it may take."""
    _, standing = _standing(planned)
    _say(console, f"grid {planned.name}: {planned.grid['title']}")
    every = planned.every
    table = _rows("row", "trials", "here", "done", "steps", "forwarded tokens", "memory", "device")
    for block, spec in planned.grid["blocks"].items():
        ids = list(dict.fromkeys(cell.trial_id for cell in planned.cells if cell.block == block))
        mine = [every[i] for i in ids]
        if not mine:
            continue
        done = sum(standing.states.get(i, TrialState.PENDING).is_result for i in ids)
        steps = sorted({trial.steps for trial in mine})
        table.add_row(
            spec["label"] or block,
            str(len(mine)),
            str(sum(i not in planned.missing for i in ids)),
            str(done),
            "/".join(map(str, steps)),
            _tokens(sum(trial.cost for trial in mine)),
            _gib(max(trial.needs.memory_bytes for trial in mine)),
            "/".join(sorted({trial.needs.device for trial in mine})),
        )
    console.print(table)
    total = sum(trial.cost for trial in planned.trials)
    _say(
        console,
        f"{len(every)} trials ({len(planned.cells)} table entries), {len(planned.trials)} can run here, "
        f"about {_tokens(total)} forwarded tokens; tasks: {', '.join(planned.labels.values())}",
    )
    _missing(planned, console)
    for caveat in planned.caveats:
        _say(console, f"note: {caveat}")
    _say(console, _time_estimate(planned, standing))
    if trials:
        listing = _rows("trial", "id", "state")
        for trial_id, trial in every.items():
            state = (
                "missing" if trial_id in planned.missing else standing.states.get(trial_id, TrialState.PENDING).value
            )
            listing.add_row(trial.label, trial_id, state.lower())
        console.print(listing)


def _time_estimate(planned: Plan, standing: Standing) -> str:
    """From the speed of this plan's finished trials; nothing is guessed before there is one."""
    done = [t for t in planned.trials if (o := standing.outcomes.get(t.trial_id)) and "wall_seconds" in o.metrics]
    seconds = sum(standing.outcomes[t.trial_id].metrics["wall_seconds"] for t in done)
    if not seconds:
        return "time: not known before a trial of this plan has run here (try scale=smoke)"
    left = [t for t in planned.trials if not standing.states.get(t.trial_id, TrialState.PENDING).is_result]
    rate = sum(t.cost for t in done) / seconds
    return f"time: about {duration(sum(t.cost for t in left) / rate)} of one worker for the {len(left)} trials left"


def _tokens(count: float) -> str:
    for size, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:.0f}"


def _gib(count: int) -> str:
    return f"{count / GIB:.1f} GiB" if count else "?"


def status(planned: Plan, console: Console, *, failed: bool) -> None:
    """Counts by row and state, who is running it, and what went wrong."""
    folder, standing = _standing(planned)
    running = driver_of(folder)
    _say(console, f"{planned.name} in {folder}: {f'running ({running})' if running else 'not running'}")
    by_row: dict[str, Counter[str]] = {}
    for block, spec in planned.grid["blocks"].items():
        ids = dict.fromkeys(cell.trial_id for cell in planned.cells if cell.block == block)
        counts: Counter[str] = Counter()
        for trial_id in ids:
            state = standing.states.get(trial_id, TrialState.PENDING)
            if state is TrialState.CANCELLED or (state is TrialState.RUNNING and not running):
                state = TrialState.PENDING
            counts["missing" if trial_id in planned.missing and state is TrialState.PENDING else state.value] += 1
        by_row[spec["label"] or block] = counts
    columns = [c for c in (*(state.value for state in TrialState), "missing") if any(r[c] for r in by_row.values())]
    table = _rows("row", "trials", *(name.lower().replace("_", " ") for name in columns))
    for label, counts in by_row.items():
        table.add_row(label, str(counts.total()), *(str(counts[name] or "·") for name in columns))
    console.print(table)
    bad = [i for i in planned.every if standing.states.get(i) in (TrialState.FAILED, TrialState.LOST)]
    for trial_id in bad if failed else []:
        outcome = standing.outcomes.get(trial_id)
        _say(console, f"{trial_id}  {planned.every[trial_id].label}: {outcome.error if outcome else 'lost'}")
    if bad and not failed:
        _say(console, f"{len(bad)} failed: `python -m zo_sweeps status --failed`, then one by its id for the traceback")


def trial(planned: Plan, trial_id: str, console: Console) -> None:
    """One trial: its configuration, state, measurements, curve and traceback."""
    found = [i for i in planned.every if i.startswith(trial_id)]
    if len(found) != 1:
        raise unknown("trial", trial_id, list(planned.every)[:5], where=f"grid {planned.name}")
    from zo_sweeps.record.journal import JournalStore, evals, last_step, outcome

    folder, standing = _standing(planned)
    it = planned.every[found[0]]
    events = JournalStore(folder).read(it.trial_id) if folder.is_dir() else []
    _say(console, f"{it.trial_id}  {it.label}")
    _say(
        console,
        f"state {standing.states.get(it.trial_id, TrialState.PENDING).value.lower()}, "
        f"attempts {standing.attempts.get(it.trial_id, 0)}, step {last_step(events)}/{it.steps}",
    )
    for (split, step), event in sorted(evals(events).items()):
        _say(console, f"  {split} at step {step}: loss {event['loss']:.4f}, metric {event['metric']:.4f}")
    ended = outcome(events)
    if ended:
        for name, value in ended.metrics.items():
            _say(console, f"  {name} = {value:.6g}")
        if ended.error:
            _say(console, f"{ended.error}\n{ended.traceback}")
    _say(console, json.dumps(it.config, indent=1, sort_keys=True, ensure_ascii=False))


def tables(planned: Plan, composer: Composer, form: str, only: Sequence[str]) -> str:
    """The grid's tables in one of FORMATS."""
    if form not in FORMATS:
        raise unknown("format", form, FORMATS, where="--format")
    _, standing = _standing(planned)
    rendered = [FORMATS[form](table) for table in results.tables(planned, composer, standing, only)]
    return "\n".join(rendered) + ("" if rendered and rendered[-1].endswith("\n") else "\n")


def ui(folder: Path, port: int | None) -> None:
    """Serves the MLflow page of `folder` until Ctrl-C."""
    if not folder.is_dir():
        raise UserError(f"no results in {folder}", fix="run a sweep first, or use state_dir=FOLDER")
    from zo_sweeps.record.server import local_server

    with local_server(folder, port) as uri:
        print(f"MLflow: {uri}   (Ctrl-C ends it)", flush=True)
        try:
            while True:
                time.sleep(3600)
        except KeyboardInterrupt:
            print()


def doctor(folder: str, console: Console) -> int:
    """One line a check; 1 if one failed."""
    from zo_sweeps.devices.doctor import checks

    found = checks(folder)
    for check in found:
        fix = f"; {check.fix}" if check.fix and check.status != "ok" else ""
        _say(console, f"{check.status:4}  {check.name}: {check.detail}{fix}")
    return 1 if any(check.status == "fail" for check in found) else 0
