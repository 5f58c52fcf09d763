"""Addressed noise against pure-Python integers, the exact Gaussian map, and the moments it must have."""

from __future__ import annotations

import importlib.util
import math
from functools import partial
from typing import Any

import pytest
import torch

from zo_sweeps.engine import noise
from zo_sweeps.engine.kernels import native
from zo_sweeps.methods.points import NoiseKey

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


def test_a_trace_leaves_no_constants_without_values_behind() -> None:
    class Drawn(torch.nn.Module):
        def __init__(self, module: Any) -> None:
            super().__init__()
            self.noise = module

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            z = self.noise.expression(torch.empty(40), KEY, "w")
            return x + z + self.noise.uniform(KEY, "w", x.shape) + self.noise.signs(KEY, "w", x.shape)

    spec = importlib.util.find_spec(noise.__name__)
    first = importlib.util.module_from_spec(spec)  # as in a process whose first noise is traced
    spec.loader.exec_module(first)
    x, drawn = torch.zeros(40), Drawn(first)
    expected = Drawn(noise)(x)
    traced = torch.export.export(drawn, (x,)).module()
    assert torch.equal(drawn(x), expected)
    assert torch.equal(traced(x), expected)


def test_integers_are_those_of_the_specification() -> None:
    k0, k1 = noise.words_of(KEY, "layer.weight")
    got = noise.integers(KEY, "layer.weight", 2001)
    expected = []
    for group in range(2):
        words = [reference_words(512 * group + lane, k0, k1) for lane in range(512)]
        expected += [x for x, _ in words] + [y for _, y in words]
    assert [int(word) & MASK for word in got] == expected[:2001]


def test_gaussian_is_the_exact_map_within_the_stated_tolerance() -> None:
    words = noise.integers(KEY, "w", 1024 * 300).view(-1, 2, 512).long()
    x, y = words[:, 0], words[:, 1]
    radius = torch.sqrt(-2 * torch.log((x | 1).abs().float().double() / 2**31))
    angle = math.pi / 2 * y.float().double() / 2**31
    exact = torch.stack((radius * torch.sin(angle), torch.sign(x | 1) * radius * torch.cos(angle)), dim=1).flatten()
    got = noise.gaussian(KEY, "w", torch.Size([1024 * 300])).double()
    assert ((got - exact).abs() <= 2e-6 * (1 + exact.abs())).all()


def naive_sum(words, scales, base: torch.Tensor, start: int, of_signs: bool) -> torch.Tensor:
    """The order of rounding that the module's text states, from whole directions."""
    total = None
    for (k0, k1), scale in zip(words, scales, strict=True):
        z = torch.empty(start + len(base))
        if of_signs:
            drawn = noise._words(k0, k1, 0, -(-len(z) // 32), "cpu")
            z = ((drawn.unsqueeze(1) >> torch.arange(32) & 1) * 2.0 - 1).flatten()[: len(z)]
        else:
            noise._expression(z, None, 0, [(k0, k1)], [1.0])
        total = z * torch.tensor(scale) if total is None else total + z * torch.tensor(scale)
    return base + total[start:]


@pytest.mark.parametrize(("start", "count"), [(0, 1), (0, 5000), (511, 2), (512, 512), (1000, 70_001), (1536, 400_000)])
@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("of_signs", [True, False])
def test_a_part_of_a_sum_has_the_bits_of_whole_directions_summed(
    of_signs: bool, compiled: bool, start: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if compiled and not noise.is_compiled():
        pytest.skip("no C compiler here")
    if not compiled:
        monkeypatch.setattr(noise, "_native", lambda: None)
    terms = [(KEY, 1e-3), (NoiseKey(3, 17, 3), -0.7)]
    base = torch.linspace(-1, 1, count)
    words = [noise.words_of(key, "w") for key, _ in terms]
    expected = naive_sum(words, [scale for _, scale in terms], base, start, of_signs)
    combine = partial(noise.combine, terms, "w", torch.Size([count]), base=base, start=start, of_signs=of_signs)
    assert torch.equal(combine(), expected)
    assert torch.equal(combine(out=base), expected)
    assert torch.equal(base, expected)


def test_compiled_and_expression_have_the_same_bits() -> None:
    if not noise.is_compiled():
        pytest.skip("no C compiler here")
    out = torch.empty(2_000_003)
    assert torch.equal(noise.expression(out, KEY, "w"), noise.gaussian(KEY, "w", out.shape))


def test_without_a_compiler_the_expression_does_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = noise.gaussian(KEY, "w", torch.Size([3000]))
    monkeypatch.setattr(native.shutil, "which", lambda name: None)
    native.library.cache_clear()
    noise._native.cache_clear()
    try:
        assert not noise.is_compiled()
        assert torch.equal(noise.gaussian(KEY, "w", torch.Size([3000])), expected)
    finally:
        native.library.cache_clear()
        noise._native.cache_clear()


def test_a_compiled_map_with_other_bits_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    if not noise.is_compiled():
        pytest.skip("no C compiler here")
    # Not -ffast-math: code linked with it makes this whole process flush subnormal numbers to zero when it is loaded.
    contracting = ("-ffp-contract=fast", "-fassociative-math", "-fno-signed-zeros")
    monkeypatch.setattr(native, "FLAGS", (*native.FLAGS, *contracting))
    native.library.cache_clear()
    noise._native.cache_clear()
    try:
        assert native.library() is not None
        assert not noise.is_compiled()
    finally:
        native.library.cache_clear()
        noise._native.cache_clear()


@pytest.mark.parametrize("count", [1, 2, 7, 4096, 100_001])
def test_an_element_does_not_depend_on_block_size_or_tensor_size(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = noise.gaussian(KEY, "w", torch.Size([100_002]))
    assert torch.equal(noise.gaussian(KEY, "w", torch.Size([count])), whole[:count])
    monkeypatch.setattr(noise, "BLOCK", 7)
    assert torch.equal(noise.expression(torch.empty(count), KEY, "w"), whole[:count])


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
    for lag in (1, 2, 3, 16, 512, 1024, 65536):
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
