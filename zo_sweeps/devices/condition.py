"""What may slow a device down while it is measured: temperature, clock, and whether it was throttled.

Throttling has two causes, "heat" and "power". A reading that a device does not have is left out of `read`.
"""

from __future__ import annotations

from pathlib import Path
from statistics import fmean
from typing import Any

from zo_sweeps.devices.nvml import Gpu
from zo_sweeps.devices.sysfs import SYS, UnreadableError, numbers, text

HOTTEST = 150.0  # a reading above this many degrees means a disabled zone: NVIDIA's boards then report 256 and more
COOLING = ("cpufreq", "devfreq", "Processor")  # in the type of a cooling device that lowers a clock; a fan does not
GPUS = (".gpu", ".ga10b", ".gv11b", ".gp10b")  # how a Jetson's GPU is named among the devices of devfreq


def temperature(sys: Path = SYS) -> float | None:
    """Return the hottest zone that the kernel reports, in degrees Celsius; None if it reports none."""
    degrees = (millidegrees / 1000 for millidegrees in numbers(sys.glob("class/thermal/thermal_zone*/temp")))
    return max((one for one in degrees if -40 < one < HOTTEST), default=None)


class HostCondition:
    """The condition of this machine, by the kernel's files.

    celsius: the hottest of class/thermal/thermal_zone*/temp.
    mhz: the mean of cpufreq/policy*/scaling_cur_freq; of a Jetson's GPU, class/devfreq/*/cur_freq.
    throttled, since the last reading: "heat" if a counter cpu*/thermal_throttle/*_throttle_count (Intel) has grown, or
    a cooling device that lowers a clock is on; "power" if a counter ocN_event_cnt (Jetson: under-voltage, over-current)
    has grown whose ocN_throt_en is 1.

    Args:
        gpu: whether the clock is that of a Jetson's GPU.

    Attributes:
        definition: of the readings, in one line.
    """

    def __init__(self, *, gpu: bool, sys: Path = SYS) -> None:
        self._sys, self._hertz = sys, 1 if gpu else 1000  # the unit of the clocks
        cpus, thermal = sys / "devices/system/cpu", sys / "class/thermal"
        if gpu:
            self._clocks = [one / "cur_freq" for one in sorted(sys.glob("class/devfreq/*")) if one.name.endswith(GPUS)]
        else:
            self._clocks = sorted(cpus.glob("cpufreq/policy*/scaling_cur_freq"))
        self._heat = sorted(cpus.glob("cpu[0-9]*/thermal_throttle/*_throttle_count"))
        kinds = {one / "cur_state": text(one / "type") for one in sorted(thermal.glob("cooling_device*"))}
        self._cooling = [file for file, kind in kinds.items() if any(part in kind for part in COOLING)]
        events = sorted(sys.glob("class/hwmon/hwmon*/oc[0-9]_event_cnt"))
        self._power = [file for file in events if text(file.with_name(f"{file.name[:3]}_throt_en")) == "1"]
        self._last = self._counts()
        heat = [name for name, files in (("throttle counts", self._heat), ("cooling devices", self._cooling)) if files]
        parts = {
            "temperature": "the hottest thermal zone" if temperature(sys) is not None else "",
            "clock": ("devfreq of the GPU" if gpu else "mean of cpufreq") if self._clocks else "",
            "throttling by heat": " and ".join(heat),
            "throttling by power": "over-current event counts" if self._power else "",
        }
        self.definition = "; ".join(f"{name}: {source or 'not readable'}" for name, source in parts.items())

    def read(self) -> dict[str, Any]:
        """Return `celsius`, `mhz` and `throttled`. Cost: a file each, of some ten microseconds and more."""
        report: dict[str, Any] = {}
        if (celsius := temperature(self._sys)) is not None:
            report["celsius"] = celsius
        if clocks := numbers(self._clocks):
            report["mhz"] = fmean(clocks) * self._hertz / 1e6
        if self._heat or self._cooling or self._power:
            last, self._last = self._last, self._counts()
            hot = self._last[0] > last[0] or any(numbers(self._cooling))
            report["throttled"] = (*(["heat"] if hot else []), *(["power"] if self._last[1] > last[1] else []))
        return report

    def _counts(self) -> tuple[int, int]:
        return sum(numbers(self._heat)), sum(numbers(self._power))


class GpuCondition:
    """The condition of a GPU, by NVML."""

    definition = "NVML: the GPU's temperature, the clock of its multiprocessors, the reasons that keep clocks down"

    def __init__(self, gpu: Gpu) -> None:
        self._readings = {"celsius": gpu.celsius, "mhz": gpu.mhz, "throttled": gpu.throttled}

    def read(self) -> dict[str, Any]:
        """Return `celsius`, `mhz` and `throttled`, all as they are now."""
        report: dict[str, Any] = {}
        for name, reading in self._readings.items():
            try:
                report[name] = reading()
            except UnreadableError:
                continue
        return report
