"""RoBERTa: padding, heads, targets, label words, and the loss at the mask as MeZO's RoBERTa part computes it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from tests.models.common import local, make
from tests.tasks.common import spec_of
from zo_sweeps.core.errors import UserError
from zo_sweeps.engine.batch import collate
from zo_sweeps.engine.losses import score, token_logprobs
from zo_sweeps.engine.objectives.label_words import LabelWords
from zo_sweeps.models.causal import MaskedLanguageModel
from zo_sweeps.models.identity import DEMO
from zo_sweeps.models.load import load
from zo_sweeps.tasks.encode import EncodedExample, encode_masked
from zo_sweeps.tasks.spec import TaskSpec

pytestmark = pytest.mark.unit
ARCH = {
    "model_type": "roberta",
    "vocab_size": 4104,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 66,
    "type_vocab_size": 1,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "initializer_range": 0.2,
}
TASK = {
    "name": "t",
    "display": "T",
    "kind": "classification",
    "metric": "accuracy",
    "fields": ["a", "b"],
    "label_field": "label",
    "dialects": {"m": {"loss": "label_words", "template": "{{ a }} {{ mask }}, {{ b }}", "options": ["bad", "good"]}},
}
ROWS = [
    {"a": "The film is", "b": "and so on", "label": 0},
    {"a": "I", "b": "he said of the long and tiresome story", "label": 1},
    {"a": "A quite moving story with the best actors of the year is", "b": "no", "label": 1},
]


@pytest.fixture(scope="module")
def model() -> MaskedLanguageModel:
    made = load(make(source="random", arch=ARCH), torch.float32, "cpu")
    assert isinstance(made, MaskedLanguageModel)
    return made


@pytest.fixture(scope="module")
def spec() -> TaskSpec:
    return spec_of(TASK, "m")


@pytest.fixture(scope="module")
def examples(model: MaskedLanguageModel, spec: TaskSpec) -> list[EncodedExample]:
    return [encode_masked(spec, row, model.tokenizer, 64) for row in ROWS]


def plain_logits(model: MaskedLanguageModel, example: EncodedExample) -> torch.Tensor:
    """The label words' logits at the mask, from the whole model on one unpadded row."""
    row = example.candidates[0].ids[:-1]
    logits = model.module(input_ids=torch.tensor([row])).logits[0, row.index(model.mask_id)]
    return logits[[c.ids[-1] for c in example.candidates]]


def plain_loss(model: MaskedLanguageModel, examples: list[EncodedExample]) -> torch.Tensor:
    return torch.stack([F.cross_entropy(plain_logits(model, e), torch.tensor(e.gold)) for e in examples]).mean()


def test_a_row_is_the_text_with_one_mask_and_a_word_a_candidate(
    model: MaskedLanguageModel, examples: list[EncodedExample]
):
    for example, row in zip(examples, ROWS, strict=True):
        ids = example.candidates[0].ids[:-1]
        assert ids.count(model.mask_id) == 1
        assert {c.ids[:-1] for c in example.candidates} == {ids}
        assert all(ids[c.mask_at] == model.mask_id and c.answer_length == 1 for c in example.candidates)
        assert (ids[0], ids[-1]) == (model.front[0], model.eos_id)
        words = [model.tokenizer.decode([c.ids[-1]]).strip() for c in example.candidates]
        assert words == ["bad", "good"]
        left, right = ids[1 : example.candidates[0].mask_at], ids[example.candidates[0].mask_at + 1 : -1]
        assert model.tokenizer.decode(left).strip() == row["a"]
        assert model.tokenizer.decode(right).replace(" ", "") == f",{row['b']}".replace(" ", "")
        assert example.gold == row["label"]


@pytest.mark.parametrize("length", [8, 9, 12])
def test_a_long_text_keeps_what_is_next_to_the_mask(length: int, model: MaskedLanguageModel, spec: TaskSpec) -> None:
    for row in ROWS:
        whole = encode_masked(spec, row, model.tokenizer, 64).candidates[0]
        cut = encode_masked(spec, row, model.tokenizer, length).candidates[0]
        body, at = whole.ids[1:-2], whole.mask_at - 1
        kept, new_at = cut.ids[1:-2], cut.mask_at - 1
        assert len(cut.ids) - 1 == min(length, len(whole.ids) - 1)
        assert kept == body[at - new_at : at - new_at + len(kept)]
        short = min(at, len(body) - at - 1)
        assert min(new_at, len(kept) - new_at - 1) >= min(short, (length - 3) // 2)


def test_a_label_word_of_several_tokens_is_refused(model: MaskedLanguageModel) -> None:
    wording = {**TASK["dialects"]["m"], "options": ["bad", "incomprehensibly"]}
    spec = spec_of({**TASK, "dialects": {"m": wording}}, "m")
    with pytest.raises(UserError, match=r"the label word 'incomprehensibly' is \d tokens"):
        encode_masked(spec, ROWS[0], model.tokenizer, 64)


def test_attention_looks_both_ways(model: MaskedLanguageModel, examples: list[EncodedExample]) -> None:
    row = torch.tensor([examples[0].candidates[0].ids[:-1]])
    other = row.clone()
    other[0, -2] = 77
    with torch.inference_mode():
        moved = (model.hidden(row) - model.hidden(other)).abs().amax(dim=2)[0]
    assert (moved > 1e-4).all()


def test_the_loss_is_the_cross_entropy_over_the_label_words_logits_at_the_mask(
    model: MaskedLanguageModel, examples: list[EncodedExample]
) -> None:
    batch = collate(examples, model.pad_id)
    with torch.inference_mode():
        assert len(batch.place_row) == 3  # one place a row
        got = LabelWords().loss(token_logprobs(model, batch, copies=2), batch)
        torch.testing.assert_close(got, plain_loss(model, examples).expand(2), rtol=1e-5, atol=1e-6)
        loss, predictions, _ = score(model, examples, model.pad_id, LabelWords(), torch.device("cpu"))
        assert predictions == [int(plain_logits(model, e).argmax()) for e in examples]
        assert loss == pytest.approx(float(plain_loss(model, examples)), rel=1e-5)


def test_a_pad_id_that_is_not_the_model_s_is_refused(model: MaskedLanguageModel, tmp_path: Path) -> None:
    model.module.save_pretrained(tmp_path)
    model.tokenizer.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "pad_token_id": 1}))
    with pytest.raises(UserError, match="the tokenizer pads with 0, the model with 1"):
        load(local(tmp_path), torch.float32, "cpu")


def test_random_weights_take_the_pad_id_of_the_tokenizer_that_they_are_used_with() -> None:
    made = load(make(source="random", arch={**ARCH, "pad_token_id": 1}), torch.float32, "cpu")
    assert made.module.config.pad_token_id == made.pad_id == 0


def test_a_masked_model_does_not_generate(model: MaskedLanguageModel) -> None:
    with pytest.raises(UserError, match="a masked model cannot generate"):
        model.generate([[1, 5]])


def test_a_classifier_is_not_a_masked_language_model(model: MaskedLanguageModel, tmp_path: Path) -> None:
    model.module.save_pretrained(tmp_path)
    model.tokenizer.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["architectures"] = ["RobertaForSequenceClassification"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match="not a masked language model but RobertaForSequenceClassification"):
        load(local(tmp_path), torch.float32, "cpu")


def test_a_tokenizer_without_a_mask_is_refused(model: MaskedLanguageModel, tmp_path: Path) -> None:
    model.module.save_pretrained(tmp_path)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(DEMO / file, tmp_path / file)
    with pytest.raises(UserError, match="has no mask token"):
        load(local(tmp_path), torch.float32, "cpu")
