"""The runner of federated trials: all clients of a round, one after the other, in this process."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from zo_sweeps.engine.batch import indices
from zo_sweeps.engine.clients import LocalSteps, train_in_rounds
from zo_sweeps.engine.evaluate import Objective
from zo_sweeps.engine.step import Method
from zo_sweeps.engine.train import Evaluated, StepDone, of_batch
from zo_sweeps.engine.types import Peers
from zo_sweeps.methods.kinds.federated import Federated
from zo_sweeps.methods.space import InstalledSpace
from zo_sweeps.run.training import ZerothOrderRunner
from zo_sweeps.tasks.shards import shards


class Rounds(ZerothOrderRunner):
    """A federated trial whose clients are simulated: theta is the same for all of them when a round begins."""

    def _steps(self, method: Method, space: InstalledSpace, peers: Peers | None) -> Iterator[StepDone | Evaluated]:
        bench, config, kind = self.bench, self.config, self.config.method.kind
        assert isinstance(kind, Federated)
        method = method.bind(space.params)
        local = LocalSteps(kind, method, bench.model.module, space, bench.rates(), config.seed, config.train.steps)
        train, size, tokens = bench.splits.train, config.train.batch, 0
        assert size is not None
        rows = shards([example.gold for example in train], kind.clients, kind.alpha, config.seed)

        def objective(client: int, step: int) -> Objective:
            nonlocal tokens
            own = rows[client]
            batch = bench.collated([train[own[i]] for i in indices(config.seed, step, len(own), size)])
            tokens += batch.tokens * len(local.points(step, 0))
            return of_batch(bench.model, batch, bench.objective.loss, space)

        def gather(first: int) -> tuple[list[list[float]], int]:
            nonlocal tokens
            tokens = 0
            members = enumerate(kind.members(config.seed, first))
            losses = [local.losses(partial(objective, client), first, place) for place, client in members]
            return losses, tokens

        directions = method.estimator.directions(method.d)
        of_client = len(local.points(1, 0))
        rounds = -(-config.train.steps // kind.local_steps)
        up, down = kind.traffic(config.seed, config.train.steps, of_client, directions)
        self.recorder.measured |= {
            "rounds": float(rounds),
            "client_bytes_up": float(up),
            "client_bytes_down": float(down),
            "client_bytes": (up + down) / (rounds * kind.present),
        }
        return train_in_rounds(
            local,
            gather,
            bench.score_dev,
            eval_every=config.train.eval_every,
            log=list(self.recorder.coefs),
            evaluated=set(self.recorder.evaluations),
            joules=self.recorder.energy.joules,
        )
