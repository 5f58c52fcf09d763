"""Random weights, drawn one module at a time, so that they can be encoded before the next are drawn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from zo_sweeps.core.errors import UserError

Drawn = Callable[[Any, str], None]  # the model, and the qualified name of a module whose weights were just drawn


def draw(make: Callable[[], Any], drawn: Drawn = lambda model, name: None) -> Any:
    """Return a model with random weights, initialized by transformers from the state of torch's CPU generator.

    Args:
        make: builds the model; called with `meta` as the default device, where it draws nothing.
        drawn: called for each module; may put others in place of its children.

    Raises UserError for a model with tensors that transformers gives no values to, which a constructor alone does.
    """
    with torch.device("meta"):
        model = make()
    names = {id(module): name for name, module in model.named_modules()}

    def then(initialize: Callable[..., None]) -> Callable[..., None]:
        def fill(module: nn.Module, *args: Any) -> None:
            for name, parameter in module._parameters.items():
                if parameter is not None and parameter.is_meta:
                    module._parameters[name] = nn.Parameter(_unset(parameter))
            for name, buffer in module._buffers.items():
                if buffer is not None and buffer.is_meta:
                    module._buffers[name] = _unset(buffer)
            initialize(module, *args)
            drawn(model, names[id(module)])

        return fill

    for module in model.modules():
        module._is_hf_initialized = False
    # No other module may be held here: one that is replaced must free its weights.
    models: list[Any] = [module for module in model.modules() if isinstance(module, PreTrainedModel)]
    for one in models:
        one._initialize_weights = then(one._initialize_weights)
    model.initialize_weights()
    for one in models:
        vars(one).pop("_initialize_weights", None)
    model.tie_weights()
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if tensor.isnan().any():
            what = f"{type(model).__name__} draws no values for {name}, so its weights cannot be random"
            raise UserError(what, where="model.source", fix="use a checkpoint")
    return model


def _unset(like: Tensor) -> Tensor:
    """Return a tensor on the CPU, of NaN where the dtype has it: values that are not drawn are found."""
    return torch.full_like(like, torch.nan if like.is_floating_point() else 0, device="cpu")
