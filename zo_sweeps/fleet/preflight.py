"""Checks that this machine is fit to join a cluster, before anything starts: one line per check, each with its fix."""

from __future__ import annotations

import os
import platform
import secrets
import shutil
import socket
import time
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from zo_sweeps.core.errors import UserError
from zo_sweeps.core.host import GIB, VERSION
from zo_sweeps.core.units import bytes_text
from zo_sweeps.devices.doctor import Check, Status, codes, disk, executorch, imports, tools
from zo_sweeps.devices.probe import has_cuda, probe
from zo_sweeps.fleet.node import OBJECT_STORE_BYTES, port_range
from zo_sweeps.methods.parts import Device
from zo_sweeps.schedule import cluster
from zo_sweeps.schedule.ray_private import NODE, REACH, REACHED, Head

ANSWER_SECONDS = 10.0  # time allowed for the head's reporter, which looks every two seconds, to try to reach us
SKEW = 10.0  # seconds that two clocks may differ: logs and MLflow's time axes mix them
SHM = Path("/dev/shm")  # where Ray keeps its object store
RAY_BYTES = 700 * 2**20  # a node's own processes (0.4 GB) and one trial's process before its model (0.3 GB)
NOT_OF_AGENTS = {"python", "ray", "ports out", "ports in"}  # checks that `agent join` has no need of


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
    yield profile(device)
    yield from memory(device)
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
    for name, fix in (
        ("python", f"make the environment with Python {heads['python']} (uv venv --python {heads['python']})"),
        ("ray", f"pip install 'ray[default]=={heads['ray']}'"),
    ):
        if heads[name] == ours[name]:
            yield Check(name, "ok", f"{ours[name]}, as the head")
        else:
            yield Check(name, "fail", f"{ours[name]} here, {heads[name]} at the head", fix)


def same_code(heads: str) -> Check:
    """Check that the head has the same version of zo_sweeps: another one may compute other numbers."""
    if heads == VERSION:
        return Check("zo-sweeps", "ok", f"{VERSION}, as the head")
    if not heads:
        return Check("zo-sweeps", "warn", f"{VERSION}; the head does not report its own", "start it with `head start`")
    fix = f"pip install 'zo-sweeps=={heads}'"
    return Check("zo-sweeps", "fail", f"{VERSION} here, {heads} at the head", fix)


def clock(now: float, heads: float | None) -> Check:
    """Check the clock against the head's note, at most seconds old: a correct clock is at most a few seconds ahead."""
    if heads is None:
        return Check("clock", "warn", "the head does not report its time", "start it with `head start`")
    skew = now - heads
    if -SKEW <= skew <= SKEW + 5:
        return Check("clock", "ok", f"within {SKEW:.0f} s of the head's")
    return Check("clock", "warn", f"{skew:+.0f} s from the head's", "timedatectl set-ntp true (on both)")


def ports_out(node: Mapping[str, Any]) -> Check:
    """Check that this machine reaches the ports of the head's own node."""
    host = node["NodeManagerAddress"]
    for port in (node["NodeManagerPort"], node["ObjectManagerPort"]):
        try:
            socket.create_connection((host, port), timeout=5).close()
        except OSError as error:
            fix = (
                f"let this machine reach all ports of {host}, or start the head with --ports FIRST-LAST and open those"
            )
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
        return Check(
            "ports in", "fail", f"cannot listen on {host}: {error.strerror}", "choose another range with --ports"
        )
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


def profile(device: Device) -> Check:
    """Check that the hardware is the device that the profile names."""
    host = probe()
    text = f"{device.name}: {device.display}"
    if device.name == host["profile"]:
        return Check("device", "ok", text)
    if device.name in ("cpu", "cuda") or device.kind == "jetson" or device.is_phone:
        return Check(
            "device", "warn", f"{text}, but this looks like {host['profile']} ({host['name']})", "see --device"
        )
    return Check("device", "ok", f"{text}, on {host['name']}")


def memory(device: Device) -> Iterator[Check]:
    """Check the memory that is free now, for Ray and for models; unified memory is one number for CPU and GPU."""
    ram = psutil.virtual_memory()
    shared = " (shared by CPU and GPU)" if device.unified else ""
    free = ram.available - RAY_BYTES
    fix = "" if free >= GIB else "end the desktop and other programs (sudo systemctl isolate multi-user.target)"
    status: Status = "ok" if free >= GIB else "warn" if free > 0 else "fail"
    text = f"{bytes_text(ram.available, ram.total)} free{shared}, {bytes_text(RAY_BYTES)} of it for Ray"
    yield Check("memory", status, text, fix)


def shared_memory() -> Check:
    """Check the room in /dev/shm, where Ray keeps its object store; with too little, Ray falls back to a slow disk."""
    free = shutil.disk_usage(SHM).free if SHM.exists() else 0
    enough = free > OBJECT_STORE_BYTES
    text = f"{free / 2**20:.0f} MiB free in {SHM}, {OBJECT_STORE_BYTES / 2**20:.0f} used"
    return Check("object store", "ok" if enough else "warn", text, "" if enough else "docker run --shm-size=256m")


def adb(device: Device) -> Check:
    """Check that the program that reaches a phone from here is installed."""
    if path := shutil.which("adb"):
        return Check("adb", "ok", path)
    fix = "apt install adb, or put Android's platform-tools on PATH"
    return Check("adb", "fail", f"not installed: trials of {device.name} run over it", fix)


def cuda(gpus: int) -> Check:
    """Check that a node that lends a GPU has one that torch can use."""
    if not gpus:
        return Check("cuda", "ok", "no GPU is lent")
    if has_cuda():
        return Check("cuda", "ok", f"{gpus} lent: {', '.join(probe()['gpus'])}")
    jetson = os.path.exists("/etc/nv_tegra_release")
    fix = "install NVIDIA's torch for this JetPack" if jetson else "install torch with CUDA"
    return Check("cuda", "fail", "torch finds no CUDA GPU", f"{fix}, or join with --gpus 0")
