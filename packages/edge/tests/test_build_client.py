"""Building the light client: one line that names what is missing, one build per machine, and no Python in it."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("executorch", reason="needs the extra [edge]")

from zo_sweeps.core.errors import UserError
from zo_sweeps_edge import build_client

pytestmark = pytest.mark.multiprocess

LIBRARIES = ("", "_kernels_optimized", "_kernels_quantized", "_backend_xnnpack", "_threadpool")


def tool(folder: Path, name: str, *lines: str) -> None:
    (folder / name).write_text("\n".join(["#!/bin/sh", *lines, ""]))
    (folder / name).chmod(0o755)


def test_what_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZO_SWEEPS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(build_client.sys, "executable", str(tmp_path / "python"))
    with pytest.raises(UserError, match=r"needs CMake 3.25 or newer and a C\+\+17 compiler; pip install cmake"):
        build_client.build()
    tool(tmp_path, "cmake", "echo cmake version 3.19.2")
    with pytest.raises(UserError, match=r"needs CMake 3\.25 or newer"):
        build_client.build()
    version = '[ "$1" = --version ] && echo cmake version 3.30.1 && exit'
    tool(tmp_path, "cmake", version, "echo No CMAKE_CXX_COMPILER could be found. >&2", "exit 1")
    with pytest.raises(UserError, match=r"needs a C\+\+17 compiler; install g\+\+"):
        build_client.build()
    tool(tmp_path, "cmake", version, "echo main.cpp:3: error: no such thing", "exit 1")
    with pytest.raises(
        UserError, match=r"building the light client failed: main\.cpp:3: error: no such thing in .*cmake"
    ):
        build_client.build()
    monkeypatch.setattr(build_client.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="needs ExecuTorch's wheel"):
        build_client.build()


def test_a_machine_builds_it_once(client: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    assert build_client.build() == client


def test_a_folder_with_the_runtimes_libraries_is_all_it_needs(client: Path, tmp_path: Path) -> None:
    from importlib.metadata import distribution

    wheel = Path(str(distribution("executorch").locate_file("executorch"))) / "lib"
    for library in LIBRARIES:
        shutil.copy2(wheel / f"libexecutorch{library}.so", tmp_path)
    binary = shutil.copy2(client, tmp_path)
    lines = subprocess.run(["ldd", binary], capture_output=True, text=True, check=True).stdout.splitlines()
    ours = [line.split()[2] for line in lines if "executorch" in line]
    assert sorted(ours) == sorted(str(tmp_path / f"libexecutorch{library}.so") for library in LIBRARIES)
    assert not any("torch" in line or "python" in line for line in lines if "executorch" not in line)
    shown = subprocess.run([binary, "--help"], capture_output=True, text=True, check=True, env={}, cwd=os.sep)
    assert "usage: zo_client" in shown.stdout
