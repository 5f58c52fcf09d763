"""The meter of a trial's steps: their joules, and the condition of the device meanwhile."""

from __future__ import annotations

import math
import time
from pathlib import Path
from statistics import fmean
from typing import Any

import psutil

from zo_sweeps.devices.counters import SYS, Counter, Gpu, Rapl, Ticker, UnreadableError, ina3221, numbers, of_gpu, text
from zo_sweeps.devices.probe import board, busy_cores, cores, jetson_profile


class EnergyMeter:
    """Joules, temperature, clock and throttling of a device; as a context, it reads what has to be read in between.

    Without a counter, or while it cannot be read, joules are NaN, and `reason` says why.
    """

    def __init__(self, counter: Counter | None, condition: HostCondition | Gpu | None = None, reason: str = "") -> None:
        self._counter, self._condition, self.reason = counter, condition, reason
        self._cpu = cpu_seconds()
        self._ticker: Ticker | None = None

    @classmethod
    def of(cls, device: Any, sys: Path = SYS) -> EnergyMeter:
        """Return the meter of a torch device, or of its name."""
        jetson, cuda = bool(jetson_profile(board())), str(device).startswith("cuda")
        condition: HostCondition | Gpu = HostCondition(gpu=cuda and jetson, sys=sys)
        try:
            if jetson or not cuda:
                return cls(ina3221(sys) if jetson else Rapl(sys), condition)
            gpu = Gpu(_uuid(device))
            condition = gpu
            return cls(of_gpu(gpu), gpu)
        except UnreadableError as error:
            return cls(None, condition, str(error))

    @property
    def definition(self) -> str:
        """What the joules are of, and by what, in one line; "" if there are none."""
        return "" if self._counter is None else self._counter.definition

    @property
    def definitions(self) -> dict[str, str]:
        """What is measured: `energy_definition` and `condition_definition`; {} if nothing is."""
        condition = "" if self._condition is None else self._condition.definition
        parts = {"energy_definition": self.definition, "condition_definition": condition}
        return {name: text for name, text in parts.items() if text}

    def joules(self) -> float:
        """Return the counter's joules, NaN if it cannot be read; `reason` then says why."""
        if self._counter is None:
            return math.nan
        try:
            return self._counter.joules()
        except UnreadableError as error:
            self.reason = str(error)
            return math.nan

    def watts(self) -> float | None:
        """Return the power now, or the mean since the last call; None if there is none to read."""
        try:
            return None if self._counter is None else self._counter.watts()
        except UnreadableError:
            return None

    def report(self) -> dict[str, Any]:
        """Return the device's condition: `celsius`, `mhz`, `throttled` (causes since the last report), `own_share`.

        A reading that this device does not have is left out. `own_share`: this process's part of the CPU time that the
        machine spent since the last report, if the joules are of its processor.
        """
        report = {} if self._condition is None else self._condition.read()
        if self._counter is not None and self._counter.has_cpu:
            (own, every), last = cpu_seconds(), self._cpu
            if every > last[1]:
                self._cpu = (own, every)
                report["own_share"] = min(1.0, (own - last[0]) / (every - last[1]))
        return report

    def __enter__(self) -> EnergyMeter:
        if self._counter is not None and self._counter.period:
            self._ticker = Ticker("energy-meter", self._counter.period, self._counter.joules)
        return self

    def __exit__(self, *_: object) -> None:
        if self._ticker is not None:
            self._ticker.stop()
            self._ticker = None


def _uuid(device: Any) -> str:
    """Return the id of a CUDA device, by which NVML finds it whatever CUDA_VISIBLE_DEVICES says."""
    import torch

    uuid = getattr(torch.cuda.get_device_properties(device), "uuid", None)
    if uuid is None:
        raise UnreadableError("this torch does not tell the GPU's UUID")
    return str(uuid)


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

    With `gpu`, the clock is that of a Jetson's GPU. `definition` describes the readings in one line.
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


SHORTEST = 0.1  # seconds over which a share can be told: the kernel counts CPU time in hundredths


class Load:
    """The share of the machine's cores that other processes take, from the making of this object on."""

    def __init__(self) -> None:
        self._before = min(1.0, busy_cores() / cores())
        self._began, self._first = time.monotonic(), cpu_seconds()

    def read(self) -> dict[str, float]:
        """Return the share just `before`, as the tasks that ran then, and `during`: the mean since, by CPU time."""
        seconds, (own, every) = time.monotonic() - self._began, cpu_seconds()
        if seconds < SHORTEST:
            return {"before": round(self._before, 3)}
        others = (every - self._first[1]) - (own - self._first[0])
        during = min(1.0, max(0.0, others / (seconds * (psutil.cpu_count() or 1))))
        return {"before": round(self._before, 3), "during": round(during, 3)}


def cpu_seconds() -> tuple[float, float]:
    """Return the CPU time of this process with its ended children, and that of the whole machine, since their start."""
    own, every = psutil.Process().cpu_times(), psutil.cpu_times()
    busy = (getattr(every, name, 0.0) for name in ("user", "nice", "system", "irq", "softirq"))
    return own.user + own.system + own.children_user + own.children_system, sum(busy)
