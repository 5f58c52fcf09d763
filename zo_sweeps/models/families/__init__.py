"""What differs between model families. One module a family, found by its name, which is the config's `model_type`."""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from typing import Any, Protocol, cast

from zo_sweeps.core.errors import UserError, unknown


class Family(Protocol):
    """A family's module. `arch` is the model's `config.json`, read as a mapping."""

    TARGETS: Mapping[str, str]  # role (q, k, v, o, gate, up, down) -> the name of the linear layer
    BOS_TOKEN: str | None  # the token a text starts with; None: the tokenizer's own

    def linear_shapes(self, arch: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
        """(out, in) features of one layer's linear maps, by role."""
        ...

    def parameter_count(self, arch: Mapping[str, Any]) -> int:
        """Parameters of the language model, tied ones once."""
        ...


@cache
def names() -> tuple[str, ...]:
    """The families there are."""
    return tuple(sorted(module.name for module in pkgutil.iter_modules(__path__)))


def family(name: object, *, where: str = "") -> Family:
    """The family of a `model_type`. Raises UserError with the choices for one that has no module here."""
    if name not in names():
        raise unknown("model family", name, names(), where=where)
    return cast(Family, import_module(f"{__name__}.{name}"))


def is_masked(name: object) -> bool:
    """Whether models of this `model_type` write a word at a mask, in place of the next one."""
    return bool(getattr(family(name), "MASKED", False))


def size(arch: Mapping[str, Any], key: str) -> int:
    """The number at `key` of a model's config. Raises UserError when it is absent or not a positive integer."""
    value = arch.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
        raise UserError(f"the model's config needs a positive integer {key!r}, not {value!r}", where="model.arch")
    return value


def head_width(arch: Mapping[str, Any]) -> int:
    """Width of an attention head. Raises UserError when the heads do not divide what they share."""
    width, heads = size(arch, "hidden_size"), size(arch, "num_attention_heads")
    groups = arch.get("num_key_value_heads") or heads
    if heads % groups:
        raise UserError(f"{groups} key and value heads do not divide {heads} heads", where="model.arch")
    if arch.get("head_dim"):
        return size(arch, "head_dim")
    if width % heads:
        fix = "set hidden_size to a multiple of num_attention_heads"
        raise UserError(f"{heads} heads do not divide hidden_size={width}", where="model.arch", fix=fix)
    return width // heads
