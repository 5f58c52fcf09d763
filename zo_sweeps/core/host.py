"""This machine and what is installed on it: names, versions, the project's own packages, ports, and child processes."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import socket
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from zo_sweeps.core.errors import UserError

GIB = 2**30
# Of zo_sweeps; its wheels are built with it.
VERSION = "0.1.0"


def processor() -> str:
    """Return the processor's model name from the kernel; falls back to Python's `platform`."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith(("model name", "Model")))
    return next(names, "") or platform.processor() or platform.machine()


def version_of(package: str) -> str:
    """Return the version of an installed package; "" if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


PACKAGES = (
    *("torch", "transformers", "datasets", "accelerate", "safetensors", "bitsandbytes", "triton", "numpy"),
    *("ray", "mlflow", "hydra-core"),
)


def provenance() -> dict[str, Any]:
    """Return the provenance of a number: code, packages and machine; no environment variables, no secrets.

    Cost: two git calls the first time.
    """
    commit, dirty = _git()
    return {
        "packages": dict(_versions()),
        "git_commit": commit,
        "git_dirty": dirty,
        "hostname": platform.node(),
        "platform": platform.platform(),
        "cpu": processor(),
        "ram_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
    }


@cache
def _versions() -> dict[str, str]:
    own = {"python": platform.python_version(), "zo_sweeps": VERSION}
    return own | {package: version for package in PACKAGES if (version := version_of(package))}


@cache
def _git() -> tuple[str | None, bool | None]:
    """Return (commit, whether files differ from it) of the checkout that this package runs from, if it is one."""
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


@dataclass(frozen=True)
class Extra:
    """A package of this project that is found by its entry points."""

    name: str
    module: str  # that it installs
    offers: Mapping[str, tuple[str, ...]]  # group of entry points, without `zo_sweeps.` -> names in it

    @property
    def distribution(self) -> str:
        """The name of the package."""
        return self.module.replace("_", "-")

    @property
    def install(self) -> str:
        """The command that installs it."""
        return f"pip install 'zo-sweeps[{self.name}]'"


EXTRAS = (
    Extra("demo", "zo_sweeps_demo", {"command": ("demo",)}),
    Extra(
        "agents",
        "zo_sweeps_agent",
        {"command": ("agent",), "part": ("agents", "gateway"), "benchmark": ("agents",)},
    ),
    Extra(
        "bench",
        "zo_sweeps_bench",
        {
            "command": ("bench",),
            "benchmark": (
                *("noise", "step", "memory", "replay", "precision", "codes", "sparse", "gpu", "cluster", "growth"),
                *("shares", "population"),
            ),
        },
    ),
    Extra(
        "edge",
        "zo_sweeps_edge",
        {"runtime": ("executorch",), "command": ("export-program",), "benchmark": ("programs",)},
    ),
    Extra(
        "federated",
        "zo_sweeps_federated",
        {"kind": ("federated", "fedavg"), "perturbation": ("seed_pool", "seed_pool_pro")},
    ),
    Extra(
        "league",
        "zo_sweeps_league",
        {
            "estimator": ("best_of", "fzoo", "kerzoo", "rge_curved", "rge_guided", "rge_per_row", "rloo"),
            "perturbation": (
                *("agzo", "columns", "cone", "curvature", "guided", "layers", "loren", "projected", "signs"),
                *("small_weights", "sphere", "subspace", "tezo"),
            ),
            "update": (
                *("adamezo", "anchored", "conservative", "helene", "low_rank_momentum", "meazo", "mopi", "muon"),
                *("r_adazo", "sign"),
            ),
        },
    ),
    Extra(
        "ray",
        "zo_sweeps_ray",
        {"executor": ("ray",), "command": ("head", "worker", "devices"), "part": ("supervisor",)},
    ),
    Extra(
        "report",
        "zo_sweeps_report",
        {
            "figure_kind": ("bar", "cumulative", "curve", "line", "parallel", "rows", "scatter", "search"),
            "command": ("compare", "figure", "report"),
            "part": ("figures", "report"),
        },
    ),
    Extra("rtl", "zo_sweeps_rtl", {"kind": ("synthesis",), "command": ("rtl",)}),
    Extra("tracking", "zo_sweeps_tracking", {"command": ("ui", "sync"), "part": ("tracking",)}),
)


def is_ours(module: str) -> bool:
    """Return whether a module is of zo_sweeps or of one of these packages."""
    return module.partition(".")[0] in ("zo_sweeps", *(extra.module for extra in EXTRAS))


def offering(group: str, name: str) -> Extra | None:
    """Return the package that offers `name` in a group of entry points."""
    return next((extra for extra in EXTRAS if name in extra.offers.get(group, ())), None)


def interleaved(functions: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Return the seconds per call of each function: the minimum over `rounds` rounds that run every function once.

    One warm-up round is discarded. Interleaving spreads transient load evenly.
    """
    best = dict.fromkeys(functions, float("inf"))
    for number in range(rounds + 1):
        for name, function in functions.items():
            began = time.perf_counter()
            function()
            if number:
                best[name] = min(best[name], time.perf_counter() - began)
    return best


def free_port(port: int | None, host: str) -> int:
    """Return the port, or a free one for None. Raises UserError for one that cannot be used."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a server stopped a minute ago does not count
        try:
            probe.bind((host, port or 0))
        except (OSError, OverflowError) as error:
            raise UserError(
                f"port {port} cannot be used for the page: {getattr(error, 'strerror', error)}",
                fix="name a free one with --port, or end the program that uses it",
            ) from error
        return int(probe.getsockname()[1])


_SIGNAL_AT_PARENTS_DEATH = 1  # PR_SET_PDEATHSIG


def die_with_parent(number: int) -> None:
    """Have the kernel send this process a signal when its parent dies, in whatever way (Linux)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_SIGNAL_AT_PARENTS_DEATH, number)
