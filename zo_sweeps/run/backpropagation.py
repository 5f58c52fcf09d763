"""First-order training: the papers' FO rows."""

from __future__ import annotations

from contextlib import nullcontext

import torch
from torch import Tensor

from zo_sweeps.engine.baselines import first_order
from zo_sweeps.engine.checkpointing import checkpointed
from zo_sweeps.engine.train import Evaluated
from zo_sweeps.engine.types import DivergedError
from zo_sweeps.methods.space import InstalledSpace
from zo_sweeps.run.gradients import Gradients
from zo_sweeps.run.runner import Runner


class Backpropagation(Runner):
    """A first-order trial: restarts from step 1 after an interruption.

    It keeps a copy of the best weights so far, in the host's memory, so that a GPU's peak is the training's.
    """

    def run(self) -> None:
        space = self.bench.install()
        self.recorder.measured["trainable_parameters"] = float(sum(p.numel() for p in space.params.values()))
        self.recorder.measured |= self.config.departures
        model = self.bench.model
        layers = model.module.get_submodule(model.arch.blocks).children()
        try:
            with checkpointed(layers) if self.config.method.kind.recomputes else nullcontext():
                best = self._train(space)
            self.stop_memory()  # the peak over steps and dev evaluations, without the test
            with torch.no_grad():
                for name, param in space.params.items():
                    param.copy_(best[name])
            self.report_test(self.recorder.best())
        finally:
            space.uninstall()

    def _train(self, space: InstalledSpace) -> dict[str, Tensor]:
        """Run the steps; return the selected step's parameters."""
        bench, train = self.bench, self.config.train
        events = first_order.train(
            bench.model,
            space,
            bench.batch,
            bench.objective.loss,
            self.config.update,
            bench.score_dev,
            steps=train.steps,
            eval_every=train.eval_every,
            seed=self.config.seed,
        )
        gradients = None
        if self.config.gradients.samples:
            gradients = Gradients(self.config, bench.model, bench.splits.train, bench.evaluated)
            self._record(gradients, 0)
        best: dict[str, Tensor] = {}
        for event in self.counted(events):
            self.recorder.take(event)
            if isinstance(event, Evaluated):
                if gradients:
                    self._record(gradients, event.step)
                if self.recorder.best() == event.step:
                    best = {name: param.detach().to("cpu", copy=True) for name, param in space.params.items()}
            self.stop_if_asked(event)
        return best

    def _record(self, gradients: Gradients, step: int) -> None:
        """Measure the squared gradients after a step, and report them unless an earlier attempt did."""
        recorder = self.recorder
        try:
            measured = gradients.measure()
        except ArithmeticError as error:
            raise DivergedError(f"{error} after step {step}, seed {self.config.seed}") from None
        if step not in recorder.seen:
            recorder.flush()
            recorder.emit("gradients", step=step, **measured)
            recorder.seen.add(step)
        recorder.measured |= {f"gradients/{name}": share for name, share in measured["covered"].items()}
