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
from zo_sweeps.engine import losses
from zo_sweeps.engine.batch import collate
from zo_sweeps.engine.estimators.rge import RGE
from zo_sweeps.engine.evaluate import evaluate
from zo_sweeps.engine.losses import token_logprobs
from zo_sweeps.engine.objectives.label_words import LabelWords
from zo_sweeps.engine.perturbations.gaussian import Gaussian
from zo_sweeps.engine.score import score
from zo_sweeps.engine.spaces.full import Full
from zo_sweeps.engine.spaces.lora import LoRA
from zo_sweeps.methods.evaluation import Mode
from zo_sweeps.models.causal import MaskedLanguageModel
from zo_sweeps.models.identity import DEMO, status
from zo_sweeps.models.load import load
from zo_sweeps.tasks.encode import Example, encode_masked
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
def examples(model: MaskedLanguageModel, spec: TaskSpec) -> list[Example]:
    return [encode_masked(spec, row, model.tokenizer, 64) for row in ROWS]


def plain_logits(model: MaskedLanguageModel, example: Example) -> torch.Tensor:
    """The label words' logits at the mask, from the whole model on one unpadded row."""
    row = example.candidates[0].ids[:-1]
    logits = model.module(input_ids=torch.tensor([row])).logits[0, row.index(model.mask_id)]
    return logits[[c.ids[-1] for c in example.candidates]]


def plain_loss(model: MaskedLanguageModel, examples: list[Example]) -> torch.Tensor:
    return torch.stack([F.cross_entropy(plain_logits(model, e), torch.tensor(e.gold)) for e in examples]).mean()


def test_a_row_is_the_text_with_one_mask_and_a_word_a_candidate(model: MaskedLanguageModel, examples: list[Example]):
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


def test_hidden_states_do_not_depend_on_padding_or_on_the_batch(
    model: MaskedLanguageModel, examples: list[Example]
) -> None:
    batch = collate(examples, model.pad_id, multiple_of=32)
    assert int((batch.attention_mask == 0).sum()) > 20
    with torch.inference_mode():
        hidden = model.hidden(batch.input_ids, batch.attention_mask)
        for n, example in enumerate(examples):
            row = example.candidates[0].ids[:-1]
            alone = model.hidden(torch.tensor([row]))[0]
            torch.testing.assert_close(hidden[n, : len(row)], alone, atol=2e-6, rtol=1e-5)


def test_attention_looks_both_ways(model: MaskedLanguageModel, examples: list[Example]) -> None:
    row = torch.tensor([examples[0].candidates[0].ids[:-1]])
    other = row.clone()
    other[0, -2] = 77
    with torch.inference_mode():
        moved = (model.hidden(row) - model.hidden(other)).abs().amax(dim=2)[0]
    assert (moved > 1e-4).all()


def test_hidden_then_head_are_the_logits_of_the_model(model: MaskedLanguageModel, examples: list[Example]) -> None:
    row = torch.tensor([examples[1].candidates[0].ids[:-1]])
    with torch.inference_mode():
        torch.testing.assert_close(model.head(model.hidden(row)[0]), model.module(input_ids=row).logits[0])


def test_the_loss_is_the_cross_entropy_over_the_label_words_logits_at_the_mask(
    model: MaskedLanguageModel, examples: list[Example]
) -> None:
    batch = collate(examples, model.pad_id)
    with torch.inference_mode():
        assert len(batch.place_row) == 3  # one place a row
        got = losses.label_words(token_logprobs(model, batch, copies=2), batch)
        torch.testing.assert_close(got, plain_loss(model, examples).expand(2), rtol=1e-5, atol=1e-6)
        loss, predictions, _ = score(model, examples, model.pad_id, LabelWords(), torch.device("cpu"))
        assert predictions == [int(plain_logits(model, e).argmax()) for e in examples]
        assert loss == pytest.approx(float(plain_loss(model, examples)), rel=1e-5)


def test_both_spaces_move_a_masked_model_as_weights_written_in_place_do(examples: list[Example]) -> None:
    for name in ("full", "lora"):
        model = load(make(source="random", arch=ARCH), torch.float32, "cpu")
        if name == "full":
            space = Full().install(model.module, (), 0)
        else:
            lora = LoRA(rank=4, alpha=8.0, targets=("q", "v"))
            space = lora.install(model.module, list(model.target_modules(lora.targets)), 0)
        batch = collate(examples, model.pad_id)
        objective = lambda P, model=model, batch=batch: losses.label_words(token_logprobs(model, batch, P), batch)
        points = RGE(2, 1e-1).points(0, 1)
        mode = Mode.BOTH if name == "lora" else Mode.SEQUENTIAL
        found = evaluate(objective, model.module, space, Gaussian(), points, mode)
        base = {n: p.detach().clone() for n, p in space.params.items()}
        for point, value in zip(points, found, strict=True):
            with torch.no_grad():
                for n, p in space.params.items():
                    p += point.scale * Gaussian().sample(point.key, n, p.shape, p.device)
                assert value == pytest.approx(objective(1).item(), rel=1e-5)
                for n, p in space.params.items():
                    p.copy_(base[n])


def test_targets_are_told_apart_by_their_whole_names(model: MaskedLanguageModel) -> None:
    every = model.target_modules(["q", "k", "v", "o", "up", "down"])
    assert len(every) == 12
    for role, end in model.arch.projections.items():
        found = model.target_modules([role])
        assert len(found) == 2
        assert all(name.endswith(end) for name in found)
        assert {tuple(layer.weight.shape) for layer in found.values()} == {model.arch.linears[role]}
    assert list(model.target_modules(["down"])) == [f"roberta.encoder.layer.{i}.output.dense" for i in range(2)]
    assert not set(model.target_modules(["o"])) & set(model.target_modules(["down"]))
    with pytest.raises(UserError, match="unknown target 'gate'"):
        model.target_modules(["gate"])


def test_the_parameter_count_is_that_of_the_model(model: MaskedLanguageModel) -> None:
    counted = status(make(source="random", arch=ARCH))
    assert counted.available, counted.why
    assert counted.parameters == sum(p.numel() for p in model.module.parameters())


def test_positions_leave_out_the_padding_s(model: MaskedLanguageModel) -> None:
    assert model.max_positions == 65
    with torch.inference_mode():
        model.hidden(torch.full((1, 65), 5))
        with pytest.raises((IndexError, RuntimeError)):
            model.hidden(torch.full((1, 66), 5))


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


def test_a_saved_masked_model_loads_with_the_same_logits(model: MaskedLanguageModel, tmp_path: Path) -> None:
    model.module.save_pretrained(tmp_path)
    model.tokenizer.save_pretrained(tmp_path)
    again = load(local(tmp_path), torch.float32, "cpu")
    assert isinstance(again, MaskedLanguageModel)
    row = torch.tensor([[1, 5, model.mask_id, 9, 2]])
    with torch.inference_mode():
        assert torch.equal(model.head(model.hidden(row)[0]), again.head(again.hidden(row)[0]))
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
