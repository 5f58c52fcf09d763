"""Timed generation: the seconds per token."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence

from zo_sweeps.core.memory import Part, counted_as
from zo_sweeps.engine.layers.sparse import Sparse
from zo_sweeps.run.by_part import at_peak
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
        self.recorder.emit("generate", tokens=kind.generated, seconds=seconds)
        measured = self.recorder.measured
        measured["seconds_per_token"] = statistics.median(seconds) / kind.generated
        measured["trainable_parameters"] = float(sum(p.numel() for p in space.params.values()))

    def _generate(self, prompt: Sequence[int]) -> None:
        with counted_as(Part.ACTIVATIONS):
            self.bench.model.generate_exactly(prompt, self.config.method.kind.generated)
