"""Packages made here: codes that are computed once per machine, and the folder that goes to a board."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from zo_sweeps.core.errors import UserError
from zo_sweeps.core.files import Cached, cache_folder, locked, new_folder
from zo_sweeps.core.fingerprint import fingerprint
from zo_sweeps.engine import linear
from zo_sweeps.engine.layers.weight_only import WeightOnly
from zo_sweeps.engine.objectives.tokens import Tokens
from zo_sweeps.methods.arch import ALL
from zo_sweeps.methods.definition import identity, write
from zo_sweeps.methods.parts import Model, ModelSource
from zo_sweeps.methods.precision import WeightOnlyPrecision
from zo_sweeps.methods.trial_config import TrialConfig
from zo_sweeps.models import load_codes, package
from zo_sweeps.models.causal import CausalModel
from zo_sweeps.models.load import load
from zo_sweeps.models.mask_store import StoredMask
from zo_sweeps.run.gradients import sensitive_mask, text_samples, text_sensitivities

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
                with new_folder(folder) as part:
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
                layers, plain = list(model.target_modules(space.layers)), lambda: model
                settings: Any = space  # the samples are of the member itself
                scores = known[0] if known and _same_samples(precision, settings) else None
                taken = lambda done: progress("gradients for the mask", done, settings.samples)
                mask, _ = sensitive_mask(config, plain, plain, layers, (), Tokens(), scores=scores, taken=taken)
                found_from = write({"targets": space.layers, **space.found_from})
                package.add_mask(part, StoredMask(mask.masks, mask.values), found_from, config.data.text_fingerprint)
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
        sensitivities = text_sensitivities(
            model, list(layers), texts, lambda done: progress("gradients", done, len(texts))
        )

    def codes() -> Iterator[package.Codes]:
        for done, (name, layer) in enumerate(layers.items()):
            progress("layers quantized", done, len(layers))
            weight: Any = layer.weight
            stored: Any = precision.stored(layer, weight.detach(), sensitivities.get(name))
            yield name, stored.codes.state_dict()

    text = config.data.text_fingerprint if precision.of_text else ""
    package.write(folder, model, codes(), precision, config.model.fingerprint, text)
    return sensitivities
