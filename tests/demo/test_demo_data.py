"""The demo task and the demo checkpoint that ship in the package: what the quickstart stands on."""

from __future__ import annotations

import json
import re
from importlib.resources import files
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.unit

PACKAGE = Path(str(files("zo_sweeps")))
COUNTS = {"train": 320, "validation": 120, "test": 200}


def rows(split: str) -> list[dict[str, Any]]:
    lines = (PACKAGE / "tasks" / "demo" / f"{split}.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def words(sentence: str) -> tuple[str, ...]:
    """Lower case, letters and digits only: two sentences that differ in punctuation alone are the same."""
    return tuple(re.sub(r"[^a-z0-9 ]", "", sentence.lower().replace("-", " ")).split())


def ngrams(split: str, n: int) -> set[tuple[str, ...]]:
    return {w[i : i + n] for w in (words(row["sentence"]) for row in rows(split)) for i in range(len(w) - n + 1)}


@pytest.mark.parametrize("split", COUNTS)
def test_a_split_has_its_size_and_as_many_positive_as_negative_remarks(split: str) -> None:
    labels = [row["label"] for row in rows(split)]
    assert len(labels) == COUNTS[split]
    assert (labels.count(0), labels.count(1)) == (COUNTS[split] // 2, COUNTS[split] // 2)


@pytest.mark.parametrize("split", COUNTS)
def test_a_row_is_one_remark_of_5_to_25_words_and_its_label(split: str) -> None:
    for row in rows(split):
        assert set(row) == {"sentence", "label"}
        assert row["sentence"] == row["sentence"].strip()
        assert "\n" not in row["sentence"]
        assert 5 <= len(row["sentence"].split()) <= 25, row["sentence"]


@pytest.mark.parametrize("split", COUNTS)
def test_labels_are_not_sorted_so_that_a_prefix_of_a_split_is_a_fair_sample(split: str) -> None:
    labels = [row["label"] for row in rows(split)]
    first = sum(labels[: len(labels) // 2])
    assert 0.35 < first / (len(labels) // 2) < 0.65


def test_no_remark_stands_twice() -> None:
    everything = [words(row["sentence"]) for split in COUNTS for row in rows(split)]
    assert len(set(everything)) == len(everything) == sum(COUNTS.values())


@pytest.mark.parametrize(("one", "other"), list(combinations(COUNTS, 2)))
def test_splits_share_no_run_of_eight_words(one: str, other: str) -> None:
    assert not ngrams(one, 8) & ngrams(other, 8)


def test_the_checkpoint_loads_and_has_the_size_that_its_card_states() -> None:
    import transformers

    folder = PACKAGE / "models" / "demo"
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype="bfloat16")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    assert sum(p.numel() for p in model.parameters()) == 5_868_800
    assert "5,868,800" in (folder / "README.md").read_text(encoding="utf-8")
    assert len(tokenizer) == model.config.vocab_size == 4096
    assert (tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id) == (0, 1, 2)
    assert [len(tokenizer(word, add_special_tokens=False).input_ids) for word in (" terrible", " great")] == [1, 1]
