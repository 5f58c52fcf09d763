"""Model families: how a model's shape follows from its config.json.

A module in this package holds one `family` and is named after the `model_type` (hyphens as underscores). Every other
type in transformers is served by `zo_sweeps.models.generic`, which reads the same facts off the module.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

from zo_sweeps.core.errors import UserError
from zo_sweeps.methods.arch import Arch

MASKED_PACKING = "each token of a masked model's row attends to all others"
MASKED_PREFIX = "a prefix needs a causal model, which keeps keys and values"
ROLES = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")  # of special tokens that texts are made with
COMPOSED = ("gelu_new", "gelu_fast", "gelu_accurate", "quick_gelu")  # written in Python, one tensor per operation


@dataclass(frozen=True)
class Family:
    """A model family: how the shape of one of its models follows from the model's configuration."""

    describe: Callable[[Mapping[str, Any]], Arch]  # of a config.json; raises UserError for an invalid one
    bos: str = ""  # the token that a text starts with; "": the one that the tokenizer puts there, if any


@cache
def names() -> tuple[str, ...]:
    """Return the families that need neither torch nor transformers to be described."""
    return tuple(sorted(module.name for module in pkgutil.iter_modules(__path__)))


def family(config: Mapping[str, Any]) -> Family:
    """Return the family of a config.json. Raises UserError if it names no model_type.

    Cost: none; a type without a module in this package imports torch, and describing it transformers.
    """
    kind = config.get("model_type")
    if not isinstance(kind, str) or not kind:
        raise UserError("the model's config names no model_type", where="model.arch")
    name = kind.replace("-", "_")
    if name in names():
        own: Family = import_module(f"{__name__}.{name}").family
        return own
    from zo_sweeps.models import generic

    return generic.family


def describe(config: Mapping[str, Any]) -> Arch:
    """Return the shape of the model that a config.json describes.

    Raises UserError, with the reason in one line, for a model that cannot be served. Cost: microseconds for the
    families with a module here; for another, torch and transformers (seconds, once per process) and a module without
    weights (up to some seconds for a very deep model, once per configuration).
    """
    return family(config).describe(config)


def fits(arch: Arch, tokenizer: Any) -> None:
    """Raise UserError if a tokenizer (of transformers, or a `TokenizerFile`) is larger than the model's embeddings.

    Special tokens without a role in texts do not count: Gemma 3's text models have no row for the token of images. A
    text that has one is refused when it is encoded (`encode.token_ids`), by the tokenizer's `rows`, which is set here.
    """
    needed = {tokenizer.special_tokens_map.get(f"{role}_token") for role in ROLES}
    spare = {token.content for token in tokenizer.added_tokens_decoder.values() if token.special} - needed
    tokens = max((i for token, i in tokenizer.get_vocab().items() if token not in spare), default=-1) + 1
    tokenizer.rows = arch.vocabulary
    if tokens > arch.vocabulary:
        raise UserError(
            f"the tokenizer has {tokens} tokens, and the model's embeddings have {arch.vocabulary} rows",
            where="model",
            fix="use the tokenizer that was saved with the weights",
        )


def unscaled(config: Mapping[str, Any], positions: int) -> int:
    """Return the most tokens of a row whose numbers do not depend on the other rows of a forward.

    Of the two sets of factors of `longrope`, transformers takes one for all rows, by the longest.
    """
    scaling = config.get("rope_parameters") or config.get("rope_scaling")
    parts = [scaling, *scaling.values()] if isinstance(scaling, Mapping) else []  # of all layers, or of a kind of them
    long = [one for one in parts if isinstance(one, Mapping) and "longrope" in (one.get("rope_type"), one.get("type"))]
    key = "original_max_position_embeddings"
    return min([positions, *(size(one, key) for one in long if key in one)])


def with_layers(config: Mapping[str, Any], most: int) -> dict[str, Any]:
    """Return the configuration with at most `most` layers, for random weights; unchanged if it gives no number."""
    key = next((key for key in ("num_hidden_layers", "n_layer", "n_layers", "num_layers") if key in config), None)
    if key is None:
        return dict(config)
    changed = {**config, key: min(size(config, key), most)}
    if config.get("layer_types"):
        changed["layer_types"] = config["layer_types"][: changed[key]]
    return changed


def size(config: Mapping[str, Any], key: str) -> int:
    """Return the number at `key` of a config. Raises UserError if it is missing or not a positive integer."""
    value = config.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
        raise UserError(f"the model's config needs a positive integer {key!r}, not {value!r}", where="model.arch")
    return value


def arch_of(config: Mapping[str, Any], linears: Mapping[str, tuple[int, int]], **facts: Any) -> Arch:
    """Return a shape: these projections and facts, and the sizes that the families here name alike."""
    heads = size(config, "num_attention_heads")
    return Arch(
        family=str(config["model_type"]),
        layers=size(config, "num_hidden_layers"),
        width=size(config, "hidden_size"),
        inner=linears["up"][0],
        heads=heads,
        head_width=head_width(config),
        vocabulary=size(config, "vocab_size"),
        linears=linears,
        **{"kv_heads": heads, **facts},
    )


def is_composed(config: Mapping[str, Any]) -> bool:
    """Tell whether the activation that a config names is computed in several operations."""
    return any(config.get(key) in COMPOSED for key in ("hidden_act", "hidden_activation", "activation_function"))


def head_width(config: Mapping[str, Any]) -> int:
    """Return the width of an attention head. Raises UserError if heads and sizes do not divide evenly."""
    width, heads = size(config, "hidden_size"), size(config, "num_attention_heads")
    groups = size(config, "num_key_value_heads") if config.get("num_key_value_heads") is not None else heads
    if heads % groups:
        raise UserError(f"{groups} key and value heads do not divide {heads} heads", where="model.arch")
    if config.get("head_dim"):
        return size(config, "head_dim")
    if width % heads:
        fix = "set hidden_size to a multiple of num_attention_heads"
        raise UserError(f"{heads} heads do not divide hidden_size={width}", where="model.arch", fix=fix)
    return width // heads
