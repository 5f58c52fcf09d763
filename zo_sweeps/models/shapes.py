"""Sizes of a model from its configuration alone. No torch, no weights."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from zo_sweeps.core.errors import unknown
from zo_sweeps.models.families import Family, family, size

BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}  # a stored parameter, by precision


def parameter_count(arch: Mapping[str, Any]) -> int:
    """Parameters of the model that a HF config describes, tied embeddings once. Raises UserError: unknown family."""
    return family(arch.get("model_type"), where="model.arch").parameter_count(arch)


def linear_shapes(arch: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    """(out, in) features of one layer's linear maps, by role: q, k, v, o, gate, up, down, as the family has them."""
    return family(arch.get("model_type"), where="model.arch").linear_shapes(arch)


def lora_parameters(arch: Mapping[str, Any], targets: Iterable[str], rank: int) -> tuple[int, int]:
    """Parameters of the factors A [rank, in] and of B [out, rank] over all layers (LoRA-FA moves B alone)."""
    kin, shapes = family(arch.get("model_type"), where="model.arch"), linear_shapes(arch)
    chosen = [shapes[role] for role in roles(kin, targets)]
    layers = size(arch, "num_hidden_layers")
    return layers * rank * sum(into for _, into in chosen), layers * rank * sum(out for out, _ in chosen)


def target_entries(arch: Mapping[str, Any], targets: Iterable[str]) -> int:
    """Entries of the target layers' weights over all layers: what a sparse space's density is a share of."""
    kin, shapes = family(arch.get("model_type"), where="model.arch"), linear_shapes(arch)
    return size(arch, "num_hidden_layers") * sum(out * into for out, into in (shapes[r] for r in roles(kin, targets)))


def trainable_parameters(arch: Mapping[str, Any], space: Mapping[str, Any]) -> int:
    """Parameters that move in a space other than full, from its configuration (conf/space)."""
    name, layers = space["name"], size(arch, "num_hidden_layers")
    if name == "prefix":
        return layers * 2 * int(space["length"]) * linear_shapes(arch)["k"][0]
    if "density" in space:
        return max(1, round(space["density"] * target_entries(arch, space["targets"])))
    of_A, of_B = lora_parameters(arch, space["targets"], 1)
    rank = int(space["rank"])
    count = {
        "lora": rank * (of_A + of_B),
        "lora_fa": rank * of_B,
        "dora": rank * (of_A + of_B) + of_B,
        "vera": of_B + rank * layers * len(space["targets"]),
    }
    return count[name]


def roles(kin: Family, targets: Iterable[str]) -> list[str]:
    """The roles that `targets` name, as roles (`q`) or as the family's layer names (`q_proj`), in the family's order.

    Raises UserError with the choices for a name that is neither.
    """
    by_name = {name: role for role, name in kin.TARGETS.items()}
    found = set()
    for target in kin.TARGETS if list(targets) == ["all"] else targets:
        role = by_name.get(target, target)
        if role not in kin.TARGETS:
            raise unknown("target", target, [*kin.TARGETS, *by_name], where="space.targets")
        found.add(role)
    return [role for role in kin.TARGETS if role in found]


def weights_bytes(parameters: int, precision: str) -> int:
    """Bytes of `parameters` stored at a precision. Raises UserError for an unknown precision."""
    if precision not in BYTES:
        raise unknown("precision", precision, BYTES)
    return parameters * BYTES[precision]
