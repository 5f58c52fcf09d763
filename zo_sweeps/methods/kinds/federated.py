"""Zeroth-order training over clients that keep their rows and exchange scalars."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import ClassVar

from zo_sweeps.core.errors import UserError
from zo_sweeps.methods.definition import option
from zo_sweeps.methods.kinds.zo import ZerothOrder

LOSS_BYTES, COEFFICIENT_BYTES = 4, 8  # fp32, as a loss is computed; fp64, as the log has it


@dataclass(frozen=True)
class Federated(ZerothOrder):
    """Training in rounds of K local steps of the clients that are present, each on minibatches of its own rows.

        g_ck = the coefficients at the k-th local step of client c, from theta after its steps 1, ..., k - 1
        shared directions:  ghat_k = (1/q) sum_i (mean_c g_cki) z_ki
        own directions:     ghat_k = (1/M) sum_c g_ck z_kc,  q = M clients present

    A client goes back to the round's theta, and step k of the run is that of ghat_k: the log is that of any run, and
    replay, checkpoints and archives are the same. Whoever missed rounds replays their coefficients. One client with
    K = 1 is MeZO, bit for bit. All clients have the same weight, whatever their rows.

    With `executor.workers` one more than `clients`, each has a process of its own, which reads its own rows alone where
    they are in `files`. With one they are simulated, in turn, with the same result. The first process evaluates a
    client that is lost or late, and leaves it out where rows are in `files`. Of these, `rows` has the fingerprints: a
    client with others is left out.

    Bytes: a client sends 4 per point and local step, and receives 8 per coefficient of every step of the run before
    its round. After the last one, processes receive the rest, and send the SHA-256 of their weights. Source: shared
    directions, Li et al., Achieving dimension-free communication in federated learning via zeroth-order optimization
    (DeComFL), 2024; own ones, with perturbation=seed_pool, Qin et al., Federated full-parameter tuning of
    billion-sized language models with communication cost under 18 kilobytes (FedKSeed), 2023, with uniform
    probabilities. Raises UserError for more clients present than there are, and for `files` in a folder.
    """

    runner: ClassVar[str] = "zo_sweeps.run.rounds:Rounds"
    of_clients: ClassVar[bool] = True

    clients: int = option(10, "clients among which the training rows are divided", least=1)
    present: int = option(2, "clients of a round, drawn anew for each", least=1)
    local_steps: int = option(1, "K, steps that a client takes in a round", least=1)
    alpha: float | None = option(
        None, "each label's rows are divided in shares from Dirichlet(alpha); null: at random, evenly", above=0
    )
    files: str = option(
        "", "how the names of files of a client's own rows begin, in the task's folder: client_ for client_0.jsonl, ..."
    )
    rows: tuple[str, ...] = option(
        (), "SHA-256 of each client's file, its first 32 hexadecimal digits; set by the planner", added=True
    )
    own_directions: bool = option(False, "a direction per client (FedKSeed); false: they share q directions (DeComFL)")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.present > self.clients:
            what = f"method.present={self.present} of method.clients={self.clients}"
            raise UserError(what, fix=f"set method.present={self.clients} or less")
        if {*"/\\"} & {*self.files}:
            what = f"method.files={self.files!r} is not the beginning of a file's name"
            raise UserError(what, fix="put the files into the task's folder, and leave its name out")

    @property
    def batches(self) -> int:
        return 1 if self.own_directions else self.present

    @property
    def copies(self) -> int:
        return int(self.local_steps > 1)  # of the round's theta

    def round_of(self, first: int, steps: int) -> range:
        """Return the steps of the round that begins with step `first`, of a run of so many: the last may be short."""
        return range(first, min(first + self.local_steps, steps + 1))

    def members(self, seed: int, first: int) -> tuple[int, ...]:
        """Return the clients of the round that begins with step `first`, counted from 0, in ascending order."""
        if self.present == self.clients:
            return tuple(range(self.clients))
        return tuple(sorted(random.Random(f"clients/{seed}/{first}").sample(range(self.clients), self.present)))

    def traffic(self, seed: int, steps: int, points: int, q: int) -> tuple[int, int]:
        """Return the bytes that all clients send and receive in the rounds of so many steps.

        Args:
            points: of a client per local step. q: coefficients per step of the run.
        """
        sent = received = 0
        known = [0] * self.clients  # steps of the run that a client has
        for first in range(1, steps + 1, self.local_steps):
            for client in self.members(seed, first):
                sent += LOSS_BYTES * points * len(self.round_of(first, steps))
                received += COEFFICIENT_BYTES * q * (first - 1 - known[client])
                known[client] = first - 1
        return sent, received
