"""OPT: LayerNorm, learned positions (two rows more than the context), biases everywhere, tied embeddings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zo_sweeps.methods.arch import Arch
from zo_sweeps.models.families import Family, arch_of, is_composed, size

PROJECTIONS = {
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "o": "self_attn.out_proj",
    "up": "fc1",
    "down": "fc2",
}


def describe(config: Mapping[str, Any]) -> Arch:
    """Return the shape of an OPT. Embeddings may be narrower than the layers, as in the 350m."""
    width, inner, vocabulary = (size(config, key) for key in ("hidden_size", "ffn_dim", "vocab_size"))
    positions = size({"max_position_embeddings": 2048, **config}, "max_position_embeddings")
    linears = {**dict.fromkeys("qkvo", (width, width)), "up": (inner, width), "down": (width, inner)}
    norm = 2 * width if config.get("layer_norm_elementwise_affine", True) else 0
    layer = sum(out * into for out, into in linears.values()) + 2 * norm
    if config.get("enable_bias", True):
        layer += sum(out for out, _ in linears.values())
    embedded, tied = config.get("word_embed_proj_dim") or width, bool(config.get("tie_word_embeddings", True))
    total = vocabulary * embedded * (1 if tied else 2) + (positions + 2) * width
    if embedded != width:  # projections into and out of the layers' width
        total += 2 * width * embedded
    if config.get("do_layer_norm_before", True) and not config.get("_remove_final_layer_norm", False):
        total += norm
    return arch_of(
        config,
        linears,
        positions=positions,
        tied=tied,
        masked=False,
        parameters=total + size(config, "num_hidden_layers") * layer,
        composed=is_composed(config),
        written=(positions + 2) * width,
        blocks="model.decoder.layers",
        projections=PROJECTIONS,
    )


# OPT's tokenizer names `</s>` (2) as its BOS; MeZO starts every text with `<s>` (0), and so do the papers after it.
family = Family(describe, bos="<s>")
