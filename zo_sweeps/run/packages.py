"""What is computed of a model before it trains: gradients over samples, the masks and the codes that they choose, which
a machine keeps, and the packages that go to a board.
"""

from __future__ import annotations

import json
import mmap
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import torch
from torch import Tensor, nn

from zo_sweeps.core.errors import UserError
from zo_sweeps.core.events import SquaredGradients
from zo_sweeps.core.files import Cached, cache_folder, locked, new_folder
from zo_sweeps.core.fingerprint import fingerprint
from zo_sweeps.devices.estimate import SCORES_BYTES
from zo_sweeps.devices.probe import board, jetson_profile
from zo_sweeps.engine import linear, losses, masks
from zo_sweeps.engine.batch import Batch, collate
from zo_sweeps.engine.first_order import checkpointed
from zo_sweeps.engine.layers.weight_only import WeightOnly
from zo_sweeps.engine.objectives.tokens import Tokens
from zo_sweeps.engine.spaces.sensitive import Sensitive
from zo_sweeps.methods.arch import ALL
from zo_sweeps.methods.definition import identity, write
from zo_sweeps.methods.objective import Objective
from zo_sweeps.methods.parts import Model, ModelSource
from zo_sweeps.methods.precision import WeightOnlyPrecision
from zo_sweeps.methods.space import Found
from zo_sweeps.methods.trial_config import TrialConfig
from zo_sweeps.models import load_codes, mask_store, package
from zo_sweeps.models.causal import CausalModel
from zo_sweeps.models.load import load
from zo_sweeps.tasks.encode import EncodedCandidate, EncodedExample


def zeros(shapes: Mapping[str, torch.Size], device: torch.device) -> Mapping[str, Tensor]:
    """Return zeros of these shapes, fp32, on the CPU, for sums of what `device` computes.

    They are in main memory up to SCORES_BYTES, which a plan counts, and, if the device has a memory of its own, up to
    half of the main memory that is available. Beyond that they are in a file of the cache folder. Values do not depend
    on it. Raises UserError if the file cannot be written.
    """
    shared = device.type == "cpu" or jetson_profile(board())
    room = SCORES_BYTES if shared else max(SCORES_BYTES, psutil.virtual_memory().available // 2)
    if sum(shape.numel() for shape in shapes.values()) * 4 <= room:
        return {name: torch.zeros(shape) for name, shape in shapes.items()}
    return Mapped(shapes, cache_folder())


class Mapped(Mapping[str, Tensor]):
    """Tensors of zeros, fp32, in a nameless file that is mapped into memory and ends with the object.

    The system keeps as much of the file in memory as is free, and may write any of it back. Only the tensor that was
    accessed last is resident in this process, so that the others count neither as its memory nor in `MemoryMeter`.

    Raises UserError if the folder cannot be written, or the disk has no room.
    """

    def __init__(self, shapes: Mapping[str, torch.Size], folder: Path) -> None:
        page, size = mmap.ALLOCATIONGRANULARITY, 0
        self._shapes, self._spans, self._last = dict(shapes), {}, ""
        for name, shape in shapes.items():
            length = -(-4 * shape.numel() // page) * page
            self._spans[name] = size, length
            size += length
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder) as file:
                os.posix_fallocate(file.fileno(), 0, size)  # a full disk is an error here, and a signal later
                self._map = mmap.mmap(file.fileno(), size)
        except OSError as error:
            what = f"cannot store {size / 1e9:.1f} GB of squared gradients ({error.strerror})"
            raise UserError(what, where=str(folder), fix="set ZO_SWEEPS_CACHE to a folder on a larger disk") from None

    def __getitem__(self, name: str) -> Tensor:
        if self._last not in ("", name):
            self._map.madvise(mmap.MADV_DONTNEED, *self._spans[self._last])
        self._last, shape = name, self._shapes[name]
        start, _ = self._spans[name]
        return torch.frombuffer(self._map, dtype=torch.float32, count=shape.numel(), offset=start).view(shape)

    def __iter__(self) -> Iterator[str]:
        return iter(self._shapes)

    def __len__(self) -> int:
        return len(self._shapes)


def sensitive_mask(
    config: TrialConfig,
    loaded: Callable[[], CausalModel],
    plain: Callable[[], CausalModel],
    layers: Sequence[str],
    examples: Sequence[EncodedExample],
    objective: Objective,
    *,
    scores: Mapping[str, Tensor] | None = None,
    taken: Callable[[int], None] = lambda done: None,
) -> tuple[Found, str]:
    """Return (the first mask of a `Sensitive` space and the function that computes later ones, its fingerprint).

    Args:
        loaded: returns the model, which holds the base weights or their codes.
        plain: returns the model with the base weights themselves, as codes have no gradients; it may take the place of
            the one that `loaded` returns. Called only if the store has no mask.
        layers: qualified names of the target layers.
        examples, objective: the training split and f, used if the source is `task`.
        scores: the mean squared gradients of the same samples, if they are known.
        taken: called before each sample's gradients are taken, with the number of those already taken.

    A package brings its own mask, and neither text nor gradients are needed (the planner compares the settings). Cost:
    none if the store has the mask; otherwise two forwards and one backward per sample. Memory: see
    `devices.estimate.finding_memory`.
    """
    space, model = config.space, loaded()
    assert isinstance(space, Sensitive)
    if model.package is not None and model.package.contents.mask:
        stored = model.package.mask()
        return Found(stored.masks, stored.values), stored.fingerprint
    key: dict[str, Any] = dict(space.found_from)
    key |= {"model": config.model.fingerprint, "precision": config.precision.format.torch_name, "layers": list(layers)}
    key["device"] = _device(model).type  # gradients round differently on another kind
    if space.of_text:
        samples = text_samples(space.text, space.samples, space.length, config.data.dir, model)
        objective = Tokens()
        key["text"] = config.data.text_fingerprint
    else:
        samples = list(examples[: space.samples])
        key |= {"task": config.task.in_dialect(config.prompt.name), "max_length": config.train.max_length}
        key["split"] = identity(config.split)
        if config.prompt.system:
            key["system"] = config.prompt.system
    del model  # so that `plain` can free it

    def find(step: int) -> mask_store.StoredMask:
        source = plain()
        weights = _weights(source, layers)
        if scores is not None:
            found = masks.top(masks.Lazily(weights, scores.__getitem__), space.density, space.scope)
        else:
            each = _losses(source, samples, objective, taken)
            with checkpointed(source.blocks):
                found = masks.sensitive(weights, each, space.density, space.scope, space.score, _zeros(source))
        return mask_store.StoredMask(found, {name: weights[name].detach().view(-1)[i] for name, i in found.items()})

    first = mask_store.get(key, lambda: find(0))
    return Found(first.masks, first.values, lambda step: find(step).masks), first.fingerprint


class GradientMeter:
    """The squared gradients of a trial's task during training: [grad F(w)]_i^2 of every linear layer.

    Reported are the shares of three masks, each the largest entries of one squared gradient: `task_dynamic`, of the
    task's at this call; `task_static` and `text_static`, of the task's and the text's at the first call. Source: Guo et
    al., 2024, Figures 2, 3, 7 and 8. Memory: the masks, and 4 bytes per entry of the linear layers, twice at the first
    call, off the device (`zeros`).
    """

    def __init__(
        self, config: TrialConfig, model: CausalModel, examples: Sequence[EncodedExample], objective: Objective
    ) -> None:
        self._config, self._model, self._objective = config, model, objective
        self._examples = list(examples[: config.gradients.samples])
        self._weights = _weights(model, list(model.target_modules([ALL])))
        self._static: dict[str, masks.Masks] = {}

    def measure(self, step: int) -> SquaredGradients:
        """Return the squared gradients after a step. Raises ArithmeticError if a gradient is not finite."""
        scores = self._scores(self._examples, self._objective)
        if not self._static:
            part, folder = self._config.gradients, self._config.data.dir
            texts = text_samples(part.text, part.text_samples, part.length, folder, self._model)
            text_scores = self._scores(texts, Tokens())
            for density in masks.DENSITIES:
                self._static[f"task_static/{density:g}"] = masks.top(scores, density)
                self._static[f"text_static/{density:g}"] = masks.top(text_scores, density)
        curve = masks.concentration(scores)
        held = masks.concentration(scores, masks.DENSITIES).mean
        covered = {f"task_dynamic/{k:g}": share for k, share in zip(masks.DENSITIES, held, strict=True)}
        covered |= {name: masks.covered(scores, mask) for name, mask in self._static.items()}
        return SquaredGradients(step=step, **asdict(curve), covered=covered)

    def _scores(self, samples: Sequence[EncodedExample], objective: Objective) -> Mapping[str, Tensor]:
        model, each = self._model, _losses(self._model, samples, objective)
        with checkpointed(model.blocks):
            return masks.gradient_of_mean(model.module, self._weights, each, _zeros(model))


def _zeros(model: CausalModel) -> masks.Zeros:
    return partial(zeros, device=_device(model))


def _device(model: CausalModel) -> torch.device:
    return next(model.module.parameters()).device


def _losses(
    model: CausalModel,
    samples: Sequence[EncodedExample],
    objective: Objective,
    taken: Callable[[int], None] = lambda done: None,
) -> Iterator[Callable[[], Tensor]]:
    device = _device(model)
    for done, sample in enumerate(samples):
        taken(done)
        batch = collate([sample], model.pad_id, gold_only=objective.gold_only).to(device)
        yield partial(_loss, model, batch, objective)


def _loss(model: CausalModel, batch: Batch, objective: Objective) -> Tensor:
    return objective.loss(losses.token_logprobs(model, batch), batch)[0]


def _weights(model: CausalModel, modules: Sequence[str]) -> dict[str, Any]:
    return {name: model.module.get_submodule(name).weight for name in modules}


def text_samples(text: str, samples: int, length: int, folder: str | None, model: CausalModel) -> list[EncodedExample]:
    """Return the first `samples` documents, of two tokens or more, of the file `text` below `folder`.

    They are truncated to `length` tokens, and all tokens but the first are the answer. Raises UserError if the file is
    not JSON lines with a `text`, or has too few such documents.
    """
    file = Path(folder or ".").expanduser() / text
    length = min(length, model.max_positions)
    documents: list[EncodedExample] = []
    try:
        with file.open(encoding="utf-8") as lines:
            for line in lines:
                ids = model.tokenizer(json.loads(line)["text"], add_special_tokens=False)["input_ids"]
                ids = (*model.front, *ids)[:length]
                if len(ids) > 1:
                    documents.append(EncodedExample((EncodedCandidate(ids, len(ids) - 1),), 0, (), (), ""))
                if len(documents) == samples:
                    return documents
    except OSError as error:
        raise UserError(f"cannot read the text {file} ({error.strerror})", where="text") from None
    except (ValueError, KeyError, TypeError):
        raise UserError(f"{file} is not JSON lines with a key 'text'", where="text") from None
    raise UserError(f"{file} has only {len(documents)} samples", where="samples", fix=f"use {len(documents)}")


Progress = Callable[[str, int, int], None]  # what is done, how many of them are, of how many


def silent(what: str, done: int, total: int) -> None:
    """Show nothing."""


def prepared(
    config: TrialConfig,
    device: torch.device,
    progress: Progress = silent,
    keep: Callable[[Mapping[str, Tensor]], None] = lambda sensitivities: None,
) -> Model:
    """Return a trial's model as a package, from this machine's store; compute it if the store has none, or a damaged.

    `keep` is called with the sensitivities that codes were computed with. Concurrent trials wait for the one that
    computes it. Raises UserError if the store cannot be written. Cost: none if the store has it; else as `_build`.
    """
    precision = config.precision
    key = {"model": config.model.fingerprint, "precision": identity(precision), "device": device.type}
    key["text"] = config.data.text_fingerprint if precision.of_text else ""
    folder = _folder() / fingerprint(key)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with locked(folder.with_suffix(".lock")):
            if not _is_whole(folder):
                shutil.rmtree(folder, ignore_errors=True)
                with new_folder(folder, alone=True) as part:
                    keep(_build(config, device, part, progress))
    except OSError as error:
        fix = "set ZO_SWEEPS_CACHE to a writable folder with room for the model"
        raise UserError(f"cannot store codes ({error.strerror or error})", where=str(folder), fix=fix) from None
    return replace(config.model, source=ModelSource.LOCAL, path=str(folder))


def stored() -> Iterator[Cached]:
    """Iterate over this machine's packages by the fingerprints of their codes; no code is read."""
    for folder in sorted(path for path in _folder().glob("*") if path.suffix == "" and path.is_dir()):
        with suppress(UserError):  # damaged: `prepared` computes it again
            if (found := package.read(folder)) is not None:
                here = folder.relative_to(cache_folder())
                files = tuple(here / name for name in (package.FILE, *found.contents.files))
                yield Cached("codes", found.codes, files, here.with_suffix(".lock"), folder=True)


def _folder() -> Path:
    return cache_folder() / "codes"


def make(config: TrialConfig, device: torch.device, folder: Path, progress: Progress = silent) -> package.Package:
    """Write the model of a configuration that stores codes as a package, with its space's mask if found on a text.

    The folder, absent or empty, appears whole or not at all. Raises UserError if it cannot be written. Cost: as
    `prepared`, and as `sensitive_mask` for a mask, whose gradients are those of the codes if both are of the same
    samples.
    """
    precision, space = config.precision, config.space
    assert isinstance(precision, WeightOnlyPrecision)
    known: list[Mapping[str, Tensor]] = []
    try:
        with new_folder(folder) as part:
            if precision.prepared:
                source = prepared(config, device, progress, known.append).path
                assert source is not None
                shutil.copytree(source, part, dirs_exist_ok=True)
            else:
                _build(config, device, part, progress)
            if space.needs_gradients and config.method.kind.trains:
                model = load(config.model, precision.dtype, device)
                layers, plain = model.layers_of(space), lambda: model
                settings: Any = space  # the samples are of the member itself
                scores = known[0] if known and _same_samples(precision, settings) else None
                taken = lambda done: progress("gradients for the mask", done, settings.samples)
                mask, _ = sensitive_mask(config, plain, plain, layers, (), Tokens(), scores=scores, taken=taken)
                found_from = write({"targets": space.layers, **space.found_from})
                package.add_mask(
                    part, mask_store.StoredMask(mask.masks, mask.values), found_from, config.data.text_fingerprint
                )
    except OSError as error:
        raise UserError(f"cannot write {folder}: {error.strerror or error}") from None
    made = package.read(folder)
    assert made is not None
    return made


def _same_samples(precision: Any, space: Any) -> bool:
    """Return whether the codes were computed with the scores that a mask ranks."""
    samples = [(one.of_text, one.samples, one.length) for one in (precision, space)]
    return samples[0] == samples[1] and space.score == "fisher"


def write_trained(config: TrialConfig, model: CausalModel, folder: Path) -> None:
    """Write a model whose installed space trains codes, scales or entries as a package without a mask.

    transformers takes the model for a plain one afterwards. The folder, absent or empty, appears whole or not at all.
    """
    load_codes.forget(model.module)
    codes = ((name, layer.stored()) for name, layer in _coded(model.module))
    text = config.data.text_fingerprint if config.precision.of_text else ""
    with new_folder(folder) as part:
        package.write(part, model, codes, config.precision, config.model.fingerprint, text)


@torch.no_grad()
def decode(module: nn.Module) -> None:
    """Put plain projections with the decoded weights in place of those that are stored as codes.

    Memory: the plain weights, in the dtype of decoded values.
    """
    load_codes.forget(module)
    for name, layer in _coded(module):
        weight = nn.Parameter(linear.as_stored(layer), requires_grad=False)
        module.set_submodule(name, load_codes.plain(weight, layer.bias, layer.transposed))


def _coded(module: nn.Module) -> list[tuple[str, WeightOnly]]:
    return [(name, layer) for name, layer in module.named_modules() if isinstance(layer, WeightOnly)]


def _is_whole(folder: Path) -> bool:
    try:
        if (stored := package.read(folder)) is not None:
            stored.verify()
    except UserError:
        return False
    return stored is not None


def _build(config: TrialConfig, device: torch.device, folder: Path, progress: Progress) -> Mapping[str, Tensor]:
    """Write the computed codes of a trial's model into an empty folder; return the sensitivities used, by layer.

    Cost: the encoding; if `of_text`, a forward and a backward per sample. Memory: the plain weights, and if `of_text`
    `masks.squared_gradients`.
    """
    precision = config.precision
    assert isinstance(precision, WeightOnlyPrecision)
    model = load(config.model, precision.dtype, device)
    layers = model.target_modules([ALL])
    sensitivities: Mapping[str, Tensor] = {}
    if precision.of_text:
        options: Any = precision  # the samples are of the member itself
        texts = text_samples(precision.of_text, options.samples, options.length, config.data.dir, model)
        each = _losses(model, texts, Tokens(), lambda done: progress("gradients", done, len(texts)))
        with checkpointed(model.blocks):
            sensitivities = masks.squared_gradients(_weights(model, list(layers)), each, zeros=_zeros(model))

    def codes() -> Iterator[package.Codes]:
        for done, (name, layer) in enumerate(layers.items()):
            progress("layers quantized", done, len(layers))
            weight: Any = layer.weight
            stored: Any = precision.stored(layer, weight.detach(), sensitivities.get(name))
            yield name, stored.codes.state_dict()

    text = config.data.text_fingerprint if precision.of_text else ""
    package.write(folder, model, codes(), precision, config.model.fingerprint, text)
    return sensitivities
