"""GGUF files, converted once per machine to a folder in Hugging Face format, which is then read as any other.

transformers' own reader gives configuration, tokenizer, tensor names and layouts; here tensors are decoded one at a
time, and whatever that reader would drop in silence is refused by name.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zo_sweeps.core.errors import UserError
from zo_sweeps.core.files import Cached, cache_folder, locked, new_folder
from zo_sweeps.core.host import version_of
from zo_sweeps.models.checkpoint import FILE as TOKENIZER
from zo_sweeps.models.checkpoint import INDEX, in_shards, writing

if TYPE_CHECKING:
    from torch import Tensor

SUFFIX = ".gguf"
ARCHITECTURES = ("gemma2", "gemma3", "llama", "phi3", "qwen2", "qwen3")  # those whose logits are tested
# Keys of an architecture that transformers' reader leaves out -> what a configuration calls them.
LEFT_OUT = {
    "attention.key_length": "head_dim",
    "attention.sliding_window": "sliding_window",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
}
ROTARY = "rope.dimension_count"  # taken for the width of heads where it is read
ROPE_FACTORS = "rope_freqs.weight"
SPACE, CONTROL = "▁", 3  # how SentencePiece spells a space; the type of tokens as of a turn's end
# Values of `tokenizer.ggml.pre` whose texts GPT-2's pattern splits, which transformers falls back to. In doubt: the
# last three split digits first, so that two spaces or line breaks before a digit are one token there, and two here.
AS_GPT2 = ("default", "gpt-2", "refact", "smollm", "starcoder")
# Those for which llama.cpp takes a word of the vocabulary whole, whatever its merges, and starts a text with BOS unless
# the file says not to.
WHOLE_WORDS = (
    *("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1"),
    *("jina-v5-nano", "lfm2", "midm-2.0", "pixtral", "tekken"),
)
RULES = 3  # of conversion: what was converted by others is not read


def on_hub(path: str) -> tuple[str, str] | None:
    """Return the repository and the file within it of ORGANISATION/NAME/FILE.gguf; None for any other path."""
    parts = path.split("/")
    named = len(parts) > 2 and path.endswith(SUFFIX) and not path.startswith(("/", "~", "."))
    return ("/".join(parts[:2]), "/".join(parts[2:])) if named else None


def fetched_file(wheel: Mapping[str, str]) -> Path:
    """Return where `fetch` puts the GGUF file of a wheel (`Model.wheel`)."""
    return cache_folder() / "fetched" / wheel["sha256"][:16] / Path(wheel["file"]).name


def converted(file: Path, digest: str) -> Path:
    """Return the folder that a GGUF file was converted to on this machine; convert it if there is none.

    Weights are stored in fp32, which holds every value of a GGUF file exactly, so that loading rounds once. Concurrent
    processes wait for the one that converts.

    Args:
        file, digest: the file, and what identifies its contents.

    Raises UserError for a file that is damaged or has something that would be lost, without the package gguf, and if
    the folder cannot be written. Cost: none if the file was converted; else a read of it and 4 bytes written per
    parameter. Memory: a file of weights, and the largest tensor thrice.
    """
    folder = cache_folder() / "gguf" / f"{digest}-{version_of('transformers')}-{RULES}"
    if folder.is_dir():
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with locked(folder.with_name(f"{folder.name}.lock")):
            if not folder.is_dir():
                with new_folder(folder, alone=True) as part:
                    _convert(file, part)
    except OSError as error:
        fix = "set ZO_SWEEPS_CACHE to a writable folder with room for 4 bytes per parameter"
        raise UserError(
            f"cannot store the converted model ({error.strerror or error})", where=str(folder), fix=fix
        ) from None
    return folder


def stored() -> Iterator[Cached]:
    """Iterate over this machine's converted files by the fingerprints of the models; no weight is read."""
    for folder in sorted(path for path in (cache_folder() / "gguf").glob("*") if path.is_dir()):
        if folder.suffix != ".part":
            here = folder.relative_to(cache_folder())
            files = tuple(here / file.name for file in sorted(folder.iterdir()))
            digest = folder.name.partition("-")[0]
            yield Cached("converted", f"gguf:{digest}", files, here.with_name(f"{here.name}.lock"), folder=True)


def _convert(file: Path, folder: Path) -> None:
    from zo_sweeps.models.load import quiet

    try:
        from gguf import GGUFReader
    except ImportError:
        what = "a GGUF file is read with the package gguf, which is not installed"
        raise UserError(what, where=str(file), fix="pip install 'zo-sweeps[gguf]'") from None
    try:
        from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS
    except ImportError:
        what = f"transformers {version_of('transformers')} does not say how a GGUF file's tokenizer splits texts"
        raise UserError(what, where=str(file), fix="pip install 'zo-sweeps[gguf]'") from None
    try:
        reader = GGUFReader(file)
    except (ValueError, LookupError, TypeError, OverflowError) as error:
        what = f"not a whole GGUF file ({error})"
        raise UserError(what, where=str(file), fix="download it again") from None
    with quiet():
        config = _config(reader, file)
        config.save_pretrained(str(folder))
        _save_tokenizer(reader, file, folder, {*AS_GPT2, *GGUF_PRE_TOKENIZER_SPLITS})
        _save(_tensors(reader, config, file), folder)


def _refused(file: Path, what: str, choices: Iterable[str] = ()) -> UserError:
    return UserError(what, where=str(file), choices=choices, fix="use the model's safetensors, with model.path=FOLDER")


def _config(reader: Any, file: Path) -> Any:
    """Return the configuration. Raises UserError if the file states something that it would lack."""
    from transformers import AutoConfig
    from transformers.integrations.ggml import GGUF_CONFIG_MAPPING
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    fields = {key: field.contents() for key, field in reader.fields.items() if not key.startswith("tokenizer.ggml.")}
    family = fields.get("general.architecture")
    if family not in ARCHITECTURES:
        raise _refused(file, f"a GGUF file of architecture {family!r} cannot be converted", ARCHITECTURES)
    stated = {key.removeprefix(f"{family}."): value for key, value in fields.items() if key.startswith(f"{family}.")}
    mapping: Any = GGUF_CONFIG_MAPPING
    stated = {key: value for key, value in stated.items() if key == ROTARY or not mapping[family].get(key)}
    added = {name: stated[key] for key, name in LEFT_OUT.items() if key in stated}
    config = AutoConfig.for_model(**{**load_gguf_checkpoint(str(file))["config"], **added})
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    implied = {
        # Llama's configuration has no window, and that of Qwen2 drops it.
        **{key: getattr(config, name) for key, name in LEFT_OUT.items() if hasattr(type(config), name)},
        **dict.fromkeys(("attention.key_length", "attention.value_length"), head),
        ROTARY: head,
        "rope.scaling.original_context_length": config.max_position_embeddings,
        "rope.scaling.attn_factor": 1.0,
    }
    for key, value in sorted(stated.items()):
        if implied.get(key) != value:
            raise _refused(file, f"transformers' reader of GGUF does not read {family}.{key} ({value})")
    factors = next((one.data for one in reader.tensors if one.name == ROPE_FACTORS), None)
    return config if factors is None else _scaled(config, factors, file)


def _scaled(config: Any, factors: Any, file: Path) -> Any:
    """Return the configuration with the scaling of rotary positions that a file states as a factor per frequency.

    Llama 3.1 and later: its own scaling, of which the factor is the largest one, and all else is the same in every
    release. Raises UserError unless that gives these factors.
    """
    import torch
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    plain = 1.0 / config.rope_parameters["rope_theta"] ** (torch.arange(0, config.head_dim, 2) / config.head_dim)
    config.rope_parameters |= {
        "rope_type": "llama3",
        "factor": float(factors.max()),
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    scaling: Any = ROPE_INIT_FUNCTIONS["llama3"]
    scaled, _ = scaling(config, torch.device("cpu"))
    if not torch.allclose(scaled * torch.tensor(factors), plain, rtol=1e-4, atol=0.0):
        raise _refused(file, f"the factors of rotary positions ({ROPE_FACTORS}) are not those of Llama 3")
    return config


def _save_tokenizer(reader: Any, file: Path, folder: Path, known: set[str]) -> None:
    """Write the tokenizer, with the chat template.

    Raises UserError if it splits texts in none of the `known` ways, or if transformers would give texts a space
    in front that the file does not, or split a token that stands around them.
    """
    from transformers import PreTrainedTokenizerFast

    names = ("model", "pre", "add_bos_token", "add_space_prefix", "token_type", "tokens")
    stated = {name: reader.fields.get(f"tokenizer.ggml.{name}") for name in names}
    kind, pre, begins, spaced, types, tokens = (field and field.contents() for field in stated.values())
    if kind == "gpt2" and pre is not None and pre not in known:
        raise _refused(file, f"a tokenizer that splits texts as {pre!r} cannot be converted", known)
    whole_words = kind == "gpt2" and pre in WHOLE_WORDS
    unsaid: dict[str, Any] = {"add_bos_token": True} if whole_words and begins is None else {}
    try:
        # The class of an architecture would build one of its own, whatever the file says.
        made = PreTrainedTokenizerFast.from_pretrained(str(file.parent), gguf_file=file.name, **unsaid)
        made.save_pretrained(str(folder))
    except (ValueError, LookupError, TypeError, OSError) as error:
        raise _refused(file, f"the tokenizer cannot be converted ({' '.join(str(error).split())})") from None
    if kind == "llama" and spaced not in (None, made.tokenize("a")[0].startswith(SPACE)):
        raise _refused(file, f"transformers' reader of GGUF does not read tokenizer.ggml.add_space_prefix ({spaced})")
    known_as, used = made.get_vocab(), f"{made.chat_template} {' '.join(map(str, made.special_tokens_map.values()))}"
    for i, (token, of_type) in enumerate(zip(tokens, types or (), strict=False)):
        if of_type == CONTROL and known_as.get(token) != i and token in used:
            raise _refused(file, f"transformers' reader of GGUF splits the token {token!r} into bytes")
    # transformers adds the special tokens of the class that it builds from, which the model has no rows for.
    whole = json.loads((folder / TOKENIZER).read_text(encoding="utf-8"))
    whole["added_tokens"] = [token for token in whole["added_tokens"] if token["id"] < len(tokens)]
    if whole_words:
        whole["model"]["ignore_merges"] = True
    (folder / TOKENIZER).write_text(json.dumps(whole, ensure_ascii=False), encoding="utf-8")


def _tensors(reader: Any, config: Any, file: Path) -> Iterator[tuple[str, Tensor]]:
    """Yield every tensor of the model, by the name that transformers has for it, as fp32.

    Raises UserError for one that the model has no place for, of another shape, or of a type that cannot be decoded,
    and if the model has more than the file.
    """
    import torch
    from gguf import MODEL_ARCH_NAMES, dequantize, get_tensor_name_map
    from transformers import AutoModelForCausalLM
    from transformers.modeling_gguf_pytorch_utils import TENSOR_PROCESSORS, TensorProcessor

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    family = reader.fields["general.architecture"].contents()
    made_by: Any = TENSOR_PROCESSORS.get(family, TensorProcessor)
    processor = made_by(config=config.to_dict())
    (known,) = (one for one, name in MODEL_ARCH_NAMES.items() if name == family)
    stems = get_tensor_name_map(known, config.num_hidden_layers)
    lacking = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    if config.tie_word_embeddings:
        del lacking["lm_head.weight"]
    parts = {name: name.rpartition(".") for name in lacking}
    names = {f"{stems.get_name(stem)}.{kind}": name for name, (stem, _, kind) in parts.items()}
    for one in reader.tensors:
        if one.name == ROPE_FACTORS:
            continue
        try:
            values = dequantize(one.data, one.tensor_type)
        except NotImplementedError:
            raise _refused(file, f"{one.name} is stored as {one.tensor_type.name}, which cannot be decoded") from None
        values, name = processor.process(values, one.name).weights, names.get(one.name, "")
        if lacking.pop(name, None) != values.shape:
            raise _refused(file, f"the model has no place for {one.name} of shape {[*values.shape]}")
        yield name, torch.tensor(values)
    if lacking:
        raise _refused(file, f"{len(lacking)} tensors of the model are not in the file ({min(lacking)})")


def _save(tensors: Iterable[tuple[str, Tensor]], folder: Path) -> None:
    """Write tensors to files, and an index of them."""
    from safetensors.torch import save_file

    files: dict[str, str] = {}
    for number, held in enumerate(in_shards({name: tensor} for name, tensor in tensors), start=1):
        file = f"model-{number:05}.safetensors"
        with writing():
            save_file(held, str(folder / file), {"format": "pt"})
        files |= dict.fromkeys(held, file)
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": files}, indent=2))
