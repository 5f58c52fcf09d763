"""Tokens drawn with addressed noise: their distribution, and their address."""

from __future__ import annotations

import math

import pytest
import torch

from zo_sweeps.engine.noise import Sampler

pytestmark = pytest.mark.unit

LOGITS = torch.tensor([2.0, 0.5, -1.0, 0.0, 1.2])


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_tokens_are_drawn_from_the_softmax_over_rows_and_over_tokens(temperature: float) -> None:
    draws, draw = 2000, Sampler(1, 2, temperature)
    expected = torch.softmax(LOGITS / temperature, 0)
    by_row = draw(range(draws), 0, LOGITS.expand(draws, -1)).argmax(1)
    by_token = torch.cat([draw([0], token, LOGITS.unsqueeze(0)).argmax(1) for token in range(draws)])
    for drawn in (by_row, by_token):
        shares = torch.bincount(drawn, minlength=5) / draws
        for share, p in zip(shares.tolist(), expected.tolist(), strict=True):
            assert abs(share - p) < 4 * math.sqrt(p * (1 - p) / draws)


def test_a_draw_depends_on_its_address_alone() -> None:
    logits = torch.randn(3, 1000, generator=torch.Generator().manual_seed(0))
    scores = Sampler(1, 2, 0.7)([4, 0, 9], 6, logits)
    assert torch.equal(Sampler(1, 2, 0.7)([9], 6, logits[2:]), scores[2:])
    for other in (Sampler(1, 3, 0.7)([9], 6, logits[2:]), Sampler(2, 2, 0.7)([9], 6, logits[2:])):
        assert not torch.equal(other, scores[2:])
    assert not torch.equal(Sampler(1, 2, 0.7)([9], 7, logits[2:]), scores[2:])
    assert scores.isfinite().all()
