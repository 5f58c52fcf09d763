"""Tokens of rows, counted before a model is loaded: from the files of a local task."""

from __future__ import annotations

import heapq
import json
import math
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from zo_sweeps.engine.packing import MULTIPLE, SAVING, padded_to
from zo_sweeps.tasks import files
from zo_sweeps.tasks.encode import MASKED_EDGES, encode, room_of, texts_of, token_ids
from zo_sweeps.tasks.masked import sides, word_of
from zo_sweeps.tasks.prompts import Prompt, render
from zo_sweeps.tasks.spec import TaskSpec
from zo_sweeps.tasks.templates import uses

SAMPLE = 32  # rows whose tokens are counted
LONGEST = 4  # lines of each file, those of most bytes, whose tokens are counted
MOST = 1 << 18  # characters of prompts that are tokenised, so that a plan stays fast


def too_long(spec: TaskSpec, folder: Path, tokenizer: Any, max_length: int, front: tuple[int, ...]) -> tuple[int, bool]:
    """Return how many rows of a task's folder would lose tokens, and whether all rows were looked at.

    Args:
        folder: holds files without malformed rows, as `data.check` sees to.
        tokenizer, max_length, front: as for `encode`.

    Raises UserError if a row cannot be encoded. Cost: one pass over the lines; only those whose bytes could be more
    tokens than there is room for are tokenised (no token is less than a byte), and the first of each file.
    """
    room, most_bytes = room_of(spec, max_length, len(front)), _most_bytes(spec)
    long = tokenised = 0
    for split in files.FILES:
        for number, line in enumerate(_lines(folder, split)):
            if not line.strip() or (number and most_bytes(len(line)) <= room):
                continue
            if tokenised > MOST:
                return long, False
            row = json.loads(line)
            prompt = render(spec, row)
            tokenised += len(prompt.text)
            if number:
                long += _exceeds(room, spec, prompt, tokenizer)
            elif spec.objective.masked:
                for option in prompt.options:
                    word_of(spec, tokenizer, option)
                long += _exceeds(room, spec, prompt, tokenizer)
            else:
                long += encode(spec, row, tokenizer, max_length, front=front).truncated
    return long, True


class Tokens(NamedTuple):
    """Tokens of a row of a task's folder, with its candidates, which are one text where only their last token differs.

    Args:
        scored: (mean, deviation) of all texts of a row together, which scoring forwards, over SAMPLE rows of the
            training split.
        gold: of the right candidate's text, which is all that a step forwards of a row for some objectives.
        texts: most texts of a row.
        longest: of a text: that of the LONGEST lines of every file.
    """

    scored: tuple[float, float]
    gold: tuple[float, float]
    texts: int
    longest: int

    def mean(self, gold_only: bool) -> float:
        """Return the mean tokens that are forwarded of a row."""
        return (self.gold if gold_only else self.scored)[0]

    def of_rows(self, rows: int, packed: bool, apart: int, gold_only: bool = False) -> float:
        """Return the most tokens of a batch of `rows` rows, padding included, that are to be expected in 40 batches.

        Packed, the texts' sum, two standard deviations above its mean; as packing that saves less than SAVING is left
        out, up to 1 / (1 - SAVING) times that. Never more than every text padded to the longest.

        Args:
            packed: whether texts share rows.
            apart: texts of a row if not.
            gold_only: whether the right candidate alone is forwarded.
        """
        padded, apart = padded_to(self.longest, MULTIPLE), 1 if gold_only else apart
        if not packed:
            return rows * apart * padded
        mean, deviation = self.gold if gold_only else self.scored
        sums = rows * mean + 2 * deviation * math.sqrt(rows)
        return min(rows * min(self.texts, apart) * padded, max(padded, sums / (1 - SAVING)))


def tokens_forwarded(spec: TaskSpec, folder: Path, tokenizer: Any, max_length: int, front: tuple[int, ...]) -> Tokens:
    """Return the tokens of a task's folder's rows. Padding is not counted.

    Raises UserError if a row cannot be encoded.
    """

    def lengths(line: bytes) -> tuple[int, list[int]]:
        """Return the tokens of the right candidate, and of each distinct text."""
        row = json.loads(line)
        if spec.objective.masked:
            sized = sum(map(len, sides(render(spec, row).text, tokenizer)))
            only = min(sized, room_of(spec, max_length)) + MASKED_EDGES + 1
            return only, [only]
        example = encode(spec, row, tokenizer, max_length, front=front)
        texts = {candidate.ids[:-1] for candidate in example.candidates}
        return len(example.candidates[example.gold].ids), [len(text) + 1 for text in texts]

    lines = {split: [line for line in _lines(folder, split) if line.strip()] for split in files.FILES}
    train = lines["train"]
    taken = [lengths(line) for line in train[:: -(-len(train) // SAMPLE)]]
    longest = [texts for some in lines.values() for _, texts in map(lengths, heapq.nlargest(LONGEST, some, key=len))]
    gold, every = [own for own, _ in taken], [texts for _, texts in taken]
    scored, longest = [sum(texts) for texts in every], [*every, *longest]
    return Tokens(_spread(scored), _spread(gold), max(map(len, longest)), max(map(max, longest)) - 1)


def _spread(numbers: Sequence[int]) -> tuple[float, float]:
    return statistics.fmean(numbers), statistics.pstdev(numbers)


def _lines(folder: Path, split: str) -> list[bytes]:
    return files.path_of(folder, split).read_bytes().split(b"\n")


def _exceeds(room: int, spec: TaskSpec, prompt: Prompt, tokenizer: Any) -> bool:
    if spec.objective.masked:
        return sum(map(len, sides(prompt.text, tokenizer))) > room
    return any(len(token_ids(tokenizer, text)) > room for text in sorted(texts_of(prompt), key=len, reverse=True))


def _most_bytes(spec: TaskSpec) -> Callable[[int], float]:
    """Return a function: bytes of a row as JSON -> the most bytes that a prompt with an option may have."""
    sources = (spec.template, *spec.options)
    own, of_row = sum(len(source.encode()) for source in sources), sum(map(uses, sources))
    return lambda line: own + of_row * line
