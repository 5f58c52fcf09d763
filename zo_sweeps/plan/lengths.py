"""Tokens of rows, counted before a model is loaded: from the files of a local task."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from zo_sweeps.tasks import files
from zo_sweeps.tasks.encode import encode, room_of, texts_of, token_ids
from zo_sweeps.tasks.masked import sides, word_of
from zo_sweeps.tasks.prompts import Prompt, render
from zo_sweeps.tasks.spec import TaskSpec
from zo_sweeps.tasks.templates import uses

SAMPLE = 32  # rows whose tokens are counted
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
        for number, line in enumerate(files.path_of(folder, split).read_bytes().split(b"\n")):
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


def tokens_forwarded(spec: TaskSpec, folder: Path, tokenizer: Any, max_length: int, front: tuple[int, ...]) -> float:
    """Return the mean tokens of a row of a task's folder, with its candidates, from SAMPLE of its training rows.

    Candidates that differ in their last token alone are one text. Padding is not counted.

    Raises UserError if a row cannot be encoded.
    """
    lines = [line for line in files.path_of(folder, "train").read_bytes().split(b"\n") if line.strip()]
    taken = []
    for line in lines[:: -(-len(lines) // SAMPLE)]:
        row = json.loads(line)
        if spec.objective.masked:
            taken.append(sum(map(len, sides(render(spec, row).text, tokenizer))) + 1)
        else:
            candidates = encode(spec, row, tokenizer, max_length, front=front).candidates
            taken.append(sum(len(text) + 1 for text in {tuple(candidate.ids[:-1]) for candidate in candidates}))
    return sum(taken) / len(taken)


def _exceeds(room: int, spec: TaskSpec, prompt: Prompt, tokenizer: Any) -> bool:
    if spec.objective.masked:
        return sum(map(len, sides(prompt.text, tokenizer))) > room
    return any(len(token_ids(tokenizer, text)) > room for text in sorted(texts_of(prompt), key=len, reverse=True))


def _most_bytes(spec: TaskSpec) -> Callable[[int], float]:
    """Return a function: bytes of a row as JSON -> the most bytes that a prompt with an option may have."""
    sources = (spec.template, *spec.options)
    own, of_row = sum(len(source.encode()) for source in sources), sum(map(uses, sources))
    return lambda line: own + of_row * line
