"""What this machine is, and what it lends, as the head is told."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil
import yaml

from zo_sweeps import __version__
from zo_sweeps.core.errors import UserError, unknown
from zo_sweeps.core.files import conf_dir, reading
from zo_sweeps.devices.probe import Host, cores
from zo_sweeps.methods.definition import read
from zo_sweeps.methods.parts import Device
from zo_sweeps_agent.agent import light
from zo_sweeps_agent.agent.examiner import Examiner
from zo_sweeps_agent.agent.trials import visible_gpus
from zo_sweeps_agent.agent_facts import ROWS, Facts

CPU = "install torch with CUDA (a Jetson: NVIDIA's), or lend the CPU: --device cpu"


@dataclass(frozen=True)
class Lending:
    """What this machine lends to trials.

    Args:
        cpus, gpus: their numbers.
        memory_bytes: main memory.
        slots: trials at a time.
        rows: fingerprints of the files of rows that stay here.
    """

    cpus: int
    gpus: int
    memory_bytes: int
    slots: int
    rows: tuple[str, ...] = ()


def profile(name: str, folders: list[str]) -> Device:
    """Return a device profile: of conf/device, or of `device/` in a folder of the user's own. Raises UserError."""
    if name == "auto":
        examiner = Examiner()
        name = str(examiner.probe()["profile"])
        examiner.end()
    known: dict[str, Path] = {}
    for folder in (conf_dir(), *map(Path, folders)):
        known |= {path.stem: path for path in (folder.expanduser() / "device").glob("*.yaml")}
    if name not in known:
        raise unknown("device", name, known)
    try:
        with reading():
            data = yaml.safe_load(known[name].read_text(encoding="utf-8"))
        return read(Device, {**data}, "device")
    except (yaml.YAMLError, UnicodeDecodeError, TypeError) as error:  # TypeError: not a mapping
        raise UserError(f"no device profile: {' '.join(str(error).split())}", where=str(known[name])) from None


def lending(device: Device, cpus: int | None, memory_gb: float | None, slots: int, data: Path | None = None) -> Lending:
    """Return what to lend: all CPUs, the profile's memory and a GPU per slot, where nothing else is asked for.

    Args:
        data: a folder per task with files of rows that stay here.

    Raises UserError if there is none in it, and where the device has a GPU and this machine none.
    """
    own = psutil.virtual_memory().total
    wanted = memory_gb if memory_gb is not None else device.memory_gb
    memory = own if wanted is None else min(int(wanted * 10**9), own)
    gpus = 0 if device.cpu else min(slots, len(visible_gpus()))
    if not (gpus or device.cpu or device.any):
        raise UserError(f"no GPU here for {device.name} (/dev, CUDA_VISIBLE_DEVICES)", where="--device", fix=CPU)
    return Lending(cpus or cores(), gpus, memory, slots, () if data is None else _rows(data))


def _rows(data: Path) -> tuple[str, ...]:
    from zo_sweeps.tasks.data import fingerprint_rows

    with reading():
        files = sorted(data.glob("*/*.jsonl"))
        rows = tuple(fingerprint_rows(file.read_bytes()) for file in files)
    if not 0 < len(rows) <= ROWS:
        fix = f"put the rows into FOLDER/TASK/NAME.jsonl, {ROWS} files at most"
        raise UserError(f"{len(rows)} files of rows in {data}", where="--data", fix=fix)
    return rows


def facts(device: Device, lent: Lending, host: Host, client: Path | None = None) -> Facts:
    """Return what the head is told of this machine. Raises UserError where no trial can run.

    Args:
        client: the light client, if it runs the trials.
    """
    if client is not None:
        return Facts(__version__, host, device.name, **asdict(lent), client=light.digest(client))
    if not host.versions["torch"]:
        fix = (
            "install the wheel for this board (docs/JETSON.md), or lend the light client with --client FILE "
            f"(packages/edge); here: {sys.executable}"
        )
        raise UserError("this Python has no torch, which is the board's own choice", fix=fix)
    if len(host.gpus) < lent.gpus:
        raise UserError(
            f"torch sees {len(host.gpus)} CUDA GPUs here, and {lent.gpus} are lent", where="--device", fix=CPU
        )
    return Facts(__version__, host, device.name, **asdict(lent))
