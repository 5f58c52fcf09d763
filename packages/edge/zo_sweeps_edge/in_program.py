"""Zeroth-order training in an inference engine: steps and scores of a trial as calls of an exported program."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from zo_sweeps.core.files import Cached
from zo_sweeps.core.fingerprint import fingerprint
from zo_sweeps.core.memory_parts import MEMORY
from zo_sweeps.engine.layers.sparse import Sparse
from zo_sweeps.engine.perturbations.gaussian import Gaussian
from zo_sweeps.engine.perturbations.pezo_onthefly import PeZOOnTheFly
from zo_sweeps.engine.perturbations.pezo_pool import PeZOPool
from zo_sweeps.engine.replay import digest, replay
from zo_sweeps.engine.step import Method, RunState
from zo_sweeps.engine.train import Evaluated, StepDone
from zo_sweeps.engine.types import Peers
from zo_sweeps.methods.definition import identity, write
from zo_sweeps.methods.perturbation import Perturbation
from zo_sweeps.methods.space import InstalledSpace
from zo_sweeps.methods.trial_config import TrialConfig, code_of
from zo_sweeps.run.runner import OF_AN_ENGINE, Work
from zo_sweeps.run.training import ZerothOrderRunner
from zo_sweeps.run.workbench import Workbench
from zo_sweeps_edge import agreement, store
from zo_sweeps_edge.export import export
from zo_sweeps_edge.noise import GaussianNoise, Noise
from zo_sweeps_edge.pezo_noise import PooledNoise, RegisterNoise
from zo_sweeps_edge.program import Calls, Program
from zo_sweeps_edge.rows import Frame
from zo_sweeps_edge.scored import scored
from zo_sweeps_edge.session import Session, load


class InProgram(ZerothOrderRunner):
    """A zeroth-order trial whose forwards and updates are calls of an exported program.

    The engine's theta, which the log determines, is moved beside it, and compared with the program's at the end.
    """

    _session: Session
    _opened: float  # peak memory while the program was opened

    def device(self) -> dict[str, Any]:
        host, device = super().device(), self.config.device
        versions = {**host["versions"], "executorch": version("executorch")}
        return {**host, "form": device.form, "delegate": device.delegate, "versions": versions}

    def _gather(self, space: InstalledSpace) -> Peers:
        bench, measured = self.bench, self.recorder.measured
        measured |= self.config.departures
        program, file = program_of(bench, space)
        measured["program_bytes"], measured["planned_bytes"] = float(file.stat().st_size), float(program.planned_bytes)
        self.meter.start()  # not the memory of the export
        seed = self.config.seed
        self._session = Session(program, load(file), bench.objective, bench.examples_of, bench.rates(), seed)
        self._opened = float(self.meter.stop())
        self._compare(space)
        self.meter.start()  # nor that of the comparison
        bench.scorer = partial(scored, self._session.scores, program.frame, bench.evaluated)
        return self._session

    def _compare(self, space: InstalledSpace) -> None:
        """Compare the program's losses of the first steps with the engine's before any step is kept; theta is restored.

        A loss that is not finite ends the comparison, as it ends the run. Raises UserError if the program computes
        another function. Cost: the first steps, in the program and in the engine.
        """
        bench, session, log, seed = self.bench, self._session, self.recorder.coefs, self.config.seed
        method = bench.method().bind(space.params)
        state: RunState | None = None
        initial = {name: param.detach().clone() for name, param in space.params.items()}
        measured: list[tuple[float, float]] = []
        for step in range(1, min(agreement.STEPS, self.config.train.steps) + 1):
            points, losses = session.losses(method.estimator.points(seed, step))
            if not all(map(math.isfinite, losses)):
                break
            agreement.of_step(bench, space, step, losses, measured)
            coefs = log[step - 1] if step <= len(log) else method.estimator.combine(points, losses).coefs
            session.tell(coefs)
            state = replay(method, space.params, [coefs], bench.rates(), seed=seed, state=state, first=step)
        session.restart()
        for name, param in space.params.items():
            param.data.copy_(initial[name])

    def stop_memory(self) -> None:
        super().stop_memory()
        measured = self.recorder.measured
        measured["peak_memory_bytes"] = max(measured["peak_memory_bytes"], self._opened)

    def _steps(self, method: Method, space: InstalledSpace, peers: Peers | None) -> Iterator[StepDone | Evaluated]:
        for event in super()._steps(method, space, peers):
            yield replace(event, tokens=self._session.tokens) if isinstance(event, StepDone) else event

    def _rewind(self, step: int) -> None:
        self._session.restart()
        for coefs in self.recorder.coefs[:step]:
            self._session.tell(coefs)

    def measure_parts(self, space: InstalledSpace | None, step: Work | None) -> None:
        """Record how far the program's theta is from the log's."""
        self.recorder.unmeasured[MEMORY] = OF_AN_ENGINE
        assert space is not None
        theta = self._session.theta()
        differences = [float((theta[name] - param.detach()).abs().max()) for name, param in space.params.items()]
        self.recorder.measured["theta_difference"] = max(differences)


def program_of(bench: Workbench, space: InstalledSpace) -> tuple[Program, Path]:
    """Return a trial's program and its file, from this machine's store; export it if the store has none.

    Raises UserError if it computes another function than the engine. Cost: none if the store has it; else as
    `export.export`, and a forward of each.
    """
    config = bench.config
    examples = (*bench.splits.train, *bench.splits.dev, *bench.splits.test)
    frame = Frame.of(examples, bench.objective.gold_only)
    calls = Calls(config.estimator.budget, config.evaluation.mode)
    # The copies are at the scale of a step's points, which is the same for all.
    dual = abs(config.estimator.points(0, 1)[0].scale) if config.device.keeps_copies else None
    assert config.train.batch is not None
    batch, objective = config.train.batch, bench.objective
    noise = noise_of(bench.method().bind(space.params).perturbation, space, config.seed)
    masks = space.masks if isinstance(space, Sparse) else {}
    key = {
        **_logged(config, code_of(config)),
        "objective": identity(objective),
        "noise": identity(config.perturbation),
        "sizes": write([calls, frame, batch]),
        "masks": digest({**masks, **space.params}) if masks else None,
        "dual": dual,
        "delegate": config.device.delegate,
        "versions": [version(package) for package in ("executorch", "torch", "transformers")],
    }
    make = partial(export, bench.model, space, noise, calls, frame, batch, objective.of_scores)
    make = partial(make, dual=dual, delegate=config.device.delegate == "xnnpack")
    return store.stored(key, make, partial(compare, bench))


def noise_of(perturbation: Perturbation, space: InstalledSpace, seed: int) -> Noise:
    """Return the directions of a trial as a program makes them, of a perturbation that is bound to the parameters."""
    sizes = [param.numel() for param in space.params.values()]
    if isinstance(perturbation, PeZOPool):
        return PooledNoise(perturbation, sizes, seed)
    if isinstance(perturbation, PeZOOnTheFly):
        return RegisterNoise(perturbation, sizes, seed)
    assert isinstance(perturbation, Gaussian), f"no program draws {perturbation.name}"
    return GaussianNoise(sizes)


def compare(bench: Workbench, program: Program, data: bytes) -> None:
    """Compare a program's scores of as many rows of dev as a call holds with the engine's.

    Raises UserError if it computes another function.
    """
    session = Session(program, load(data), bench.objective, bench.examples_of, bench.rates(), bench.config.seed)
    frame, dev = program.frame, bench.splits.dev
    first = dev[: max(1, program.rows // len(frame.of_scores(dev[0])))]
    agreement.of_scores(bench, scored(session.scores, frame, bench.evaluated, first), bench.scored(first))


def mark_of(config: TrialConfig, code: str) -> str:
    """Return the mark by which `programs` gives a trial's program, and those of other rows, sizes and versions.

    Args:
        code: of the attempt, as its journal gives it.
    """
    return fingerprint(_logged(config, code))


def programs() -> Iterator[Cached]:
    """Iterate over this machine's programs of trials."""
    return store.programs(lambda key: fingerprint({name: key[name] for name in _LOGGED}))


_LOGGED = ("model", "precision", "space", "seed", "code")


def _logged(config: TrialConfig, code: str) -> dict[str, Any]:
    """Return the part of a program's key that a trial's configuration and journal give."""
    values = (config.model.fingerprint, identity(config.precision), identity(config.space), config.seed, code)
    return dict(zip(_LOGGED, values, strict=True))
