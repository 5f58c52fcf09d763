"""Timed generation: the seconds per token."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from zo_sweeps.core.events import Generated
from zo_sweeps.core.memory_parts import Part, counted_as
from zo_sweeps.engine import noise
from zo_sweeps.engine.layers.sparse import Sparse
from zo_sweeps.methods.points import NoiseKey
from zo_sweeps.run.memory_by_part import at_peak
from zo_sweeps.run.runner import Runner, StoppedError

GENERATION_ROUNDS = 3  # timed, after one warm-up


class Generation(Runner):
    """A timed continuation of a text, with the sparse delta merged into the weights or as a separate sparse product."""

    def run(self) -> None:
        kind, space, seconds = self.config.method.kind, self.bench.install(), []
        try:
            if isinstance(space, Sparse) and space.apart:
                space.use_sparse_matmul()
            prompt = self.bench.model.prompt(kind.prompt)
            for i in range(1 + GENERATION_ROUNDS):
                began = time.perf_counter()
                self._generate(prompt)
                if i:
                    seconds.append(time.perf_counter() - began)
                if self.should_stop():
                    raise StoppedError
            self.stop_memory()
            self.record_parts(at_peak(self.bench, space, lambda _: self._generate(prompt)))
        finally:
            space.uninstall()
        self.recorder.emit(Generated(tokens=kind.generated, seconds=tuple(seconds)))
        measured = self.recorder.measured
        measured["seconds_per_token"] = statistics.median(seconds) / kind.generated
        measured["trainable_parameters"] = float(sum(p.numel() for p in space.params.values()))

    def _generate(self, prompt: Sequence[int]) -> None:
        with counted_as(Part.ACTIVATIONS):
            kind = self.config.method.kind
            choose = None if kind.nucleus is None else partial(drawn_alone, kind.nucleus, self.config.seed)
            self.bench.model.generate_exactly(prompt, kind.generated, choose)


def nucleus_token(logits: Tensor, top_p: float, u: Tensor) -> Tensor:
    """Return the token of each row that u points at in its nucleus, [N].

    The nucleus is the fewest tokens whose probabilities sum to `top_p` or more, the likeliest first and ties to the
    first; of these, in that order, the token is the first at which the sum reaches u times the sum over all of them.

    Args:
        logits: [N, V].
        u: [N], in (0, 1).

    Cost: a sort per row. Source: Holtzman et al., The Curious Case of Neural Text Degeneration, 2020.
    """
    chances, tokens = logits.float().softmax(-1).sort(dim=-1, descending=True, stable=True)
    sums = chances.cumsum(-1)
    chances[sums - chances >= top_p] = 0
    sums = chances.cumsum(-1)
    place = torch.searchsorted(sums, u[:, None] * sums[:, -1:])
    return tokens.gather(-1, place)[:, 0]


def drawn_alone(top_p: float, seed: int, input_ids: Tensor, scores: Tensor) -> Tensor:
    """Return scores whose highest is at the token drawn from the nucleus of `scores`.

    With the addressed uniform number of (seed, number of tokens so far): the same again in every round and run.
    """
    rows, before = input_ids.shape
    u = noise.uniform(NoiseKey(seed, before, 0), "nucleus", torch.Size((rows,)), scores.device)
    token = nucleus_token(scores, top_p, u)
    return torch.full_like(scores, -torch.inf).scatter_(-1, token[:, None], 0)
