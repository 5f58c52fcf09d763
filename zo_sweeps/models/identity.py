"""What a model *is* (its fingerprint, the same wherever it lies) and whether it is there. No torch, no transformers."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from zo_sweeps.core.errors import UserError, unknown
from zo_sweeps.core.fingerprint import canonical_json, fingerprint
from zo_sweeps.methods.arch import Arch
from zo_sweeps.methods.parts import Model
from zo_sweeps.models import families, hub
from zo_sweeps.models.checkpoint import CheckpointInfo, read_checkpoint_info

DEMO = Path(__file__).parent / "demo"
SOURCES = ("hub", "local", "random", "demo")
TOKENIZER_PARTS = (
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
)
NOT_IDENTITY = ("_name_or_path", "transformers_version")  # of config.json: where it was saved, and by what
WHOLE = 256 * 2**20  # files up to this size are hashed whole
BLOCK, BLOCKS = 64 * 2**10, 64  # of larger ones


@dataclass(frozen=True)
class ModelStatus:
    """What the planner must know of a model; `arch` is None where its configuration is not known here."""

    available: bool
    why: str  # why not; or, for a model that will be downloaded, that it will
    fingerprint: str = ""
    parameters: int = 0
    arch: Arch | None = None


def folder_of(model: Model) -> Path:
    """The folder of a `local` or `demo` model. Raises UserError when a local model has no path."""
    if model.source == "demo":
        return DEMO
    if not model.path:
        raise UserError("the local model has no path", where="model.path", fix="add model.path=FOLDER")
    return Path(model.path).expanduser()


def fingerprint_model(model: Model) -> str:
    """The identity of a model's weights and tokenizer, as a short string that does not depend on where they lie.

    local, demo: "local:" + SHA-256 over config.json, the tokenizer's files, and name, size, header and content of each
    weight file (above 256 MiB: 64 blocks of 64 KiB at even distances). hub: "hf:<id>@<revision>". random: "random:" +
    hash of `arch`, `seed` and the demo tokenizer that it is used with.

    Raises UserError for an unknown source or a folder that is not a model. Cost: reads at most 256 MiB a weight file,
    once a process.
    """
    source = model.source
    if source in ("local", "demo"):
        return "local:" + _identify(folder_of(model))[1]
    if source == "hub":
        return f"hf:{repo_of(model)}@{revision_of(model)}"
    if source == "random":
        tokenizer = hashlib.sha256((DEMO / "tokenizer.json").read_bytes()).hexdigest()
        identity = {"arch": model.arch, "seed": model.seed, "tokenizer": tokenizer}
        return "random:" + fingerprint(identity)
    raise unknown("model source", source, SOURCES, where="model.source")


def status(model: Model) -> ModelStatus:
    """Whether a model can be used here, and its size; never raises a UserError, but says it in `why`.

    Cost: milliseconds for a cached hub model, a local one that was seen before, or random weights; at most a few
    seconds once a process for a hub that does not answer.
    """
    try:
        if model.source == "hub":
            return _hub_status(model)
        identity = fingerprint_model(model)
        if model.source == "random":
            arch = families.describe(model.arch)
            tokens = demo_tokens(arch)
            if arch.vocabulary < tokens:
                what = f"random weights are used with the demo tokenizer, which has {tokens} tokens"
                raise UserError(what, where="model.arch.vocab_size", fix=f"set it to {tokens} or more")
            return ModelStatus(True, "", identity, arch.parameters, arch)
        info = _identify(folder_of(model))[0]
        return ModelStatus(True, "", identity, info.parameters, info.arch)
    except UserError as error:
        return ModelStatus(False, str(error))


def demo_tokens(arch: Arch) -> int:
    """Size of the demo tokenizer; a masked model's has a mask as well."""
    vocabulary = json.loads((DEMO / "config.json").read_text())["vocab_size"]
    return int(vocabulary) + arch.masked


def _hub_status(model: Model) -> ModelStatus:
    repo, revision, identity = repo_of(model), revision_of(model), fingerprint_model(model)
    folder = hub.cached_folder(repo, revision)
    if folder is not None:
        info = read_checkpoint_info(folder)
        return ModelStatus(True, "", identity, info.parameters, info.arch)
    arch = families.describe(model.arch) if model.arch else None
    parameters = arch.parameters if arch else 0
    trouble = hub.unreachable(repo, revision)
    if not trouble:
        return ModelStatus(True, f"{repo} will be downloaded", identity, parameters, arch)
    at = "" if revision == "main" else f" --revision {revision}"
    why = (
        f"{repo} is not in the Hugging Face cache, and {trouble}; choose one: `hf download {repo}{at}` where there is "
        "a network and share HF_HOME, or model=local model.path=FOLDER, or random weights of the same shape "
        "(model=random_llama model.arch.…) for time and memory"
    )
    return ModelStatus(False, why, identity, parameters, arch)


def repo_of(model: Model) -> str:
    """The id of a hub model. Raises UserError when there is none."""
    repo = model.path
    if not repo:
        raise UserError("the hub model has no id", where="model.path", fix="add model.path=ORGANISATION/NAME")
    return str(repo)


def revision_of(model: Model) -> str:
    """The revision of a hub model, `main` unless said."""
    return str(model.revision or "main")


def _identify(folder: Path) -> tuple[CheckpointInfo, str]:
    """The checkpoint in a folder and its hash; kept for the process, until a file's size or time changes."""
    stamps = tuple((f.name, f.stat().st_size, f.stat().st_mtime_ns) for f in _files(folder))
    return _identify_once(folder.resolve(), stamps)


def _files(folder: Path) -> list[Path]:
    return sorted(f for f in folder.iterdir() if f.is_file()) if folder.is_dir() else []


@lru_cache(maxsize=64)
def _identify_once(folder: Path, stamps: object) -> tuple[CheckpointInfo, str]:
    info = read_checkpoint_info(folder)
    digest = hashlib.sha256()
    config = {key: value for key, value in info.config.items() if key not in NOT_IDENTITY}
    digest.update(canonical_json(config).encode())
    for part in TOKENIZER_PARTS:
        if (folder / part).is_file():
            digest.update(f"\n{part}\n".encode() + hashlib.sha256((folder / part).read_bytes()).digest())
    for file in info.files:
        digest.update(f"\n{file.name} {file.stat().st_size}\n".encode() + _content(file))
    return info, digest.hexdigest()[:16]


def _content(file: Path) -> bytes:
    """SHA-256 of a weight file: of all of it, or of its header and evenly spaced blocks when it is large."""
    total, digest = file.stat().st_size, hashlib.sha256()
    with file.open("rb") as stream:
        if total <= WHOLE:
            while block := stream.read(2**22):
                digest.update(block)
            return digest.digest()
        start = stream.read(8)
        digest.update(start + stream.read(int.from_bytes(start, "little")))
        for i in range(BLOCKS):
            stream.seek(i * (total - BLOCK) // (BLOCKS - 1))
            digest.update(stream.read(BLOCK))
    return digest.digest()
