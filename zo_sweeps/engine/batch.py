"""Collation: examples -> one right-padded batch of distinct texts, and the places where logits are needed.

Shapes: N rows, T tokens, U places whose logits are needed, K answer tokens, C candidates, B examples.
A text is a candidate's tokens without the last one (nothing is predicted after it). Candidates with the same text, such
as `terrible` and `great` after one prompt, share it; logits are computed at the U distinct places only. A causal model
predicts an answer token at the token before it; a masked model at its mask, token `mask_at` of the text.
Texts of different lengths share rows where that saves tokens (packing.py); each text of a masked model has its own row.
With `shared`, the tokens that the texts of an example begin with are there once (packing.py): the row "p p p a a b b",
with positions "0 1 2 3 4 3 4", holds the texts "p p p a a" and "p p p b b".

Released code shares nothing (`packed=False`: a row per candidate, padded to the longest) and computes logits at every
position (`every_position=True`: U = N * T). The losses are the same up to rounding; time and memory are not.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from zo_sweeps.engine.packing import MULTIPLE, TextGroup, groups, pack, padded_to

Row = TypeVar("Row")


class Candidate(Protocol):
    """A candidate's tokens. In a masked model's, `mask_at` is the mask's index, and the answer token the label word."""

    @property
    def ids(self) -> Sequence[int]: ...
    @property
    def answer_length(self) -> int: ...


class Example(Protocol):
    """An example's candidates, and the index of the gold one. With several right ones, `golds` has all indices."""

    @property
    def candidates(self) -> Sequence[Candidate]: ...
    @property
    def gold(self) -> int: ...


@dataclass(frozen=True)
class Batch:
    """One collated batch; see the module's docstring for the letters."""

    input_ids: Tensor  # [N, T]
    attention_mask: Tensor  # [N, T] ones, then zeros
    positions: Tensor | None  # [N, T] each token's position in its text; None: no row holds several texts
    place_row: Tensor  # [U]
    place_column: Tensor  # [U]
    token_place: Tensor  # [K] index into the U places
    token_id: Tensor  # [K] the answer token predicted there
    token_candidate: Tensor  # [K] index into the C candidates
    candidate_length: Tensor  # [C] fp32, answer tokens per candidate
    candidate_slot: Tensor  # [C] index into the flattened [B, slots]
    gold: Tensor  # [B] slot of the gold candidate, the one trained on
    right: Tensor  # [B, slots] whether a slot holds a right candidate; several may
    slots: int  # largest number of candidates of an example
    rewards: Tensor | None = None  # [B, slots] of candidates that were sampled

    @property
    def examples(self) -> int:
        return self.gold.shape[0]

    @property
    def tokens(self) -> int:
        """Tokens of a forward, padding included."""
        return self.input_ids.numel()

    def to(self, device: torch.device) -> Batch:
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        moved: dict[str, Any] = {k: v.to(device) if isinstance(v, Tensor) else v for k, v in values.items()}
        return Batch(**moved)


@dataclass(frozen=True)
class BatchParts:
    """A minibatch whose rows are divided among batches, and the terms of f that each has."""

    batches: Sequence[Batch]
    terms: Sequence[int]

    @property
    def tokens(self) -> int:
        """Tokens of all forwards, padding included."""
        return sum(batch.tokens for batch in self.batches)


def divided(rows: Sequence[Row], parts: int) -> list[Sequence[Row]]:
    """Return the rows in `parts` parts, in order, whose lengths differ by 1 at most; in fewer if rows are fewer."""
    count = min(parts, len(rows))
    return [rows[len(rows) * k // count : len(rows) * (k + 1) // count] for k in range(count)]


class _Standing(NamedTuple):
    """Where a text stands: token i in column `first` + i of a row, from token `prompt` on in column `own` + i."""

    row: int
    first: int
    prompt: int
    own: int

    def column(self, i: int) -> int:
        return (self.first if i < self.prompt else self.own) + i


def collate(
    examples: Sequence[Example],
    pad_id: int,
    *,
    gold_only: bool = False,
    packed: bool = True,
    shared: bool = False,
    every_position: bool = False,
    multiple_of: int = MULTIPLE,
) -> Batch:
    """Collate the examples' candidates.

    Args:
        gold_only: only the right answers, for the token loss.
        packed: texts share rows, and equal texts are one; False: each candidate has a row of its own (in a masked
            model, each example: its candidates are words at one mask).
        shared: the texts of an example share a row and, once, the tokens with which they begin alike. Without effect
            unless `packed`, and in a masked model.
        every_position: the places are all N * T positions, padding included.
        multiple_of: row lengths are rounded up to a multiple of it.
    """
    texts: dict[object, int] = {}  # tokens (unpacked: and their candidate) -> text
    known: list[tuple[int, ...]] = []  # the texts' tokens
    owner: list[int] = []  # of each text, the first example that has it
    tokens: list[tuple[int, int, int, int]] = []  # (text, its token, the answer token predicted there, candidate)
    lengths: list[int] = []
    slot_of: list[int] = []
    gold: list[int] = []
    right: list[tuple[int, int]] = []  # (example, slot)
    masked = False
    slots = 1 if gold_only else max(len(example.candidates) for example in examples)
    for b, example in enumerate(examples):
        chosen = [example.candidates[example.gold]] if gold_only else list(example.candidates)
        gold.append(0 if gold_only else example.gold)
        right += [(b, slot) for slot in ({0} if gold_only else {example.gold, *getattr(example, "golds", ())})]
        for slot, candidate in enumerate(chosen):
            ids = tuple(candidate.ids)
            mask_at: int | None = getattr(candidate, "mask_at", None)
            own = () if packed else (b, slot if mask_at is None else 0)
            text = texts.setdefault((ids[:-1], *own), len(known))
            if text == len(known):
                known.append(ids[:-1])
                owner.append(b)
            masked = masked or mask_at is not None
            for position in range(len(ids) - candidate.answer_length, len(ids)):
                at = position - 1 if mask_at is None else mask_at
                tokens.append((text, at, ids[position], len(lengths)))
            lengths.append(candidate.answer_length)
            slot_of.append(b * slots + slot)
    apart = masked or not packed
    units = groups(known, owner) if shared and not apart else [TextGroup([text]) for text in range(len(known))]
    sizes = [sum(len(known[t]) for t in unit.texts) - (len(unit.texts) - 1) * unit.prompt for unit in units]
    rows = [[unit] for unit in range(len(units))] if apart else pack(sizes, multiple_of)
    T = padded_to(max(sum(sizes[unit] for unit in row) for row in rows), multiple_of)
    input_ids = torch.full((len(rows), T), pad_id, dtype=torch.long)
    mask, positions = torch.zeros_like(input_ids), torch.zeros_like(input_ids)
    standing: dict[int, _Standing] = {}  # by text
    for n, row in enumerate(rows):
        stop = 0
        for unit in (units[i] for i in row):
            first = stop
            for t in unit.texts:
                start, left_out = stop, unit.prompt if stop > first else 0
                stop = start + len(known[t]) - left_out
                standing[t] = _Standing(n, first, unit.prompt, start - left_out)
                input_ids[n, start:stop] = torch.tensor(known[t][left_out:])
                positions[n, start:stop] = torch.arange(left_out, len(known[t]))
        mask[n, :stop] = 1
    places: dict[tuple[int, int], int] = {}  # (row, column) -> place
    predicted = [
        (places.setdefault((standing[text].row, standing[text].column(at)), len(places)), token, candidate)
        for text, at, token, candidate in tokens
    ]
    token_place, token, candidate_index = torch.tensor(predicted).T.contiguous()
    place_row, place_column = torch.tensor([*places]).T.contiguous()
    if every_position:
        token_place = (place_row * T + place_column)[token_place]
        place_row, place_column = torch.arange(len(rows)).repeat_interleave(T), torch.arange(T).repeat(len(rows))
    is_right = torch.zeros(len(examples), slots, dtype=torch.bool)
    is_right[tuple(torch.tensor(right).T)] = True
    return Batch(
        input_ids=input_ids,
        attention_mask=mask,
        positions=positions if len(rows) < len(known) else None,
        place_row=place_row,
        place_column=place_column,
        token_place=token_place,
        token_id=token,
        token_candidate=candidate_index,
        candidate_length=torch.tensor(lengths, dtype=torch.float32),
        candidate_slot=torch.tensor(slot_of),
        gold=torch.tensor(gold),
        right=is_right,
        slots=slots,
    )


@lru_cache(maxsize=4)
def _epoch(seed: int, epoch: int, size: int) -> tuple[int, ...]:
    order = list(range(size))
    random.Random(f"data/{seed}/{epoch}").shuffle(order)
    return tuple(order)


def indices(seed: int, step: int, size: int, batch: int) -> tuple[int, ...]:
    """Return the examples of step `step` (from 1): shuffled epochs without replacement, last partial batch kept."""
    batches = -(-size // batch)
    epoch, place = divmod(step - 1, batches)
    return _epoch(seed, epoch, size)[place * batch : (place + 1) * batch]
