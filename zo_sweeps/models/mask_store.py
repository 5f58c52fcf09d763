"""Masks on disk: computed once per machine, by the first trial that needs one, and reused by all with the same key.

<folder>/<key>.safetensors holds a layer's flat indices (int32, ascending) under its name; the sidecar <key>.json holds
the settings that the mask was computed from, its fingerprint and its size. Both appear by rename, the sidecar last.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from zo_sweeps.core.errors import UserError
from zo_sweeps.core.files import replace_text, replacing
from zo_sweeps.core.fingerprint import fingerprint

Masks = dict[str, Tensor]  # layer -> [k] int64 flat indices into its weight, ascending


def folder() -> Path:
    """Return this machine's folder of masks, under ZO_SWEEPS_CACHE or zo_sweeps in the user's cache folder."""
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(os.environ.get("ZO_SWEEPS_CACHE") or f"{cache}/zo_sweeps").expanduser() / "masks"


def mask_fingerprint(masks: Mapping[str, Tensor]) -> str:
    """Return SHA-256 (16 hex digits) over the layers' names and indices."""
    digest = hashlib.sha256()
    for name in sorted(masks):
        digest.update(f"{name} {len(masks[name])}\n".encode() + masks[name].cpu().to(torch.int32).numpy().tobytes())
    return digest.hexdigest()[:16]


def get(key: Mapping[str, Any], find: Callable[[], Masks], where: Path | None = None) -> tuple[Masks, str]:
    """Return the mask of `key`, and its fingerprint; `find` computes it if the store has none.

    Concurrent trials wait for the one that computes it, by a lock that its process releases even when killed. A file
    that does not match its sidecar is computed again. Raises UserError if the store cannot be written.

    Args:
        key: everything the mask depends on (model, precision, layers, density, scope, score, data), as JSON.
        find: computes the mask.
        where: the store; defaults to `folder()`.
    """
    store = folder() if where is None else where
    try:
        store.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        fix = "set ZO_SWEEPS_CACHE to a writable folder"
        raise UserError(f"cannot store masks ({error.strerror})", where=str(store), fix=fix) from None
    name = fingerprint(key)
    with _locked(store / f"{name}.lock"):
        masks = _read(store, name)
        if masks is None:
            masks = find()
            _write(store, name, masks, key)
    return masks, mask_fingerprint(masks)


def _read(store: Path, name: str) -> Masks | None:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        sidecar = json.loads((store / f"{name}.json").read_text(encoding="utf-8"))
        masks = {layer: index.long() for layer, index in load_file(str(store / f"{name}.safetensors")).items()}
    except (OSError, ValueError, SafetensorError):
        return None
    whole = isinstance(sidecar, dict) and sidecar.get("fingerprint") == mask_fingerprint(masks)
    return masks if whole else None


def _write(store: Path, name: str, masks: Masks, key: Mapping[str, Any]) -> None:
    from safetensors.torch import save_file

    tensors = {layer: index.to("cpu", torch.int32).contiguous() for layer, index in masks.items()}
    with replacing(store / f"{name}.safetensors") as part:
        save_file(tensors, str(part))
    entries = sum(map(len, masks.values()))
    sidecar = {"fingerprint": mask_fingerprint(masks), "entries": entries, "layers": len(masks), "found_from": key}
    replace_text(store / f"{name}.json", json.dumps(sidecar, indent=2, sort_keys=True) + "\n")


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield  # closing the file releases the lock
