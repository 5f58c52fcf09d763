"""Counters of joules, by what a device has to read them from.

    Jetson         INA3221 monitors through hwmon: power, integrated      (the module, without its carrier board)
    another GPU    NVML's counter of energy, else its power, integrated   (the GPU's board, without the host)
    a processor    RAPL through powercap: counters                        (packages and memory, without the rest)

A source measures a whole device: idle power and all other work are in it. One that cannot be read
raises UnreadableError with the reason.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

SYS = Path("/sys")


class UnreadableError(Exception):
    """Something that cannot be read here, with the reason in one line."""


def number(path: Path) -> int:
    """Return the integer in a file. Raises UnreadableError naming the file."""
    try:
        return int(path.read_text())
    except PermissionError:
        raise UnreadableError(f"{path} is for root alone") from None
    except (OSError, ValueError) as error:
        raise UnreadableError(f"{path}: {getattr(error, 'strerror', None) or 'not a number'}") from None


def numbers(files: Iterable[Path]) -> list[int]:
    """Return the integers in files, without those that cannot be read (a disabled sensor)."""
    values = []
    for path in files:
        with contextlib.suppress(UnreadableError):
            values.append(number(path))
    return values


def text(path: Path) -> str:
    """Return a file's text without white space around it; "" if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


LIBRARY = "libnvidia-ml.so.1"
ERRORS = {3: "not supported by this GPU", 4: "no permission", 6: "no such GPU"}  # nvmlReturn_t
TEMPERATURE_GPU, CLOCK_SM = 0, 1  # nvmlTemperatureSensors_t, nvmlClockType_t
# Bits of the reasons why clocks are below what was asked for (nvmlClocksEventReasons). The others do not slow work
# down: idle, a setting of the user's, a display, boards that follow the slowest one.
HEAT = 0x20 | 0x40  # thermal slowdown by software, by hardware
HARDWARE = 0x08  # has heat's own bit as well if that is the cause
POWER = 0x04 | HARDWARE | 0x80  # power cap, power brake


class Gpu:
    """One GPU, as NVML knows it by the UUID that torch gives it.

    A method raises UnreadableError where driver or GPU have no such reading.
    """

    definition = "NVML: the GPU's temperature, the clock of its multiprocessors, the reasons that keep clocks down"

    def __init__(self, uuid: str, library: Any = None) -> None:
        try:
            self._library = ctypes.CDLL(LIBRARY) if library is None else library
        except OSError:
            raise UnreadableError(f"{LIBRARY}, a part of NVIDIA's driver, cannot be loaded") from None
        self._call("nvmlInit_v2")
        self._handle = ctypes.c_void_p()
        self._call("nvmlDeviceGetHandleByUUID", f"GPU-{uuid}".encode(), ctypes.byref(self._handle))

    def joules(self) -> float:
        """Return the GPU's energy since the driver was loaded (Volta and later); the counter is in millijoules."""
        return self._read("nvmlDeviceGetTotalEnergyConsumption", ctypes.c_ulonglong()) / 1e3

    def watts(self) -> float:
        """Return the GPU's power; the reading is in milliwatts."""
        return self._read("nvmlDeviceGetPowerUsage", ctypes.c_uint()) / 1e3

    def read(self) -> dict[str, Any]:
        """Return those that this GPU has of `celsius`, `mhz`, and `throttled`: the causes that keep the clocks down."""
        report: dict[str, Any] = {}
        with contextlib.suppress(UnreadableError):
            report["celsius"] = float(self._read("nvmlDeviceGetTemperature", ctypes.c_uint(), TEMPERATURE_GPU))
        with contextlib.suppress(UnreadableError):
            report["mhz"] = float(self._read("nvmlDeviceGetClockInfo", ctypes.c_uint(), CLOCK_SM))
        with contextlib.suppress(UnreadableError):
            bits = self._read("nvmlDeviceGetCurrentClocksThrottleReasons", ctypes.c_ulonglong())
            causes = {"heat": HEAT, "power": POWER & ~HARDWARE if bits & HEAT else POWER}
            report["throttled"] = tuple(cause for cause, mask in causes.items() if bits & mask)
        return report

    def _read(self, name: str, value: Any, *arguments: int) -> int:
        self._call(name, self._handle, *arguments, ctypes.byref(value))
        return int(value.value)

    def _call(self, name: str, *arguments: Any) -> None:
        function = getattr(self._library, name, None)
        if function is None:
            raise UnreadableError(f"{name} of NVML: missing from this driver")
        if status := function(*arguments):
            raise UnreadableError(f"{name} of NVML: {ERRORS.get(status, f'error {status}')}")


PERIOD = 0.1  # seconds between two samples of a power
MOST_WATTS = 1000.0  # of a processor's package: sets how often a counter that wraps has to be read
# The rails whose sum is a module's power, by the labels of its INA3221s; the first complete set counts.
TOTALS = (
    ("VDD_IN",),  # Orin Nano, Orin NX: the module's input; its other rails are parts of it
    ("VDD_GPU_SOC", "VDD_CPU_CV", "VIN_SYS_5V0"),  # AGX Orin: VDDQ_VDD2_1V8AO is fed from the last of them
)


class Counter:
    """Joules since some moment, growing."""

    definition = ""  # what is measured, and by what, in one line
    has_cpu = True  # whether the processor's work is in it
    period = 0.0  # seconds after which a thread reads the counter again; 0: only the caller reads it
    _last: tuple[float, float] | None = None  # (seconds, joules)

    def joules(self) -> float:
        """Return the counter. Raises UnreadableError."""
        raise NotImplementedError

    def watts(self) -> float | None:
        """Return the mean power since the last call, None at the first. Raises UnreadableError."""
        last, self._last = self._last, (time.monotonic(), self.joules())
        return None if last is None else (self._last[1] - last[1]) / max(self._last[0] - last[0], 1e-9)


class Ticker(threading.Thread):
    """Call a function every `period` seconds, from the making of this object on."""

    def __init__(self, name: str, period: float, call: Callable[[], object]) -> None:
        super().__init__(name=name, daemon=True)
        self._period, self._call, self._done = period, call, threading.Event()
        self.start()

    def run(self) -> None:
        while not self._done.wait(self._period):
            with contextlib.suppress(UnreadableError):  # the next reading at a step's border will say so
                self._call()

    def stop(self) -> None:
        self._done.set()
        self.join()


class Integral(Counter):
    """The integral of a power over time, by the trapezoidal rule.

        E = sum_k (P_k + P_{k+1}) / 2 * (t_{k+1} - t_k)

    A thread samples every PERIOD seconds, and so does each call of `joules`: an interval begins and ends with a sample.
    Where P is monotone between samples, the error is at most sum_k |P_{k+1} - P_k| / 2 * (t_{k+1} - t_k); a swing
    within a period goes unseen. A sample of the thread that fails is bridged.
    """

    period = PERIOD

    def __init__(
        self,
        power: Callable[[], float],
        definition: str,
        *,
        has_cpu: bool,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.definition, self.has_cpu = f"{definition}; sampled every {PERIOD:g} s and integrated", has_cpu
        self._power, self._clock, self._lock = power, clock, threading.Lock()
        self._sum = 0.0
        self._sample: tuple[float, float] | None = None  # (seconds, watts)

    def joules(self) -> float:
        with self._lock:
            watts, now = self._power(), self._clock()
            if self._sample is not None:
                before, last = self._sample
                self._sum += (last + watts) / 2 * (now - before)
            self._sample = (now, watts)
            return self._sum

    def watts(self) -> float:
        return self._power()


class Rapl(Counter):
    """A processor's energy by its running average power limit counters (Intel, AMD), from the kernel's powercap.

    The sum over sockets of `package` and, where it is a zone of its own, `dram`. Zones that overlap these are not
    added: `core` and `uncore` are parts of a package, and `psys` contains it. A counter starts again at 0 after
    max_energy_range_uj (4 minutes at 1000 W for the usual 262 kJ): a thread reads it often enough to see each wrap.

    Raises UnreadableError if there is no counter, or it may not be read: the kernel leaves it to root alone.
    """

    def __init__(self, sys: Path = SYS) -> None:
        named = {zone: text(zone / "name") for zone in sorted(sys.glob("class/powercap/intel-rapl:*"))}
        kinds = {zone: name.split("-")[0] for zone, name in named.items() if name.startswith(("package", "dram"))}
        if "package" not in kinds.values():
            raise UnreadableError(f"the kernel has no RAPL counter of this processor ({SYS}/class/powercap)")
        names = " + ".join(dict.fromkeys(kinds.values()))
        self.definition = f"RAPL counters of the processor ({names}), idle power and other work included"
        self._zones, self._lock = tuple(kinds), threading.Lock()
        self._ranges = [number(zone / "max_energy_range_uj") for zone in self._zones]
        self.period = min(self._ranges) / 1e6 / MOST_WATTS
        self._counts = self._read()
        self._sum = 0  # microjoules

    def joules(self) -> float:
        with self._lock:
            counts = self._read()
            for now, before, span in zip(counts, self._counts, self._ranges, strict=True):
                self._sum += now - before + (span if now < before else 0)
            self._counts = counts
            return self._sum / 1e6

    def _read(self) -> list[int]:
        return [number(zone / "energy_uj") for zone in self._zones]


class NvmlCounter(Counter):
    """A GPU's own counter of energy. The driver updates it every 20 to 100 ms, which is its error at a border.

    Where many processes share a GPU, a reading waits for the others' and takes as long as a step of a small model: it
    holds for AGES times as long as it took, so that readings take at most a twentieth of the time, and the error at a
    border is no less than that.

    Raises UnreadableError where the GPU has none.
    """

    definition = "NVML's energy counter of the GPU's board, idle power included, without the host"
    has_cpu = False
    AGES = 20

    def __init__(self, gpu: Gpu, clock: Callable[[], float] = time.perf_counter) -> None:
        self._gpu, self._clock = gpu, clock
        self._joules, self._until = 0.0, -math.inf
        self.joules()

    def joules(self) -> float:
        if (began := self._clock()) >= self._until:
            self._joules = self._gpu.joules()
            now = self._clock()
            self._until = now + self.AGES * (now - began)
        return self._joules


def ina3221(sys: Path = SYS) -> Integral:
    """Return the integral of a Jetson module's power: the sum of the rails in TOTALS.

    By the kernel's hwmon interface: channel N has a name in inN_label, and its power in powerN_input (microwatts), or
    as inN_input (millivolts) times currN_input (milliamperes). Raises UnreadableError naming the rails if no sum is
    known.
    """
    channels: dict[str, Path] = {}
    for chip in sorted(sys.glob("class/hwmon/hwmon*")):
        if text(chip / "name") == "ina3221":
            channels |= {text(label): label for label in sorted(chip.glob("in[123]_label"))}
    if not channels:
        raise UnreadableError(f"the kernel shows no INA3221 power monitor ({SYS}/class/hwmon)")
    rails = next((total for total in TOTALS if channels.keys() >= set(total)), None)
    if rails is None:
        raise UnreadableError(f"no known sum of the INA3221's rails {', '.join(channels)} is this board's power")

    def microwatts(label: Path) -> int:
        n = label.name[2]
        if (power := label.with_name(f"power{n}_input")).exists():
            return number(power)
        return number(label.with_name(f"in{n}_input")) * number(label.with_name(f"curr{n}_input"))

    def power() -> float:
        return sum(microwatts(channels[rail]) for rail in rails) / 1e6

    power()  # raises where a channel cannot be read
    what = f"INA3221 rail{'s' if len(rails) > 1 else ''} {' + '.join(rails)}"
    return Integral(power, f"{what}: the module, idle power and other work included, no carrier board", has_cpu=True)


def of_gpu(gpu: Gpu) -> Counter:
    """Return a GPU's energy counter; one from before Volta has none, and its power is integrated."""
    try:
        return NvmlCounter(gpu)
    except UnreadableError:
        gpu.watts()  # raises where the GPU has neither
        what = "NVML's power of the GPU's board, idle power included, without the host"
        return Integral(gpu.watts, what, has_cpu=False)
