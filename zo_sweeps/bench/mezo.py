"""The reference loop: MeZO as in its released code. Used by the benchmark only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F

from zo_sweeps.bench.shapes import Example
from zo_sweeps.models.causal import LanguageModel


@torch.inference_mode()
def loss(model: LanguageModel, examples: Sequence[Example]) -> float:
    """Return the cross-entropy over the candidates (of the answer token if there is one), one sequence per candidate.

    Logits and log-softmax at all positions, as in MeZO.
    """
    rows = [candidate.ids[:-1] for example in examples for candidate in example.candidates]
    answers = torch.tensor([candidate.ids[-1] for example in examples for candidate in example.candidates])
    causal: Any = model.module
    logits = causal(input_ids=torch.tensor(rows), use_cache=False).logits.float()
    scores = F.log_softmax(logits, dim=-1)[:, -1].gather(1, answers[:, None]).view(len(examples), -1)
    if scores.shape[1] == 1:
        return float(-scores.mean())
    return float(F.cross_entropy(scores, torch.tensor([example.gold for example in examples])))


@torch.no_grad()
def step(model: LanguageModel, examples: Sequence[Example], seed: int, eps: float = 1e-3, lr: float = 1e-6) -> float:
    """Take one step of MeZO's Algorithm 1: four passes over the parameters, each drawing all of z again."""

    def perturb(scale: float) -> None:
        torch.manual_seed(seed)
        for param in model.module.parameters():
            z = torch.normal(mean=0, std=1, size=param.shape, dtype=param.dtype)
            param.data = param.data + scale * z * eps

    perturb(1)
    plus = loss(model, examples)
    perturb(-2)
    minus = loss(model, examples)
    perturb(1)
    projected_grad = (plus - minus) / (2 * eps)
    torch.manual_seed(seed)
    for param in model.module.parameters():
        z = torch.normal(mean=0, std=1, size=param.shape, dtype=param.dtype)
        param.data = param.data - lr * (projected_grad * z)
    return projected_grad
