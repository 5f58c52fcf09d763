"""In-context learning: solved examples before the prompt (MeZO's ICL rows)."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from zo_sweeps.tasks.encode import Example, encode, length
from zo_sweeps.tasks.prompts import render
from zo_sweeps.tasks.spec import TaskSpec

SEPARATOR = "\n\n"


def demonstration(spec: TaskSpec, row: Mapping[str, Any]) -> str:
    """Return a solved example as text: prompt and right answer. Raises UserError if the row does not fit the task."""
    prompt = render(spec, row)
    return (prompt.text + prompt.options[prompt.gold]).strip()


class Demonstrator:
    """An encoder of rows with k demonstrations from the train split before them, or as many as fit.

    Every row has a random set of its own, addressed by (seed, split, the row's index): it does not depend on which
    other rows are encoded. If k do not fit in `max_length`, the first ones are dropped whole. (MeZO's code draws with
    numpy's generator, and cuts the first one in the middle.)

    Args:
        solved: the train split's demonstrations.
        k: demonstrations per row; at most all of `solved`.
        tokenizer, max_length, front: as for `encode`.
    """

    def __init__(
        self,
        spec: TaskSpec,
        solved: Sequence[str],
        k: int,
        seed: int,
        tokenizer: Any,
        max_length: int,
        *,
        front: tuple[int, ...] = (),
    ) -> None:
        self.spec, self.solved, self.k, self.seed = spec, solved, min(k, len(solved)), seed
        self.tokenizer, self.max_length, self.front = tokenizer, max_length, front

    def encode(self, row: Mapping[str, Any], split: str, index: int) -> Example:
        """Encode the row at `index` of `split` after its demonstrations. Raises UserError as `encode` does."""
        chosen = random.Random(f"icl/{self.seed}/{split}/{index}").sample(self.solved, self.k)
        while chosen:
            before = "".join(text + SEPARATOR for text in chosen)
            over = length(self.spec, row, self.tokenizer, front=self.front, before=before) - self.max_length
            if over <= 0:
                return encode(self.spec, row, self.tokenizer, self.max_length, front=self.front, before=before)
            while chosen and over > 0:  # overestimates the tokens saved, so that none is dropped that fits
                piece = chosen.pop(0) + SEPARATOR
                over -= int(1.1 * len(self.tokenizer(piece, add_special_tokens=False, verbose=False)["input_ids"])) + 1
        return encode(self.spec, row, self.tokenizer, self.max_length, front=self.front)
