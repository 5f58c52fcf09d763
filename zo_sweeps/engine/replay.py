"""A run is its log of scalars: base weights and logged coefficients give the weights at any step.

    theta_t = theta_0 - sum_{s <= t} lr_s * u(ghat_s),   ghat_s from (seed, s, coefficients of s)

Replay applies the same updates in the same order to the same numbers, so its result is bit-identical to the run's on
the same kind of device. Cost: q noise passes over the space per step, no forwards.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from zo_sweeps.engine.step import Method, RunState
from zo_sweeps.methods.schedule import Rates
from zo_sweeps.methods.space import InstalledSpace
from zo_sweeps.methods.update import Params


def replay(
    method: Method,
    params: Params,
    coefs: Sequence[Sequence[float]],
    rates: Rates,
    *,
    seed: int,
    state: RunState | None = None,
    first: int = 1,
) -> RunState:
    """Apply the updates of steps first, first+1, ... to `params` in place; `coefs[i]` is the log of step first+i."""
    method = method.bind(params)
    state = method.init(params) if state is None else state
    for number, logged in enumerate(coefs, start=first):
        now = method.at(params, state, number)
        if now.in_place is not None:
            now.in_place.walk(params, now.perturbation, now.estimator.points(seed, number))
        state = now.move(params, now.estimator.from_log(seed, number, logged), state, rates(number))
    return state


def digest(params: Mapping[str, Tensor]) -> str:
    """Return SHA-256 (64 hex digits) of parameters: of name, dtype, shape and bytes of each, in the order of names.

    Cost: one pass, and a copy of one parameter at a time in main memory.
    """
    found = hashlib.sha256()
    for name in sorted(params):
        value = params[name].detach().to("cpu").contiguous()
        found.update(f"{name} {value.dtype} {list(value.shape)}\n".encode())
        found.update(value.reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()


def rebuild(
    method: Method, space: InstalledSpace, coefs: Sequence[Sequence[float]], rates: Rates, *, seed: int
) -> RunState:
    """Replay from step 1 onto an installed space, which changes at the same steps as in the run.

    Where the set of parameters changes (a sparse mask is recomputed), the state is reset.
    """
    first = 1
    for step in range(1, len(coefs) + 1):
        if space.changes_at(step):
            replay(method, space.params, coefs[first - 1 : step - 1], rates, seed=seed, first=first)
            space.begin(step)
            first = step
    return replay(method, space.params, coefs[first - 1 :], rates, seed=seed, first=first)
