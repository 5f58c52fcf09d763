"""Packages: a model whose weights are already stored as codes, in one folder, with the mask of a sparse space or none.

config.json and the tokenizer's files are those of transformers. model.safetensors holds what is not stored as codes, in
the precision's format; codes-00001.safetensors and so on hold the codes of some layers each, as `<layer>.<buffer>`.
mask.safetensors is as `mask_store` writes it. package.json says what the package was made from, and holds the SHA-256
of every file.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zo_sweeps.core.errors import UserError
from zo_sweeps.core.files import folder_at, replace_text, sha256_of
from zo_sweeps.core.fingerprint import fingerprint
from zo_sweeps.core.host import version_of
from zo_sweeps.methods.definition import identity
from zo_sweeps.methods.parts import Model, ModelSource
from zo_sweeps.methods.precision import Precision
from zo_sweeps.models.checkpoint import in_shards, writing
from zo_sweeps.models.gguf import SUFFIX

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from zo_sweeps.models.causal import CausalModel
    from zo_sweeps.models.mask_store import StoredMask

FILE, MASK, CODES = "package.json", "mask.safetensors", "codes-"

Codes = tuple[str, Mapping[str, "Tensor"]]  # a layer's qualified name, and the buffers of its codes


@dataclass(frozen=True)
class PackageContents:
    """What package.json says."""

    precision: Mapping[str, Any]  # as `Precision.to_json` writes it
    model: str  # fingerprint of the model that it was made from
    text: str  # fingerprint of the text whose gradients were taken; "" for none
    mask: Mapping[str, Any] | None  # what the mask was computed from (`Space.found_from`); None without one
    files: Mapping[str, str]  # name -> SHA-256 of every other file
    versions: Mapping[str, str]  # package -> version, of what made it; not part of the identity

    @property
    def fingerprint(self) -> str:
        """The identity of the contents."""
        return fingerprint({key: value for key, value in asdict(self).items() if key != "versions"})


@dataclass(frozen=True)
class Package:
    """A package in a folder."""

    folder: Path
    contents: PackageContents

    @property
    def codes(self) -> str:
        """The identity of the codes alone."""
        files = self.contents.files
        return fingerprint({name: files[name] for name in files if name.startswith(CODES)})

    def verify(self) -> None:
        """Raise UserError unless every file is the one that was packaged. Cost: reads all of them."""
        for name, digest in self.contents.files.items():
            if _digest(self.folder / name) != digest:
                raise _damaged(self.folder, f"{name} is not the file that was packaged")

    def layers(self, device: torch.device | str) -> Iterator[Codes]:
        """Yield the codes of every layer, on a device, one layer at a time."""
        from safetensors import safe_open

        for name in sorted(name for name in self.contents.files if name.startswith(CODES)):
            with safe_open(str(self.folder / name), "pt", device=str(device)) as file:
                of_layer: dict[str, list[str]] = {}
                keys: list[str] = file.keys()
                for key in keys:
                    of_layer.setdefault(key.rpartition(".")[0], []).append(key)
                for layer, own in of_layer.items():
                    yield layer, {key.rpartition(".")[2]: file.get_tensor(key) for key in own}

    def mask(self) -> StoredMask:
        """Return the mask, and the values of its entries in the plain weights."""
        from zo_sweeps.models.mask_store import read_file

        return read_file(self.folder / MASK)

    def contradiction(self, precision: Precision) -> str:
        """Return the option of a precision that is not the package's, as "key is x in the package, not y"; or ""."""
        packaged = Precision.read(self.contents.precision)
        theirs, ours = identity(packaged), identity(precision)
        for key in {**theirs, **ours}:
            if theirs.get(key) != ours.get(key):
                return f"precision.{key} is {theirs.get(key)} in the package, not {ours.get(key)}"
        return ""


def read(folder: Path) -> Package | None:
    """Return the package in a folder; None if it is none. Raises UserError if its package.json is damaged."""
    try:
        stored = json.loads((folder / FILE).read_text(encoding="utf-8"))
        mark = stored.pop("fingerprint")
        contents = PackageContents(**stored)
        plain = all(Path(name).name == name for name in contents.files)  # no file elsewhere
        good = mark == contents.fingerprint and plain and isinstance(contents.precision, dict)
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        good = False
    if not good:
        raise _damaged(folder, f"{FILE} does not match its own fingerprint")
    return Package(folder, contents)


def of(model: Model) -> Package | None:
    """Return the package that a local model is; None for any other. Raises UserError as `read` does."""
    if model.source is not ModelSource.LOCAL or not model.path or model.path.endswith(SUFFIX):
        return None
    return read(folder_at(model.path, "model.path"))


def write(
    folder: Path, model: CausalModel, codes: Iterable[Codes], precision: Precision, made_from: str, text: str
) -> None:
    """Write a package without a mask into an empty folder.

    Args:
        model: the weights of the layers in `codes`, plain or coded, are left out.
        codes: of every projection of the blocks, in the order of the files.
        made_from: fingerprint of the model.
        text: fingerprint of the text that the codes depend on; "" for none.

    Memory: a file of codes beyond those that the iterator holds.
    """
    from zo_sweeps.models.load import quiet

    coded = _write_codes(folder, codes)
    module: Any = model.module
    others = {name: tensor for name, tensor in module.state_dict().items() if not name.startswith(tuple(coded))}
    with quiet(), writing():
        module.save_pretrained(str(folder), state_dict=others, safe_serialization=True)
        model.tokenizer.save_pretrained(str(folder))
    versions = {name: version_of(name) for name in ("zo-sweeps", "torch", "transformers", "safetensors")}
    _describe(folder, PackageContents(precision.to_json(), made_from, text, None, {}, versions))


def add_mask(folder: Path, stored: StoredMask, found_from: Mapping[str, Any], text: str) -> None:
    """Add a mask, computed from these settings and the text with this fingerprint, to the package in a folder."""
    from zo_sweeps.models.mask_store import write_file

    package = read(folder)
    assert package is not None
    write_file(folder / MASK, stored)
    _describe(folder, replace(package.contents, mask=dict(found_from), text=text))


def _write_codes(folder: Path, codes: Iterable[Codes]) -> set[str]:
    """Write the codes; return the prefixes of the tensors in a `state_dict` that they replace."""
    from safetensors.torch import save_file

    layers: set[str] = set()
    groups = ({f"{layer}.{name}": one.cpu().contiguous() for name, one in buffers.items()} for layer, buffers in codes)
    for number, held in enumerate(in_shards(groups), start=1):
        with writing():
            save_file(held, str(folder / f"{CODES}{number:05}.safetensors"))
        layers |= {name.rpartition(".")[0] for name in held}
    return {f"{layer}.{part}" for layer in layers for part in ("weight", "codes.")}


def _describe(folder: Path, contents: PackageContents) -> None:
    """Write package.json, with the digests of the files as they are."""
    names = sorted(path.name for path in folder.iterdir() if path.name != FILE)
    contents = replace(contents, files={name: _digest(folder / name) for name in names})
    whole = {"fingerprint": contents.fingerprint, **asdict(contents)}
    replace_text(folder / FILE, json.dumps(whole, indent=2) + "\n")


def _digest(file: Path) -> str:
    try:
        return sha256_of(file)
    except OSError:
        return ""


def _damaged(folder: Path, what: str) -> UserError:
    return UserError(what, where=str(folder), fix="copy the package again, or make it again")
