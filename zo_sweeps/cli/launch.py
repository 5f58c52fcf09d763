"""A plan -> a finished sweep: state folder, tracking server, executor, progress, tables."""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from zo_sweeps.config.composer import Composer, executor
from zo_sweeps.core.errors import UserError, unknown
from zo_sweeps.core.fingerprint import fingerprint
from zo_sweeps.core.host import gib
from zo_sweeps.core.trial import TrialState
from zo_sweeps.plan.build import Plan
from zo_sweeps.record.commands import Command, remember
from zo_sweeps.results import report
from zo_sweeps.results import tables as readout
from zo_sweeps.schedule.backend import HeadLostError
from zo_sweeps.schedule.ledger import Ledger, read_standing
from zo_sweeps.schedule.live import LiveFile
from zo_sweeps.schedule.memory import Measured
from zo_sweeps.schedule.placement import Node, refusal
from zo_sweeps.schedule.progress import ProgressView, duration
from zo_sweeps.schedule.sharing import Workers
from zo_sweeps.schedule.snapshot import Snapshot
from zo_sweeps.schedule.sweep import Summary, Sweep
from zo_sweeps.tables import Table, to_csv, to_latex, to_markdown, to_text

if TYPE_CHECKING:
    from zo_sweeps.record.mlflow_store import MlflowMirror

SERVER_SECONDS = 60.0  # that a tracking server may take to start, and to take the last of a sweep


def sweep_id(plan: Plan) -> str:
    """The same command has the same id, so that a resumed sweep goes on in the run that it began."""
    return fingerprint([plan.name, sorted(plan.every)])


def for_this_host(plan: Plan) -> Plan:
    """The plan without the trials that this host can never run, each with the reason, when the sweep runs here alone.

    With a cluster to join, its nodes are asked instead, once it is joined. What finished trials were measured to need
    takes the place of estimates.
    """
    options = executor(plan.config)
    Workers.of(options).check(plan.trials)
    plan = _corrected(plan)
    if plan.config["cluster"]["address"]:
        return plan
    from zo_sweeps.devices.probe import probe

    host = probe()
    node = Node("", "this host", host["profile"], host["cores"], len(host["gpus"]), host["memory_bytes"])
    missing = dict(plan.missing)
    for trial in plan.trials:
        if why := refusal(trial.needs, node, options.cpus_per_trial):
            needs = f"device {trial.needs.device}"
            if "memory" in why:
                needs += f" and about {gib(trial.needs.memory_bytes)}"
            missing[trial.trial_id] = f"needs {needs}, and this host {why}"
        elif node.gpus and trial.needs.device != "cpu" and trial.needs.memory_bytes > node.memory_bytes:
            missing[trial.trial_id] = f"needs about {gib(trial.needs.memory_bytes)} of GPU memory"
    return replace(plan, trials=tuple(t for t in plan.trials if t.trial_id not in missing), missing=missing)


def _corrected(plan: Plan) -> Plan:
    standing = read_standing(Path(plan.config["state_dir"]).expanduser())
    measured = Measured(plan.every.values(), standing.outcomes)
    every = {trial_id: measured.corrected(trial) for trial_id, trial in plan.every.items()}
    return replace(plan, trials=tuple(every[trial.trial_id] for trial in plan.trials), every=every)


def must_have_work(plan: Plan) -> None:
    """Raises UserError when nothing of the plan can run here, with the reasons."""
    if plan.trials:
        return
    reasons = Counter(plan.missing.values())
    listed = "".join(f"\n  - {why} ({count} trials)" for why, count in reasons.most_common())
    if len(reasons) == 1:
        listed = f" {next(iter(reasons))}"
    raise UserError(f"none of the {len(plan.every)} trials of grid {plan.name!r} can run here:{listed}")


def must_know(rerun: Sequence[str], plan: Plan) -> None:
    """Raises UserError unless each name in `rerun` is a state that can be run again or a trial of the plan."""
    states = [state.value.lower() for state in TrialState if state.is_result or state.is_retryable]
    for name in rerun:
        if name not in states and name not in plan.every:
            raise unknown("state or trial of this sweep", name, states, where="--rerun")


def state_folder(plan: Plan) -> Path:
    """The state folder, made if absent. Raises UserError when it cannot be written to."""
    folder = Path(plan.config["state_dir"]).expanduser()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".write-{os.getpid()}"
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as error:
        raise UserError(
            f"cannot write to the state folder {folder} ({error.strerror})", fix="use state_dir=FOLDER"
        ) from None
    return folder.resolve()


def run(plan: Plan, composer: Composer, command: Command, *, rerun: Sequence[str], console: Console) -> int:
    """Runs what has no result yet, prints the tables; returns the exit status: 0, 1 (failures), 130 (interrupted).

    When the cluster's head goes away, waits until it is back and begins the command anew, in another process image.
    """
    try:
        return _run(plan, composer, command, rerun, console)
    except HeadLostError as error:
        console.print(f"{error}. Waiting for it (Ctrl-C ends this)", markup=False, highlight=False, soft_wrap=True)
    _await_head(plan.config["cluster"]["address"])
    flags = [part for folder in command.config_dirs for part in ("--config-dir", folder)]
    # Without --rerun: that was done when the sweep began.
    os.execv(sys.executable, [sys.executable, "-m", "zo_sweeps", *command.overrides, *flags])


def _await_head(address: str) -> None:
    """Returns when the head has answered for a while: it listens some seconds before it can be joined."""
    from zo_sweeps.schedule.cluster import must_answer

    answered = 0
    while answered < 5:
        time.sleep(1)
        try:
            must_answer(address)
            answered += 1
        except UserError:
            answered = 0


def _run(plan: Plan, composer: Composer, command: Command, rerun: Sequence[str], console: Console) -> int:
    from zo_sweeps.record.journal import JournalStore

    state_dir = state_folder(plan)
    with contextlib.closing(JournalStore(state_dir)) as store, Ledger(state_dir, sweep_id(plan)) as ledger:
        remember(state_dir, sweep_id(plan), plan.name, command)
        with _mirror(plan, state_dir, command, console) as (mirror, where):
            options = executor(plan.config)
            began = time.monotonic()
            live = LiveFile(state_dir)
            with ProgressView(console) as progress:

                def update(snapshot: Snapshot) -> None:
                    progress.update(snapshot)
                    live.update(snapshot)

                summary = Sweep(
                    plan.trials,
                    options.build(state_dir, plan.config["cluster"]["address"]),
                    store,
                    ledger,
                    rerun=frozenset(rerun),
                    retries_failed=options.retries_failed,
                    retries_lost=options.retries_lost,
                    on_update=update,
                    on_events=mirror.notify,
                    say=progress.say,
                ).run()
            seconds = time.monotonic() - began
            found = readout.tables(plan, composer, ledger)
            _report(plan, found, summary, seconds, state_dir, where, console)
            page = _page(plan, composer, ledger, state_dir, command, console)
            _hand_over(mirror, found, page, summary, console)
    return _status(summary)


def _status(summary: Summary) -> int:
    if summary.interrupted:
        return 130
    bad = sum(summary.counts.get(state, 0) for state in (TrialState.FAILED, TrialState.LOST))
    return 1 if bad or summary.stopped or summary.waiting else 0


def _report(
    plan: Plan, found: Sequence[Table], summary: Summary, seconds: float, state_dir: Path, store: str, console: Console
) -> None:
    width = console.width if console.is_terminal else 120
    for table in found:
        console.print(f"\n{to_text(table, width)}", markup=False, highlight=False, soft_wrap=True)
    counts = ", ".join(f"{n} {state.value.lower()}" for state, n in sorted(summary.counts.items()) if n)
    say = lambda text: console.print(text, markup=False, highlight=False, soft_wrap=True)
    say(
        f"\n{plan.name}: {counts or 'nothing to do'}; {summary.ran} run now in {duration(seconds)}, "
        f"{summary.already_done} already done before"
    )
    for why, count in Counter(plan.missing.values()).most_common():
        say(f"not run here ({count} trials): {why}")
    for why, count in summary.waiting.items():
        say(f"waiting ({count} trials): {why}")
    if summary.stopped:
        say(f"stopped: {summary.stopped}")
    say(f"results: {state_dir}   MLflow: {store}")
    prefix = "python -m zo_sweeps"
    state = f" state_dir={shlex.quote(str(plan.config['state_dir']))}" if plan.config["state_dir"] != "zo_runs" else ""
    if summary.interrupted or any(summary.counts.get(s, 0) for s in (TrialState.PENDING, TrialState.RUNNING)):
        say("next: the same command goes on where this one stopped")
    elif any(summary.counts.get(s, 0) for s in (TrialState.FAILED, TrialState.LOST)):
        say(f"next: {prefix} status --failed{state}   then the same command with --rerun failed")
    else:
        say(f"next: {prefix} ui{state}   or   {prefix} table --format latex{state}")


@contextlib.contextmanager
def _mirror(plan: Plan, state_dir: Path, command: Command, console: Console) -> Iterator[tuple[MlflowMirror, str]]:
    """The MLflow side of a sweep and where its page is: a server of the state folder's own unless one is named."""
    import yaml

    from zo_sweeps.record import server
    from zo_sweeps.record.mlflow_store import MlflowMirror, SweepInfo

    uri = plan.config["tracking"]["uri"]
    with contextlib.ExitStack() as stack:
        where = uri or str(state_dir / "mlflow")
        if not uri:
            uri = stack.enter_context(server.local_server(state_dir))
        info = SweepInfo(
            sweep_id=sweep_id(plan),
            grid=plan.name,
            title=str(plan.grid["title"] or plan.name),
            command=str(command),
            config_yaml=yaml.safe_dump(dict(plan.config), sort_keys=False, allow_unicode=True),
        )
        say = lambda text: console.print(text, markup=False, soft_wrap=True)
        mirror = MlflowMirror(uri, plan.name, info, state_dir, say=say, patience=SERVER_SECONDS)
        stack.callback(mirror.close)
        for trial in plan.trials:
            mirror.register(trial)
        yield mirror, where


def _page(
    plan: Plan, composer: Composer, ledger: Ledger, state_dir: Path, command: Command, console: Console
) -> Mapping[str, str]:
    """The report, as a file for MLflow; none, and a line that says why, where it cannot be written."""
    try:
        return {"report.html": report.html(plan, composer, ledger, state_dir, str(command))}
    except UserError as error:
        console.print(f"no report: {error}", markup=False, soft_wrap=True)
        return {}


def _hand_over(
    mirror: MlflowMirror, found: Sequence[Table], page: Mapping[str, str], summary: Summary, console: Console
) -> None:
    """Gives MLflow the tables, and it the time to take what it has not yet: the journals keep what it does not."""
    status = "KILLED" if summary.interrupted else "FAILED" if _status(summary) else "FINISHED"
    files = {
        "table.tex": "\n\n".join(map(to_latex, found)),
        "table.csv": "\n".join(map(to_csv, found)),
        **page,
    }
    mirror.finish("\n\n".join(map(to_markdown, found)), files, _aggregates(found), status)
    left = mirror.drain(SERVER_SECONDS)
    if left:
        console.print(f"MLflow has not taken {left} trials yet; `python -m zo_sweeps sync` sends them", markup=False)


def _aggregates(found: Sequence[Table]) -> Mapping[str, float]:
    """`table/row/column/mean` and `/std` for every cell that has a value, as metrics of the parent run."""
    values = {}
    for table in found:
        for (block, column), cell in table.cells.items():
            for name, value in (("mean", cell.mean), ("std", cell.std)):
                if value is not None:
                    values[f"{table.spec.name}/{block}/{column}/{name}"] = value
    return values
