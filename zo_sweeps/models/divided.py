"""A model divided over the GPUs of one node: a layer computes where its weights are (accelerate's hooks)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch

from zo_sweeps.models.causal import LanguageModel


def device_map(model: LanguageModel, devices: Sequence[torch.device]) -> dict[str, torch.device]:
    """Return the device of each layer, and of each submodule outside the layers, by qualified name.

    All but the layers (embedding, last norm, head) is on the first device, where batches and losses are. The layers
    follow in order: layer i goes to device floor(n m_i / P), where m_i is the number of parameters up to its middle,
    those outside the layers first, P is that of all, and n = len(devices). So a device has at most P / n and a layer.
    """
    module, first, path = model.module, devices[0], model.arch.blocks.split(".")
    placed: dict[str, torch.device] = {}
    for depth, part in enumerate(path):
        above = path[:depth]
        children = dict(module.get_submodule(".".join(above)).named_children())
        placed |= {".".join([*above, name]): first for name in children if name != part}
    sizes = [sum(param.numel() for param in block.parameters()) for block in model.blocks]
    total = sum(param.numel() for param in module.parameters())
    for i, (size, end) in enumerate(zip(sizes, accumulate(sizes, initial=total - sum(sizes)), strict=False)):
        share = (end + size / 2) / total
        placed[f"{model.arch.blocks}.{i}"] = devices[int(share * len(devices))]
    return placed


def divide(model: LanguageModel, devices: Sequence[torch.device]) -> None:
    """Move the model's parts to `devices`, and what each reads to where it is; results are as on one device.

    Cost: the hidden states, [N, T, D], and their gradients move once from each device to the next. One device computes
    at a time.
    """
    from accelerate import dispatch_model

    module = model.module
    skipped = getattr(module, "_skip_keys_device_placement", None)  # a cache moves its own layers
    dispatch_model(module, device_map(model, devices), main_device=devices[0], skip_keys=skipped)
