"""The scores of a split, computed by an exported program."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from zo_sweeps.engine.batch import Example
from zo_sweeps.engine.losses import Scored
from zo_sweeps.methods.objective import Objective
from zo_sweeps_edge.rows import Frame, Row


def scored(
    scores_of: Callable[[Sequence[Row]], list[list[float]]],
    frame: Frame,
    objective: Objective,
    examples: Sequence[Example],
) -> Scored:
    """Score the candidates of examples; the same numbers as `engine.losses.score`, up to rounding.

    Args:
        scores_of: rows -> the scores of each row's slots.
        objective: whose loss of all examples as one batch is returned.
    """
    rows = [frame.of_scores(example) for example in examples]
    values = iter(scores_of([row for of_one in rows for row in of_one]))
    scores = []
    for of_one, example in zip(rows, examples, strict=True):
        each = [value for _ in of_one for value in next(values)]
        scores.append(each[: len(example.candidates)])
    most = max(map(len, scores))
    table = torch.tensor([[*row, *[float("-inf")] * (most - len(row))] for row in scores], dtype=torch.float64)
    gold = torch.tensor([example.gold for example in examples])
    lengths = [example.candidates[example.gold].answer_length for example in examples]
    masses = torch.tensor([objective.mass(length) for length in lengths], dtype=torch.float64)
    terms = objective.of_scores(table.unsqueeze(0), gold.unsqueeze(0))[0]
    loss = float(terms @ masses / masses.sum())
    return Scored(loss, table.argmax(dim=1).tolist(), scores)
