"""Examples as the rows of a program's call: right-padded texts, each with its answer tokens.

Letters: N rows, T tokens, A places per row (tokens whose next token is an answer token), S slots per row, C slots per
example. Where the candidates of an example share one text (one-token answers after one prompt), a row holds all of them
and S = C; otherwise each candidate has a row of its own and S = 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from zo_sweeps.engine.batch import Candidate, Example

MULTIPLE_OF = 8  # T of a call, as in the engine's batches


@dataclass(frozen=True)
class Row:
    """One text and the answers that it predicts.

    Args:
        ids: the tokens, without the last one: nothing is predicted after it.
        answers: per slot, the answer's tokens; the text ends where the last of them is predicted. () for an empty slot.
    """

    ids: tuple[int, ...]
    answers: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Frame:
    """The sizes of the rows that a program takes.

    Args:
        shared: whether the candidates of each example share one text.
        slots: C, candidates per example in the loss; 1 where f needs the gold one only.
        places: A, tokens of the longest answer.
        tokens: the longest text, rounded up to a multiple of 8: the most that T may be.
    """

    shared: bool
    slots: int
    places: int
    tokens: int

    @classmethod
    def of(cls, examples: Iterable[Example], gold_only: bool) -> Frame:
        """Return the frame that holds all these examples.

        Args:
            gold_only: whether f needs the gold candidates only, as in a token loss.
        """
        every = [example.candidates for example in examples]
        shared = all(len({tuple(c.ids[:-1]) for c in candidates}) == 1 for candidates in every)
        each = [candidate for candidates in every for candidate in candidates]
        longest = max(len(candidate.ids) - 1 for candidate in each)
        slots = 1 if gold_only and not shared else max(map(len, every))
        places = max(candidate.answer_length for candidate in each)
        return cls(shared, slots, places, -(-longest // MULTIPLE_OF) * MULTIPLE_OF)

    @property
    def slots_per_row(self) -> int:
        """S."""
        return self.slots if self.shared else 1

    @property
    def rows_per_example(self) -> int:
        """Rows of an example in a step."""
        return 1 if self.shared else self.slots

    def of_step(self, example: Example) -> list[Row]:
        """Return the rows of an example in a step, as many for every example; empty slots repeat the first text."""
        if self.shared:
            return [self._row(example.candidates)]
        if self.slots == 1:
            return [self._row([example.candidates[example.gold]])]
        rows = [self._row([candidate]) for candidate in example.candidates]
        return rows + [Row(rows[0].ids, ((),))] * (self.slots - len(rows))

    def of_scores(self, example: Example) -> list[Row]:
        """Return the rows that score every candidate of an example."""
        return self.of_step(example) if self.shared else [self._row([c]) for c in example.candidates]

    def gold(self, example: Example) -> int:
        """Return the slot of the gold candidate in a step."""
        return example.gold if self.slots > 1 or self.shared else 0

    def _row(self, candidates: Sequence[Candidate]) -> Row:
        answers = [tuple(candidate.ids)[len(candidate.ids) - candidate.answer_length :] for candidate in candidates]
        return Row(tuple(candidates[0].ids)[:-1], (*answers, *[()] * (self.slots_per_row - len(answers))))


class Call(NamedTuple):
    """The rows of one call, as arrays; the letters are those of the module's docstring."""

    ids: NDArray[np.int64]  # [N, T]
    columns: NDArray[np.int64]  # [N, A]
    tokens: NDArray[np.int64]  # [N, A, S]
    weights: NDArray[np.float32]  # [N, A, S]: 1 / length of the slot's answer, 0 where there is no token
    bias: NDArray[np.float32]  # [N, S]: 0, or -inf for an empty slot


def call_of(rows: Sequence[Row], frame: Frame) -> Call:
    """Return the arrays of rows; T is the longest text, rounded up to a multiple of 8. Token 0 pads."""
    N, A, S = len(rows), frame.places, frame.slots_per_row
    T = -(-max(len(row.ids) for row in rows) // MULTIPLE_OF) * MULTIPLE_OF
    ids, columns = np.zeros((N, T), np.int64), np.zeros((N, A), np.int64)
    tokens, weights = np.zeros((N, A, S), np.int64), np.zeros((N, A, S), np.float32)
    bias = np.zeros((N, S), np.float32)
    for n, row in enumerate(rows):
        ids[n, : len(row.ids)] = row.ids
        for a in range(A):
            columns[n, a] = max(len(row.ids) - A + a, 0)
        for s, answer in enumerate(row.answers):
            if not answer:
                bias[n, s] = -np.inf
                continue
            tokens[n, A - len(answer) :, s] = answer
            weights[n, A - len(answer) :, s] = np.float32(1 / len(answer))
    return Call(ids, columns, tokens, weights, bias)
