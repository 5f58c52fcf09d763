"""Llama: RMSNorm, rotary positions, gated feed-forward, grouped keys and values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zo_sweeps.core.errors import UserError
from zo_sweeps.models.families import head_width, size

TARGETS = {
    "q": "q_proj",
    "k": "k_proj",
    "v": "v_proj",
    "o": "o_proj",
    "gate": "gate_proj",
    "up": "up_proj",
    "down": "down_proj",
}
BOS_TOKEN = None


def linear_shapes(arch: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    width, inner, heads = size(arch, "hidden_size"), size(arch, "intermediate_size"), size(arch, "num_attention_heads")
    head = head_width(arch)
    if head % 2:
        raise UserError(f"rotary positions need heads of an even width, not {head}", where="model.arch")
    queries, keys = heads * head, (arch.get("num_key_value_heads") or heads) * head
    return {
        "q": (queries, width),
        "k": (keys, width),
        "v": (keys, width),
        "o": (width, queries),
        "gate": (inner, width),
        "up": (inner, width),
        "down": (width, inner),
    }


def parameter_count(arch: Mapping[str, Any]) -> int:
    width, shapes = size(arch, "hidden_size"), linear_shapes(arch)
    layer = sum(out * into for out, into in shapes.values()) + 2 * width  # and two norms
    if arch.get("attention_bias", False):
        layer += sum(shapes[role][0] for role in ("q", "k", "v", "o"))
    if arch.get("mlp_bias", False):
        layer += sum(shapes[role][0] for role in ("gate", "up", "down"))
    embeddings = (1 if arch.get("tie_word_embeddings", False) else 2) * size(arch, "vocab_size") * width
    return embeddings + size(arch, "num_hidden_layers") * layer + width
