"""PeZO's exported directions against the engine's: not one bit differs, in PyTorch and in a program."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

import pytest
import torch
from torch import Tensor

from zo_sweeps.engine.perturbations._bases import Whole
from zo_sweeps.engine.perturbations.pezo_onthefly import PeZOOnTheFly
from zo_sweeps.engine.perturbations.pezo_pool import PeZOPool
from zo_sweeps.methods.points import Layout, NoiseKey
from zo_sweeps_edge.export import compiled
from zo_sweeps_edge.noise import Noise, padded
from zo_sweeps_edge.pezo_noise import PooledNoise, RegisterNoise
from zo_sweeps_edge.program import FORWARD

SHAPES = {"a.B": (40, 26), "b.B": (7,), "c.B": (3000,), "d.B": (1,)}  # c goes around a pool of 255 many times
SEED, Q = 3, 2
MEMBERS = [
    PeZOPool(),
    PeZOPool(k=8, advance="coprime", stored_bits=12),
    PeZOPool(k=8, length="perturbation", advance="coprime"),
    PeZOPool(k=8, length="perturbation", rounding="linear", advance="coprime"),
    PeZOOnTheFly(advance="coprime"),
    PeZOOnTheFly(k=3, bits=14, address="pointer", rounding="none", leap=True),
    PeZOOnTheFly(k=6, bits=4, center=False, advance="coprime"),  # more registers than states
]


def bound(member: Whole) -> Any:
    return member.bind(Layout({name: torch.Size(shape) for name, shape in SHAPES.items()}, Q))


def noise_of(member: Any) -> Noise:
    kind: Any = PooledNoise if isinstance(member, PeZOPool) else RegisterNoise
    noise: Noise = kind(member, [prod(shape) for shape in SHAPES.values()], SEED)
    return noise


def checked(member: Any, noise: Noise, run: Any) -> None:
    """Compare all elements of directions throughout the cycle, with those of the run's first steps."""
    assert noise.cycles is not None
    start = noise.cycles.start
    steps = (1, 2, 3, 77, 10_000, 2**31 - 1)
    keys = [NoiseKey(SEED, step, query) for step in steps for query in range(Q)]
    for pair in zip(keys[::2], keys[1::2], strict=True):
        words = torch.tensor([[start(member.layout.drawn_before(key))] for key in pair], dtype=torch.int32)
        for key, z in zip(pair, run(words), strict=True):
            at = 0
            for name, shape in member.layout.shapes.items():
                assert torch.equal(z[at : at + shape.numel()].view(shape), member.sample(key, name, shape, "cpu"))
                at += padded(shape.numel())
            assert at == len(z)


@pytest.mark.unit
@pytest.mark.parametrize("member", MEMBERS, ids=str)
def test_every_element_has_the_engines_bits(member: Whole) -> None:
    one = bound(member)
    noise = noise_of(one)
    checked(one, noise, noise)


@pytest.mark.unit
def test_every_start_of_a_pool_has_the_engines_bits() -> None:
    """Directions begin at every place; a scale of each is among 255 that nearly agree."""
    one = bound(replace(MEMBERS[2], k=4))
    noise, name = noise_of(one), "d.B"
    assert one.directions(one.layout.d) == one.size == 15
    for drawn in range(one.size):
        key = NoiseKey(SEED, 1 + drawn // Q, drawn % Q)
        words = torch.tensor([[noise.cycles.start(drawn)]], dtype=torch.int32)  # type: ignore[union-attr]
        assert torch.equal(noise(words)[0, -1024:-1023], one.sample(key, name, torch.Size([1]), "cpu"))


@pytest.mark.slow
@pytest.mark.multiprocess
@pytest.mark.parametrize("delegated", [True, pytest.param(False, marks=pytest.mark.long)], ids=["xnnpack", "portable"])
@pytest.mark.parametrize("member", [MEMBERS[1], MEMBERS[2], MEMBERS[5]], ids=str)
def test_a_program_has_them_too(member: Whole, delegated: bool) -> None:
    pytest.importorskip("executorch", reason="needs the extra [edge]")
    from executorch.runtime import Runtime

    one = bound(member)
    noise = noise_of(one)
    words = torch.zeros(Q, noise.addresses, 2, dtype=torch.int32)
    traced = torch.export.export(noise, (words,), strict=False)
    data, _ = compiled({FORWARD: traced}, [FORWARD] if delegated else [])
    method = Runtime.get().load_program(data).load_method(FORWARD)

    def run(words: Tensor) -> Tensor:
        assert data
        (z,) = method.execute([words])
        return z.clone()

    checked(one, noise, run)
