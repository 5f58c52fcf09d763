"""Texts that share a row: nothing is lost, nothing is seen across, and the losses are those of each text alone."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
import torch

from tests.engine.conftest import Candidate, Example, TinyModel, make_examples, targets
from zo_sweeps.engine.batch import collate
from zo_sweeps.engine.losses import candidates, forwards, score, token_logprobs, tokens
from zo_sweeps.engine.objectives.candidates import Candidates
from zo_sweeps.engine.packing import CAPACITY, pack, shared_tokens
from zo_sweeps.engine.spaces.lora_fa import LoRAFA
from zo_sweeps.engine.spaces.prefix import PrefixTuning
from zo_sweeps.models.causal import own_text

pytestmark = pytest.mark.unit


def unlike_lengths(n: int = 7) -> list[Example]:
    """Texts of 3 to about 40 tokens."""
    draw = random.Random(5)
    return [
        Example(
            tuple(
                Candidate((*(draw.randrange(1, 97) for _ in range(3 + 6 * i)), *draw.choices(range(1, 97), k=k)), k)
                for k in (1, 2)
            ),
            i % 2,
        )
        for i in range(n)
    ]


@pytest.mark.parametrize("seed", range(20))
def test_every_text_is_in_one_row_and_no_row_is_longer_than_the_longest_may_be(seed: int) -> None:
    draw = random.Random(seed)
    lengths = [draw.randint(1, draw.choice([30, 300, 2000])) for _ in range(draw.randint(1, 40))]
    rows = pack(lengths, 8)
    assert sorted(text for row in rows for text in row) == list(range(len(lengths)))
    assert max(sum(lengths[t] for t in row) for row in rows) <= max(CAPACITY, *lengths)


def test_texts_of_one_length_stand_alone_and_those_of_unlike_lengths_share() -> None:
    assert pack([40] * 5, 8) == [[0], [1], [2], [3], [4]]
    assert pack([38, 39, 36], 8) == [[0], [1], [2]]  # 120 tokens would become 113: not worth a mask
    assert pack([60, 12, 20, 30], 8) == [[0, 3, 2, 1]]
    assert pack([300, 140, 110, 20], 8) == [[0], [1, 2, 3]]


def test_the_batch_holds_the_tokens_of_every_text_and_little_else() -> None:
    examples = unlike_lengths()
    batch = collate(examples, pad_id=0)
    assert batch.positions is not None
    texts = {c.ids[:-1] for e in examples for c in e.candidates}
    assert int(batch.attention_mask.sum()) == sum(map(len, texts))
    assert batch.input_ids.numel() < 1.1 * sum(map(len, texts))
    starts = ((batch.positions == 0) & batch.attention_mask.bool()).nonzero().tolist()
    found = set()
    for n, column in starts:
        length = next(len(t) for t in texts if batch.input_ids[n, column : column + len(t)].tolist() == list(t))
        assert batch.positions[n, column : column + length].tolist() == list(range(length))
        found.add(tuple(batch.input_ids[n, column : column + length].tolist()))
    assert found == texts


def alone(model: TinyModel, examples: list[Example]) -> torch.Tensor:
    return torch.cat([token_logprobs(model, collate([e], pad_id=0, multiple_of=1)) for e in examples], dim=1)


@dataclass(frozen=True)
class One:
    """An example of one candidate only: its batch has nothing to share a row with."""

    candidates: tuple[Candidate, ...]
    gold: int = 0


def split(examples: list[Example]) -> list[One]:
    return [One((candidate,)) for example in examples for candidate in example.candidates]


def long_options(n: int = 6) -> list[Example]:
    """Prompts of 4 to 24 tokens with two to four options of 1 to 5; the last example has those of the first."""
    draw, made = random.Random(9), []
    for i in range(n):
        prompt = draw.choices(range(1, 97), k=4 + 4 * i)
        answers = [draw.choices(range(1, 97), k=draw.randint(1, 5)) for _ in range(2 + i % 3)]
        made.append(Example(tuple(Candidate((*prompt, *answer), len(answer)) for answer in answers), i % 2))
    return [*made, made[0]]


@pytest.mark.parametrize("copies", [1, 3])
@pytest.mark.parametrize("shared", [False, True])
def test_the_losses_are_those_of_each_text_alone(copies: int, shared: bool, model: TinyModel) -> None:
    examples = long_options() if shared else unlike_lengths()
    batch = collate(examples, pad_id=0, shared=shared)
    with torch.inference_mode():
        got = token_logprobs(model, batch, copies=copies)
        expected = alone(model, split(examples)).expand(copies, -1)
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


def test_a_prompt_is_in_the_batch_once_for_all_its_options() -> None:
    examples = long_options()
    batch = collate(examples, pad_id=0, shared=True)
    texts = [{c.ids[:-1] for c in e.candidates} for e in examples[:-1]]
    prompts = [len(e.candidates[0].ids) - e.candidates[0].answer_length for e in examples[:-1]]
    once = sum(p + sum(len(t) - p for t in own) for p, own in zip(prompts, texts, strict=True))
    assert int(batch.attention_mask.sum()) == once
    assert int(collate(examples, pad_id=0).attention_mask.sum()) == sum(len(t) for own in texts for t in own)
    assert batch.input_ids.numel() < 1.2 * once
    places = [*zip(batch.place_row.tolist(), batch.place_column.tolist(), strict=True)]
    assert len({*places}) == len(places), "the token after the prompt is predicted at one place for all options"
    assert collate(examples, pad_id=0, packed=False, shared=True).positions is None, "as in released code"
    assert collate(unlike_lengths(), pad_id=0, gold_only=True, shared=True).input_ids.equal(
        collate(unlike_lengths(), pad_id=0, gold_only=True).input_ids
    )


def test_a_beginning_is_shared_if_that_saves_an_eighth_of_the_tokens() -> None:
    assert shared_tokens([(1, 2, 3), (1, 2, 4, 5), (1, 2)]) == 2
    assert shared_tokens([(1, 2, 3)]) == 0, "nothing to share it with"
    assert shared_tokens([(1, 2), (3, 2)]) == 0
    assert shared_tokens([(1, *[2] * 3), (1, *[3] * 3)]) == 1
    assert shared_tokens([(1, *[2] * 4), (1, *[3] * 4)]) == 0, "one of 10"


def test_an_option_sees_the_prompt_and_itself() -> None:
    """The texts p p a, p p b b and p p, and a text q: who sees whom, written out."""
    seen = own_text(torch.tensor([[0, 1, 2, 2, 3, 0]]))[0, 0]
    rows = ["100000", "110000", "111000", "110100", "110110", "000001"]
    assert ["".join(str(int(x)) for x in row) for row in seen] == rows


def test_a_split_scores_the_same_with_prompts_shared_in_forwards_of_bounded_size(model: TinyModel) -> None:
    examples, of = long_options(), (0, Candidates(), torch.device("cpu"))
    loss, choices, scores = score(model, examples, *of)
    both = score(model, examples, *of, shared=True, tokens_per_forward=64)
    assert both.loss == pytest.approx(loss, rel=1e-6)
    assert both.choices == choices
    for ours, theirs in zip(both.scores, scores, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-5)
    chunks = forwards(examples, False, 64, shared=True)
    assert sorted(i for chunk in chunks for i in chunk) == list(range(len(examples)))
    sizes = [collate([examples[i] for i in chunk], 0, shared=True, multiple_of=1).input_ids.numel() for chunk in chunks]
    assert max(sizes) <= 64
    assert len(chunks) < len(forwards(examples, False, 64))


def test_each_point_of_a_batched_space_sees_every_text_alone(model: TinyModel) -> None:
    space = LoRAFA(rank=4, alpha=4).install(model.module, targets(model), 0)
    generator = torch.Generator().manual_seed(1)
    values = {n: torch.randn(3, *p.shape, generator=generator) for n, p in space.params.items()}
    examples = unlike_lengths()
    with torch.inference_mode():
        space.hold(values)
        got = token_logprobs(model, collate(examples, pad_id=0), copies=3)
        for point in range(3):
            space.hold({n: v[point : point + 1] for n, v in values.items()})
            torch.testing.assert_close(got[point : point + 1], alone(model, split(examples)), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("shared", [False, True])
def test_a_prefix_stands_before_every_text_of_a_row(shared: bool, model: TinyModel) -> None:
    space = PrefixTuning(length=3).install(model.module, [], 0)
    generator = torch.Generator().manual_seed(1)
    values = {n: p + torch.randn(2, *p.shape, generator=generator) for n, p in space.params.items()}
    examples = long_options() if shared else unlike_lengths()
    batch = collate(examples, pad_id=0, shared=shared)
    assert batch.positions is not None
    with torch.inference_mode():
        space.hold(values)
        got = token_logprobs(model, batch, copies=2)
        for point in range(2):
            space.hold({n: v[point : point + 1] for n, v in values.items()})
            torch.testing.assert_close(got[point : point + 1], alone(model, split(examples)), rtol=1e-4, atol=1e-4)


def test_a_text_is_not_touched_by_its_neighbours(model: TinyModel) -> None:
    batch = collate(unlike_lengths(), pad_id=0)
    assert batch.positions is not None
    first = (batch.positions[0, 1:] == 0).nonzero()[0, 0] + 1  # where the second text of the row begins
    other = batch.input_ids.clone()
    other[0, :first] = 3
    with torch.inference_mode():
        before = model.hidden(batch.input_ids, batch.attention_mask, batch.positions)
        after = model.hidden(other, batch.attention_mask, batch.positions)
    assert torch.equal(before[0, first:], after[0, first:])
    assert not torch.equal(before[0, :first], after[0, :first])


def test_a_masked_model_s_texts_stand_alone() -> None:
    @dataclass(frozen=True)
    class Masked:
        ids: tuple[int, ...]
        answer_length: int = 1
        mask_at: int = 1

    examples = [One((Masked(tuple(range(1, n))),)) for n in (5, 30, 9)]
    batch = collate(examples, pad_id=0)
    assert batch.positions is None
    assert batch.input_ids.shape[0] == 3


def test_texts_alike_in_length_need_no_mask() -> None:
    assert collate([One(make_examples(1)[0].candidates[:1])] * 3, pad_id=0).positions is None


@pytest.mark.parametrize("every_position", [False, True])
@pytest.mark.parametrize("packed", [False, True])
def test_the_losses_do_not_depend_on_what_shares_a_row_or_where_logits_are_computed(
    packed: bool, every_position: bool, model: TinyModel
) -> None:
    examples = unlike_lengths()
    batch = collate(examples, pad_id=0, packed=packed, every_position=every_position)
    with torch.inference_mode():
        for loss in (candidates, tokens):
            value = loss(token_logprobs(model, batch, copies=2), batch)
            expected = loss(token_logprobs(model, collate(examples, pad_id=0), copies=2), batch)
            torch.testing.assert_close(value, expected, rtol=1e-5, atol=1e-5)


def test_unpacked_rows_are_a_padded_row_per_candidate_and_share_nothing() -> None:
    examples = [*unlike_lengths(), make_examples(1, answer=1)[0]]  # the last one's candidates are one text
    batch = collate(examples, pad_id=0, packed=False)
    lengths = [len(c.ids) - 1 for e in examples for c in e.candidates]
    assert batch.positions is None
    assert batch.attention_mask.sum(dim=1).tolist() == lengths
    assert batch.input_ids.shape == (len(lengths), 8 * -(-max(lengths) // 8))


@pytest.mark.parametrize("every_position", [False, True])
def test_logits_are_computed_at_the_answers_or_at_every_position(every_position: bool, model: TinyModel) -> None:
    examples, seen = unlike_lengths(), []
    batch = collate(examples, pad_id=0, gold_only=True, packed=False, every_position=every_position)
    hook = model.module.lm_head.register_forward_hook(lambda _, args, logits: seen.append(tuple(logits.shape)))
    with torch.inference_mode():
        token_logprobs(model, batch, copies=3)
    hook.remove()
    answers = sum(e.candidates[e.gold].answer_length for e in examples)
    assert seen == [(3 * (batch.input_ids.numel() if every_position else answers), 97)]
