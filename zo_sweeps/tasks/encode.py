"""A row of data as text and as token ids, by MeZO's rules or in a chat; for masked models by LM-BFF's."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jinja2 import TemplateError

from zo_sweeps.core.errors import UserError
from zo_sweeps.tasks import templates
from zo_sweeps.tasks.spec import MASK, TaskSpec
from zo_sweeps.tasks.templates import Solved, chat_of

Ids = tuple[int, ...]  # of tokens
SHOWN = 60  # characters of a prompt in a message, the last ones


@dataclass(frozen=True)
class Prompt:
    """The text of one example: candidate i reads `text + options[i]`; the other fields are as of `EncodedExample`.

    In a chat, `text` is the user's turn and an option the assistant's. For a masked objective the text contains MASK
    once, and candidate i reads `text` with `options[i]` in its place.
    """

    text: str
    options: tuple[str, ...]
    gold: int
    references: tuple[str, ...]
    golds: tuple[int, ...] = ()
    value: float | None = None


def render(spec: TaskSpec, row: Mapping[str, Any]) -> Prompt:
    """Render the prompt of `row` in the wording of `spec`. Raises UserError if the row does not fit the task."""
    problem = spec.problem(row)
    if problem:
        raise UserError(problem, where=f"a row of task {spec.name!r}")
    try:
        masked = spec.objective.masked
        text = templates.fill(spec.template, {**row, "mask": MASK} if masked else row)
        items = [{**row, "item": item} for item in row[spec.each]] if spec.each else [row]
        options = tuple(templates.fill(option, item) for item in items for option in spec.options)
    except (TemplateError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError) as error:
        where = f"task {spec.name!r}, dialect {spec.dialect!r}"
        raise UserError(f"the template does not fit a row ({error})", where=where) from error
    if masked and text.count(MASK) != 1:
        raise UserError(
            f"the text contains {MASK} {text.count(MASK)} times, not once", where=f"a row of task {spec.name!r}"
        )
    return Prompt(text, options, spec.gold(row), spec.references(row), spec.golds(row), spec.value(row))


MASKED_EDGES = 3  # tokens of a masked model's row besides the text: its two ends and the mask


@dataclass(frozen=True)
class EncodedCandidate:
    """One sequence. Its last `answer_length` ids are the answer, the only ones that count for loss and score.

    For a masked model the answer is one label word, predicted at `mask_at`, the mask's index in `ids`.
    """

    ids: Ids
    answer_length: int
    mask_at: int | None = None


@dataclass(frozen=True)
class EncodedExample:
    """An encoded row."""

    candidates: tuple[EncodedCandidate, ...]  # one per option; for generation a single one, with the answer trained on
    gold: int  # index of the right candidate, the one trained on
    references: tuple[str, ...]  # accepted answers, or the row as JSON if its texts are rewarded (generation only)
    prompt_ids: Ids  # the prompt alone, from which generation starts
    text: str  # the prompt as text
    golds: tuple[int, ...] = ()  # indices of all right candidates; several in ReCoRD
    value: float | None = None  # the right number (regression only)
    truncated: bool = False  # whether its text was longer than the limit, and lost a part


def encode(
    spec: TaskSpec,
    row: Mapping[str, Any],
    tokenizer: Any,
    max_length: int,
    *,
    front: Ids = (),
    before: Sequence[Solved] = (),
) -> EncodedExample:
    """Encode the prompt of a row with each of its options.

    Spaces are stripped from both ends of the prompt and of prompt + option (trailing newlines are kept), each is
    tokenised by itself, and answer_length = tokens(prompt + option) - tokens(prompt). So "... Yes or No? " + "Yes" is
    scored on the one token " Yes", which is how the P-RGE wording, with its space before the answer, gets one clean
    token; where a byte-pair merge crosses the border, the count is off by the merged token, as in MeZO. Sequences that
    are too long lose tokens on the LEFT, never `front`; generation keeps `max_new_tokens` of `max_length` free.

    In a chat, the tokens are those of the conversation as the model's template writes it, its BOS included: `front` is
    not added. The answer's are those after the tokens that prompt and prompt + answer begin with in common; an answer
    that is to be generated ends with the template's end of turn. What is too long loses tokens on the left of the
    user's text, then on the right of the answer: the template's own stay.

    Args:
        tokenizer: any Hugging Face tokenizer; of a plain prompt only its text-to-ids call is used.
        max_length: maximum tokens of a sequence, `front` included.
        front: ids that every text starts with: the model's BOS, if it has one.
        before: demonstrations, in front of the prompt; answers are counted without them.

    Raises:
        UserError: the row does not fit the task, an option adds no token, or `max_length` leaves no room.
    """
    return encode_prompt(spec, render(spec, row), tokenizer, max_length, front=front, before=before)


def encode_prompt(
    spec: TaskSpec, prompt: Prompt, tokenizer: Any, max_length: int, *, front: Ids = (), before: Sequence[Solved] = ()
) -> EncodedExample:
    """Encode a row's prompt with each of its options, as `encode` does."""
    if spec.chat:
        return _encode_turns(spec, prompt, tokenizer, max_length, before)
    room = room_of(spec, max_length, len(front))
    text, *whole = texts_of(spec, prompt, tokenizer)
    prompt_ids = token_ids(tokenizer, text)
    shown, *after_shown = texts_of(spec, prompt, tokenizer, before)
    candidates, truncated = [], False
    for option, with_option, after in zip(prompt.options, whole, after_shown, strict=True):
        ids = token_ids(tokenizer, with_option)
        answer_length = len(ids) - len(prompt_ids)
        if answer_length < 1:
            raise _no_token(spec, option, shown)
        if before:
            ids = token_ids(tokenizer, after)
        truncated = truncated or len(ids) > room
        kept = (*front, *ids[-room:])
        # The first id of a sequence cannot be predicted: nothing precedes it.
        candidates.append(EncodedCandidate(kept, min(answer_length, len(kept) - 1)))
    if before:
        prompt_ids = token_ids(tokenizer, shown)
    truncated = truncated or len(prompt_ids) > room
    return _example(spec, prompt, candidates, (*front, *prompt_ids[-room:]), text, truncated)


def _encode_turns(
    spec: TaskSpec, prompt: Prompt, tokenizer: Any, max_length: int, solved: Sequence[Solved]
) -> EncodedExample:
    """Encode a row's prompt and options as the last turns of a chat, as `encode` does."""
    chat = chat_of(tokenizer, spec.system)
    room = room_of(spec, max_length, chat.tokens) + chat.tokens
    text, *whole = texts_of(spec, prompt, tokenizer, solved)
    prompt_ids = token_ids(tokenizer, text)
    truncated = False

    def without_surplus(ids: Ids, surplus: int) -> tuple[Ids, int]:
        """Return (ids without up to `surplus` of the user's text, their number); `ids` begins as the prompt does."""
        before, between = (token_ids(tokenizer, part.rstrip(" ")) for part in chat.around(solved))
        first = common(before, ids)
        cut = min(surplus, max(len(prompt_ids) - common(between[::-1], prompt_ids[::-1]) - first, 0))
        return ids[:first] + ids[first + cut :], cut

    candidates = []
    for option, with_option in zip(prompt.options, whole, strict=True):
        ids = token_ids(tokenizer, with_option)
        begin = common(prompt_ids, ids)
        if begin == len(ids):
            raise _no_token(spec, option, text)
        if (surplus := max(len(prompt_ids) - room, len(ids) - max_length)) > 0:
            ids, cut = without_surplus(ids, surplus)
            ids, begin, truncated = ids[:max_length], begin - cut, True
        candidates.append(EncodedCandidate(ids, len(ids) - begin))
    kept, _ = without_surplus(prompt_ids, max(len(prompt_ids) - room, 0))
    return _example(spec, prompt, candidates, kept, text, truncated)


def _example(
    spec: TaskSpec, prompt: Prompt, candidates: Sequence[EncodedCandidate], prompt_ids: Ids, text: str, truncated: bool
) -> EncodedExample:
    """Return the example of a prompt.

    Raises UserError if two of a task's own options are the same tokens: their loss has no gradient. Options that a row
    brings along may be equal: any right one counts.
    """
    if not spec.kind.own_options and len({candidate.ids for candidate in candidates}) < len(candidates):
        raise UserError(
            f"two of the options {', '.join(map(repr, spec.options))} are the same tokens for this model",
            where=f"task {spec.name!r} ({spec.dialect})",
            fix="give them other words, or, if they are cut, a larger train.max_length",
        )
    return EncodedExample(
        tuple(candidates), prompt.gold, prompt.references, prompt_ids, text, prompt.golds, prompt.value, truncated
    )


def _no_token(spec: TaskSpec, option: str, prompt: str) -> UserError:
    what = f"the option {option!r} adds no token to its prompt {prompt[-SHOWN:]!r}"
    fix = "give the option, or the row's answer, a word"
    return UserError(what, where=f"task {spec.name!r} ({spec.dialect})", fix=fix)


def common(one: Sequence[int], other: Sequence[int]) -> int:
    """Return how many ids two sequences begin with in common."""
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def texts_of(spec: TaskSpec, prompt: Prompt, tokenizer: Any, solved: Sequence[Solved] = ()) -> list[str]:
    """Return the texts that are tokenised: of the prompt, and of the prompt with each option, after demonstrations."""
    before = shown_before(spec, tokenizer, solved)
    if not spec.chat:
        texts = (prompt.text, *(prompt.text + option for option in prompt.options))
        return [(before + text.strip(" ")).lstrip() for text in texts]
    chat = chat_of(tokenizer, spec.system)
    text = before + prompt.text.strip() + chat.around(solved)[1]
    end = chat.end if spec.kind.generates else ""
    return [text.rstrip(" "), *(text + option.strip() + end for option in prompt.options)]


def shown_before(spec: TaskSpec, tokenizer: Any, solved: Sequence[Solved]) -> str:
    """Return the text before a prompt that has solved examples before it."""
    if spec.chat:
        return chat_of(tokenizer, spec.system).around(solved)[0]
    return "".join((one.prompt + one.answer).strip() + SEPARATOR for one in solved)


def room_of(spec: TaskSpec, max_length: int, front: int = 0) -> int:
    """Return how many tokens of `max_length` are left for prompt and answer, after `front` of them.

    Raises UserError if they are too few.
    """
    room = max_length - spec.max_new_tokens - (MASKED_EDGES if spec.objective.masked else front)
    if room < 2:
        reserved = f" less {spec.max_new_tokens} new tokens" if spec.max_new_tokens else ""
        raise UserError(
            f"max_length {max_length}{reserved} leaves no room for a prompt of task {spec.name!r}",
            where="train.max_length",
            fix=f"set it to {max_length + 2 - room} or more",
        )
    return room


def length(
    spec: TaskSpec, row: Mapping[str, Any], tokenizer: Any, *, front: Ids = (), before: Sequence[Solved] = ()
) -> int:
    """Return the `max_length` that lets `encode` keep all of `before`, the prompt and the longest option."""
    text, *whole = texts_of(spec, render(spec, row), tokenizer, before)
    longest = max(len(token_ids(tokenizer, one)) for one in ([text] if spec.max_new_tokens else whole))
    return (0 if spec.chat else len(front)) + longest + spec.max_new_tokens


def token_ids(tokenizer: Any, text: str) -> Ids:
    """Return the ids of a text, without special tokens. Raises UserError for one that the model has no row for."""
    # verbose=False: no warning about sequences beyond the model's length, which are cut here
    ids = tuple(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])
    if (last := max(ids, default=0)) >= getattr(tokenizer, "rows", last + 1):  # set by `families.fits`
        name = tokenizer.added_tokens_decoder[last].content
        what = f"a text has the token {name!r}, which the model has no embedding for"
        raise UserError(what, where="a row of the task", fix="leave it out of the data")
    return ids


SEPARATOR = "\n\n"


def demonstration(spec: TaskSpec, row: Mapping[str, Any]) -> Solved:
    """Return a solved example: prompt and right answer. Raises UserError if the row does not fit the task."""
    prompt = render(spec, row)
    return Solved(prompt.text, prompt.options[prompt.gold])


@dataclass(frozen=True)
class Demonstrator:
    """An encoder of rows with k demonstrations from the train split before them, or as many as fit.

    Every row has a random set of its own, addressed by (seed, split, the row's index): it does not depend on which
    other rows are encoded. If k do not fit in `max_length`, the first ones are dropped whole. (MeZO's code draws with
    numpy's generator, and cuts the first one in the middle.)

    `tokenizer`, `max_length` and `front` are as for `encode`.
    """

    spec: TaskSpec
    solved: Sequence[Solved]  # the train split's demonstrations
    k: int  # of them per row, at most
    seed: int
    tokenizer: Any
    max_length: int
    front: Ids = ()

    def encode(self, row: Mapping[str, Any], split: str, index: int) -> EncodedExample:
        """Encode the row at `index` of `split` after its demonstrations. Raises UserError as `encode` does."""
        chosen = random.Random(f"icl/{self.seed}/{split}/{index}").sample(self.solved, min(self.k, len(self.solved)))
        while chosen:
            over = length(self.spec, row, self.tokenizer, front=self.front, before=chosen) - self.max_length
            if over <= 0:
                return encode(self.spec, row, self.tokenizer, self.max_length, front=self.front, before=chosen)
            while chosen and over > 0:  # overestimates the tokens saved, so that none is dropped that fits
                piece = shown_before(self.spec, self.tokenizer, [chosen.pop(0)])
                over -= int(1.1 * len(token_ids(self.tokenizer, piece))) + 1
        return encode(self.spec, row, self.tokenizer, self.max_length, front=self.front)


def encode_masked(spec: TaskSpec, row: Mapping[str, Any], tokenizer: Any, max_length: int) -> EncodedExample:
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
    words = (word_of(spec, tokenizer, option) for option in prompt.options)
    candidates = [EncodedCandidate((*ids, word), 1, mask_at=len(left) + 1) for word in words]
    return _example(spec, prompt, candidates, ids, prompt.text, truncated)


def sides(text: str, tokenizer: Any) -> tuple[Ids, Ids]:
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
