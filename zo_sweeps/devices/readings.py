"""Live readings of a node: free memory, temperature, power; None or "" where the host provides none."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from zo_sweeps.core.document import Shape, item
from zo_sweeps.devices import kernels
from zo_sweeps.devices.energy import EnergyMeter
from zo_sweeps.devices.probe import probe

L4T = Path("/etc/nv_tegra_release")
NVPMODEL_STATUS = Path("/var/lib/nvpmodel/status")


@dataclass(frozen=True)
class Host(Shape):
    """The static facts of a host.

    Args:
        kind, profile, name, cores, memory_bytes, memory_free_bytes, ram_bytes, ram_free_bytes, unified, gpus, versions,
            executorch, tools: see `probe`.
        l4t: the release of NVIDIA's system on a Jetson; "" on any other host.
        codes: see `devices.kernels.troubles`.
        host: its name on the network.
    """

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
    l4t: str = ""
    codes: Mapping[str, str] = item(dict, most=10_000)
    host: str = ""


@dataclass(frozen=True)
class Reading(Shape):
    """The readings of a host.

    Args:
        temperature: Celsius; None where it cannot be read.
        power_mode: "" where there is none.
        watts: now, or since the last reading; None without an energy meter.
        throttled: causes since the last reading.
    """

    ram_free_bytes: int
    temperature: float | None = None
    power_mode: str = ""
    watts: float | None = None
    throttled: tuple[str, ...] = ()


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
