"""Tokenizers: what every text starts with; and one read from its file alone, for planning, without torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from zo_sweeps.core.errors import UserError

FILE, SETTINGS = "tokenizer.json", "tokenizer_config.json"


def front_of(tokenizer: Any, bos: str = "") -> tuple[int, ...]:
    """Return the ids of the tokens that a text starts with; () if there are none.

    Args:
        tokenizer: one of transformers, or a `TokenizerFile`.
        bos: the token that the model's family starts a text with. If it is "" or unknown, what the tokenizer adds to
            a text counts, whether or not it calls it its BOS.
    """
    vocabulary: dict[str, int] = tokenizer.get_vocab()
    if bos in vocabulary:
        return (vocabulary[bos],)
    whole, text = tuple(tokenizer("a")["input_ids"]), tuple(tokenizer("a", add_special_tokens=False)["input_ids"])
    starts = (n for n in range(len(whole) - len(text) + 1) if whole[n : n + len(text)] == text)
    return whole[: next(starts, 0)]


class TokenizerFile:
    """A tokenizer read from a model folder's tokenizer.json by the library that transformers uses for it.

    Raises UserError if the file, or the tokenizer's settings beside it, cannot be read.
    """

    def __init__(self, folder: Path) -> None:
        from tokenizers import Tokenizer

        for file in (folder / FILE, folder / SETTINGS):
            try:
                valid = not file.is_file() or isinstance(json.loads(file.read_bytes()), dict)
            except (ValueError, RecursionError):
                valid = False
            if not valid:
                raise UserError(f"{file.name} is not a JSON object", where=str(file))
        try:
            self._tokenizer = Tokenizer.from_file(str(folder / FILE))
        except Exception as error:  # the library raises no other type, whatever is wrong
            reason = " ".join(str(error).split())
            raise UserError(f"the tokenizer cannot be read ({reason})", where=str(folder / FILE)) from None
        self.size = max(self.get_vocab().values(), default=-1) + 1  # rows of the embedding that it needs

    def get_vocab(self) -> dict[str, int]:
        """Return token -> id."""
        vocabulary: dict[str, int] = self._tokenizer.get_vocab(with_added_tokens=True)
        return vocabulary

    def __call__(self, text: str, *, add_special_tokens: bool = True, verbose: bool = True) -> dict[str, list[int]]:
        """Return {"input_ids": the ids of a text}, as a tokenizer of transformers does."""
        return {"input_ids": self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids}
