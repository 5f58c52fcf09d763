"""OPT: LayerNorm, learned positions (two rows more than the context), biases everywhere, tied embeddings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zo_sweeps.models.families import head_width, size

TARGETS = {"q": "q_proj", "k": "k_proj", "v": "v_proj", "o": "out_proj", "up": "fc1", "down": "fc2"}
# OPT's tokenizer names `</s>` (2) as its BOS; MeZO starts every text with `<s>` (0), and so do the papers after it.
BOS_TOKEN = "<s>"


def linear_shapes(arch: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    head_width(arch)  # a module of such a shape can be made
    width, inner = size(arch, "hidden_size"), size(arch, "ffn_dim")
    return {**dict.fromkeys("qkvo", (width, width)), "up": (inner, width), "down": (width, inner)}


def parameter_count(arch: Mapping[str, Any]) -> int:
    width, vocabulary, shapes = size(arch, "hidden_size"), size(arch, "vocab_size"), linear_shapes(arch)
    projected = arch.get("word_embed_proj_dim") or width
    norm = 2 * width if arch.get("layer_norm_elementwise_affine", True) else 0
    layer = sum(out * into for out, into in shapes.values()) + 2 * norm
    if arch.get("enable_bias", True):
        layer += sum(out for out, _ in shapes.values())
    total = vocabulary * projected * (1 if arch.get("tie_word_embeddings", True) else 2)
    total += (size(arch, "max_position_embeddings") + 2) * width
    if projected != width:  # the 350m: projections into and out of the layers' width
        total += 2 * width * projected
    if arch.get("do_layer_norm_before", True) and not arch.get("_remove_final_layer_norm", False):
        total += norm
    return total + size(arch, "num_hidden_layers") * layer
