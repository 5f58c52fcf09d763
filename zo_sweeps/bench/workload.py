"""The benchmarks' models and data (random weights, random tokens), our steps over them, and MeZO's loop."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from zo_sweeps.engine import losses
from zo_sweeps.engine.batch import collate
from zo_sweeps.engine.estimators.rge import RGE
from zo_sweeps.engine.perturbations.gaussian import Gaussian
from zo_sweeps.engine.spaces.lora_fa import LoRAFA
from zo_sweeps.engine.step import Method, RunState, step
from zo_sweeps.engine.types import LanguageModel as Forwards
from zo_sweeps.engine.updates.sgd import SGD
from zo_sweeps.methods.evaluation import Mode
from zo_sweeps.methods.parts import Model, ModelSource
from zo_sweeps.methods.perturbation import Perturbation
from zo_sweeps.methods.space import InstalledSpace
from zo_sweeps.models.causal import CausalModel
from zo_sweeps.models.load import load
from zo_sweeps.tasks.encode import EncodedCandidate, EncodedExample

VOCABULARY = 32000
LLAMA_58M = {  # 58.07 M parameters
    "model_type": "llama",
    "vocab_size": VOCABULARY,
    "hidden_size": 512,
    "intermediate_size": 1376,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
}


def llama_58m() -> CausalModel:
    """Load the Llama of LLAMA_58M, fp32, on the CPU."""
    return load(Model(source=ModelSource.RANDOM, arch=LLAMA_58M), torch.float32, torch.device("cpu"))


def demo() -> CausalModel:
    """Load the demo model, fp32, on the CPU."""
    return load(Model(), torch.float32, torch.device("cpu"))


def examples(lengths: Sequence[int], options: int, vocabulary: int = VOCABULARY) -> list[EncodedExample]:
    """Return one example per prompt length in tokens, each with `options` answers of one token."""
    draw = random.Random(0)

    def token() -> int:
        return draw.randrange(1, vocabulary)

    prompts = [tuple(token() for _ in range(tokens)) for tokens in lengths]
    candidates = [tuple(EncodedCandidate((*prompt, token()), 1) for _ in range(options)) for prompt in prompts]
    return [EncodedExample(each, gold=0, references=(), prompt_ids=(), text="") for each in candidates]


def with_lora_fa(model: CausalModel, rank: int, alpha: float) -> InstalledSpace:
    """Install LoRA-FA on q, k, v and o of every layer."""
    space = LoRAFA(rank=rank, alpha=alpha, targets=tuple("qkvo"))
    return space.install(model.module, list(model.target_modules(space.targets)), 0)


@dataclass(frozen=True)
class BenchSteps:
    """Steps of a run over one batch, collated at each step as in a run."""

    model: Forwards
    space: InstalledSpace
    examples: Sequence[EncodedExample]
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
            step(
                method, self.model.module, self.space, self.forward, RunState(), seed=0, step=next(numbers), lr=self.lr
            )

        return run


@torch.inference_mode()
def mezo_loss(model: CausalModel, examples: Sequence[EncodedExample]) -> float:
    """Return the cross-entropy over the candidates (of the answer token if there is one), one sequence per candidate.

    Logits and log-softmax at all positions, as in MeZO's released code.
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
def mezo_step(
    model: CausalModel, examples: Sequence[EncodedExample], seed: int, eps: float = 1e-3, lr: float = 1e-6
) -> float:
    """Take one step of MeZO's Algorithm 1: four passes over the parameters, each drawing all of z again."""

    def perturb(scale: float) -> None:
        torch.manual_seed(seed)
        for param in model.module.parameters():
            z = torch.normal(mean=0, std=1, size=param.shape, dtype=param.dtype)
            param.data = param.data + scale * z * eps

    perturb(1)
    plus = mezo_loss(model, examples)
    perturb(-2)
    minus = mezo_loss(model, examples)
    perturb(1)
    projected_grad = (plus - minus) / (2 * eps)
    torch.manual_seed(seed)
    for param in model.module.parameters():
        z = torch.normal(mean=0, std=1, size=param.shape, dtype=param.dtype)
        param.data = param.data - lr * (projected_grad * z)
    return projected_grad
