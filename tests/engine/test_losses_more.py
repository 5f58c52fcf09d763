"""Non-differentiable objectives: 1 - accuracy over a minibatch, and -F1 of generated answers."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from tests.engine.conftest import Example, TinyModel, make_examples
from tests.engine.test_losses import mixed, plain_answer_logprobs
from zo_sweeps.engine import losses
from zo_sweeps.engine.batch import collate
from zo_sweeps.engine.estimators.rge import RGE
from zo_sweeps.engine.losses import token_logprobs
from zo_sweeps.engine.objectives.accuracy import Accuracy
from zo_sweeps.engine.objectives.label_words import LabelWords
from zo_sweeps.engine.perturbations.gaussian import Gaussian
from zo_sweeps.engine.schedules.constant import Constant
from zo_sweeps.engine.step import Method
from zo_sweeps.engine.train import Evaluated, Scores, StepDone, train
from zo_sweeps.engine.types import DivergedError
from zo_sweeps.engine.updates.sgd import SGD
from zo_sweeps.methods.space import FullModel

pytestmark = pytest.mark.unit


def test_accuracy_is_one_minus_the_share_of_right_answers(model: TinyModel) -> None:
    examples = mixed() + make_examples(30, seed=9, options=2)
    batch = collate(examples, pad_id=0)
    right = [
        int(torch.stack([lp.mean() for lp in plain_answer_logprobs(model, e)]).argmax()) == e.gold for e in examples
    ]
    assert 0 < sum(right) < len(right)
    got = Accuracy().loss(token_logprobs(model, batch, copies=2), batch)
    torch.testing.assert_close(got, torch.full((2,), 1 - sum(right) / len(right)))


def test_any_of_several_right_candidates_counts_as_in_evaluation(model: TinyModel) -> None:
    @dataclass(frozen=True)
    class Several(Example):
        golds: tuple[int, ...] = ()

    drawn = make_examples(24, seed=4, options=4)
    examples = [Several(e.candidates, e.gold, tuple({e.gold, (e.gold + n % 3) % 4})) for n, e in enumerate(drawn)]
    best = [int(torch.stack([lp.mean() for lp in plain_answer_logprobs(model, e)]).argmax()) for e in examples]
    right = [choice in e.golds for choice, e in zip(best, examples, strict=True)]
    assert sum(right) > sum(choice == e.gold for choice, e in zip(best, examples, strict=True))
    batch = collate([*examples, *make_examples(1, seed=5, options=2)], pad_id=0)  # one has fewer slots in use
    assert batch.right.sum(dim=1).tolist() == [*(len(e.golds) for e in examples), 1]
    batch = collate(examples, pad_id=0)
    got = Accuracy().loss(token_logprobs(model, batch, copies=2), batch)
    torch.testing.assert_close(got, torch.full((2,), 1 - sum(right) / len(right)))


def test_label_words_are_candidates_of_one_token(model: TinyModel) -> None:
    """The full-vocabulary normaliser cancels: the same as cross-entropy over the words' raw logits."""
    examples = make_examples(6, answer=1, options=3)
    batch = collate(examples, pad_id=0)
    expected = []
    for example in examples:
        logits = model.module(torch.tensor([example.candidates[0].ids[:-1]])).logits[0, -1]
        words = logits[[candidate.ids[-1] for candidate in example.candidates]]
        expected.append(torch.nn.functional.cross_entropy(words, torch.tensor(example.gold)))
    got = LabelWords().loss(token_logprobs(model, batch), batch)
    torch.testing.assert_close(got[0], torch.stack(expected).mean(), rtol=1e-6, atol=1e-6)


def test_a_masked_candidate_is_read_at_its_mask_and_others_as_before() -> None:
    class Masked:
        ids, answer_length, mask_at = (1, 8, 9, 2, 55), 1, 2

    class Causal:
        ids, answer_length = (1, 8, 9, 2, 55), 2

    class Both:
        candidates, gold = (Masked(), Causal()), 0

    batch = collate([Both()], pad_id=0)
    columns = batch.place_column[batch.token_place].tolist()
    assert columns == [2, 2, 3]
    assert batch.token_id.tolist() == [55, 2, 55]


def run(model: TinyModel, objective=None, loss=losses.tokens, dev=lambda: Scores(0.0, 0.0, {}), steps: int = 5):
    batch = collate(make_examples(8), pad_id=0)
    method = Method(RGE(2, 1e-1), Gaussian(), SGD())
    return train(
        method, model, FullModel(model.module), lambda number: batch, loss, Constant().over(1e-3, steps), dev, seed=4,
        steps=steps, eval_every=2, objective=objective,
    )  # fmt: skip


def test_accuracy_trains_by_the_counts_of_the_points(model: TinyModel) -> None:
    done = [event for event in run(model, loss=Accuracy().loss) if isinstance(event, StepDone)]
    for event in done:
        for g in event.coefs:  # differences of eighths, over 2 eps
            assert (g * 2e-1 * 8) == pytest.approx(round(g * 2e-1 * 8), abs=1e-4)
    assert any(g for event in done for g in event.coefs)


def test_an_objective_of_ones_own_is_evaluated_at_the_points_of_its_step(model: TinyModel) -> None:
    seen: list[tuple[int, float]] = []
    weight = model.module.model.norm.weight

    def objective(number: int, points: int) -> torch.Tensor:
        assert points == 1
        # the head is called inside, as generation would, so that what it sees stands at the point
        seen.append((number, model.module(torch.tensor([[1, 2, 3]])).logits.sum().item()))
        return torch.tensor([-seen[-1][1]])

    done = [event for event in run(model, objective) if isinstance(event, StepDone)]
    assert [number for number, _ in seen] == [n for n in range(1, 6) for _ in range(4)]
    assert len({value for _, value in seen}) == 20
    assert done[0].coefs[0] == pytest.approx((-seen[0][1] + seen[1][1]) / 0.2, rel=1e-5)
    assert weight.shape == (32,)


def test_a_dev_loss_that_is_not_finite_stops_the_run_and_says_where(model: TinyModel) -> None:
    scores = iter([Scores(1.0, 0.5, {}), Scores(float("nan"), 0.5, {})])
    events = []
    with pytest.raises(DivergedError, match="non-finite dev loss at step 4, seed 4: nan"):
        events.extend(run(model, dev=lambda: next(scores), steps=6))
    events = []
    scores = iter([Scores(1.0, 0.5, {}), Scores(2.0, float("inf"), {})])
    watched = map(events.append, run(model, dev=lambda: next(scores), steps=6))
    with pytest.raises(DivergedError, match="non-finite dev loss at step 4, seed 4"):
        list(watched)
    assert [event.step for event in events if isinstance(event, Evaluated)] == [2]
