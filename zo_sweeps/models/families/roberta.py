"""RoBERTa: a masked model. LayerNorm after each part, learned positions, biases everywhere, a head of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zo_sweeps.models.families import head_width, size

MASKED = True
TARGETS = {
    "q": "query",
    "k": "key",
    "v": "value",
    "o": "attention.output.dense",
    "up": "intermediate.dense",
    "down": "output.dense",
}
BOS_TOKEN = None


def linear_shapes(arch: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    head_width(arch)  # a module of such a shape can be made
    width, inner = size(arch, "hidden_size"), size(arch, "intermediate_size")
    return {**dict.fromkeys("qkvo", (width, width)), "up": (inner, width), "down": (width, inner)}


def parameter_count(arch: Mapping[str, Any]) -> int:
    width, vocabulary, shapes = size(arch, "hidden_size"), size(arch, "vocab_size"), linear_shapes(arch)
    layer = sum(out * into + out for out, into in shapes.values()) + 4 * width  # and two norms
    # words, positions, kinds of text, and their norm
    total = (vocabulary + size(arch, "max_position_embeddings") + arch.get("type_vocab_size", 2) + 2) * width
    total += width * width + width + 2 * width + vocabulary  # the head: dense, norm, bias
    if not arch.get("tie_word_embeddings", True):
        total += vocabulary * width
    return total + size(arch, "num_hidden_layers") * layer
