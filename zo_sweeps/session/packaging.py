"""The command line -> a package of a quantized model, for a board that neither quantizes nor finds a mask."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from zo_sweeps.config.composer import Composer
from zo_sweeps.config.schema import TRIAL_GROUPS
from zo_sweeps.core.errors import UserError
from zo_sweeps.methods import registry
from zo_sweeps.methods.trial_config import TrialConfig
from zo_sweeps.models.package import Package
from zo_sweeps.plan.availability import Places
from zo_sweeps.plan.overrides import Overrides
from zo_sweeps.plan.resolve import Resolver, Setting
from zo_sweeps.run import packages, workbench
from zo_sweeps.session.export import new_or_empty


def single(composer: Composer, made: str, of: str) -> TrialConfig:
    """Return the one configuration that a command line without a grid describes.

    Args:
        made, of: what is made of it, for messages: "a package" of one "model".

    Raises UserError for a grid, several values of an option, and keys that no member has.
    """
    if composer.command_line.grid:
        raise UserError(f"{made} is of one {of}, not of a grid", fix="leave +grid out")
    if several := next((key for key, given in composer.forced.items() if len(given) > 1), ""):
        raise UserError(f"{several} has several values", fix=f"{made} takes one of each")
    one = {key: given[0] for key, given in composer.forced.items()}
    choices = {key: value for key, value in one.items() if key in TRIAL_GROUPS}
    single = Setting(choices, {key: value for key, value in one.items() if key not in choices}, {})
    resolver = Resolver(composer)
    config = resolver.resolve(single)
    if wrong := resolver.unknown(Overrides(composer)):
        raise UserError(wrong[0])
    return config


def package(
    overrides: Sequence[str], config_dirs: Sequence[str], folder: str | Path, progress: Callable[[str, int, int], None]
) -> Package:
    """Write the package that a command line describes.

    Args:
        overrides: model, precision, and for a mask the space (or a method that chooses it); the text's data.dir.
        folder: absent or empty.
        progress: called with what is done, how many of them are, and of how many.

    Raises UserError for bad input, or a model or text that is not here; and as `zo_sweeps.run.packages.make` does.
    """
    composer = Composer(overrides, config_dirs)
    config = single(composer, "a package", "model")
    if not config.precision.coded:
        coded = [name for name, one in registry.members("precision").items() if getattr(one, "coded", False)]
        what = f"precision={config.precision.name} stores no codes"
        raise UserError(what, choices=coded, fix="set precision=NAME")
    if config.space.needs_gradients and not config.space.of_text:
        what = f"a package holds the mask of a text, and space.source is {config.space.found_from.get('source')}"
        raise UserError(what, fix="set space.source=text")
    config = Places().to_package(config)
    target = new_or_empty(Path(folder).expanduser())
    return packages.make(config, torch.device(workbench.torch_device(config.device)), target, progress)
