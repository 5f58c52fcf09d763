"""The light client's binary for this machine, built with CMake against the ExecuTorch wheel.

A build takes about ten seconds, once per machine: the binary is kept in the cache folder, under a digest of the
sources, ExecuTorch's version and its folder, which the binary's search path of libraries names.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from zo_sweeps.core.errors import UserError
from zo_sweeps.core.files import cache_folder, locked, replacing
from zo_sweeps.core.light_client import NAME

SOURCES = Path(__file__).with_name("client")
OLDEST_CMAKE = (3, 25)
TIMEOUT = 600  # seconds per command


def build() -> Path:
    """Return the path of the binary; build it unless the cache has it.

    Raises UserError without ExecuTorch, CMake or a C++17 compiler, and if the build fails.
    """
    wheel = _wheel()
    digest = hashlib.sha256(f"{version('executorch')} {wheel}".encode())
    for source in sorted(SOURCES.iterdir()):
        digest.update(source.name.encode() + source.read_bytes())
    folder = cache_folder() / "edge_client" / digest.hexdigest()[:16]
    binary = folder / NAME
    if binary.is_file():
        return binary
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder / "lock"):  # another process may build it by now
        if not binary.is_file():
            with tempfile.TemporaryDirectory(prefix="zo_client-") as build_folder, replacing(binary) as part:
                cmake = _cmake()
                jobs = str(os.cpu_count() or 1)
                prefix = f"-DCMAKE_PREFIX_PATH={wheel}"
                _run([cmake, "-S", str(SOURCES), "-B", build_folder, prefix, "-DCMAKE_BUILD_TYPE=Release"])
                _run([cmake, "--build", build_folder, "--parallel", jobs])
                shutil.copy2(Path(build_folder) / NAME, part)
    return binary


def _wheel() -> Path:
    """Return the folder of the installed ExecuTorch, without importing it."""
    try:
        found = importlib.util.find_spec("executorch")
        version("executorch")
    except PackageNotFoundError:
        found = None
    for folder in (found.submodule_search_locations or ()) if found is not None else ():
        if (Path(folder) / "lib" / "cmake" / "executorch").is_dir():
            return Path(folder).resolve()
    raise UserError(
        "the light client needs ExecuTorch's wheel with its C++ libraries", fix="pip install zo-sweeps[edge]"
    )


def _cmake() -> str:
    """Return a CMake that is new enough: of the search path, or pip's in this environment."""
    for path in (shutil.which("cmake"), shutil.which("cmake", path=str(Path(sys.executable).parent))):
        if path is None:
            continue
        output = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=TIMEOUT).stdout
        numbers = re.search(r"version (\d+)\.(\d+)", output)
        if numbers and (int(numbers[1]), int(numbers[2])) >= OLDEST_CMAKE:
            return path
    oldest = ".".join(map(str, OLDEST_CMAKE))
    raise UserError(f"the light client needs CMake {oldest} or newer and a C++17 compiler", fix="pip install cmake")


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT)
    except subprocess.TimeoutExpired:
        raise UserError(f"building the light client took more than {TIMEOUT} s", where=" ".join(command)) from None
    if done.returncode == 0:
        return
    if "No CMAKE_CXX_COMPILER could be found" in done.stderr:
        raise UserError("the light client needs a C++17 compiler", fix="install g++ or clang (apt install g++ make)")
    lines = [line.strip() for line in (done.stderr + done.stdout).splitlines() if "rror" in line]
    raise UserError(
        f"building the light client failed: {(lines or ['no message'])[0]}",
        where=" ".join(command),
        fix="run this command to see all",
    )
