"""What a trial is worked on with: its model, splits, space, method, batches, and how a split is scored."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch

from zo_sweeps.core.errors import UserError
from zo_sweeps.core.fingerprint import fingerprint
from zo_sweeps.engine.batch import Batch, collate
from zo_sweeps.engine.data import indices
from zo_sweeps.engine.evaluate import Objective as Losses
from zo_sweeps.engine.in_place import InPlace
from zo_sweeps.engine.score import score
from zo_sweeps.engine.step import Method
from zo_sweeps.engine.train import Scores, of_batch
from zo_sweeps.methods.evaluation import Restore
from zo_sweeps.methods.objective import OWN, Objective
from zo_sweeps.methods.registry import member
from zo_sweeps.methods.schedule import Rates
from zo_sweeps.methods.space import Found, InstalledSpace
from zo_sweeps.methods.trial_config import TrialConfig
from zo_sweeps.run import cache
from zo_sweeps.run.gradients import sensitive_mask
from zo_sweeps.run.recorder import Recorder
from zo_sweeps.tasks.encode import Example
from zo_sweeps.tasks.scoring import Answers, cut, evaluate


class Workbench:
    """The parts of one trial, made from its configuration.

    Args:
        recorder: keeps the fingerprint of the mask that the trial began with.

    Attributes:
        model: the base model, once `load` was called.
        splits: the encoded rows; absent for kinds without rows.
        objective: f of training steps. evaluated: the dialect's own, which dev and test losses are of.
    """

    def __init__(self, config: TrialConfig, warm_key: str, recorder: Recorder) -> None:
        self.config, self.warm_key, self.recorder = config, warm_key, recorder
        self.device = torch.device(cache.torch_device(config.device))

    def load(self) -> None:
        """Load the model, and the rows where the kind has any."""
        self.model = cache.base_model(self.config, self.warm_key, self.device)
        if self.config.method.kind.generates:
            return
        self.splits = cache.examples(self.config, self.model)
        self.evaluated = self.splits.spec.objective
        self.objective = _objective(self.config.train.objective, self.evaluated)

    def method(self) -> Method:
        """Return the members of the trial's axes as the engine's method."""
        config = self.config
        in_place = InPlace() if config.evaluation.restore is Restore.IN_PLACE else None
        return Method(config.estimator, config.perturbation, config.update, config.evaluation.mode, in_place)

    def rates(self) -> Rates:
        """Return step -> learning rate."""
        return self.config.update.rates(self.config.train.steps)

    def install(self) -> InstalledSpace:
        """Install the trial's space on the base weights, in fp32 where these are trained by backpropagation.

        Raises UserError for a space that finds no layer, or another mask than the one that the trial began with.
        """
        assert cache.warm is not None
        if cache.warm.dirty:
            del self.model
            self.model = cache.base_model(self.config, self.warm_key, self.device)
        space = self.config.space
        if space.moves_base:
            cache.warm.dirty = True
            if self.config.method.kind.backpropagates:
                self.model.module.float()
        layers = list(self.model.target_modules(space.layers)) if space.layers else []
        mask = self._mask(layers) if space.needs_gradients else None
        return space.install(self.model.module, layers, self.config.seed, mask)

    def agreed(self, space: InstalledSpace) -> bytes:
        """Return what leader and followers must agree on, beyond the configuration."""
        shapes = [[name, list(param.shape)] for name, param in space.params.items()]
        return fingerprint([self.recorder.mask, shapes]).encode()

    def examples_of(self, step: int) -> list[Example]:
        """Return the rows of a step's minibatch."""
        assert self.config.train.batch is not None
        rows = self.splits.train
        return [rows[i] for i in indices(self.config.seed, step, len(rows), self.config.train.batch)]

    def batch(self, step: int) -> Batch:
        """Return the tensors of a step's minibatch."""
        rows = self.examples_of(step)
        return collate(rows, self.model.pad_id, gold_only=self.objective.gold_only).to(self.device)

    def losses(self, step: int) -> Losses:
        """Return f of a step's minibatch: points -> losses."""
        if self.objective.generates:
            return partial(self.of_texts, step)
        return of_batch(self.model, self.batch(step), self.objective.loss)

    def of_texts(self, step: int, points: int) -> torch.Tensor:
        """Return the objective of the answers generated to the step's examples, [1]."""
        examples = self.examples_of(step)
        return self.objective.of_texts(self._generated(examples), [example.references for example in examples])

    @torch.inference_mode()
    def score(self, examples: Sequence[Example]) -> Scores:
        """Score rows with the weights as they are."""
        spec = self.splits.spec
        generates = spec.kind.generates
        loss, choices, scores = score(
            self.model, examples, self.model.pad_id, self.evaluated.loss, self.device, gold_only=generates
        )
        texts = self._generated(examples) if generates else ()
        metrics = evaluate(spec, examples, Answers(choices, scores, texts))
        return Scores(loss, metrics[spec.metrics[0].name], metrics)

    def select(self) -> tuple[str, int]:
        """Return what selects the step (loss or metric), and 1 where low values are better, -1 where high ones are."""
        if self.config.train.select == "loss" or self.config.method.kind.generates:
            return "loss", 1
        return "metric", -1 if self.splits.spec.metrics[0].better == "higher" else 1

    def score_dev(self) -> Scores:
        """Score dev."""
        return self.score(self.splits.dev)

    def _generated(self, examples: Sequence[Example]) -> list[str]:
        """Generate the answers to `examples`, up to the task's stop.

        A task without a stop of its own ends them at a newline (MeZO's rule). Another stop is looked for in the decoded
        text; generation itself ends early only where that stop is one token.
        """
        spec, tokenizer, stop_ids = self.splits.spec, self.model.tokenizer, None
        if spec.stop not in ("", "\n"):
            last = tokenizer.encode(spec.stop, add_special_tokens=False)[-1:]
            own = last if tokenizer.decode(last) == spec.stop else []
            stop_ids = [*own, *([] if self.model.eos_id is None else [self.model.eos_id])]
        texts = self.model.generate([list(e.prompt_ids) for e in examples], spec.max_new_tokens, stop_ids)
        return texts if stop_ids is None else [cut(text, spec.stop) for text in texts]

    def _mask(self, layers: Sequence[str]) -> Found:
        """Return the mask of the trial, and how to find others. A log goes on only over the mask that it began with."""
        recorder = self.recorder
        mask, mark = sensitive_mask(self.config, self.model, layers, self.splits.train, self.evaluated)
        if recorder.mask not in ("", mark):
            raise UserError(
                f"the mask found here ({mark}) is not the one this trial began with ({recorder.mask})",
                fix="run the trial again from its first step, or give this machine the other's mask store",
            )
        if not recorder.mask:
            recorder.mask = mark
            recorder.emit("mask", fingerprint=mark, entries=sum(map(len, mask.masks.values())))
        return mask


def _objective(name: str, own: Objective) -> Objective:
    """Return the objective that `train.objective` names: "loss" is the dialect's own."""
    if name == OWN:
        return own
    made = member("objective", name)()
    assert isinstance(made, Objective)
    return made
