"""`worker join | leave`: this machine as a node of a cluster, from joining to leaving.

state_dir/worker/   worker.json (the running worker; no secrets), id, ray.log
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from zo_sweeps.config.composer import Composer
from zo_sweeps.core.errors import UserError
from zo_sweeps.core.files import replace_text
from zo_sweeps.devices.probe import probe
from zo_sweeps.fleet import preflight
from zo_sweeps.fleet.keeper import Keeper
from zo_sweeps.fleet.node import (
    labels,
    new_identity,
    node_arguments,
    own_folder,
    port_range,
    running,
    terminate,
    wait_until_gone,
)
from zo_sweeps.methods.definition import read
from zo_sweeps.methods.parts import Device
from zo_sweeps.schedule.cluster import remove_short_folder, short_folder, token_for_joining

HOME = Path("~/.zo_sweeps")
GRACE = 120.0
AGENT = "an agent needs neither that Python nor those ports: `zo-sweeps head code` on the head prints its command"


@dataclass(frozen=True)
class WorkerOptions:
    """The options of `worker join`.

    Args:
        token_file: None: from the environment (see `cluster.find_token`).
        cpus, gpus: that the node lends; None: all CPUs, and one GPU on a device that has one.
        memory_gb: that it lends to trials; None: the profile's, capped at the machine's.
        name: the name to display; "": the host's.
        grace: seconds for trials to stop when the node leaves.
    """

    address: str
    token_file: str | None = None
    cpus: int | None = None
    gpus: int | None = None
    memory_gb: float | None = None
    name: str = ""
    ports: str = ""
    grace: float = GRACE


def profile(name: str, config_dirs: Sequence[str]) -> Device:
    """Return a device profile by name; "auto" is this machine's. Raises UserError for an unknown name."""
    name = probe()["profile"] if name == "auto" else name
    return read(Device, Composer([f"device={name}"], config_dirs).trial["device"], "device")


def join(state_dir: Path, options: WorkerOptions, device: Device, say: Callable[[str], None]) -> int:
    """Run the checks, join, and stay joined until SIGTERM or Ctrl-C; return 1 when a check fails.

    Raises UserError when a worker already runs from this folder and when there is no token.
    """
    folder = _folder(state_dir)
    if worker := running(folder / "worker.json"):
        raise UserError(
            f"a worker is already running (pid {worker['pid']}, joined to {worker['address']})",
            fix="zo-sweeps worker leave",
        )
    if options.ports:
        port_range(options.ports)
    token = token_for_joining(options.token_file, folder)
    gpus = gpus_lent(options, device)
    failed: list[str] = []
    for check in preflight.checks(options.address, token, device, gpus, options.ports, folder):
        say(f"{check.status:4}  {check.name}: {check.detail}{f'; {check.fix}' if check.fix else ''}")
        failed += [check.name] * (check.status == "fail")
    if failed:
        say(f"not joined: {len(failed)} check{'s' * (len(failed) != 1)} failed")
        if set(failed) & preflight.NOT_OF_AGENTS:
            say(AGENT)
        return 1
    return _keep(folder, options, device, token, gpus, say)


def _keep(
    folder: Path, options: WorkerOptions, device: Device, token: Path, gpus: int, say: Callable[[str], None]
) -> int:
    short, identity = short_folder(folder), new_identity(folder)
    arguments = [f"--address={options.address}", f"--node-ip-address={preflight.own_address(options.address)}"]
    arguments += node_arguments(short, options.cpus, gpus, memory_lent(options, device), options.ports)
    name = options.name or socket.gethostname()
    process = psutil.Process()
    state = {"pid": process.pid, "started": process.create_time(), "address": options.address, "token_file": str(token)}
    replace_text(folder / "worker.json", json.dumps(state))
    say(f"joining {options.address} as {name} ({device.name}); Ctrl-C or `zo-sweeps worker leave` to leave")
    try:
        return Keeper(
            say,
            address=options.address,
            token=token,
            identity=identity,
            arguments=tuple(arguments),
            labels=labels(device.name, identity, name),
            temp_dir=short,
            log=folder / "ray.log",
            grace=options.grace,
        ).run()
    finally:
        (folder / "worker.json").unlink(missing_ok=True)
        remove_short_folder(folder)


def leave(state_dir: Path, say: Callable[[str], None]) -> int:
    """Ask this machine's worker to leave, and wait until it has; return 1 when there is none."""
    worker = running(_folder(state_dir) / "worker.json")
    if not worker:
        say("no worker runs here")
        return 1
    process = psutil.Process(worker["pid"])
    terminate(process)
    say(f"asked pid {worker['pid']} to leave; waiting for its trials to stop")
    wait_until_gone([process])
    say("left")
    return 0


def gpus_lent(options: WorkerOptions, device: Device) -> int:
    """Return the number of GPUs to lend: always explicit, because Ray does not detect a Jetson's."""
    if options.gpus is not None:
        return options.gpus
    return 0 if device.cpu else 1


def memory_lent(options: WorkerOptions, device: Device) -> int | None:
    """Return the bytes for `ray start --memory`; None, for a profile without a size: as much as Ray finds free."""
    if options.memory_gb is not None:
        return int(options.memory_gb * 10**9)
    if device.memory_gb is None:
        return None
    return min(int(device.memory_gb * 10**9), psutil.virtual_memory().total)


def _folder(state_dir: Path) -> Path:
    return own_folder(state_dir.expanduser() / "worker")
