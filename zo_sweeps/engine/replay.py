"""A run is its log of scalars: the weights of any step from the base weights and the logged coefficients.

    theta_t = theta_0 - sum_{s <= t} lr_s * u(ghat_s),   ghat_s from (seed, s, coefficients of s)

The same updates run in the same order on the same numbers, so that the result has the same bits as the run's, on the
same kind of device. Cost: q noise passes over the space a step, no forward.
"""

from __future__ import annotations

from collections.abc import Sequence

from zo_sweeps.engine.schedules import Schedule
from zo_sweeps.engine.step import Method
from zo_sweeps.engine.types import Params, State


def replay(
    method: Method,
    params: Params,
    coefs: Sequence[Sequence[float]],
    schedule: Schedule,
    *,
    seed: int,
    state: State | None = None,
    first: int = 1,
) -> State:
    """Applies the updates of steps first, first+1, ... to `params` in place; `coefs[i]` is the log of step first+i."""
    state = method.update.init(params) if state is None else state
    for number, logged in enumerate(coefs, start=first):
        estimate = method.estimator.from_log(seed, number, logged)
        state = method.update.apply(params, estimate, method.perturbation, state, schedule(number))
    return state
