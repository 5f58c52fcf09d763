"""Rows that are too long for a model, counted before it is loaded: from the files of a local task."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from zo_sweeps.tasks import files
from zo_sweeps.tasks.encode import encode, room_of
from zo_sweeps.tasks.masked import sides, word_of
from zo_sweeps.tasks.prompts import render
from zo_sweeps.tasks.spec import TaskSpec

MOST = 1000  # rows that are tokenised, so that a plan stays fast


def too_long(spec: TaskSpec, folder: Path, tokenizer: Any, max_length: int, front: tuple[int, ...]) -> tuple[int, bool]:
    """Return how many rows of a task's folder would lose tokens, and whether all rows were looked at.

    Args:
        folder: holds files without malformed rows, as `data.check` sees to.
        tokenizer, max_length, front: as for `encode`.

    Raises UserError if a row cannot be encoded. Cost: one pass over the lines; only those whose bytes could be more
    tokens than there is room for are tokenised (no token is less than a byte), and the first of each file.
    """
    # A row's text is the template, filled: a field may occur once per {{ }}, and any number of times in a loop.
    sources = [spec.template, *spec.options]
    fixed, fields = sum(len(source.encode()) for source in sources), sum(source.count("{{") for source in sources)
    bounded = not any("{%" in source for source in sources)
    room = room_of(spec, max_length, len(front))
    long = tokenised = 0
    for split in files.FILES:
        for number, line in enumerate(files.path_of(folder, split).read_bytes().split(b"\n")):
            if number and ((bounded and fixed + fields * len(line) <= room) or not line.strip()):
                continue
            if tokenised == MOST:
                return long, False
            tokenised += 1
            if line.strip():
                long += _is_too_long(spec, json.loads(line), tokenizer, max_length, front)
    return long, True


def _is_too_long(
    spec: TaskSpec, row: Mapping[str, Any], tokenizer: Any, max_length: int, front: tuple[int, ...]
) -> bool:
    if not spec.objective.masked:
        return encode(spec, row, tokenizer, max_length, front=front).truncated
    prompt = render(spec, row)
    for option in prompt.options:
        word_of(spec, tokenizer, option)
    return sum(map(len, sides(prompt.text, tokenizer))) > room_of(spec, max_length)
