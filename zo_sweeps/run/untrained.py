"""Zero-shot and in-context learning: the base model without training."""

from __future__ import annotations

from zo_sweeps.engine.train import evaluated_at
from zo_sweeps.run.runner import Runner


class Untrained(Runner):
    """A trial without steps: dev and test are scored with the base weights."""

    def run(self) -> None:
        if 0 not in self.recorder.evaluations:
            self.recorder.take(evaluated_at(0, self.bench.score_dev, self.config.seed))
        self.report_test(0)
        self.stop_memory()
        self.measure_parts(None, None)
