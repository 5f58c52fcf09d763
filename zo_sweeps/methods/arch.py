"""Model shapes: the sizes and names that planning, spaces and the engine need."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from zo_sweeps.core.errors import UserError, unknown

ALL = "all"  # the target that names every projection of a block
FUSED = {
    "qkv": ("q", "k", "v"),
    "gate_up": ("gate", "up"),
}  # role of one matrix -> the roles that it multiplies at once


@dataclass(frozen=True)
class Arch:
    """The shape of a language model, read from its configuration by its family; see `zo_sweeps.models.families`.

    Args:
        family: the `model_type` of its Hugging Face configuration.
        layers, width, inner: number of layers, hidden width, width of the feed-forward part.
        heads, kv_heads, head_width: attention heads, heads of keys and values, width of one head.
        vocabulary, positions: rows of the embedding, tokens that a sequence can hold.
        tied: whether the output layer shares the embedding.
        masked: whether it fills masks (as BERT does) instead of predicting the next token.
        parameters: number in the whole language model, tied ones counted once.
        linears: role -> (out, in) features of one layer's projections. Roles are q, k, v, o, gate, up, down, and qkv or
            gate_up where a model multiplies several at once; a projection with none of these roles goes by its own
            name.
        blocks: qualified name of the list of layers.
        projections: role -> name of the projection within a layer (`self_attn.q_proj`); the same roles as `linears`.
        experts: values of the largest layer's experts, of a mixture whose experts are stacked to tensors; 0: of none.
            They are no projections; a token passes through as many as make `inner`, with what all tokens share.
        composed: whether the feed-forward's activation is computed in several operations (GPT-2's `gelu_new`).
        written: values of the largest module that points of the full space in one forward write out, each of its own: a
            table that is no plain embedding, or stacked experts; 0: none is.
        filled: whether the modules around its projections have buffers that no checkpoint holds (masks, rotations).
        shared: whether a module has a parameter in common with one that it holds (a head and its decoder: the bias).
        window: tokens that a token attends to, itself included, if all layers share one limit; 0: no such limit.
        no_packing: why several texts cannot share a row; "" if they can.
        no_prefix: why trained keys and values cannot be put before a text; "" if they can.
        no_points: why one forward cannot hold several points of a space; "" if it can.
        no_full: why a point of the full space must be written into the weights, in place; "" if it need not be.
        no_full_points: why one forward cannot hold several points of the full space; "" if it can.
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
    experts: int = 0
    composed: bool = False
    written: int = 0
    filled: bool = False
    shared: bool = False
    window: int = 0
    no_packing: str = ""
    no_prefix: str = ""
    no_points: str = ""
    no_full: str = ""
    no_full_points: str = ""

    def roles(self, targets: Iterable[str]) -> tuple[str, ...]:
        """Return the roles that `targets` name, in the family's order.

        A target is a role (`q`), a projection's own name or its ending (`self_attn.q_proj`, `q_proj`; an ending that
        several share names them all, as in peft), or `all`. Roles that the model multiplies at once are the role of
        that matrix if all of them are targets. Raises UserError with the choices for any other.
        """
        chosen: set[str] = set()
        wanted = dict.fromkeys(targets)
        for whole, parts in FUSED.items():
            if whole in self.linears and wanted.keys() >= {*parts}:
                wanted = dict.fromkeys([*(one for one in wanted if one not in parts), whole])
        for target in wanted:
            matches = self._matches(target)
            for whole, parts in FUSED.items():
                if not matches and target in parts and whole in self.linears:
                    what = (
                        f"{self.family} multiplies {', '.join(parts)} by one matrix, and {target!r} has none of its own"
                    )
                    raise UserError(what, where="space.targets", fix=f"write {whole}, which trains all of them")
            if not matches:
                leaves = [path.rpartition(".")[2] for path in self.projections.values()]
                own = [
                    leaf if leaves.count(leaf) == 1 else path
                    for leaf, path in zip(leaves, self.projections.values(), strict=True)
                ]
                raise unknown("target", target, {ALL, *self.linears, *own}, where="space.targets")
            chosen |= matches
        return tuple(role for role in self.linears if role in chosen)

    def names(self, targets: Iterable[str], first: int = 0) -> list[str]:
        """Return the qualified names of the target projections, layer by layer from the `first` on."""
        paths = [self.projections[role] for role in self.roles(targets)]
        return [f"{self.blocks}.{i}.{path}" for i in range(first, self.layers) for path in paths]

    def inputs(self, targets: Iterable[str]) -> int:
        """Sum the input features of the target projections over all layers."""
        return self.layers * sum(self.linears[role][1] for role in self.roles(targets))

    def outputs(self, targets: Iterable[str]) -> int:
        """Sum the output features of the target projections over all layers."""
        return self.layers * sum(self.linears[role][0] for role in self.roles(targets))

    def entries(self, targets: Iterable[str]) -> int:
        """Count the weight entries of the target projections over all layers: the total that a density refers to."""
        return self.layers * sum(out * into for out, into in (self.linears[role] for role in self.roles(targets)))

    def _matches(self, target: str) -> set[str]:
        if target == ALL or target in self.linears:
            return {role for role in self.linears if target in (ALL, role)}
        exact = {role for role, path in self.projections.items() if path == target}
        return exact or {role for role, path in self.projections.items() if path.endswith(f".{target}")}
