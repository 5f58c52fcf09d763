"""The keeper of a Ray node: start it, watch it, restart it when it ends, and let it leave without losing its work.

It restarts a node although systemd, Docker and Kubernetes restart processes: a node can be lost while every process
lives. A restarted head does not list it (the reporter exits with status GONE); `ray start --block` outlives a raylet
that left in order; a frozen raylet ends itself when it resumes. Boot, and the death of the keeper itself, which ends
Ray's processes too (see `die_with_parent`), are left to the supervisor.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from zo_sweeps.core.errors import UserError
from zo_sweeps.core.host import die_with_parent
from zo_sweeps_ray import cluster, private
from zo_sweeps_ray.actor import TrialActor
from zo_sweeps_ray.node import alive, wait_until_gone
from zo_sweeps_ray.reporter import GONE

TICK = 0.5
FIRST_WAIT, LONGEST_WAIT = 1.0, 60.0  # seconds before a node is started again: doubled each time
STEADY = 60.0  # uptime in seconds after which the restart back-off resets
HEAD_WAIT = 2.0  # seconds between checks for the head's return
UNREGISTER_SECONDS = 5.0
BOOT_SECONDS = 300.0  # time allowed for a raylet to appear: a starved machine takes a minute to import Ray
ACTOR = f"{private.ACTOR_TITLE}{TrialActor.__name__}"


@dataclass
class Keeper:
    """The loop that keeps one Ray node up; see `run`.

    Args:
        say: prints a line for the user.
        identity: its `zo.id`, the same after a restart.
        arguments: of `ray start`, without `--block`, `--temp-dir` and `--labels`, which `node.labels` makes.
        temp_dir: Ray's folder, a short path; old sessions in it are removed.
        log: the file for Ray's own output.
        grace: seconds for running trials to stop when the node is asked to leave; 0, as of a head: it ends at once.
        is_head: whether the node is itself the head, with no other to wait for.
        tls: of a head, whether Ray's connections are encrypted; other nodes find out.
        agents: the folder with the head's store of agents, which the reporter tells the cluster of.
        tick: called every half a second while the node is up.
    """

    say: Callable[[str], None]
    address: str
    token: Path
    identity: str
    arguments: Sequence[str]
    labels: str
    temp_dir: Path
    log: Path
    grace: float
    is_head: bool = False
    tls: bool = False
    agents: Path | None = None
    tick: Callable[[], None] = lambda: None

    def __post_init__(self) -> None:
        self._leave = self._now = False
        self._ray: subprocess.Popen[bytes] | None = None
        self._reporter: subprocess.Popen[bytes] | None = None

    def run(self) -> int:
        """Keep the node up until SIGTERM or SIGINT, then let it leave; a second signal ends it at once. Return 0."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._asked)
        wait = FIRST_WAIT
        try:
            while not self._leave:
                began = time.monotonic()
                why = self._live()
                self._end()
                if self._leave:
                    break
                if time.monotonic() - began > STEADY:
                    wait = FIRST_WAIT
                self.say(f"{why}; starting again in {wait:.0f} s")
                self._pause(wait)
                wait = min(2 * wait, LONGEST_WAIT)
        finally:
            self._end()
        return 0

    def _asked(self, number: int, frame: Any) -> None:
        self._now, self._leave = self._leave, True

    def _pause(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while not self._leave and time.monotonic() < end:
            time.sleep(0.1)

    def _live(self) -> str:
        """Start the node and watch it to its end; return why it ended."""
        if self.is_head:
            private.forget_head(self.temp_dir)
        else:
            self._wait_for_the_head()
            if self._leave:
                return "left"
        keep_newest(self.temp_dir)
        labels = f"--labels={self.labels},{cluster.BEGAN_LABEL}={time.time():.0f}"
        where = f"--temp-dir={self.temp_dir}"
        self._ray = self._start(private.CLI, "start", "--block", *self.arguments, where, labels)
        end = time.monotonic() + BOOT_SECONDS
        while not (raylet := self._raylet()) and self._ray.poll() is None and time.monotonic() < end:
            time.sleep(0.1)
        if not raylet:
            return f"Ray did not start: {last_line(self.log)} (see {self.log})"
        known = False
        while not self._leave:
            if self._ray.poll() is not None or not alive(raylet):
                return "the node's raylet has ended" + ("" if known else f": {last_line(self.log)}")
            status = self._reporter.poll() if self._reporter else 1
            if status == GONE:
                return "the head no longer knows this node"
            if status is not None:
                self._reporter = self._report()
            known = True
            self.tick()
            time.sleep(TICK)
        if not self._now:
            self._let_go(raylet)
        return "left"

    def _wait_for_the_head(self) -> None:
        """Wait until the head's port answers or the node is asked to leave; a check is cheap, so it is frequent."""
        reported = False
        while not self._leave:
            try:
                return cluster.must_answer(self.address)
            except UserError:
                if not reported:
                    reported = True
                    self.say(f"the head at {self.address} does not answer; waiting for it")
                self._pause(HEAD_WAIT)

    def _let_go(self, raylet: psutil.Process) -> None:
        """Wait for the trials that run here to stop at their next step; the raylet ends itself after the last."""
        grace = self.grace
        if grace <= 0:
            return
        try:
            cluster.must_answer(self.address)
        except UserError:
            self.say("left: the head does not answer, so trials cannot be handed back")
            return
        self.say(f"leaving: running trials have {grace:.0f} s to stop at their next step")
        end = time.monotonic() + grace
        if self._reporter:
            self._reporter.kill()
            self._reporter.wait()
        self._reporter = self._report(str(grace))
        asked: set[psutil.Process] = set()
        while time.monotonic() < end and not self._now:
            if not alive(raylet):
                self.say("left: all trials have stopped")
                return
            for actor in set(_actors(raylet)) - asked:  # an idle one ends; a busy one hands its trial back
                asked.add(actor)
                with contextlib.suppress(psutil.Error):
                    actor.terminate()
            time.sleep(0.2)
        self.say("left before all trials had stopped: the others resume elsewhere from their last scalars")

    def _report(self, *leaving: str) -> subprocess.Popen[bytes]:
        known = (self.address, str(self.token), self.identity, str(self.agents or ""))
        return self._start("zo_sweeps_ray.reporter", *known, *leaving)

    def _raylet(self) -> psutil.Process | None:
        assert self._ray
        with contextlib.suppress(psutil.Error):
            for child in psutil.Process(self._ray.pid).children():
                if child.name() == private.RAYLET:
                    return child
        return None

    def _start(self, *module_and_arguments: str) -> subprocess.Popen[bytes]:
        variables = {**cluster.QUIET, **cluster.NOT_FOR_TRIALS, **cluster.token_environment(self.token)}
        if not self.is_head:
            variables |= cluster.tls_environment(variables, self.address)
        elif self.tls:
            variables |= cluster.tls_variables(self.token.read_text().strip())
        kept = {name: value for name, value in os.environ.items() if name not in variables}
        with open(self.log, "ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", *module_and_arguments],
                env={**kept, **{name: value for name, value in variables.items() if value is not None}},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C reaches the keeper alone, which lets the trials stop first
                preexec_fn=lambda: die_with_parent(signal.SIGTERM),
            )

    def _end(self) -> None:
        """End the reporter and `ray start` with its children, which are Ray's own processes."""
        mine = []
        for process in (self._reporter, self._ray):
            if process:
                with contextlib.suppress(psutil.Error):
                    mine += [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
        for one in mine:
            with contextlib.suppress(psutil.Error):
                if one.name() == private.RAYLET:  # let it unregister; otherwise the head waits for a timeout
                    one.terminate()
                    wait_until_gone([one], UNREGISTER_SECONDS)
        for one in mine:
            with contextlib.suppress(psutil.Error):
                one.kill()
        for process in filter(None, (self._reporter, self._ray)):
            process.wait()
        wait_until_gone(mine, UNREGISTER_SECONDS)
        self._reporter = self._ray = None


def _actors(raylet: psutil.Process) -> list[psutil.Process]:
    """Return the processes that run trials. Ray titles each with the name of its actor class."""
    actors = []
    with contextlib.suppress(psutil.Error):
        for child in raylet.children():
            with contextlib.suppress(psutil.Error):
                if "".join(child.cmdline()[:1]).startswith(ACTOR):  # the command line of a zombie is empty
                    actors.append(child)
    return actors


def keep_newest(folder: Path) -> None:
    """Remove Ray's sessions except the last, whose logs may still be wanted."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for old in sorted(folder.glob("session_2*"))[:-1]:
        shutil.rmtree(old, ignore_errors=True)


def last_line(log: Path) -> str:
    """Return the last line of Ray's output that reports an error, else the last line."""
    try:
        lines = [line.strip() for line in log.read_text(errors="replace").splitlines()[-60:] if line.strip()]
    except OSError:
        lines = []
    wrong = [line for line in lines if "Error" in line or "rror:" in line]
    return (wrong or lines or ["no output"])[-1][:300]
