"""The shape of a model, as every part that plans with it needs it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Arch:
    """The shape of a language model, read from its configuration by its family; see `zo_sweeps.models.families`.

    Args:
        family: the `model_type` of its Hugging Face configuration.
        layers, width, inner: number of layers, hidden width, width of the feed-forward part.
        heads, kv_heads, head_width: attention heads, heads of keys and values, width of one head.
        vocabulary, positions: rows of the embedding, tokens that a sequence can hold.
        tied: the output layer shares the embedding.
        masked: it fills masks (BERT's kind) in place of predicting the next token.
        parameters: of the whole language model, tied ones once.
        linears: role -> (out, in) features of one layer's projections. Roles are q, k, v, o, gate, up, down, and qkv or
            gate_up where a model multiplies several at once.
    """

    family: str
    layers: int
    width: int
    inner: int
    heads: int
    kv_heads: int
    head_width: int
    vocabulary: int
    positions: int
    tied: bool
    masked: bool
    parameters: int
    linears: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    def entries(self, roles: tuple[str, ...]) -> int:
        """Count the weight entries of these roles' projections over all layers."""
        return self.layers * sum(out * into for out, into in (self.linears[role] for role in roles))
