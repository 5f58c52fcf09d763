"""Checkpoints on disk: validity, shape, size and tokenizer, without torch and without reading weights."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zo_sweeps.core.errors import UserError
from zo_sweeps.core.files import folder_at
from zo_sweeps.methods.arch import Arch
from zo_sweeps.models import families

if TYPE_CHECKING:
    from torch import Tensor

PIECES = "tokenizer.model"  # of SentencePiece
PROBES = ("A great film", "naïve ☃ it's 1234", "two  spaces\nand a line")
TOKENIZER_FILES = (("tokenizer.json",), (PIECES,), ("vocab.json", "merges.txt"))  # any one of these sets
INDEX = "model.safetensors.index.json"
ADAPTER = "adapter_config.json"  # peft's
SHARD = 2**28  # bytes of a file that is written here, at least, except the last
HEADS = {False: ("ForCausalLM", "LMHeadModel"), True: ("ForMaskedLM",)}  # class name endings, by `Arch.masked`


@dataclass(frozen=True)
class CheckpointInfo:
    """Facts of a checkpoint, from its files."""

    config: Mapping[str, Any]  # config.json
    arch: Arch
    parameters: int
    files: tuple[Path, ...]  # the weight files


def read_checkpoint_info(path: str | Path) -> CheckpointInfo:
    """Read `path`/config.json and the headers of the folder's safetensors files.

    Raises UserError, in one line, if the folder is not a language model that can be loaded without pickle: no folder,
    missing or broken config.json, neither a causal nor a masked LM, an unknown family, missing or incomplete weights,
    weights of another number of layers, no tokenizer, weights that another tool has quantized, or an adapter beside
    them, which transformers would apply. Cost: a few kilobytes read per file.
    """
    folder = folder_at(path, "model.path")
    where = str(path)
    if not folder.is_dir():
        raise UserError(f"no such folder: {path}", where="model.path", fix="give the folder that holds config.json")
    config = _read_config(folder, where)
    if quantized := config.get("quantization_config"):
        method = quantized.get("quant_method") if isinstance(quantized, dict) else None
        fix = "use the model that is not quantized, with precision=..."
        what = f"its weights are stored as codes of another tool ({method or 'unnamed'})"
        raise UserError(what, where=where, fix=fix)
    if (folder / ADAPTER).is_file():
        fix = "merge it into the weights, or move it out of the folder"
        raise UserError(f"the folder holds an adapter beside the model ({ADAPTER})", where=where, fix=fix)
    arch = _describe(config, where)
    files = _weight_files(folder, where)
    if not any(all((folder / name).is_file() for name in names) for names in TOKENIZER_FILES):
        raise UserError("no tokenizer (tokenizer.json, tokenizer.model, or vocab.json with merges.txt)", where=where)
    tensors = [item for file in files for item in read_header(file).items()]
    if not tensors:
        raise UserError("the weight files hold no tensors", where=where)
    stored = _layers((name for name, _ in tensors), arch.blocks)
    if stored not in (0, arch.layers):
        fix = "use the config.json that was saved with the weights"
        raise UserError(f"the weights have {stored} layers, and config.json says {arch.layers}", where=where, fix=fix)
    return CheckpointInfo(config, arch, parameters=sum(size for _, size in tensors), files=files)


def read_header(file: Path) -> dict[str, int]:
    """Return tensor -> number of values of a safetensors file. Raises UserError for a damaged file."""

    def damaged(what: str) -> UserError:
        return UserError(f"{file.name} {what}", where=str(file), fix="download it again")

    total = file.stat().st_size
    with file.open("rb") as stream:
        start = stream.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else total
        if start.startswith(b"version "):
            raise UserError(f"{file.name} is a Git LFS pointer, not weights", where=str(file), fix="run `git lfs pull`")
        if 8 + length > total:
            raise damaged("is not a complete safetensors file")
        try:
            header = json.loads(stream.read(length))
            tensors = {name: _tensor(entry) for name, entry in header.items() if name != "__metadata__"}
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
            raise damaged("is not a safetensors file") from None
    end = 8 + length + max((end for _, end in tensors.values()), default=0)
    if end != total:
        raise damaged(f"has {total} bytes where its header says {end}")
    return {name: size for name, (size, _) in tensors.items()}


def _tensor(entry: Any) -> tuple[int, int]:
    """Return the number of values of a header's entry, and the offset behind its last byte, from the header on."""
    sizes = (*entry["shape"], *entry["data_offsets"])
    if not (all(type(size) is int and size >= 0 for size in sizes) and entry["dtype"]):
        raise ValueError(entry)
    return prod(entry["shape"]), entry["data_offsets"][1]


def _layers(names: Iterable[str], blocks: str) -> int:
    """Count the layers that tensors belong to, with or without the base model's prefix; 0 if none has such a name."""
    within = blocks.partition(".")[2] or blocks
    layer = re.compile(rf"(?:\w+\.)?{re.escape(within)}\.(\d+)\.")
    return max((int(match[1]) + 1 for name in names if (match := layer.match(name))), default=0)


def _read_config(folder: Path, where: str) -> dict[str, Any]:
    file = folder / "config.json"
    if not file.is_file():
        raise UserError("not a model: no config.json", where=where, fix="give the folder that holds config.json")
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise UserError(f"config.json is not JSON ({error})", where=where) from None
    if not isinstance(config, dict):
        raise UserError("config.json is not a JSON object", where=where)
    return config


def _describe(config: dict[str, Any], where: str) -> Arch:
    """Return the shape of the model. Raises UserError if it cannot be served or is not a language model."""
    try:
        arch = families.describe(config)
    except UserError as error:
        raise UserError(error.what, where=where, choices=error.choices, fix=error.fix) from None
    heads = [str(head) for head in config.get("architectures") or []]
    if heads and not any(head.endswith(HEADS[arch.masked]) for head in heads):
        kind = "masked" if arch.masked else "causal"
        raise UserError(f"not a {kind} language model but {', '.join(heads)}", where=where)
    return arch


def shards_of(index: Path) -> list[str]:
    """Return the names of the weight files that an index lists. Raises UserError for a malformed index."""
    try:
        shards = sorted(set(json.loads(index.read_bytes())["weight_map"].values()))
        valid = bool(shards) and all(Path(name).name == name for name in shards)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        valid = False
    if not valid:
        raise UserError(f"{index.name} is not an index of weight files", where=str(index), fix="download it again")
    return shards


def _weight_files(folder: Path, where: str) -> tuple[Path, ...]:
    index = folder / INDEX
    if (folder / "model.safetensors").is_file():
        return (folder / "model.safetensors",)
    if index.is_file():
        shards = shards_of(index)
        missing = [name for name in shards if not (folder / name).is_file()]
        if missing:
            raise UserError(f"{len(missing)} of {len(shards)} weight files are missing ({missing[0]})", where=where)
        return tuple(folder / name for name in shards)
    if list(folder.glob("*.bin")) or list(folder.glob("*.pt")) or list(folder.glob("*.pth")):
        raise UserError(
            "the weights are pickled (.bin, .pt); pickles can run code when opened and are not loaded",
            where=where,
            fix="if you trust them, convert them once: transformers' `AutoModelForCausalLM.from_pretrained(old)"
            ".save_pretrained(new)` writes safetensors",
        )
    raise UserError("no weights (model.safetensors)", where=where)


def in_shards(groups: Iterable[Mapping[str, Tensor]]) -> Iterator[dict[str, Tensor]]:
    """Yield tensors on the CPU in files of SHARD bytes; each mapping is emptied when the next one is asked for."""
    held: dict[str, Tensor] = {}
    for group in groups:
        held |= group
        if sum(tensor.nbytes for tensor in held.values()) >= SHARD:
            yield held
            held.clear()
    if held:
        yield held


FILE, SETTINGS = "tokenizer.json", "tokenizer_config.json"
SPECIAL = "special_tokens_map.json"  # of earlier versions of transformers, which kept these tokens apart
GENERATION = "generation_config.json"
CHAT_TEMPLATE = "chat_template.jinja"  # where it is not in the settings


def front_of(tokenizer: Any, bos: str = "") -> tuple[int, ...]:
    """Return the ids of the tokens that a text starts with; () if there are none.

    Args:
        tokenizer: one of transformers, or a `TokenizerFile`.
        bos: the token that the model's family starts a text with. If it is "" or unknown, what the tokenizer adds to
            a text counts, whether or not it calls it its BOS.
    """
    vocabulary: dict[str, int] = tokenizer.get_vocab()
    if bos in vocabulary:
        return (vocabulary[bos],)
    whole, text = tuple(tokenizer("a")["input_ids"]), tuple(tokenizer("a", add_special_tokens=False)["input_ids"])
    starts = (n for n in range(len(whole) - len(text) + 1) if whole[n : n + len(text)] == text)
    return whole[: next(starts, 0)]


def check_pieces(folder: Path) -> None:
    """Raise UserError if transformers reads other tokens than SentencePiece from a folder's tokenizer.model.

    It builds a tokenizer from the file's pieces by the rules of the model's type, which need not be the file's.
    """
    fix = f"save the model's {FILE} beside it"
    try:
        from sentencepiece import SentencePieceProcessor
        from transformers import AutoTokenizer

        pieces = SentencePieceProcessor(model_file=str(folder / PIECES))
        tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
    except ImportError as error:
        raise UserError(f"{PIECES} needs a package ({error})", where=str(folder), fix=fix) from None
    except (LookupError, OSError, RuntimeError, TypeError, ValueError) as error:
        what = f"{PIECES} cannot be read ({' '.join(str(error).split())[:200]})"
        raise UserError(what, where=str(folder), fix=fix) from None
    if any(tokenizer(text, add_special_tokens=False)["input_ids"] != pieces.encode(text) for text in PROBES):
        raise UserError(f"transformers reads other tokens than SentencePiece from {PIECES}", where=str(folder), fix=fix)


@contextmanager
def writing() -> Iterator[None]:
    """Raise OSError where safetensors cannot write a file: its errors are of a type of its own."""
    try:
        yield
    except Exception as error:
        from safetensors import SafetensorError

        if isinstance(error, SafetensorError):
            raise OSError(str(error)) from error
        raise


class TokenizerFile:
    """A tokenizer read from a model folder's tokenizer.json by the library that transformers uses for it.

    Attributes:
        chat_template, special_tokens_map, added_tokens_decoder: as of a tokenizer of transformers.

    Raises UserError if the file, or the tokenizer's settings beside it, cannot be read.
    """

    def __init__(self, folder: Path) -> None:
        from tokenizers import Tokenizer

        _, settings, special = (read_object(folder / name) for name in (FILE, SETTINGS, SPECIAL))
        try:
            self._tokenizer = Tokenizer.from_file(str(folder / FILE))
        except Exception as error:  # the library raises no other type, whatever is wrong
            reason = " ".join(str(error).split())
            raise UserError(f"the tokenizer cannot be read ({reason})", where=str(folder / FILE)) from None
        self._tokenizer.no_padding()  # which a file may keep, and transformers turns off
        self._tokenizer.no_truncation()
        self.added_tokens_decoder: dict[int, Any] = self._tokenizer.get_added_tokens_decoder()
        named = settings if "added_tokens_decoder" in settings else {**settings, **special}
        texts = {key: one.get("content") if isinstance(one, dict) else one for key, one in named.items()}
        self.special_tokens_map = {
            key: text for key, text in texts.items() if key.endswith("_token") and isinstance(text, str)
        }
        self.chat_template = _chat_template(folder, settings)

    def get_vocab(self) -> dict[str, int]:
        """Return token -> id."""
        return self._tokenizer.get_vocab(with_added_tokens=True)

    def __call__(self, text: str, *, add_special_tokens: bool = True, verbose: bool = True) -> dict[str, list[int]]:
        """Return {"input_ids": the ids of a text}, as a tokenizer of transformers does."""
        return {"input_ids": self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids}


def read_object(file: Path) -> dict[str, Any]:
    """Return the JSON object in a file; {} if there is no such file. Raises UserError if it holds anything else."""
    try:
        content = json.loads(file.read_bytes()) if file.is_file() else {}
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        raise UserError(f"{file.name} is not a JSON object", where=str(file))
    return content


def _chat_template(folder: Path, settings: Mapping[str, Any]) -> Any:
    """Return the chat template of a folder, or name -> template if it has several; None if it has none."""
    file, template = folder / CHAT_TEMPLATE, settings.get("chat_template")
    try:
        if file.is_file():
            return file.read_text(encoding="utf-8")
        return {one["name"]: one["template"] for one in template} if isinstance(template, list) else template
    except (ValueError, TypeError, KeyError):
        raise UserError("the chat template cannot be read", where=str(folder)) from None
