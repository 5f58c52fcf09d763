"""Examples as rows of a program's call: the same losses and scores as the engine's batches, from a plain model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from tests.engine.conftest import Candidate, Example
from zo_sweeps.engine import losses
from zo_sweeps.engine.batch import collate
from zo_sweeps.engine.losses import score
from zo_sweeps.engine.objectives.candidates import Candidates
from zo_sweeps.engine.objectives.tokens import Tokens
from zo_sweeps.methods.objective import Objective
from zo_sweeps_edge.rows import Frame, Row, call_of
from zo_sweeps_edge.scored import scored


class Unigrams:
    """A causal model of one layer: what follows a token depends on it and on how many came before it."""

    def __init__(self) -> None:
        self.module = torch.nn.Module()
        self.table = torch.randn(40, 8, generator=torch.Generator().manual_seed(0))
        self.out = torch.randn(8, 40, generator=torch.Generator().manual_seed(1))

    def hidden(self, ids: torch.Tensor, mask: torch.Tensor | None, positions: torch.Tensor | None) -> torch.Tensor:
        at = torch.arange(ids.shape[1]) if positions is None else positions
        return self.table[ids] * (1 + at / 10).unsqueeze(-1)

    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden @ self.out


MODEL = Unigrams()
PROMPTS = [(1, 5, 9), (1, 7, 3, 3, 2, 8, 4, 6, 11), (1, 2), (1, 30, 31, 32)]
ONE_TOKEN = [Example((Candidate((*p, 20), 1), Candidate((*p, 21), 1)), i % 2) for i, p in enumerate(PROMPTS)]
SEVERAL = [
    Example(tuple(Candidate((*p, *[22 + c] * (1 + (c + i) % 3)), 1 + (c + i) % 3) for c in range(2 + i % 2)), i % 2)
    for i, p in enumerate(PROMPTS)
]
TASKS = {"one token": ONE_TOKEN, "several tokens, two or three candidates": SEVERAL}


def slots(rows: Sequence[Row], frame: Frame) -> torch.Tensor:
    """Each row's scores by the formula of the program, computed plainly."""
    ids, columns, tokens, weights, bias = map(torch.from_numpy, call_of(rows, frame))
    hidden = MODEL.hidden(ids, None, None)
    places = hidden.gather(1, columns.unsqueeze(2).expand(-1, -1, 8))
    logprobs = MODEL.head(places).log_softmax(2).gather(2, tokens)
    return (logprobs * weights).sum(1) + bias


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("objective", [Candidates(), Tokens()], ids=["candidates", "tokens"])
def test_a_step_on_rows_has_the_loss_of_the_engines_batch(name: str, objective: Objective) -> None:
    examples: list[Any] = TASKS[name]
    frame = Frame.of(examples, objective.gold_only)
    rows = [row for example in examples for row in frame.of_step(example)]
    table = slots(rows, frame).view(1, len(examples), frame.slots)
    masses = torch.tensor([objective.mass(example.candidates[example.gold].answer_length) for example in examples])
    gold = torch.tensor([[frame.gold(example) for example in examples]])
    loss = (objective.of_scores(table, gold)[0] * masses / masses.sum()).sum()
    batch = collate(examples, 0, gold_only=objective.gold_only)
    expected = objective.loss(losses.token_logprobs(MODEL, batch), batch)[0]
    assert float(loss) == pytest.approx(float(expected), rel=1e-6)


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("objective", [Candidates(), Tokens()], ids=["candidates", "tokens"])
def test_a_split_is_scored_as_the_engine_scores_it(name: str, objective: Objective) -> None:
    examples: list[Any] = TASKS[name]
    frame = Frame.of(examples, objective.gold_only)
    found = scored(lambda rows: slots(rows, frame).tolist(), frame, objective, examples)
    expected = score(MODEL, examples, 0, objective, torch.device("cpu"))
    assert found.loss == pytest.approx(expected.loss, rel=1e-6)
    assert found.choices == expected.choices
    for ours, theirs in zip(found.scores, expected.scores, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-6)


def test_candidates_share_a_row_where_they_share_their_text() -> None:
    every: list[Any] = ONE_TOKEN
    assert Frame.of(every, gold_only=False) == Frame(shared=True, slots=2, places=1, tokens=16)
    several: list[Any] = SEVERAL
    assert Frame.of(several, gold_only=False) == Frame(shared=False, slots=3, places=3, tokens=16)
    assert Frame.of(several, gold_only=True).rows_per_example == 1


def test_texts_are_padded_on_the_right_to_a_multiple_of_eight() -> None:
    every: list[Any] = ONE_TOKEN
    frame = Frame.of(every, gold_only=False)
    call = call_of([*frame.of_step(every[0]), *frame.of_step(every[2])], frame)
    assert call.ids.tolist() == [[1, 5, 9, 0, 0, 0, 0, 0], [1, 2, 0, 0, 0, 0, 0, 0]]
    assert call.columns.tolist() == [[2], [1]]
    assert call.tokens.tolist() == [[[20, 21]], [[20, 21]]]
