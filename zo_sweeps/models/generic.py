"""The family of any decoder or masked language model in transformers whose projections are Linear layers or Conv1D.

The module is built from the configuration on the `meta` device, without weights, and everything is read off it: the
list of blocks, the projections in a block and their roles. Nothing here depends on the name of a model type, except
UNFIT: what cannot be seen without weights.
"""

from __future__ import annotations

import difflib
import inspect
import json
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import lru_cache
from typing import Any

import torch
from torch import nn

from zo_sweeps.core.errors import UserError
from zo_sweeps.methods.arch import Arch
from zo_sweeps.models.families import MASKED_PACKING, MASKED_PREFIX, Family, is_composed, unscaled
from zo_sweeps.models.projection import features, is_projection, logits_of

ROWS, TOKENS = 3, 5  # of the forward without weights
UNLIMITED = 2**31 - 1  # positions of a model without a limit
# last part of an attention projection's name in transformers -> role; feed-forward projections go by their shapes
ATTENTION = {
    **dict.fromkeys(("q_proj", "query", "query_proj", "q_lin", "wq", "q"), "q"),
    **dict.fromkeys(("k_proj", "key", "key_proj", "k_lin", "wk", "k"), "k"),
    **dict.fromkeys(("v_proj", "value", "value_proj", "v_lin", "wv", "v"), "v"),
    **dict.fromkeys(("qkv_proj", "query_key_value", "c_attn", "wqkv", "qkv", "in_proj"), "qkv"),
}
UNFIT = {  # model type -> why its forward in transformers cannot be used
    "mra": "its attention is all zeros unless a CUDA kernel was compiled for it",
    "yoso": "the padding of a row changes the outputs at its tokens",
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
    masked = is_masked(kind, config)
    module = _on_meta(kind, config, masked)
    try:
        if kind in UNFIT:
            raise UserError(UNFIT[kind])
        return _read(module, kind, masked)
    except UserError as error:
        raise UserError(f"model family {kind!r} cannot be served: {error.what}", where="model.arch") from None


def is_masked(kind: str, config: Mapping[str, Any]) -> bool:
    """Tell whether models of a type fill masks. A type that transformers has in both forms does unless it `is_decoder`.

    Raises UserError for a type that transformers does not have, or has only as something else than a language model.
    """
    from transformers import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    )

    if kind not in CONFIG_MAPPING:
        close = difflib.get_close_matches(kind, CONFIG_MAPPING, n=1)
        fix = f"did you mean {close[0]!r}?" if close else "use one that this version of transformers has"
        raise UserError(f"unknown model family {kind!r}", where="model.arch", fix=fix)
    causal, masked = kind in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, kind in MODEL_FOR_MASKED_LM_MAPPING_NAMES
    if not causal and not masked:
        what = "transformers has neither a causal nor a masked language model of this type"
        raise UserError(f"model family {kind!r} cannot be served: {what}", where="model.arch")
    return masked and not (causal and config.get("is_decoder"))


def _on_meta(kind: str, config: Mapping[str, Any], masked: bool) -> Any:
    from huggingface_hub.errors import StrictDataclassError
    from transformers import AutoConfig

    from zo_sweeps.models.load import class_of, quiet

    try:
        with quiet(), torch.device("meta"), torch.random.fork_rng(devices=[]):
            described = AutoConfig.for_model(**config)
            if reason := _not_text(described):
                raise UserError(f"model family {kind!r} cannot be served: {reason}", where="model.arch")
            return class_of(masked).from_config(described).eval()
    except (StrictDataclassError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError) as error:
        raise UserError(f"invalid configuration of a {kind!r} model: {_one_line(error)}", where="model.arch") from None
    except (AssertionError, ImportError, RuntimeError) as error:
        raise UserError(f"this {kind!r} model cannot be built: {_one_line(error)}", where="model.arch") from None


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _read(module: Any, kind: str, masked: bool) -> Arch:
    """Return the shape of a module. Raises UserError, the reason in its `what`, if it cannot be served."""
    config = module.config
    blocks, layers = _blocks(module)
    if not masked and any(getattr(part, "is_causal", True) is False for part in layers.modules()):
        raise UserError("its tokens attend to later ones: its configuration needs is_decoder=true to make it causal")
    experts = max(map(_experts, layers), key=len)
    _only_linear(layers[0], blocks, experts)
    shapes = _common([_shapes(layer, experts) for layer in layers], mixture=bool(experts))
    projections = _roles(shapes, mixture=bool(experts))
    linears = {role: shapes[path] for role, path in projections.items()}
    heads, head, kv_heads = _heads(config, linears)
    embedding, output = module.get_input_embeddings().weight, module.get_output_embeddings()
    window, mixed = _window(config)
    positions = unscaled(config.to_dict(), _positions(module))
    no_packing = MASKED_PACKING if masked else _no_packing(module, mixed)
    around = [layers[0].get_submodule(path.rpartition(".")[0]) for path in projections.values()]
    cache, seen = _run(module, blocks, projections)
    return Arch(
        family=kind,
        layers=len(layers),
        width=linears["o"][0],
        inner=_mixed_width(config, layers, projections.values(), linears["o"][0]) if experts else linears["down"][1],
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
        experts=sum(parameter.numel() for parameter in experts.values()),
        composed=is_composed(config.to_dict()),
        written=max(map(_written, module.modules())),
        filled=any(part._non_persistent_buffers_set for part in around),
        window=window,
        no_packing=no_packing,
        no_prefix=MASKED_PREFIX if masked else _no_prefix(cache, kv_heads, head),
        **seen,
    )


def _not_text(config: Any) -> str:
    """Return why a configuration is not that of a model of one text; "" if it is."""
    if config.is_encoder_decoder:
        return "it has an encoder and a decoder; only decoders and masked models can be served"
    if others := [name for name in type(config).sub_configs if name.startswith(("text_", "vision_", "audio_"))]:
        part = "; use the model type of its text part" if "text_config" in others else ""
        return f"it reads more than text ({', '.join(others)}){part}"
    return ""


def _blocks(module: Any) -> tuple[str, Any]:
    """Return the model's layers, with their qualified name: the module list that holds most of the parameters."""
    if getattr(module, "_is_stateful", False):
        raise UserError("layers of it carry a state from token to token, as Mamba's do")
    if module.base_model is module:
        raise UserError("it has no base model separate from its head")
    lists = {name: child for name, child in module.named_modules() if isinstance(child, nn.ModuleList) and len(child)}
    if not lists:
        raise UserError("it has no list of layers")
    name = max(lists, key=lambda name: sum(p.numel() for p in lists[name].parameters()))  # ties go to the outermost
    kinds = sorted({type(layer).__name__ for layer in lists[name]})
    if len(kinds) > 1:
        raise UserError(f"its layers are of several kinds ({', '.join(kinds)})")
    if (counted := getattr(module.config, "num_hidden_layers", None)) != len(lists[name]):
        raise UserError(
            f"{name} lists {len(lists[name])} layers, and its configuration counts {counted}: layers that share "
            "weights, or lie in several lists, are not served"
        )
    return name, lists[name]


def _shapes(layer: Any, experts: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    """Return the (out, in) features of a layer's projections but those that route to experts, by name within it."""
    shapes = {name: features(child) for name, child in layer.named_modules() if is_projection(child)}
    routed = {(name.partition(".")[0], len(stacked)) for name, stacked in experts.items()}
    return {name: shape for name, shape in shapes.items() if (name.partition(".")[0], shape[0]) not in routed}


def _common(shapes: list[dict[str, tuple[int, int]]], mixture: bool) -> dict[str, tuple[int, int]]:
    """Return the projections that all layers have alike.

    Raises UserError if layers differ; those of a mixture of experts may, except in their attention: some are dense.
    """
    common = dict(shapes[0])
    for i, one in enumerate(shapes):
        for path in sorted({path for path, _ in one.items() ^ shapes[0].items()}):
            if not mixture or path.rpartition(".")[2].lower() in ATTENTION:
                raise UserError(f"its layers differ: {path} of layer {i} is not that of layer 0")
            common.pop(path, None)
    return common


def _written(child: Any) -> int:
    """Return the values that a module writes out for every point of a forward; see `zo_sweeps.engine.factored`."""
    own = _parameters(child, inside=False).values()
    if is_projection(child) or type(child) is nn.Embedding or all(param.ndim == 1 for param in own):
        return 0
    return sum(param.numel() for param in own)


def _experts(layer: Any) -> dict[str, Any]:
    """Return the matrices of a layer's experts, stacked to tensors [experts, ., .], by name within the layer."""
    convolved = {id(child.weight) for child in layer.modules() if isinstance(child, nn.Conv1d)}
    return {name: p for name, p in layer.named_parameters() if p.ndim == 3 and id(p) not in convolved}


def _only_linear(layer: Any, blocks: str, experts: Iterable[str]) -> None:
    """Raise UserError if a layer has matrices outside projections, embeddings, and the part that holds its experts."""
    known = {id(child.weight) for child in layer.modules() if is_projection(child) or isinstance(child, nn.Embedding)}
    mixtures = {name.partition(".")[0] for name in experts}  # experts and their router
    for name, parameter in layer.named_parameters():
        if parameter.ndim > 1 and id(parameter) not in known and name.partition(".")[0] not in mixtures:
            raise UserError(f"{blocks}.0.{name} {list(parameter.shape)} is not the weight of a Linear")


def _mixed_width(config: Any, layers: Any, attention: Collection[str], width: int) -> int:
    """Return the width of the widest feed-forward part that one token passes through: its experts and a shared one."""

    def of(layer: Any) -> int:
        stacked = _experts(layer)
        shared = max((out for path, (out, _) in _shapes(layer, stacked).items() if path not in attention), default=0)
        if not stacked:
            return shared
        smallest = min(stacked.values(), key=lambda one: one.numel())
        chosen = getattr(config, "num_experts_per_tok", None) or len(smallest)
        return int(chosen) * int(smallest.numel() // len(smallest) // width) + shared

    return max(map(of, layers))


def _roles(shapes: Mapping[str, tuple[int, int]], mixture: bool) -> dict[str, str]:
    """Return role -> name in a layer by ORDER, those without a role last; of a mixture, only attention has roles."""
    named = {path: ATTENTION.get(path.rpartition(".")[2].lower(), "") for path in shapes}
    roles = {role: path for path, role in named.items() if role}
    if len(roles) < sum(map(bool, named.values())):
        raise UserError(f"its layers have more than one attention: {', '.join(shapes)}")
    if not ({"q", "k", "v"} <= set(roles) or "qkv" in roles):
        raise UserError(f"its list of layers has no attention that is known: {', '.join(shapes) or 'no projections'}")
    attention = {path.partition(".")[0] for path in roles.values()}
    rest = [path for path in shapes if path not in roles.values()]
    outputs = [path for path in rest if path.partition(".")[0] in attention and _is_output(path)]
    forward = [path for path in rest if path.partition(".")[0] not in attention]
    if len(outputs) != 1 or not (forward or mixture):
        raise UserError(f"its layers are not attention and a feed-forward part: {', '.join(shapes)}")
    roles["o"] = outputs[0]
    if not mixture:
        roles |= _feed_forward(shapes, forward)
    others = {path: path for path in rest if path not in roles.values()}
    return {**{role: roles[role] for role in ORDER if role in roles}, **others}


def _feed_forward(shapes: Mapping[str, tuple[int, int]], forward: list[str]) -> dict[str, str]:
    """Return role -> name of the projections of a feed-forward part, whose names are given in order."""
    *forward, down = forward
    (out, into), before = shapes[down], [shapes[path] for path in forward]
    if before == [(into, out)]:
        return {"up": forward[0], "down": down}
    if before == [(2 * into, out)]:
        return {"gate_up": forward[0], "down": down}
    if before == [(into, out)] * 2 and (gates := [p for p in forward if p.rpartition(".")[2].lower() in GATES]):
        return {"gate": gates[0], "up": next(path for path in forward if path != gates[0]), "down": down}
    raise UserError(f"its layers have no feed-forward part that is known: {', '.join(shapes)}")


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
    keys = ("max_position_embeddings", "max_seq_len", "seq_length")
    limit = int(next(filter(None, (getattr(module.config, key, None) for key in keys)), UNLIMITED))
    for name, child in module.named_modules():
        if isinstance(child, nn.Embedding) and "position" in name and child.num_embeddings == limit:
            return limit if child.padding_idx is None else limit - child.padding_idx - 1  # as RoBERTa counts
    return limit


def _window(config: Any) -> tuple[int, bool]:
    """Return (the window that all layers share, 0 if there is none; whether layers differ in it)."""
    kinds = set(getattr(config, "layer_types", None) or ())
    if len(kinds) > 1:
        return 0, True
    window = getattr(config, "sliding_window", None) or 0
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


def _run(module: Any, blocks: str, projections: Mapping[str, str]) -> tuple[Any, dict[str, Any]]:
    """Return the cache of a forward on ROWS rows of TOKENS tokens without weights, and `Arch`'s facts of that forward.

    Modifies the module. Raises UserError if it cannot be run, does not call a projection, or computes its logits from
    more than its hidden states.
    """
    calls: dict[str, list[list[Any]]] = {name: [] for name, child in module.named_modules() if child._parameters}

    def hook(name: str) -> Any:
        def enter(child: object, args: tuple[Any, ...], options: dict[str, Any]) -> None:
            calls[name].append([value.shape for value in (*args, *options.values()) if isinstance(value, torch.Tensor)])

        return enter

    def forward() -> Any:
        return module.base_model(input_ids=torch.zeros(ROWS, TOKENS, dtype=torch.long, device="meta"))

    for name in calls:
        module.get_submodule(name).register_forward_pre_hook(hook(name), with_kwargs=True)
    vars(module.config)["pad_token_id"] = None  # or some look for padding among the tokens, which have no values here
    module.set_attn_implementation("eager")  # others look for padding in a mask without values
    module.set_experts_implementation("batched_mm")  # others count the tokens of each expert
    try:
        result = forward()
        full = _unmoved(module, calls, lambda: logits_of(module, forward().last_hidden_state))
    except (RuntimeError, TypeError, AttributeError, ValueError, LookupError) as error:
        raise UserError(f"it cannot be run without weights ({_one_line(error)[:80]})") from None
    seen = {path: {_rows(shapes) for shapes in calls[f"{blocks}.0.{path}"]} for path in projections.values()}
    if unused := [path for path in seen if not seen[path]]:
        raise UserError(f"its forward reads {unused[0]} without calling it, so it cannot be replaced")
    extra = [path for path in seen if seen[path] != {ROWS * TOKENS}]
    no_points = f"{extra[0]} multiplies more than the rows of the batch (relative positions)" if extra else ""
    shared = any(_parameters(module.get_submodule(name), inside=True) for name in calls if calls[name])
    points = full or _not_by_rows(module, calls)
    facts = {"shared": shared, "no_points": no_points, "no_full": full, "no_full_points": points}
    return result.get("past_key_values"), facts


def _rows(shapes: list[Any]) -> int:
    """Return the vectors of features that the first tensor of a call holds."""
    return shapes[0][:-1].numel() if shapes else 0


def _unmoved(module: Any, calls: Mapping[str, Any], logits: Callable[[], Any]) -> str:
    """Return which parameter is read without calling its module, which would not move it; "" for none."""
    logits()  # which calls the head
    idle = {name: module.get_submodule(name) for name in calls if not calls[name]}
    read = {f"{name}.{slot}": (child, slot) for name, child in idle.items() for slot in _parameters(child)}
    if not read:
        return ""
    kept = [child._parameters[slot] for child, slot in read.values()]
    own = [torch.nn.Parameter(param.detach()) for param in kept]  # even if another module has it, too
    for (child, slot), param in zip(read.values(), own, strict=True):
        child._parameters[slot] = param
    slopes = torch.autograd.grad(logits().sum(), own, allow_unused=True)
    for (child, slot), param in zip(read.values(), kept, strict=True):
        child._parameters[slot] = param
    used = [name for name, slope in zip(read, slopes, strict=True) if slope is not None]
    return f"{used[0]} is read without calling its module" if used else ""


def _parameters(child: Any, inside: bool | None = None) -> dict[str, Any]:
    """Return a module's own parameters; those that a module inside it has too, or those that none of them has."""
    below = {id(param) for part in child.children() for param in part.parameters()}
    owned = {slot: param for slot, param in child._parameters.items() if param is not None}
    return {slot: param for slot, param in owned.items() if inside is None or (id(param) in below) == inside}


def _not_by_rows(module: Any, calls: Mapping[str, list[list[Any]]]) -> str:
    """Return why a module cannot compute groups of rows at several points, as `zo_sweeps.engine.factored` does; ""."""
    tokens = ROWS * TOKENS
    for name, called in calls.items():
        child = module.get_submodule(name)
        own = _parameters(child, inside=False)
        if not own or not called:
            continue
        if any(True for part in child.children() for _ in part.parameters()):
            return f"{name}.{next(iter(own))} belongs to a module that holds other layers"
        vectors = type(child) is not nn.Embedding and all(param.ndim == 1 for param in own.values())
        if vectors or is_projection(child):
            fits = all(shapes[0][0] in (ROWS, tokens) or _rows(shapes) == tokens for shapes in called)
        else:
            fits = all(shape[0] in (1, ROWS) for shapes in called for shape in shapes)
        if not fits:
            return f"{name} computes with more, or with other, than the rows of the batch"
    return ""


def _no_prefix(cache: Any, kv_heads: int, head: int) -> str:
    """Return why a prefix cannot be trained (no cache from the forward, or one of another shape); "" if it can."""
    layers = getattr(cache, "layers", None)
    if not layers:
        return "its forward makes no cache of keys and values"
    shapes = {tuple(value.shape) for layer in layers for value in (layer.keys, layer.values)}
    if shapes != {(ROWS, kv_heads, TOKENS, head)}:
        return f"its cache holds tensors of {sorted(shapes)[0]}, not {kv_heads} heads of {head} for each token"
    return ""
