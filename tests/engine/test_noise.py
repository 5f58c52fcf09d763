"""Addressed noise against pure-Python integers, the exact Gaussian map, and the moments it must have."""

from __future__ import annotations

import math

import pytest
import torch

from zo_sweeps.engine import noise
from zo_sweeps.engine.types import NoiseKey

pytestmark = pytest.mark.unit
KEY = NoiseKey(3, 17, 2)
MASK = 0xFFFFFFFF


def reference_words(counter: int, k0: int, k1: int) -> tuple[int, int]:
    """The specification in noise.py's text, in unbounded integers."""
    k0, k1 = k0 & MASK, k1 & MASK
    x = counter ^ k0
    x = ((x ^ (x >> 16)) * noise.M1) & MASK
    x ^= k1
    x = ((x ^ (x >> 15)) * noise.M2) & MASK
    x ^= x >> 16
    y = (x * noise.M3 + k0) & MASK
    return x, y ^ (y >> 15)


def test_integers_are_those_of_the_specification() -> None:
    k0, k1 = noise.words_of(KEY, "layer.weight")
    got = noise.integers(KEY, "layer.weight", 2001)
    expected = [word for counter in range(1001) for word in reference_words(counter, k0, k1)][:2001]
    assert [int(word) & MASK for word in got] == expected


def test_gaussian_is_the_exact_map_within_the_stated_tolerance() -> None:
    words = noise.integers(KEY, "w", 100_000).long() & MASK
    u = ((words >> 9).double() + 0.5) / 2**23
    radius, angle = torch.sqrt(-2 * torch.log(u[0::2])), 2 * math.pi * u[1::2]
    exact = torch.stack((radius * torch.cos(angle), radius * torch.sin(angle)), dim=1).flatten()
    got = noise.gaussian(KEY, "w", torch.Size([100_000]))
    assert (got.double() - exact).abs().max() < 2e-6


@pytest.mark.parametrize("count", [1, 2, 7, 4096, 100_001])
def test_an_element_does_not_depend_on_block_size_or_tensor_size(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = noise.gaussian(KEY, "w", torch.Size([100_002]))
    monkeypatch.setattr(noise, "BLOCK", 61)
    assert torch.equal(noise.gaussian(KEY, "w", torch.Size([count])), whole[:count])


def test_shape_is_only_a_view() -> None:
    flat = noise.gaussian(KEY, "w", torch.Size([60]))
    assert torch.equal(noise.gaussian(KEY, "w", torch.Size([3, 20])), flat.view(3, 20))


def test_threads_do_not_change_it() -> None:
    before = torch.get_num_threads()
    first = noise.gaussian(KEY, "w", torch.Size([300_000]))
    try:
        torch.set_num_threads(1 if before > 1 else 2)
        assert torch.equal(noise.gaussian(KEY, "w", torch.Size([300_000])), first)
    finally:
        torch.set_num_threads(before)


def test_moments_are_normal_within_five_standard_errors() -> None:
    n = 4_000_000
    z = noise.gaussian(NoiseKey(0, 0, 0), "w", torch.Size([n])).double()
    # variance of z^k's sample mean is (E z^2k - (E z^k)^2) / n
    for power, mean, variance in [(1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)]:
        assert abs(z.pow(power).mean() - mean) < 5 * math.sqrt(variance / n), power
    tail = (z.abs() > 3).double().mean()
    p = math.erfc(3 / math.sqrt(2))
    assert abs(tail - p) < 5 * math.sqrt(p * (1 - p) / n)


@pytest.mark.parametrize(
    ("other", "name"),
    [
        (NoiseKey(4, 17, 2), "w"),
        (NoiseKey(3, 18, 2), "w"),
        (NoiseKey(3, 17, 3), "w"),
        (NoiseKey(3, 17, 2), "w2"),
    ],
)
def test_another_address_gives_an_uncorrelated_direction(other: NoiseKey, name: str) -> None:
    n = 1_000_000
    a = noise.gaussian(KEY, "w", torch.Size([n]))
    b = noise.gaussian(other, name, torch.Size([n]))
    for lag in (0, 1, 2, 64):
        assert abs((a[: n - lag] * b[lag:]).mean()) < 5 / math.sqrt(n), lag


def test_neighbouring_elements_are_uncorrelated() -> None:
    n = 2_000_000
    z = noise.gaussian(KEY, "w", torch.Size([n]))
    for lag in (1, 2, 3, 16, 1024, 2 * noise.BLOCK):
        assert abs((z[:-lag] * z[lag:]).mean()) < 5 / math.sqrt(n), lag
        assert abs((z[:-lag].square() * z[lag:].square()).mean() - 1) < 5 * math.sqrt(8 / n), lag


def test_every_bit_of_a_word_is_fair_over_keys() -> None:
    """The first element of many addresses: bits must not depend on how the address is made."""
    n = 20_000
    words = torch.tensor([int(noise.integers(NoiseKey(s, 0, 0), "w", 1)[0]) & MASK for s in range(n)])
    for bit in range(32):
        ones = ((words >> bit) & 1).double().mean()
        assert abs(ones - 0.5) < 5 * 0.5 / math.sqrt(n), bit


def test_uniform_covers_its_interval() -> None:
    u = noise.uniform(KEY, "w", torch.Size([1_000_000])).double()
    assert 0 < u.min() < 1e-5
    assert 1 - 1e-5 < u.max() < 1
    assert abs(u.mean() - 0.5) < 5 / math.sqrt(12e6)
