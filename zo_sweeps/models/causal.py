"""A causal language model as the engine and the tasks see it.

Shapes: N rows, T tokens, D hidden width, K chosen positions, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from zo_sweeps.models import families
from zo_sweeps.models.shapes import roles


class LanguageModel:
    """A Hugging Face causal language model with frozen weights, in evaluation mode, and its tokenizer.

    Args:
        module: the whole model; qualified parameter names are relative to it.
        tokenizer: its tokenizer. The token a text starts with is `bos_id`, which need not be the tokenizer's own.
        commit: the hub commit that the weights are of; "" for weights from elsewhere.
    """

    def __init__(self, module: Any, tokenizer: Any, commit: str = "") -> None:
        self.module: nn.Module = module.eval().requires_grad_(False)
        self.tokenizer = tokenizer
        self.commit = commit
        self.config = module.config
        self.family = families.family(self.config.model_type)
        vocabulary = tokenizer.get_vocab()
        self.bos_id: int | None = vocabulary.get(self.family.BOS_TOKEN, tokenizer.bos_token_id)
        self.eos_id: int | None = tokenizer.eos_token_id
        # Llama has no padding token: `<unk>`, as in MeZO. No result depends on which: no position attends to padding.
        self.pad_id: int = _first(tokenizer.pad_token_id, tokenizer.unk_token_id, self.eos_id, 0)
        self.max_positions: int = self.config.max_position_embeddings

    def hidden(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, positions: Tensor | None = None
    ) -> Tensor:
        """Last hidden states, [N, T, D], of a right-padded batch; those at padding are meaningless.

        A position attends only to those before it, so padding on the right is never seen by a token, and the mask need
        not be used: SDPA then takes its causal path, which makes no T x T mask. The mask is only checked (on a GPU
        without waiting for it: a batch padded on the left fails at the next synchronisation).

        Args:
            input_ids: [N, T].
            attention_mask: [N, T], ones then zeros in every row; None when no row is padded.
            positions: [N, T], each token's place in its text, where rows hold several texts one after the other; a
                token then sees its own text only. None: a row is one text.

        Cost: with positions, attention reads a mask of T x T booleans a row.
        """
        if attention_mask is not None:
            falls_only = (attention_mask[:, 1:] <= attention_mask[:, :-1]).all()
            torch._assert_async(falls_only, "hidden() takes batches padded on the right")
        base: Any = self.module.base_model
        seen = None if positions is None else own_text(positions)
        window: int | None = getattr(self.config, "sliding_window", None)
        if seen is not None and window is not None and window < input_ids.shape[1]:
            seen = seen.triu(1 - window)  # a mask of ours replaces the model's own
        states: Tensor = base(
            input_ids=input_ids, attention_mask=seen, position_ids=positions, use_cache=False
        ).last_hidden_state
        return states

    def head(self, hidden: Tensor) -> Tensor:
        """Logits [K, V] of hidden states [K, D]."""
        module: Any = self.module
        logits: Tensor = module.get_output_embeddings()(hidden)
        return logits

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Where a generated answer ends: at a newline or at the end of the text (MeZO's rule)."""
        newline = self.tokenizer.encode("\n", add_special_tokens=False)[-1:]
        return tuple(sorted({*newline, *([] if self.eos_id is None else [self.eos_id])}))

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        max_new_tokens: int = 50,
        stop_ids: Iterable[int] | None = None,
        batch_size: int = 8,
    ) -> list[str]:
        """Greedy continuations of `prompts` (token ids, with their BOS), up to a stop token, decoded and stripped.

        A batch is padded on the left and masked, so that a prompt's text does not depend on its neighbours (up to ties
        within rounding). Prompts of similar length share a batch. Raises ValueError when a prompt leaves no room.
        """
        from transformers import GenerationConfig

        stops = sorted(set(self.stop_ids if stop_ids is None else stop_ids))
        config = GenerationConfig(
            max_new_tokens=max_new_tokens,
            do_sample=False,
            num_beams=1,
            use_cache=True,
            pad_token_id=self.pad_id,
            eos_token_id=stops or None,
        )
        order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]), reverse=True)
        longest = max(map(len, prompts), default=0)
        if longest + max_new_tokens > self.max_positions:
            raise ValueError(f"{longest} prompt and {max_new_tokens} new tokens exceed {self.max_positions} positions")
        texts = [""] * len(prompts)
        module: Any = self.module
        for start in range(0, len(order), batch_size):
            chunk = order[start : start + batch_size]
            ids, mask = self._left_padded([prompts[i] for i in chunk])
            with torch.inference_mode():
                output = module.generate(input_ids=ids, attention_mask=mask, generation_config=config)
            for i, row in zip(chunk, output[:, ids.shape[1] :].tolist(), strict=True):
                length = next((n for n, token in enumerate(row) if token in stops), len(row))
                texts[i] = self.tokenizer.decode(row[:length], skip_special_tokens=True).strip()
        return texts

    def prompt(self, text: str) -> list[int]:
        """The token ids of a text, with what a text starts with."""
        ids: list[int] = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return [*([] if self.bos_id is None else [self.bos_id]), *ids]

    def continue_by(self, prompt: Sequence[int], new_tokens: int) -> list[int]:
        """The greedy continuation of `prompt` (token ids) by exactly `new_tokens` tokens, for timing."""
        from transformers import GenerationConfig

        config = GenerationConfig(
            max_new_tokens=new_tokens,
            min_new_tokens=new_tokens,
            do_sample=False,
            num_beams=1,
            use_cache=True,
            pad_token_id=self.pad_id,
            eos_token_id=self.eos_id,
        )
        if len(prompt) + new_tokens > self.max_positions:
            raise ValueError(f"{len(prompt)} and {new_tokens} new tokens exceed {self.max_positions} positions")
        ids, mask = self._left_padded([prompt])
        module: Any = self.module
        with torch.inference_mode():
            output = module.generate(input_ids=ids, attention_mask=mask, generation_config=config)
        found: list[int] = output[0, ids.shape[1] :].tolist()
        return found

    def target_modules(self, targets: Iterable[str]) -> dict[str, nn.Linear]:
        """The linear layers that `targets` name in every layer, by qualified name, in the model's order.

        A target is a role (q, k, v, o, gate, up, down) or the family's own name for it (q_proj). Raises UserError with
        the choices for one that the family does not have.
        """
        names = {self.family.TARGETS[role] for role in roles(self.family, targets)}
        return {
            name: layer
            for name, layer in self.module.named_modules()
            if isinstance(layer, nn.Linear) and name.rpartition(".")[2] in names
        }

    def _left_padded(self, rows: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
        width = max(len(row) for row in rows)
        ids = torch.full((len(rows), width), self.pad_id, dtype=torch.long)
        mask = torch.zeros_like(ids)
        for n, row in enumerate(rows):
            ids[n, width - len(row) :] = torch.tensor(row, dtype=torch.long)
            mask[n, width - len(row) :] = 1
        device = next(self.module.parameters()).device
        return ids.to(device), mask.to(device)


def own_text(positions: Tensor) -> Tensor:
    """[N, 1, T, T], true where a token (its row of the matrix) may see another: one of its own text, up to itself.

    Args:
        positions: [N, T], each token's place in its text; a text begins at 0.
    """
    text = (positions == 0).cumsum(dim=1)
    return (text.unsqueeze(2) == text.unsqueeze(1)).tril().unsqueeze(1)


def _first(*ids: int | None) -> int:
    return next(i for i in ids if i is not None)
