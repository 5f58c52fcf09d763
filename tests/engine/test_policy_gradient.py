"""The gradient of sampled answers' rewards, by its closed form: of a categorical distribution."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch

from tests.engine.conftest import Candidate, Example
from zo_sweeps.engine.batch import collate
from zo_sweeps.engine.objectives.reward import Reward

pytestmark = pytest.mark.unit

LOGITS = torch.tensor([[0.3, -0.7, 1.1], [2.0, 0.1, -0.4]], dtype=torch.float64)  # of two prompts
REWARDS = torch.tensor([[1.0, 0.0, 0.25], [-3.0, 2.0, 5.0]], dtype=torch.float64)


@pytest.mark.parametrize("group", [2, 3])
def test_the_expected_gradient_is_that_of_the_expected_reward(group: int) -> None:
    """-d/dtheta_v of the mean over prompts of E[r], which is -p_v (r_v - E[r]) / 2; over all draws."""
    logits = LOGITS.clone().requires_grad_(True)
    p = logits.detach().softmax(-1)
    expected = -p * (REWARDS - (p * REWARDS).sum(-1, keepdim=True)) / 2
    gradient, mean = torch.zeros_like(p), 0.0
    for draws in itertools.product(range(3), repeat=2 * group):
        drawn = torch.tensor(draws).view(2, group)
        chance = p.gather(1, drawn).prod()
        examples = [Example(tuple(Candidate((9, int(v)), 1) for v in row), 0) for row in drawn]
        batch = replace(collate(examples, pad_id=0), rewards=REWARDS.gather(1, drawn))
        f = Reward().loss(logits.log_softmax(-1).gather(1, drawn).view(1, -1), batch)
        assert f.shape == (1,)
        assert f.item() == pytest.approx(-REWARDS.gather(1, drawn).mean().item())
        gradient += chance * torch.autograd.grad(f[0], logits)[0]
        mean += float(chance * f.detach())
    torch.testing.assert_close(gradient, expected)
    assert mean == pytest.approx(-(p * REWARDS).sum(-1).mean().item())


def test_equal_rewards_give_no_gradient() -> None:
    examples = [Example((Candidate((9, 1), 1), Candidate((9, 2, 3), 2)), 0)]
    batch = replace(collate(examples, pad_id=0), rewards=torch.tensor([[0.5, 0.5]]))
    logprobs = torch.tensor([[-1.0, -2.0, -0.5]], requires_grad=True)
    (gradient,) = torch.autograd.grad(Reward().loss(logprobs, batch)[0], logprobs)
    assert not gradient.any()
