"""Llama: RMSNorm, rotary positions, gated feed-forward, grouped keys and values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zo_sweeps.core.errors import UserError
from zo_sweeps.methods.arch import Arch
from zo_sweeps.models.families import Family, arch_of, head_width, size, unscaled

PROJECTIONS = {
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "o": "self_attn.o_proj",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}


def describe(config: Mapping[str, Any]) -> Arch:
    """Return the shape of a Llama of any size, with or without biases."""
    width, inner, heads = (size(config, key) for key in ("hidden_size", "intermediate_size", "num_attention_heads"))
    head, kv_heads = head_width(config), config.get("num_key_value_heads") or heads
    if head % 2:
        raise UserError(f"rotary positions need heads of an even width, not {head}", where="model.arch")
    queries, keys = heads * head, kv_heads * head
    attention = {"q": (queries, width), **dict.fromkeys("kv", (keys, width)), "o": (width, queries)}
    linears = {**attention, **dict.fromkeys(("gate", "up"), (inner, width)), "down": (width, inner)}
    layer = sum(out * into for out, into in linears.values()) + 2 * width  # and two norms
    if config.get("attention_bias", False):
        layer += sum(linears[role][0] for role in ("q", "k", "v", "o"))
    if config.get("mlp_bias", False):
        layer += sum(linears[role][0] for role in ("gate", "up", "down"))
    layers, vocabulary = size(config, "num_hidden_layers"), size(config, "vocab_size")
    tied = bool(config.get("tie_word_embeddings", False))
    return arch_of(
        config,
        linears,
        kv_heads=kv_heads,
        positions=unscaled(config, config.get("max_position_embeddings") or 2048),
        tied=tied,
        masked=False,
        parameters=(1 if tied else 2) * vocabulary * width + layers * layer + width,
        blocks="model.layers",
        projections=PROJECTIONS,
    )


family = Family(describe)
