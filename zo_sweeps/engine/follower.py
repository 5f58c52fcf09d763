"""The follower's side of a shared step: apply the leader's log to theta, and evaluate f at the requested points."""

from __future__ import annotations

from collections.abc import Callable

from zo_sweeps.engine.evaluate import Objective
from zo_sweeps.engine.peers import pack_losses, unpack
from zo_sweeps.engine.replay import replay
from zo_sweeps.engine.step import Method, losses_at
from zo_sweeps.engine.types import LanguageModel
from zo_sweeps.methods.schedule import Rates
from zo_sweeps.methods.space import InstalledSpace


class Follower:
    """A process that answers the questions of a `Team` (peers.py).

    Args:
        space: at its base values: the first question brings the whole log.
        objective: step number -> f of its minibatch.
    """

    def __init__(
        self,
        method: Method,
        model: LanguageModel,
        space: InstalledSpace,
        objective: Callable[[int], Objective],
        rates: Rates,
        *,
        seed: int,
    ) -> None:
        self._method, self._model, self._space, self._seed = method.bind(space.params), model, space, seed
        self._objective, self._rates = objective, rates
        self._state = method.update.init(space.params)
        self._step = 0  # the next step; 0: none has begun
        self._begin()

    def answer(self, question: bytes) -> bytes:
        """Apply the question's steps, then return the losses at its points. Raises ValueError for other steps."""
        done, log, chosen = unpack(question)
        if done != self._step - 1:
            raise ValueError(f"the leader sent steps from {done + 1} on, but the next step here is {self._step}")
        for coefs in log:
            self._state = replay(
                self._method,
                self._space.params,
                [coefs],
                self._rates,
                seed=self._seed,
                state=self._state,
                first=self._step,
            )
            self._begin()
        points = self._method.estimator.points(self._seed, self._step)
        f = self._objective(self._step)
        at = [points[i] for i in chosen]
        return pack_losses(losses_at(self._method, self._model.module, self._space, f, at))

    def _begin(self) -> None:
        """Begin the next step: the space changes at the same steps as in `train`."""
        self._step += 1
        if self._space.changes_at(self._step):
            self._space.begin(self._step)
            self._method = self._method.bind(self._space.params)
            self._state = self._method.update.init(self._space.params)
