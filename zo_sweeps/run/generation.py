"""Timed generation: the seconds per token."""

from __future__ import annotations

import statistics
import time

from zo_sweeps.engine.layers.sparse import Sparse
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
                self.bench.model.generate_exactly(prompt, kind.generated)
                if i:
                    seconds.append(time.perf_counter() - began)
                if self.should_stop():
                    raise StoppedError
        finally:
            space.uninstall()
        self.recorder.emit("generate", tokens=kind.generated, seconds=seconds)
        measured = self.recorder.measured
        measured["seconds_per_token"] = statistics.median(seconds) / kind.generated
        measured["trainable_parameters"] = float(sum(p.numel() for p in space.params.values()))
        self.stop_memory()
