"""A peer's side of a shared step: theta follows the leader's log, and f is evaluated where the leader asks."""

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
    """Answers the questions of a `Team` (peers.py).

    Args:
        space: on its base values: the first question brings the whole log.
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
        self._step = 0  # that theta stands before; 0: nothing was begun
        self._begin()

    def answer(self, question: bytes) -> bytes:
        """The losses at the points asked for, after the steps that came with them. Raises ValueError for others."""
        done, log, chosen = unpack(question)
        if done != self._step - 1:
            raise ValueError(f"steps {done + 1}... were sent where step {self._step} is next")
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
        """The next step: the space changes where it does in `train`."""
        self._step += 1
        if self._space.changes_at(self._step):
            self._space.begin(self._step)
            self._method = self._method.bind(self._space.params)
            self._state = self._method.update.init(self._space.params)
