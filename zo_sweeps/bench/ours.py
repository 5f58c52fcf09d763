"""The engine's steps as functions to time, for a batch and a space."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count

import torch
from torch import Tensor

from zo_sweeps.bench.shapes import Example
from zo_sweeps.engine import losses
from zo_sweeps.engine.batch import collate
from zo_sweeps.engine.estimators.rge import RGE
from zo_sweeps.engine.perturbations.gaussian import Gaussian
from zo_sweeps.engine.spaces.lora_fa import LoRAFA
from zo_sweeps.engine.step import Method, step
from zo_sweeps.engine.types import LanguageModel as Forwards
from zo_sweeps.engine.updates.sgd import SGD
from zo_sweeps.methods.evaluation import Mode
from zo_sweeps.methods.perturbation import Perturbation
from zo_sweeps.methods.space import InstalledSpace
from zo_sweeps.models.causal import LanguageModel


def with_lora_fa(model: LanguageModel, rank: int, alpha: float) -> InstalledSpace:
    """Install LoRA-FA on q, k, v and o of every layer."""
    space = LoRAFA(rank=rank, alpha=alpha, targets=tuple("qkvo"))
    return space.install(model.module, list(model.target_modules(space.targets)), 0)


@dataclass(frozen=True)
class Steps:
    """Steps of a run over one batch, collated at each step as in a run."""

    model: Forwards
    space: InstalledSpace
    examples: Sequence[Example]
    q: int = 1
    mode: Mode = Mode.SEQUENTIAL
    lr: float = 1e-6
    noise: Perturbation = field(default_factory=Gaussian)

    @property
    def method(self) -> Method:
        return Method(RGE(self.q, 1e-3), self.noise, SGD(), self.mode).bind(self.space.params)

    @property
    def device(self) -> torch.device:
        return next(self.model.module.parameters()).device

    def forward(self, copies: int) -> Tensor:
        """Return f at `copies` points: the forward of a step alone."""
        gold_only = len(self.examples[0].candidates) == 1
        batch = collate(self.examples, 0, gold_only=gold_only).to(self.device)
        loss = losses.tokens if gold_only else losses.candidates
        return loss(losses.token_logprobs(self.model, batch, copies=copies), batch)

    def one(self) -> Callable[[], None]:
        """Return a function whose every call takes the next step."""
        numbers, method = count(1), self.method

        def run() -> None:
            step(method, self.model.module, self.space, self.forward, {}, seed=0, step=next(numbers), lr=self.lr)

        return run
