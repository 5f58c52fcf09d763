"""The processes that run trials, one per slot: the agent writes their standard input, and reads their output.

A trial appends its events to its spool itself, so that nothing is lost with either process. A process ends with the
agent, whose end closes its input; the lock of a spool keeps a second one out until then.

    python -m zo_sweeps_agent.agent.trials TARGET     reads {"run": LEASE, ...} and {"stop": true}; writes "ended"
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

from zo_sweeps.core.errors import UserError
from zo_sweeps.core.events import Event, Start
from zo_sweeps.core.files import locked
from zo_sweeps.core.trial import Outcome, Trial
from zo_sweeps.devices.probe import GPU_NODES
from zo_sweeps.methods.parts import ModelSource
from zo_sweeps.methods.trial_config import TrialConfig
from zo_sweeps.record.journal import Journal
from zo_sweeps.schedule.backend import run_guarded
from zo_sweeps_agent.agent.files import inside
from zo_sweeps_agent.agent.spool import Spool

MODULE = "zo_sweeps_agent.agent.trials"
TARGET = f"{MODULE}:run_checked"
END_SECONDS = 10.0
DEV, VISIBLE = Path("/dev"), "CUDA_VISIBLE_DEVICES"


def visible_gpus() -> list[str]:
    """Return the GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them: those in it, if it is set."""
    if (chosen := os.environ.get(VISIBLE)) is not None:
        return [one for one in chosen.replace(" ", "").split(",") if one not in ("", "-1")]
    numbered = len(list(DEV.glob("nvidia[0-9]*")))  # a Jetson's is not
    return [str(i) for i in range(numbered or any((DEV / Path(node).name).exists() for node in GPU_NODES))]


def end_of(status: int, messages: str = "") -> str:
    """Return how a process ended, in words: its last message, if it ended by itself and left one."""
    if status < 0:
        what = " (perhaps for lack of memory)" if status == -signal.SIGKILL else ""
        return f"was ended by {signal.Signals(-status).name}{what}"
    return (messages.strip().splitlines() or [f"ended with status {status}"])[-1]


class TrialProcess:
    """A process that runs one trial at a time, started when it is first needed; it keeps its last model loaded.

    Args:
        log: what the process and its libraries print.
        gpu: the GPU that it sees, one of `visible_gpus`; None: none.
        command: what Python runs in it: a module that calls `serve`, and its arguments.

    Attributes:
        spool: of the trial that it runs, or is to run; None: idle.
        busy: whether that trial runs.
    """

    def __init__(self, log: Path, gpu: str | None, command: Sequence[str]) -> None:
        self._log, self._gpu, self._command = log, gpu, command
        self._process: subprocess.Popen[bytes] | None = None
        self._ended: queue.SimpleQueue[None] = queue.SimpleQueue()
        self.busy = False
        self.spool: Spool | None = None

    def run(self, place: Mapping[str, str], folders: Mapping[str, Path]) -> None:
        """Start the trial of `spool`.

        Args:
            place: this machine's name and device profile, for the events.
            folders: see `here`.
        """
        assert self.spool is not None
        if self._process is None or self._process.poll() is not None:  # an idle one that keeps a model is killed first
            self._process = self._start()
        self.busy = True
        there = {name: str(folder) for name, folder in folders.items()}
        self._tell({"run": str(self.spool.folder), "place": dict(place), "folders": there})

    def stop(self) -> None:
        """Ask the trial to end as CANCELLED at its next step."""
        self._tell({"stop": True})

    def ended(self) -> str | None:
        """Return None while the trial runs or has not started, "" when it has ended, or why its process did."""
        if not self.busy or self._process is None:
            return None
        if not self._ended.empty():
            self._ended.get()
            self.busy = False
            return ""
        if self._process.poll() is None:
            return None
        code, self._process, self.busy = self._process.returncode, None, False
        return f"its process {end_of(code)}"

    def kill(self) -> None:
        """End the process; its trial's events are on the disk."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(END_SECONDS)
            self._process, self.busy = None, False

    def _tell(self, words: Mapping[str, Any]) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # `ended` says that it is gone
            self._process.stdin.write(json.dumps(words).encode() + b"\n")
            self._process.stdin.flush()

    def _start(self) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", *self._command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, VISIBLE: self._gpu or ""},
            )
        assert process.stdout is not None
        self._ended = queue.SimpleQueue()  # of this process: what an earlier one still said is no word on its trials
        threading.Thread(target=_listen, args=(process.stdout, self._ended), daemon=True).start()
        return process


def _listen(output: IO[bytes], ended: queue.SimpleQueue[None]) -> None:
    for _ in output:
        ended.put(None)


@dataclass(frozen=True)
class _Sink:
    """Appends a trial's events to its spool; `start` gets this machine's name and device profile."""

    journal: Journal
    place: Mapping[str, str]

    def emit(self, event: Event) -> None:
        self.journal.append(event.at(**self.place) if isinstance(event, Start) else event)


def here(trial: Mapping[str, Any], folders: Mapping[str, str]) -> Trial:
    """Return a trial with the paths that its model and data have on this machine: they are no part of its identity.

    The head chooses none of them. Above all no folder of members: code reaches a board through its owner alone.

    Args:
        trial: as the head sent it.
        folders: "model", "data" and "rows" -> the folder here, of those that came from the head.

    Raises UserError for a model or rows that are neither from the head nor from the hub nor in the package, and for a
    trial of a phone, or of a log.
    """
    config = {name: part for name, part in trial["config"].items() if name != "members"}
    device = config.get("device", {})
    if device.get("kind") == "phone" or device.get("log"):
        raise UserError("trials of phones, and of the light client's logs, run on the head's own nodes")
    if "model" in folders:
        config["model"] = {**config["model"], "source": ModelSource.LOCAL.value, "path": folders["model"]}
    elif "model" in config and config["model"]["source"] == ModelSource.LOCAL.value:
        raise UserError("the head sent no file of the trial's model")
    if "data" in config:
        config["data"] = {**config["data"], "dir": folders.get("data")}
    if "rows" in folders:
        task = config["task"]
        config["task"] = {**task, "hub": {**task["hub"], "path": folders["rows"]}}
    elif "task" in config and config["task"]["source"] != "packaged" and "data" not in folders:
        raise UserError("the head sent no rows of the trial's task")
    return Trial.from_json({**trial, "config": config})


def run_checked(trial: Trial, *args: Any, **options: Any) -> Outcome:
    """Run a trial as `run_trial` does, if a model in a folder is the trial's own; else raise UserError."""
    from zo_sweeps.run.run_trial import run_trial

    checked(trial)
    return run_trial(trial, *args, **options)


def checked(trial: Trial) -> None:
    """Raise UserError unless a model in a folder is the trial's own, and its rows and texts are below their folder."""
    from zo_sweeps.methods.trial_config import texts_of
    from zo_sweeps.models.identity import fingerprint_model

    config = TrialConfig.of(trial.config)
    for name in (config.task.folder, *(name for name, _ in texts_of(config))):
        inside(name)
    model = config.model
    wanted = model.fingerprint
    from_hub = wanted.startswith("hf:")  # whose identity is its name; the digests of its files were checked
    if model.source is ModelSource.LOCAL and not from_hub and (found := fingerprint_model(model)) != wanted:
        raise UserError(f"the model here is {found}, and the trial's is {wanted}", where=str(model.path))


def answer_rounds(trial: Trial, journal: Sequence[Event], spool: Spool, should_stop: Callable[[], bool]) -> None:
    """Be a client of a trial that the head leads, until the lease is over: its questions down, losses of own rows up.

    A process that begins again is asked all that was asked, in one question, and thereby has the others' weights.
    """
    from zo_sweeps.run.run_trial import Following
    from zo_sweeps_agent.agent import keys
    from zo_sweeps_agent.agent.link import Backoff, HeadRefusedError, UnreachableError

    root, backoff = spool.folder.parents[1], Backoff()
    registration = keys.read(root)
    if registration is None:
        raise UserError("this machine is not registered any more", where=str(root))
    checked(trial)
    link, following = registration.link(root), Following(trial, journal)
    number, answer = 0, following.ready
    try:
        while not should_stop():
            try:
                question = link.answer(f"/v1/leases/{spool.lease}/answers/{number}", answer)
            except UnreachableError as error:
                time.sleep(backoff.wait(error))
                continue
            except HeadRefusedError:  # the lease is over, as the agent hears, too
                break
            backoff.reset()
            if question is not None:
                number, answer = question[0], following.answer(question[1])
    except ValueError as error:  # a question that is none
        raise UserError(f"the head asked what it cannot: {error}") from error
    finally:
        following.leave()
        link.close()
    spool.cancel()


def run(target: str, words: Mapping[str, Any], should_stop: Callable[[], bool]) -> None:
    """Run the trial of a spool from where its journal ends. Its errors are its outcome.

    Args:
        target: the RunTrial, as "module:function".
    """
    folder = Path(words["run"])
    with locked(folder / "lock"):
        spool = Spool(folder)
        os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = str(spool.threads)
        if "torch" in sys.modules:  # which reads the environment when it is first imported
            sys.modules["torch"].set_num_threads(spool.threads)
        try:
            trial, journal = here(spool.trial, words["folders"]), spool.journal
            if spool.client:
                answer_rounds(trial, journal, spool, should_stop)
                return
        except UserError as error:
            spool.lose(str(error))
            return
        with Journal(folder / "events.jsonl") as events:
            sink = _Sink(events, words["place"])
            run_guarded(target, trial, sink, journal, spool.attempt, should_stop)


def serve(run: Callable[[Mapping[str, Any], Callable[[], bool]], None]) -> None:
    """Call `run(words, should_stop)` for each trial that the agent asks for, until it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the agent's
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    asked: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    stopped = threading.Event()

    def listen() -> None:
        for line in sys.stdin:
            words = json.loads(line)
            if "stop" in words:
                stopped.set()
            else:
                stopped.clear()
                asked.put(words)
        os._exit(0)  # the agent has ended; every event is on the disk

    threading.Thread(target=listen, daemon=True).start()
    while True:
        words = asked.get()
        run(words, stopped.is_set)
        print("ended", file=answers, flush=True)


if __name__ == "__main__":
    serve(partial(run, sys.argv[1]))
