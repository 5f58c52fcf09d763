"""What this machine is and can do, found in processes of their own: torch is not loaded into the agent.

python -m zo_sweeps.fleet.agent.facts      one line of JSON
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil
import yaml

from zo_sweeps import __version__
from zo_sweeps.config.composer import conf_dir
from zo_sweeps.core.errors import UserError, unknown
from zo_sweeps.devices.live import unchanging
from zo_sweeps.methods.definition import read
from zo_sweeps.methods.parts import Device

SECONDS = 600.0  # for a slow board to import torch and try its kernels


@dataclass(frozen=True)
class Lending:
    """What this machine lends to trials.

    Args:
        cpus, gpus: their numbers.
        memory_bytes: main memory.
        slots: trials at a time.
    """

    cpus: int
    gpus: int
    memory_bytes: int
    slots: int


def profile(name: str, folders: list[str]) -> Device:
    """Return a device profile: of conf/device, or of `device/` in a folder of the user's own. Raises UserError."""
    if name == "auto":
        name = str(_asked("host")["profile"])
    known: dict[str, Path] = {}
    for folder in (conf_dir(), *map(Path, folders)):
        known |= {path.stem: path for path in (folder.expanduser() / "device").glob("*.yaml")}
    if name not in known:
        raise unknown("device", name, known)
    return read(Device, yaml.safe_load(known[name].read_text(encoding="utf-8")), "device")


def lending(device: Device, cpus: int | None, memory_gb: float | None, slots: int) -> Lending:
    """Return what to lend: all CPUs, the profile's memory and its GPU, where nothing else is asked for."""
    own = psutil.virtual_memory().total
    wanted = memory_gb if memory_gb is not None else device.memory_gb
    memory = own if wanted is None else min(int(wanted * 10**9), own)
    there = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return Lending(cpus or there, 0 if device.cpu else 1, memory, slots)


def facts(device: Device, lent: Lending) -> dict[str, Any]:
    """Return what the head is told of this machine. Raises UserError where no trial can run. Cost: imports torch."""
    host = _asked("host")
    if not host["versions"]["torch"]:
        fix = "install the wheel for this board (docs/JETSON.md); here: " + sys.executable
        raise UserError("this Python has no torch, which is the board's own choice", fix=fix)
    return {
        "profile": device.name,
        **asdict(lent),
        "programs": bool(host["executorch"]),
        "zo_sweeps": __version__,
        "versions": host["versions"],
        "probe": {**host, "host": socket.gethostname()},
    }


def answers(challenge: Mapping[str, Any], troubles: Mapping[str, str]) -> dict[str, Any]:
    """Return this machine's answers to the head's known-answer questions: see `known_answers.answer`.

    Args:
        troubles: precision -> why its kernels do not run here, "" if they do; such a one is not tried.
    """
    bad = {name: why for name, why in troubles.items() if why and name in challenge["precisions"]}
    asked = {**challenge, "precisions": [name for name in challenge["precisions"] if name not in bad]}
    found = _asked("answers", json.dumps(asked))
    return {**found, "failed": {**found["failed"], **bad}}


def _asked(what: str, text: str = "") -> dict[str, Any]:
    """Return the JSON that this module prints in a process of its own. Raises UserError if it prints none."""
    command = [sys.executable, "-m", "zo_sweeps.fleet.agent.facts", what]
    try:
        done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=SECONDS)
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except subprocess.TimeoutExpired:
        raise UserError(f"examining this machine ({what}) took longer than {SECONDS:.0f} s") from None
    except (ValueError, IndexError):
        last = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]
        raise UserError(f"cannot examine this machine ({what}): {last}") from None
    return found


def main(what: str) -> None:
    """Print what this machine is ("host"), or its answers to the challenge on the standard input ("answers")."""
    if what == "host":
        print(json.dumps(unchanging()))
        return
    from zo_sweeps.fleet.known_answers import answer

    print(json.dumps(answer(json.load(sys.stdin))))


if __name__ == "__main__":
    main(sys.argv[1])
