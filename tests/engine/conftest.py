"""A tiny random Llama behind the engine's protocol, in fp32."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from zo_sweeps.models.causal import own_text


@dataclass(frozen=True)
class TinyModel:
    module: nn.Module

    @property
    def blocks(self) -> list[nn.Module]:
        return list(self.module.model.layers)

    def hidden(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, positions: Tensor | None = None
    ) -> Tensor:
        mask = None if positions is None else own_text(positions)
        base = self.module.base_model
        return base(input_ids=input_ids, attention_mask=mask, position_ids=positions, use_cache=False).last_hidden_state

    def head(self, hidden: Tensor) -> Tensor:
        return self.module.lm_head(hidden)


@dataclass(frozen=True)
class Candidate:
    ids: tuple[int, ...]
    answer_length: int


@dataclass(frozen=True)
class Example:
    candidates: tuple[Candidate, ...]
    gold: int


def tiny_model(seed: int = 0, tied: bool = True, layers: int = 2) -> TinyModel:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        config = LlamaConfig(
            vocab_size=97,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=layers,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=64,
            tie_word_embeddings=tied,
            initializer_range=0.2,
        )
        module = LlamaForCausalLM(config).eval()
    return TinyModel(module.requires_grad_(False))


def make_examples(n: int, seed: int = 0, options: int = 2, answer: int | None = None) -> list[Example]:
    generator = torch.Generator().manual_seed(seed)

    def draw(low: int, high: int) -> int:
        return int(torch.randint(low, high, (1,), generator=generator))

    examples = []
    for _ in range(n):
        prompt = tuple(draw(1, 97) for _ in range(draw(4, 14)))
        candidates = []
        for _ in range(options):
            length = answer or draw(1, 4)
            candidates.append(Candidate(prompt + tuple(draw(1, 97) for _ in range(length)), length))
        examples.append(Example(tuple(candidates), draw(0, options)))
    return examples


@pytest.fixture
def model() -> TinyModel:
    return tiny_model()


def targets(model: TinyModel, names: tuple[str, ...] = ("q_proj", "k_proj", "v_proj", "o_proj")) -> list[str]:
    return [name for name, _ in model.module.named_modules() if name.rpartition(".")[2] in names]
