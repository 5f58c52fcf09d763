"""Trained spaces on disk, in the format of the peft library: its `PeftModel.from_pretrained` and others load them.

A folder holds adapter_model.safetensors and adapter_config.json. Frozen random parts (A of LoRA-FA, A and B of VeRA)
are saved with the trained ones. Prefix: one tensor [n, layers * 2 * heads * width], keys before values.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from zo_sweeps.core.errors import UserError, unknown
from zo_sweeps.core.files import replace_text, replacing
from zo_sweeps.methods import registry
from zo_sweeps.methods.space import AdapterFormat, Space
from zo_sweeps.models import families
from zo_sweeps.models.checkpoint import ADAPTER, writing
from zo_sweeps.models.projection import is_transposed

WEIGHTS, CONFIG = "adapter_model.safetensors", ADAPTER


def save(
    space: Any, definition: Space, folder: str | Path, *, module: nn.Module, base: str = "", revision: str = ""
) -> None:
    """Write an installed space; each file appears whole or not at all.

    Args:
        definition: the definition of the installed space.
        module: the whole model it is installed in.
        base: name or path of the base model, recorded for loading.
        revision: revision of a base model on the hub.

    Raises UserError for a space that peft has no format for (full, sparse).
    """
    from safetensors.torch import save_file

    tensors = {name: t.detach().cpu().contiguous() for name, t in _tensors(space, definition).items()}
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    config = {"base_model_name_or_path": base or None, **_config(space, definition, module)}
    if revision:
        config["revision"] = revision
    with replacing(folder / WEIGHTS) as part, writing():
        save_file(tensors, str(part), metadata={"format": "pt"})
    replace_text(folder / CONFIG, json.dumps(config, indent=2, sort_keys=True) + "\n")


@torch.no_grad()
def load(space: Any, definition: Space, folder: str | Path) -> None:
    """Fill an installed space with the values of a folder written by `save` or peft.

    Raises UserError if the folder is not an adapter, or is one of another kind, shape or set of layers, and for a space
    that peft has no format for.
    """
    from safetensors.torch import load_file

    file = Path(folder) / WEIGHTS
    if not file.is_file():
        raise UserError(f"not an adapter: no {WEIGHTS}", where=str(folder))
    stored = load_file(str(file))
    wanted = _tensors(space, definition)
    if set(stored) != set(wanted):
        unmatched = sorted(set(stored) ^ set(wanted))
        raise UserError(
            f"the adapter and space {definition.name!r} differ in {len(unmatched)} tensors ({unmatched[0]})",
            where=str(file),
        )
    for name, tensor in wanted.items():
        if stored[name].shape != tensor.shape:
            have, want = list(stored[name].shape), list(tensor.shape)
            raise UserError(f"{name} has shape {have} where the space has {want}", where=str(file))
    if _format(definition).prefix:
        _unflatten(space, stored["prompt_embeddings"])
        return
    for name, tensor in wanted.items():
        tensor.copy_(stored[name])


def _format(definition: Space) -> AdapterFormat:
    if definition.adapter is None:
        known = [name for name, one in registry.members("space").items() if getattr(one, "adapter", None)]
        raise unknown("space with a peft format", definition.name, known)
    return definition.adapter


def _tensors(space: Any, definition: Space) -> dict[str, Tensor]:
    """Return the space's own tensors (for a prefix a copy) by their names in peft's file."""
    form = _format(definition)
    if form.prefix:
        return {"prompt_embeddings": _flatten(space)}
    tensors = {
        f"base_model.model.{layer}.{theirs}": getattr(wrapped, ours).detach()
        for layer, wrapped in space.layers.items()
        for ours, theirs in form.parts.items()
    }
    return tensors | {theirs: getattr(space, ours) for ours, theirs in form.shared.items()}


def _flatten(space: Any) -> Tensor:
    """Return a prefix, {layer.k, layer.v: [heads, n, width]}, as one tensor [n, layers * 2 * heads * width]."""
    stacked = torch.stack([param.detach() for param in space.params.values()])  # [layers * 2, heads, n, width]
    return stacked.permute(2, 0, 1, 3).reshape(stacked.shape[2], -1)


def _unflatten(space: Any, flat: Tensor) -> None:
    heads, n, width = next(iter(space.params.values())).shape
    stacked = flat.view(n, len(space.params), heads, width).permute(1, 2, 0, 3)
    for param, value in zip(space.params.values(), stacked, strict=True):
        param.copy_(value)


def _config(space: Any, definition: Space, module: nn.Module) -> dict[str, Any]:
    form = _format(definition)
    # peft has no task type for masked models; without a type it wraps any model
    base: Any = module.config
    task = None if families.describe(base.to_dict()).masked else "CAUSAL_LM"
    config = {"peft_type": form.kind, "task_type": task, "inference_mode": True, **definition.adapter_options()}
    if form.prefix:
        heads, n, width = next(iter(space.params.values())).shape
        return {
            **config,
            "num_virtual_tokens": n,
            "num_layers": len(space.params) // 2,
            "num_attention_heads": heads,
            "token_dim": heads * width,
            "num_transformer_submodules": 1,
            "prefix_projection": False,
        }
    transposed = any(is_transposed(layer.base) for layer in space.layers.values())  # weights [in, out]
    return {**config, "target_modules": _targets(space, module), "bias": "none", "fan_in_fan_out": transposed}


def _targets(space: Any, module: nn.Module) -> list[str]:
    """Return the last parts of the layers' names if no other layer shares them, as is usual; else the full names."""
    chosen = set(space.layers)
    leaves = {layer.rpartition(".")[2] for layer in chosen}
    named = {name for name, _ in module.named_modules() if name.rpartition(".")[2] in leaves}
    return sorted(leaves if named == chosen else chosen)
