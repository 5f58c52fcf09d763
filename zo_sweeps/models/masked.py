"""A masked language model (RoBERTa) as the engine and the tasks see it: what `causal.LanguageModel` is, but the answer
is a word at the place of a mask.

Shapes: N rows, T tokens, D hidden width, K chosen positions, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor, nn

from zo_sweeps.core.errors import UserError
from zo_sweeps.models.causal import LanguageModel
from zo_sweeps.models.shapes import roles


class MaskedLanguageModel(LanguageModel):
    """A Hugging Face masked language model with frozen weights, in evaluation mode, and its tokenizer.

    Raises UserError when the tokenizer has no mask, or pads with another id than the model: RoBERTa counts its
    positions over what is not padding, from that id on, so that it can hold `max_positions` tokens, fewer than it has
    position vectors.
    """

    def __init__(self, module: Any, tokenizer: Any, commit: str = "") -> None:
        super().__init__(module, tokenizer, commit)
        if tokenizer.mask_token_id is None:
            raise UserError("the tokenizer of the masked model has no mask token", where="model")
        self.mask_id: int = tokenizer.mask_token_id
        if tokenizer.pad_token_id != self.config.pad_token_id:
            raise UserError(
                f"the tokenizer pads with {tokenizer.pad_token_id}, the model with {self.config.pad_token_id}",
                where="model.arch.pad_token_id",
            )
        self.max_positions = self.config.max_position_embeddings - self.pad_id - 1

    def hidden(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, positions: Tensor | None = None
    ) -> Tensor:
        """Last hidden states, [N, T, D]; those at padding are meaningless. Every token attends to every other.

        Args:
            input_ids: [N, T].
            attention_mask: [N, T], 1 at tokens; None when no row is padded.
            positions: None: a row is one text.
        """
        assert positions is None, "a masked model's texts stand alone in their rows"
        base: Any = self.module.base_model
        states: Tensor = base(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        return states

    def head(self, hidden: Tensor) -> Tensor:
        """Logits [K, V] of hidden states [K, D]."""
        module: Any = self.module
        logits: Tensor = module.lm_head(hidden)
        return logits

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        max_new_tokens: int = 50,
        stop_ids: Iterable[int] | None = None,
        batch_size: int = 8,
    ) -> list[str]:
        raise UserError("a masked model cannot generate text", where="model", fix="use a causal model for this task")

    def target_modules(self, targets: Iterable[str]) -> dict[str, nn.Linear]:
        """The linear layers that `targets` name in every layer, by qualified name, in the model's order.

        The family's names are the ends of qualified names; a layer has the role of the longest that fits it, so that
        `attention.output.dense` is not taken for `output.dense`. Raises UserError for a target the family lacks.
        """
        wanted, found = set(roles(self.family, targets)), {}
        for name, layer in self.module.named_modules():
            fits = [role for role, end in self.family.TARGETS.items() if f".{name}".endswith(f".{end}")]
            if isinstance(layer, nn.Linear) and fits:
                role = max(fits, key=lambda role: len(self.family.TARGETS[role]))
                if role in wanted:
                    found[name] = layer
        return found
