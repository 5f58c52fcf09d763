"""The parts of one trial: its model, splits, space, method and batches, and the scoring of a split.

A process keeps the last base model, and the encoded examples of the last few tasks, between trials.
"""

from __future__ import annotations

import gc
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from zo_sweeps.core.errors import UserError
from zo_sweeps.core.events import ComputedCodes, ComputedInitial, ComputedMask
from zo_sweeps.core.fingerprint import fingerprint
from zo_sweeps.engine.batch import Batch, BatchParts, collate, divided, indices
from zo_sweeps.engine.evaluate import StepObjective
from zo_sweeps.engine.losses import Scored, forwards, score
from zo_sweeps.engine.noise import Sampler
from zo_sweeps.engine.replay import digest
from zo_sweeps.engine.step import Method
from zo_sweeps.engine.train import Scores, of_batch
from zo_sweeps.methods.definition import write
from zo_sweeps.methods.objective import OWN, Objective
from zo_sweeps.methods.parts import Device
from zo_sweeps.methods.precision import WeightOnlyPrecision
from zo_sweeps.methods.registry import member
from zo_sweeps.methods.schedule import Rates
from zo_sweeps.methods.space import Found, InstalledSpace
from zo_sweeps.methods.trial_config import TrialConfig
from zo_sweeps.models import package
from zo_sweeps.models.causal import CausalModel, Choose, MaskedLanguageModel
from zo_sweeps.models.load import divide, load
from zo_sweeps.run.packages import prepared, sensitive_mask
from zo_sweeps.run.recorder import Recorder
from zo_sweeps.tasks.data import Row, digest_rows, facts, load_splits, mark
from zo_sweeps.tasks.encode import (
    Demonstrator,
    EncodedCandidate,
    EncodedExample,
    demonstration,
    encode,
    encode_masked,
)
from zo_sweeps.tasks.kinds.verified import Verified
from zo_sweeps.tasks.scoring import ModelAnswers, compared, cut, evaluate, leads, right
from zo_sweeps.tasks.spec import TaskSpec
from zo_sweeps.tasks.templates import chat_of
from zo_sweeps.tasks.verifier import Verifier


@dataclass
class Warm:
    """The cached base model; `dirty` once a trial has moved its weights."""

    key: str
    model: CausalModel
    dirty: bool = False


@dataclass(frozen=True)
class EncodedSplits:
    """A task's splits as tokens, the digest of the test split's rows, and the facts of `tasks.data`."""

    spec: TaskSpec
    train: list[EncodedExample]
    dev: list[EncodedExample]
    test: list[EncodedExample]
    test_rows: str
    facts: Mapping[str, float]


warm: Warm | None = None
_encoded: dict[str, EncodedSplits] = {}  # the oldest is dropped first


def torch_device(profile: Device) -> str:
    """Return the torch device of a device profile: the GPU where it has one. `auto` falls back to the CPU."""
    if profile.cpu:
        return "cpu"
    if torch.cuda.is_available():
        return "cuda"
    if not profile.any:
        raise UserError(f"device {profile.name} needs CUDA, and torch sees no CUDA device here")
    return "cpu"


def base_model(config: TrialConfig, warm_key: str, devices: Sequence[torch.device]) -> CausalModel:
    """Return the base model: the cached one if it has this `warm_key` and its weights have not been moved.

    On several devices it is loaded in main memory, and divided over them.
    """
    global warm
    key = f"{warm_key} on {len(devices)}"
    if warm is None or warm.key != key or warm.dirty:
        _drop()
        precision, model, device = config.precision, config.model, devices[0]
        codes = precision if isinstance(precision, WeightOnlyPrecision) else None
        if codes is not None and codes.prepared and package.of(model) is None:
            model = prepared(config, device)
        whole = load(model, precision.dtype, device if len(devices) == 1 else "cpu", codes)
        if len(devices) > 1:
            divide(whole, devices)
        warm = Warm(key, whole)
    return warm.model


def _drop() -> None:
    """Free the cached model before the next one is loaded."""
    global warm
    if warm is None:
        return
    module, warm = weakref.ref(warm.model.module), None
    if module() is not None:  # part of a cycle, which `set_aside` may have exempted
        gc.unfreeze()
        gc.collect()


def examples(config: TrialConfig, model: CausalModel) -> EncodedSplits:
    """Return the trial's splits, encoded or from the cache."""
    length = longest_of(config, model)
    shown = config.method.kind.demonstrations
    parts = [write(part) for part in (config.task, config.prompt, config.split, config.data, config.model)]
    key = fingerprint([*parts, length, shown and [shown, config.seed]])
    if key not in _encoded:
        spec = TaskSpec.of(config.task, config.prompt.name, config.prompt.system)
        splits = load_splits(spec, config.task, config.data.dir, config.split)
        if isinstance(model, MaskedLanguageModel) != spec.objective.masked:
            raise UserError("a masked model takes a prompt with a mask, and a causal model one without", where="prompt")
        solved = [demonstration(spec, row) for row in splits.train] if shown else []
        icl = Demonstrator(spec, solved, shown, config.seed, model.tokenizer, length, front=model.front)

        def encoded(split: str, rows: Iterable[Mapping[str, Any]]) -> list[EncodedExample]:
            if shown and split != "train" and not isinstance(model, MaskedLanguageModel):
                return [icl.encode(row, split, i) for i, row in enumerate(rows)]
            return encode_rows(config, model, spec, rows)

        if len(_encoded) >= 4:
            _encoded.pop(next(iter(_encoded)))
        rows: dict[str, list[Row]] = {split: getattr(splits, split) for split in ("train", "dev", "test")}
        by_split = {split: encoded(split, of) for split, of in rows.items()}
        known = facts(spec, {split: [mark(spec, row) for row in of] for split, of in rows.items()})
        _encoded[key] = EncodedSplits(spec, **by_split, test_rows=digest_rows(spec, splits.test), facts=known)
    return _encoded[key]


def encode_rows(
    config: TrialConfig, model: CausalModel, spec: TaskSpec, rows: Iterable[Mapping[str, Any]]
) -> list[EncodedExample]:
    """Return the rows as tokens, without demonstrations."""
    length = longest_of(config, model)
    if isinstance(model, MaskedLanguageModel):
        return [encode_masked(spec, row, model.tokenizer, length) for row in rows]
    return [encode(spec, row, model.tokenizer, length, front=model.front) for row in rows]


def longest_of(config: TrialConfig, model: CausalModel) -> int:
    """Return the tokens that a row has at most."""
    return min(config.train.max_length, model.max_positions - config.space.positions)


OTHER_START = (
    "the initial values of {space} are sums over the weights, and have other last bits here than where the trial "
    "began: so have all later weights; replay it on that kind of CPU"
)


class Workbench:
    """The parts of one trial, built from its configuration."""

    def __init__(self, config: TrialConfig, warm_key: str, recorder: Recorder) -> None:
        self.config, self.warm_key, self.recorder = config, warm_key, recorder
        self.devices = [torch.device(torch_device(config.device))]
        if self.devices[0].type == "cuda" and recorder.trial.needs.gpus > 1:
            self.devices = [torch.device("cuda", i) for i in range(recorder.trial.needs.gpus)]
        self.device = self.devices[0]  # of the batches and losses
        # Scores candidates in place of the model here; None: the model does.
        self.scorer: Callable[[Sequence[EncodedExample]], Scored] | None = None
        self.began_elsewhere = False  # at initial values with other last bits than those computed here
        self._verifier: Verifier | None = None

    def load(self) -> None:
        """Load the model, and the rows if the kind has any: splits, objective (f of the steps), and evaluated.

        The last is the dialect's own objective, which dev and test losses use.
        """
        self.load_without_rows()
        if self.config.method.kind.generates:
            return
        self.splits = examples(self.config, self.model)
        every = (*self.splits.train, *self.splits.dev, *self.splits.test)
        self.recorder.measured["rows_truncated"] = float(sum(example.truncated for example in every))
        self.recorder.measured |= self.splits.facts
        if self.config.method.kind.trains:
            rows = len(self.splits.train)
            short = self.config.split.short_of(rows, len(self.splits.spec.labels))
            self.recorder.measured |= {"train_rows": float(rows), "train_rows_short": float(short)}

    def load_without_rows(self) -> None:
        """Load the model, and the objectives if the kind has rows."""
        config = self.config
        self.model = base_model(config, self.warm_key, self.devices)
        self._same_codes()
        if not config.method.kind.generates:
            self.evaluated = TaskSpec.of(config.task, config.prompt.name, config.prompt.system).objective
            name = config.train.objective
            objective: Any = self.evaluated if name == OWN else member("objective", name)()
            self.objective: Objective = objective

    def method(self) -> Method:
        """Return the engine's method, composed of the members that the trial names."""
        config = self.config
        return Method.of(config.estimator, config.perturbation, config.update, config.evaluation)

    def rates(self) -> Rates:
        """Return the learning rate of every step."""
        return self.config.update.rates(self.config.train.steps)

    def install(self, initial: Mapping[str, torch.Tensor] | None = None) -> InstalledSpace:
        """Install the trial's space on the base weights, in the format in which the method's kind trains them.

        Its parameters are at the `initial` values where it began somewhere else, otherwise at those computed here.
        Raises UserError if the space trains nothing, or the mask differs from the one that the trial began with.
        """
        assert warm is not None
        if warm.dirty:
            del self.model
            self.model = base_model(self.config, self.warm_key, self.devices)
        space = self.config.space
        if space.moves_base:
            warm.dirty = True
            if (own := self.config.method.kind.trained_in) is not None:
                for param in self.model.module.parameters():  # not the buffers: rotary frequencies stay in fp32
                    param.data = param.data.to(own.dtype)
        layers = self.model.layers_of(space)
        mask = self._mask(layers) if space.needs_gradients else None
        warm.dirty = True  # until all is well: an error midway leaves some of the layers replaced
        installed = space.install(self.model.module, layers, self.config.seed, mask)
        if not any(param.numel() for param in installed.params.values()):
            raise UserError(f"space {space.name!r} trains no parameter of this model", fix="use other space.targets")
        if initial is not None:
            for name, param in installed.params.items():
                param.data.copy_(initial[name])
        if space.starts_computed:
            here = digest(installed.params)
            self.began_elsewhere = self.recorder.began_with(ComputedInitial(fingerprint=here)) != here
            if self.began_elsewhere:
                self.recorder.say("initial", OTHER_START.format(space=space.name))
        warm.dirty = space.moves_base
        return installed

    def agreed(self, space: InstalledSpace) -> bytes:
        """Return a fingerprint of everything that leader and followers must agree on, beyond the configuration."""
        shapes = [[name, list(param.shape)] for name, param in space.params.items()]
        marks = [self.recorder.began.get(computed, "") for computed in (ComputedMask, ComputedCodes)]
        return fingerprint([*marks, shapes]).encode()

    def examples_of(self, step: int) -> list[EncodedExample]:
        """Return the rows of a step's minibatch, or of the one with this number (see `Estimator.minibatches`)."""
        assert self.config.train.batch is not None
        rows = self.splits.train
        return [rows[i] for i in indices(self.config.seed, step, len(rows), self.config.train.batch)]

    def batch(self, step: int) -> Batch:
        """Return the tensors of a step's minibatch: of right answers, or of those that a policy gradient samples."""
        examples, group = self.examples_of(step), self.config.method.kind.answers
        if not group:
            return self.collated(examples)
        examples, rewards = self._sampled(examples, step, group)
        return replace(self.collated(examples, gold_only=False), rewards=rewards.to(self.device))

    def minibatch(self, step: int) -> Batch | BatchParts:
        """Return the tensors of a step's minibatch, divided as `evaluation.parts` says."""
        parts = self.config.evaluation.parts
        if parts is None:
            return self.batch(step)
        batches = [self.collated(rows) for rows in divided(self.examples_of(step), parts)]
        return BatchParts(batches, [self.objective.terms(batch) for batch in batches])

    def collated(self, examples: Sequence[EncodedExample], *, gold_only: bool = True) -> Batch:
        """Return the tensors of a step's rows; gold_only: with right answers alone, if the objective needs no more."""
        train = self.config.train
        return collate(
            examples,
            self.model.pad_id,
            gold_only=self.objective.gold_only and gold_only,
            packed=train.packing,
            shared=self.config.prompt.shared,
            every_position=train.logits == "all",
        ).to(self.device)

    def losses(self, space: InstalledSpace) -> Callable[[int], StepObjective]:
        """Return step -> f of its minibatch: points of the space -> losses; of each direction's, if they own rows."""

        def of_step(step: int) -> StepObjective:
            if self.objective.generates:
                return partial(self.of_texts, step)
            numbers = self.config.estimator.minibatches(step)
            each = [of_batch(self.model, self.minibatch(number), self.objective.loss, space) for number in numbers]
            return each if self.config.estimator.owns_rows else each[0]

        return of_step

    def of_texts(self, step: int, points: int) -> torch.Tensor:
        """Return the objective of the answers to the step's examples at P points, [P]: rows of one generation."""
        examples, spec = self.examples_of(step), self.splits.spec
        samples = spec.kind.samples
        texts, own = self._generated(examples, self._sampler(step), samples, points), len(examples) * samples
        of_point = [
            self._rewarded(examples, texts[start : start + own], samples) for start in range(0, len(texts), own)
        ]
        pairs = [compared(spec.kind.predicts, spec, examples, answers) for answers in of_point]
        return torch.cat([self.objective.of_texts(*pair) for pair in pairs])

    def scored(self, examples: Sequence[EncodedExample]) -> Scored:
        """Score the candidates of examples with the current weights; nothing is generated."""
        if self.scorer is not None:
            return self.scorer(examples)
        return score(
            self.model,
            examples,
            self.model.pad_id,
            self.evaluated,
            self.device,
            gold_only=self.splits.spec.kind.generates,
            shared=self.config.prompt.shared,
        )

    @torch.inference_mode()
    def answers(self, examples: Sequence[EncodedExample]) -> tuple[float, ModelAnswers]:
        """Return the loss of examples, and what the model answers to them, with the current weights."""
        kind, (loss, choices, scores) = self.splits.spec.kind, self.scored(examples)
        if (n := self.config.method.kind.answers) and not self.config.method.kind.trains:
            chosen = self._best(examples, n)
        else:
            texts = self._generated(examples, self._sampler(0), kind.samples) if kind.generates else ()
            chosen = self._rewarded(examples, texts, kind.samples)
        return loss, replace(chosen, choices=choices, scores=scores)

    def score(self, examples: Sequence[EncodedExample]) -> Scores:
        """Score examples with the current weights."""
        spec = self.splits.spec
        loss, answers = self.answers(examples)
        metrics = evaluate(spec, examples, answers)
        return Scores(loss, metrics[spec.metrics[0].name], metrics, right(spec, examples, answers), leads(answers))

    def selection(self) -> tuple[str, int]:
        """Return the dev value that selects the step (loss or metric), and -1 if higher is better, otherwise 1."""
        if self.config.train.select == "loss" or self.config.method.kind.generates:
            return "loss", 1
        return "metric", -1 if self.splits.spec.metrics[0].better == "higher" else 1

    def score_dev(self) -> Scores:
        """Score the dev split."""
        return self.score(self.splits.dev)

    def largest_forward(self) -> list[EncodedExample]:
        """Return the examples of the largest forward when dev and test are scored, each by itself."""
        gold_only, shared = self.splits.spec.kind.generates, self.config.prompt.shared
        groups = [
            [examples[i] for i in group]
            for examples in (self.splits.dev, self.splits.test)
            for group in forwards(examples, gold_only, shared=shared)
        ]
        collated = partial(collate, pad_id=self.model.pad_id, gold_only=gold_only, shared=shared)
        return max(groups, key=lambda of: collated(of).input_ids.numel())

    def _best(self, examples: Sequence[EncodedExample], n: int) -> ModelAnswers:
        """Return the text of the highest reward among n of each example, in place of all its samples."""
        sampler, samples = self._sampler(0) or Sampler(self.config.seed, 0, 1.0), self.splits.spec.kind.samples
        drawn = self._rewarded(examples, self._generated(examples, sampler, n), n)
        best = [(row, max(range(n), key=rewards.__getitem__)) for row, rewards in enumerate(drawn.rewards)]
        texts = [drawn.texts[row * n + text] for row, text in best for _ in range(samples)]
        return ModelAnswers((), (), texts, [[drawn.rewards[row][text]] * samples for row, text in best])

    def _sampled(
        self, examples: Sequence[EncodedExample], step: int, group: int
    ) -> tuple[list[EncodedExample], torch.Tensor]:
        """Return examples whose candidates are answers drawn at temperature 1, and the rewards of these, [B, group]."""
        sampler, drawn = Sampler(self.config.seed, step, 1.0), defaultdict[int, list[int]](list)

        def choose(rows: Sequence[int], token: int, logits: torch.Tensor) -> torch.Tensor:
            scores = sampler(rows, token, logits)
            for row, chosen in zip(rows, scores.argmax(-1).tolist(), strict=True):
                drawn[row].append(chosen)  # the token that ends a text included
            return scores

        rewards = self._rewarded(examples, self._generated(examples, choose, group), group).rewards

        def answered(number: int, example: EncodedExample) -> EncodedExample:
            answers = [drawn[row] for row in range(number * group, (number + 1) * group)]
            texts = (EncodedCandidate((*example.prompt_ids, *answer), len(answer)) for answer in answers)
            return replace(example, candidates=tuple(texts), gold=0)

        return [answered(*one) for one in enumerate(examples)], torch.tensor(rewards)

    def _rewarded(self, examples: Sequence[EncodedExample], texts: Sequence[str], samples: int) -> ModelAnswers:
        """Return the texts generated for examples, with their rewards if the task has any; nothing else is filled in.

        Raises UserError for a text without a reward, unless that counts as 0.
        """
        kind = self.splits.spec.kind
        if not isinstance(kind, Verified):
            return ModelAnswers((), (), texts)
        if self._verifier is None:
            self._verifier = Verifier(kind.rewards, kind.seconds, kind.errors_count, self.config.members)
        rows = [example.references[0] for example in examples for _ in range(samples)]
        rewards = [self._verifier.of(row, text) for row, text in zip(rows, texts, strict=True)]
        if self._verifier.errors and self.recorder.test is None:  # later texts are generated to be measured alone
            self.recorder.measured["reward_errors"] = float(self._verifier.errors)
        starts = range(0, len(rewards), samples)
        return ModelAnswers((), (), texts, [rewards[start : start + samples] for start in starts])

    def _sampler(self, step: int) -> Choose | None:
        """Return what draws the tokens of a step's texts; None: they are the most likely ones."""
        temperature = self.splits.spec.kind.temperature
        seed = self.config.seed if "seed" in self.config.parts_used else 0  # which is no part of the trial's id
        return Sampler(seed, step, temperature) if temperature else None

    def _generated(
        self, examples: Sequence[EncodedExample], choose: Choose | None, samples: int, points: int = 1
    ) -> list[str]:
        """Generate the answers of each example in turn, up to the task's stop, or in a chat to the end of the turn.

        At several points, all answers of the first come first.

        The stop defaults to a token that is a newline (MeZO's rule). A stop of the task is searched for in the decoded
        text, as tokens may have it inside; generation itself ends early only if that stop is a single token.
        """
        spec, tokenizer = self.splits.spec, self.model.tokenizer
        stop, stop_ids, eos = spec.stop, None, [] if self.model.eos_id is None else [self.model.eos_id]
        if spec.chat:
            stop, stop_ids = "", [chat_of(tokenizer, spec.system).stop, *eos]
        elif stop not in ("", "\n"):
            last = tokenizer.encode(stop, add_special_tokens=False)[-1:]
            stop_ids = [*(last if tokenizer.decode(last) == stop else []), *eos]
        prompts = [list(example.prompt_ids) for example in examples for _ in range(samples)]
        texts = self.model.generate(prompts, spec.max_new_tokens, stop_ids, points=points, choose=choose)
        return [cut(text, stop) for text in texts]

    def _mask(self, layers: Sequence[str]) -> Found:
        """Return the first mask and the function that computes later ones. A log continues only over its own mask."""
        loaded = lambda: self.model
        plain = self._plain if self.config.precision.coded else loaded
        rows = () if self.config.space.of_text else self.splits.train
        mask, here = sensitive_mask(self.config, loaded, plain, layers, rows, self.evaluated)
        self.model = base_model(self.config, self.warm_key, self.devices)  # the same, if `_plain` was not called
        computed = ComputedMask(fingerprint=here, entries=sum(map(len, mask.masks.values())))
        if (began := self.recorder.began_with(computed)) != here:
            raise UserError(
                f"the mask computed here ({here}) differs from the one that this trial began with ({began})",
                fix="rerun the trial from its first step, or copy the mask store of the machine where it began",
            )
        return mask

    def _same_codes(self) -> None:
        """Record computed codes. A log continues only over its own: another kind of machine may compute other ones."""
        if self.model.package is None:
            return
        here = self.model.package.codes
        if (began := self.recorder.began_with(ComputedCodes(fingerprint=here))) != here:
            raise UserError(
                f"the codes here ({here}) differ from those that this trial began with ({began})",
                fix="rerun the trial from its first step, or run it from a package",
            )

    def _plain(self) -> CausalModel:
        """Return the model with the weights themselves, in place of the one that stores codes, which is freed."""
        del self.model  # the last other reference to the cached model
        _drop()
        return load(self.config.model, self.config.precision.dtype, self.device)
