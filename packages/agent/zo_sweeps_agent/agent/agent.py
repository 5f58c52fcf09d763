"""The agent's loop: ask for work, run trials, send their events, for as long as this process lives.

One thread asks (a long poll, which is the heartbeat) and joins again where the head wants that; the main thread does
everything else. Nothing waits for the head: trials go on without it, and their events wait on the disk.
"""

from __future__ import annotations

import contextlib
import json
import queue
import secrets
import shutil
import signal
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import psutil

from zo_sweeps.core.document import MalformedError
from zo_sweeps.core.errors import UserError
from zo_sweeps.core.files import replace_text
from zo_sweeps.core.trial import Outcome, TrialState
from zo_sweeps.core.units import bytes_text
from zo_sweeps.devices.energy import EnergyMeter
from zo_sweeps.devices.probe import Host, changing
from zo_sweeps.methods.parts import Device, ModelSource
from zo_sweeps.models import identity
from zo_sweeps_agent.agent import facts as here
from zo_sweeps_agent.agent import keys, light, trials
from zo_sweeps_agent.agent.examiner import Examiner
from zo_sweeps_agent.agent.files import Cache
from zo_sweeps_agent.agent.keys import Registration
from zo_sweeps_agent.agent.link import Backoff, HeadRefusedError, UnreachableError, understood
from zo_sweeps_agent.agent.spool import FRUITLESS, Spool, spools
from zo_sweeps_agent.agent.trials import TARGET, TrialProcess
from zo_sweeps_agent.known_answers import Challenge, MachineAnswers
from zo_sweeps_agent.lease_contents import LeaseContents, LeaseFile
from zo_sweeps_agent.protocol import (
    Joined,
    Joining,
    KnownPrograms,
    Leave,
    Message,
    Offer,
    Received,
    Report,
    Reported,
    WorkReply,
)

POLL_SECONDS = 25.0  # the head answers at once when it has work
TICK_SECONDS = 0.3  # between looks at the trials
SEND_SECONDS = 1.0  # between messages with a trial's events, each of which the disk must have first
ROOM = 2**25  # free bytes of the disk below which it lends nothing, until there are twice as many
NOTE_SECONDS = 15.0  # between notes for `agent status`, and reports of temperature and free memory
UPDATE_SECONDS = 60.0  # before this process ends because the head has another version
UNKNOWN_KEY, REVOKED = 401, 403

Say = Callable[[str], None]


class _RevokedError(Exception):
    """The head does not take this agent's key any more."""


class _OtherVersionError(Exception):
    """The head has another version of this package."""


@dataclass(frozen=True)
class _Ready:
    """The files of a lease are here."""

    lease: str
    folders: Mapping[str, Path]


@dataclass(frozen=True)
class _Failed:
    """The files of a lease cannot be had."""

    lease: str
    why: str


class Agent:
    """This machine as an agent of one head.

    Args:
        root: the folder of the registration.
        registration: with the head.
        device: this machine's profile.
        lent: what it lends.
        say: prints a line.
        client: the light client, which runs all trials; None: they run in PyTorch.
        data: the folder of rows that stay here, of which it is a client; None: there is none.
        target: the RunTrial, as "module:function".
    """

    def __init__(
        self,
        root: Path,
        registration: Registration,
        device: Device,
        lent: here.Lending,
        say: Say,
        client: Path | None = None,
        data: Path | None = None,
        target: str = TARGET,
    ) -> None:
        self._root, self._registration, self._device, self._lent, self._say = root, registration, device, lent, say
        self._client, self._data = client, data
        self._meter = EnergyMeter.of("cuda" if lent.gpus else "cpu")
        self._link = registration.link(root)
        self._place = {"node": registration.name, "profile": device.name}
        self._cache = Cache(root)
        self._examiner = Examiner()
        gpus: list[str | None] = [*trials.visible_gpus()[: lent.gpus]] or [None]
        command = [trials.MODULE, target] if client is None else [light.MODULE, str(client)]
        self._slots = [TrialProcess(root / "trials.log", gpus[i % len(gpus)], command) for i in range(lent.slots)]
        self._spools = {spool.lease: spool for spool in spools(root)}
        self._folders: dict[str, dict[str, Path]] = {}  # lease -> folders of its files, until it has ended
        self._fetching = threading.Lock()
        self._inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._leaving = threading.Event()
        self._backoff, self._quiet_until = Backoff(), 0.0
        self._heard: float | None = None
        self._noted: tuple[float, Any] = (0.0, None)
        self._process = secrets.token_hex(8)  # tells it from another machine with a copy of its key
        self._remark = ""  # of the head, on this machine
        self._full = ""  # why it lends nothing; "": it lends
        self._joined = self._handed_back = False

    def run(self) -> int:
        """Serve until SIGTERM or Ctrl-C (0), or until the head revokes the key (2)."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self._leave_soon())
        for spool in self._spools.values():
            self._say(f"going on with {spool.label or spool.trial_id}")
        try:
            self._look_at_the_disk()
            threading.Thread(target=self._ask, daemon=True).start()
            while not self._leaving.is_set():
                self._take(self._next())
                self._look_at_the_disk()
                self._look_at_trials()
                self._start_trials()
                self._send()
                self._note()
            self._leave()
            return 0
        except _OtherVersionError as error:
            self._say(f"the head refuses this agent: {error}")
            self._say("its service starts again in a minute, with the version that is installed by then")
            self._leaving.wait(UPDATE_SECONDS)
            return 1
        except _RevokedError as error:
            self._say(f"the head refuses this agent: {error}")
            for spool in self._spools.values():
                spool.retire()
            for name in ("registration.json", keys.KEY):  # a thief may have the key: the next one is new
                (self._root / name).unlink(missing_ok=True)
            return 2
        finally:
            for slot in self._slots:
                slot.kill()
            (self._root / "running.json").unlink(missing_ok=True)
            self._examiner.end()
            self._link.close()

    # --- the thread that asks

    def _ask(self) -> None:
        backoff, silent = Backoff(), False
        while not self._leaving.is_set():
            if self._full:
                self._leaving.wait(TICK_SECONDS)
                continue
            try:
                if not self._joined:
                    self._join()
                    self._joined = True
                asked = {"wait": f"{POLL_SECONDS:g}", "running": ",".join(tuple(self._spools))}
                asked["process"] = self._process
                work = understood(WorkReply, self._link.get("/v1/work", asked))
                if silent:
                    self._say("the head answers again")
                silent, self._heard = False, time.time()
                backoff.reset()
                taken = threading.Event()
                self._inbox.put((work, taken))
                while not (taken.wait(1.0) or self._leaving.is_set()):
                    pass  # the next question names the leases of this answer
            except UnreachableError as error:
                if not silent:
                    what = "waiting for the head" if error.after else f"cannot reach {self._registration.url}"
                    moved = "" if error.after else "; if the head has a new address: zo-sweeps agent move URL"
                    self._say(f"{what} ({error}); trials go on{moved}")
                silent = True
                self._leaving.wait(backoff.wait(error))
            except HeadRefusedError as error:
                if not (error.refusal.join or error.refusal.challenge):  # a head that was restarted forgets both
                    self._inbox.put(error)
                    return
                self._joined = False
                self._leaving.wait(backoff.wait(UnreachableError("")))
            except Exception as error:  # the main thread raises it
                self._inbox.put(error)
                return

    def _join(self) -> None:
        """Tell the head what this machine is, and answer its questions if they are new."""
        host = self._examiner.host() if self._client is None else light.host(self._examiner.probe())
        facts = here.facts(self._device, self._lent, host, self._client)
        try:
            answer = self._link.post("/v1/join", Joining(facts).to_json())
        except HeadRefusedError as error:
            if not error.refusal.challenge:
                raise
            nonce, answers = self._answers(host)
            answer = self._link.post("/v1/join", {**Joining(facts, nonce).to_json(), **answers.to_json()})
        joined = understood(Joined, answer)
        self._examiner.end()
        lent = self._lent
        gpus = f", {lent.gpus} GPU" if lent.gpus else ""
        what = f"{lent.cpus} CPUs{gpus}, {bytes_text(lent.memory_bytes)}, {lent.slots} at a time"
        self._say(f"joined {self._registration.url} as {self._registration.name} ({self._device.name}): {what}")
        self._say(f"  equal to the head: {', '.join(joined.lent) or 'nothing'}")
        for name, why in joined.refused.items():
            self._say(f"  not lent: {name}: {why}")

    def _answers(self, host: Host) -> tuple[str, MachineAnswers]:
        """Return the nonce of a challenge, and this machine's answers to it."""
        if self._client is None:
            questions = understood(Challenge, self._link.get("/v1/challenge"))
            return questions.nonce, self._examiner.answers(questions, host.codes)
        programs = understood(KnownPrograms, self._link.get("/v1/challenge", {"of": "programs"}))
        return programs.nonce, light.answers(self._client, programs)

    # --- the main thread

    def _next(self) -> Any:
        with contextlib.suppress(queue.Empty):
            return self._inbox.get(timeout=TICK_SECONDS)
        return None

    def _take(self, message: Any) -> None:
        """Act on a message of another thread."""
        if isinstance(message, Exception):
            self._refused(message)
        elif isinstance(message, _Ready):
            self._started(message)
        elif isinstance(message, _Failed):
            slot = self._slot_of(message.lease)
            if slot is not None:
                slot.spool = None
            self._folders.pop(message.lease, None)
            if spool := self._spools.get(message.lease):
                spool.lose(message.why)
        elif message is not None:
            work, taken = message
            for offer in work.leases:
                if offer.lease not in self._spools and not self._full:
                    self._accept(offer)
            for name in work.stop:
                self._stop(name)
            taken.set()

    def _accept(self, offer: Offer) -> None:
        """Fetch a new lease."""
        try:
            contents = LeaseContents.read(self._link.get(f"/v1/leases/{offer.lease}"))
            spool = Spool.create(self._root, replace(contents, lease=offer.lease))
        except UnreachableError:
            return  # the head names it again
        except HeadRefusedError as error:
            self._refused_of(error)
            return
        except (UserError, OSError, MalformedError) as error:  # its events here are damaged, or the disk is full
            self._give_back(offer, str(error))
            return
        self._spools[spool.lease] = spool
        more = len(spool.events())
        self._say(f"leased {spool.label or spool.trial_id}" + (f", going on from {more} events here" if more else ""))

    def _give_back(self, offer: Offer, why: str) -> None:
        """End a lease that has no spool as LOST."""
        self._say(f"cannot take {offer.trial_id}: {why}")
        outcome = Outcome(offer.trial_id, TrialState.LOST, error=f"the board cannot take it: {why}")
        with contextlib.suppress(UnreachableError, HeadRefusedError):
            self._post(offer.lease, Message(offer.held, (), outcome.to_json()))

    def _start_trials(self) -> None:
        """Give idle slots the trials that wait, and fetch what these read."""
        taken = {slot.spool.lease for slot in self._slots if slot.spool}
        idle = [slot for slot in self._slots if slot.spool is None]
        for spool in self._spools.values():
            if not idle or self._full:
                return
            if spool.lease in taken or spool.outcome is not None:
                continue
            if spool.fruitless:
                spool.lose(f"it was started {FRUITLESS} times on this board without reaching a step")
                continue
            slot = idle.pop()
            slot.spool = spool
            threading.Thread(target=self._prepare, args=(spool,), daemon=True).start()

    def _prepare(self, spool: Spool) -> None:
        """Fetch the files of a lease, in a thread of its own, for as long as it takes."""
        backoff = Backoff()
        while not self._leaving.is_set():
            try:
                self._inbox.put(_Ready(spool.lease, self._files(spool)))
                return
            except UnreachableError as error:
                self._leaving.wait(backoff.wait(error))
            except Exception as error:  # refused, a full disk, files that are not the announced ones
                self._inbox.put(_Failed(spool.lease, str(error) or type(error).__name__))
                return

    def _files(self, spool: Spool) -> dict[str, Path]:
        if spool.client and self._data is None:
            raise UserError("this board has no rows of its own", fix="start its agent with --data FOLDER")
        by_part: dict[str, list[LeaseFile]] = {}
        for file in spool.files:
            by_part.setdefault(file.of, []).append(file)
        copy = by_part.pop("hub", None)  # the head's, of a hub model that this board may have or get by itself
        model = spool.trial.get("config", {}).get("model", {})  # a run of the light client has no configuration
        if model.get("source") == ModelSource.HUB.value:
            repo, revision = str(model["path"]), str(model.get("revision") or "main")
            identity.ask_hub_again()  # the network of an hour ago
            if identity.cached_folder(repo, revision) is None and (why := identity.unreachable(repo, revision)):
                if not copy:
                    what = f"{repo} is in the Hugging Face cache neither of this board nor of the head, and {why} here"
                    raise UserError(what, fix=f"run `hf download {repo}` on the head")
                by_part["model"] = copy
        with self._fetching:  # of two slots that need the same model, one fetches it, and the other finds it
            got = self._folders[spool.lease] = {}
            for part, files in by_part.items():
                keep = {folder for folders in tuple(self._folders.values()) for folder in tuple(folders.values())}
                got[part] = self._cache.folder(self._link, spool.lease, files, keep)
            if spool.client and self._data is not None:
                got["data"] = self._data
        return got

    def _started(self, ready: _Ready) -> None:
        slot = self._slot_of(ready.lease)
        if slot is None or slot.spool is None:
            self._folders.pop(ready.lease, None)
            return
        if ready.lease not in self._spools or slot.spool.outcome is not None:  # stopped meanwhile
            slot.spool = None
            self._folders.pop(ready.lease, None)
            return
        slot.run(self._place, ready.folders)
        self._say(f"started {slot.spool.label or slot.spool.trial_id}")

    def _look_at_trials(self) -> None:
        """Free the slots whose trials have ended."""
        for slot in self._slots:
            why, spool = slot.ended(), slot.spool
            if why is None or spool is None:
                continue
            slot.spool = None
            self._folders.pop(spool.lease, None)
            if self._spools.get(spool.lease) is spool and spool.outcome is None:
                spool.lose(why or "it ended without an outcome")

    def _stop(self, lease: str) -> None:
        """End a trial at its next step, or before its first."""
        spool, slot = self._spools.get(lease), self._slot_of(lease)
        if spool is None or spool.outcome is not None:
            return
        if slot is not None and slot.busy:
            slot.stop()
        else:
            with contextlib.suppress(UserError):  # a full disk: the head asks again
                spool.cancel()

    def _send(self) -> None:
        """Send the head what it lacks of every lease."""
        if time.monotonic() < self._quiet_until:
            return
        self._quiet_until = time.monotonic() + SEND_SECONDS
        for spool in tuple(self._spools.values()):
            try:
                self._send_one(spool)
                self._backoff.reset()
                if self._spools.pop(spool.lease, None) is spool:
                    self._spools[spool.lease] = spool  # its next turn is after the others', which the head may put off
            except UnreachableError as error:
                self._quiet_until = time.monotonic() + self._backoff.wait(error)
                return
            except HeadRefusedError as error:
                self._over(spool, error)

    def _send_one(self, spool: Spool) -> None:
        while (message := spool.post()) is not None:
            spool.acknowledged = self._post(spool.lease, message)
            if ended := message.outcome:
                del self._spools[spool.lease]
                spool.forget()
                error = f": {ended['error']}" if ended["error"] else ""
                self._say(f"ended {spool.label or spool.trial_id}: {ended['state']}{error}")
                return

    def _post(self, lease: str, message: Message) -> int:
        """Send a part of a lease's journal; return how many of its events the head has."""
        answer = self._link.post(f"/v1/leases/{lease}/events", message.to_json())
        return understood(Received, answer).acknowledged

    def _over(self, spool: Spool, error: HeadRefusedError) -> None:
        """Take the head's refusal of a lease's events: where to go on, or that the lease is over."""
        expected = error.refusal.expected
        if expected is not None and expected < spool.acknowledged:  # a head that was restored from a copy
            spool.acknowledged = expected
            return
        self._refused_of(error)
        self._say(f"the lease of {spool.label or spool.trial_id} is over: {error}")
        slot = self._slot_of(spool.lease)
        if slot is not None and slot.busy:
            slot.stop()
        del self._spools[spool.lease]
        spool.retire()

    def _refused_of(self, error: HeadRefusedError) -> None:
        """Raise _RevokedError if a refusal is of this agent, not of a lease."""
        if error.status in (UNKNOWN_KEY, REVOKED):
            raise _RevokedError(str(error))

    def _refused(self, error: Exception) -> None:
        if isinstance(error, HeadRefusedError):
            self._refused_of(error)
            if error.refusal.version:
                raise _OtherVersionError(str(error))
        raise error

    def _slot_of(self, lease: str) -> TrialProcess | None:
        return next((slot for slot in self._slots if slot.spool and slot.spool.lease == lease), None)

    def _note(self) -> None:
        """Write what `agent status` shows, and tell the head this machine's temperature and free memory."""
        trials = [[spool.label or spool.trial_id, spool.waiting] for spool in self._spools.values()]
        words = "; ".join(filter(None, [self._full, self._remark]))
        before, known = self._noted
        now = time.monotonic()
        due = now - before >= NOTE_SECONDS
        if not due and (trials, words) == known:
            return
        self._noted = now if due else before, (trials, words)
        with contextlib.suppress(OSError):  # a full disk, which no note is worth a trial
            write_running(self._root, self._registration, self._heard, trials, words)
        if due and self._heard is not None:
            with contextlib.suppress(UnreachableError, HeadRefusedError):
                answer = self._link.post("/v1/facts", Report(changing(self._meter)).to_json())
                remark = understood(Reported, answer).remark
                if remark not in ("", self._remark):
                    self._say(f"the head says: {remark}")
                self._remark = remark

    # --- the end

    def _leave_soon(self) -> None:
        self._leaving.set()
        self._inbox.put(None)

    def _look_at_the_disk(self) -> None:
        """Lend nothing while the disk is full: hand the trials back, and join again when there is room."""
        free = shutil.disk_usage(self._root).free
        if not self._full and free < ROOM:
            self._full = f"its disk is full ({bytes_text(free)} free at {self._root}), so it lends nothing"
            self._say(f"{self._full} until there are {bytes_text(2 * ROOM)}")
            self._handed_back = False
        if self._full and not self._handed_back and time.monotonic() >= self._quiet_until:
            try:
                self._hand_back(self._full)
                self._handed_back, self._joined = True, False
            except UnreachableError:
                self._quiet_until = time.monotonic() + SEND_SECONDS
            except HeadRefusedError as error:
                self._refused(error)
        if self._full and self._handed_back and free >= 2 * ROOM:
            self._say("there is room on its disk again")
            self._full = ""

    def _leave(self) -> None:
        """Hand the trials back, and end."""
        try:
            self._hand_back("")
        except (UnreachableError, HeadRefusedError) as error:
            self._say(f"left without the head's knowledge ({error}): its leases end when their time is up")
            return
        self._say("left")

    def _hand_back(self, why: str) -> None:
        """Hand the trials back: the head has, or gets, their events so far, and places them again."""
        for slot in self._slots:
            slot.kill()
            slot.spool = None
        for spool in tuple(self._spools.values()):
            with contextlib.suppress(HeadRefusedError):
                self._send_one(spool)
        self._link.post("/v1/leave", Leave(why).to_json())
        for spool in self._spools.values():
            with contextlib.suppress(OSError):  # of a full disk: it is read as an open lease's, and refused
                spool.retire()
        self._spools.clear()
        self._folders.clear()


def write_running(
    root: Path, registration: Registration, heard: float | None, trials: list[Any], remark: str = ""
) -> None:
    """Write what `agent status` and `agent leave` read."""
    process = psutil.Process()
    state = {"pid": process.pid, "started": process.create_time(), "heard": heard, "trials": trials, "remark": remark}
    replace_text(root / "running.json", json.dumps({**asdict(registration), **state}))
