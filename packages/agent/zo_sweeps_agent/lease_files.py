"""The files that a trial reads, as an agent fetches them from the head: the model, the task's rows, the text."""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatch
from functools import lru_cache
from pathlib import Path

from zo_sweeps.core.errors import UserError
from zo_sweeps.core.files import folder_at, sha256_of
from zo_sweeps.methods.parts import ModelSource
from zo_sweeps.methods.trial_config import TrialConfig, texts_of
from zo_sweeps.models import identity
from zo_sweeps.models.identity import TOKENIZER_PARTS, files_of, folder_of, repo_of, revision_of
from zo_sweeps.tasks import data
from zo_sweeps.tasks import hub_rows as rows
from zo_sweeps_agent.lease_contents import SHA256, StoredFile

MODEL, DATA, HUB, ROWS = "model", "data", "hub", "rows"
LOADED = (*identity.WANTED, *TOKENIZER_PARTS)


def lease_files(config: TrialConfig) -> list[StoredFile]:
    """Return the files of a trial on this machine; tasks that come with the package are left out.

    Their paths are relative, of MODEL to `model.path`, of DATA to `data.dir`, and of HUB to the snapshot of a hub model
    that is in the cache here, for a board that cannot reach the hub. ROWS are the rows of a data set of the hub, which
    boards have no library for.

    Raises UserError for a folder or a data set that is not on this machine. Cost: one read of each, once per process.
    """
    listed: list[StoredFile] = []
    try:
        for of, name, path in _paths(config):
            stat = path.stat()
            digest = _digest(path, stat.st_size, stat.st_mtime_ns)
            listed.append(StoredFile(of, name, digest, stat.st_size, str(path), stat.st_mtime_ns))
    except OSError as error:
        what = f"an agent needs {error.filename}, which is not on the head ({error.strerror})"
        raise UserError(what, fix="copy it there, to the same path") from None
    return listed


def _paths(config: TrialConfig) -> Iterator[tuple[str, str, Path]]:
    for of, folder, path in _in_folders(config):
        yield of, path.relative_to(folder).as_posix(), path
    task = config.task
    if config.data.dir is None and task.source != "packaged" and task.hub is not None:
        for split in dict.fromkeys((task.hub.train, task.hub.test)):
            yield ROWS, rows.rows_name(split), rows.rows_file(task.hub, split, task.label_field)


def _in_folders(config: TrialConfig) -> Iterator[tuple[str, Path, Path]]:
    model = config.model
    if file := identity.gguf_file(model):
        yield MODEL, file.parent.absolute(), file.absolute()
    elif model.source in (ModelSource.LOCAL, ModelSource.DEMO):
        folder = folder_of(model).absolute()
        named = {folder / Path(path).name for path in files_of(model)}
        named |= {path for path in folder.iterdir() if any(fnmatch(path.name, one) for one in LOADED)}
        yield from ((MODEL, folder, path) for path in sorted(named) if path.is_file())
    elif model.source == ModelSource.HUB and (snapshot := identity.cached_folder(repo_of(model), revision_of(model))):
        files = (path for path in sorted(snapshot.iterdir()) if any(fnmatch(path.name, one) for one in LOADED))
        yield from ((HUB, snapshot, path) for path in files)
    if config.data.dir is None:
        return
    folder = folder_at(config.data.dir, "data.dir").absolute()
    if config.task.source != "packaged":
        yield from ((DATA, folder, Path(path).absolute()) for path in data.files_of(config.task, config.data.dir))
    yield from ((DATA, folder, folder / name) for name, _ in texts_of(config))


@lru_cache(maxsize=4096)
def _digest(path: Path, size: int, stamp: int) -> str:
    """Return the SHA-256 of a file's bytes; the hub's cache names large files by it."""
    if SHA256.fullmatch(path.resolve().name):
        return path.resolve().name
    return sha256_of(path)
