"""Every task whose real data is at hand: all rows render and encode with a real model's tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.tasks.common import TASK_FILES, cases, load_task, read_split, spec_of, typed
from zo_sweeps.methods.parts import Split
from zo_sweeps.tasks.data import check, load_splits
from zo_sweeps.tasks.encode import encode, render
from zo_sweeps.tasks.spec import MASK

pytestmark = [pytest.mark.unit, pytest.mark.realdata]

PAPER = Split(train=1000, dev=500, test=1000, seed=0)


@pytest.fixture(scope="module", params=["imdb-llama-6m", "stories260K"])
def real_tokenizer(request: pytest.FixtureRequest, shared: Path) -> Any:
    folder = shared / "models" / request.param
    if not folder.is_dir():
        pytest.skip(f"no {folder} (ZO_SHARED)")
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)


@pytest.mark.parametrize(("name", "dialect"), cases())
def test_real_rows_encode(name: str, dialect: str, real_tokenizer: Any, shared: Path) -> None:
    task, data_dir = load_task(name), str(shared / "data")
    spec = spec_of(task, dialect)
    status = check(spec, typed(task), data_dir)
    if not status.available:
        pytest.skip(status.why)
    for row in read_split(spec, typed(task), data_dir, "train"):
        render(spec, row)
    if spec.objective.masked:
        for row in read_split(spec, typed(task), data_dir, "test"):
            assert render(spec, row).text.count(MASK) == 1
        return  # encoded for a masked model alone
    if spec.chat:
        return  # these models have no chat template
    golds, rows = set(), read_split(spec, typed(task), data_dir, "test")
    for row in [*rows[:60], *{spec.gold(row): row for row in rows}.values()]:
        prompt = render(spec, row)
        example = encode(spec, row, real_tokenizer, 512, front=(real_tokenizer.bos_token_id,))
        golds.add(example.gold)
        assert len(example.candidates) == len(prompt.options)
        for candidate, option in zip(example.candidates, prompt.options, strict=True):
            assert len(candidate.ids) <= 512
            assert candidate.ids[0] == real_tokenizer.bos_token_id
            answer = real_tokenizer.decode(candidate.ids[-candidate.answer_length :])
            assert answer.strip() == option.strip()
        assert len(example.prompt_ids) <= 512 - spec.max_new_tokens
    assert golds == ({0} if spec.kind.generates else set(range(len(spec.labels))))


@pytest.mark.parametrize("name", TASK_FILES)
def test_real_splits_have_the_protocol_s_sizes(name: str, shared: Path) -> None:
    task, data_dir = load_task(name), str(shared / "data")
    spec = spec_of(task, next(iter(task["dialects"])))
    status = check(spec, typed(task), data_dir)
    if not status.available:
        pytest.skip(status.why)
    splits = load_splits(spec, typed(task), data_dir, PAPER)
    assert len(splits.train) == min(1000, status.sizes["train"])
    assert len(splits.dev) == min(task.get("dev_size", 500), status.sizes["validation"])
    assert len(splits.test) == min(1000, status.sizes["test"])
