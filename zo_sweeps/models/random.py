"""Random weights, drawn one module at a time, so that they can be encoded before the next are drawn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

Drawn = Callable[[Any, str], None]  # the model, and the qualified name of a module whose weights were just drawn


def draw(make: Callable[[], Any], drawn: Drawn = lambda model, name: None) -> Any:
    """Return a model with random weights, initialized by transformers from the state of torch's CPU generator.

    Args:
        make: builds the model; called with `meta` as the default device, where it draws nothing.
        drawn: called for each module; may put another one in its place.
    """
    with torch.device("meta"):
        model = make()
    names = {id(module): name for name, module in model.named_modules()}

    def then(initialize: Callable[..., None]) -> Callable[..., None]:
        def fill(module: nn.Module, *args: Any) -> None:
            for name, parameter in module._parameters.items():
                if parameter is not None and parameter.is_meta:
                    module._parameters[name] = nn.Parameter(torch.empty_like(parameter, device="cpu"))
            for name, buffer in module._buffers.items():
                if buffer is not None and buffer.is_meta:
                    module._buffers[name] = torch.empty_like(buffer, device="cpu")
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
    return model
