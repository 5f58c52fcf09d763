"""A bundle on an Android phone, over adb: push, run, follow the log, read temperature and battery.

The log of the bundle here grows with the one on the phone, so that the trial can be read from it at any time, and a run
that was interrupted on either side continues. The client runs detached: unplugging the phone does not stop it. It holds
a lock on its log, so that starting it once more is harmless.

No phone was available when this was written: it is tested against a stand-in for adb only, which runs the client on
this machine. See packages/edge/ANDROID.md.
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from zo_sweeps.core.errors import UserError
from zo_sweeps.core.files import parse_object
from zo_sweeps.core.light_client import BUSY, DIVERGED, DONE, FAILED, LOG, NAME, WRONG_USAGE, Line
from zo_sweeps.run.runner import StoppedError
from zo_sweeps_edge import bundle

REMOTE = "/data/local/tmp/zo_sweeps"  # a folder in which adb's user may run programs
VOID = ".void"  # suffix of what a run has left that does not count
SENSORS = "phone.jsonl"  # temperature and battery over time, in the bundle here
KILLED = 255  # exit status of a client that ended by a signal, perhaps with the shell that would report it
MOST_RESTARTS = 5  # without a new line of the log
ZONES = 'for z in /sys/class/thermal/thermal_zone*; do echo "$(cat $z/temp) $(cat $z/type)"; done 2>/dev/null; true'


# Messages of adb where there is no connection, as opposed to a command that failed.
AWAY = r"no devices|device '.*' not found|device offline|device (still |un)author|error: closed|protocol fault|: EOF"


class DisconnectedError(UserError):
    """The phone does not answer; it may again."""


@dataclass(frozen=True)
class Adb:
    """Calls of adb. It talks to the only phone, or to the one that the environment's ANDROID_SERIAL names.

    Args:
        timeout: seconds per call, except pushes.
    """

    timeout: float = 60

    def call(self, *arguments: str, timeout: float | None = None) -> str:
        """Return the output of a call. Raises DisconnectedError if the phone does not answer, and UserError."""
        command = ["adb", *arguments]
        limit = timeout or self.timeout
        try:
            done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=limit)
        except FileNotFoundError:
            raise UserError("adb is not installed", fix="install Android's platform-tools") from None
        except subprocess.TimeoutExpired:
            raise DisconnectedError(
                f"the phone did not answer within {limit:.0f} s", where=shlex.join(command)
            ) from None
        if done.returncode == 0:
            return done.stdout
        message = (done.stderr.strip() or done.stdout.strip() or f"status {done.returncode}").splitlines()[-1]
        if "more than one device" in message:
            raise UserError(
                "several phones are connected", choices=self.serials(), fix="name one with ANDROID_SERIAL=SERIAL"
            )
        if re.search(AWAY, message):
            raise DisconnectedError(message, fix="connect the phone and allow USB debugging on it")
        raise UserError(message, where=shlex.join(command))

    def serials(self) -> list[str]:
        """Return the serials of the phones that are ready."""
        lines = subprocess.run(["adb", "devices"], capture_output=True, text=True, timeout=self.timeout).stdout
        return [line.split()[0] for line in lines.splitlines()[1:] if line.split()[1:] == ["device"]]

    def shell(self, command: str) -> str:
        """Return the output of a command on the phone."""
        return self.call("shell", command)

    def push(self, files: Sequence[Path], folder: str) -> None:
        """Copy files into a folder on the phone. Takes up to an hour."""
        self.call("push", *map(str, files), folder, timeout=3600)


@dataclass
class Phone:
    """The client of one bundle on one phone.

    Args:
        folder: the bundle here.
        client: the client's binary, built for the phone.
        poll: seconds between two looks at the log.
        sensors_every: seconds between two readings of temperature and battery, at least.
        patience: seconds without an answer of the phone after which the run is given up.
        should_stop: called between two looks.
    """

    adb: Adb
    folder: Path
    client: Path
    poll: float = 2.0
    sensors_every: float = 10.0
    patience: float = 600.0
    should_stop: Callable[[], bool] = lambda: False
    _last_reading: float = field(default=0.0, init=False)
    _void: bool = field(default=False, init=False)  # what is on the phone

    def __post_init__(self) -> None:
        self.manifest = bundle.read(self.folder).manifest
        self.remote = f"{REMOTE}/{self.manifest.settings.trial_id}"
        self.log = self.folder / LOG

    def forget(self) -> None:
        """Move what a void run has left aside: log and readings here, and its log on the phone when it answers."""
        self._void = True
        for path in (self.log, self.folder / SENSORS):
            if path.exists():
                path.replace(path.with_suffix(VOID))

    def install(self) -> None:
        """Copy bundle and client to the phone, unless they are there; a log that is on the phone is kept.

        Raises UserError if the phone's log does not begin with the one here.
        """
        if self._void:
            aside = f"kill -9 -$(cat pid); mv {LOG} {Path(LOG).with_suffix(VOID)}"
            self.adb.shell(f"(cd {self.remote} && {{ {aside}; }}) 2>/dev/null; true")
            self._void = False
        digest = hashlib.sha256((self.folder / bundle.MANIFEST).read_bytes() + self.client.read_bytes()).hexdigest()
        if self.adb.shell(f"cat {self.remote}/installed 2>/dev/null; true").strip() != digest:
            self.adb.shell(f"mkdir -p {self.remote}")
            self.adb.push([self.folder / name for name in (*self.manifest.files, bundle.MANIFEST)], self.remote)
            self.adb.push([self.client], f"{self.remote}/{NAME}")
            if self.log.exists() and LOG not in self.adb.shell(f"ls {self.remote}"):
                self.adb.push([self.log], self.remote)
            self.adb.shell(f"cd {self.remote} && chmod 755 {NAME} && echo {digest} >installed")
        here = self.log.read_bytes() if self.log.exists() else b""
        if not here:
            return
        there = self.adb.shell(f"cd {self.remote} && touch {LOG} && head -c {len(here)} {LOG} | sha256sum")
        if there.split()[:1] != [hashlib.sha256(here).hexdigest()]:
            raise UserError(
                f"the log on the phone does not begin with the one here, {self.log}",
                fix=f"move the one that is not wanted away (the phone's folder is {self.remote})",
            )

    def run(self, *arguments: str) -> Iterator[Line]:
        """Run the client to its end and yield every new line of its log; reconnect and restart as needed.

        Args:
            arguments: of the client, after the bundle; none for the steps.

        Raises DisconnectedError after `patience` seconds without the phone, UserError if the client fails, and
        StoppedError if a stop was requested: the client runs on, and the next attempt follows it before it starts one.
        """
        answered, restarts, step, is_mine = time.monotonic(), -1, 0, False
        state: int | None = KILLED
        while True:
            if self.should_stop():
                raise StoppedError
            try:
                if state is not None:
                    self.install()
                    if is_mine := self._state() is not None:
                        restarts += state == KILLED
                        self._start(arguments)
                time.sleep(self.poll)
                self._read_sensors(step)
                state = self._state()  # before the log: a client that has ended has written all of it
                lines = self._new_lines()  # last: what it returns is in the log here, and must not be lost
                answered = time.monotonic()
            except DisconnectedError:
                if time.monotonic() - answered > self.patience:
                    raise
                time.sleep(self.poll)
                continue
            yield from lines
            for line in lines:
                if line["type"] != "start":
                    restarts, step = 0, int(line["step"])
            if is_mine and state in (DONE, DIVERGED):
                return
            if is_mine and state in (FAILED, WRONG_USAGE):
                output = self.adb.shell(f"tail -n 1 {self.remote}/output.txt").strip()
                raise UserError(f"the client failed on the phone: {output}")
            if state == KILLED and restarts == MOST_RESTARTS:
                what = f"the client was killed on the phone {restarts + 1} times in a row without a new line of its log"
                raise UserError(what, fix="it may be out of memory: close apps, or export a smaller batch")

    def _start(self, arguments: Sequence[str]) -> None:
        """Start the client in a session of its own, which outlives the connection; its exit status goes to a file."""
        command = f"./{NAME} . {shlex.join(arguments)} >output.txt 2>&1; echo $? >status.part; mv status.part status"
        detached = f"setsid sh -c {shlex.quote(command)} </dev/null >/dev/null 2>&1 & echo $! >pid"
        self.adb.shell(f"cd {self.remote} && touch {LOG} && rm -f status && {{ {detached}; }}")

    def _state(self) -> int | None:
        """Return the client's exit status, or None while it runs."""
        alive = f"grep -qs {NAME} /proc/$(cat pid 2>/dev/null)/cmdline && echo alive"
        text = self.adb.shell(f"cd {self.remote} && (cat status 2>/dev/null || {{ {alive}; }}; true)").strip()
        if text == "alive":
            return None
        return int(text) if text.isdecimal() and int(text) <= BUSY else KILLED

    def _new_lines(self) -> list[Line]:
        """Append the complete new lines of the phone's log to the one here; return them."""
        size = self.log.stat().st_size if self.log.exists() else 0
        text = self.adb.shell(f"tail -c +{size + 1} {self.remote}/{LOG}")
        whole = text[: text.rfind("\n") + 1]
        lines = [parse_object(line.encode()) for line in whole.splitlines()]
        if None in lines:  # zeros after a power cut: the client cuts them off
            return []
        with self.log.open("ab") as log:
            log.write(whole.encode())
        return [line for line in lines if line is not None]

    def _read_sensors(self, step: int) -> None:
        """Append temperature and battery to a file of the bundle, at most every `sensors_every` seconds.

        Args:
            step: the last one that was seen; 0 before the first.
        """
        if time.monotonic() - self._last_reading < self.sensors_every:
            return
        self._last_reading = time.monotonic()
        line = {"time": time.time(), "step": step, **self.sensors()}
        with (self.folder / SENSORS).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def sensors(self) -> dict[str, Any]:
        """Return the battery's charge (percent) and temperature (°C), and the phone's thermal zones by name.

        The numbers of zones are those of the kernel, thousandths of a degree on most phones. What a phone does not
        tell is left out.
        """
        battery = dict(re.findall(r"^\s*(level|temperature|scale): (\d+)", self.adb.shell("dumpsys battery"), re.M))
        values: dict[str, Any] = {}
        if "level" in battery:
            values["battery_percent"] = 100 * int(battery["level"]) / int(battery.get("scale", 100))
        if "temperature" in battery:
            values["battery_celsius"] = int(battery["temperature"]) / 10  # dumpsys prints tenths
        zones = re.findall(r"^(-?\d+) (\S+)$", self.adb.shell(ZONES), re.M)
        return {**values, "zones": {name: int(value) for value, name in zones}}
