"""A Trainer of transformers whose steps are zeroth-order: forwards alone, and a run that is its log."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Trainer

from zo_sweeps.core.errors import UserError
from zo_sweeps.core.files import replace_text
from zo_sweeps.engine.layers.sparse import Sparse
from zo_sweeps.models import adapters
from zo_sweeps.session.optimizer import Optimizer

LOG, SCHEDULE = "run.jsonl", "schedule.json"  # in every checkpoint


class ZOTrainer(Trainer):
    """A `transformers.Trainer` that takes the steps of a named zeroth-order method, by `zo_sweeps.Optimizer`.

    TrainingArguments keep their meaning: a step's minibatch has `per_device_train_batch_size` times
    `gradient_accumulation_steps` rows, `learning_rate` and its schedule are the method's, `seed` also that of its
    directions. What concerns gradients (`optim` and its options, `max_grad_norm`) has no effect. The model is in eval
    mode: dropout would differ from point to point.

    Args:
        args, kwargs: Trainer's.
        method: a name in conf/method, such as mezo, lozo or prge.
        options: the method's options, as for `Optimizer`. With several points in a forward (prge), the model's loss is
            computed for each group of rows; `{"mode": "sequential"}` forwards them one after the other.
        config_dirs: folders with methods and members of your own, as --config-dir.

    A checkpoint holds what Trainer's does, but the log, `run.jsonl`, in place of the optimizer's state; where the
    method trains an adapter of its own (prge), that alone, in PEFT format. `train(resume_from_checkpoint=...)` replays
    the log over the weights that the model was loaded with, bit for bit and without a forward; `zo_sweeps.replay` does
    so without a Trainer.

    Raises UserError for several devices and for weight decay; in `train`, as `Optimizer` does. Cost of a step: the
    method's forwards.
    """

    model: Any  # of these, Trainer's own types allow None, and each of many classes
    optimizer: Any
    lr_scheduler: Any
    processing_class: Any

    def __init__(
        self,
        *args: Any,
        method: str = "mezo",
        options: Mapping[str, Any] | None = None,
        config_dirs: Sequence[str | Path] = (),
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        devices = max(self.args.world_size, self.args.n_gpu)
        if devices > 1:
            what = f"each of {devices} devices would take steps of its own"
            raise UserError(what, where="ZOTrainer", fix="start one process, with CUDA_VISIBLE_DEVICES=0")
        if self.args.weight_decay:
            what = f"weight_decay={self.args.weight_decay} is no part of a zeroth-order step"
            raise UserError(what, where="TrainingArguments", fix="leave it out")
        if self.optimizer is not None:
            raise UserError("the steps are the method's, and no given optimizer's", where="ZOTrainer", fix="omit it")
        if getattr(self.accelerator, "scaler", None) is not None:  # of gradients, which there are none of
            self.accelerator.scaler = torch.amp.GradScaler(enabled=False)
        self._given = {"method": method, "config_dirs": config_dirs, **(options or {})}
        self._log: Path | None = None  # of the checkpoint to go on from
        self._held: list[dict[str, Any]] = []  # minibatches of the step that begins

    @property
    def zo(self) -> Optimizer:
        """The optimizer: its log, its last losses, its space."""
        opt: Optimizer = getattr(self.optimizer, "optimizer", self.optimizer)  # accelerate wraps it
        return opt

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """Train as Trainer does; a step that an earlier call did not end is begun again."""
        self._held, self._log = [], None
        return super().train(*args, **kwargs)

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        """Make the method's optimizer; where a run is resumed, after the steps of its log."""
        if self.optimizer is None:
            given = {"lr": self.args.learning_rate, "seed": self.args.seed, **self._given}
            self.optimizer = _Stepped(self.model, **given)
            if self._log is not None:
                self.optimizer.load(self._log)
        return self.zo

    def training_step(
        self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Tensor | int | None = None
    ) -> Tensor:
        """Hold the minibatch, and with the last one of a step take the step; return its loss, else 0."""
        self._held.append(self._prepare_inputs(inputs))
        if not self.accelerator.sync_gradients:
            return torch.zeros((), device=self.args.device)
        model.eval()
        batches, self._held = self._held, []
        loss = self.zo.step(lambda points: self._losses(batches, num_items_in_batch, points))
        return torch.tensor(loss, device=self.args.device)

    def _losses(self, batches: Sequence[dict[str, Any]], items: Tensor | int | None, points: int) -> Tensor:
        """Return the losses [P] of a step's minibatches, whose rows stand P times in a forward."""
        summed = self.compute_loss_func is not None or (self.model_accepts_loss_kwargs and items is not None)
        said = getattr(self, "loss_is_scaled_for_ga", None)  # of a loss that a subclass computes
        with self.compute_loss_context_manager():
            if points == 1:
                one_loss: Any = self.compute_loss
                losses = [one_loss(self.model, {**one}, num_items_in_batch=items) for one in batches]
            else:
                losses = [self._of_groups(one, items if summed else None, points) for one in batches]
        total = torch.stack(losses).float().sum(0)
        return total if (summed if said is None else said) else total / len(batches)

    def _of_groups(self, batch: Mapping[str, Any], items: Tensor | int | None, points: int) -> Tensor:
        loss_of = getattr(self.model, "loss_function", None)
        own = self.compute_loss_func or self.label_smoother or type(self).compute_loss is not Trainer.compute_loss
        if loss_of is None or own or "labels" not in batch or not _takes_logits(loss_of):
            what = "several points in a forward need the model's own loss of logits and labels"
            raise UserError(what, where="ZOTrainer", fix='options={"mode": "sequential"}')
        rows = {key: value.repeat(points, *[1] * (value.dim() - 1)) for key, value in batch.items() if key != "labels"}
        logits, width = self.model(**rows).logits, self.model.config.get_text_config().vocab_size
        given = {} if items is None else {"num_items_in_batch": items}
        return torch.stack([loss_of(one, batch["labels"], vocab_size=width, **given) for one in logits.chunk(points)])

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Log as Trainer does, but no norm of a gradient that nobody computed."""
        super().log({key: value for key, value in logs.items() if key != "grad_norm"}, *args, **kwargs)

    # What a checkpoint holds. Trainer has no other seams for it than these methods.
    def _save(self, output_dir: str | None = None, state_dict: dict[str, Tensor] | None = None) -> None:
        if not self._trains_an_adapter():
            return super()._save(output_dir, state_dict)
        folder, definition = str(output_dir or self.args.output_dir), self.zo.definition
        adapters.save(self.zo.space, definition, folder, module=self.model, base=self.model.name_or_path)
        if self.processing_class is not None:
            self.processing_class.save_pretrained(folder)

    def _trains_an_adapter(self) -> bool:
        return self.optimizer is not None and self.zo.definition.adapter is not None

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        self.zo.save(Path(output_dir) / LOG)
        replace_text(Path(output_dir) / SCHEDULE, json.dumps(self.lr_scheduler.state_dict()))

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        if self.optimizer is not None and self.zo.log:
            what = "the model has taken steps, and a run goes on from the weights where it began"
            raise UserError(what, where="ZOTrainer", fix="load the model again, and make a new ZOTrainer")
        self._log = Path(resume_from_checkpoint) / LOG
        if self.optimizer is not None:
            self.zo.load(self._log)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint is not None:
            self.lr_scheduler.load_state_dict(json.loads((Path(checkpoint) / SCHEDULE).read_text()))
            (self.zo.param_groups[0]["lr"],) = self.lr_scheduler.get_last_lr()  # the log ends with the last step's

    def _load_best_model(self) -> None:
        if not self._trains_an_adapter():
            super()._load_best_model()
            for layer in self.zo.space.layers.values() if isinstance(self.zo.space, Sparse) else ():
                layer.param.data.copy_(layer.place.read(layer.index))
            return
        adapters.load(self.zo.space, self.zo.definition, str(self.state.best_model_checkpoint))


def _takes_logits(loss_of: Callable[..., Tensor]) -> bool:
    """Return whether a model's loss needs no more than what `_of_groups` gives it."""
    needed = {p.name for p in signature(loss_of).parameters.values() if p.default is p.empty and p.kind < p.VAR_KEYWORD}
    return needed <= {"logits", "labels", "vocab_size"}


class _Stepped(Optimizer):
    """Takes its steps in `training_step`; Trainer calls `step` once more, without a closure, for its scheduler."""

    def step(self, closure: Any = None) -> Any:
        return None if closure is None else super().step(closure)
