"""Joules from trees of the kernel's files as a Jetson and a server have them, and from power traces in closed form."""

from __future__ import annotations

import ctypes
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from zo_sweeps.devices import energy
from zo_sweeps.devices.counters import (
    MOST_WATTS,
    Counter,
    Gpu,
    Integral,
    NvmlCounter,
    Rapl,
    UnreadableError,
    ina3221,
    of_gpu,
)
from zo_sweeps.devices.energy import EnergyMeter, HostCondition, temperature

pytestmark = pytest.mark.unit

# Files below /sys: hwmon and powercap as in the kernel's sysfs-class-{hwmon,powercap} and hwmon/ina3221.rst; labels of
# the rails as in NVIDIA's device trees (tegra234-p3767, -p3701), soctherm_oc as in its driver.
ORIN_NANO = {
    "class/hwmon/hwmon0/name": "pwmfan",
    "class/hwmon/hwmon1/name": "ina3221",
    "class/hwmon/hwmon1/in1_label": "VDD_IN",
    "class/hwmon/hwmon1/in1_input": "5056",
    "class/hwmon/hwmon1/curr1_input": "1250",
    "class/hwmon/hwmon1/in2_label": "VDD_CPU_GPU_CV",
    "class/hwmon/hwmon1/in2_input": "5056",
    "class/hwmon/hwmon1/curr2_input": "400",
    "class/hwmon/hwmon1/in3_label": "VDD_SOC",
    "class/hwmon/hwmon1/in3_input": "5056",
    "class/hwmon/hwmon1/curr3_input": "300",
    "class/hwmon/hwmon1/in7_label": "sum of shunt voltages",
    "class/hwmon/hwmon2/name": "soctherm_oc",
    "class/hwmon/hwmon2/oc1_event_cnt": "0",
    "class/hwmon/hwmon2/oc1_throt_en": "1",
    "class/hwmon/hwmon2/oc2_event_cnt": "7",
    "class/hwmon/hwmon2/oc2_throt_en": "0",
    "class/hwmon/hwmon2/oc3_event_cnt": "12",
    "class/hwmon/hwmon2/oc3_throt_en": "1",
    "class/thermal/thermal_zone0/temp": "61250",
    "class/thermal/thermal_zone1/temp": "47500",
    "class/thermal/thermal_zone2/temp": "-256000",
    "class/thermal/thermal_zone3/temp": "256000",
    "class/thermal/thermal_zone4/temp": "",
    "class/thermal/cooling_device0/type": "pwm-fan",
    "class/thermal/cooling_device0/cur_state": "3",
    "class/thermal/cooling_device1/type": "cpufreq-cpu0",
    "class/thermal/cooling_device1/cur_state": "0",
    "class/devfreq/15340000.vic/cur_freq": "435200000",
    "class/devfreq/17000000.gpu/cur_freq": "624750000",
    "devices/system/cpu/cpufreq/policy0/scaling_cur_freq": "1510400",
    "devices/system/cpu/cpufreq/policy4/scaling_cur_freq": "729600",
}
AGX_ORIN = {
    "class/hwmon/hwmon3/name": "ina3221",
    "class/hwmon/hwmon3/in1_label": "VDD_GPU_SOC",
    "class/hwmon/hwmon3/in1_input": "20000",
    "class/hwmon/hwmon3/curr1_input": "150",
    "class/hwmon/hwmon3/in2_label": "VDD_CPU_CV",
    "class/hwmon/hwmon3/in2_input": "20000",
    "class/hwmon/hwmon3/curr2_input": "100",
    "class/hwmon/hwmon3/in3_label": "VIN_SYS_5V0",
    "class/hwmon/hwmon3/in3_input": "5000",
    "class/hwmon/hwmon3/curr3_input": "800",
    "class/hwmon/hwmon4/name": "ina3221",
    "class/hwmon/hwmon4/in2_label": "VDDQ_VDD2_1V8AO",
    "class/hwmon/hwmon4/in2_input": "5000",
    "class/hwmon/hwmon4/curr2_input": "300",
}
RANGE = 262143328850
SERVER = {
    f"class/powercap/{zone}/{name}": value
    for zone, (kind, count) in {
        "intel-rapl:0": ("package-0", 1_000_000),
        "intel-rapl:0:0": ("core", 400_000),
        "intel-rapl:0:1": ("dram", 200_000),
        "intel-rapl:1": ("package-1", RANGE - 500_000),
        "intel-rapl:1:0": ("dram", 300_000),
        "intel-rapl:2": ("psys", 9_000_000),
        "intel-rapl-mmio:0": ("package-0", 1_000_000),
    }.items()
    for name, value in (("name", kind), ("energy_uj", str(count)), ("max_energy_range_uj", str(RANGE)))
}


def write(root: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text + "\n")
    return root


class Trace:
    """A power over a time that the test sets."""

    def __init__(self, power: Any) -> None:
        self.now, self.power, self.broken = 0.0, power, False

    def watts(self) -> float:
        if self.broken:
            raise UnreadableError("the monitor does not answer")
        return float(self.power(self.now))

    def integral(self) -> Integral:
        return Integral(self.watts, "a trace", has_cpu=False, clock=lambda: self.now)

    def joules(self, counter: Counter, times: list[float]) -> float:
        values = []
        for self.now in times:
            values.append(counter.joules())
        return values[-1] - values[0]


def test_the_power_of_an_orin_nano_is_that_of_its_input_rail_alone(tmp_path: Path) -> None:
    counter = ina3221(write(tmp_path, ORIN_NANO))
    assert counter.watts() == pytest.approx(5.056 * 1.25)
    assert "VDD_IN" in counter.definition
    assert "VDD_SOC" not in counter.definition
    assert counter.period == 0.1
    assert "every 0.1 s" in counter.definition


def test_the_power_of_an_agx_orin_is_the_sum_of_three_rails_and_a_file_of_power_goes_first(tmp_path: Path) -> None:
    counter = ina3221(write(tmp_path, AGX_ORIN))
    assert counter.watts() == pytest.approx(3 + 2 + 4)
    assert "VDD_GPU_SOC + VDD_CPU_CV + VIN_SYS_5V0" in counter.definition
    write(tmp_path, {"class/hwmon/hwmon3/power1_input": "3500000"})
    assert counter.watts() == pytest.approx(3.5 + 2 + 4)


def test_a_board_whose_rails_are_not_known_or_cannot_be_read_says_so(tmp_path: Path) -> None:
    with pytest.raises(UnreadableError, match="no INA3221 power monitor"):
        ina3221(tmp_path)
    write(tmp_path, {name: text for name, text in ORIN_NANO.items() if "VDD_IN" not in text})
    with pytest.raises(UnreadableError, match="VDD_CPU_GPU_CV, VDD_SOC is this board's power"):
        ina3221(tmp_path)
    write(tmp_path, ORIN_NANO)
    (tmp_path / "class/hwmon/hwmon1/curr1_input").unlink()
    with pytest.raises(UnreadableError, match="curr1_input: No such file"):
        ina3221(tmp_path)


def test_a_constant_and_a_ramp_are_integrated_exactly_whenever_they_are_sampled() -> None:
    constant, ramp = Trace(lambda t: 7.5), Trace(lambda t: 4 + 3 * t)
    times = [0.0, 0.1, 0.13, 0.2, 0.55, 2.0]
    assert constant.joules(constant.integral(), times) == pytest.approx(7.5 * 2)
    assert ramp.joules(ramp.integral(), times) == pytest.approx(4 * 2 + 3 * 2**2 / 2)


@pytest.mark.parametrize("period", [0.1, 0.05])
def test_the_error_over_a_monotone_power_is_within_its_bound_and_not_far_below(period: float) -> None:
    trace = Trace(lambda t: 20.0 if t >= 0.3217 else 5.0)  # a step between two samples: the worst monotone trace
    steps = round(1 / period)
    times = [period * k for k in range(steps + 1)]
    exact = 5 * 0.3217 + 20 * (1 - 0.3217)
    bound = (20 - 5) / 2 * period
    error = abs(trace.joules(trace.integral(), times) - exact)
    assert 0.1 * bound < error <= bound


def test_a_sine_over_whole_periods_is_integrated_to_its_mean() -> None:
    trace = Trace(lambda t: 10 + 5 * math.sin(2 * math.pi * t))
    assert trace.joules(trace.integral(), [0.1 * k for k in range(31)]) == pytest.approx(30, rel=1e-12)


def test_a_reading_that_fails_at_a_border_is_nan_with_its_reason() -> None:
    trace = Trace(lambda t: 5.0)
    meter = EnergyMeter(trace.integral())
    assert meter.joules() == 0
    assert not meter.reason
    trace.now, trace.broken = 1.0, True
    assert math.isnan(meter.joules())
    assert meter.reason == "the monitor does not answer"
    assert meter.watts() is None


def test_a_thread_samples_between_readings_bridges_what_fails_and_ends_with_the_meter() -> None:
    taken: list[float] = []

    def watts() -> float:
        taken.append(3.0)
        if len(taken) in (2, 5):
            raise UnreadableError("busy")
        return taken[-1]

    counter = Integral(watts, "a trace", has_cpu=False, clock=lambda: float(len(taken)))  # a second per sample
    counter.period = 0.001
    with EnergyMeter(counter) as meter:
        while len(taken) < 20:
            time.sleep(0.001)
    end = len(taken)
    assert meter.joules() == 3 * (len(taken) - 1)
    assert not meter.reason
    time.sleep(0.01)
    assert len(taken) == end + 1


def test_rapl_adds_packages_and_dram_and_nothing_that_overlaps_them(tmp_path: Path) -> None:
    counter = Rapl(write(tmp_path, SERVER))
    assert counter.joules() == 0
    assert "package + dram" in counter.definition
    zones = tmp_path / "class/powercap"
    for zone in zones.iterdir():
        grown = (int((zone / "energy_uj").read_text()) + 250_000) % RANGE
        (zone / "energy_uj").write_text(str(grown))
    assert counter.joules() == pytest.approx(4 * 0.25)


def test_rapl_goes_on_over_every_wrap_of_a_counter_and_is_read_often_enough_to_see_it(tmp_path: Path) -> None:
    counter = Rapl(write(tmp_path, SERVER))
    assert counter.period * MOST_WATTS == pytest.approx(RANGE / 1e6)
    file, total = tmp_path / "class/powercap/intel-rapl:1/energy_uj", 0
    for _ in range(5):
        total += 200_000_000_000
        file.write_text(str((RANGE - 500_000 + total) % RANGE))
        assert counter.joules() == pytest.approx(total / 1e6, rel=1e-12)


def test_rapl_that_is_absent_or_for_root_alone_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnreadableError, match="no RAPL counter"):
        Rapl(tmp_path)
    write(tmp_path, SERVER)
    read = Path.read_text

    def refuse(path: Path, *args: Any, **options: Any) -> str:
        if path.name == "energy_uj":
            raise PermissionError(13, "Permission denied")
        return read(path, *args, **options)

    monkeypatch.setattr(Path, "read_text", refuse)
    monkeypatch.setattr(energy, "board", lambda: "")
    meter = EnergyMeter.of("cpu", tmp_path)
    assert math.isnan(meter.joules())
    assert meter.reason.endswith("class/powercap/intel-rapl:0/energy_uj is for root alone")
    assert "energy_definition" not in meter.definitions
    assert meter.definitions["condition_definition"]


def test_the_board_and_the_torch_device_decide_which_source_counts(tmp_path: Path, monkeypatch: Any) -> None:
    write(tmp_path, ORIN_NANO | SERVER)
    monkeypatch.setattr(energy, "board", lambda: "NVIDIA Jetson Orin Nano Engineering Reference Developer Kit Super")
    for device in ("cpu", "cuda:0"):  # one module, whatever computes
        assert "INA3221" in EnergyMeter.of(device, tmp_path).definitions["energy_definition"]
    assert EnergyMeter.of("cuda:0", tmp_path).report()["mhz"] == pytest.approx(624.75)
    assert EnergyMeter.of("cpu", tmp_path).report()["mhz"] == pytest.approx((1510.4 + 729.6) / 2)
    monkeypatch.setattr(energy, "board", lambda: "")
    assert "RAPL" in EnergyMeter.of("cpu", tmp_path).definitions["energy_definition"]


def test_the_own_share_of_cpu_time_is_a_fraction_and_goes_with_a_source_that_has_the_cpu(tmp_path: Path) -> None:
    meter = EnergyMeter(Rapl(write(tmp_path, SERVER)))
    end = time.process_time() + 0.1
    while time.process_time() < end:
        pass
    assert 0 < meter.report()["own_share"] <= 1
    trace = Trace(lambda t: 1.0)
    assert EnergyMeter(trace.integral()).report() == {}


class FakeNvml:
    """NVML's C interface, with values of one GPU; a name that is not in `values` is an old driver's."""

    def __init__(self, **values: int) -> None:
        self.values = values

    def __getattr__(self, name: str) -> Any:
        simple = name.removeprefix("nvmlDeviceGet")
        if name == "nvmlInit_v2":
            return lambda: 0
        if name == "nvmlDeviceGetHandleByUUID":
            return lambda uuid, handle: 0 if uuid == b"GPU-aa-bb" else 6
        if simple not in self.values:
            raise AttributeError(name)

        def call(handle: Any, *arguments: Any) -> int:
            value = self.values[simple]
            if value < 0:
                return -value  # an error code
            arguments[-1]._obj.value = value
            return 0

        return call


VOLTA = {
    "TotalEnergyConsumption": 123_456,
    "PowerUsage": 250_500,
    "Temperature": 71,
    "ClockInfo": 1410,
    "CurrentClocksThrottleReasons": 0x1,
}


def test_a_gpus_counter_is_in_joules_and_one_from_before_volta_is_integrated() -> None:
    new = of_gpu(Gpu("aa-bb", FakeNvml(**VOLTA)))
    assert new.joules() == pytest.approx(123.456)
    assert not new.has_cpu
    assert "counter" in new.definition
    assert not new.period
    pascal = of_gpu(Gpu("aa-bb", FakeNvml(**{**VOLTA, "TotalEnergyConsumption": -3})))
    assert pascal.watts() == pytest.approx(250.5)
    assert "integrated" in pascal.definition
    old = {name: value for name, value in VOLTA.items() if "Energy" not in name and "Power" not in name}
    with pytest.raises(UnreadableError, match="nvmlDeviceGetPowerUsage of NVML: missing from this driver"):
        of_gpu(Gpu("aa-bb", FakeNvml(**old)))
    with pytest.raises(UnreadableError, match="no such GPU"):
        Gpu("cc-dd", FakeNvml(**VOLTA))


def test_readings_of_a_gpu_that_many_processes_share_take_a_twentieth_of_the_time() -> None:
    now, busy = 0.0, 0.0

    class Busy(Gpu):
        def joules(self) -> float:
            nonlocal now, busy
            now, busy = now + 0.022, busy + 0.022
            return 100 * now

    counter = NvmlCounter(Busy("aa-bb", FakeNvml(**VOLTA)), clock=lambda: now)
    spent = 0.0
    for _ in range(2000):  # steps of 30 ms and as much between them, at 100 W
        before, now = counter.joules(), now + 0.03
        spent, now = spent + counter.joules() - before, now + 0.03
    assert busy / now < 1 / 20
    assert spent == pytest.approx(100 * 2000 * 0.03, rel=0.05)


def test_a_host_without_the_library_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", missing)
    with pytest.raises(UnreadableError, match="cannot be loaded"):
        Gpu("aa-bb")


@pytest.mark.parametrize(
    ("bits", "causes"),
    [
        (0x0, []),
        (0x1 | 0x2 | 0x10 | 0x100, []),  # idle, settings of the user's, a display: nothing slows work down
        (0x4, ["power"]),
        (0x8, ["power"]),
        (0x8 | 0x80, ["power"]),
        (0x20, ["heat"]),
        (0x8 | 0x40, ["heat"]),
        (0x4 | 0x20, ["heat", "power"]),
    ],
)
def test_the_reasons_for_lower_clocks_are_heat_and_power(bits: int, causes: list[str]) -> None:
    gpu = Gpu("aa-bb", FakeNvml(**{**VOLTA, "CurrentClocksThrottleReasons": bits}))
    assert gpu.read() == {"celsius": 71, "mhz": 1410, "throttled": tuple(causes)}


def test_a_gpu_that_tells_nothing_has_no_condition() -> None:
    assert Gpu("aa-bb", FakeNvml()).read() == {}


def test_temperature_is_the_hottest_zone_that_is_on(tmp_path: Path) -> None:
    assert temperature(tmp_path) is None
    write(tmp_path, ORIN_NANO)
    (tmp_path / "class/thermal/thermal_zone9/temp").mkdir(
        parents=True
    )  # reading it is an error, as of a zone that is off
    assert temperature(tmp_path) == 61.25


def test_a_jetson_is_throttled_by_enabled_over_current_events_and_by_cooling_that_is_no_fan(tmp_path: Path) -> None:
    condition = HostCondition(gpu=True, sys=write(tmp_path, ORIN_NANO))
    assert condition.read() == {"celsius": 61.25, "mhz": 624.75, "throttled": ()}
    write(tmp_path, {"class/hwmon/hwmon2/oc2_event_cnt": "8"})  # it only counts: oc2_throt_en is 0
    assert condition.read()["throttled"] == ()
    write(tmp_path, {"class/hwmon/hwmon2/oc3_event_cnt": "14"})
    assert condition.read()["throttled"] == ("power",)
    assert condition.read()["throttled"] == (), "only what is new since the last reading"
    write(tmp_path, {"class/thermal/cooling_device1/cur_state": "2"})
    assert condition.read()["throttled"] == condition.read()["throttled"] == ("heat",)


def test_an_intel_processor_is_throttled_when_a_count_has_grown(tmp_path: Path) -> None:
    folder = "devices/system/cpu/cpu1/thermal_throttle"
    counts = {f"{folder}/core_throttle_count": "4", f"{folder}/package_throttle_count": "0"}
    condition = HostCondition(gpu=False, sys=write(tmp_path, counts))
    assert condition.read() == {"throttled": ()}
    write(tmp_path, {f"{folder}/package_throttle_count": "1"})
    assert condition.read() == {"throttled": ("heat",)}
    assert "heat: throttle counts" in condition.definition
    assert "power: not readable" in condition.definition


def test_where_nothing_tells_of_throttling_nothing_is_claimed(tmp_path: Path) -> None:
    condition = HostCondition(gpu=False, sys=tmp_path)
    assert condition.read() == {}
    assert condition.definition.count("not readable") == 4
