"""The shape of a model, as every part that plans with it needs it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from zo_sweeps.core.errors import unknown


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
        names: role -> the family's own name for that layer.
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
    names: Mapping[str, str] = field(default_factory=dict)

    def roles(self, targets: Iterable[str]) -> list[str]:
        """Return the roles that `targets` name, in the model's order: roles, the family's own layer names, or `all`.

        Raises UserError with the choices for a name that is neither.
        """
        by_name = {name: role for role, name in self.names.items()}
        chosen = {by_name.get(target, target) for target in targets}
        if chosen == {"all"}:
            return list(self.linears)
        for target in chosen - set(self.linears):
            raise unknown("target", target, ["all", *self.linears, *by_name], where="space.targets")
        return [role for role in self.linears if role in chosen]

    def inputs(self, targets: Iterable[str]) -> int:
        """Sum the input features of the target projections over all layers."""
        return self.layers * sum(self.linears[role][1] for role in self.roles(targets))

    def outputs(self, targets: Iterable[str]) -> int:
        """Sum the output features of the target projections over all layers."""
        return self.layers * sum(self.linears[role][0] for role in self.roles(targets))

    def entries(self, targets: Iterable[str]) -> int:
        """Count the weight entries of the target projections over all layers: what a density is a share of."""
        return self.layers * sum(out * into for out, into in (self.linears[role] for role in self.roles(targets)))
