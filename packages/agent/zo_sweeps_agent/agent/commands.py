"""`agent join | move | leave | status | install-service`: this machine as an agent, from its registration to its end.

~/.zo_sweeps/agent/heads/HOST_PORT/   registration and key (keys.py), leases (spool.py), files (files.py),
                                      running.json (the running agent), trials.log
"""

from __future__ import annotations

import contextlib
import signal
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import psutil

from zo_sweeps.core.errors import UserError
from zo_sweeps.methods.parts import Device
from zo_sweeps_agent import codes
from zo_sweeps_agent.agent import keys, light, service
from zo_sweeps_agent.agent.agent import Agent, Say
from zo_sweeps_agent.agent.facts import Lending, lending, profile
from zo_sweeps_agent.agent.spool import spools
from zo_sweeps_ray.node import running, sanitised, wait_until_gone

HOME = Path("~/.zo_sweeps")
RUNNING = "running.json"
PROGRAMS = "executorch"  # the device profile of boards with the light client


@dataclass(frozen=True)
class AgentOptions:
    """The options of `agent join`.

    Args:
        url: of the head, "https://HOST:PORT".
        code: the one-time code; "": this machine is registered already.
        device: its device profile; "auto": detected, or as registered.
        name: to register under; "": the host's.
        cpus, memory_gb, slots: CPUs, memory and trials at a time to lend; None: all CPUs, the profile's memory.
        client: the light client, built for this machine: it runs all trials, and torch is not needed.
        data: a folder per task with rows that stay here; None: it has none of its own.
        authorities: file of the authorities to trust, for a head with a certificate of its own; None: as the code says.
        config_dirs: folders with device profiles of the user's own.
        also: further addresses of the head; none: those given before.
    """

    url: str
    code: str = ""
    device: str = "auto"
    name: str = ""
    cpus: int | None = None
    memory_gb: float | None = None
    slots: int = 1
    client: Path | None = None
    data: Path | None = None
    authorities: Path | None = None
    config_dirs: Sequence[str] = field(default=())
    also: Sequence[str] = field(default=())

    @property
    def lending(self) -> list[str]:
        """The command line's words for what is lent, which each start needs again."""
        words = [] if self.device == "auto" else ["--device", self.device]
        words += ["--cpus", str(self.cpus)] if self.cpus else []
        words += ["--memory", f"{self.memory_gb:g}"] if self.memory_gb else []
        words += ["--slots", str(self.slots)] if self.slots > 1 else []
        words += ["--client", str(self.client)] if self.client else []
        words += ["--data", str(self.data)] if self.data else []
        folders = [str(Path(one).expanduser().absolute()) for one in self.config_dirs]
        repeated = {"--config-dir": folders, "--also": self.also}
        return words + [word for name, values in repeated.items() for one in values for word in (name, one)]


def join(state_dir: Path, options: AgentOptions, say: Say) -> int:
    """Register if need be, then serve the head until SIGTERM or Ctrl-C. Raises UserError for anything to fix first."""
    folder = keys.folder_of(_root(state_dir), options.url)
    if agent := running(folder / RUNNING):
        raise UserError(f"an agent is already running (pid {agent['pid']})", fix="zo-sweeps agent leave")
    try:
        if registration := keys.read(folder):
            registration.link(folder).close()
    except UserError:  # damaged
        if not options.code:
            raise
        registration = None
    if registration is None and not options.code:
        raise UserError(f"this machine is not registered with {options.url}", fix=keys.AGAIN)
    if registration and (options.code or options.name or options.authorities):
        say(f"registered already, as {registration.name}: --code, --name and --ca are for a new registration")
    options, device, lent = _checked(options, registration)
    if registration is None:
        name = sanitised(options.name or socket.gethostname())
        if not name:
            raise UserError("no letter of A-Z and no digit is in this machine's name", where="--name", fix="choose one")
        code = codes.parse(options.code)
        registration = keys.enrol(folder, options.url.rstrip("/"), code, name, device.name, options.authorities)
        say(f"registered with {registration.url} as {registration.name}; its key is {folder / keys.KEY} (mode 0600)")
    if options.also:
        registration = keys.also(folder, registration, options.also)
    return Agent(folder, registration, device, lent, say, options.client, options.data).run()


def _checked(options: AgentOptions, registration: keys.Registration | None) -> tuple[AgentOptions, Device, Lending]:
    """Return the options with absolute paths, the device profile and what is lent. Raises UserError."""
    client = None if options.client is None else light.checked(options.client)
    data = None if options.data is None else options.data.expanduser().absolute()
    wanted = options.device if options.device != "auto" or registration is None else registration.device
    if client is not None and wanted == "auto":
        wanted = PROGRAMS
    device = profile(wanted, [str(one) for one in options.config_dirs])
    if client is not None and (device.is_phone or not device.runs_programs):
        what = f"the light client runs exported programs alone, and {device.name} is not a device for these"
        raise UserError(what, where="--device", fix=f"use --device {PROGRAMS}, or a profile with runtime: executorch")
    if client is not None and data is not None:
        raise UserError("the light client reads no rows of its own", where="--data", fix="leave --client or --data out")
    for url in options.also:
        keys.checked(url)
    lent = lending(device, options.cpus, options.memory_gb, options.slots, data)
    return replace(options, client=client, data=data), device, lent


def install_service(state_dir: Path, options: AgentOptions, say: Say, *, only_print: bool) -> int:
    """Write, or only print, a systemd unit that runs this machine's agent. Raises UserError when it cannot."""
    state_dir = (service.own_home(state_dir) if state_dir == HOME else state_dir).absolute()
    registration = keys.read(keys.folder_of(_root(state_dir), options.url))
    if registration is None:
        raise UserError(f"this machine is not registered with {options.url}", where=str(state_dir), fix=keys.AGAIN)
    options, _, _ = _checked(options, registration)  # at boot nobody would see what is wrong
    unit = service.unit(state_dir, options.url.rstrip("/"), options.lending, options.data)
    if only_print:
        print(unit.text, end="")
    else:
        unit.install()
        unit.tell(say)
    return 0


def move(state_dir: Path, url: str, old: str, say: Say) -> int:
    """Dial the head at another address from now on. Raises UserError if it does not answer there.

    Args:
        old: its address before; "": the only one that this machine is registered with.
    """
    root = _root(state_dir)
    keys.folder_of(root, url)
    folders = [path.parent for path in sorted(root.glob("heads/*/registration.json"))]
    folders = [keys.folder_of(root, old)] if old else folders
    registration = keys.read(folders[0]) if len(folders) == 1 else None
    if registration is None:
        what = f"this machine is registered with {len(folders) if not old else 'no such'} heads"
        raise UserError(what, where="--from", fix="name the address before, as `zo-sweeps agent status` has it")
    if agent := running(folders[0] / RUNNING):
        raise UserError(f"its agent is running (pid {agent['pid']})", fix="zo-sweeps agent leave; then move, and join")
    keys.move(folders[0], registration, url)
    say(f"{registration.name} dials {url.rstrip('/')} from now on, by its service too: zo-sweeps agent join {url}")
    return 0


def leave(state_dir: Path, say: Say) -> int:
    """Ask this machine's agents to leave, and wait until they have; return 1 when there is none."""
    found = 0
    for path in sorted(_root(state_dir).glob(f"heads/*/{RUNNING}")):
        if agent := running(path):
            found += 1
            process = psutil.Process(agent["pid"])
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGTERM)
                wait_until_gone([process])
            say(f"left {agent['url']}; to return: zo-sweeps agent join {agent['url']}")
    if not found:
        say("no agent runs here")
    return 0 if found else 1


def status(state_dir: Path, say: Say) -> int:
    """Print this machine's registrations, whether each head answers, and its trials; return 1 when there is none."""
    found = sorted(_root(state_dir).glob("heads/*/registration.json"))
    for path in found:
        registration = keys.read(path.parent)
        assert registration is not None
        say(f"{registration.name} ({registration.device}) at {registration.url}: {_state(path.parent)}")
        for spool in spools(path.parent):
            ended = f", {spool.outcome.state.value}" if spool.outcome else ""
            say(f"  {spool.label or spool.trial_id}: {len(spool.events())} events here{ended}")
    if not found:
        say("this machine is not registered with a head")
    return 0 if found else 1


def _state(folder: Path) -> str:
    agent = running(folder / RUNNING)
    if agent is None:
        return "not running"
    remark = f"; {agent['remark']}" if agent.get("remark") else ""
    if agent["heard"] is None:
        return f"running (pid {agent['pid']}), the head has not answered yet{remark}"
    heard = max(0, time.time() - agent["heard"])
    return f"running (pid {agent['pid']}), the head answered {heard:.0f} s ago{remark}"


def _root(state_dir: Path) -> Path:
    return (state_dir.expanduser() / "agent").absolute()
