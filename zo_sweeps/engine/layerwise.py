"""Exact gradients at about the memory of a forward: the backward pass is one layer's at a time.

    forward   the inputs x_0, ..., x_{L-1} of the layers are kept, and no layer's graph
    loss      log p of the answer tokens, from the last hidden states
    backward  for l = L-1, ..., 0: layer l once more from x_l, with its graph; df/dx_l, and its parameters' gradients

Texts do not depend on each other: a layer is computed for a part of them after the other, and so is the head for a part
of the logits (`methods.kind.part_of`). The caller moves a layer's parameters, and frees their gradients, before the
layer below it is computed again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from zo_sweeps.core.memory_parts import Part, continue_as, counted_as
from zo_sweeps.engine.batch import Batch
from zo_sweeps.engine.losses import logprobs_at
from zo_sweeps.engine.types import LanguageModel
from zo_sweeps.methods.kind import part_of
from zo_sweeps.methods.update import Params


class _Call(NamedTuple):
    """One call of a layer, for a part of the texts."""

    compute: Callable[[Tensor], Any]  # x -> the layer's output
    x: Tensor
    y: Tensor  # the output's hidden states, a leaf; y.grad will be df/dy


class Layerwise:
    """A model whose passes are a layer's at a time. Only the layers have trained parameters.

    Args:
        layers: all of them, in order. They draw no random numbers, and keep no state between forwards.

    Cost: one more forward per backward; a weight that is stored as codes is decoded up to three times for each part.
    Memory: an input [N, T, D] of each layer, and one layer's activations for a part of the texts. A forward holds about
    4D + 3I values per token (I: feed-forward width), so that the inputs exceed it in deep models with many tokens.
    Source: MeBP (arXiv:2510.03425) and MeSP (arXiv:2602.13069); here autograd runs within a layer, and texts and logits
    are in parts.
    """

    def __init__(self, model: LanguageModel, layers: Sequence[nn.Module]) -> None:
        self._model, self._layers = model, layers
        self._calls: defaultdict[nn.Module, list[_Call]] = defaultdict(list)

    def owned(self, params: Params) -> list[Params]:
        """Return the parameters of each layer; one that several have belongs to the first, whose turn is the last."""
        owner: dict[Tensor, int] = {}
        for number, layer in enumerate(self._layers):
            for param in layer.parameters():
                owner.setdefault(param, number)
        return [{k: v for k, v in params.items() if owner[v] == number} for number in range(len(self._layers))]

    def token_logprobs(self, batch: Batch) -> Tensor:
        """Return log p(answer token | prefix), [1, K], as `losses.token_logprobs`; its graph ends at the layers."""
        ids, mask, positions = batch.input_ids, batch.attention_mask, batch.positions
        found, order = [], []
        with counted_as(Part.ACTIVATIONS), replaced(self._layers, self._keeping):
            for part in _parts(batch):
                hidden = self._model.hidden(ids[part], mask[part], None if positions is None else positions[part])
                rows, columns = part
                inside = (rows.start <= batch.place_row) & (batch.place_row < rows.stop)
                inside &= (columns.start <= batch.place_column) & (batch.place_column < columns.stop)
                own = inside.nonzero().flatten()
                found.append(hidden[batch.place_row[own] - rows.start, batch.place_column[own] - columns.start])
                order.append(own)
            places = torch.cat(found)[torch.cat(order).argsort()]  # [U, D]
        places.register_hook(lambda _: continue_as(Part.ACTIVATIONS))
        again = partial(checkpoint, use_reentrant=False, preserve_rng_state=False)
        size = part_of(len(places))
        by_place, logprobs = batch.token_place.argsort(stable=True), []
        for number, some in enumerate(places.unsqueeze(0).split(size, dim=1)):
            own = by_place[batch.token_place[by_place] // size == number]
            tokens = (batch.token_place[own] - number * size, batch.token_id[own])
            logprobs.append(again(logprobs_at, self._model, some, *tokens))
        return torch.cat(logprobs, dim=1)[:, by_place.argsort()]

    def backward(self, layer: nn.Module) -> None:
        """Add the gradients of a layer's parameters to their `grad`; those of all later layers come before.

        Before the last layer's, the gradient of the loss of `token_logprobs` is taken back to its output.
        """
        calls = [(call.compute, call.x, call.y.grad) for call in self._calls.pop(layer)]  # without y
        with counted_as(Part.ACTIVATIONS):
            while calls:
                compute, before, gradient = calls.pop()
                x = before.detach().requires_grad_(before.requires_grad)
                torch.autograd.backward(_states(compute(x)), gradient)
                if before.requires_grad:
                    before.backward(x.grad)  # to the y of the layer before

    def _keeping(self, layer: nn.Module, forward: Callable[..., Any]) -> Callable[..., Any]:
        def keeps(x: Tensor, *args: Any, **kwargs: Any) -> Any:
            others = (value for value in (*args, *kwargs.values()) if isinstance(value, Tensor))
            assert not any(value.requires_grad for value in others), "a layer reads more of the layers before it than x"
            with torch.no_grad():
                output = forward(x, *args, **kwargs)
            y = _states(output).requires_grad_()
            self._calls[layer].append(_Call(lambda x: forward(x, *args, **kwargs), x, y))
            return output

        return keeps


def _parts(batch: Batch) -> Iterator[tuple[slice, slice]]:
    """Yield the (rows, columns) of a batch's parts: whole rows, or whole texts of a row that several share."""
    rows, length = batch.input_ids.shape
    if batch.positions is None:
        size = part_of(rows)
        yield from ((slice(row, min(row + size, rows)), slice(0, length)) for row in range(0, rows, size))
        return
    begins = (batch.positions == 0) & (batch.attention_mask == 1)
    for row, texts in enumerate(begins.tolist()):
        start = stop = 0
        for end in [*(column for column in range(1, length) if texts[column]), length]:
            if end - start > part_of(rows * length) and stop > start:
                yield slice(row, row + 1), slice(start, stop)
                start = stop
            stop = end
        yield slice(row, row + 1), slice(start, length)


def _states(output: Any) -> Tensor:
    """Return the hidden states among a layer's outputs: those alone, or the first of several."""
    states: Tensor = output if isinstance(output, Tensor) else output[0]
    return states


@contextmanager
def replaced(
    layers: Iterable[nn.Module], wrap: Callable[[nn.Module, Callable[..., Any]], Callable[..., Any]]
) -> Iterator[None]:
    """Replace the forward of each layer by `wrap(layer, forward)` within the block."""
    before = {layer: vars(layer).get("forward") for layer in layers}  # of the instance, as after another `replaced`
    for layer in before:
        layer.forward = wrap(layer, layer.forward)
    try:
        yield
    finally:
        for layer, forward in before.items():
            if forward is None:
                del layer.forward
            else:
                layer.forward = forward
