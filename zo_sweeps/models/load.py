"""Loads a model: from the hub, a folder, the demo that ships with the package, or random weights of a named shape."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from zo_sweeps.core.errors import UserError, unknown
from zo_sweeps.models import families, hub
from zo_sweeps.models.causal import LanguageModel
from zo_sweeps.models.checkpoint import read_checkpoint_info
from zo_sweeps.models.identity import DEMO, SOURCES, folder_of, repo_of, revision_of
from zo_sweeps.models.masked import MaskedLanguageModel


def load(model: Mapping[str, Any], dtype: torch.dtype, device: torch.device | str) -> LanguageModel:
    """The model of a configuration, its weights frozen, in evaluation mode, stored as `dtype` on `device`.

    Safetensors only: no pickle is opened and no code of a model's own is run. Random weights are drawn on the CPU from
    `seed` (default 0), so that they are the same for every device, and leave the global generator as it was.

    Raises UserError for a folder that is not a model, weights that lack tensors of the architecture, a hub model that
    cannot be had, an unknown family or source. Cost: one read of the weights.
    """
    source = model.get("source")
    with _quiet():
        if source == "random":
            module, tokenizer = _random(model["arch"], int(model.get("seed") or 0), dtype)
            return _wrapped(module.to(device), tokenizer)
        if source not in SOURCES:
            raise unknown("model source", source, SOURCES, where="model.source")
        folder = _from_hub(model) if source == "hub" else folder_of(model)
        kind = read_checkpoint_info(folder).arch["model_type"]
        module, tokenizer = _pretrained(folder, kind, dtype)
        # A hub snapshot's folder is named by its commit.
        return _wrapped(module.to(device), tokenizer, commit=folder.name if source == "hub" else "")


def _wrapped(module: Any, tokenizer: Any, commit: str = "") -> LanguageModel:
    masked = families.is_masked(module.config.model_type)
    return (MaskedLanguageModel if masked else LanguageModel)(module, tokenizer, commit)


def _class_of(kind: object) -> Any:
    """transformers' class for a `model_type`."""
    from transformers import AutoModelForCausalLM, AutoModelForMaskedLM

    return AutoModelForMaskedLM if families.is_masked(kind) else AutoModelForCausalLM


def _from_hub(model: Mapping[str, Any]) -> Path:
    """The snapshot's folder, downloaded when it is not in the cache. A network that fails midway raises its own error.

    What is cached is used as it is and nobody is asked, so that a sweep's weights do not change when `main` moves.
    """
    from huggingface_hub import snapshot_download

    repo, revision = repo_of(model), revision_of(model)
    folder = hub.cached_folder(repo, revision)
    if folder is None:
        trouble = hub.unreachable(repo, revision)
        if trouble:
            raise UserError(f"cannot load {repo}: {trouble}", where="model.path")
        folder = Path(snapshot_download(repo, revision=revision, allow_patterns=hub.WANTED))
    return folder


def _pretrained(folder: Path, kind: object, dtype: torch.dtype) -> tuple[Any, Any]:
    from transformers import AutoTokenizer

    where: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    try:
        module, report = _class_of(kind).from_pretrained(
            str(folder),
            dtype=dtype,
            use_safetensors=True,
            attn_implementation="sdpa",
            output_loading_info=True,
            **where,
        )
        tokenizer = AutoTokenizer.from_pretrained(str(folder), **where)
    except (OSError, ValueError, RuntimeError) as error:
        reason = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise UserError(f"cannot load {folder}: {reason}", where="model.path") from error
    # transformers fills absent tensors with random numbers and warns; a trial must not run on such a model.
    missing = sorted(report["missing_keys"])
    if missing:
        raise UserError(
            f"the weights lack {len(missing)} tensors of the architecture ({missing[0]})", where=str(folder)
        )
    return module, tokenizer


def _random(arch: Mapping[str, Any], seed: int, dtype: torch.dtype) -> tuple[Any, Any]:
    from transformers import AutoConfig, AutoTokenizer

    kind = arch.get("model_type")
    families.family(kind, where="model.arch")
    tokenizer = AutoTokenizer.from_pretrained(str(DEMO), local_files_only=True)
    ids: dict[str, Any] = {}
    if families.is_masked(kind):
        tokenizer.add_special_tokens({"mask_token": "<mask>"})  # the last id
        ids["pad_token_id"] = tokenizer.pad_token_id  # the positions are counted from it
    if families.size(arch, "vocab_size") < len(tokenizer):
        raise UserError(
            f"random weights are used with the demo tokenizer, which has {len(tokenizer)} tokens",
            where="model.arch.vocab_size",
            fix=f"set it to {len(tokenizer)} or more",
        )
    config = AutoConfig.for_model(**{**arch, **ids})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = _class_of(kind).from_config(config, dtype=dtype, attn_implementation="sdpa")
    return module, tokenizer


@contextmanager
def _quiet() -> Iterator[None]:
    """No progress bars and no warnings of transformers: what can go wrong is checked here and said in one line."""
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
