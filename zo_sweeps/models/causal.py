"""Causal and masked language models as the engine and the tasks see them.

Shapes: N rows, T tokens, D hidden width, K chosen positions, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from inspect import signature
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zo_sweeps.core.errors import UserError
from zo_sweeps.core.memory_parts import Part, continue_as, counted_as
from zo_sweeps.methods.arch import ALL
from zo_sweeps.methods.evaluation import GENERATED_TOGETHER
from zo_sweeps.methods.points import rows_of_points
from zo_sweeps.methods.space import PREFIX_LENGTH, Space
from zo_sweeps.models import families
from zo_sweeps.models.checkpoint import front_of
from zo_sweeps.models.package import Package
from zo_sweeps.models.projection import features, logits_of

Choose = Callable[[Sequence[int], int, Tensor], Tensor]

FILLED = 64  # rows from which on a CPU multiplies a batch of more no faster per row


class CausalModel:
    """A Hugging Face causal language model with frozen weights, in evaluation mode, and its tokenizer.

    Args:
        module: the whole model; qualified parameter names are relative to it.
        tokenizer: its tokenizer. A text starts with the tokens `front`, which need not be the tokenizer's own BOS.
        commit: the hub commit of the weights; "" for weights from elsewhere.
        package: the package that the weights come from, if they do.

    Attributes:
        ends: ids of the tokens that end a text, by the tokenizer or by the checkpoint's settings for generation.
    """

    def __init__(self, module: Any, tokenizer: Any, commit: str = "", package: Package | None = None) -> None:
        self.module: nn.Module = module.eval().requires_grad_(False)
        self.tokenizer = tokenizer
        self.commit, self.package = commit, package
        config = module.config.to_dict()
        self.arch = families.describe(config)
        self.front = front_of(tokenizer, families.family(config).bos)
        families.fits(self.arch, tokenizer)
        self.eos_id: int | None = tokenizer.eos_token_id
        named = getattr(getattr(module, "generation_config", None), "eos_token_id", None)  # one, or several as in Qwen3
        ends = (self.eos_id, *(named if isinstance(named, list) else [named]))
        self.ends = frozenset(one for one in ends if one is not None)
        # Llama has no padding token; `<unk>` serves, as in MeZO. No result depends on it: nothing attends to padding.
        padding = (tokenizer.pad_token_id, tokenizer.unk_token_id, self.eos_id, 0)
        self.pad_id: int = next(i for i in padding if i is not None)
        self.max_positions: int = self.arch.positions
        for name, layer in self.target_modules([ALL]).items():  # planning relied on `arch`
            role = next(role for role, path in self.arch.projections.items() if name.endswith(f".{path}"))
            if (own := features(layer)) != (described := self.arch.linears[role]):
                raise UserError(
                    f"{name} has {own} features (out, in), and its configuration {described}", where="model"
                )

    def hidden(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, positions: Tensor | None = None
    ) -> Tensor:
        """Return the last hidden states, [N, T, D], of a right-padded batch; those at padding are meaningless.

        A position attends only to itself and earlier ones, so no token sees the padding to its right, and the model
        runs without the mask: SDPA then takes its causal path, which builds no T x T mask. The mask is only checked, on
        a GPU asynchronously: a batch padded on the left fails at the next synchronisation.

        Args:
            input_ids: [N, T].
            attention_mask: [N, T], ones then zeros in every row; None when no row is padded.
            positions: [N, T], each token's position in its text, if rows hold several texts one after the other; a
                token then attends to its own text only (see `own_text`). None: a row is one text.

        Cost: with positions, attention reads a mask of T x T booleans per row. A model that cannot use such a mask
        (`arch.no_packing`, or attention other than SDPA), or whose window is shorter than a row and the prefix before
        it, runs with each text in a row of its own.
        """
        if attention_mask is not None:
            right_padded = (attention_mask[:, 1:] <= attention_mask[:, :-1]).all()
            torch._assert_async(right_padded, "hidden() takes batches padded on the right")
        base: Any = self.module.base_model
        if positions is not None and not self.packs(input_ids.shape[1]):
            return self._apart(input_ids, attention_mask, positions)
        visible = None if positions is None else own_text(positions)
        states: Tensor = base(
            input_ids=input_ids, attention_mask=visible, position_ids=positions, use_cache=False
        ).last_hidden_state
        return states

    def head(self, hidden: Tensor) -> Tensor:
        """Return the logits [K, V] of hidden states [K, D], scaled and capped as in the model's own forward."""
        return logits_of(self.module, hidden)

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Ids of the tokens that end a generated answer: newline and every end of text (MeZO's rule)."""
        newline = self.tokenizer.encode("\n", add_special_tokens=False)[-1:]
        return tuple(sorted({*newline, *self.ends}))

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        max_new_tokens: int = 50,
        stop_ids: Iterable[int] | None = None,
        batch_size: int = GENERATED_TOGETHER,
        points: int = 1,
        choose: Choose | None = None,
    ) -> list[str]:
        """Continue `prompts` (token ids, with their BOS) greedily up to a stop token; return texts less outer spaces.

        Prompts of similar length share a batch, padded on the left and masked where their lengths differ, so that a
        continuation does not depend on the other prompts and points (up to ties within rounding). A batch of FILLED
        rows or more is of one length, without padding.

        Args:
            stop_ids: the stop tokens; if one of the model's `ends` is among them, all are. None: those of the property.
            batch_size: prompts continued together, at every point.
            points: P, of those that the model's space holds; the texts are those of the first, then of the second, ...
            choose: (numbers of the prompts in a batch, tokens generated so far, logits [N, V]) -> scores [N, V], of
                which the highest is taken; None: the logits.

        Raises ValueError if a prompt and its new tokens exceed the model's positions.
        """
        stops = {*(self.stop_ids if stop_ids is None else stop_ids)}
        stops |= frozenset() if self.ends.isdisjoint(stops) else self.ends
        batches: list[list[int]] = []
        for i in sorted(range(len(prompts)), key=lambda i: len(prompts[i]), reverse=True):  # the longest prompts first
            last = batches[-1] if batches else []
            padded = bool(last) and len(prompts[last[0]]) > len(prompts[i])
            if not last or len(last) == batch_size or (padded and points * len(last) >= FILLED):
                batches.append([])
            batches[-1].append(i)
        texts = [""] * (points * len(prompts))
        for chunk in batches:
            rows = self._continued(
                [prompts[i] for i in chunk] * points, max_new_tokens, sorted(stops), choose, points, chunk
            )
            places = [point * len(prompts) + i for point in range(points) for i in chunk]
            for i, row in zip(places, rows, strict=True):
                texts[i] = self.tokenizer.decode(row, skip_special_tokens=True).strip(" ")  # a newline may be a stop
        return texts

    def prompt(self, text: str) -> list[int]:
        """Return the token ids of a text, after those that every text starts with."""
        ids: list[int] = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return [*self.front, *ids]

    def generate_exactly(self, prompt: Sequence[int], new_tokens: int, choose: Choose | None = None) -> list[int]:
        """Return the continuation of `prompt` (token ids) by exactly `new_tokens` tokens, for timing.

        Raises ValueError if they exceed the model's positions.
        """

        def chosen(rows: Sequence[int], token: int, logits: Tensor) -> Tensor:
            if self.eos_id is not None:
                logits[:, self.eos_id] = -torch.inf
            return logits if choose is None else choose(rows, token, logits)

        return self._continued([prompt], new_tokens, choose=chosen)[0]

    @torch.inference_mode()
    def _continued(
        self,
        prompts: Sequence[Sequence[int]],
        new_tokens: int,
        stops: Sequence[int] = (),
        choose: Choose | None = None,
        points: int = 1,
        numbers: Sequence[int] = (0,),
    ) -> list[list[int]]:
        """Return the tokens that greedy generation appends to each prompt, in one batch, without the token of `stops`.

        A row that has its stop leaves the batch, with its keys and values. The prompts are a group per point, each of
        those with these `numbers`, by which `choose` knows the rows that are left.
        """
        longest = max(map(len, prompts))
        if longest + new_tokens > self.max_positions:
            raise ValueError(f"{longest} prompt and {new_tokens} new tokens exceed {self.max_positions} positions")
        device = next(self.module.parameters()).device
        base: Any = self.module.base_model
        padded = [[self.pad_id] * (longest - len(prompt)) + [*prompt] for prompt in prompts]
        ids = torch.tensor(padded, device=device)
        lengths = torch.tensor([[len(prompt)] for prompt in prompts], device=device)
        # Without padding attention takes the causal path, and every model counts positions by its cache.
        mask = None if lengths.min() == longest else torch.arange(longest, device=device) >= longest - lengths
        counts = "position_ids" in signature(base.forward).parameters  # others count positions by the mask
        continuations: list[list[int]] = [[] for _ in prompts]
        rows, last = torch.arange(len(prompts), device=device), torch.tensor(stops, device=device)
        own, cache = len(prompts) // points, None
        for step in range(new_tokens):
            options = {}
            if mask is not None:
                options["attention_mask"] = mask.long()
                if counts:
                    options["position_ids"] = (mask.long().cumsum(1) - 1).clamp_(min=0)[:, -ids.shape[1] :]
            with _at_points(rows, own, points), counted_as(Part.ACTIVATIONS):
                output = base(input_ids=ids, past_key_values=cache, use_cache=True, **options)
                continue_as(Part.LOGITS)
                scores = self.head(output.last_hidden_state[:, -1]).float()
                if choose is not None:
                    scores = choose([numbers[row % own] for row in rows.tolist()], step, scores)
            cache, chosen = output.past_key_values, scores.argmax(-1)
            going = ~torch.isin(chosen, last)
            for row, token, goes in zip(rows.tolist(), chosen.tolist(), going.tolist(), strict=True):
                if goes:
                    continuations[row].append(token)
            left = going.nonzero()[:, 0]
            if not len(left) or step + 1 == new_tokens:
                break
            if mask is not None:
                mask = F.pad(mask, (0, 1), value=True)
            if len(left) < len(rows):
                cache.batch_select_indices(left)
                rows, chosen = rows[left], chosen[left]
                mask = None if mask is None else mask[left]
            ids = chosen[:, None]
        return continuations

    @property
    def weight_bytes(self) -> int:
        """The bytes of the weights as they are stored: parameters, codes and what decodes them; tied ones once."""
        return sum(tensor.nbytes for tensor in self.stored())

    def stored(self) -> Iterator[Tensor]:
        """Yield the tensors that hold the weights: parameters, codes and what decodes them; tied ones once."""
        saved = {*self.module.state_dict()}
        yield from self.module.parameters()
        yield from (buffer for name, buffer in self.module.named_buffers() if name in saved)

    @property
    def blocks(self) -> list[nn.Module]:
        """The layers, each of attention and a feed-forward part, in order."""
        return list(self.module.get_submodule(self.arch.blocks).children())

    def layers_of(self, space: Space) -> list[str]:
        """Return the qualified names of a space's target layers, in order; [] if it does not work on single layers."""
        return [*self.target_modules(space.layers, space.untouched(self.arch))] if space.layers else []

    def target_modules(self, targets: Iterable[str], first: int = 0) -> dict[str, nn.Module]:
        """Return the projections (Linear or Conv1D) that `targets` name, by qualified name, from layer `first` on.

        A target is a role (q, k, v, o, gate, up, down, qkv, gate_up), the model's own name for it (q_proj), or `all`;
        see `Arch.roles`. Raises UserError, with the choices, for a target that the model does not have, or if there are
        none.
        """
        names = {*self.arch.names(targets, first)}
        if not names:
            raise UserError("no layer is named", where="space.targets", choices=[ALL, *self.arch.linears])
        modules = {name: layer for name, layer in self.module.named_modules() if name in names}
        if absent := sorted(names - set(modules)):
            what = f"the model has no {absent[0]}, which its family {self.arch.family!r} describes"
            raise UserError(what, where="space.targets")
        return modules

    def packs(self, length: int) -> bool:
        """Tell whether rows of this many tokens can hold several texts.

        A mask of ours replaces the model's own window, and a prefix before the row counts in that. Only SDPA takes a
        mask of booleans: eager attention would add it to the scores.
        """
        config: Any = self.module.config
        prefix: int = getattr(self.module, PREFIX_LENGTH, 0)
        narrow = 0 < self.arch.window < length + prefix
        return not narrow and not self.arch.no_packing and config._attn_implementation == "sdpa"

    def _apart(self, input_ids: Tensor, attention_mask: Tensor | None, positions: Tensor) -> Tensor:
        """Return the hidden states [N, T, D] of packed rows, computed with one row per text.

        For models that cannot read several texts in one row. The texts of a row stay adjacent, so that equal groups of
        rows (the points of a batched space) stay equal groups.
        """
        first, begins = _branches(positions)
        starts = torch.arange(positions.shape[1], device=positions.device) == first
        if attention_mask is not None:
            starts &= attention_mask.bool()  # padding reads the first state of the text before it
        text = starts.flatten().cumsum(0).view_as(positions) - 1
        apart = input_ids.new_full((int(text[-1, -1]) + 1, int(positions.max()) + 1), self.pad_id)
        tokens = starts | (positions > 0)
        apart[text[tokens], positions[tokens]] = input_ids[tokens]
        for n, column in (starts & (begins > 0)).nonzero().tolist():  # texts that go on from the prompt of another
            prompt = (positions[n, :column] == 0).nonzero()[-1, 0]
            length = positions[n, column]
            apart[text[n, column], :length] = input_ids[n, prompt : prompt + length]
        base: Any = self.module.base_model
        states: Tensor = base(input_ids=apart, use_cache=False).last_hidden_state
        return states[text, positions]


@contextmanager
def _at_points(rows: Tensor, own: int, points: int) -> Iterator[None]:
    """Tell the layers, within the block, how many of these rows each point has; it began with `own` of them."""
    counted = torch.bincount(rows.div(own, rounding_mode="floor"), minlength=points)
    token = rows_of_points.set(tuple(counted.tolist()))
    try:
        yield
    finally:
        rows_of_points.reset(token)


def own_text(positions: Tensor) -> Tensor:
    """Return [N, 1, T, T], true where a token (a row of the matrix) may attend: to its own text, up to itself.

    Args:
        positions: [N, T], each token's position in its text. A text begins at 0. Where they step back to p > 0, another
            text with the same first p tokens goes on: they are those of the row's last text that began at 0.
    """
    text = (positions == 0).cumsum(dim=1)
    first, begins = _branches(positions)
    prompt = torch.where(begins == 0, positions, positions.shape[1])  # a token that others may go on from
    own = first.unsqueeze(2) == first.unsqueeze(1)
    before = prompt.unsqueeze(1) < begins.unsqueeze(2)
    return ((text.unsqueeze(2) == text.unsqueeze(1)) & (own | before)).tril().unsqueeze(1)


def _branches(positions: Tensor) -> tuple[Tensor, Tensor]:
    """Return, for each token, the column and the position from which positions have counted up to it, both [N, T]."""
    steps = torch.ones_like(positions)
    steps[:, 1:] = positions[:, 1:] - positions[:, :-1]
    columns = torch.arange(positions.shape[1], device=positions.device)
    first = torch.where(steps == 1, 0, columns).cummax(dim=1).values
    return first, positions.gather(1, first)


class MaskedLanguageModel(CausalModel):
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
        """Return the last hidden states, as a causal model; tokens attend to all others, and a row is one text."""
        assert positions is None, "each text of a masked model needs a row of its own"
        base: Any = self.module.base_model
        states: Tensor = base(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        return states

    def generate(self, *_: Any, **__: Any) -> list[str]:
        """Raise UserError: a masked model cannot generate text."""
        raise UserError("a masked model cannot generate text", where="model", fix="use a causal model for this task")
