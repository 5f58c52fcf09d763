"""Gradients of samples: the mask of a trial over sensitive parameters, and how concentrated gradients are."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import Tensor

from zo_sweeps.core.errors import UserError
from zo_sweeps.engine import losses, masks, sensitivity
from zo_sweeps.engine.batch import collate
from zo_sweeps.methods.arch import ALL
from zo_sweeps.models import mask_store
from zo_sweeps.models.causal import LanguageModel
from zo_sweeps.tasks.encode import Candidate, Example


def sensitive_options(
    config: Mapping[str, Any],
    model: LanguageModel,
    modules: Sequence[str],
    examples: Sequence[Example],
    loss: losses.Loss,
    *,
    gold_only: bool,
) -> tuple[dict[str, Any], str]:
    """(what `engine.spaces.sensitive.install` needs besides the configuration, the first mask's fingerprint).

    Args:
        config: the trial's; `model` must hold the base weights.
        modules: the target layers.
        examples, loss, gold_only: the training split, and how a step sees it; for source `task`.

    Cost: nothing where the store has the mask; else a forward and a backward for each sample.
    """
    space = config["space"]
    key: dict[str, Any] = {name: space[name] for name in ("density", "scope", "score", "source", "samples")}
    key |= {"model": config["model"]["fingerprint"], "precision": config["precision"]["name"], "layers": list(modules)}
    key["device"] = next(model.module.parameters()).device.type  # gradients are rounded otherwise on another kind
    length = config["train"]["max_length"]
    if space["source"] == "text":
        samples = text_samples(space, config["data"]["dir"], model)
        loss, gold_only = losses.tokens, True
        key |= {"text": space["text_fingerprint"], "length": space["length"]}
    else:
        samples = list(examples[: space["samples"]])
        key |= {"task": config["task"], "prompt": config["prompt"], "split": config["split"], "max_length": length}

    def find(step: int) -> masks.Masks:
        each = _losses(model, samples, loss, gold_only=gold_only)
        return masks.sensitive(_weights(model, modules), each, space["density"], space["scope"], space["score"])

    found, mark = mask_store.get(key, lambda: find(0))
    return {"masks": found, "find": find}, mark


class Gradients:
    """The squared gradients of a trial's task while its weights move: [grad F(w)]_i^2 of every linear layer.

    Args:
        config: the trial's; its part `gradients` says on how many samples.
        examples, loss, gold_only: the training split, and how a step sees it.

    The masks whose share is told are the entries with the largest: `task_dynamic`, of the moment; `task_static` and
    `text_static`, of the task's and of the text's gradients at the first call. Source: Guo et al., 2024, Figures 2, 3,
    7 and 8. Memory: 4 bytes an entry of the linear layers, and the masks.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        model: LanguageModel,
        examples: Sequence[Example],
        loss: losses.Loss,
        *,
        gold_only: bool,
    ) -> None:
        self._config, self._model, self._loss, self._gold_only = config, model, loss, gold_only
        self._examples = list(examples[: config["gradients"]["samples"]])
        self._weights = _weights(model, list(model.target_modules([ALL])))
        self._static: dict[str, masks.Masks] = {}

    def look(self) -> dict[str, Any]:
        """The fields of an event `gradients`, with the weights as they are. Raises ArithmeticError: not finite."""
        scores = self._scores(self._examples, self._loss, gold_only=self._gold_only)
        if not self._static:
            part = self._config["gradients"]
            of_text = {"text": part["text"], "samples": part["text_samples"], "length": part["length"]}
            texts = text_samples(of_text, self._config["data"]["dir"], self._model)
            text_scores = self._scores(texts, losses.tokens, gold_only=True)
            for density in sensitivity.DENSITIES:
                self._static[f"task_static/{density:g}"] = masks.top(scores, density)
                self._static[f"text_static/{density:g}"] = masks.top(text_scores, density)
        curve = sensitivity.concentration(scores)
        held = sensitivity.concentration(scores, sensitivity.DENSITIES).mean
        covered = {f"task_dynamic/{k:g}": share for k, share in zip(sensitivity.DENSITIES, held, strict=True)}
        covered |= {name: sensitivity.covered(scores, mask) for name, mask in self._static.items()}
        return {**asdict(curve), "covered": covered}

    def _scores(self, samples: Sequence[Example], loss: losses.Loss, *, gold_only: bool) -> dict[str, Tensor]:
        each = _losses(self._model, samples, loss, gold_only=gold_only)
        return sensitivity.gradient_of_mean(self._model.module, self._weights, each)


def _losses(
    model: LanguageModel, samples: Sequence[Example], loss: losses.Loss, *, gold_only: bool
) -> Iterator[Callable[[], Tensor]]:
    device = next(model.module.parameters()).device
    for sample in samples:
        batch = collate([sample], model.pad_id, gold_only=gold_only).to(device)
        yield lambda batch=batch: loss(losses.token_logprobs(model, batch), batch)[0]  # type: ignore[misc]


def _weights(model: LanguageModel, modules: Sequence[str]) -> dict[str, Any]:
    return {name: model.module.get_submodule(name).weight for name in modules}


def text_samples(part: Mapping[str, Any], folder: str | None, model: LanguageModel) -> list[Example]:
    """The first `samples` documents of the text that have two tokens or more, cut to `length`, each its own answer.

    Args:
        part: `text` (the file: below `folder`, unless its path is absolute), `samples`, `length` (tokens).

    Raises UserError when the file is not JSON lines with a `text`, or has too few.
    """
    file = Path(folder or ".").expanduser() / part["text"]
    length = min(part["length"], model.max_positions)
    bos = () if model.bos_id is None else (model.bos_id,)
    found: list[Example] = []
    try:
        with file.open(encoding="utf-8") as lines:
            for line in lines:
                ids = model.tokenizer(json.loads(line)["text"], add_special_tokens=False)["input_ids"]
                ids = (*bos, *ids)[:length]
                if len(ids) > 1:
                    found.append(Example((Candidate(ids, len(ids) - 1),), 0, (), (), ""))
                if len(found) == part["samples"]:
                    return found
    except OSError as error:
        raise UserError(f"cannot read the text {file} ({error.strerror})", where="text") from None
    except (ValueError, KeyError, TypeError):
        raise UserError(f"{file} is not JSON lines with a key 'text'", where="text") from None
    raise UserError(f"{file} has {len(found)} samples", where="samples", fix=f"use {len(found)}")
