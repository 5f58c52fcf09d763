"""A row of data as token ids for a masked model, by LM-BFF's rules (MeZO's RoBERTa part)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zo_sweeps.core.errors import UserError
from zo_sweeps.tasks.encode import Candidate, Example, check_different, room_of, token_ids
from zo_sweeps.tasks.prompts import render
from zo_sweeps.tasks.spec import MASK, TaskSpec


def encode_masked(spec: TaskSpec, row: Mapping[str, Any], tokenizer: Any, max_length: int) -> Example:
    """Encode a row as <bos> left <mask> right <eos>; its candidates, one per label word, differ in the word only.

    The text on either side of the mask is tokenised by itself, without the spaces before the mask. A label word is
    tokenised with a space before it, and must be one token. A text that is too long keeps the part nearest to the mask:
    each side gets half of the room, and what the other does not need. (LM-BFF cuts the end, and the first sentence to a
    limit set by the task.)

    Raises UserError if the row does not fit the task, a label word is not one token, or `max_length` leaves no room.
    """
    prompt = render(spec, row)
    left, right = sides(prompt.text, tokenizer)
    room = room_of(spec, max_length)
    truncated = len(left) + len(right) > room
    kept_right = min(len(right), max(room // 2, room - len(left)))
    left, right = left[max(0, len(left) - (room - kept_right)) :], right[:kept_right]
    ids = (tokenizer.bos_token_id, *left, tokenizer.mask_token_id, *right, tokenizer.eos_token_id)
    candidates = tuple(
        Candidate((*ids, word_of(spec, tokenizer, option)), 1, mask_at=len(left) + 1) for option in prompt.options
    )
    check_different(spec, candidates)
    return Example(candidates, prompt.gold, (), ids, prompt.text, prompt.golds, prompt.value, truncated)


def sides(text: str, tokenizer: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the ids of the texts on either side of the mask."""
    left, right = text.split(MASK)
    return token_ids(tokenizer, left.strip(" ")), token_ids(tokenizer, right.rstrip(" "))


def word_of(spec: TaskSpec, tokenizer: Any, word: str) -> int:
    """Return the id of a label word with a space before it. Raises UserError unless it is one token."""
    ids = token_ids(tokenizer, f" {word.strip()}")
    if len(ids) != 1:
        raise UserError(
            f"the label word {word!r} is {len(ids)} tokens for this model, not one",
            where=f"task {spec.name!r} ({spec.dialect})",
        )
    return ids[0]
