"""What a host says of itself: probe, profiles and doctor."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import fields
from pathlib import Path

import psutil
import pytest
import yaml

from zo_sweeps.devices import doctor, probe
from zo_sweeps.devices.doctor import checks
from zo_sweeps.devices.speed import Speed, keep
from zo_sweeps.methods.parts import Device
from zo_sweeps.tables.published import load

CONF = Path(__file__).parents[2] / "conf" / "device"
PROFILES = {path.stem: yaml.safe_load(path.read_text()) for path in CONF.glob("*.yaml")}


def test_a_probe_is_plain_json_and_true():
    host = json.loads(json.dumps(probe.probe()))
    assert host["kind"] in ("cpu", "cuda", "jetson")
    assert host["profile"] in PROFILES
    assert host["ram_bytes"] == psutil.virtual_memory().total
    assert 0 < host["memory_free_bytes"] <= host["memory_bytes"]
    assert 1 <= host["cores"] <= (os.cpu_count() or 1)
    assert host["name"]
    assert host["versions"]["torch"]


def test_a_sweep_that_has_just_ended_does_not_count_as_other_work(tmp_path, monkeypatch):
    kernel = tmp_path / "loadavg"
    monkeypatch.setattr(probe, "LOAD", kernel)
    monkeypatch.setattr(os, "getloadavg", lambda: (3.0, 1.0, 1.0))
    kernel.write_text("3.00 1.00 1.00 1/250 4711\n")  # one task runs: this one
    assert probe.busy_cores() == 0
    kernel.write_text("3.00 1.00 1.00 7/250 4711\n")
    assert probe.busy_cores() == 3
    kernel.unlink()  # no such file but on Linux
    assert probe.busy_cores() == 3


@pytest.mark.multiprocess
@pytest.mark.skipif(any(os.path.exists(node) for node in probe.GPU_NODES), reason="this host has a GPU to ask torch of")
def test_a_host_without_a_gpu_is_probed_without_torch():
    code = (
        "import sys; from zo_sweeps.devices import doctor, estimate, peak_memory, probe;"
        "assert not probe.has_cuda(); print(probe.probe()['kind'], 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["cpu", "False"]


@pytest.mark.parametrize(
    ("name", "profile"),
    [
        ("NVIDIA Jetson Orin Nano Developer Kit", "jetson-orin-nano"),
        ("NVIDIA Jetson Orin Nano Engineering Reference Developer Kit Super", "jetson-orin-nano"),
        ("NVIDIA Orin NX Developer Kit", "jetson-orin-nx"),
        ("NVIDIA Jetson AGX Orin Developer Kit", "jetson-agx-orin"),
        ("NVIDIA Jetson TX2 Developer Kit", "jetson-tx2"),
        ("quill", "jetson-tx2"),
        ("Raspberry Pi 5 Model B Rev 1.0", ""),
        ("", ""),
    ],
)
def test_boards_are_known_by_their_name(name, profile):
    assert probe.jetson_profile(name) == profile
    assert not profile or profile in PROFILES


def test_a_jetsons_memory_is_its_ram(monkeypatch, tmp_path):
    (tmp_path / "model").write_bytes(b"NVIDIA Jetson Orin Nano Developer Kit\0")
    monkeypatch.setattr(probe, "BOARD", tmp_path / "model")
    host = probe.probe()
    assert (host["kind"], host["profile"], host["unified"]) == ("jetson", "jetson-orin-nano", True)
    assert host["memory_bytes"] == host["ram_bytes"]
    assert host["name"] == "NVIDIA Jetson Orin Nano Developer Kit"


@pytest.mark.parametrize("name", PROFILES)
def test_profiles_say_what_placement_needs(name):
    profile = PROFILES[name]
    assert list(profile)[:5] == ["name", "display", "kind", "memory_gb", "unified"]
    assert set(profile) <= {field.name for field in fields(Device)}
    assert profile["name"] == name
    assert profile["kind"] in ("auto", "cpu", "cuda", "jetson", "phone", "rtl")
    assert profile["unified"] == (profile["kind"] in ("jetson", "phone"))
    assert (profile["memory_gb"] is None) == (name in ("auto", "cpu", "cuda", "executorch", "rtl")), (
        "those have the host's"
    )


def test_the_profiles_of_the_papers_devices_have_the_published_numbers():
    """SensZOQ, Table 3 (memory alone), and P-RGE, Table 14."""
    names = {
        "Nvidia GeForce GTX 1080 Ti": "gtx-1080-ti",
        "Nvidia GeForce RTX 3060 Ti": "rtx-3060-ti",
        "Nvidia Jetson TX2": "jetson-tx2",
        "OPPO Find X7 Ultra": "oppo-find-x7-ultra",
        "Samsung Galaxy S10 with Mali-G76 GPU": "galaxy-s10",
        "NVIDIA Jetson Orin Nano": "jetson-orin-nano",
        "OnePlus 12": "oneplus-12",
    }
    memory = load("sensitive/table3").rows
    assert {name: row["memory_GiB"] for name, row in memory.items()} == {
        name: PROFILES[names[name]]["memory_gb"] * 10**9 / 2**30 for name in memory
    }
    edge = load("prge/table14").rows
    assert {*memory, *edge} == {*names}
    for name, row in edge.items():
        profile = PROFILES[names[name]]
        ram = f"{profile['memory_gb']}GB LPDDR5 {profile['bandwidth_gbs']}GB/s"
        assert (profile["cpu_cores"], ram, profile["accelerator"]) == (row["cpu"], row["memory"], row["accelerator"])


# --- doctor ----------------------------------------------------------------------------------------------------------


def by_name(found):
    found = list(found)
    assert len({check.name for check in found}) == len(found)
    return {check.name: check for check in found}


def test_doctor_shows_the_kept_speed_or_how_to_measure_it(tmp_path, monkeypatch):
    monkeypatch.setenv("ZO_SWEEPS_CACHE", str(tmp_path))
    assert "plan --probe" in doctor.measured().detail
    keep(Speed(doctor.probe()["name"], 1, 1.2e11, 4.0))
    assert doctor.measured().detail == "120 GFLOP/s with 1 thread"


def test_this_host_passes_one_line_a_check_and_nothing_is_left_behind(tmp_path):
    found = by_name(checks(tmp_path / "new" / "runs"))
    assert {"python", "torch", "ray", "mlflow", "hydra-core", "import torch", "int8", "nf4", "fp4"} <= set(found)
    assert "import executorch.runtime" in found
    assert {
        "gpu",
        "cores",
        "memory",
        "disk",
        "state_dir",
        "loopback",
        "hub cache",
        "hub",
        "demo model",
        "clock",
    } <= set(found)
    for check in found.values():
        assert check.status != "fail", check
        assert "\n" not in check.detail + check.fix
        assert check.detail
        assert bool(check.fix) == (check.status != "ok"), check
    assert list(tmp_path.iterdir()) == []


def test_a_state_dir_that_is_a_file_fails(tmp_path):
    (tmp_path / "file").write_text("")
    check = by_name([doctor._writable(tmp_path / "file" / "runs")])["state_dir"]
    assert (check.status, check.fix) == ("fail", "state_dir=FOLDER with one you can write to")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_state_dir_fails(tmp_path):
    tmp_path.chmod(0o500)
    assert doctor._writable(tmp_path).status == "fail"


def test_a_package_outside_its_bounds_fails_with_the_command(monkeypatch):
    monkeypatch.setattr(doctor.metadata, "requires", lambda _: ["pytest>=999", "no-such-package-zz>=1", "psutil>=1"])
    found = by_name(doctor._packages())
    assert found["pytest"].status == "fail"
    assert ", needs >=999" in found["pytest"].detail
    assert found["pytest"].fix == "pip install 'pytest>=999'"
    assert found["no-such-package-zz"].detail == "not installed"
    assert found["psutil"].status == "ok"


def test_extras_are_not_required(monkeypatch):
    monkeypatch.setattr(doctor.metadata, "requires", lambda _: ['pytest>=999; extra == "other"'])
    assert list(doctor._packages()) == []


def test_a_module_that_breaks_on_import_is_one_line(monkeypatch, tmp_path):
    (tmp_path / "broken_zz.py").write_text("raise OSError('libcudart.so: cannot open\\nand more')")
    monkeypatch.syspath_prepend(tmp_path)
    check = doctor.imports("broken_zz", "warn")
    assert (check.status, check.detail) == ("warn", "OSError: libcudart.so: cannot open")


def test_executorch_runs_here_and_without_it_the_check_says_what_to_install(monkeypatch):
    assert doctor.executorch() == doctor.Check("import executorch.runtime", "ok", "works")
    monkeypatch.setitem(sys.modules, "executorch.runtime", None)  # as if it were not installed
    check = doctor.executorch()
    assert check.status == "warn"
    assert check.fix == "pip install 'zo-sweeps[edge]' (only for device=executorch and phones)"


def test_an_unreachable_hub_is_a_warning(monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    check = doctor._hub()
    assert (check.status, check.detail) == ("warn", "127.0.0.1 cannot be reached (Connection refused)")


def test_a_clock_in_1970_fails():
    assert doctor._clock(0.0).status == "fail"
    assert doctor._clock(time.time()).status == "ok"
