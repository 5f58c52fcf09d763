"""A cache of tensors that a trace of torch.export or torch.compile does not spoil."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor

P = ParamSpec("P")
T = TypeVar("T", Tensor, tuple[Tensor, Tensor])


def cached(size: int) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Keep a function's last `size` results, of positional arguments, as functools.lru_cache does, unless torch traces.

    A tensor made during a trace has no values (it is a subclass of Tensor): kept, it would be uninitialized memory for
    the rest of the process.
    """

    def decorate(make: Callable[P, T]) -> Callable[P, T]:
        known: dict[object, T] = {}

        @wraps(make)
        def get(*args: P.args, **kwargs: P.kwargs) -> T:
            if args in known:
                return known[args]
            made = make(*args, **kwargs)
            parts = made if isinstance(made, tuple) else (made,)
            if all(type(part) is torch.Tensor for part in parts):
                while len(known) >= size:
                    known.pop(next(iter(known)), None)
                known[args] = made
            return made

        return get

    return decorate
