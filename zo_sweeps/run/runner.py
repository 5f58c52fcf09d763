"""The base class of the runners, one per kind of trial, and the runners that train nothing."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from zo_sweeps.core.events import Generated
from zo_sweeps.core.host import processor
from zo_sweeps.core.memory_parts import SCORING, TOTAL, Part, counted_as
from zo_sweeps.core.trial import Sharing
from zo_sweeps.devices.energy import EnergyMeter, Load
from zo_sweeps.devices.peak_memory import MemoryMeter, is_out_of_memory
from zo_sweeps.devices.probe import probe
from zo_sweeps.devices.tensors import Tensors
from zo_sweeps.engine import noise
from zo_sweeps.engine.layers.sparse import Sparse
from zo_sweeps.engine.layers.weight_only import WeightCodes
from zo_sweeps.engine.train import Evaluated, StepDone, evaluated_at
from zo_sweeps.engine.types import DivergedError
from zo_sweeps.methods.points import NoiseKey
from zo_sweeps.methods.space import InstalledSpace
from zo_sweeps.methods.trial_config import TrialConfig
from zo_sweeps.run.workbench import Workbench

Work = Callable[[Tensors], object]

OF_AN_ENGINE = "run in an inference engine, which does not tell a program's tensors apart"


def at_peak(bench: Workbench, space: InstalledSpace | None, work: Work) -> Mapping[Part, int]:
    """Return the bytes by part of the tensors alive at the peak of `work`, which can tell the meter of its own.

    `space` is as installed in the model; None if none is.
    """
    tensors = Tensors(bench.device)
    if space is not None:
        for part, tensor in space.tensors():
            tensors.claim(tensor, part)
    for module in bench.model.module.modules():
        if isinstance(module, WeightCodes):
            for part, buffer in module.tensors():
                tensors.claim(buffer, part)
    for tensor in bench.model.stored():
        tensors.claim(tensor, Part.WEIGHTS)
    with tensors:
        work(tensors)
    return tensors.at_peak()


class StoppedError(Exception):
    """The executor asked for a stop; the steps so far are in the journal."""


class PausedError(Exception):
    """The trial is at a rung of successive halving, and its rivals decide whether it goes on."""


class Runner:
    """A trial of one kind on its workbench; subclasses define `run`. `should_stop` is called between steps."""

    def __init__(
        self, bench: Workbench, meter: MemoryMeter, should_stop: Callable[[], bool], sharing: Sharing | None
    ) -> None:
        self.bench, self.config, self.recorder = bench, bench.config, bench.recorder
        self.meter, self.should_stop, self.sharing = meter, should_stop, sharing

    def device(self) -> dict[str, Any]:
        """Describe the device that runs the steps; see `devices.probe.probe`."""
        host, followers = probe(), len(self.sharing.peers) if self.sharing else 0
        on_cpu = {"kind": "cpu", "profile": "cpu", "name": host["name"] if host["unified"] else processor()}
        return {
            **host,
            **(on_cpu if self.bench.device.type == "cpu" else {}),
            "runtime": self.config.device.runtime,
            "memory_definition": self.meter.definition,
            "threads": torch.get_num_threads(),
            "processes": 1 + followers,
            **({"divided": divided} if (divided := len(self.bench.devices)) > 1 else {}),
        }

    def load(self) -> Load | None:
        """Return the meter of other work on this machine; None where the trial itself has other processes."""
        return Load() if self.sharing is None else None

    def energy_meter(self) -> EnergyMeter:
        """Return the meter of the steps' joules, and of the condition of the device that runs them."""
        if self.sharing is not None:
            return EnergyMeter(None, reason="the steps are shared by several processes")
        if len(self.bench.devices) > 1:
            return EnergyMeter(None, reason="the model is divided over several GPUs, and joules are read of one")
        return EnergyMeter.of(self.bench.device)

    def run(self) -> None:
        """Run the trial to its end. Raises StoppedError, DivergedError, or any other error on the way."""
        raise NotImplementedError

    @torch.inference_mode()
    def score_untrained(self) -> None:
        """Keep the dev loss before the first step, with the space installed, unless an earlier attempt did."""
        if math.isnan(self.recorder.untrained):
            self.recorder.untrained = self.bench.scored(self.bench.splits.dev)[0]

    def report_test(self, step: int, weights: str = "") -> None:
        """Score the test split once, with the weights of the selected step; their digest is "" if none was trained."""
        recorder, bench = self.recorder, self.bench
        recorder.selected = step
        if recorder.test is None:
            test = bench.score(bench.splits.test)
            if not (math.isfinite(test.loss) and math.isfinite(test.metric)):
                raise DivergedError(f"non-finite test loss at step {step}, seed {self.config.seed}: {test.loss}")
            recorder.take_test(step, test, bench.splits.test_rows, weights)

    def stop_memory(self) -> None:
        """Record the peak memory so far."""
        self.recorder.measured["peak_memory_bytes"] = float(self.meter.stop())

    def measure_parts(self, space: InstalledSpace | None, step: Work | None) -> None:
        """Record the tensors alive at the peak of one more step, by part, and the bytes of one more scored forward.

        Of a trial without steps, the parts are those of the forward. What diverges or runs out of memory is not
        recorded: the results stand. Changes theta: for when the trial has its results.

        `step` takes the step of `recorder.largest`.
        """
        measured, forward = self.recorder.measured, self.bench.largest_forward()
        try:
            parts = at_peak(self.bench, space, lambda _: self.bench.scored(forward))
            measured[SCORING] = float(sum(parts.values()))
            if step is not None and space is not None:
                parts = at_peak(self.bench, space, partial(self._beside_copies, space, step))
        except DivergedError:
            return
        except (MemoryError, RuntimeError) as error:  # torch's own are RuntimeErrors
            if is_out_of_memory(error):
                return
            raise
        self.record_parts(parts)

    def _beside_copies(self, space: InstalledSpace, step: Work, tensors: Tensors) -> None:
        """Take a step beside the copies of the parameters that the kind keeps."""
        copies = [
            param.detach().clone() for param in space.params.values() for _ in range(self.config.method.kind.copies)
        ]
        for copy in copies:
            tensors.regard(copy, Part.TRAINABLE)
        step(tensors)

    def record_parts(self, parts: Mapping[Part, int]) -> None:
        """Record the bytes of each part, and their sum."""
        self.recorder.measured |= {part.metric: float(size) for part, size in parts.items()}
        self.recorder.measured[TOTAL] = float(sum(parts.values()))

    def stop_if_asked(self, event: StepDone | Evaluated) -> None:
        """Raise StoppedError if a stop was requested, unless only the test is left.

        Raises PausedError after the evaluation of a rung that the journal has no decision on.
        """
        step = event.step
        if isinstance(event, Evaluated) and step in self.config.train.rungs and step not in self.recorder.rungs:
            raise PausedError(f"paused at step {step}, until the other settings are there")
        if self.should_stop() and not (isinstance(event, StepDone) and event.step == self.config.train.steps):
            self.recorder.flush()
            raise StoppedError

    def counted(self, events: Iterator[StepDone | Evaluated]) -> Iterator[StepDone | Evaluated]:
        """Yield the events; count the first step's operations if asked to, which slows that step down."""
        if not self.config.train.flops:
            yield from events
            return
        from torch.utils.flop_counter import FlopCounterMode

        with FlopCounterMode(display=False) as counter:
            first = next(events)
        self.recorder.measured["flops_per_step"] = float(counter.get_total_flops())
        yield first
        yield from events


def runner_of(config: TrialConfig, away: bool = False) -> type[Runner]:
    """Return the class that runs a trial, by its kind, and by the runtime of its device.

    Raises UserError if the package of the runtime is not installed.
    """
    runtime = config.device.installed_runtime
    if runtime is None:
        raise config.device.missing_runtime or AssertionError
    path = runtime.runner(config, away)
    module, _, name = path.partition(":")
    runner: type[Runner] = getattr(import_module(module), name)
    assert issubclass(runner, Runner), f"{path} is not a Runner"
    return runner


class Untrained(Runner):
    """A trial without steps: dev and test are scored with the base weights."""

    def run(self) -> None:
        if 0 not in self.recorder.evaluations:
            self.recorder.take(evaluated_at(0, self.bench.score_dev, self.config.seed))
        self.report_test(0)
        self.stop_memory()
        self.measure_parts(None, None)


GENERATION_ROUNDS = 3  # timed, after one warm-up


class TimedGeneration(Runner):
    """A timed continuation of a text, with the sparse delta merged into the weights or as a separate sparse product."""

    def run(self) -> None:
        kind, space, seconds = self.config.method.kind, self.bench.install(), []
        try:
            if isinstance(space, Sparse) and space.apart:
                space.use_sparse_matmul()
            prompt = self.bench.model.prompt(kind.text)
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
        self.recorder.emit(Generated(tokens=kind.new_tokens, seconds=tuple(seconds)))
        measured = self.recorder.measured
        measured["seconds_per_token"] = statistics.median(seconds) / kind.new_tokens
        measured["trainable_parameters"] = float(sum(p.numel() for p in space.params.values()))

    def _generate(self, prompt: Sequence[int]) -> None:
        with counted_as(Part.ACTIVATIONS):
            kind = self.config.method.kind
            choose = None if kind.top_p is None else partial(drawn_alone, kind.top_p, self.config.seed)
            self.bench.model.generate_exactly(prompt, kind.new_tokens, choose)


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


def drawn_alone(top_p: float, seed: int, rows: Sequence[int], token: int, scores: Tensor) -> Tensor:
    """Return scores whose highest is at the token drawn from the nucleus of `scores`.

    With the addressed uniform number of (seed, tokens generated so far): the same again in every round and run.
    """
    u = noise.uniform(NoiseKey(seed, token, 0), "nucleus", torch.Size((len(rows),)), scores.device)
    drawn = nucleus_token(scores, top_p, u)
    return torch.full_like(scores, -torch.inf).scatter_(-1, drawn[:, None], 0)
