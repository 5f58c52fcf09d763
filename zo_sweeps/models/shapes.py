"""Sizes of a model from its shape alone. No torch, no weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zo_sweeps.core.errors import unknown
from zo_sweeps.methods.arch import Arch

BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}  # a stored parameter, by precision


def trainable_parameters(arch: Arch, space: Mapping[str, Any]) -> int:
    """Count the parameters that move in a space other than full, from its configuration (conf/space)."""
    name = space["name"]
    if name == "prefix":
        return arch.layers * 2 * int(space["length"]) * arch.kv_heads * arch.head_width
    roles = arch.roles(space["targets"])
    if "density" in space:
        return max(1, round(float(space["density"]) * arch.entries(roles)))
    into, out = (arch.layers * sum(arch.linears[role][i] for role in roles) for i in (1, 0))
    rank = int(space["rank"])
    counts: dict[str, int] = {
        "lora": rank * (into + out),
        "lora_fa": rank * out,
        "dora": rank * (into + out) + out,
        "vera": out + rank * arch.layers * len(roles),
    }
    return counts[name]


def weights_bytes(parameters: int, precision: str) -> int:
    """Return the bytes of `parameters` stored at a precision. Raises UserError for an unknown precision."""
    if precision not in BYTES:
        raise unknown("precision", precision, BYTES)
    return parameters * BYTES[precision]
