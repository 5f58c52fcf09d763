"""Prefix tuning: n keys and values per layer to which every token attends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from zo_sweeps.engine import noise
from zo_sweeps.engine.layers.low_rank import initial_key
from zo_sweeps.methods.space import PREFIX_LENGTH, InstalledSpace


class Prefix(InstalledSpace):
    """A cache of n = `length` tokens before every text; its keys and values [heads, n, head width] are trained in fp32.

    The text's positions begin at n, as in peft and in MeZO. Keys are stored as the cache holds them (after rotation in
    models with rotary embeddings). The prefix enters through the forward's own `past_key_values`, `attention_mask` and
    `position_ids`, so that any Hugging Face causal model works whose decoder (`get_decoder()` of its base model)
    returns and accepts a cache; an empty cache of the caller (generation) receives the prefix. With P points, the rows
    are P equal groups and group p sees the p-th prefix. Initial values are those of random tokens of the `vocabulary`.

    Cost: attention to n more keys, and a T x (n + T) mask. d = layers * 2 * n * width of the keys.
    """

    batched = True

    def __init__(self, module: nn.Module, length: int, vocabulary: int, seed: int) -> None:
        whole: Any = module
        base: Any = whole.base_model.get_decoder()  # of the whole model, some return their head
        self.length = length
        device = next(base.parameters()).device
        # MeZO's initial values: the cache after random tokens of the vocabulary.
        words = noise.integers(initial_key(seed), "prefix.tokens", length, device).long()
        ids = words.bitwise_and_(0xFFFFFFFF).remainder_(vocabulary)
        with torch.no_grad():
            cache = base(input_ids=ids.unsqueeze(0), use_cache=True).past_key_values
        if cache is None:
            raise ValueError(f"{type(base).__name__} returns no cache; a prefix needs a causal model")
        self._make = type(cache)
        self.params: dict[str, nn.Parameter] = {}
        for i, layer in enumerate(cache.layers):
            for part, value in (("k", layer.keys), ("v", layer.values)):
                self.params[f"{i}.{part}"] = nn.Parameter(value[0].float().clone(), requires_grad=False)
        self._dtype, self._layers = cache.layers[0].keys.dtype, len(cache.layers)
        self._points: Mapping[str, Tensor] = {}
        self._handle = base.register_forward_pre_hook(self._enter, with_kwargs=True)
        self._module = module
        setattr(module, PREFIX_LENGTH, length)

    def hold(self, values: Mapping[str, Tensor]) -> None:
        self._points = values

    def uninstall(self) -> None:
        self._handle.remove()
        delattr(self._module, PREFIX_LENGTH)

    def _enter(self, base: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        texts: Any = (
            args[0] if args else next(kwargs[k] for k in ("input_ids", "inputs_embeds") if kwargs.get(k) is not None)
        )
        rows = texts.shape[0]
        cache = kwargs.get("past_key_values")
        if cache is None:
            cache = self._make()
        if cache.get_seq_length() == 0:
            for i in range(self._layers):
                cache.update(self._held(f"{i}.k", rows), self._held(f"{i}.v", rows), i)
        changed = {**kwargs, "past_key_values": cache}
        mask, positions = kwargs.get("attention_mask"), kwargs.get("position_ids")
        if mask is not None:
            changed["attention_mask"] = torch.cat([mask.new_ones(*mask.shape[:-1], self.length), mask], dim=-1)
        if positions is not None:
            changed["position_ids"] = positions + self.length
        return args, changed

    def _held(self, name: str, rows: int) -> Tensor:
        """Return one prefix tensor for every row, [rows, heads, n, head width], in the model's dtype."""
        value = self._points[name] if name in self._points else self.params[name].unsqueeze(0)
        value = value.to(self._dtype)
        return value.unsqueeze(1).expand(-1, rows // value.shape[0], -1, -1, -1).flatten(0, 1)
