"""One attempt at a trial: from its journal's end to its outcome, event by event."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib import import_module
from typing import Any

import torch

from zo_sweeps.core.errors import UserError
from zo_sweeps.core.fingerprint import fingerprint
from zo_sweeps.core.trial import Event, Outcome, Sharing, Sink, Trial, TrialState
from zo_sweeps.devices.memory import MemoryMeter
from zo_sweeps.devices.probe import probe
from zo_sweeps.engine import schedules
from zo_sweeps.engine.baselines import first_order
from zo_sweeps.engine.batch import Batch, collate
from zo_sweeps.engine.data import indices
from zo_sweeps.engine.evaluate import Objective
from zo_sweeps.engine.in_place import InPlace
from zo_sweeps.engine.peers import Team
from zo_sweeps.engine.replay import rebuild
from zo_sweeps.engine.score import score
from zo_sweeps.engine.spaces.sparse import Sparse
from zo_sweeps.engine.step import Method
from zo_sweeps.engine.train import Evaluated, StepDone, evaluated_at, of_batch, train
from zo_sweeps.engine.types import DivergedError
from zo_sweeps.methods.objective import Objective as Trained
from zo_sweeps.methods.registry import member
from zo_sweeps.methods.space import InstalledSpace
from zo_sweeps.record import provenance
from zo_sweeps.record.journal import evals, scalars
from zo_sweeps.run import cache as loaded
from zo_sweeps.run.gradients import Gradients, sensitive_options
from zo_sweeps.tasks.encode import Example
from zo_sweeps.tasks.scoring import Answers, cut, evaluate

ROUNDS = 3  # of generation, after one that is not timed
FLUSH_SECONDS = 0.5  # steps are reported in groups: what a killed process loses is computed again


class StoppedError(Exception):
    """The executor asked for a stop; what was done is in the journal."""


class Attempt:
    """One attempt: holds what is known so far, so that any way of ending can report it."""

    def __init__(
        self,
        trial: Trial,
        sink: Sink,
        journal: Sequence[Event],
        attempt: int,
        should_stop: Callable[[], bool],
        sharing: Sharing | None = None,
    ) -> None:
        self.trial, self.config, self.attempt = trial, trial.config, attempt
        self.kind = str(trial.config["method"]["kind"])
        self.sink, self.should_stop, self.sharing = sink, should_stop, sharing
        self.team: Team | None = None
        self.coefs, self.losses = scalars(journal)
        self.evaluations = {step: event for (split, step), event in evals(journal).items() if split == "dev"}
        self.test_event = next((event for event in journal if event["type"] == "test"), None)
        self.looked = {event["step"] for event in journal if event["type"] == "gradients"}
        self.mask = next((str(event["fingerprint"]) for event in journal if event["type"] == "mask"), "")
        self.seconds = [event["seconds"] for event in journal if event["type"] == "steps"]
        self.tokens = sum(event["tokens"] for event in journal if event["type"] == "steps")
        self.reported = len(self.losses)  # steps that stand in the journal
        self.step_seconds: list[float] = []
        self.pending: list[StepDone] = []
        self.flushed_at = time.perf_counter()
        self.device = torch.device(loaded.device_of(self.config["device"]))
        self.meter = MemoryMeter(self.device)
        self.described: dict[str, Any] = {}
        self.measured: dict[str, float] = {}
        self.how: Method | None = None  # the method of zeroth-order steps, once they began
        self.selected = 0
        self.scored: dict[str, float] = {}  # the metrics of the split scored last, by name

    def execute(self) -> Outcome:
        self.described = {**probe(), "memory_definition": self.meter.definition, "threads": torch.get_num_threads()}
        self.emit(
            "start",
            attempt=self.attempt,
            device=self.described,
            versions=provenance.collect(),
            resumed_from=self.reported if self.kind == "zo" else 0,
        )
        self.load()
        self.meter.start()
        parameters = self.model.module.parameters()
        self.measured["weights_bytes"] = float(sum(p.numel() * p.element_size() for p in parameters))
        if self.kind in ("zero_shot", "icl"):
            self._evaluate_untrained()
        elif self.kind == "generate":
            self._generate()
        else:
            self._train()
        return self.outcome(TrialState.SUCCEEDED)

    def load(self) -> None:
        self.model = loaded.base_model(self.trial, self.device)
        if self.kind == "generate":
            return
        self.data = loaded.examples(self.config, self.model)
        self.loss = self.data.spec.objective  # evaluated
        self.f = trained(self.config["train"]["objective"], self.loss)

    def _evaluate_untrained(self) -> None:
        if 0 not in self.evaluations:
            self.take(evaluated_at(0, self.score_dev, self.config["seed"]))
        self.report_test(0)
        self.measured["peak_memory_bytes"] = float(self.meter.stop())

    def _generate(self) -> None:
        """Times the continuation of a text, with theta written into the weights or as a product beside them."""
        options, space = self.config["method"], self.install()
        try:
            if self.config["evaluation"]["mode"] == "inner":
                assert isinstance(space, Sparse)
                space.multiply_beside()
            prompt, seconds = self.model.prompt(options["text"]), []
            for i in range(1 + ROUNDS):
                began = time.perf_counter()
                self.model.continue_by(prompt, options["new_tokens"])
                if i:
                    seconds.append(time.perf_counter() - began)
                if self.should_stop():
                    raise StoppedError
        finally:
            space.uninstall()
        self.emit("generate", tokens=options["new_tokens"], seconds=seconds)
        self.measured["seconds_per_token"] = statistics.median(seconds) / options["new_tokens"]
        self.measured["trainable_parameters"] = float(sum(p.numel() for p in space.params.values()))
        self.measured["peak_memory_bytes"] = float(self.meter.stop())

    def _train(self) -> None:
        options = self.config["train"]
        steps, every = options["steps"], options["eval_every"]
        space = self.install()
        self.measured["trainable_parameters"] = float(sum(p.numel() for p in space.params.values()))
        snapshot: dict[str, torch.Tensor] = {}
        try:
            if self.kind == "zo":
                events = self.zeroth_order(space, steps, every)
            else:
                events = first_order.train(
                    self.model,
                    space,
                    self.batch,
                    self.f.loss,
                    self.schedule(),
                    self.score_dev,
                    steps=steps,
                    eval_every=every,
                    seed=self.config["seed"],
                    optimizer=self.config["update"]["name"],
                    weight_decay=self.config["update"]["weight_decay"],
                )
            if options["flops"]:
                events = self.counted(events)
            gradients = self.gradients() if self.config["gradients"]["samples"] else None
            if gradients:
                self.look(gradients, 0)
            for event in events:
                self.take(event)
                if gradients and isinstance(event, Evaluated):
                    self.look(gradients, event.step)
                if self.kind == "fo" and isinstance(event, Evaluated) and self.best() == event.step:
                    snapshot = {name: param.detach().clone() for name, param in space.params.items()}
                if self.should_stop() and not (isinstance(event, StepDone) and event.step == steps):
                    self.flush()
                    raise StoppedError
            self.measured["peak_memory_bytes"] = float(self.meter.stop())  # of steps and dev evaluations
            if self.how is not None and self.how.in_place is not None:
                self.measured["drift"] = self.how.in_place.drift
            best = self.best()
            if self.kind == "fo":
                with torch.no_grad():
                    for name, param in space.params.items():
                        param.copy_(snapshot[name])
            if self.kind == "fo" or best == steps:
                self.report_test(best)
                return
            self.flush()
        finally:
            space.uninstall()
        del space, events  # they hold the weights that are about to be loaded again
        self._test_replayed(best)

    def _test_replayed(self, best: int) -> None:
        """Rebuilds the weights of the selected step from the log, and tests them."""
        space = self.install()
        try:
            rebuild(self.method(), space, self.coefs[:best], self.schedule(), seed=self.config["seed"])
            self.report_test(best)
        finally:
            space.uninstall()

    def zeroth_order(self, space: InstalledSpace, steps: int, every: int) -> Iterator[StepDone | Evaluated]:
        self.how = self.method()
        self.team = self.gather(space)
        return train(
            self.how,
            self.model,
            space,
            self.batch,
            self.f.loss,
            self.schedule(),
            self.score_dev,
            seed=self.config["seed"],
            steps=steps,
            eval_every=every,
            log=list(self.coefs),
            evaluated=set(self.evaluations),
            objective=self.of_texts if self.f.generates else None,
            peers=self.team,
        )

    def counted(self, events: Iterator[StepDone | Evaluated]) -> Iterator[StepDone | Evaluated]:
        """The events; the operations of the first step are counted on the way (its time is then not a step's)."""
        from torch.utils.flop_counter import FlopCounterMode

        with FlopCounterMode(display=False) as counter:
            first = next(events)
        self.measured["flops_per_step"] = float(counter.get_total_flops())
        yield first
        yield from events

    def gradients(self) -> Gradients:
        loss = self.loss
        return Gradients(self.config, self.model, self.data.train, loss.loss, gold_only=loss.gold_only)

    def look(self, gradients: Gradients, step: int) -> None:
        """Measures the squared gradients after a step, and reports them unless an earlier attempt has."""
        try:
            found = gradients.look()
        except ArithmeticError as error:
            raise DivergedError(f"{error} after step {step}, seed {self.config['seed']}") from None
        if step not in self.looked:
            self.flush()
            self.emit("gradients", step=step, **found)
            self.looked.add(step)
        self.measured |= {f"gradients/{name}": share for name, share in found["covered"].items()}

    def gather(self, space: InstalledSpace) -> Team | None:
        """Those that share the steps, once they are ready."""
        if self.sharing is None:
            return None

        def on_loss(why: str) -> None:
            self.emit("peer_lost", reason=why)

        team = Team(
            self.sharing.peers,
            self.config["evaluation"]["mode"],
            agreed=self.agreed(space),
            drop=self.sharing.drop,
            patience=self.sharing.patience,
            on_loss=on_loss,
        )
        self.measured["workers"] = 1.0 + team.ready()
        self.emit("peers", names=list(self.sharing.names))
        return team

    def agreed(self, space: InstalledSpace) -> bytes:
        """What leader and followers must have in common, which their configuration does not say."""
        shapes = [[name, list(param.shape)] for name, param in space.params.items()]
        return fingerprint([self.mask, shapes]).encode()

    def objective(self, step: int) -> Objective:
        """f of a step's minibatch."""
        if self.f.generates:
            return partial(self.of_texts, step)
        return of_batch(self.model, self.batch(step), self.f.loss)

    def of_texts(self, step: int, points: int) -> torch.Tensor:
        """Return the objective of the answers generated to the step's examples, [1]."""
        examples = self.examples_of(step)
        return self.f.of_texts(self.generated(examples), [example.references for example in examples])

    def generated(self, examples: Sequence[Example]) -> list[str]:
        """Generate the answers to `examples`, up to the task's stop.

        A task without a stop of its own ends them at a newline (MeZO's rule). Another stop is looked for in the decoded
        text; generation itself ends early only where that stop is one token.
        """
        spec, tokenizer, stop_ids = self.data.spec, self.model.tokenizer, None
        if spec.stop not in ("", "\n"):
            last = tokenizer.encode(spec.stop, add_special_tokens=False)[-1:]
            own = last if tokenizer.decode(last) == spec.stop else []
            stop_ids = [*own, *([] if self.model.eos_id is None else [self.model.eos_id])]
        texts = self.model.generate([list(e.prompt_ids) for e in examples], spec.max_new_tokens, stop_ids)
        return texts if stop_ids is None else [cut(text, spec.stop) for text in texts]

    def install(self) -> InstalledSpace:
        """The trial's space on the base weights, in fp32 where it is trained by backpropagation."""
        assert loaded.warm is not None
        if loaded.warm.dirty:
            del self.model
            self.model = loaded.base_model(self.trial, self.device)
        options = dict(self.config["space"])
        if options["name"] == "full":
            loaded.warm.dirty = True
            if self.kind == "fo":
                self.model.module.float()
        elif "targets" in options:
            options["modules"] = list(self.model.target_modules(options["targets"]))
        if options["name"] == "sensitive":
            options |= self.sensitive_mask(options["modules"])
        member = import_module(f"zo_sweeps.engine.spaces.{options['name']}")
        space: InstalledSpace = member.install(self.model.module, options, self.config["seed"])
        return space

    def sensitive_mask(self, modules: Sequence[str]) -> dict[str, Any]:
        """The mask of the trial, and how to find others. A log goes on only over the mask that it began with."""
        loss = self.loss
        options, mark = sensitive_options(
            self.config, self.model, modules, self.data.train, loss.loss, gold_only=loss.gold_only
        )
        if self.mask not in ("", mark):
            raise UserError(
                f"the mask found here ({mark}) is not the one this trial began with ({self.mask})",
                fix="run the trial again from its first step, or give this machine the other's mask store",
            )
        if not self.mask:
            self.mask = mark
            self.emit("mask", fingerprint=mark, entries=sum(map(len, options["masks"].values())))
        return options

    def method(self) -> Method:
        estimator, perturbation, update = (dict(self.config[axis]) for axis in ("estimator", "perturbation", "update"))
        settings = {name: value for name, value in update.items() if name not in ("name", "lr", "schedule")}
        return Method(
            estimator=_member("estimators", estimator.pop("name"))(**estimator),
            perturbation=_member("perturbations", perturbation.pop("name"))(**perturbation),
            update=_member("updates", update["name"])(**settings),
            mode=self.config["evaluation"]["mode"],
            in_place=InPlace() if self.config["evaluation"]["restore"] == "in_place" else None,
        )

    def schedule(self) -> schedules.Schedule:
        update = self.config["update"]
        make: Callable[[float, int], schedules.Schedule] = getattr(schedules, update["schedule"])
        return make(update["lr"], self.config["train"]["steps"])

    def examples_of(self, step: int) -> list[Example]:
        chosen = indices(self.config["seed"], step, len(self.data.train), self.config["train"]["batch"])
        return [self.data.train[i] for i in chosen]

    def batch(self, step: int) -> Batch:
        return collate(self.examples_of(step), self.model.pad_id, gold_only=self.f.gold_only).to(self.device)

    def score_dev(self) -> tuple[float, float]:
        return self.score(self.data.dev)

    @torch.inference_mode()
    def score(self, examples: Sequence[Example]) -> tuple[float, float]:
        """Return (loss, first metric) of a split, with the weights as they are; `scored` then has all metrics."""
        spec = self.data.spec
        loss, choices, scores = score(
            self.model, examples, self.model.pad_id, self.loss.loss, self.device, gold_only=spec.kind.generates
        )
        texts = self.generated(examples) if spec.kind.generates else ()
        self.scored = evaluate(spec, examples, Answers(choices, scores, texts))
        return loss, self.scored[spec.metrics[0].name]

    def best(self) -> int:
        """The selected step: lowest dev loss (or best dev metric, `train.select`), the earliest of equals."""
        by = self.config["train"].get("select", "loss")
        sign = -1 if by == "metric" and self.data.spec.metrics[0].better == "higher" else 1
        return min(self.evaluations, key=lambda step: (sign * self.evaluations[step][by], step))

    def report_test(self, step: int) -> None:
        """Scores the test split once, with the selected weights."""
        self.selected = step
        if self.test_event is None:
            loss, metric = self.score(self.data.test)
            if not (math.isfinite(loss) and math.isfinite(metric)):
                raise DivergedError(f"non-finite test loss at step {step}, seed {self.config['seed']}: {loss}")
            self.test_event = self.emit("test", step=step, loss=loss, metric=metric, metrics=self.scored)

    def take(self, event: StepDone | Evaluated) -> None:
        """Keeps an event and reports it, unless an earlier attempt has (a first-order run starts again from step 1)."""
        if isinstance(event, StepDone):
            if event.step > self.reported:
                self.coefs.append(list(event.coefs))
                self.losses.append(event.loss)
                self.step_seconds.append(event.seconds)
                self.pending.append(event)
                if time.perf_counter() - self.flushed_at > FLUSH_SECONDS:
                    self.flush()
            return
        if event.step not in self.evaluations:
            self.flush()
            self.evaluations[event.step] = self.emit(
                "eval",
                step=event.step,
                split="dev",
                loss=event.loss,
                metric=event.metric,
                metrics=self.scored,
                seconds=event.seconds,
            )

    def flush(self) -> None:
        """Reports the steps done since the last report, as one event."""
        if self.pending:
            seconds = sum(step.seconds for step in self.pending)
            tokens = sum(step.tokens for step in self.pending)
            self.seconds.append(seconds)
            self.tokens += tokens
            self.emit(
                "steps",
                first=self.pending[0].step,
                losses=[step.loss for step in self.pending],
                coefs=[list(step.coefs) for step in self.pending],
                seconds=seconds,
                tokens=tokens,
            )
            self.reported = self.pending[-1].step
            self.pending = []
        self.flushed_at = time.perf_counter()

    def emit(self, kind: str, **fields: Any) -> Event:
        event = {"type": kind, "time": time.time(), **fields}
        self.sink.emit(event)
        return event

    def outcome(self, state: TrialState, *, error: str = "", trace: str = "") -> Outcome:
        metrics = dict(self.measured)
        spent = sum(self.seconds) + sum(step.seconds for step in self.pending)
        done = len(self.losses)
        if done:
            tokens = self.tokens + sum(step.tokens for step in self.pending)
            metrics["train_seconds"] = spent
            metrics["seconds_per_step"] = statistics.median(self.step_seconds) if self.step_seconds else spent / done
            metrics["tokens_per_second"] = tokens / spent if spent else 0.0
        if self.team is not None:
            metrics["exchanged_bytes_per_step"] = self.team.exchanged / max(1, len(self.step_seconds))
            metrics["peers_lost"] = float(self.team.lost)
            metrics["directions_redone"] = float(self.team.redone)
        if dropped := sum(math.isnan(g) for line in self.coefs for g in line):
            metrics["directions_dropped"] = float(dropped)
        chosen = self.evaluations.get(self.selected)
        if state is TrialState.SUCCEEDED and chosen is not None and self.test_event is not None:
            for split, event in (("dev", chosen), ("test", self.test_event)):
                metrics[f"{split}/loss"], metrics[f"{split}/metric"] = event["loss"], event["metric"]
                metrics |= {f"{split}/{name}": value for name, value in event.get("metrics", {}).items()}
        return Outcome(
            trial_id=self.trial.trial_id,
            state=state,
            metrics=metrics,
            selected_step=self.selected,
            steps_done=done,
            device=self.described,
            error=error,
            traceback=trace,
        )


def trained(name: str, loss: Trained) -> Trained:
    """Return the objective that `train.objective` names: "loss" is the dialect's own."""
    if name == "loss":
        return loss
    made = member("objective", name)()
    assert isinstance(made, Trained)
    return made


def _member(axis: str, name: str) -> Any:
    """The class of an axis's member: the only public class of its module."""
    module = import_module(f"zo_sweeps.engine.{axis}.{name}")
    found = [item for item in vars(module).values() if isinstance(item, type) and item.__module__ == module.__name__]
    assert len(found) == 1, f"{module.__name__} must define one class"
    return found[0]
