"""`worker join | leave`: this machine as a node of a cluster: the checks before it joins, joining, and leaving.

state_dir/worker/   worker.json (the running worker; no secrets), id, ray.log
"""

from __future__ import annotations

import os
import platform
import secrets
import shutil
import socket
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from zo_sweeps.config.composer import Composer
from zo_sweeps.core.errors import UserError
from zo_sweeps.core.host import GIB, VERSION
from zo_sweeps.core.units import bytes_text
from zo_sweeps.devices.doctor import Check, check, codes, disk, executorch, imports, tools
from zo_sweeps.devices.probe import has_cuda, probe
from zo_sweeps.methods.definition import read
from zo_sweeps.methods.parts import Device
from zo_sweeps_ray import cluster
from zo_sweeps_ray.keeper import Keeper
from zo_sweeps_ray.node import (
    OBJECT_STORE_BYTES,
    labels,
    new_identity,
    node_arguments,
    noted,
    own_folder,
    port_range,
    running,
    terminate,
    wait_until_gone,
)
from zo_sweeps_ray.private import NODE, REACH, REACHED, Head

HOME = Path("~/.zo_sweeps")
AGENT = "an agent needs neither that Python nor those ports: `zo-sweeps head code` on the head prints its command"
NOT_OF_AGENTS = {"python", "ray", "ports out", "ports in"}  # checks that `agent join` has no need of
ANSWER_SECONDS = 10.0  # time allowed for the head's reporter, which looks every two seconds, to try to reach us
SKEW = 10.0  # seconds that two clocks may differ: logs and MLflow's time axes mix them
SHM = Path("/dev/shm")  # where Ray keeps its object store
RAY_BYTES = 700 * 2**20  # a node's own processes (0.4 GB) and one trial's process before its model (0.3 GB)


class WorkerOptions(Namespace):
    """The options of `worker join`, as its parser describes them."""

    address: str
    token_file: str | None
    cpus: int | None
    gpus: int | None
    memory_gb: float | None
    name: str
    ports: str
    grace: float


def profile(name: str, config_dirs: Sequence[str]) -> Device:
    """Return a device profile by name; "auto" is this machine's. Raises UserError for an unknown name."""
    name = probe()["profile"] if name == "auto" else name
    return read(Device, Composer([f"device={name}"], config_dirs).trial["device"], "device")


def join(state_dir: Path, options: WorkerOptions, device: Device, say: Callable[[str], None]) -> int:
    """Run the checks, join, and stay joined until SIGTERM or Ctrl-C; return 1 when a check fails.

    Raises UserError when a worker already runs from this folder and when there is no token.
    """
    folder, address = _folder(state_dir), options.address
    if worker := running(folder / "worker.json"):
        what = f"a worker is already running (pid {worker['pid']}, joined to {worker['address']})"
        raise UserError(what, fix="zo-sweeps worker leave")
    if options.ports:
        port_range(options.ports)
    token = cluster.token_for_joining(options.token_file, folder)
    gpus = gpus_lent(options.gpus, device)
    failed: list[str] = []
    for one in checks(address, token, device, gpus, options.ports, folder):
        say(f"{one.status:4}  {one.name}: {one.detail}{f'; {one.fix}' if one.fix else ''}")
        failed += [one.name] * (one.status == "fail")
    if failed:
        say(f"not joined: {len(failed)} check{'s' * (len(failed) != 1)} failed")
        if set(failed) & NOT_OF_AGENTS:
            say(AGENT)
        return 1
    identity, name = new_identity(folder), options.name or socket.gethostname()
    lent = node_arguments(options.cpus, gpus, memory_lent(options.memory_gb, device), options.ports)
    with noted(folder / "worker.json", {"address": address, "token_file": str(token)}) as short:
        say(f"joining {address} as {name} ({device.name}); Ctrl-C or `zo-sweeps worker leave` to leave")
        return Keeper(
            say,
            address=address,
            token=token,
            identity=identity,
            arguments=[f"--address={address}", f"--node-ip-address={own_address(address)}", *lent],
            labels=labels(device.name, identity, name),
            temp_dir=short,
            log=folder / "ray.log",
            grace=options.grace,
        ).run()


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


def gpus_lent(named: int | None, device: Device) -> int:
    """Return the number of GPUs to lend: always explicit, because Ray does not detect a Jetson's."""
    return named if named is not None else int(not device.cpu)


def memory_lent(named_gb: float | None, device: Device) -> int | None:
    """Return the bytes for `ray start --memory`; None, for a profile without a size: as much as Ray finds free."""
    if named_gb is not None:
        return int(named_gb * 10**9)
    if device.memory_gb is None:
        return None
    return min(int(device.memory_gb * 10**9), psutil.virtual_memory().total)


def _folder(state_dir: Path) -> Path:
    return own_folder(state_dir.expanduser() / "worker")


def checks(address: str, token: Path, device: Device, gpus: int, ports: str, folder: Path) -> Iterator[Check]:
    """Yield each check as it is made. `fail`: joining would not work, or results would not be comparable.

    Args:
        gpus: that the node will lend.
        ports: the range that Ray will use here; "": any.

    Cost: seconds; imports torch, and executorch where it is installed.
    """
    try:
        head = Head(address, cluster.token_environment(token))
    except UserError as error:
        yield Check("head", "fail", error.what, error.fix or f"is `zo-sweeps head start` running at {address}?")
        head = None
    if head:
        yield Check("head", "ok", f"{address} answers and takes the token")
        yield from versions(head.versions(), {"ray": metadata.version("ray"), "python": platform.python_version()})
        notes = head.notes(NODE)
        nodes = [node for node in head.nodes() if node["Alive"]]
        of_head = next((node for node in nodes if cluster.HEAD in node["Resources"]), None)
        note = notes.get(of_head["Labels"].get(cluster.ID_LABEL, ""), {}) if of_head else {}
        yield same_code(note.get("zo_sweeps", ""))
        yield clock(time.time(), note.get("time"))
        if of_head:
            yield ports_out(of_head)
        yield ports_in(head, address, ports, there=bool(note))
    yield hardware(device)
    yield memory(device)
    yield disk(folder)
    yield shared_memory()
    yield cuda(gpus)
    yield imports("torch", "fail")
    yield from codes()
    yield executorch()
    yield from tools()
    if device.is_phone:
        yield adb(device)


def versions(heads: Mapping[str, str], ours: Mapping[str, str]) -> Iterator[Check]:
    """Check that Ray's version, and Python's down to the patch level, equal the head's, as Ray requires."""
    python = f"make the environment with Python {heads['python']} (uv venv --python {heads['python']})"
    yield _as_the_head("python", ours["python"], heads["python"], python)
    yield _as_the_head("ray", ours["ray"], heads["ray"], f"pip install 'ray[default]=={heads['ray']}'")


def same_code(heads: str) -> Check:
    """Check that the head has the same version of zo_sweeps: another one may compute other numbers."""
    if not heads:
        return Check("zo-sweeps", "warn", f"{VERSION}; the head does not report its own", "start it with `head start`")
    return _as_the_head("zo-sweeps", VERSION, heads, f"pip install 'zo-sweeps=={heads}'")


def _as_the_head(name: str, here: str, heads: str, fix: str) -> Check:
    same = here == heads
    return check(name, same, f"{here}, as the head" if same else f"{here} here, {heads} at the head", fix, "fail")


def clock(now: float, heads: float | None) -> Check:
    """Check the clock against the head's note, at most seconds old: a correct clock is at most a few seconds ahead."""
    if heads is None:
        return Check("clock", "warn", "the head does not report its time", "start it with `head start`")
    skew = now - heads
    right = -SKEW <= skew <= SKEW + 5
    text = f"within {SKEW:.0f} s of the head's" if right else f"{skew:+.0f} s from the head's"
    return check("clock", right, text, "timedatectl set-ntp true (on both)")


def ports_out(node: Mapping[str, Any]) -> Check:
    """Check that this machine reaches the ports of the head's own node."""
    host = node["NodeManagerAddress"]
    for port in (node["NodeManagerPort"], node["ObjectManagerPort"]):
        try:
            socket.create_connection((host, port), timeout=5).close()
        except OSError as error:
            fix = f"let this machine reach all ports of {host}"
            fix += ", or start the head with --ports FIRST-LAST and open those"
            return Check("ports out", "fail", f"{host}:{port} cannot be reached ({error.strerror or error})", fix)
    return Check("ports out", "ok", f"{host} can be reached on Ray's ports")


def ports_in(head: Head, address: str, ports: str, *, there: bool) -> Check:
    """Check that the head reaches this machine: open a port and ask the head's reporter to connect to it."""
    if not there:
        return Check("ports in", "warn", "not tried: the head has no reporter", "start it with `zo-sweeps head start`")
    host = own_address(address)
    try:
        server = socket.create_server((host, port_range(ports)[0] if ports else 0))
    except OSError as error:
        fix = "choose another range with --ports"
        return Check("ports in", "fail", f"cannot listen on {host}: {error.strerror}", fix)
    with server:
        port, nonce = server.getsockname()[1], secrets.token_hex(8)
        head.put(REACH + nonce, {"host": host, "port": port})
        end = time.monotonic() + ANSWER_SECONDS
        while not (answers := head.notes(REACHED + nonce)) and time.monotonic() < end:
            time.sleep(0.2)
        head.remove(REACHED + nonce)
        head.remove(REACH + nonce)
    wrong = next(iter(answers.values()))["error"] if answers else "the head did not try"
    if not wrong:
        return Check("ports in", "ok", f"the head reaches {host}")
    which = f"ports {ports}" if ports else "all ports (or choose --ports FIRST-LAST)"
    return Check("ports in", "fail", f"the head cannot reach {host}:{port} ({wrong})", f"open {which} to the head here")


def own_address(address: str) -> str:
    """Return the address of this machine as the head sees it."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host.strip("[]"), int(port)), timeout=5) as connection:
        return str(connection.getsockname()[0])


def hardware(device: Device) -> Check:
    """Check that the hardware is the device that the profile names."""
    host = probe()
    text = f"{device.name}: {device.display}"
    if device.name == host["profile"]:
        return Check("device", "ok", text)
    if device.name in ("cpu", "cuda") or device.kind == "jetson" or device.is_phone:
        text += f", but this looks like {host['profile']} ({host['name']})"
        return Check("device", "warn", text, "see --device")
    return Check("device", "ok", f"{text}, on {host['name']}")


def memory(device: Device) -> Check:
    """Check the memory that is free now, for Ray and for models; unified memory is one number for CPU and GPU."""
    ram = psutil.virtual_memory()
    shared = " (shared by CPU and GPU)" if device.unified else ""
    free = ram.available - RAY_BYTES
    text = f"{bytes_text(ram.available, ram.total)} free{shared}, {bytes_text(RAY_BYTES)} of it for Ray"
    fix = "end the desktop and other programs (sudo systemctl isolate multi-user.target)"
    return check("memory", free >= GIB, text, fix, "warn" if free > 0 else "fail")


def shared_memory() -> Check:
    """Check the room in /dev/shm, where Ray keeps its object store; with too little, Ray falls back to a slow disk."""
    free = shutil.disk_usage(SHM).free if SHM.exists() else 0
    text = f"{free / 2**20:.0f} MiB free in {SHM}, {OBJECT_STORE_BYTES / 2**20:.0f} used"
    return check("object store", free > OBJECT_STORE_BYTES, text, "docker run --shm-size=256m")


def adb(device: Device) -> Check:
    """Check that the program that reaches a phone from here is installed."""
    path, fix = shutil.which("adb"), "apt install adb, or put Android's platform-tools on PATH"
    return check("adb", bool(path), path or f"not installed: trials of {device.name} run over it", fix, "fail")


def cuda(gpus: int) -> Check:
    """Check that a node that lends a GPU has one that torch can use."""
    if not gpus:
        return Check("cuda", "ok", "no GPU is lent")
    if has_cuda():
        return Check("cuda", "ok", f"{gpus} lent: {', '.join(probe()['gpus'])}")
    jetson = os.path.exists("/etc/nv_tegra_release")
    fix = "install NVIDIA's torch for this JetPack" if jetson else "install torch with CUDA"
    return Check("cuda", "fail", "torch finds no CUDA GPU", f"{fix}, or join with --gpus 0")
