"""Merging of trained values into the weights, and saving of the whole model for transformers alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from zo_sweeps.core.files import new_folder
from zo_sweeps.models.causal import LanguageModel
from zo_sweeps.models.load import quiet
from zo_sweeps.models.projection import is_transposed


@torch.no_grad()
def merge(layer: nn.Module, base: nn.Module) -> None:
    """Merge `layer`, a linear module that wraps `base`, into the weight of `base`.

        W' = layer(I)^T, without the bias

    No formula of the layer's kind is needed. W' is computed in fp32 and rounded once, to the dtype of the weight.
    Cost: a forward of [in, in] through the layer.
    """
    weight: Tensor = base.get_parameter("weight")
    bias: Tensor | None = getattr(base, "bias", None)
    stored, kept = weight.data, None if bias is None else bias.data
    into = stored.shape[0] if is_transposed(base) else stored.shape[1]
    try:
        weight.data = stored.float()
        if bias is not None and kept is not None:
            bias.data = torch.zeros_like(kept, dtype=torch.float32)
        product: Tensor = layer(torch.eye(into, device=stored.device))  # [in, out]
    finally:
        weight.data = stored
        if bias is not None and kept is not None:
            bias.data = kept
    stored.copy_(product if is_transposed(base) else product.t())


def save(model: LanguageModel, folder: Path) -> None:
    """Write a model for `from_pretrained` (safetensors, with its tokenizer); the folder appears whole or not at all.

    Args:
        folder: absent or empty.
    """
    module: Any = model.module
    with quiet(), new_folder(folder) as part:
        module.save_pretrained(str(part), safe_serialization=True)
        model.tokenizer.save_pretrained(str(part))
