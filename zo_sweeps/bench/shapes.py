"""The benchmark's models and data: random weights, random tokens."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from zo_sweeps.methods.parts import Model, ModelSource
from zo_sweeps.models.causal import LanguageModel
from zo_sweeps.models.load import load

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


LLAMA_2_7B = {  # 6.74 G parameters
    **LLAMA_58M,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "max_position_embeddings": 4096,
}


@dataclass(frozen=True)
class Candidate:
    """One candidate of an example; see `engine.batch.Candidate`."""

    ids: tuple[int, ...]
    answer_length: int = 1


@dataclass(frozen=True)
class Example:
    """One example; see `engine.batch.Example`."""

    candidates: tuple[Candidate, ...]
    gold: int


def llama_58m() -> LanguageModel:
    """Load the Llama of LLAMA_58M, fp32, on the CPU."""
    return load(Model(source=ModelSource.RANDOM, arch=LLAMA_58M), torch.float32, torch.device("cpu"))


def demo() -> LanguageModel:
    """Load the demo model, fp32, on the CPU."""
    return load(Model(), torch.float32, torch.device("cpu"))


def examples(lengths: Sequence[int], options: int, vocabulary: int = VOCABULARY) -> list[Example]:
    """Return one example per prompt length in tokens, each with `options` answers of one token."""
    draw = random.Random(0)

    def token() -> int:
        return draw.randrange(1, vocabulary)

    prompts = [tuple(token() for _ in range(tokens)) for tokens in lengths]
    return [Example(tuple(Candidate((*prompt, token())) for _ in range(options)), 0) for prompt in prompts]
