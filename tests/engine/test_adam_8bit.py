"""8-bit Adam: the library's steps against the rule written out, with the table and the encoding written out too."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from zo_sweeps.engine.updates.adam import Adam
from zo_sweeps.engine.updates.adam_8bit import Adam8bit

pytestmark = pytest.mark.unit
SIZE, BLOCK, LR = 16 * 1024, 256, 1e-3
HALF_STEP = 0.45 / 64  # of m's table in its top decade, as a share of the block's largest value; v's is half of it


def table(signed: bool) -> np.ndarray:
    """0, 1, and in decade i of 7 the middles of 2^i (v: 2^(i+1)) equal parts of [0.1, 1] * 10^(i-6); m: both signs."""
    values = [0.0, 1.0]
    for i in range(7):
        parts = 2**i if signed else 2 ** (i + 1)
        middles = (0.1 + 0.9 * (np.arange(parts) + 0.5) / parts) * 10.0 ** (i - 6)
        values += [*middles, *(-middles if signed else [])]
    assert len(values) == 256
    return np.sort(np.array(values))


def encoded(values: np.ndarray, entries: np.ndarray) -> np.ndarray:
    """Replace each value by the nearest entry, times the largest magnitude of its block.

    As the library does on a CPU, where it looks the entry up by the share's place on a grid of 2^16 numbers.
    """
    blocks = values.reshape(-1, BLOCK)
    scales = np.abs(blocks).max(axis=1, keepdims=True)
    shares = np.round(((blocks / scales).ravel() + 1) / 2 * 65535) / 65535 * 2 - 1
    right = np.clip(np.searchsorted(entries, shares), 1, len(entries) - 1)
    left_is_nearer = shares - entries[right - 1] < entries[right] - shares
    return (entries[np.where(left_is_nearer, right - 1, right)].reshape(-1, BLOCK) * scales).ravel()


def gradients(steps: int) -> list[np.ndarray]:
    generator = np.random.default_rng(0)
    return [generator.normal(size=SIZE) * 10 ** generator.uniform(-3, 0, size=SIZE) for _ in range(steps)]


def steps_of(update: Adam | Adam8bit, seen: list[np.ndarray], decay: float, dtype: torch.dtype) -> list[Tensor]:
    param = nn.Parameter(torch.linspace(-1, 1, SIZE).view(64, -1).to(dtype))
    stepper = update.optimizer([{"params": [param], "weight_decay": decay}])
    reached = []
    for g in seen:
        param.grad = torch.from_numpy(g).view(64, -1).to(dtype)
        stepper.step()
        reached.append(param.detach().clone())
    return reached


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_steps_are_those_of_the_rule_over_states_in_the_table(decay: float) -> None:
    """Written out in double precision.

    A state in the middle of two entries, to within rounding, may become either: such an element is off for some steps,
    and all others agree to fp32's rounding.
    """
    seen = gradients(4)
    theta, m, v = np.linspace(-1, 1, SIZE), np.zeros(SIZE), np.zeros(SIZE)
    signed, unsigned = table(signed=True), table(signed=False)
    for t, (g, ours) in enumerate(zip(seen, steps_of(Adam8bit(lr=LR), seen, decay, torch.float32), strict=True), 1):
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        theta -= LR * (m / (1 - 0.9**t) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8) + decay * theta)
        m, v = encoded(m, signed), encoded(v, unsigned)
        off = np.abs(ours.double().numpy().ravel() - theta)
        assert (off > 1e-6).mean() < 1e-3 * t, t
        assert np.median(off) < 1e-7


def test_the_first_step_is_adams_and_the_second_within_the_tables_error() -> None:
    """Gradients of one magnitude keep states in the top decade, where an entry is off by at most a known share.

    m_2 = 0.9 m_1 + 0.1 g is off by 0.9 * 0.1 G h, with |g| <= G and h the half step; v_2 by 0.999 * 0.001 G^2 h / 2.
    """
    generator = np.random.default_rng(1)
    low, high = 0.5, 1.0
    seen = [generator.choice([-1, 1], SIZE) * generator.uniform(low, high, SIZE) for _ in range(2)]
    exact, ours = (steps_of(one(lr=LR), seen, 0.0, torch.float32) for one in (Adam, Adam8bit))
    torch.testing.assert_close(ours[0], exact[0], rtol=0, atol=1e-7)
    m_off, v_off = 0.09 * high * HALF_STEP, 0.000999 * high**2 * HALF_STEP / 2
    root_off = 1 - math.sqrt(1 - v_off / (0.001999 * low**2))  # share of sqrt(v_2) at its smallest
    largest = 0.19 * high / (1 - 0.9**2) / (low * math.sqrt(0.001999 / (1 - 0.999**2)))
    bound = LR * (m_off / (1 - 0.9**2) / low + largest * root_off) * 1.01
    off = float((ours[1] - exact[1]).abs().max())
    assert 0.2 * bound < off < bound


def test_weights_in_half_precision_are_rounded_once_from_an_fp32_step() -> None:
    (g,) = gradients(1)
    (half,) = steps_of(Adam8bit(lr=0.01), [g], 0.0, torch.bfloat16)
    rounded = torch.from_numpy(g).to(torch.bfloat16).double().numpy()
    start = torch.linspace(-1, 1, SIZE).to(torch.bfloat16).double().numpy()
    theta = start - 0.01 * rounded / (np.abs(rounded) + 1e-8)
    wanted = torch.from_numpy(theta).to(torch.bfloat16)
    assert float((half.ravel() == wanted).float().mean()) > 0.999, "the others are ties of the rounding"


def test_states_take_the_bytes_that_the_plan_counts() -> None:
    update = Adam8bit()
    param = nn.Parameter(torch.zeros(SIZE))
    stepper = update.optimizer([{"params": [param], "weight_decay": 0.0}])
    param.grad = torch.ones(SIZE)
    stepper.step()
    tables = ("qmap1", "qmap2")  # shared by all parameters
    held = sum(v.nbytes for k, v in stepper.state[param].items() if isinstance(v, Tensor) and k not in tables)
    assert held == SIZE * update.state_copies * update.state_bits / 8
