"""The runners that train: by zeroth order, from the log, and by backpropagation, the papers' FO rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor

from zo_sweeps.core.events import PeerLost, PeersReady
from zo_sweeps.core.memory_parts import Part
from zo_sweeps.devices.tensors import Tensors
from zo_sweeps.engine import first_order
from zo_sweeps.engine.batch import Batch
from zo_sweeps.engine.first_order import checkpointed
from zo_sweeps.engine.peers import Follower, Team
from zo_sweeps.engine.replay import Data, digest, rebuild
from zo_sweeps.engine.step import Method, step
from zo_sweeps.engine.train import Evaluated, StepDone, train
from zo_sweeps.engine.types import DivergedError, Peers
from zo_sweeps.methods.space import InstalledSpace
from zo_sweeps.run.packages import GradientMeter
from zo_sweeps.run.runner import Runner, Work
from zo_sweeps.run.workbench import Workbench


class ZerothOrderRunner(Runner):
    """A zeroth-order trial. Earlier attempts and the weights of an earlier selected step are replayed from its log."""

    _team: Team | None = None

    @classmethod
    def follower(cls, bench: Workbench) -> tuple[InstalledSpace, Callable[[bytes], bytes]]:
        """Load the model of a trial that another process leads; return its installed space, and what answers it."""
        bench.load()
        space, seed = bench.install(), bench.config.seed
        try:
            one = Follower(bench.method(), bench.model, space, bench.losses(space), bench.rates(), seed=seed)
        except BaseException:
            space.uninstall()
            raise
        return space, one.answer

    def run(self) -> None:
        bench, recorder = self.bench, self.recorder
        space, method = bench.install(), bench.method()
        d = sum(p.numel() for p in space.params.values())
        recorder.measured["trainable_parameters"] = float(d)
        if (directions := self.config.perturbation.directions(d)) is not None:
            recorder.measured["directions"] = float(directions)
        try:
            peers = self._gather(space)
            self.score_untrained()
            events = self.counted(self._steps(method, space, peers))
            for event in events:
                recorder.take(event)
                self.stop_if_asked(event)
            recorder.flush()
            self.stop_memory()  # the peak over steps and dev evaluations, without the test
            if method.in_place is not None:
                recorder.measured["drift"] = method.in_place.drift
            best = recorder.best()
            if best == self.config.train.steps:
                self.report_test(best, digest(space.params))
                self.measure_parts(space, self._one_more(space))
                return
        finally:
            self._release()
            space.uninstall()
        del space, events  # they hold the weights that are about to be loaded again
        self._test_replayed(best)

    def _test_replayed(self, step: int) -> None:
        """Rebuild the weights of the selected step from the log, and test them."""
        bench = self.bench
        space = bench.install()
        try:
            log, data = self.recorder.coefs[:step], Data(bench.model.module, space, bench.losses(space))
            rebuild(bench.method(), space, log, bench.rates(), seed=self.config.seed, data=data)
            self._rewind(step)
            self.report_test(step, digest(space.params))
            self.measure_parts(space, self._one_more(space))
        finally:
            space.uninstall()

    def _one_more(self, space: InstalledSpace) -> Work:
        """Return the work of one more step, with a new state of the update."""
        bench, (number, _) = self.bench, self.recorder.largest
        method, lr, f = bench.method().bind(space.params), bench.rates()(number), bench.losses(space)(number)

        def work(tensors: Tensors) -> None:
            state = method.init(space.params)
            _, state = step(method, bench.model.module, space, f, state, seed=self.config.seed, step=number, lr=lr)
            tensors.left_over(Part.TRAINABLE)

        return work

    def _steps(self, method: Method, space: InstalledSpace, peers: Peers | None) -> Iterator[StepDone | Evaluated]:
        bench = self.bench
        return train(
            method,
            bench.model,
            space,
            bench.minibatch,
            bench.objective.loss,
            bench.rates(),
            bench.score_dev,
            seed=self.config.seed,
            steps=self.config.train.steps,
            eval_every=self.config.train.eval_every,
            log=list(self.recorder.coefs),
            evaluated=set(self.recorder.evaluations),
            objective=bench.of_texts if bench.objective.generates else None,
            peers=peers,
            joules=self.recorder.energy.joules,
        )

    def _gather(self, space: InstalledSpace) -> Peers | None:
        """Return the peers that evaluate points of a step, once they are ready; None if this process is alone."""
        if self.sharing is None:
            return None

        def on_loss(why: str) -> None:
            self.recorder.emit(PeerLost(reason=why))

        self._team = Team(
            self.sharing.peers,
            self.config.evaluation.mode,
            agreed=self.bench.agreed(space),
            drop=self.sharing.drop,
            patience=self.sharing.patience,
            on_loss=on_loss,
        )
        self.recorder.measured["workers"] = 1.0 + self._team.ready()
        self.recorder.emit(PeersReady(names=tuple(self.sharing.names)))
        return self._team

    def _release(self) -> None:
        """Record how the peers did: no further step is shared."""
        if self._team is not None:
            measured = self.recorder.measured
            measured["exchanged_bytes_per_step"] = self._team.exchanged / max(1, self.recorder.steps_run)
            measured["peers_lost"] = float(self._team.lost)
            measured["directions_redone"] = float(self._team.redone)

    def _rewind(self, step: int) -> None:
        """Take whatever else holds theta to its value after a step; the space has it already."""


class Backpropagation(Runner):
    """A first-order trial: restarts from step 1 after an interruption.

    It keeps a copy of the best weights so far, in the host's memory, so that a GPU's peak is the training's.
    """

    def run(self) -> None:
        space = self.bench.install()
        self.recorder.measured["trainable_parameters"] = float(sum(p.numel() for p in space.params.values()))
        self.recorder.measured |= self.config.departures
        try:
            self.score_untrained()
            best = self._train(space)
            self.recorder.flush()
            self.stop_memory()  # the peak over steps and dev evaluations, without the test
            with torch.no_grad():
                for name, param in space.params.items():
                    param.copy_(best[name])
            self.report_test(self.recorder.best(), digest(space.params))
            del best
            self.measure_parts(space, self._one_more(space))
        finally:
            space.uninstall()

    def _one_more(self, space: InstalledSpace) -> Work:
        """Return the work of two steps: an optimizer may make its state at the end of the first.

        In mixed precision, steps until one is not skipped, and another: its scale begins anew.
        """
        arch, batch = self.bench.model.arch, self.bench.batch(self.recorder.largest[0])

        def work(tensors: Tensors) -> None:
            if arch.tied and self.config.space.moves_base:
                tensors.gradients_of(torch.Size((arch.vocabulary, arch.width)))
            for param in space.params.values():
                param.requires_grad_(True).register_post_accumulate_grad_hook(partial(_is_trainable, tensors))
            events = self._steps(space, lambda _: batch, steps=40, eval_every=40)
            next(event for event in events if isinstance(event, StepDone) and not event.skipped)
            tensors.left_over(Part.TRAINABLE)
            next(events)

        return work

    def _train(self, space: InstalledSpace) -> dict[str, Tensor]:
        """Run the steps; return the selected step's parameters."""
        bench, events, gradients = self.bench, self._events(space), None
        if self.config.gradients.samples:
            gradients = GradientMeter(self.config, bench.model, bench.splits.train, bench.evaluated)
            self._record(gradients, 0)
        measured = self.recorder.measured
        if self.config.method.kind.multiplied_in is not None:
            measured["steps_skipped"] = 0.0
        best: dict[str, Tensor] = {}
        for event in self.counted(events):
            self.recorder.take(event)
            if isinstance(event, StepDone) and event.skipped:
                measured["steps_skipped"] += 1
            if isinstance(event, Evaluated):
                if gradients:
                    self._record(gradients, event.step)
                if self.recorder.best() == event.step:
                    best = {name: param.detach().to("cpu", copy=True) for name, param in space.params.items()}
            self.stop_if_asked(event)
        return best

    def _events(self, space: InstalledSpace) -> Iterator[StepDone | Evaluated]:
        train = self.config.train
        return self._steps(space, self.bench.batch, steps=train.steps, eval_every=train.eval_every)

    def _steps(
        self, space: InstalledSpace, batches: Callable[[int], Batch], *, steps: int, eval_every: int
    ) -> Iterator[StepDone | Evaluated]:
        bench = self.bench
        with self._backward() as options:
            yield from first_order.train(
                bench.model,
                space,
                batches,
                bench.objective.loss,
                self.config.update,
                bench.score_dev,
                steps=steps,
                eval_every=eval_every,
                seed=self.config.seed,
                **options,
            )

    @contextmanager
    def _backward(self) -> Iterator[dict[str, Any]]:
        """Give the options of the backward passes within the block."""
        kind, blocks = self.config.method.kind, self.bench.model.blocks
        blocks, products = blocks[self.config.space.untouched(self.bench.model.arch) :], kind.multiplied_in
        with checkpointed(blocks) if kind.recomputes and not kind.is_layerwise else nullcontext():
            yield {
                "autocast": None if products is None else products.dtype,
                "layers": blocks if kind.is_layerwise else (),
                "joules": self.recorder.energy.joules,
            }

    def _record(self, gradients: GradientMeter, step: int) -> None:
        """Measure the squared gradients after a step, and report them unless an earlier attempt did."""
        recorder = self.recorder
        try:
            measured = gradients.measure(step)
        except ArithmeticError as error:
            raise DivergedError(f"{error} after step {step}, seed {self.config.seed}") from None
        if step not in recorder.seen:
            recorder.flush()
            recorder.emit(measured)
            recorder.seen.add(step)
        recorder.measured |= {f"gradients/{name}": share for name, share in measured.covered.items()}


def _is_trainable(tensors: Tensors, param: Tensor) -> None:
    """Count a gradient, once it is there, as trainable state."""
    assert param.grad is not None
    tensors.regard(param.grad, Part.TRAINABLE)
