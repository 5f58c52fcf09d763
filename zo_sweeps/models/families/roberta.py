"""RoBERTa: a masked model. LayerNorm after each part, learned positions, biases everywhere, a head of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zo_sweeps.methods.arch import Arch
from zo_sweeps.models.families import MASKED_PACKING, MASKED_PREFIX, Family, arch_of, is_composed, size

PROJECTIONS = {
    "q": "attention.self.query",
    "k": "attention.self.key",
    "v": "attention.self.value",
    "o": "attention.output.dense",
    "up": "intermediate.dense",
    "down": "output.dense",
}


def describe(config: Mapping[str, Any]) -> Arch:
    """Return the shape of a RoBERTa. Positions count from the padding id + 1, so it holds that many tokens fewer."""
    width, inner, vocabulary = (size(config, key) for key in ("hidden_size", "intermediate_size", "vocab_size"))
    vectors = size({"max_position_embeddings": 512, **config}, "max_position_embeddings")
    padding, tied = config.get("pad_token_id", 1), bool(config.get("tie_word_embeddings", True))
    linears = {**dict.fromkeys("qkvo", (width, width)), "up": (inner, width), "down": (width, inner)}
    layer = sum(out * into + out for out, into in linears.values()) + 4 * width  # and two norms
    # words, positions, token types, and their norm
    total = (vocabulary + vectors + config.get("type_vocab_size", 2) + 2) * width
    total += width * width + width + 2 * width + vocabulary  # the head: dense, norm, bias
    if not tied:
        total += vocabulary * width
    return arch_of(
        config,
        linears,
        positions=vectors - (padding or 0) - 1,
        tied=tied,
        masked=True,
        parameters=total + size(config, "num_hidden_layers") * layer,
        composed=is_composed(config),
        blocks="roberta.encoder.layer",
        projections=PROJECTIONS,
        shared=True,
        no_packing=MASKED_PACKING,
        no_prefix=MASKED_PREFIX,
    )


family = Family(describe)
