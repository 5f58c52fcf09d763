"""The parts of zo_sweeps that are packages of their own: what each offers, and the extra that installs it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Extra:
    """A package of this project that is found by its entry points.

    Args:
        module: that it installs.
        offers: group of entry points, without `zo_sweeps.` -> names in it.
    """

    name: str
    module: str
    offers: Mapping[str, tuple[str, ...]]

    @property
    def distribution(self) -> str:
        """The name of the package."""
        return self.module.replace("_", "-")

    @property
    def install(self) -> str:
        """The command that installs it."""
        return f"pip install 'zo-sweeps[{self.name}]'"


EXTRAS = (
    Extra(
        "agents",
        "zo_sweeps_agent",
        {"command": ("agent",), "part": ("agents", "gateway"), "benchmark": ("agents",)},
    ),
    Extra(
        "edge",
        "zo_sweeps_edge",
        {"runtime": ("executorch",), "command": ("export-program",), "benchmark": ("programs",)},
    ),
    Extra("demo", "zo_sweeps_demo", {"command": ("demo",)}),
    Extra("rtl", "zo_sweeps_rtl", {"kind": ("synthesis",), "command": ("rtl",)}),
)


def is_ours(module: str) -> bool:
    """Return whether a module is of zo_sweeps or of one of these packages."""
    return module.partition(".")[0] in ("zo_sweeps", *(extra.module for extra in EXTRAS))


def offering(group: str, name: str) -> Extra | None:
    """Return the package that offers `name` in a group of entry points."""
    return next((extra for extra in EXTRAS if name in extra.offers.get(group, ())), None)
