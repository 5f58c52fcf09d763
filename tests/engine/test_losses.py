"""Losses and scores against one sequence a candidate with logits at all positions, as MeZO computes them."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from tests.engine.conftest import Example, TinyModel, make_examples
from zo_sweeps.engine import losses
from zo_sweeps.engine.batch import collate, indices
from zo_sweeps.engine.losses import candidate_scores, score, token_logprobs
from zo_sweeps.engine.objectives.candidates import Candidates
from zo_sweeps.engine.objectives.tokens import Tokens

pytestmark = pytest.mark.unit


def plain_answer_logprobs(model: TinyModel, example: Example) -> list[torch.Tensor]:
    out = []
    for candidate in example.candidates:
        ids = torch.tensor([candidate.ids])
        logp = model.module(ids).logits.log_softmax(-1)[0, :-1]
        picked = logp.gather(1, ids[0, 1:, None])[:, 0]
        out.append(picked[-candidate.answer_length :])
    return out


def plain_candidates(model: TinyModel, examples: list[Example]) -> torch.Tensor:
    per = []
    for example in examples:
        scores = torch.stack([lp.mean() for lp in plain_answer_logprobs(model, example)])
        per.append(F.cross_entropy(scores[None], torch.tensor([example.gold])))
    return torch.stack(per).mean()


def plain_tokens(model: TinyModel, examples: list[Example]) -> torch.Tensor:
    return -torch.cat([plain_answer_logprobs(model, e)[e.gold] for e in examples]).mean()


def mixed() -> list[Example]:
    return (
        make_examples(4, seed=1, options=2) + make_examples(3, seed=2, options=3) + make_examples(3, seed=3, answer=1)
    )


def test_candidate_loss_is_that_of_one_sequence_a_candidate(model: TinyModel) -> None:
    batch = collate(mixed(), pad_id=0)
    got = losses.candidates(token_logprobs(model, batch), batch)
    torch.testing.assert_close(got[0], plain_candidates(model, mixed()), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("gold_only", [True, False])
def test_token_loss_is_the_mean_over_gold_answer_tokens(gold_only: bool, model: TinyModel) -> None:
    batch = collate(mixed(), pad_id=0, gold_only=gold_only)
    got = losses.tokens(token_logprobs(model, batch), batch)
    torch.testing.assert_close(got[0], plain_tokens(model, mixed()), rtol=1e-6, atol=1e-6)


def test_copies_are_independent_groups(model: TinyModel) -> None:
    batch = collate(mixed(), pad_id=0)
    got = losses.candidates(token_logprobs(model, batch, copies=3), batch)
    torch.testing.assert_close(got, plain_candidates(model, mixed()).expand(3), rtol=1e-6, atol=1e-6)


def test_one_token_options_of_a_prompt_share_one_text_and_one_place() -> None:
    examples = make_examples(5, answer=1)
    batch = collate(examples, pad_id=0)
    assert int(batch.attention_mask.sum()) == sum(len(e.candidates[0].ids) - 1 for e in examples)
    assert len(batch.place_row) == 5
    assert len(batch.token_id) == 10


@pytest.mark.parametrize("budget", [1, 40, 100_000])
def test_scores_do_not_depend_on_how_the_split_is_cut(budget: int, model: TinyModel) -> None:
    examples = mixed()
    loss, predictions, _ = score(model, examples, 0, Candidates(), torch.device("cpu"), tokens_per_forward=budget)
    expected = [int(torch.stack([lp.mean() for lp in plain_answer_logprobs(model, e)]).argmax()) for e in examples]
    assert predictions == expected
    assert loss == pytest.approx(float(plain_candidates(model, examples)), rel=1e-5)


@pytest.mark.parametrize("gold_only", [True, False])
@pytest.mark.parametrize("budget", [1, 40, 100_000])
def test_the_token_loss_of_a_split_is_the_mean_over_its_tokens_however_it_is_cut(
    budget: int, gold_only: bool, model: TinyModel
) -> None:
    examples = mixed()
    scored = score(model, examples, 0, Tokens(), torch.device("cpu"), gold_only=gold_only, tokens_per_forward=budget)
    assert scored.loss == pytest.approx(float(plain_tokens(model, examples)), rel=1e-5)


def test_absent_candidates_can_not_win(model: TinyModel) -> None:
    batch = collate(mixed(), pad_id=0)
    scores = candidate_scores(token_logprobs(model, batch), batch)[0]
    assert scores.shape == (10, 3)
    assert torch.isinf(scores[:4, 2]).all()
    assert (scores.argmax(1)[:4] < 2).all()


def test_an_epoch_sees_every_example_once_and_keeps_the_partial_batch() -> None:
    seen = [indices(3, number, 10, 4) for number in (1, 2, 3)]
    assert [len(batch) for batch in seen] == [4, 4, 2]
    assert sorted(i for batch in seen for i in batch) == list(range(10))
    assert indices(3, 4, 10, 4) != seen[0]
    assert indices(3, 2, 10, 4) == seen[1]
    assert indices(4, 2, 10, 4) != seen[1]
