"""The mask of a trial over sensitive parameters: from the machine's store, or found here from gradients."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from zo_sweeps.engine import losses, masks
from zo_sweeps.engine.batch import collate
from zo_sweeps.errors import UserError
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
    device = next(model.module.parameters()).device
    key["device"] = device.type  # gradients are rounded otherwise on another kind
    length = config["train"]["max_length"]
    if space["source"] == "text":
        samples = text_samples(config, model)
        loss, gold_only = losses.tokens, True
        key |= {"text": space["text_fingerprint"], "length": space["length"]}
    else:
        samples = list(examples[: space["samples"]])
        key |= {"task": config["task"], "prompt": config["prompt"], "split": config["split"], "max_length": length}

    def each() -> Iterator[Callable[[], Tensor]]:
        for sample in samples:
            batch = collate([sample], model.pad_id, gold_only=gold_only).to(device)
            yield lambda batch=batch: loss(losses.token_logprobs(model, batch), batch)[0]  # type: ignore[misc]

    def find(step: int) -> masks.Masks:
        weights: dict[str, Any] = {name: model.module.get_submodule(name).weight for name in modules}
        return masks.sensitive(weights, each(), space["density"], space["scope"], space["score"])

    found, mark = mask_store.get(key, lambda: find(0))
    return {"masks": found, "find": find}, mark


def text_file(config: Mapping[str, Any]) -> Path:
    """The file that `space.text` names: under data.dir, unless its path is absolute."""
    return Path(config["data"]["dir"] or ".").expanduser() / config["space"]["text"]


def text_samples(config: Mapping[str, Any], model: LanguageModel) -> list[Example]:
    """The first `samples` documents of the text that have two tokens or more, cut to `length`, each its own answer.

    Raises UserError when the file is not JSON lines with a `text`, or has too few.
    """
    space, file = config["space"], text_file(config)
    length = min(space["length"], model.max_positions)
    bos = () if model.bos_id is None else (model.bos_id,)
    found: list[Example] = []
    try:
        with file.open(encoding="utf-8") as lines:
            for line in lines:
                ids = model.tokenizer(json.loads(line)["text"], add_special_tokens=False)["input_ids"]
                ids = (*bos, *ids)[:length]
                if len(ids) > 1:
                    found.append(Example((Candidate(ids, len(ids) - 1),), 0, (), (), ""))
                if len(found) == space["samples"]:
                    return found
    except OSError as error:
        raise UserError(f"cannot read the text {file} ({error.strerror})", where="space.text") from None
    except (ValueError, KeyError, TypeError):
        raise UserError(f"{file} is not JSON lines with a key 'text'", where="space.text") from None
    raise UserError(f"{file} has {len(found)} samples", where="space.samples", fix=f"use space.samples={len(found)}")
