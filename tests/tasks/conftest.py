"""Fixtures of the task tests: rows on disk, small real tokenizers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def write_jsonl() -> Callable[..., Path]:
    def write(folder: Path, **splits: list[dict[str, Any]]) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        for split, rows in splits.items():
            (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        return folder

    return write


def _byte_pair_tokenizer(with_bos: bool) -> Any:
    """A byte-level BPE trained on a few sentences, in which " great", " terrible", " Yes" and " No" are one token."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    corpus = [
        "It was great It was terrible Yes or No? Yes No the film was great, the film was terrible so No, Yes"
    ] * 20
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator(corpus, trainer)
    if with_bos:
        core.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return PreTrainedTokenizerFast(tokenizer_object=core, bos_token="<s>", eos_token="</s>")


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    return _byte_pair_tokenizer(with_bos=True)


@pytest.fixture(scope="session")
def tokenizer_without_bos() -> Any:
    return _byte_pair_tokenizer(with_bos=False)
