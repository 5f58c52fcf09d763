"""The family of any decoder or masked language model in transformers whose projections are Linear layers or Conv1D.

The module is built from the configuration on the `meta` device, without weights, and everything is read off it: the
list of blocks, the projections in a block and their roles. Nothing here depends on the name of a model type.
"""

from __future__ import annotations

import difflib
import inspect
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from zo_sweeps.core.errors import UserError
from zo_sweeps.methods.arch import Arch
from zo_sweeps.models.families import MASKED_PACKING, MASKED_PREFIX, Family

UNLIMITED = 2**31 - 1  # positions of a model without a limit
# last part of an attention projection's name in transformers -> role; feed-forward projections go by their shapes
ATTENTION = {
    **dict.fromkeys(("q_proj", "query", "query_proj", "q_lin", "wq", "q"), "q"),
    **dict.fromkeys(("k_proj", "key", "key_proj", "k_lin", "wk", "k"), "k"),
    **dict.fromkeys(("v_proj", "value", "value_proj", "v_lin", "wv", "v"), "v"),
    **dict.fromkeys(("qkv_proj", "query_key_value", "c_attn", "wqkv", "qkv", "in_proj"), "qkv"),
}
GATES = ("gate_proj", "w1", "wi_0", "linear_gate")
ORDER = ("q", "k", "v", "qkv", "o", "gate", "up", "gate_up", "down")


def describe(config: Mapping[str, Any]) -> Arch:
    """Return the shape of a model that has no family of its own.

    Raises UserError, with the reason in one line, for a type that transformers does not have, or a model that is not a
    stack of like blocks with attention over Linear projections. Cost: importing torch and transformers, and building
    the module without weights, once per configuration.
    """
    return _described(json.dumps(dict(config), sort_keys=True, default=str))


family = Family(describe)


@lru_cache(maxsize=64)
def _described(text: str) -> Arch:
    config = json.loads(text)
    kind = str(config["model_type"])
    module = _on_meta(kind, config)
    try:
        return _read(module, kind, is_masked(kind, config))
    except UserError as error:
        raise UserError(f"model family {kind!r} cannot be served: {error.what}", where="model.arch") from None


def is_masked(kind: str, config: Mapping[str, Any]) -> bool:
    """Tell whether models of a type fill masks. A type that transformers has in both forms does unless it `is_decoder`.

    Raises UserError for a type that transformers does not have, or has only as something else than a language model.
    """
    from transformers.models.auto.configuration_auto import (  # type: ignore[attr-defined]  # not in its __all__
        CONFIG_MAPPING_NAMES,
    )
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    )

    if kind not in CONFIG_MAPPING_NAMES:
        close = difflib.get_close_matches(kind, CONFIG_MAPPING_NAMES, n=1)
        fix = f"did you mean {close[0]!r}?" if close else "use one that this version of transformers has"
        raise UserError(f"unknown model family {kind!r}", where="model.arch", fix=fix)
    causal, masked = kind in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, kind in MODEL_FOR_MASKED_LM_MAPPING_NAMES
    if not causal and not masked:
        what = "transformers has neither a causal nor a masked language model of this type"
        raise UserError(f"model family {kind!r} cannot be served: {what}", where="model.arch")
    return masked and not (causal and config.get("is_decoder"))


def _on_meta(kind: str, config: Mapping[str, Any]) -> Any:
    import torch
    from huggingface_hub.errors import StrictDataclassError
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM
    from transformers.utils import logging

    make: Any = AutoModelForMaskedLM if is_masked(kind, config) else AutoModelForCausalLM
    level = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        with torch.device("meta"), torch.random.fork_rng(devices=[]):
            return make.from_config(AutoConfig.for_model(**config)).eval()
    except (StrictDataclassError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError) as error:
        raise UserError(f"invalid configuration of a {kind!r} model: {_one_line(error)}", where="model.arch") from None
    except (AssertionError, ImportError, RuntimeError) as error:
        raise UserError(f"this {kind!r} model cannot be built: {_one_line(error)}", where="model.arch") from None
    finally:
        logging.set_verbosity(level)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _read(module: Any, kind: str, masked: bool) -> Arch:
    """Return the shape of a module. Raises UserError, the reason in its `what`, if it cannot be served."""
    config = module.config
    if getattr(config, "is_encoder_decoder", False):
        raise UserError("it has an encoder and a decoder; only decoders and masked models can be served")
    if getattr(config, "text_config", None) is not None:
        raise UserError("it reads more than text; use the model type of its text part")
    if getattr(module, "_is_stateful", False):
        raise UserError("its layers carry a state from token to token (as Mamba's do) instead of attention")
    blocks, layers = _blocks(module)
    if len(layers) != config.num_hidden_layers:
        raise UserError(f"its {config.num_hidden_layers} layers share the weights of {len(layers)}")
    shapes = _shapes(layers[0])
    for i, layer in enumerate(layers):
        if _shapes(layer) != shapes:
            different = sorted(set(_shapes(layer).items()) ^ set(shapes.items()))[0][0]
            raise UserError(f"its layers differ: {different} of layer {i} is not that of layer 0")
    _only_linear(layers[0], blocks)
    projections = _roles(shapes)
    linears = {role: shapes[path] for role, path in projections.items()}
    heads, head, kv_heads = _heads(config, linears)
    embedding, output = module.get_input_embeddings().weight, module.get_output_embeddings()
    window, mixed = _window(config)
    positions, seen = _positions(module), _run(module, blocks, projections)
    return Arch(
        family=kind,
        layers=len(layers),
        width=linears["o"][0],
        inner=linears["down"][1],
        heads=heads,
        kv_heads=kv_heads,
        head_width=head,
        vocabulary=embedding.shape[0],
        positions=positions,
        tied=output is not None and output.weight is embedding,
        masked=masked,
        parameters=sum(parameter.numel() for parameter in module.parameters()),
        linears=linears,
        blocks=blocks,
        projections=projections,
        window=window,
        no_packing=MASKED_PACKING if masked else _no_packing(module, mixed),
        no_prefix=MASKED_PREFIX if masked else _no_prefix(seen.cache, kv_heads, head),
        no_points=seen.no_points,
        no_full=seen.no_full,
    )


def _blocks(module: Any) -> tuple[str, Any]:
    """Return the model's layers, with their qualified name: the module list that holds most of the parameters."""
    from torch import nn

    lists = {name: child for name, child in module.named_modules() if isinstance(child, nn.ModuleList) and len(child)}
    if not lists:
        raise UserError("it has no list of layers")
    name = max(lists, key=lambda name: sum(p.numel() for p in lists[name].parameters()))  # ties go to the outermost
    kinds = sorted({type(layer).__name__ for layer in lists[name]})
    if len(kinds) > 1:
        raise UserError(f"its layers are of several kinds ({', '.join(kinds)})")
    return name, lists[name]


def _shapes(layer: Any) -> dict[str, tuple[int, int]]:
    """Return the (out, in) features of a layer's projections, by name within it, in order."""
    from zo_sweeps.models.projection import features, is_projection

    return {name: features(child) for name, child in layer.named_modules() if is_projection(child)}


def _only_linear(layer: Any, blocks: str) -> None:
    """Raise UserError if a layer has matrices outside projections and embeddings."""
    from torch import nn

    from zo_sweeps.models.projection import is_projection

    known = {id(child.weight) for child in layer.modules() if is_projection(child) or isinstance(child, nn.Embedding)}
    for name, parameter in layer.named_parameters():
        if parameter.ndim > 1 and id(parameter) not in known:
            raise UserError(
                f"{blocks}.0.{name} {list(parameter.shape)} is not the weight of a Linear "
                "(mixtures of experts keep all experts in one tensor)"
            )


def _roles(shapes: Mapping[str, tuple[int, int]]) -> dict[str, str]:
    """Return role -> name of the projection within a layer, in the order of ORDER; those without a role come last."""
    named = {path: ATTENTION.get(path.rpartition(".")[2].lower(), "") for path in shapes}
    roles = {role: path for path, role in named.items() if role}
    if len(roles) < sum(map(bool, named.values())) or not ({"q", "k", "v"} <= set(roles) or "qkv" in roles):
        raise UserError(f"its layers have no attention that is known: {', '.join(shapes) or 'no projections'}")
    attention = {path.partition(".")[0] for path in roles.values()}
    rest = [path for path in shapes if path not in roles.values()]
    outputs = [path for path in rest if path.partition(".")[0] in attention and _is_output(path)]
    forward = [path for path in rest if path.partition(".")[0] not in attention]
    if len(outputs) != 1 or not forward:
        raise UserError(f"its layers are not attention and a feed-forward part: {', '.join(shapes)}")
    roles["o"], roles["down"] = outputs[0], forward.pop()
    (out, into), before = shapes[roles["down"]], [shapes[path] for path in forward]
    if before == [(into, out)]:
        roles["up"] = forward[0]
    elif before == [(2 * into, out)]:
        roles["gate_up"] = forward[0]
    elif before == [(into, out)] * 2 and (gates := [p for p in forward if p.rpartition(".")[2].lower() in GATES]):
        roles["gate"] = gates[0]
        roles["up"] = next(path for path in forward if path != gates[0])
    else:
        raise UserError(f"its layers have no feed-forward part that is known: {', '.join(shapes)}")
    others = {path: path for path in rest if path not in roles.values()}
    return {**{role: roles[role] for role in ORDER if role in roles}, **others}


def _is_output(path: str) -> bool:
    """Tell whether the name of an attention projection is that of its output: dense, o_proj, out_lin, c_proj."""
    leaf = path.rpartition(".")[2].lower()
    return leaf in ("o", "wo", "dense", "c_proj") or leaf.startswith(("o_", "out"))


def _heads(config: Any, linears: Mapping[str, tuple[int, int]]) -> tuple[int, int, int]:
    """Return (heads, width of a head, heads of keys and values), from the projections' features."""
    heads = int(config.num_attention_heads)
    if "q" in linears:
        head = linears["q"][0] // heads
        return heads, head, linears["k"][0] // head
    head = linears["o"][1] // heads
    return heads, head, (linears["qkv"][0] // head - heads) // 2


def _positions(module: Any) -> int:
    """Return the most tokens of a sequence, by the model's position embeddings or its configuration."""
    from torch import nn

    limit = next(
        (
            int(value)
            for key in ("max_position_embeddings", "max_seq_len", "seq_length")
            if (value := getattr(module.config, key, None))
        ),
        UNLIMITED,
    )
    for name, child in module.named_modules():
        if isinstance(child, nn.Embedding) and "position" in name and child.num_embeddings == limit:
            return limit if child.padding_idx is None else limit - child.padding_idx - 1  # as RoBERTa counts
    return limit


def _window(config: Any) -> tuple[int, bool]:
    """Return (the window that all layers share, 0 if there is none; whether layers differ in it)."""
    kinds = set(getattr(config, "layer_types", None) or ())
    window = getattr(config, "sliding_window", None) or 0
    if len(kinds) > 1:
        return 0, True
    return (0 if kinds == {"full_attention"} else window), False


def _no_packing(module: Any, mixed: bool) -> str:
    """Return the reason why several texts cannot share a row; "" if they can."""
    accepted = inspect.signature(module.base_model.forward).parameters
    if "position_ids" not in accepted:
        return "its forward takes no position_ids: a token's position is its position in the row"
    if module.config._attn_implementation != "sdpa":
        return "its attention is not PyTorch's SDPA, which takes a mask that separates a row's texts"
    if getattr(module.config, "alibi", False):
        return "its attention counts distances along the row (ALiBi)"
    if mixed:
        return "its layers have windows of different lengths, but a packed row has one mask"
    return ""


@dataclass(frozen=True)
class _Seen:
    """Findings of a forward without weights: the cache (None if it made none), and two reasons for `Arch`."""

    cache: Any
    no_points: str
    no_full: str


def _run(module: Any, blocks: str, projections: Mapping[str, str]) -> _Seen:
    """Run the module without weights, on 3 rows of 5 tokens. Modifies the module.

    Raises UserError if it cannot be run, does not call a projection, or computes its logits from more than its hidden
    states.
    """
    import torch

    from zo_sweeps.models.logits import logits_of

    rows: dict[str, set[int]] = {name: set() for name, child in module.named_modules() if child._parameters}

    def hook(name: str) -> Any:
        def enter(child: object, args: tuple[Any, ...]) -> None:
            rows[name].add(args[0].shape[:-1].numel() if args and hasattr(args[0], "shape") else 0)

        return enter

    for name in rows:
        module.get_submodule(name).register_forward_pre_hook(hook(name))
    module.config.pad_token_id = None  # or some models look for padding among the tokens, which have no values here
    try:
        result = module.base_model(input_ids=torch.zeros(3, 5, dtype=torch.long, device="meta"))
        logits_of(module, result.last_hidden_state)
    except (RuntimeError, TypeError, AttributeError, ValueError, LookupError) as error:
        raise UserError(f"it cannot be run without weights ({_one_line(error)[:80]})") from None
    called = {id(param) for name in rows if rows[name] for param in module.get_submodule(name)._parameters.values()}
    idle = [name for name, param in module.named_parameters() if id(param) not in called]
    no_full = f"{idle[0]} is read without calling its module" if idle else ""
    seen = {path: rows[f"{blocks}.0.{path}"] for path in projections.values()}
    if unused := [path for path in seen if not seen[path]]:
        raise UserError(f"its forward reads {unused[0]} without calling it, so it cannot be replaced")
    extra = [path for path in seen if seen[path] != {15}]
    no_points = f"{extra[0]} multiplies more than the rows of the batch (relative positions)" if extra else ""
    return _Seen(result.get("past_key_values"), no_points, no_full)


def _no_prefix(cache: Any, kv_heads: int, head: int) -> str:
    """Return why a prefix cannot be trained (no cache from the forward, or one of another shape); "" if it can."""
    layers = getattr(cache, "layers", None)
    if not layers:
        return "its forward makes no cache of keys and values"
    shapes = {tuple(value.shape) for layer in layers for value in (layer.keys, layer.values)}
    if shapes != {(3, kv_heads, 5, head)}:
        return f"its cache holds tensors of {sorted(shapes)[0]}, not {kv_heads} heads of {head} for each token"
    return ""
