"""The provenance of a number: code, packages, machine. No environment variables, no secrets."""

from __future__ import annotations

import functools
import platform
import subprocess
from pathlib import Path
from typing import TypedDict

from zo_sweeps.core.host import VERSION, processor, version_of

PACKAGES = (
    *("torch", "transformers", "datasets", "accelerate", "safetensors", "bitsandbytes", "triton", "numpy"),
    *("ray", "mlflow", "hydra-core"),
)


class Provenance(TypedDict):
    """The provenance of a process as plain JSON."""

    packages: dict[str, str]  # python, zo_sweeps, torch, ...: versions of installed ones
    git_commit: str | None  # of the checkout that this package runs from; None for an installed copy
    git_dirty: bool | None
    hostname: str
    platform: str
    cpu: str
    ram_bytes: int


def collect() -> Provenance:
    """Return the provenance of this process. Cost: two git calls the first time."""
    import psutil

    commit, dirty = _git()
    return {
        "packages": dict(_versions()),
        "git_commit": commit,
        "git_dirty": dirty,
        "hostname": platform.node(),
        "platform": platform.platform(),
        "cpu": processor(),
        "ram_bytes": psutil.virtual_memory().total,
    }


@functools.cache
def _versions() -> dict[str, str]:
    own = {"python": platform.python_version(), "zo_sweeps": VERSION}
    return own | {package: version for package in PACKAGES if (version := version_of(package))}


@functools.cache
def _git() -> tuple[str | None, bool | None]:
    folder = Path(__file__).resolve().parents[2]
    if not (folder / ".git").exists():  # a wheel inside another project's checkout is unrelated to its commit
        return None, None
    try:
        commit = _run_git(folder, "rev-parse", "HEAD")
        return commit, bool(_run_git(folder, "status", "--porcelain", "--untracked-files=no"))
    except (OSError, subprocess.SubprocessError):  # no git here, or it refuses the folder
        return None, None


def _run_git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=10).stdout.strip()
