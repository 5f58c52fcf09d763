"""The exported noise against the engine's: not one bit differs, in PyTorch; test_program.py has it in a program."""

from __future__ import annotations

import pytest
import torch

from zo_sweeps.engine import noise
from zo_sweeps.engine.noise import ROOT_HALF
from zo_sweeps.methods.points import NoiseKey
from zo_sweeps_edge.noise import GaussianNoise, _exponent, _scale, _words, padded

pytestmark = pytest.mark.unit


def one(sizes: list[int], key: NoiseKey, names: list[str]) -> torch.Tensor:
    words = torch.tensor([[noise.words_of(key, name) for name in names]], dtype=torch.int32)
    return GaussianNoise(sizes)(words)[0]


@pytest.mark.parametrize("exponent", [0, 1, 15, 30])
def test_every_mantissa_is_scaled_as_the_engine_does(exponent: int) -> None:
    mantissas = torch.arange(127 + exponent << 23, 128 + exponent << 23, dtype=torch.int32)
    halved = (mantissas & 0x7FFFFF) >= (ROOT_HALF & 0x7FFFFF)  # 1 + f begins anew at sqrt(1/2)
    expected = torch.where(halved, 2.0 ** (exponent + 1), 2.0**exponent)
    v = mantissas.view(torch.float32)
    assert torch.equal(_scale(v), expected)
    assert torch.equal(_scale(-v), -expected)


def test_the_exponent_of_every_power_of_two() -> None:
    assert _exponent(2.0 ** torch.arange(32)).tolist() == list(range(32))


def test_the_words_are_the_engines() -> None:
    key, count = NoiseKey(3, 17, 2), 1 << 20
    k0, k1 = (torch.tensor(word, dtype=torch.int32) for word in noise.words_of(key, "w"))
    factors = GaussianNoise([1]).factors[:, :1]
    counters = torch.arange(count // 2, dtype=torch.int32)
    both = torch.stack([word.view(-1, noise.LANES) for word in _words(counters, k0, k1, factors)], dim=1).flatten()
    assert torch.equal(both, noise.integers(key, "w", count))


@pytest.mark.parametrize("sizes", [[1], [1024, 7, 3000], [2**20]])
def test_every_element_has_the_engines_bits(sizes: list[int]) -> None:
    key = NoiseKey(3, 17, 2)
    names = [f"layers.{i}.B" for i in range(len(sizes))]
    z = one(sizes, key, names)
    start = 0
    for name, size in zip(names, sizes, strict=True):
        assert torch.equal(z[start : start + size], noise.gaussian(key, name, torch.Size([size])))
        start += padded(size)
    assert start == len(z)


def test_rare_words_have_the_engines_bits_too() -> None:
    """Words near the borders of an octave and of the halves of its mantissas: 4 million counters have all of them."""
    key, count = NoiseKey(0, 1, 0), 2**23
    z = one([count], key, ["w"])
    assert torch.equal(z, noise.gaussian(key, "w", torch.Size([count])))
