"""The logits of given hidden states, by the model's own forward: whatever it does to them (a cap, a scale, a head of
several layers) is done here too.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from zo_sweeps.core.errors import UserError


class _Answer:
    """What a model's forward meets in place of its base model: it answers with the given hidden states."""

    def __init__(self, base: Any, hidden: Tensor) -> None:
        self._base, self._hidden = base, hidden
        self.asked = False

    def __call__(self, *args: object, **kwargs: object) -> Any:
        from transformers.modeling_outputs import BaseModelOutputWithPastAndCrossAttentions

        self.asked = True
        return BaseModelOutputWithPastAndCrossAttentions(last_hidden_state=self._hidden)

    def __getattr__(self, name: str) -> Any:
        return self if name == "decoder" else getattr(self._base, name)  # OPT asks its base model's decoder


def logits_of(module: nn.Module, hidden: Tensor) -> Tensor:
    """Return the logits [..., V] of last hidden states [..., D], as the whole model's forward computes them.

    Raises UserError for a model that does not take its logits from its base model's last hidden states alone.
    """
    whole: Any = module
    name = whole.base_model_prefix
    base = module._modules.get(name)
    if base is None:
        raise UserError(f"{type(module).__name__} keeps no base model apart from its head", where="model")
    rows = hidden.reshape(1, -1, hidden.shape[-1])
    answer = _Answer(base, rows)
    module._modules[name] = answer  # type: ignore[assignment]
    try:
        logits: Tensor = whole(inputs_embeds=rows, return_dict=True).logits
    finally:
        module._modules[name] = base
    if not answer.asked:
        raise UserError(f"{type(module).__name__} computes its logits past its base model", where="model")
    return logits.view(*hidden.shape[:-1], logits.shape[-1])
