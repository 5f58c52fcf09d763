"""Masks on disk: computed once per machine, by the first trial that needs one, and reused by all with the same key.

<folder>/<key>.safetensors holds a layer's flat indices (int32, ascending) under its name, and its weight's entries
there under that name and ".values"; the sidecar <key>.json holds the settings that the mask was computed from, its
fingerprint and its size. Both appear by rename, the sidecar last.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from zo_sweeps.core.errors import UserError
from zo_sweeps.core.files import Cached, cache_folder, locked, replace_text, replacing
from zo_sweeps.core.fingerprint import fingerprint
from zo_sweeps.models.checkpoint import writing

VALUES = ".values"


@dataclass(frozen=True)
class StoredMask:
    """A mask, the entries of the weights that it was computed from, layer by layer, and the mask's fingerprint."""

    masks: dict[str, Tensor]  # layer -> [k] int64 flat indices into its weight, ascending
    values: dict[str, Tensor]

    @property
    def fingerprint(self) -> str:
        """SHA-256 (16 hex digits) over the layers' names and indices."""
        digest = hashlib.sha256()
        for name, index in sorted(self.masks.items()):
            digest.update(f"{name} {len(index)}\n".encode() + index.cpu().to(torch.int32).numpy().tobytes())
        return digest.hexdigest()[:16]


def folder() -> Path:
    """Return this machine's folder of masks."""
    return cache_folder() / "masks"


def get(key: Mapping[str, Any], find: Callable[[], StoredMask], where: Path | None = None) -> StoredMask:
    """Return the mask of `key`; `find` computes it if the store has none.

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
    file, sidecar = store / f"{name}.safetensors", store / f"{name}.json"
    with locked(store / f"{name}.lock"):
        try:
            mark, mask = json.loads(sidecar.read_text(encoding="utf-8"))["fingerprint"], read_file(file)
            if mark == mask.fingerprint:
                return mask
        except (OSError, ValueError, KeyError, TypeError, SafetensorError):
            pass  # absent or damaged
        mask = find()
        write_file(file, mask)
        sizes = {"entries": sum(map(len, mask.masks.values())), "layers": len(mask.masks)}
        facts = {"fingerprint": mask.fingerprint, **sizes, "found_from": key}
        replace_text(sidecar, json.dumps(facts, indent=2, sort_keys=True) + "\n")
    return mask


def stored() -> Iterator[Cached]:
    """Iterate over this machine's masks by the fingerprints that their sidecars name; no mask is read."""
    for sidecar in sorted(folder().glob("*.json")):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):  # not whole: `get` computes it again
            mark = str(json.loads(sidecar.read_text(encoding="utf-8"))["fingerprint"])
            paths = [sidecar.with_suffix(end).relative_to(cache_folder()) for end in (".json", ".safetensors", ".lock")]
            yield Cached("mask", mark, tuple(paths[:2]), paths[2])


def read_file(file: Path) -> StoredMask:
    """Return the mask in a file. Raises OSError, SafetensorError or KeyError if it holds none."""
    tensors = load_file(str(file))
    masks = {layer: index.long() for layer, index in tensors.items() if not layer.endswith(VALUES)}
    return StoredMask(masks, {layer: tensors[layer + VALUES] for layer in masks})


def write_file(file: Path, stored: StoredMask) -> None:
    """Write a mask to a file, which appears by rename."""
    tensors = {layer: index.to("cpu", torch.int32).contiguous() for layer, index in stored.masks.items()}
    tensors |= {layer + VALUES: values.to("cpu").contiguous() for layer, values in stored.values.items()}
    with replacing(file) as part, writing():
        save_file(tensors, str(part))
