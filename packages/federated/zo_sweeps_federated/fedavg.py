"""First-order training over clients that keep their rows and exchange weights."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from zo_sweeps.methods.kinds.fo import FirstOrder
from zo_sweeps.methods.trial_config import TrialConfig
from zo_sweeps_federated.client_rounds import OfClients


@dataclass(frozen=True)
class FederatedAveraging(OfClients, FirstOrder):
    """Backpropagation in rounds of K local steps of the clients that are present, whose weights are averaged (FedAvg).

    The reference of training whose only traffic is scalars, over the same clients, rows and rounds; see
    `zo_sweeps_federated.averaging`. An optimizer's state begins anew in each round, and all clients have the same
    weight. Clients are simulated in one process, in turn. One client with K = all steps is `fo`, bit for bit.

    Bytes: a client receives the trained weights at the beginning of its round, and sends them at its end.
    """

    runner: ClassVar[str] = "zo_sweeps_federated.rounds:AveragedRounds"

    def problems(self, config: TrialConfig) -> Iterator[str]:
        """Yield the problems of rows that are divided among clients, and of evaluations within a round."""
        yield from super().problems(config)
        train = config.train
        if self.mixed_precision:
            yield "method.mixed_precision lowers its loss scale from step to step, which a client's round begins anew"
        if train.eval_every % self.local_steps and train.eval_every < train.steps:
            several = f"train.eval_every={train.eval_every} is no multiple of method.local_steps={self.local_steps}"
            yield f"{several}: weights are averaged, and can be scored, at the end of a round"

    @property
    def batches(self) -> int:
        return self.present

    @property
    def copies(self) -> int:
        return 2  # the round's weights, and the sum of its clients'
