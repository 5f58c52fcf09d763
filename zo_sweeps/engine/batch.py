"""Examples -> one right-padded batch of distinct rows, and the places in it that matter.

Shapes: N rows, T tokens, U places whose logits are needed, K answer tokens, C candidates, B examples.
A row is a candidate's tokens but the last one (nothing is predicted after it). Candidates with the same row, as
`terrible` and `great` after one prompt, share it; logits are computed at the U distinct places only. A causal model
says an answer token at the token before it; a masked one at its mask, which stands at `mask_at` of the row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Protocol

import torch
from torch import Tensor


class Candidate(Protocol):
    """Of a masked model's, `mask_at` is the place of the mask, and the one answer token is its label word."""

    @property
    def ids(self) -> Sequence[int]: ...
    @property
    def answer_length(self) -> int: ...


class Example(Protocol):
    @property
    def candidates(self) -> Sequence[Candidate]: ...
    @property
    def gold(self) -> int: ...


@dataclass(frozen=True)
class Batch:
    input_ids: Tensor  # [N, T]
    attention_mask: Tensor  # [N, T]
    place_row: Tensor  # [U]
    place_column: Tensor  # [U]
    token_place: Tensor  # [K] index into the U places
    token_id: Tensor  # [K] the answer token predicted there
    token_candidate: Tensor  # [K] index into the C candidates
    candidate_length: Tensor  # [C] fp32, answer tokens a candidate
    candidate_slot: Tensor  # [C] index into the flattened [B, slots]
    gold: Tensor  # [B] slot of the gold candidate
    slots: int  # most candidates an example has

    @property
    def examples(self) -> int:
        return self.gold.shape[0]

    def to(self, device: torch.device) -> Batch:
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        moved: dict[str, Any] = {k: v.to(device) if isinstance(v, Tensor) else v for k, v in values.items()}
        return Batch(**moved)


def collate(examples: Sequence[Example], pad_id: int, *, gold_only: bool = False, multiple_of: int = 8) -> Batch:
    """One batch of the examples' candidates (`gold_only`: of the right answers alone, for the token loss)."""
    rows: dict[tuple[int, ...], int] = {}
    places: dict[tuple[int, int], int] = {}
    tokens: list[tuple[int, int, int]] = []
    lengths: list[int] = []
    slot_of: list[int] = []
    gold: list[int] = []
    slots = 1 if gold_only else max(len(example.candidates) for example in examples)
    for b, example in enumerate(examples):
        chosen = [example.candidates[example.gold]] if gold_only else list(example.candidates)
        gold.append(0 if gold_only else example.gold)
        for slot, candidate in enumerate(chosen):
            ids = tuple(candidate.ids)
            row = rows.setdefault(ids[:-1], len(rows))
            mask_at: int | None = getattr(candidate, "mask_at", None)
            for position in range(len(ids) - candidate.answer_length, len(ids)):
                column = position - 1 if mask_at is None else mask_at
                place = places.setdefault((row, column), len(places))
                tokens.append((place, ids[position], len(lengths)))
            lengths.append(candidate.answer_length)
            slot_of.append(b * slots + slot)
    longest = max(len(row) for row in rows)
    T = -(-longest // multiple_of) * multiple_of
    input_ids = torch.full((len(rows), T), pad_id, dtype=torch.long)
    mask = torch.zeros((len(rows), T), dtype=torch.long)
    for row_ids, n in rows.items():
        input_ids[n, : len(row_ids)] = torch.tensor(row_ids)
        mask[n, : len(row_ids)] = 1
    place, token, candidate_index = torch.tensor(tokens).T.contiguous()
    place_row, place_column = torch.tensor(list(places)).T.contiguous()
    return Batch(
        input_ids=input_ids,
        attention_mask=mask,
        place_row=place_row,
        place_column=place_column,
        token_place=place,
        token_id=token,
        token_candidate=candidate_index,
        candidate_length=torch.tensor(lengths, dtype=torch.float32),
        candidate_slot=torch.tensor(slot_of),
        gold=torch.tensor(gold),
        slots=slots,
    )
