"""This host: processor, memory, GPU and libraries, and its readings now. torch is imported only for a GPU."""

from __future__ import annotations

import os
import platform
import re
import shutil
import socket
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import util
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

import psutil

from zo_sweeps.core.document import Shape, item
from zo_sweeps.core.host import processor, version_of
from zo_sweeps.devices import kernels
from zo_sweeps.methods import registry
from zo_sweeps.methods.kind import Kind

if TYPE_CHECKING:
    from zo_sweeps.devices.energy import EnergyMeter

BOARD = Path("/proc/device-tree/model")  # NVIDIA's boards write their name here
LOAD = Path("/proc/loadavg")  # means over 1, 5 and 15 minutes, tasks that run now/all tasks, the last process
L4T = Path("/etc/nv_tegra_release")
NVPMODEL_STATUS = Path("/var/lib/nvpmodel/status")
GPU_NODES = ("/dev/nvidiactl", "/dev/nvhost-ctrl", "/dev/nvhost-ctrl-gpu", "/dev/nvmap", "/dev/dxg")
LIBRARIES = ("torch", "transformers", "ray")
EDGE = "pip install 'zo-sweeps[edge]'"  # what a host without ExecuTorch needs to run exported programs
JETSONS = {  # part of the board's name -> device profile
    "Orin Nano": "jetson-orin-nano",
    "Orin NX": "jetson-orin-nx",
    "AGX Orin": "jetson-agx-orin",
    "TX2": "jetson-tx2",
    "quill": "jetson-tx2",  # its name under older L4T
}


class Probe(TypedDict):
    """A host as plain JSON."""

    kind: str  # cpu, cuda or jetson
    profile: str  # its device profile
    name: str
    cores: int
    memory_bytes: int  # of the memory that holds models: RAM, or the GPU's own
    memory_free_bytes: int
    ram_bytes: int
    ram_free_bytes: int
    unified: bool  # GPU and CPU share the RAM
    gpus: list[str]  # names
    versions: dict[str, str]
    executorch: bool  # installed, with the package that runs trials on it
    tools: list[str]  # of trials without a model, as in `Needs`


def probe() -> Probe:
    """Describe this host. Cost: milliseconds; with a GPU, importing torch."""
    ram = psutil.virtual_memory()
    name, (gpus, free, total) = board(), _gpus()
    jetson = jetson_profile(name)
    kind = "jetson" if jetson else "cuda" if gpus else "cpu"
    own = kind == "cuda"
    return {
        "kind": kind,
        "profile": jetson or kind,
        "name": name if jetson else gpus[0] if gpus else processor(),
        "cores": cores(),
        "memory_bytes": total if own else ram.total,
        "memory_free_bytes": free if own else ram.available,
        "ram_bytes": ram.total,
        "ram_free_bytes": ram.available,
        "unified": bool(jetson),
        "gpus": gpus,
        "versions": {"python": platform.python_version(), **{lib: version_of(lib) for lib in LIBRARIES}},
        "executorch": util.find_spec("executorch") is not None and not registry.absent("runtime", "executorch"),
        "tools": [
            f"{name} {version}" for kind in kinds_with_tools() for name, version in kind.installed_tools().items()
        ],
    }


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def busy_cores() -> float:
    """Return how many cores' worth of work others have here now.

    The lower of two numbers: the mean over a minute, which a sweep that has just ended still fills, and the tasks that
    run at this moment without this one, where the kernel counts them (Linux).
    """
    if not hasattr(os, "getloadavg"):
        return 0.0
    mean = os.getloadavg()[0]
    try:
        running = int(LOAD.read_text(encoding="ascii").split()[3].partition("/")[0]) - 1
    except (OSError, ValueError, IndexError):
        return mean
    return min(mean, float(running))


def kinds_with_tools() -> list[type[Kind]]:
    """Return the kinds of trial that run tools."""
    return [kind for kind in registry.members("kind").values() if issubclass(kind, Kind) and kind.tools]


def has_cuda() -> bool:
    """Tell whether torch can use a CUDA GPU here. Does not import torch on a host without an NVIDIA device."""
    return bool(_gpus()[0])


def board() -> str:
    """Return the board's name, "" if there is none to read (any PC or server)."""
    try:
        return BOARD.read_text(encoding="utf-8", errors="replace").strip("\0\n ")
    except OSError:
        return ""


def jetson_profile(name: str) -> str:
    """Return the device profile for an NVIDIA board's name, "" for anything else."""
    return next((profile for part, profile in JETSONS.items() if part in name), "")


def _gpus() -> tuple[list[str], int, int]:
    """Return the names of the CUDA GPUs that torch sees, and the first one's free and total memory in bytes."""
    absent = platform.system() == "Linux" and not any(os.path.exists(node) for node in GPU_NODES)
    if absent or util.find_spec("torch") is None:
        return [], 0, 0
    import torch

    if not torch.cuda.is_available():
        return [], 0, 0
    return [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())], *torch.cuda.mem_get_info(0)


@dataclass(frozen=True)
class Host(Shape):
    """The static facts of a host: those of its `Probe`, and others."""

    kind: str
    profile: str
    name: str
    cores: int
    memory_bytes: int
    memory_free_bytes: int
    ram_bytes: int
    ram_free_bytes: int
    unified: bool
    gpus: tuple[str, ...]
    versions: Mapping[str, str]
    executorch: bool
    tools: tuple[str, ...] = ()
    l4t: str = ""  # the release of NVIDIA's system on a Jetson
    codes: Mapping[str, str] = item(dict, most=10_000)  # see `kernels.troubles`
    host: str = ""  # its name on the network


@dataclass(frozen=True)
class Reading(Shape):
    """The readings of a host."""

    ram_free_bytes: int
    temperature: float | None = None  # Celsius; None where it cannot be read
    power_mode: str = ""  # "" where there is none
    watts: float | None = None  # now, or since the last reading; None without an energy meter
    throttled: tuple[str, ...] = ()  # causes since the last reading


def unchanging(troubles: Callable[[], Mapping[str, str]] = kernels.troubles) -> Host:
    """Return the static facts of this host. Cost: see `probe` and `troubles`, which returns its `codes`."""
    return Host.read({**probe(), "l4t": l4t(), "codes": dict(troubles()), "host": socket.gethostname()})


def changing(meter: EnergyMeter) -> Reading:
    """Return the readings of this host."""
    condition = meter.report()
    return Reading(
        ram_free_bytes=psutil.virtual_memory().available,
        temperature=condition.get("celsius"),
        power_mode=power_mode(),
        watts=meter.watts(),
        throttled=tuple(condition.get("throttled", ())),
    )


def power_mode(status: Path = NVPMODEL_STATUS) -> str:
    """Return a Jetson's power mode: its name from `nvpmodel -q`, else its number; "" on any other host."""
    if program := shutil.which("nvpmodel"):
        try:
            output = subprocess.run([program, "-q"], capture_output=True, text=True, timeout=5).stdout
        except (OSError, subprocess.SubprocessError):
            output = ""
        if match := re.search(r"NV Power Mode:\s*(\S+)", output):
            return match[1]
    try:
        match = re.search(r"pmode:0*(\d+)", status.read_text())
    except OSError:
        return ""
    return f"mode {match[1]}" if match else ""


def l4t(release: Path = L4T) -> str:
    """Return "36.4.3" from "# R36 (release), REVISION: 4.3, ..."; "" on a host that is not a Jetson."""
    try:
        match = re.search(r"R(\d+).*?REVISION:\s*([\d.]+)", release.read_text())
    except OSError:
        return ""
    return f"{match[1]}.{match[2]}" if match else ""
