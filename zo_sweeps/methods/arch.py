"""The shape of a model, as every part that plans with it needs it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from zo_sweeps.core.errors import unknown

ALL = "all"  # the target that names every projection of a block


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
            gate_up where a model multiplies several at once; a projection that is none of these goes by its own name.
        blocks: qualified name of the list of layers.
        projections: role -> name of the projection within a layer (`self_attn.q_proj`); the same roles as `linears`.
        window: tokens that a token sees, itself included, where every layer has the same limit; 0: no limit.
        no_packing: why several texts cannot share a row; "" when they can.
        no_prefix: why trained keys and values cannot be put before a text; "" when they can.
        no_points: why one forward cannot hold several points of a space; "" when it can.
        no_full: why a point of the full space must be written into the weights, in place; "" when it need not be.
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
    blocks: str = ""
    projections: Mapping[str, str] = field(default_factory=dict)
    window: int = 0
    no_packing: str = ""
    no_prefix: str = ""
    no_points: str = ""
    no_full: str = ""

    def roles(self, targets: Iterable[str]) -> tuple[str, ...]:
        """Return the roles that `targets` name, in the family's order.

        A target is a role (`q`), the projection's own name or the end of it (`self_attn.q_proj`, `q_proj`; an end that
        several share names them all, as in peft), or `all`. Raises UserError with the choices for any other.
        """
        chosen: set[str] = set()
        for target in targets:
            named = self._named(target)
            if not named:
                leaves = [path.rpartition(".")[2] for path in self.projections.values()]
                own = [
                    leaf if leaves.count(leaf) == 1 else path
                    for leaf, path in zip(leaves, self.projections.values(), strict=True)
                ]
                raise unknown("target", target, {ALL, *self.linears, *own}, where="space.targets")
            chosen |= named
        return tuple(role for role in self.linears if role in chosen)

    def inputs(self, targets: Iterable[str]) -> int:
        """Sum the input features of the target projections over all layers."""
        return self.layers * sum(self.linears[role][1] for role in self.roles(targets))

    def outputs(self, targets: Iterable[str]) -> int:
        """Sum the output features of the target projections over all layers."""
        return self.layers * sum(self.linears[role][0] for role in self.roles(targets))

    def entries(self, targets: Iterable[str]) -> int:
        """Count the weight entries of the target projections over all layers: what a density is a share of."""
        return self.layers * sum(out * into for out, into in (self.linears[role] for role in self.roles(targets)))

    def _named(self, target: str) -> set[str]:
        if target == ALL or target in self.linears:
            return {role for role in self.linears if target in (ALL, role)}
        exact = {role for role, path in self.projections.items() if path == target}
        return exact or {role for role, path in self.projections.items() if path.endswith(f".{target}")}
