"""Trials of one base model that share forwards: each runs its own steps, and the forwards meet at a table.

    f of trial 1 at P_1 points -> [P_1 N_1, T_1] token ids -.
    f of trial 2 at P_2 points -> [P_2 N_2, T_2] token ids --+-> one forward of [(P_1 + P_2) N, T] rows -> own rows
                                                             |
    values of the space at these points, [P_k, *shape]      -'      N = max N_k, T = max T_k

A trial is written as if it were alone: its steps, evaluations, log and update are its own, in a thread of its own. One
thread runs at a time, the one that has the baton; the one that completes the set of calls computes for all. So nothing
of a trial needs a lock, and no more processors are used than by one trial.

A forward of more rows rounds differently than several of fewer: a trial that shares forwards has the losses of one that
does not to within the rounding of its weights' dtype, not to the bit. Its log replays exactly either way.

Whether sharing is faster is measured, by the number of tokens: where a processor computes as fast as it can with one
trial's rows (long or large batches), sharing gains nothing, and each trial's forward is computed apart.

Shapes: P points, N rows per point, T tokens, D hidden width, K rows of the head, V vocabulary.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from zo_sweeps.engine.types import LanguageModel

PADDED = 2.0  # a shared forward has at most so many times the tokens of its parts; beyond, they are computed apart
ROUNDS = 4  # forwards of either way that are timed before one is chosen, after one that is not


class Model(LanguageModel, Protocol):
    """A model whose rows can be put together with those of others."""

    @property
    def pad_id(self) -> int: ...

    def packs(self, length: int) -> bool:
        """Tell whether rows of this many tokens can hold several texts."""
        ...


class Shareable(Protocol):
    """An installed space that can hold the values of several trials at once."""

    def hold(self, values: Mapping[str, Tensor]) -> None: ...

    def held(self) -> dict[str, Tensor]:
        """Return what it holds, [P or 1, *shape] each, with the frozen values that differ between trials."""
        ...


@dataclass(frozen=True)
class Call:
    """A trial's call of its model's decoder; see `LanguageModel.hidden`.

    Args:
        values: what its space holds, [P or 1, *shape] each.
    """

    input_ids: Tensor  # [P * N, T]
    attention_mask: Tensor | None
    positions: Tensor | None
    values: Mapping[str, Tensor]

    @property
    def points(self) -> int:
        return max(len(value) for value in self.values.values())

    @property
    def rows(self) -> int:
        """Rows per point."""
        return len(self.input_ids) // self.points

    @property
    def tokens(self) -> int:
        return self.input_ids.numel()


@dataclass
class Pace:
    """The seconds per token of forwards of about one size, computed together and apart."""

    together: list[float] = field(default_factory=list)
    apart: list[float] = field(default_factory=list)
    forwards: int = 0  # of single trials

    @property
    def is_known(self) -> bool:
        return min(len(self.together), len(self.apart)) > ROUNDS

    @property
    def gain(self) -> float:
        """How many times faster forwards are together, if they are and it is known; else 1."""
        return max(1.0, min(self.apart[1:]) / min(self.together[1:])) if self.is_known else 1.0

    @property
    def next_together(self) -> bool:
        """Whether the next forward is computed together: in turns until it is known what is faster."""
        return self.gain > 1 if self.is_known else len(self.together) <= len(self.apart)


class Table:
    """Where the forwards of several trials meet.

    Args:
        trials: how many sit here. Each takes part in a thread of its own, within `turn`.

    Attributes:
        host: what computes them together, before the first of them: a model whose modules are its own, with the
            weights of the trials' models, and the space as installed in it, with any values.
    """

    host: tuple[Model, Shareable] | None = None

    def __init__(self, trials: int) -> None:
        self._members = trials
        self._changed = threading.Condition()
        self._calls: dict[Seat, Call | Tensor] = {}
        self._answers: dict[Seat, Tensor | Exception] = {}
        self._paces: dict[tuple[int, int], Pace] = {}
        self._together = False  # how the last forward was computed

    @property
    def gain(self) -> float:
        """How many times faster forwards were together, of the size that was the most frequent."""
        return max(self._paces.values(), key=lambda pace: pace.forwards, default=Pace()).gain

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Hold the baton, in a trial's thread, except while a call of its seat waits; at the end, leave the table."""
        with self._changed:
            try:
                yield
            finally:
                self._members -= 1
                self._compute_if_all_called()

    def answer(self, seat: Seat, call: Call | Tensor) -> Tensor:
        """Return the hidden states of a call, or the logits of hidden states; waits for the other trials' calls."""
        self._calls[seat] = call
        self._compute_if_all_called()
        self._changed.wait_for(lambda: seat in self._answers)
        answer = self._answers.pop(seat)
        if isinstance(answer, Exception):
            raise answer
        return answer

    @property
    def _host(self) -> tuple[Model, Shareable]:
        assert self.host is not None, "a seat without a host"
        return self.host

    def _compute_if_all_called(self) -> None:
        if not self._calls or len(self._calls) < self._members:
            return
        calls, self._calls = self._calls, {}
        decoders = {seat: call for seat, call in calls.items() if isinstance(call, Call)}
        heads = {seat: call for seat, call in calls.items() if isinstance(call, Tensor)}
        if decoders:
            self._answers |= self._decoded(decoders)
        if heads:
            self._answers |= self._projected(heads)
        self._changed.notify_all()

    def _decoded(self, calls: Mapping[Seat, Call]) -> dict[Seat, Tensor | Exception]:
        """Return the hidden states of each call, computed together or apart."""
        own = sum(call.tokens for call in calls.values())
        pace = self._paces.setdefault((len(calls), own.bit_length()), Pace())
        pace.forwards += len(calls)
        self._together = len(calls) > 1 and self._fit(list(calls.values())) and pace.next_together
        began = self._now()
        answers: dict[Seat, Tensor | Exception] = {}
        if self._together:
            try:
                answers |= zip(calls, self._stacked(list(calls.values())), strict=True)
            except Exception:  # too little memory, say: each computes its own, and an error is then its own
                self._together, pace.together = False, [math.inf] * (ROUNDS + 1)
        if not self._together:
            for seat, call in calls.items():
                answers[seat] = _tried(seat.model.hidden, call.input_ids, call.attention_mask, call.positions)
        if not pace.is_known and len(calls) > 1:
            (pace.together if self._together else pace.apart).append((self._now() - began) / own)
        return answers

    def _projected(self, calls: Mapping[Seat, Tensor]) -> dict[Seat, Tensor | Exception]:
        """Return the logits of each call, computed together if their hidden states were."""
        if self._together and len(calls) > 1:
            with suppress(Exception):  # as above
                logits = self._host[0].head(torch.cat(list(calls.values())))
                return dict(zip(calls, logits.split([len(hidden) for hidden in calls.values()]), strict=True))
        return {seat: _tried(seat.model.head, hidden) for seat, hidden in calls.items()}

    def _fit(self, calls: Sequence[Call]) -> bool:
        """Tell whether one batch can hold the rows of all calls, with little padding."""
        P, N, T = _sizes(calls)
        several_texts = any(call.positions is not None for call in calls)
        little = PADDED * sum(call.tokens for call in calls) >= P * N * T
        return little and (self._host[0].packs(T) or not several_texts)

    def _stacked(self, calls: Sequence[Call]) -> list[Tensor]:
        """Return the hidden states of each call from one forward."""
        _, N, T = _sizes(calls)
        model, space = self._host
        ids = torch.cat([_padded(c, c.input_ids, N, T, model.pad_id) for c in calls])
        mask = torch.cat([_padded(c, _mask(c), N, T, 0) for c in calls])
        mask[:, 0] = 1  # a row without a token would have no defined attention
        positions = None
        if any(call.positions is not None for call in calls):
            positions = torch.cat([_padded(c, _positions(c), N, T, 0) for c in calls])
        values = {
            name: torch.cat([c.values[name].expand(c.points, *c.values[name].shape[1:]) for c in calls])
            for name in calls[0].values
        }
        space.hold(values)
        try:
            states = model.hidden(ids, mask, positions)
        finally:
            space.hold({})
        each = states.split([call.points * N for call in calls])
        return [
            own.unflatten(0, (call.points, N))[:, : call.rows, : call.input_ids.shape[1]].flatten(0, 1)
            for call, own in zip(calls, each, strict=True)
        ]

    def _now(self) -> float:
        """Return the time at which all that was asked for is computed."""
        device = next(self._host[0].module.parameters()).device
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter()


@dataclass(frozen=True, eq=False)
class Seat:
    """A trial's place at a table: its model, whose forwards meet those of the others. A `LanguageModel`.

    Args:
        model: the trial's own, in which `space` is installed.
    """

    table: Table
    model: LanguageModel
    space: Shareable

    @property
    def module(self) -> nn.Module:
        return self.model.module

    def hidden(self, input_ids: Tensor, attention_mask: Tensor | None, positions: Tensor | None) -> Tensor:
        return self.table.answer(self, Call(input_ids, attention_mask, positions, self.space.held()))

    def head(self, hidden: Tensor) -> Tensor:
        return self.table.answer(self, hidden)


def _tried(compute: Callable[..., Tensor], *inputs: Tensor | None) -> Tensor | Exception:
    """Return the result, or the error, which is that of one trial."""
    try:
        return compute(*inputs)
    except Exception as error:  # raised where the trial waits
        return error


def _sizes(calls: Sequence[Call]) -> tuple[int, int, int]:
    """Return the points of all calls, and the most rows per point and tokens per row."""
    return sum(c.points for c in calls), max(c.rows for c in calls), max(c.input_ids.shape[1] for c in calls)


def _padded(call: Call, tokens: Tensor, rows: int, length: int, value: int) -> Tensor:
    """Return [P * N_k, T_k] numbers of a call's tokens as [P * rows, length]."""
    grouped = tokens.unflatten(0, (call.points, call.rows))
    more = (0, length - tokens.shape[1], 0, rows - call.rows)
    return functional.pad(grouped, more, value=value).flatten(0, 1)


def _mask(call: Call) -> Tensor:
    return torch.ones_like(call.input_ids) if call.attention_mask is None else call.attention_mask


def _positions(call: Call) -> Tensor:
    """Return each token's position in its text; those of padding may be anything."""
    if call.positions is not None:
        return call.positions
    return torch.arange(call.input_ids.shape[1], device=call.input_ids.device).expand_as(call.input_ids)
