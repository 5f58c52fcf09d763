"""First-order training over clients that keep their rows and exchange weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from zo_sweeps.methods.client_rounds import OfClients
from zo_sweeps.methods.kinds.fo import FirstOrder


@dataclass(frozen=True)
class FederatedAveraging(OfClients, FirstOrder):
    """Backpropagation in rounds of K local steps of the clients that are present, whose weights are averaged (FedAvg).

    The reference of training whose only traffic is scalars, over the same clients, rows and rounds; see
    `engine.averaging`. An optimizer's state begins anew in each round, and all clients have the same weight. Clients
    are simulated in one process, in turn. One client with K = all steps is `fo`, bit for bit.

    Bytes: a client receives the trained weights at the beginning of its round, and sends them at its end.
    """

    runner: ClassVar[str] = "zo_sweeps.run.rounds:AveragedRounds"

    @property
    def batches(self) -> int:
        return self.present

    @property
    def copies(self) -> int:
        return 2  # the round's weights, and the sum of its clients'
