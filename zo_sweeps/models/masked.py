"""A masked language model (BERT, RoBERTa) as the engine and the tasks see it.

It has the interface of `causal.LanguageModel`, but its answer is a word at the position of a mask.

Shapes: N rows, T tokens, D hidden width, K chosen positions, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor

from zo_sweeps.core.errors import UserError
from zo_sweeps.models.causal import LanguageModel
from zo_sweeps.models.package import Package


class MaskedLanguageModel(LanguageModel):
    """A Hugging Face masked language model with frozen weights, in evaluation mode, and its tokenizer.

    Raises UserError if the tokenizer has no mask token, or pads with another id than the model: RoBERTa counts its
    positions over the tokens that are not padding, from that id on.
    """

    def __init__(self, module: Any, tokenizer: Any, commit: str = "", package: Package | None = None) -> None:
        if tokenizer.bos_token_id is None:  # BERT's tokenizers have other names for the ends of a text
            tokenizer.bos_token, tokenizer.eos_token = tokenizer.cls_token, tokenizer.sep_token
        super().__init__(module, tokenizer, commit, package)
        if tokenizer.mask_token_id is None:
            raise UserError("the tokenizer of the masked model has no mask token", where="model")
        self.mask_id: int = tokenizer.mask_token_id
        padding = module.config.pad_token_id
        if tokenizer.pad_token_id != padding:
            raise UserError(
                f"the tokenizer pads with {tokenizer.pad_token_id}, the model with {padding}",
                where="model.arch.pad_token_id",
            )

    def hidden(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, positions: Tensor | None = None
    ) -> Tensor:
        """Return the last hidden states, [N, T, D]; those at padding are meaningless. Tokens attend to all others.

        Args:
            input_ids: [N, T].
            attention_mask: [N, T], 1 at tokens; None when no row is padded.
            positions: must be None: a row is one text.
        """
        assert positions is None, "each text of a masked model needs a row of its own"
        base: Any = self.module.base_model
        states: Tensor = base(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        return states

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        max_new_tokens: int = 50,
        stop_ids: Iterable[int] | None = None,
        batch_size: int = 8,
    ) -> list[str]:
        """Raise UserError: a masked model cannot generate text."""
        raise UserError("a masked model cannot generate text", where="model", fix="use a causal model for this task")
