"""Zeroth-order training: resume from the log, run the steps, test the selected step's weights."""

from __future__ import annotations

from collections.abc import Iterator

from zo_sweeps.core.events import PeerLost, PeersReady
from zo_sweeps.core.memory_parts import Part
from zo_sweeps.devices.tensors import Tensors
from zo_sweeps.engine.peers import Team
from zo_sweeps.engine.replay import Data, digest, rebuild
from zo_sweeps.engine.step import Method, step
from zo_sweeps.engine.train import Evaluated, StepDone, train
from zo_sweeps.engine.types import Peers
from zo_sweeps.methods.space import InstalledSpace
from zo_sweeps.run.runner import Runner, Work


class ZerothOrderRunner(Runner):
    """A zeroth-order trial. Earlier attempts and the weights of an earlier selected step are replayed from its log."""

    _team: Team | None = None

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
                self._end(space)
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
            log, data = self.recorder.coefs[:step], Data(bench.model.module, space, bench.losses)
            rebuild(bench.method(), space, log, bench.rates(), seed=self.config.seed, data=data)
            self._rewind(step)
            self.report_test(step, digest(space.params))
            self._end(space)
        finally:
            space.uninstall()

    def _end(self, space: InstalledSpace) -> None:
        """Measure what can be once the trial has its results."""
        self.measure_parts(space, self._one_more(space))

    def _one_more(self, space: InstalledSpace) -> Work:
        """Return the work of one more step, with a new state of the update."""
        bench, (number, _) = self.bench, self.recorder.largest
        method, lr, f = bench.method().bind(space.params), bench.rates()(number), bench.losses(number)

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
            bench.batch,
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
