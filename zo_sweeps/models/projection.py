"""A model's projections, the modules that multiply by one weight; and its logits, by its own forward."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from zo_sweeps.core.errors import UserError


def is_projection(layer: object) -> bool:
    """Tell whether a module is a Linear, or transformers' Conv1D (GPT-2), which stores its weight as [in, out]."""
    from transformers.pytorch_utils import Conv1D

    return isinstance(layer, nn.Linear | Conv1D)


def is_transposed(layer: nn.Module) -> bool:
    """Tell whether a projection stores its weight, or stored it before its encoding, as [in, out]."""
    return bool(getattr(layer, "transposed", not isinstance(layer, nn.Linear)))


def features(layer: Any) -> tuple[int, int]:
    """Return the (out, in) features of a projection: a Linear, one stored as codes, or a Conv1D."""
    return (layer.nf, layer.nx) if hasattr(layer, "nf") else (layer.out_features, layer.in_features)


class _FixedBase:
    """A stand-in for a model's base model that returns the given hidden states."""

    def __init__(self, base: Any, hidden: Tensor) -> None:
        self._base, self._hidden = base, hidden
        self.called = False

    def __call__(self, *args: object, **kwargs: object) -> Any:
        from transformers.modeling_outputs import BaseModelOutputWithPastAndCrossAttentions

        self.called = True
        states: Any = BaseModelOutputWithPastAndCrossAttentions(last_hidden_state=self._hidden)
        states.router_logits = None  # of mixtures of experts
        return states

    def __getattr__(self, name: str) -> Any:
        return self if name == "decoder" else getattr(self._base, name)  # OPT calls its base model's decoder


def logits_of(module: nn.Module, hidden: Tensor) -> Tensor:
    """Return the logits [..., V] of last hidden states [..., D], as the whole model's forward computes them.

    Raises UserError for a model that does not compute its logits from its base model's last hidden states alone.
    """
    whole: Any = module
    name = whole.base_model_prefix
    base = module._modules.get(name)
    if base is None:
        raise UserError(f"{type(module).__name__} has no base model separate from its head", where="model")
    rows = hidden.reshape(1, -1, hidden.shape[-1])
    fixed = _FixedBase(base, rows)
    whole._modules[name] = fixed
    try:
        logits: Tensor = whole(inputs_embeds=rows, return_dict=True).logits
    finally:
        whole._modules[name] = base
    if not fixed.called:
        raise UserError(f"{type(module).__name__} computes its logits without calling its base model", where="model")
    return logits.view(*hidden.shape[:-1], logits.shape[-1])
