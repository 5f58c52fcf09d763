"""A run is its log of scalars: base weights and logged coefficients give the weights at any step.

    theta_t = theta_0 - sum_{s <= t} lr_s * u(ghat_s),   ghat_s from (seed, s, coefficients of s)

Replay applies the same updates in the same order to the same numbers, so its result is bit-identical to the run's on
the same kind of device. Cost: q noise passes over the space per step, no forwards.

Directions that read the minibatch take its forward at theta again, per step: their replay needs the data, and a machine
that rounds alike, which the digest at the end of each line of the log tells.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from zo_sweeps.core.errors import UserError
from zo_sweeps.engine.evaluate import StepObjective
from zo_sweeps.engine.step import Method, RunState, with_bases
from zo_sweeps.methods.perturbation import Reads
from zo_sweeps.methods.schedule import Rates
from zo_sweeps.methods.space import InstalledSpace
from zo_sweeps.methods.update import Params


class Data(NamedTuple):
    """What the replay of directions that read the minibatches needs: the model at theta, and f of each step."""

    module: nn.Module
    space: InstalledSpace
    objective: Callable[[int], StepObjective]


def replay(
    method: Method,
    params: Params,
    coefs: Sequence[Sequence[float]],
    rates: Rates,
    *,
    seed: int,
    state: RunState | None = None,
    first: int = 1,
    data: Data | None = None,
) -> RunState:
    """Apply the updates of steps first, first+1, ... to `params` in place; `coefs[i]` is the log of step first+i.

    Raises ValueError if directions read the minibatches and `data` is missing, and OtherBasesError if the bases here
    are not those of the run.
    """
    method = method.bind(params)
    state = method.init(params) if state is None else state
    for number, logged in enumerate(coefs, start=first):
        now = method.at(params, state, number)
        if now.perturbation.reads is Reads.DATA:
            now, logged = _as_in_the_run(now, data, seed, number, logged[-1:]), logged[:-1]
        if now.in_place is not None:
            now.in_place.walk(params, now.perturbation, now.estimator.points(seed, number))
        state = now.move(params, now.estimator.from_log(seed, number, logged), state, rates(number))
    return state


class OtherBasesError(UserError):
    """The layers' inputs give other bases here than in the run."""


def _as_in_the_run(method: Method, data: Data | None, seed: int, step: int, mark: Sequence[float]) -> Method:
    """Return the method with the bases of a step, which have the digest that the log says."""
    name = method.perturbation.name
    if data is None:
        raise ValueError(f"directions of {name} depend on {method.perturbation.reads.value}: their replay needs it")
    method = with_bases(method, data.module, data.space, data.objective(step), seed, step)
    if [*mark] != [method.mark]:
        what = f"the bases of step {step} are not those of the run: this machine rounds otherwise, or the data differ"
        raise OtherBasesError(
            what, fix=f"replay {name} on the kind of machine where it ran, or rerun it from its first step"
        )
    return method


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
    method: Method,
    space: InstalledSpace,
    coefs: Sequence[Sequence[float]],
    rates: Rates,
    *,
    seed: int,
    data: Data | None = None,
) -> RunState:
    """Replay from step 1 onto an installed space, which changes at the same steps as in the run; see `replay`.

    Where the set of parameters changes (a sparse mask is recomputed), the state is reset.
    """
    first = 1
    for step in range(1, len(coefs) + 1):
        if space.changes_at(step):
            replay(method, space.params, coefs[first - 1 : step - 1], rates, seed=seed, first=first, data=data)
            space.begin(step)
            first = step
    return replay(method, space.params, coefs[first - 1 :], rates, seed=seed, first=first, data=data)
