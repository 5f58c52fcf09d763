"""The output of the commands: plans, progress, tables, figures, checks. Never changes a sweep."""

from __future__ import annotations

import contextlib
import json
import shlex
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import Progress, TaskID
from rich.table import Table as Rows
from rich.text import Text

from zo_sweeps.config.composer import Composer
from zo_sweeps.core.errors import UserError, nothing_run, unknown
from zo_sweeps.core.host import gib
from zo_sweeps.core.trial import TrialState
from zo_sweeps.plan.build import Plan, by_line
from zo_sweeps.record import signature
from zo_sweeps.record.archive import Archive
from zo_sweeps.results import tables as readout
from zo_sweeps.results.imports import Imported, with_imported
from zo_sweeps.results.verify import Finding, Verdict
from zo_sweeps.schedule.ledger import Standing, driver_of, has_run, read_standing
from zo_sweeps.schedule.live import read_live
from zo_sweeps.schedule.progress import duration
from zo_sweeps.tables import Table, to_csv, to_html, to_latex, to_markdown, to_text
from zo_sweeps.tables.html import page

SHOWN = 0.01  # share of a trial's memory from which a part of it is named

FORMATS: dict[str, Callable[[Sequence[Table], str], str]] = {  # of a grid's tables and its title
    "text": lambda tables, _: "\n".join(to_text(table, 120) for table in tables),
    "md": lambda tables, _: "\n".join(map(to_markdown, tables)),
    "latex": lambda tables, _: to_latex(*tables),
    "csv": lambda tables, _: to_csv(*tables),
    "html": lambda tables, title: page(title, list(map(to_html, tables))),
}


class Stages:
    """The progress of a long command, stage by stage: a bar on a terminal, a line at times anywhere else."""

    SECONDS = 10.0  # between lines

    def __init__(self, console: Console) -> None:
        self._console, self._bar = console, Progress(*Progress.get_default_columns(), console=console, transient=True)
        self._stage, self._began, self._said = "", 0.0, 0.0
        self._task: TaskID | None = None

    def __enter__(self) -> Stages:
        if self._console.is_terminal:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def update(self, stage: str, done: int, total: int) -> None:
        """Show how many of a stage's parts are done."""
        now = time.monotonic()
        if stage != self._stage:
            self._stage, self._began, self._said = stage, now, now
            self._task = self._bar.add_task(stage, total=total)
        if self._task is not None:
            self._bar.update(self._task, completed=done)
        if not self._console.is_terminal and now - self._said >= self.SECONDS:
            self._said = now
            left = duration((now - self._began) / done * (total - done)) if done else "?"
            _say(self._console, f"{stage}: {done}/{total}, ETA {left}")


def _standing(planned: Plan) -> tuple[Path, Standing]:
    folder = planned.config.folder
    return folder, read_standing(folder)


def _rows(*columns: str) -> Rows:
    table = Rows(box=None, pad_edge=False, header_style="bold")
    for i, name in enumerate(columns):
        table.add_column(name, justify="left" if i == 0 else "right", no_wrap=i == 0)
    return table


def _say(console: Console, text: str) -> None:
    console.print(text, markup=False, soft_wrap=True)


def summary(planned: Plan, console: Console) -> None:
    """Print the size of a sweep before it starts, and the trials that cannot run here."""
    _say(console, f"{planned.name}: {len(planned.trials)} trials for {len(planned.cells)} table entries")
    _missing(planned, console)
    _notes(planned, console)


def _notes(planned: Plan, console: Console) -> None:
    """Print what limits the trials, and how they differ from the grid as written."""
    for remark, ids in by_line(planned.remarks).items():
        rows = dict.fromkeys(planned.grid.label(planned.every[i].block) for i in ids)
        _say(console, f"note: {remark} ({len(ids)} trials; {'; '.join(rows)})")
    for caveat in planned.caveats:
        _say(console, f"note: {caveat}")


def _missing(planned: Plan, console: Console) -> None:
    """Print every reason why trials cannot run here, each once."""
    for why, ids in planned.obstacles.items():
        tasks = dict.fromkeys(planned.labels.get(task, task) for task in (planned.every[i].task for i in ids))
        _say(console, f"cannot run here ({len(ids)} trials; {', '.join(sorted(tasks))}): {why}")


def plan(planned: Plan, console: Console, *, trials: bool) -> None:
    """Print the grid's blocks with their trials, work and memory; the missing trials; a time estimate."""
    _, standing = _standing(planned)
    _say(console, f"grid {planned.name}: {planned.grid.title}")
    every = planned.every
    table = _rows("row", "trials", "here", "done", "steps", "forwarded tokens", "memory", "device")
    for name in planned.grid.blocks:
        ids = list(dict.fromkeys(cell.trial_id for cell in planned.cells if cell.block == name))
        mine = [every[i] for i in ids]
        if not mine:
            continue
        done = sum(standing.states.get(i, TrialState.PENDING).is_result for i in ids)
        steps = sorted({trial.steps for trial in mine})
        memory = max(trial.needs.memory_bytes for trial in mine)
        table.add_row(
            planned.grid.label(name),
            str(len(mine)),
            str(sum(i not in planned.missing for i in ids)),
            str(done),
            "/".join(map(str, steps)),
            _tokens(sum(trial.cost for trial in mine)),
            gib(memory) if memory else "?",
            "/".join(sorted({trial.needs.device for trial in mine})),
        )
    console.print(table)
    total = sum(trial.cost for trial in planned.trials)
    _say(
        console,
        f"{len(every)} trials ({len(planned.cells)} table entries), {len(planned.trials)} can run here, "
        f"about {_tokens(total)} forwarded tokens; tasks: {', '.join(planned.labels.values())}",
    )
    _memory(planned, console)
    _missing(planned, console)
    _notes(planned, console)
    _say(console, _time_estimate(planned, standing))
    if trials:
        listing = _rows("trial", "id", "state")
        for trial_id, trial in every.items():
            state = (
                "missing" if trial_id in planned.missing else standing.states.get(trial_id, TrialState.PENDING).value
            )
            listing.add_row(trial.label, trial_id, state.lower())
        console.print(listing)


def _memory(planned: Plan, console: Console) -> None:
    """Print the estimated memory of the trial that needs the most, by part."""
    largest = max(planned.every.values(), key=lambda trial: trial.needs.memory_bytes, default=None)
    if largest is None or not largest.needs.parts:
        return
    needs = largest.needs
    parts = {**needs.parts, "the process": needs.memory_bytes - sum(needs.parts.values())}
    shown = ", ".join(
        f"{name} {size / 2**20:,.0f} MiB" for name, size in parts.items() if size >= SHOWN * needs.memory_bytes
    )
    _say(console, f"memory of {largest.label}, the most: {shown}")


def _time_estimate(planned: Plan, standing: Standing) -> str:
    """Return an estimate from the speed of the plan's finished trials; no guess before there is one."""
    done = [t for t in planned.trials if (o := standing.outcomes.get(t.trial_id)) and "wall_seconds" in o.metrics]
    seconds = sum(standing.outcomes[t.trial_id].metrics["wall_seconds"] for t in done)
    if not seconds:
        return "time: unknown until a trial of this plan has finished here (try scale=smoke)"
    left = [t for t in planned.trials if not standing.states.get(t.trial_id, TrialState.PENDING).is_result]
    rate = sum(t.cost for t in done) / seconds
    return (
        f"time: about {duration(sum(t.cost for t in left) / rate)} for the {len(left)} trials left, run one at a time"
    )


def _tokens(count: float) -> str:
    for size, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:.0f}"


def status(planned: Plan, console: Console, *, failed: bool) -> None:
    """Print counts by row and state, the process that runs the sweep, and the failures."""
    folder, standing = _standing(planned)
    running = driver_of(folder)
    _say(console, f"{planned.name} in {folder}: {f'running ({running})' if running else 'not running'}")
    by_row: dict[str, Counter[str]] = {}
    for name in planned.grid.blocks:
        ids = dict.fromkeys(cell.trial_id for cell in planned.cells if cell.block == name)
        counts: Counter[str] = Counter()
        for trial_id in ids:
            state = standing.states.get(trial_id, TrialState.PENDING)
            if state is TrialState.CANCELLED or (state is TrialState.RUNNING and not running):
                state = TrialState.PENDING
            counts["missing" if trial_id in planned.missing and state is TrialState.PENDING else state.value] += 1
        by_row[planned.grid.label(name)] = counts
    columns = [c for c in (*(state.value for state in TrialState), "missing") if any(r[c] for r in by_row.values())]
    table = _rows("row", "trials", *(name.lower().replace("_", " ") for name in columns))
    for label, counts in by_row.items():
        table.add_row(label, str(counts.total()), *(str(counts[name] or "·") for name in columns))
    console.print(table)
    if running:
        _live(folder, console)
    if other := sum(readout.other_code(one, standing.outcomes.get(i)) for i, one in planned.every.items()):
        _say(
            console,
            f"{other} measured with other code than today's: --rerun succeeded (or a trial's id) measures again",
        )
    bad = [i for i in planned.every if standing.states.get(i) in (TrialState.FAILED, TrialState.LOST)]
    for trial_id in bad if failed else []:
        outcome = standing.outcomes.get(trial_id)
        _say(console, f"{trial_id}  {planned.every[trial_id].label}: {outcome.error if outcome else 'lost'}")
    if bad and not failed:
        _say(
            console,
            f"{len(bad)} failed: `python -m zo_sweeps status --failed` lists them, `status ID` shows one's traceback",
        )


def _live(folder: Path, console: Console) -> None:
    """Print what runs where, what waits and why, and the time to go, as last written by the driver."""
    live = read_live(folder)
    if not live:
        return
    table = _rows("running now", "step", "node", "attempt", "for")
    for run in live["running"]:
        label = run["label"] or run["trial_id"]
        step = f"{run['step']}/{run['steps']}" if run["steps"] else "·"
        seconds = run["seconds"] + time.time() - live["time"]
        table.add_row(label, step, run["node"], str(run["attempt"]), duration(seconds))
    if live["running"]:
        console.print(table)
    for why, count in live["waiting"].items():
        _say(console, f"waiting ({count} trials): {why}")
    _say(console, f"time to go: {duration(live['eta_seconds'])}")


def trial(planned: Plan, trial_id: str, console: Console) -> None:
    """Print one trial: its state, attempts, evaluations, metrics, traceback and configuration."""
    matching = [i for i in planned.every if i.startswith(trial_id)]
    if len(matching) != 1:
        raise unknown("trial", trial_id, list(planned.every)[:5], where=f"grid {planned.name}")
    from zo_sweeps.record.journal import JournalStore, evals, last_step, outcome, places

    folder, standing = _standing(planned)
    chosen = planned.every[matching[0]]
    events = JournalStore(folder).read(chosen.trial_id, ended=standing.has_result(chosen.trial_id))
    _say(console, f"{chosen.trial_id}  {chosen.label}")
    _say(
        console,
        f"state {standing.states.get(chosen.trial_id, TrialState.PENDING).value.lower()}, "
        f"attempts {standing.attempts.get(chosen.trial_id, 0)}, step {last_step(events)}/{chosen.steps}",
    )
    if readout.other_code(chosen, standing.outcomes.get(chosen.trial_id)):
        _say(console, "measured with other code than today's: --rerun with its id measures it again")
    for number, (node, profile, step) in enumerate(places(events), 1):
        _say(console, f"  attempt {number} on {node} ({profile}), from step {step}")
    for (split, step), event in sorted(evals(events).items()):
        _say(console, f"  {split} at step {step}: loss {event['loss']:.4f}, metric {event['metric']:.4f}")
    ended = outcome(events)
    if ended:
        for name, value in ended.metrics.items():
            _say(console, f"  {name} = {value:.6g}")
        for name, why in ended.unmeasured.items():
            _say(console, f"  {name} not measured: {why}")
        if ended.error:
            _say(console, f"{ended.error}\n{ended.traceback}")
    _say(console, json.dumps(chosen.config.to_json(), indent=1, sort_keys=True, ensure_ascii=False))


def tables(planned: Plan, composer: Composer, form: str, only: Sequence[str]) -> str:
    """Return the grid's tables in one of FORMATS."""
    if form not in FORMATS:
        raise unknown("format", form, FORMATS, where="--format")
    if not planned.grid.tables:
        raise UserError(f"grid {planned.name} has no tables", fix="draw its figures, or give it tables")
    _, standing = _standing(planned)
    own = readout.tables(planned, composer, standing, only)
    text = FORMATS[form](with_imported(own, planned, composer), planned.title)
    return text + ("" if text.endswith("\n") else "\n")


def unbacked(planned: Plan, composer: Composer, n: int, console: Console) -> int:
    """Print the cells that fewer than `n` finished seeds are behind; return 1 if there are any, otherwise 0."""
    from zo_sweeps.results.backing import unbacked as lacking

    if not planned.grid.tables:
        raise UserError(f"grid {planned.name} has no tables to check")
    _, standing = _standing(planned)
    lines = list(lacking(planned, composer, standing, n))
    for line in lines:
        _say(console, line)
    seeds = f"{n} finished seed{'s' * (n > 1)}"
    if lines:
        _say(console, f"{planned.name}: {len(lines)} cells are not backed by {seeds}")
    else:
        _say(console, f"{planned.name}: every cell of its tables is backed by {seeds} or more")
    return 1 if lines else 0


def archive(written: Archive, path: Path, trials: int, console: Console) -> None:
    """Print what an archive that was written holds, and the next command."""
    by = f"signed: {signature.fingerprint(written.key)}" if written.key else "not signed; --key KEY signs it"
    _say(console, f"{path}   {trials} trials, {path.stat().st_size / 1000:.0f} kB")
    _say(console, by)
    _say(console, f"next: python -m zo_sweeps verify {shlex.quote(str(path))}")


def verification(source: Archive, file: Path, findings: Iterable[Finding], console: Console) -> int:
    """Print findings as they come, and what they come to; return 1 if anything is wrong, otherwise 0."""
    _say(console, f"{file}: {source.title}, by {source.whose}")
    marks = {Verdict.PROVED: "ok", Verdict.ATTESTED: "–", Verdict.WRONG: "WRONG"}
    counts: Counter[Verdict] = Counter()
    for finding in findings:
        counts[finding.verdict] += 1
        line = f"{marks[finding.verdict]:5}  {finding.trial_id}{'  ' * bool(finding.trial_id)}{finding.text}"
        console.print(line, markup=False, soft_wrap=not console.is_terminal)
    parts = [f"{counts[Verdict.PROVED]} trials computed again, with the same weights and scores"]
    if counts[Verdict.ATTESTED]:
        parts.append(f"{counts[Verdict.ATTESTED]} that cannot be (–)")
    if counts[Verdict.WRONG]:
        parts.append(f"{counts[Verdict.WRONG]} WRONG")
    _say(console, f"{'not verified' if counts[Verdict.WRONG] else 'verified'}: {', '.join(parts)}")
    return 1 if counts[Verdict.WRONG] else 0


def imported(source: Archive, made: Imported, console: Console) -> None:
    """Print what was imported, and how to undo it."""
    _say(console, f"{'imported' if made.new else 'imported before'}: {source.title}, {made.trials} trials")
    _say(console, f"by {source.whose}")
    _say(console, f"`table +grid={source.grid}` shows its rows below your own; to undo, remove {made.folder}")


def figures(planned: Plan, composer: Composer, only: Sequence[str], output: str, console: Console) -> None:
    """Draw the grid's figures as PNG and SVG into the state folder, or to `output`; print the paths.

    Several figures get a file each: the name of the figure is added to that of `output`.
    """
    from zo_sweeps.results import figures as charts
    from zo_sweeps.tables.draw import FORMATS as DRAWN
    from zo_sweeps.tables.draw import render

    folder, standing = _standing(planned)
    suffix = Path(output).suffix.lstrip(".") if output else ""
    if output and suffix not in DRAWN:
        raise unknown("kind of file", suffix, DRAWN, where=f"--output {output}")
    drawn = charts.figures(planned, composer, standing, folder, only)
    for figure in drawn:
        for note in figure.notes:
            _say(console, f"{figure.name}: {note}")
        for form in [suffix] if output else DRAWN:
            if not output:
                path = _created(folder / "figures") / f"{figure.name}.{form}"
            elif len(drawn) == 1:
                path = Path(output)
            else:
                name = figure.name.removeprefix(f"{planned.name}_")
                path = Path(output).with_name(f"{Path(output).stem}_{name}.{form}")
            write(path, render(figure, form))
            _say(console, str(path))


def report(planned: Plan, composer: Composer, command: str, output: str, console: Console) -> None:
    """Write the report of the grid into the state folder, or to `output`; print the path."""
    from zo_sweeps.results import report as pages

    folder, standing = _standing(planned)
    path = Path(output) if output else _created(folder) / f"{planned.name}.html"
    write(path, pages.html(planned, composer, standing, folder, command).encode())
    _say(console, str(path))


def _created(folder: Path) -> Path:
    """Return a folder below the state folder, created if absent."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot create {folder}: {error.strerror}", fix="name a file with --output") from None
    return folder


def write(path: Path, data: bytes) -> None:
    """Write a file that `--output` names or implies. Raises UserError if it cannot be written."""
    try:
        path.write_bytes(data)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}", where="--output") from None


def papers(composer: Composer, options: Namespace, names: Sequence[str], console: Console) -> None:
    """Print the tables and figures of the papers: grid, state in the state folder, largest deviation, and why not here.

    Args:
        names: papers ("prge") and items ("prge/table2"); none: all. The numbers of a single item are printed too.
    """
    from zo_sweeps.results.papers import items, named, obstacles, standings
    from zo_sweeps.tables.published import load
    from zo_sweeps.tables.text import published_to_text

    every = named(items(composer.folders), names)
    folder = composer.run.folder
    states = standings(every, folder)
    with console.status("planning the grids, to see what can run here"):
        held = obstacles(every, options.overrides, options.config_dir)
    for display in dict.fromkeys(item.display for item in every):
        table = Rows(box=None, pad_edge=False, header_style="bold", title=display, title_justify="left")
        its_items = [item for item in every if item.display == display]
        reasons = list(dict.fromkeys(why for item in its_items for why in held[item.reference].reasons))
        for name in ("item", "grid", "state here", "largest deviation", "cannot run here", "caption"):
            table.add_column(name, no_wrap=name == "item", overflow="fold")
        for item in its_items:
            its = states[item.reference]
            notes = f" [{'; '.join(its.notes)}]" if its.notes else ""
            grid = ", ".join(item.grids) if item.grids else f"no grid: {item.why}"
            state = its.state + notes if item.grids else "–"
            kept = held[item.reference]
            marks = ", ".join(f"[{reasons.index(why) + 1}] {count}" for why, count in kept.reasons.items())
            lost = f"{kept.missing} of {kept.trials} trials: {marks}" if marks else ""
            table.add_row(*(Text(part) for part in (item.name, grid, state, its.deviation, lost, item.caption)))
        console.print(table)
        if reasons:
            _say(console, "Cannot run here: [reason] number of trials that it holds back; a trial may have several.")
        for number, why in enumerate(reasons, 1):
            _say(console, f"[{number}] {why}")
    if len(every) == 1 and every[0].has_numbers:
        _say(console, published_to_text(load(every[0].reference, composer.folders), console.width))
    with_grid = sum(bool(item.grids) for item in every)
    _say(console, f"{len(every)} tables, figures and others, {with_grid} with a grid; run one with +grid=NAME")
    if not has_run(folder):
        _say(console, str(nothing_run(folder)))


def ui(folder: Path, port: int | None) -> None:
    """Serve the MLflow page of `folder` until Ctrl-C."""
    if not folder.is_dir():
        raise nothing_run(folder)
    from zo_sweeps.record.mlflow_client import pages
    from zo_sweeps.record.mlflow_views import TRAINING
    from zo_sweeps.record.server import start

    with contextlib.closing(start(folder, port)) as server:
        server.wait()
        for title, page in pages(server.uri, folder).items():
            print(f"{title}: {page}")
        print(f"MLflow: {server.uri}/#/experiments?{TRAINING}   (Ctrl-C to stop)", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            while True:
                time.sleep(3600)


def doctor(folder: str, console: Console) -> int:
    """Print one line per check; return 1 if a check failed, otherwise 0."""
    from zo_sweeps.devices.doctor import checks

    results = checks(folder)
    for check in results:
        fix = f"; {check.fix}" if check.fix and check.status != "ok" else ""
        _say(console, f"{check.status:4}  {check.name}: {check.detail}{fix}")
    return 1 if any(check.status == "fail" for check in results) else 0
