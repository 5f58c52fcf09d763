"""Data sets of the Hugging Face hub: availability and rows. `datasets` is imported only to load them."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import threading
import urllib.request
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from zo_sweeps.core.errors import UserError
from zo_sweeps.core.files import cache_folder, read_objects
from zo_sweeps.core.fingerprint import fingerprint
from zo_sweeps.methods.task import Hub

_TIMEOUT = 3.0  # seconds


def label(hub: Hub) -> str:
    """Return hf:path/name, or hf:path for a data set with one configuration."""
    return "hf:" + "/".join(filter(None, (hub.path, hub.name)))


def unreachable(hub: Hub) -> str:
    """Return the reason why the data set cannot be loaded here; "" if it can. Cost: at most 3 s, once per process."""
    # Without a network, `datasets` falls back to its prepared copy; files in the hub cache are not enough.
    if Path(hub.path).is_dir() or any(_prepared(hub)):
        return ""
    set_to = (os.environ.get("HF_HUB_OFFLINE", ""), os.environ.get("HF_DATASETS_OFFLINE", ""))
    if any(value.upper() in {"1", "ON", "YES", "TRUE"} for value in set_to):
        offline = "HF_DATASETS_OFFLINE or HF_HUB_OFFLINE is set"
        return f"{label(hub)} is not in the datasets cache ({_cache()}) and {offline}"
    endpoint = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
    if not _reaches(endpoint):
        return f"{label(hub)} is not in the datasets cache ({_cache()}) and {endpoint} cannot be reached"
    return ""


def load(hub: Hub, split: str, label_field: str) -> Any:
    """Return the rows of a split, by index, without those whose label is `hub.unlabelled` (-1 in SNLI).

    Raises UserError if it cannot be loaded.
    """
    if (file := Path(hub.path) / rows_name(split)).is_file():
        return [row for row, _ in read_objects(file)]
    import datasets

    try:
        dataset = datasets.load_dataset(hub.path, hub.name, split=split)
        if hub.unlabelled is not None:
            labels = dataset[hub.rename.get(label_field, label_field)]
            keep = [i for i, label in enumerate(labels) if label != hub.unlabelled]
            return dataset.select(keep)
        return dataset
    except Exception as error:  # datasets, huggingface_hub and httpx each raise their own
        cause = error.__cause__ or error  # the outer error often says only "an error occurred"
        reason = str(cause).partition("\n")[0]
        raise UserError(f"cannot load {label(hub)}, split {split!r} ({type(cause).__name__}: {reason})") from error


def rows_name(split: str) -> str:
    """Return the name of the file with a split's rows in a folder that stands for a data set: see `rows_file`."""
    return f"zo-rows-{fingerprint(split)}.jsonl"


def rows_file(hub: Hub, split: str, label_field: str) -> Path:
    """Return a file with the rows that `load` returns, as JSON lines, for machines without `datasets` or a network.

    A Hub whose path is a folder with such files, under the names of `rows_name`, is read from them. The file is in this
    machine's cache, and its name is the SHA-256 of its contents.

    Raises UserError if the split cannot be loaded, or holds what JSON cannot. Cost: one pass over the split, once per
    process.
    """
    return _rows_file(hub.path, hub.name, hub.unlabelled, split, hub.rename.get(label_field, label_field))


@lru_cache(maxsize=64)
def _rows_file(path: str, name: str | None, unlabelled: int | None, split: str, label_field: str) -> Path:
    hub = Hub(path=path, name=name, unlabelled=unlabelled)
    folder, digest = cache_folder() / "hub_rows", hashlib.sha256()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        part = folder / f"{os.getpid()}-{threading.get_ident()}.part"
        with part.open("wb") as file:
            for row in load(hub, split, label_field):
                line = json.dumps(row, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n"
                digest.update(line)
                file.write(line)
    except TypeError as error:
        raise UserError(f"{label(hub)} has rows that are not text and numbers ({error})") from None
    except OSError as error:
        fix = "set ZO_SWEEPS_CACHE to a writable folder with room for the rows"
        raise UserError(
            f"cannot write the rows of {label(hub)}: {error.strerror}", where=str(folder), fix=fix
        ) from None
    whole = folder / digest.hexdigest()
    part.rename(whole) if not whole.exists() else part.unlink()
    return whole


def _cache() -> Path:
    home = os.environ.get("HF_HOME") or os.path.join(os.environ.get("XDG_CACHE_HOME", "~/.cache"), "huggingface")
    return Path(os.environ.get("HF_DATASETS_CACHE") or os.path.join(home, "datasets")).expanduser()


def row_bytes(hub: Hub) -> float:
    """Return the mean bytes of a row of the training split, by the prepared copy's own count; 0 if it is not known."""
    for file in _prepared(hub):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            split = json.loads(file.read_bytes())["splits"][hub.train.partition("[")[0]]
            return float(split["num_bytes"]) / max(int(split["num_examples"]), 1)
    return 0.0


def _prepared(hub: Hub) -> Iterator[Path]:
    """Yield <cache>/<namespace>___<snake_case name>/<configuration>/<version>/<hash>/dataset_info.json."""
    *namespace, name = hub.path.split("/")
    name = re.sub(r"([A-Z]+)([A-Z][a-z])", r"\1_\2", name)
    name = re.sub(r"([a-z\d])([A-Z])", r"\1_\2", name).lower()
    folder = _cache() / "___".join((*namespace, name))
    yield from sorted(folder.glob(f"{hub.name or '*'}/*/*/dataset_info.json"))


@lru_cache(maxsize=4)
def _reaches(endpoint: str) -> bool:
    answered = threading.Event()

    def ask() -> None:
        try:
            request = urllib.request.Request(endpoint, method="HEAD")
            with urllib.request.urlopen(request, timeout=_TIMEOUT):
                answered.set()
        except (OSError, ValueError):
            pass

    # In a thread, because DNS look-ups have no timeout of their own.
    threading.Thread(target=ask, daemon=True).start()
    return answered.wait(_TIMEOUT)
