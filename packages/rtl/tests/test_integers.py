"""The integers that a circuit is held to are those of the perturbations, direction by direction."""

from __future__ import annotations

from collections import Counter
from math import erf, sqrt
from typing import Any

import pytest
import torch
from torch import Tensor

from zo_sweeps.core.errors import UserError
from zo_sweeps.engine.perturbations.pezo_onthefly import PeZOOnTheFly
from zo_sweeps.engine.perturbations.pezo_pool import PeZOPool
from zo_sweeps.engine.perturbations.rademacher import Rademacher
from zo_sweeps.methods.perturbation import Perturbation
from zo_sweeps.methods.points import Layout, NoiseKey
from zo_sweeps_rtl import gaussian
from zo_sweeps_rtl.circuit import Circuit, SimulatedSteps
from zo_sweeps_rtl.of_perturbation import circuit
from zo_sweeps_rtl.synthesis import Synthesis

pytestmark = pytest.mark.unit

SEED, Q, RUN = 11, 2, 7  # directions per step, and in all


def run(member: Perturbation, d: int) -> list[Tensor]:
    """The first directions of a run, as its steps draw them."""
    bound = member.bind(Layout({"all": torch.Size([d])}, Q))
    keys = [NoiseKey(SEED, step, query) for step in range(1, RUN) for query in range(Q)][:RUN]
    return [bound.sample(key, "all", torch.Size([d]), torch.device("cpu")) for key in keys]


def drawn(made: Circuit, d: int) -> tuple[Tensor, Tensor]:
    """The circuit's numbers and shifts, [directions, d] and [directions, clocks]: surplus numbers are discarded."""
    numbers, shifts = made.expected(SimulatedSteps.of(RUN * made.length, made.length))
    return numbers.view(RUN, -1)[:, :d], shifts.view(RUN, -1).repeat_interleave(made.lanes, 1)[:, :d]


@pytest.mark.parametrize("d", [31 * 9, 31 * 9 + 1, 31 * 300 + 30])
@pytest.mark.parametrize(
    "options",
    [{}, {"bits": 14}, {"address": "pointer"}, {"leap": True}, {"center": False}, {"rounding": "log"},
     {"advance": "coprime", "bits": 10}],
)  # fmt: skip
def test_a_ring_gives_the_directions_of_a_run(options: dict[str, Any], d: int) -> None:
    member = PeZOOnTheFly(**options)
    made = circuit(member, SEED, Synthesis(parameters=d))
    numbers, shifts = drawn(made, d)
    half = 1 << (member.bits - 1)
    z = torch.stack(run(member, d)).double()
    unscaled = (numbers.double() - (half if member.center else 0)) / half
    known = unscaled != 0
    factor = (z[known] / unscaled[known]) / 2.0 ** shifts.double()[known]
    least = float(factor[0])
    assert least in (0.5, 1.0, 2.0)
    assert torch.equal(unscaled * 2.0 ** shifts.double() * least, z)


@pytest.mark.parametrize("d", [1000, 1003, 8 * 255 + 1])
@pytest.mark.parametrize("advance", ["leftover", "coprime"])
@pytest.mark.parametrize("k", [8, 12])
def test_a_pool_gives_the_directions_of_a_run_from_their_left_overs(k: int, advance: str, d: int) -> None:
    member = PeZOPool(k=k, stored_bits=12, rounding="linear", advance=advance)
    numbers, _ = drawn(circuit(member, SEED, Synthesis(parameters=d)), d)
    signed = torch.where(numbers < 2048, numbers, numbers - 4096).double()
    assert torch.equal(signed / 2048 * 2, torch.stack(run(member, d)).double())


def bits_of(state: int, count: int) -> tuple[int, int]:
    """A register of 63 bits after `count` single clocks, written out: (state, its newest bits)."""
    for _ in range(count):
        state = (state << 1 | (state >> 62 ^ state >> 61) & 1) & (1 << 63) - 1
    return state, state & (1 << count) - 1


def test_the_tree_is_a_walk_by_the_gaussians_own_probabilities() -> None:
    made = gaussian.tree(SEED, 1)
    numbers = made.expected(SimulatedSteps.of(300, 1))[0].squeeze(1).tolist()
    states = [gaussian._start(SEED)]
    while len(states) < 300:
        states.append(bits_of(states[-1], 57)[0])
    for step in range(made.latency, 300):
        low, high = 0.0, 4.0  # the interval of |x|
        for level in range(7):
            middle = (low + high) / 2
            mass = [erf(x / sqrt(2)) for x in (low, middle, high)]
            word = states[step - 7 + level] >> (8 * level) & 255
            outer = word < round(256 * (mass[2] - mass[1]) / (mass[2] - mass[0]))
            low, high = (middle, high) if outer else (low, middle)
        sign = 1 if states[step] >> 56 & 1 else -1
        assert (numbers[step] - 127.5) / 32 == sign * (low + high) / 2


def test_the_sum_is_of_four_words_of_one_state() -> None:
    numbers = gaussian.clt(SEED, 1).expected(SimulatedSteps.of(200, 1))[0].squeeze(1).tolist()
    state = gaussian._start(SEED)
    for step in range(1, 200):
        assert numbers[step] == sum(state >> (8 * i) & 255 for i in range(4))
        state, _ = bits_of(state, 32)


@pytest.mark.parametrize(("name", "mean", "spread"), [("tree", 127.5, 32.0), ("clt", 510.0, 147.8)])
def test_gaussian_numbers_have_the_moments_of_a_gaussian(name: str, mean: float, spread: float) -> None:
    """Over 30,000 numbers, within four standard errors; the tree's thresholds are rounded to 1/256."""
    made = getattr(gaussian, name)(SEED, 1)
    x = (made.expected(SimulatedSteps.of(30_000, 1))[0][10:, 0].double() - mean) / spread
    assert abs(x.mean()) < 4 / sqrt(len(x))
    assert abs(x.var() - 1) < 4 * sqrt(2 / len(x)) + 0.01
    assert Counter((x > 0).tolist())[True] == pytest.approx(len(x) / 2, abs=2 * sqrt(len(x)))


@pytest.mark.parametrize(
    ("member", "kind", "message"),
    [
        (PeZOOnTheFly(rounding="none"), Synthesis(), "a shift from a table"),
        (PeZOOnTheFly(length="perturbation"), Synthesis(), "a shift from a table"),
        (PeZOPool(rounding="linear"), Synthesis(), "stores fixed-point numbers"),
        (PeZOPool(stored_bits=12), Synthesis(), "scaled once, by a shift"),
        (PeZOPool(k=20, stored_bits=12, rounding="log"), Synthesis(), "too large for a circuit"),
        (PeZOPool(stored_bits=12, rounding="log"), Synthesis(lanes=6), "6 numbers per clock is no power of two"),
        (PeZOPool(stored_bits=12, rounding="log"), Synthesis(parameters=4095), "all directions of 4095 numbers"),
        (PeZOOnTheFly(k=2, bits=2), Synthesis(parameters=9), "all directions of 9 numbers would be the same"),
        (Rademacher(), Synthesis(), "no circuit of perturbation 'rademacher'"),
    ],
)
def test_what_no_circuit_does_is_refused(member: Perturbation, kind: Synthesis, message: str) -> None:
    with pytest.raises(UserError, match=message):
        circuit(member, SEED, kind)
