"""A row of data as token ids, by MeZO's rules (its released code, large-model part)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from zo_sweeps.core.errors import UserError
from zo_sweeps.tasks.prompts import render
from zo_sweeps.tasks.spec import TaskSpec


@dataclass(frozen=True)
class Candidate:
    """One sequence. Its last `answer_length` ids are the answer, the only ones that count for loss and score.

    For a masked model the answer is one label word, predicted at `mask_at`, the mask's index in `ids`.
    """

    ids: tuple[int, ...]
    answer_length: int
    mask_at: int | None = None


@dataclass(frozen=True)
class Example:
    """An encoded row.

    Args:
        candidates: one sequence per option; for generation a single one, with the answer trained on.
        gold: index of the right candidate, the one trained on.
        references: accepted answers (generation only).
        prompt_ids: the prompt alone, from which generation starts.
        text: the prompt as text.
        golds: indices of all right candidates; several in ReCoRD.
        value: the right number (regression only).
    """

    candidates: tuple[Candidate, ...]
    gold: int
    references: tuple[str, ...]
    prompt_ids: tuple[int, ...]
    text: str
    golds: tuple[int, ...] = ()
    value: float | None = None


def encode(
    spec: TaskSpec, row: Mapping[str, Any], tokenizer: Any, max_length: int, *, bos: int | None = None, before: str = ""
) -> Example:
    """Encode the prompt of a row with each of its options.

    Spaces are stripped from both ends of the prompt and of prompt + option (trailing newlines are kept), each is
    tokenised by itself, and answer_length = tokens(prompt + option) - tokens(prompt). So "... Yes or No? " + "Yes" is
    scored on the one token " Yes", which is how the P-RGE wording, with its space before the answer, gets one clean
    token; where a byte-pair merge crosses the border, the count is off by the merged token, as in MeZO. Sequences that
    are too long lose tokens on the LEFT, never the leading BOS; generation keeps `max_new_tokens` of `max_length` free.

    Args:
        tokenizer: any Hugging Face tokenizer; only its text-to-ids call is used.
        max_length: maximum tokens of a sequence, BOS included.
        bos: id put in front instead of the tokenizer's own (OPT is trained and used with 0, though its tokenizer
            says 2); None leaves it to the tokenizer, which may add none.
        before: text in front of the prompt (demonstrations); answers are counted without it.

    Raises:
        UserError: the row does not fit the task, an option adds no token, or `max_length` leaves no room.
    """
    prompt = render(spec, row)
    front = _front(tokenizer) if bos is None else (bos,)
    room = max_length - spec.max_new_tokens - len(front)
    if room < 2:
        reserved = f" less {spec.max_new_tokens} new tokens" if spec.max_new_tokens else ""
        raise UserError(f"max_length {max_length}{reserved} leaves no room for a prompt of task {spec.name!r}")

    text = prompt.text.strip(" ").lstrip()
    prompt_ids = _ids(tokenizer, text)
    candidates = []
    for option in prompt.options:
        ids = _ids(tokenizer, (prompt.text + option).strip(" ").lstrip())
        answer_length = len(ids) - len(prompt_ids)
        if answer_length < 1:
            raise UserError(
                f"the option {option!r} adds no token to its prompt", where=f"task {spec.name!r} ({spec.dialect})"
            )
        if before:
            ids = _ids(tokenizer, (before + (prompt.text + option).strip(" ")).lstrip())
        kept = (*front, *ids[-room:])
        # The first id of a sequence cannot be predicted: nothing precedes it.
        candidates.append(Candidate(kept, min(answer_length, len(kept) - 1)))
    if before:
        prompt_ids = _ids(tokenizer, (before + prompt.text.strip(" ")).lstrip())
    return Example(
        candidates=tuple(candidates),
        gold=prompt.gold,
        references=prompt.references,
        prompt_ids=(*front, *prompt_ids[-room:]),
        text=text,
        golds=prompt.golds,
        value=prompt.value,
    )


def length(spec: TaskSpec, row: Mapping[str, Any], tokenizer: Any, *, bos: int | None = None, before: str = "") -> int:
    """Return the `max_length` that lets `encode` keep all of `before`, the prompt and the longest option."""
    prompt = render(spec, row)
    texts = [(before + (prompt.text + option).strip(" ")).lstrip() for option in prompt.options]
    if spec.max_new_tokens:
        texts = [(before + prompt.text.strip(" ")).lstrip()]
    front = 1 if bos is not None else len(_front(tokenizer))
    return front + max(len(_ids(tokenizer, text)) for text in texts) + spec.max_new_tokens


def _ids(tokenizer: Any, text: str) -> tuple[int, ...]:
    # verbose=False: no warning about sequences beyond the model's length, which are cut here
    return tuple(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])


def _front(tokenizer: Any) -> tuple[int, ...]:
    """Return the ids that the tokenizer puts before every text: its BOS, or none."""
    first = tuple(tokenizer("")["input_ids"])[:1]
    return first if first and first[0] == tokenizer.bos_token_id else ()
