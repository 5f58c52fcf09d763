"""The runs of the page, without Streamlit: what there is to choose, a choice's command, its process and its journal."""

from __future__ import annotations

import math
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from os import kill
from pathlib import Path
from typing import Any, TypeVar

import psutil

from zo_sweeps.config.composer import Composer
from zo_sweeps.core.errors import UserError
from zo_sweeps.core.events import Event
from zo_sweeps.core.fingerprint import fingerprint
from zo_sweeps.core.trial import Outcome, Trial, TrialState
from zo_sweeps.methods.definition import read
from zo_sweeps.methods.metric import Metric, Of
from zo_sweeps.methods.parts import Model, ModelSource
from zo_sweeps.methods.registry import member, names
from zo_sweeps.methods.task import CHAT, Task
from zo_sweeps.methods.trial_config import TrialConfig
from zo_sweeps.models.identity import cached_folder, fetched
from zo_sweeps.record.journal import JournalStore, last_step, outcome, read_events, trail
from zo_sweeps.record.sweep_book import Command
from zo_sweeps.results.facts import plan_facts
from zo_sweeps.schedule.ledger import driver_of
from zo_sweeps.schedule.this_host import must_have_work
from zo_sweeps.session.session import plan_here

GRID, CONF = "+grid=demo", Path(__file__).resolve().parent / "conf"
LOG = "page.log"  # what a run's process prints
ADAPTER, MERGED = "adapter", "merged"  # folders of exported weights
EXAMPLES = 16  # per step, shared by its directions
EVALUATIONS = 10  # on dev, of a run
Part = TypeVar("Part", Model, Task)
_lock = threading.RLock()  # Hydra's state is one per process, and each visitor of the page has a thread


@dataclass(frozen=True)
class Page:
    """What all runs of a page have in common.

    Args:
        state_dir: has a state folder for each run.
        config_dirs, overrides: as on the command line; what they set cannot be chosen on the page.
    """

    state_dir: Path
    config_dirs: tuple[str, ...] = ()
    overrides: tuple[str, ...] = ()

    @property
    def folders(self) -> tuple[str, ...]:
        """The folders with configuration files, the page's own first."""
        return (str(CONF.relative_to(Path.cwd()) if CONF.is_relative_to(Path.cwd()) else CONF), *self.config_dirs)

    @property
    def given(self) -> dict[str, str]:
        """The overrides by key."""
        return dict(text.split("=", 1) for text in self.overrides if "=" in text)

    def composer(self, *overrides: str) -> Composer:
        """Compose the grid of one run. Raises UserError for bad input."""
        return Composer([GRID, *overrides, *self.overrides], self.folders)


@dataclass(frozen=True)
class Choice:
    """A run, as it is chosen on the page; None: the method has no such option."""

    model: str = "demo"
    task: str = "demo_remarks"
    method: str = "prge"
    prompt: str = "mezo"
    lr: float | str | None = None
    q: int | None = None
    steps: int = 150
    seed: int = 0

    def overrides(self, page: Page, objective: Mapping[str, str]) -> list[str]:
        """Return the words of its command; what the page's own overrides set is left to them."""
        chosen: dict[str, Any] = {
            "model": self.model,
            "task": self.task,
            "prompt": self.prompt,
            "method": self.method,
            "update.lr": _number(self.lr),
            "estimator.q": self.q,
            "train.batch": max(1, EXAMPLES // (self.q or 1)),
            "train.steps": self.steps,
            "train.eval_every": max(1, math.ceil(self.steps / EVALUATIONS)),
            "grid.seeds": f"[{self.seed}]",
            **objective,
        }
        own = [f"{key}={value}" for key, value in chosen.items() if value is not None and key not in page.given]
        return [GRID, *own, *page.overrides, "executor=inline"]


def _number(typed: float | str | None) -> float | str | None:
    """Return the number that a text is, however it is spelled; anything else as it is, which the plan refuses."""
    try:
        return float(typed or "")
    except ValueError:
        return typed


@dataclass(frozen=True)
class Offered:
    """What there is to choose, by name; each has a line on what it is."""

    models: Mapping[str, str]
    tasks: Mapping[str, str]
    methods: Mapping[str, str]


def offered(page: Page) -> Offered:
    """Return the models and rows that are here, and the methods that train by zeroth-order estimates.

    Raises UserError for bad input.
    """
    with _lock:
        composer = page.composer()
        read_models = {name: _part(composer, name, Model) for name in _files(composer, "model")}
        read_tasks = {name: _part(composer, name, Task) for name in _files(composer, "task")}
        files = _files(composer, "method")
        kinds = {name: _kind(composer, name) for name in files}
    given, rows = page.given, Path(page.given.get("data.dir", "")).expanduser()
    models = {name: one.display or name for name, one in read_models.items() if _is_here(one)}
    tasks = {
        name: one.display
        for name, one in read_tasks.items()
        if one.source or ("data.dir" in given and (rows / (one.local or name)).is_dir())
    }
    # A kind of a package that is not installed trains nothing here.
    methods = {
        name: _comment(files[name])
        for name, kind in kinds.items()
        if kind in names("kind") and getattr(member("kind", kind), "estimates", False)
    }
    named = {group: {given[group]: ""} if group in given else {} for group in ("model", "task", "method")}
    return Offered({**models, **named["model"]}, {**tasks, **named["task"]}, {**methods, **named["method"]})


def _files(composer: Composer, group: str) -> dict[str, Path]:
    return {file.stem: file for folder in composer.folders for file in sorted((folder / group).glob("*.yaml"))}


def _part(composer: Composer, name: str, part: type[Part]) -> Part:
    """Return a model or a task by name. Raises UserError for a malformed file."""
    group = part.__name__.lower()
    tree = composer.option(group, name)
    if "defaults" in tree:  # it inherits; composing takes a tenth of a second
        tree = composer.trial_part({group: name})[group]
    return read(part, tree, group, composer.locate({group: name}))


def _kind(composer: Composer, method: str) -> str:
    """Return the name of a method's kind, which its file may inherit."""
    own = composer.option("method", method).get("method", {}).get("kind")
    return str(own or composer.trial_part({"method": method})["method"]["kind"])


def _is_here(model: Model) -> bool:
    """Return whether a model ships with the package, or was downloaded."""
    if model.source is not ModelSource.HUB:
        return model.source is ModelSource.DEMO
    return fetched(vars(model)) is not None or cached_folder(model.path or "", model.revision or "main") is not None


def _comment(file: Path) -> str:
    """Return the comment that a file of conf begins with."""
    said = re.match(r"(?:# @package .*\n)?((?:# .*\n)*)", file.read_text(encoding="utf-8"))
    return " ".join(line[2:] for line in (said[1] if said else "").splitlines())


@dataclass(frozen=True)
class Defaults:
    """What a choice of model, task and method leads to.

    Args:
        lr, q: None: the method has no such option.
        prompt: the wording: of a reward, the chat template of a model from the hub.
    """

    lr: float | None
    q: int | None
    prompt: str


def defaults(page: Page, model: str, task: str, method: str) -> Defaults:
    """Return the defaults of a choice.

    The learning rate is the league's where its model is chosen, as a paper's rates are those of larger ones.
    """
    with _lock:
        composer = page.composer(*([] if "model" in page.given else [f"model={model}"]))
        league, rewarded = composer.option("grid", "league"), _rewarded(_part(composer, task, Task))
        own = read(Model, composer.trial["model"], "model", composer.locate({"model": model}))
        rates = [one["fixed"]["update"]["lr"] for one in league["blocks"].values() if _trains(one["fixed"], method)]
        lr = composer.option_of({"method": method}, "update.lr")
        q = composer.option_of({"method": method}, "estimator.q")
        if rates and league["fixed"]["model"] == own.name:
            lr = float(f"{3 * rates[0]:.1g}")  # the third of the four that it compares
        chats = rewarded and own.source is ModelSource.HUB
    return Defaults(lr, q, CHAT if chats else composer.trial["prompt"]["name"])


def _trains(fixed: Mapping[str, Any], method: str) -> bool:
    return bool(fixed["method"] == method and "update" in fixed)


def _rewarded(task: Task) -> bool:
    return task.kind.predicts is Of.REWARDS


@dataclass(frozen=True)
class Run:
    """A choice that can run here.

    Args:
        command: that runs it, also in a terminal.
        folder: its state folder, which equal choices share.
        seconds, memory_bytes: as predicted; None: not known.
        notes: what the plan says of it.
    """

    command: Command
    folder: Path
    trial: Trial = field(repr=False)
    seconds: float | None = None
    memory_bytes: int | None = None
    notes: tuple[str, ...] = ()

    @property
    def metric(self) -> Metric:
        """The task's first."""
        return TrialConfig.of(self.trial.config).task.metric[0]


def prepare(page: Page, choice: Choice) -> Run:
    """Compose and plan a choice. Raises UserError, in the words of the command line, if it cannot run here."""
    with _lock:
        rewarded = _rewarded(_part(page.composer(), page.given.get("task", choice.task), Task))
        objective = {"train.objective": "reward", "train.select": "metric"} if rewarded else {}
        words = choice.overrides(page, objective)
        folder = page.state_dir / fingerprint([words, page.config_dirs])
        command = Command.of([*words, f"state_dir={folder}"], page.folders)
        plan = plan_here(Composer(command.overrides, command.config_dirs))
        must_have_work(plan)
        facts = plan_facts(plan)
    if len(plan.trials) != 1:
        raise UserError(f"these are {len(plan.trials)} trials", fix="give one value of each option")
    (trial,) = plan.trials
    notes = [line.text for line in facts.notes]
    seconds = facts.seconds_to_go or facts.trials[0].seconds  # nothing is left of a finished one
    return Run(command, folder, trial, seconds, trial.needs.memory_bytes or None, tuple(notes))


_processes: dict[Path, subprocess.Popen[bytes]] = {}  # by state folder, those that this process started


def start(run: Run) -> None:
    """Start a run, or let it go on, as a process of its own, which outlives the page. Nothing happens if it runs.

    Raises UserError if its folder cannot be written.
    """
    with _lock:
        if pid_of(run.folder):
            return
        flags = [word for folder in run.command.config_dirs for word in ("--config-dir", folder)]
        command = [sys.executable, "-m", "zo_sweeps", *run.command.overrides, *flags]
        try:
            run.folder.mkdir(parents=True, exist_ok=True)
            with open(run.folder / LOG, "wb") as log:
                _processes[run.folder] = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
                )
        except OSError as error:
            raise UserError(
                f"cannot write {run.folder}: {error.strerror}", fix="name a folder with --state-dir"
            ) from None


def pid_of(folder: Path) -> int | None:
    """Return the process that runs in a state folder, whoever started it on this host; None if none does."""
    started = _processes.get(folder)
    if started is not None and started.poll() is None:
        return started.pid
    driver = re.fullmatch(r"pid (\d+) on (.*)", driver_of(folder))
    return int(driver[1]) if driver and driver[2] == socket.gethostname() else None


def stop(folder: Path) -> None:
    """Interrupt the process of a state folder, as Ctrl-C does: it ends after the step, and can be resumed."""
    if pid := pid_of(folder):
        kill(pid, signal.SIGTERM)  # a sweep stops as on Ctrl-C, which a shell lets its background jobs ignore


def running(page: Page) -> Iterator[Path]:
    """Yield the folders of the page's runs that go on."""
    yield from (folder for folder in sorted(page.state_dir.glob("*")) if folder.is_dir() and pid_of(folder))


@dataclass(frozen=True)
class Progress:
    """A run as its journal has it.

    Args:
        state: "new", "starting", "running", "stopping", "stopped", or how it ended: "failed", "succeeded", ...
        step: the last one that is done.
        curves: see `record.journal.trail`.
        memory_bytes: the process' now, or at the end the measured peak; None: there is none.
        shown: the step whose weights count: of the last evaluation, or at the end the one that was selected.
        outcome: at the end.
        error: one line.
    """

    state: str
    step: int
    curves: Mapping[str, list[tuple[int, float, float]]]
    memory_bytes: float | None
    shown: int
    outcome: Outcome | None = None
    error: str = ""
    journal: list[Event] = field(default_factory=list, repr=False)

    @property
    def alive(self) -> bool:
        """Whether its process goes on."""
        return self.state in ("starting", "running", "stopping")

    @property
    def seconds_per_step(self) -> float | None:
        """The mean so far; None before the first."""
        losses = self.curves["train/loss"]
        return losses[-1][1] / len(losses) if losses else None


_read: dict[Path, tuple[list[Event], int]] = {}  # journal -> its events so far, and where the next begins


def progress(run: Run) -> Progress:
    """Return how far a run is. Raises UserError if its journal is damaged. Cost: reads what is new in the journal."""
    journal, pid = _journal(run), pid_of(run.folder)
    curves, ended, error = trail(journal), outcome(journal), ""
    state = "starting" if pid else "new"
    if journal:
        state = "running" if pid else "stopped"
    if ended is not None and ended.state.is_result:
        state, error = ended.state.value.lower().replace("_", " "), ended.error
    elif ended is not None and pid:
        state = "stopping"
    elif not pid and (ended.state.is_retryable if ended else _broke(run, journal)):
        state, error = "failed", ended.error if ended else _last_line(run.folder / LOG)
    done = ended if ended and ended.state.is_result else None
    memory = done.metrics.get("peak_memory_bytes") if done else _memory(pid)
    scored = [step for step, _, _ in curves["dev/metric"]]
    shown = done.selected_step if done and done.state is TrialState.SUCCEEDED else max(scored, default=0)
    return Progress(state, last_step(journal), curves, memory, shown, done, error, journal)


def _journal(run: Run) -> list[Event]:
    """Return the events of a run so far; of a step that is written now, nothing yet."""
    path = JournalStore(run.folder).path(run.trial.trial_id)
    with _lock:
        events, offset = _read.get(path, ([], 0))
        if not path.exists() or path.stat().st_size < offset:
            events, offset = [], 0
        try:
            new, end = read_events(path, offset)
        except UserError:  # another journal, of a run that was begun anew
            events, (new, end) = [], read_events(path)
        _read[path] = [*events, *new], end
        return _read[path][0]


def _broke(run: Run, journal: list[Event]) -> bool:
    """Return whether the process ended by itself without a word in the journal."""
    ended = _processes.get(run.folder)
    if ended is None:
        return not journal and bool(_last_line(run.folder / LOG))  # of one that was stopped at once it is empty
    return ended.returncode not in (0, 130, -signal.SIGINT, -signal.SIGTERM)


def _last_line(file: Path) -> str:
    lines = file.read_text(encoding="utf-8", errors="replace").split("\n") if file.exists() else []
    return next((line for line in reversed(lines) if line.strip()), "").removeprefix("zo_sweeps: ")


def _memory(pid: int | None) -> float | None:
    try:
        return float(psutil.Process(pid).memory_info().rss) if pid else None
    except psutil.Error:
        return None


def export(run: Run, *, merge: bool) -> None:
    """Write the weights of a run that has succeeded, by the command `export`, unless they are there.

    Raises UserError with the command's own line if it refuses.
    """
    folder = run.folder / (MERGED if merge else ADAPTER)
    if folder in exported(run):
        return
    words = ["export", run.trial.trial_id, f"state_dir={run.folder}", "--out", str(folder)]
    command = [sys.executable, "-m", "zo_sweeps", *words, *(["--merge"] if merge else [])]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise UserError(done.stderr.strip().rpartition("\n")[2].removeprefix("zo_sweeps: "))


def exported(run: Run) -> list[Path]:
    """Return the folders with its weights that `export` has written."""
    return [folder for name in (ADAPTER, MERGED) if (folder := run.folder / name).is_dir()]
