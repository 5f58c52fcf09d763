"""PeZO against plain simulators: registers bit by bit, the pool number by number, the modulus by Monte Carlo."""

from __future__ import annotations

import itertools
import math
from math import lcm

import pytest
import torch
from torch import Tensor

from tests.engine.contract import LAYOUT
from tests.engine.test_perturbations import CPU, direction
from zo_sweeps.core.errors import UserError
from zo_sweeps.engine import lfsr, pezo
from zo_sweeps.engine.perturbations.pezo_onthefly import PeZOOnTheFly
from zo_sweeps.engine.perturbations.pezo_pool import PeZOPool
from zo_sweeps.methods.definition import read
from zo_sweeps.methods.points import Layout, NoiseKey

pytestmark = pytest.mark.unit
d, q = LAYOUT.d, LAYOUT.q
KEYS = [NoiseKey(11, step, query) for step in (1, 2, 3, 4) for query in range(q)]  # in the order of the run


class Register:
    """A shift register as drawn: stages 1 .. b, the xor of the tapped ones enters at stage 1."""

    def __init__(self, bits: int, state: int) -> None:
        self.taps = lfsr.TAPS[bits]
        self.stages = [state >> i & 1 for i in range(bits)]

    @property
    def output(self) -> int:
        return sum(bit << i for i, bit in enumerate(self.stages))

    def clock(self) -> None:
        entering = 0
        for tap in self.taps:
            entering ^= self.stages[tap - 1]
        self.stages = [entering, *self.stages[:-1]]


class Array:
    """n registers, each clocked `leap` times per output; after each output the one in first place goes to the end."""

    def __init__(self, seed: int, n: int, bits: int, leap: int = 1) -> None:
        states = lfsr.cycle(bits, leap)[lfsr.phases(seed, n, bits)].tolist()
        self.registers = [Register(bits, state) for state in states]
        self.first, self.leap = self.registers[0], leap

    def clock(self) -> list[int]:
        outputs = [register.output for register in self.registers]
        for register in self.registers:
            for _ in range(self.leap):
                register.clock()
        self.registers.append(self.registers.pop(0))
        return outputs


@pytest.mark.parametrize("bits", list(lfsr.TAPS))
def test_every_register_runs_through_all_states_but_zero(bits: int) -> None:
    register, states = Register(bits, 1), []
    for _ in range((1 << bits) - 1):
        states.append(register.output)
        register.clock()
    assert register.output == 1  # back at the start, and nowhere before:
    assert set(states) == set(range(1, 1 << bits))
    assert lfsr.cycle(bits).tolist() == states


def test_the_supported_widths_are_those_of_the_paper_and_more() -> None:
    assert set(range(2, 17)) <= set(lfsr.TAPS)


@pytest.mark.parametrize(("k", "bits"), [(2, 2), (3, 3), (2, 5), (5, 5), (5, 4), (5, 8), (6, 8), (5, 14), (2, 16)])
def test_the_array_is_the_simulated_one_bit_for_bit(k: int, bits: int) -> None:
    n = (1 << k) - 1
    array = Array(3, n, bits)
    simulated = torch.tensor([array.clock() for _ in range(500)], dtype=torch.int32)
    states = lfsr.cycle(bits).repeat(2)
    windows = lfsr.rotations(lfsr.phases(3, n, bits))
    got = lfsr.read(states, windows, 0, 500)
    assert got.dtype == torch.int32
    assert torch.equal(got, simulated)
    for start in (1, 17, 250):
        assert torch.equal(lfsr.read(states, windows, start, 100), simulated[start : start + 100])
    period = lcm(n, (1 << bits) - 1)
    far = 10**13 // period * period
    assert torch.equal(lfsr.read(states, windows, far + 5, 300), simulated[5:305])


@pytest.mark.parametrize(("k", "bits"), [(2, 3), (3, 4), (5, 5), (5, 8), (5, 6)])
def test_the_array_repeats_after_the_stated_number_of_clocks(k: int, bits: int) -> None:
    n = (1 << k) - 1
    period = lcm(n, (1 << bits) - 1)
    numbers = lfsr.read(lfsr.cycle(bits).repeat(2), lfsr.rotations(lfsr.phases(0, n, bits)), 0, 2 * period)
    for shorter in [period // prime for prime in (2, 3, 5, 7, 17, 31) if period % prime == 0]:
        assert not torch.equal(numbers[:period], numbers[shorter : shorter + period]), shorter
    assert torch.equal(numbers[:period], numbers[period:])


def test_phases_are_distinct_while_there_are_enough_and_even_otherwise() -> None:
    assert len(set(lfsr.phases(0, 31, 8).tolist())) == 31
    counts = torch.bincount(lfsr.phases(0, 31, 4), minlength=15)
    assert set(counts.tolist()) == {2, 3}
    assert lfsr.phases(0, 31, 8).tolist() != lfsr.phases(1, 31, 8).tolist()


def nearest_power(x: float, rule: str) -> float:
    powers = [2.0**e for e in range(-30, 31)]
    distance = (lambda p: abs(x - p)) if rule == "linear" else (lambda p: abs(math.log2(x / p)))
    return min(reversed(powers), key=distance)  # the upper of equals


def plain_onthefly(member: PeZOOnTheFly, keys: list[NoiseKey]) -> Tensor:
    """The directions of a run's first keys, [len(keys), d]: clock by clock, factors looked up in a table by address."""
    n, bits, half = (1 << member.k) - 1, member.bits, 1 << (member.bits - 1)
    leap = lfsr.leap(bits) if member.leap else 1
    number = lambda v: (v - (half if member.center else 0)) / half
    table: dict[int, float] = {}
    filling = Array(keys[0].seed, n, bits, leap)
    for _ in range((1 << bits) - 1):
        address = filling.first.output
        u = [number(v) for v in filling.clock()]
        factor = pezo.expected_norm(n) / math.sqrt(sum(x * x for x in u))
        table[address] = factor if member.rounding == "none" else nearest_power(factor, member.rounding)
    assert len(table) == (1 << bits) - 1
    array, directions = Array(keys[0].seed, n, bits, leap), []
    for _ in keys:
        z: list[float] = []
        while len(z) < d:
            factor = table[array.first.output if member.address == "fixed" else array.registers[0].output]
            z += [factor * number(v) for v in array.clock()]
        directions.append(z[:d])  # what the last clock has too many is dropped
    return torch.tensor(directions)


@pytest.mark.parametrize("rounding", ["linear", "log"])
@pytest.mark.parametrize("address", ["fixed", "pointer"])
@pytest.mark.parametrize(
    ("k", "bits", "center"), [(2, 4, True), (3, 8, True), (5, 8, False), (5, 4, True), (5, 8, True)]
)
def test_on_the_fly_directions_are_the_simulated_ones_exactly(
    k: int, bits: int, center: bool, address: str, rounding: str
) -> None:
    member = PeZOOnTheFly(k=k, bits=bits, center=center, address=address, rounding=rounding)
    ours = torch.stack([direction(member.bind(LAYOUT), key) for key in KEYS])
    assert torch.equal(ours, plain_onthefly(member, KEYS))


@pytest.mark.parametrize("bits", [4, 6, 8])  # 6 and 63 share a factor: a leap of 7 would lead through 9 states only
def test_leap_forward_directions_are_those_of_registers_clocked_more_often(bits: int) -> None:
    member = PeZOOnTheFly(k=3, bits=bits, leap=True)
    assert lfsr.leap(bits) == {4: 4, 6: 8, 8: 8}[bits]
    ours = torch.stack([direction(member.bind(LAYOUT), key) for key in KEYS])
    assert torch.equal(ours, plain_onthefly(member, KEYS))


def test_on_the_fly_unrounded_directions_are_the_simulated_ones() -> None:
    member = PeZOOnTheFly(k=3, rounding="none")
    ours = torch.stack([direction(member.bind(LAYOUT), key) for key in KEYS])
    assert torch.allclose(ours, plain_onthefly(member, KEYS), rtol=3e-7, atol=0)


def test_each_clocks_block_has_a_gaussians_modulus_before_rounding() -> None:
    n = 31
    member, layout = PeZOOnTheFly(rounding="none"), Layout({"w": torch.Size([n * 600 + 1])}, 1)
    z = direction(member.bind(layout), NoiseKey(0, 3, 0), layout)
    norms = z[: n * 600].view(600, n).double().norm(dim=1)
    assert torch.allclose(norms, torch.full_like(norms, pezo.expected_norm(n)), rtol=1e-6)


def test_rounded_factors_are_powers_of_two_within_their_bounds() -> None:
    n = 31
    layout = Layout({"w": torch.Size([n * 600 + 1])}, 1)
    z = [
        direction(PeZOOnTheFly(rounding=rule).bind(layout), NoiseKey(0, 3, 0), layout)[: n * 600].view(600, n)
        for rule in ("none", "linear")
    ]
    factors = z[1].abs().amax(1).double() / z[0].abs().amax(1)
    assert factors.min() > 2 / 3 - 1e-6
    assert factors.max() < 4 / 3 + 1e-6
    assert 1.1 < factors.mean() < 1.2  # sqrt(3) is rounded to 2 as a rule: the 15 % of the paper's choice


@pytest.mark.parametrize("member", [PeZOOnTheFly(length="perturbation", rounding="none"), PeZOPool(7, "perturbation")])
def test_whole_directions_have_a_gaussians_modulus_if_that_is_the_length(member: PeZOOnTheFly | PeZOPool) -> None:
    bound = member.bind(LAYOUT)
    for key in KEYS:
        assert direction(bound, key).norm() == pytest.approx(pezo.expected_norm(d), rel=1e-6)
    wide = Layout({"w": torch.Size([3001]), "v": torch.Size([10, 10])}, 2)  # several pools long
    for step in range(1, 20):
        norm = direction(member.bind(wide), NoiseKey(0, step, 1), wide).norm()
        assert norm == pytest.approx(pezo.expected_norm(3101), rel=1e-6)


def test_on_the_fly_blocks_of_memory_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    layout = Layout({"a": torch.Size([1000]), "b": torch.Size([77])}, 1)
    for member in (PeZOOnTheFly(), PeZOOnTheFly(address="pointer"), PeZOOnTheFly(length="perturbation")):
        whole = direction(member.bind(layout), NoiseKey(0, 9, 0), layout)
        with monkeypatch.context() as patch:
            patch.setattr(pezo, "BLOCK", 100)
            assert torch.equal(direction(member.bind(layout), NoiseKey(0, 9, 0), layout), whole)


def test_centred_numbers_have_no_mean_over_a_period_and_others_are_positive() -> None:
    layout = Layout({"w": torch.Size([31 * 255 + 1])}, 1)
    for center in (True, False):
        member = PeZOOnTheFly(length="perturbation", rounding="none", center=center).bind(layout)
        z = direction(member, NoiseKey(0, 1, 0), layout)[:-1].double()
        if center:
            assert abs(z.mean()) < 1e-7
            assert z.min() < 0 < z.max()
        else:
            assert z.min() > 0


@pytest.mark.parametrize("k", [2, 4, 6, 12])
@pytest.mark.parametrize("rounding", ["none", "linear"])
def test_leftovers_of_the_pool_open_the_next_direction(k: int, rounding: str) -> None:
    pool = pezo.pool(11, k)
    factor = pezo.expected_norm(len(pool)) / float(pool.double().norm())
    factor = factor if rounding == "none" else nearest_power(factor, rounding)
    stream = itertools.cycle((pool * torch.tensor(factor, dtype=torch.float32)).tolist())
    member = PeZOPool(k, rounding=rounding).bind(LAYOUT)
    for key in KEYS:
        assert direction(member, key).tolist() == list(itertools.islice(stream, d)), key


def test_the_pool_is_uniform_and_its_modulus_a_gaussians() -> None:
    pool = pezo.pool(0, 16).double()
    n = len(pool)
    assert n == 65535
    assert -1 < pool.min() < -0.999
    assert 0.999 < pool.max() < 1
    assert abs(pool.mean()) < 5 / math.sqrt(3 * n)
    assert abs(pool.square().mean() - 1 / 3) < 5 * math.sqrt(4 / 45 / n)
    layout = Layout({"w": torch.Size([4095]), "v": torch.Size([1])}, 1)
    z = PeZOPool().bind(layout).sample(NoiseKey(5, 3, 0), "w", torch.Size([4095]), CPU)  # one whole pool
    assert z.norm() == pytest.approx(pezo.expected_norm(4095), rel=1e-6)


def test_the_run_walks_through_the_pool_at_the_stated_offsets() -> None:
    """u_t[j] = p[(t d + j) mod N] far into a run, from the closed form alone."""
    member, pool = PeZOPool(8).bind(LAYOUT), pezo.pool(0, 8)
    key = NoiseKey(0, 1_000_003, 2)
    start = ((key.step - 1) * q + 2) * d
    expected = pool[(start + torch.arange(d)) % 255]
    z = direction(member, key)
    assert torch.allclose(z / z.norm(), expected / expected.norm(), atol=1e-6)


@pytest.mark.parametrize("advance", ["leftover", "coprime"])
def test_a_runs_distinct_directions_are_as_many_as_its_pool_has_starts(advance: str) -> None:
    """Counted: the directions of two rounds through the pool, for all small sizes."""
    for k, size in itertools.product((2, 3, 4), range(1, 40)):
        member, N, layout = PeZOPool(k, advance=advance), (1 << k) - 1, Layout({"w": torch.Size([size])}, 1)
        stated = member.directions(size)
        if stated == 1:
            with pytest.raises(UserError, match="all directions would be the same"):
                member.bind(layout)
            continue
        bound = member.bind(layout)
        drawn = {tuple(direction(bound, NoiseKey(5, t + 1, 0), layout).tolist()) for t in range(2 * N)}
        assert len(drawn) == stated, (k, size)
        assert advance == "leftover" or stated == N


@pytest.mark.parametrize("advance", ["leftover", "coprime"])
@pytest.mark.parametrize(("k", "bits"), [(2, 4), (2, 5), (3, 4), (3, 6), (4, 4), (4, 6)])
def test_a_runs_distinct_directions_are_as_many_as_its_array_has_starts(k: int, bits: int, advance: str) -> None:
    """Counted over the simulated array's outputs, laid end to end."""
    member, n = PeZOOnTheFly(k, bits, advance=advance), (1 << k) - 1
    array = Array(3, n, bits)
    period = lcm(n, (1 << bits) - 1)
    outputs = [array.clock() for _ in range(period)] * 2
    for size in (2 * n, 3 * n - 1, 3 * n + 1, 5 * n, 7 * n, 15 * n + 1, 21 * n):
        clocks = -(-size // n)
        if advance == "coprime":
            while math.gcd(clocks, period) > 1:
                clocks += 1
        drawn = set()
        for t in range(period):
            start = t * clocks % period
            numbers = [v for c in range(-(-size // n)) for v in outputs[(start + c) % period]]
            drawn.add(tuple(numbers[:size]))
        assert len(drawn) == member.directions(size), size


def test_the_papers_models_have_the_directions_that_their_sizes_leave() -> None:
    full = {"OPT-1.3B": 1_315_758_080, "OPT-2.7B": 2_651_596_800, "base": 124_697_433, "large": 355_412_057}
    assert {name: PeZOPool().directions(size) for name, size in full.items()} == {
        "OPT-1.3B": 9, "OPT-2.7B": 273, "base": 195, "large": 45
    }  # fmt: skip
    assert {PeZOPool(advance="coprime").directions(size) for size in full.values()} == {4095}
    assert [PeZOPool(k).directions(full["large"]) for k in (8, 12)] == [255, 45]
    assert PeZOOnTheFly(k=3).directions(1_235_814_400) == 7  # Llama3-1B


def test_a_coprime_advance_skips_the_numbers_that_it_leaves_unused() -> None:
    layout, pool = Layout({"w": torch.Size([63])}, 1), pezo.pool(0, 4)  # 63 and 15 share a factor, 64 and 15 none
    member = PeZOPool(4, advance="coprime").bind(layout)
    for t in range(40):
        z = direction(member, NoiseKey(0, t + 1, 0), layout)
        expected = pool[(t * 64 + torch.arange(63)) % 15]
        assert torch.allclose(z / z.norm(), expected / expected.norm(), atol=1e-6)


def correlations(member: PeZOOnTheFly) -> list[float]:
    """Correlations of numbers n - 1, 2 (n - 1), 3 (n - 1) and 4 (n - 1) apart, over a period of the array."""
    layout, lag = Layout({"w": torch.Size([31 * 255 * 31 + 1])}, 1), 30
    z = direction(member.bind(layout), NoiseKey(0, 1, 0), layout).double()
    z -= z.mean()
    return [float((z[lag * i :] * z[: len(z) - lag * i]).mean() / z.square().mean()) for i in (1, 2, 3, 4)]


def test_numbers_of_a_register_correlate_unless_it_leaps() -> None:
    rho = correlations(PeZOOnTheFly())
    assert rho == pytest.approx([0.47, 0.22, 0.10, 0.04], abs=0.02)
    spread = math.sqrt(1 + 2 * sum(r * r for r in rho))  # E||M grad|| / ||grad|| of M = toeplitz(rho)
    assert (spread, 1 / spread) == pytest.approx((1.25, 0.80), abs=0.01)
    assert correlations(PeZOOnTheFly(leap=True)) == pytest.approx([0, 0, 0, 0], abs=0.02)


@pytest.mark.parametrize("bits", [4, 12])
def test_a_stored_pool_has_the_nearest_fixed_point_numbers(bits: int) -> None:
    exact, stored = pezo.pool(0, 12).double(), pezo.pool(0, 12, bits).double()
    levels = stored * 2 ** (bits - 1)
    assert torch.equal(levels, levels.round())
    assert levels.min() >= -(2 ** (bits - 1))
    assert levels.max() == 2 ** (bits - 1) - 1  # two's complement: 1 itself is no number
    inside = exact < 1 - 2.0 ** (1 - bits)
    assert (stored - exact)[inside].abs().max() <= 2.0**-bits
    layout = Layout({"w": torch.Size([4096])}, 1)
    for length in ("pool", "perturbation"):
        z = direction(PeZOPool(12, length, stored_bits=bits).bind(layout), NoiseKey(0, 2, 0), layout)
        u = stored[(4096 + torch.arange(4096)) % 4095].float()
        m, norm = (4095, stored.norm()) if length == "pool" else (4096, u.double().norm())
        assert torch.allclose(z, u * (pezo.expected_norm(m) / norm).float(), rtol=1e-6, atol=0)


def test_sizes_that_would_repeat_one_direction_for_ever_are_refused() -> None:
    with pytest.raises(UserError, match="all directions would be the same"):
        PeZOPool(3).bind(Layout({"w": torch.Size([7, 9])}, 1))
    with pytest.raises(UserError, match="all directions would be the same"):
        PeZOOnTheFly(k=2, bits=2).bind(Layout({"w": torch.Size([9])}, 1))


@pytest.mark.parametrize("m", [1, 2, 5, 31, 255])
def test_the_expected_modulus_is_that_of_monte_carlo(m: int) -> None:
    norms = torch.randn(20_000, m, generator=torch.Generator().manual_seed(m), dtype=torch.double).norm(dim=1)
    assert abs(norms.mean() - pezo.expected_norm(m)) < 5 * norms.std() / math.sqrt(len(norms))


def test_the_expected_modulus_is_the_closed_form() -> None:
    assert pezo.expected_norm(1) == pytest.approx(math.sqrt(2 / math.pi), rel=1e-14)
    assert pezo.expected_norm(2) == pytest.approx(math.sqrt(math.pi / 2), rel=1e-14)
    for m in range(1, 171):  # as far as Gamma itself goes
        expected = math.sqrt(2) * math.gamma((m + 1) / 2) / math.gamma(m / 2)
        assert pezo.expected_norm(m) == pytest.approx(expected, rel=1e-12)
    for m in (100, 9_998, 9_999, 10_000, 123_456, 10**7, 7 * 10**9):  # E_m E_{m+1} = m, on both sides of the switch
        assert pezo.expected_norm(m) * pezo.expected_norm(m + 1) == pytest.approx(m, rel=3e-11)


@pytest.mark.parametrize("m", [31, 255])
def test_scaling_brings_uniform_vectors_to_the_gaussian_modulus_of_monte_carlo(m: int) -> None:
    """Eq. 3 as it stands, both moduli by Monte Carlo: E||g|| / ||u|| near sqrt(3)."""
    draw = torch.Generator().manual_seed(1)
    gaussian = torch.randn(20_000, m, generator=draw, dtype=torch.double).norm(dim=1)
    layout = Layout({"w": torch.Size([m])}, 1)
    member = PeZOPool(10, "perturbation").bind(layout)
    pool = pezo.pool(0, 10).double()
    for t in range(20):
        u = pool[(t * m + torch.arange(m)) % 1023]
        factor = direction(member, NoiseKey(0, t + 1, 0), layout).double().norm() / u.norm()
        error = 5 * gaussian.std() / math.sqrt(len(gaussian)) / u.norm()
        assert abs(factor - gaussian.mean() / u.norm()) < error


@pytest.mark.parametrize("rule", ["linear", "log"])
def test_factors_are_rounded_to_the_nearest_power_of_two(rule: str) -> None:
    factors = [0.3 * 1.0171**i for i in range(400)] + [1.0, 2.0, 1.5, 3.0, 0.75]
    got = pezo.round_factor(torch.tensor(factors, dtype=torch.double), rule).tolist()
    assert got == [nearest_power(x, rule) for x in factors]
    assert pezo.round_factor(torch.tensor(1.45), rule) == {"linear": 1, "log": 2}[rule]


MEMBERS = {"pezo_pool": PeZOPool, "pezo_onthefly": PeZOOnTheFly}
CHOICES = {
    ("pezo_pool", "length"): ("pool", "perturbation"),
    ("pezo_pool", "rounding"): ("none", "linear", "log"),
    ("pezo_onthefly", "length"): ("block", "perturbation"),
    ("pezo_onthefly", "address"): ("fixed", "pointer"),
    ("pezo_onthefly", "rounding"): ("none", "linear", "log"),
}


@pytest.mark.parametrize(("name", "option"), CHOICES)
def test_choices_are_taken_and_others_refused_where_they_are_read(name: str, option: str) -> None:
    for choice in CHOICES[name, option]:
        assert getattr(read(MEMBERS[name], {option: choice}), option) == choice
    with pytest.raises(UserError, match=f"unknown {option} 'x'"):
        read(MEMBERS[name], {option: "x"})


@pytest.mark.parametrize(
    ("name", "option", "least", "most"),
    [("pezo_pool", "k", 2, 24), ("pezo_onthefly", "k", 2, 10), ("pezo_onthefly", "bits", 2, 16)],
)
def test_sizes_out_of_their_range_are_refused(name: str, option: str, least: int, most: int) -> None:
    MEMBERS[name](**{option: least})
    MEMBERS[name](**{option: most})
    for outside in (least - 1, most + 1):
        wanted = f"perturbation.{option} of {name} must be from {least} to {most}, not {outside}$"
        with pytest.raises(UserError, match=wanted):
            MEMBERS[name](**{option: outside})
