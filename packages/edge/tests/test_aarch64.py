"""The light client of an aarch64 board, built here against ExecuTorch's wheel for it and run under emulation."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from importlib.metadata import version
from pathlib import Path

import pytest

import toy
from reference import log_of
from zo_sweeps.core.light_client import NAME
from zo_sweeps.methods.evaluation import Mode
from zo_sweeps_edge.build_client import SOURCES

pytestmark = [pytest.mark.multiprocess, pytest.mark.long]
COMPILER, EMULATOR, LIBRARIES = "aarch64-linux-gnu-g++", "qemu-aarch64", "/usr/aarch64-linux-gnu"


@pytest.fixture(scope="module")
def binary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("executorch", reason="needs the extra [edge]")
    if not (shutil.which(COMPILER) and shutil.which(EMULATOR) and shutil.which("cmake")):
        pytest.skip(f"no {COMPILER}, {EMULATOR} or cmake (apt: g++-aarch64-linux-gnu qemu-user cmake)")
    folder = tmp_path_factory.mktemp("aarch64")
    own = ["--no-deps", "--only-binary=:all:", "--platform=manylinux_2_28_aarch64", f"--dest={folder}"]
    package = f"executorch=={version('executorch')}"
    found = subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", *own, package], capture_output=True)
    if found.returncode:
        pytest.skip(f"no wheel of {package} for aarch64: {found.stderr.decode().strip()[-200:]}")
    (wheel,) = folder.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(folder / "wheel")
    place = folder / "wheel" / "executorch"
    options = {
        "CMAKE_BUILD_TYPE": "Release",
        "CMAKE_SYSTEM_NAME": "Linux",
        "CMAKE_SYSTEM_PROCESSOR": "aarch64",
        "CMAKE_CXX_COMPILER": COMPILER,
        "CMAKE_PREFIX_PATH": place,
        "CMAKE_FIND_ROOT_PATH": place,
    }
    build = ["cmake", "-S", SOURCES, "-B", folder / "build", *(f"-D{key}={value}" for key, value in options.items())]
    subprocess.run(build, check=True, capture_output=True)
    subprocess.run(["cmake", "--build", folder / "build"], check=True, capture_output=True)
    return folder / "build" / NAME


def test_a_log_gives_weights_of_the_same_sha_256_there_and_losses_differ_by_rounding(
    binary: Path, client: Path, tmp_path: Path
) -> None:
    """Directions and updates have the same bits; the kernels' products add in another order."""
    emulated = [EMULATOR, "-L", LIBRARIES, binary]
    bundle = toy.write(tmp_path / "bundle", Mode.BOTH, 2, 1, 2)
    there = shutil.copytree(bundle.folder, tmp_path / "there")
    subprocess.run([*emulated, there], check=True, timeout=600)
    subprocess.run([client, bundle.folder], check=True, timeout=600)
    steps = [[line for line in log_of(folder) if line["type"] == "step"] for folder in (there, bundle.folder)]
    assert len(steps[0]) == len(steps[1]) == toy.STEPS
    for one, other in zip(*steps, strict=True):
        assert one["losses"] == pytest.approx(other["losses"], rel=1e-3)
    assert steps[0][0]["losses"] == pytest.approx(steps[1][0]["losses"], rel=2**-22)

    again = shutil.copytree(bundle.folder, tmp_path / "again")  # with the log of this machine
    replayed = ["--score", "test", "--at", str(toy.STEPS)]
    subprocess.run([*emulated, again, *replayed], check=True, timeout=600)
    subprocess.run([client, bundle.folder, *replayed], check=True, timeout=600)
    scores = [log_of(folder)[-1] for folder in (again, bundle.folder)]
    assert scores[0]["theta"] == scores[1]["theta"]
    assert scores[0]["scores"] == [pytest.approx(row, rel=1e-5) for row in scores[1]["scores"]]
