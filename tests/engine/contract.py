"""The members that the contract tests run over, from the registry, and the few of them that need a row of their own.

A member that follows the defaults needs nothing here: its name, options and facts come from its definition. A row says
what cannot be derived: options to be tested with, another expected moment, a rule that a test of its own holds.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, field
from typing import Any

import torch

from zo_sweeps.methods import registry
from zo_sweeps.methods.definition import options
from zo_sweeps.methods.perturbation import Reads
from zo_sweeps.methods.points import Layout, Theta

FILE = "tests/engine/contract.py"
if MEMBERS := os.environ.get("ZO_MEMBERS"):  # folders of your own members
    registry.use_folders(MEMBERS.split(os.pathsep))
AXES = ("estimator", "perturbation", "space", "precision", "update", "schedule", "executor")
# (axis, name) -> values of the options that have no default
REQUIRED: dict[tuple[str, str], Mapping[str, Any]] = {}


def names(axis: str) -> list[str]:
    return list(registry.names(axis))


def zeroth_order_updates() -> list[str]:
    """The updates that move along an estimate; the others are of backpropagation alone."""
    return [name for name in names("update") if kind("update", name).zeroth_order]


def kind(axis: str, name: str) -> Any:
    return registry.member(axis, name)


def every() -> Iterator[tuple[str, str]]:
    """(axis, name) of every member."""
    return ((axis, name) for axis in AXES for name in names(axis))


def required(axis: str, name: str) -> Mapping[str, Any]:
    """Values for the options without a default. Fails for a member that has such options and no row."""
    given = REQUIRED.get((axis, name), {})
    missing = [
        f.name
        for f in options(kind(axis, name))
        if f.default is MISSING and f.default_factory is MISSING and f.name not in given
    ]
    assert not missing, (
        f"{axis} {name}: no default for {', '.join(missing)}; add ({axis!r}, {name!r}) to REQUIRED in {FILE}"
    )
    return given


def member(axis: str, name: str, **changed: Any) -> Any:
    """A member with its defaults, and `changed`."""
    return kind(axis, name)(**{**required(axis, name), **changed})


def known(axis: str, name: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Those of `values` that are options of the member."""
    has = {f.name for f in options(kind(axis, name))}
    return {key: value for key, value in values.items() if key in has}


def queries(name: str, q: int) -> dict[str, Any]:
    """An estimator's option q, at least as large as it allows, where that is a choice."""
    least = [f.metadata["least"] for f in options(kind("estimator", name)) if f.name == "q"]
    return {"q": max(q, *least)} if least else {}


def estimator(name: str) -> Any:
    """An estimator with two directions per step, where that is a choice."""
    return member("estimator", name, **queries(name, 2))


# A learning rate that suits an estimator whose steps have the length lr / (2 eps), whatever f is.
SHORT_RATES = {"rge_per_row": 1e-5}


def pairs() -> list[tuple[str, str]]:
    """(estimator, perturbation) that go together, in every step, and whose replay needs no data."""
    return [
        (estimator, noise)
        for noise in REAL_PERTURBATIONS
        for estimator in names("estimator")
        if kind("perturbation", noise).needs in ("", kind("estimator", estimator).gives)
        and kind("perturbation", noise).reads is not Reads.DATA
    ]


# Perturbations


@dataclass(frozen=True)
class Norm:
    """E||ghat||^2 / ||grad||^2 of one direction on a linear f, in closed form.

    Args:
        shapes: of the parameters; None: those of the test.
        options: of the member.
    """

    ratio: float
    shapes: Mapping[str, torch.Size] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


SHAPES = {"a": torch.Size([7]), "layer.W": torch.Size([5, 6]), "b": torch.Size([13]), "c.V": torch.Size([4, 3])}
LAYOUT = Layout(SHAPES, q=3)  # d = 62, no multiple of the pool's and the array's sizes
MATRIX = {"W": torch.Size([6, 5])}  # low_rank's ratio has a closed form for one matrix
d = LAYOUT.d
NORMS: dict[str, tuple[Norm, ...]] = {
    "gaussian": (Norm(d + 2),),
    "mezo_compat": (Norm(d + 2),),
    "rademacher": (Norm(d),),
    "sphere": (Norm(d),),
    "uniform": (Norm(1 / 5 + (d - 1) / 9),),
    "low_rank": tuple(Norm(30 + 2 + 2 * (6 + 5 + 1) / rank, MATRIX, {"rank": rank, "interval": 1}) for rank in (2, 4)),
    # Two windows of two columns, by turns: (m width + 2) of the half that moves.
    "columns": (Norm((6 * 2 + 2) / 2, {"W": torch.Size([6, 4])}, {"width": 2, "interval": 1}),),
}
# Their bits depend on torch's generator, on floating-point sums, which another device orders otherwise, or on weights.
OTHER_BITS_ON_GPU = {
    "low_rank",
    "sphere",
    "mezo_compat",
    "subspace",
    "projected",
    "tezo",
    "loren",
    "small_weights",
    "agzo",
}

# Those of real parameters; test_integers.py holds the others to the same contract over integer codes.
REAL_PERTURBATIONS = [name for name in names("perturbation") if Theta.FLOATS in kind("perturbation", name).moves]
REAL_UPDATES = [name for name in zeroth_order_updates() if Theta.FLOATS in member("update", name).moves]

# Updates

# A learning rate at which a run of two directions refuses steps, for an update that chooses its step.
REFUSING_RATES = {"conservative": 0.3}
# Weight decay by a rule of their own: test_mezo_compat.py holds it bit for bit.
OWN_DECAY = {"mezo_compat"}
