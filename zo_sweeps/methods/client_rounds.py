"""What the kinds have in common whose training rows are divided among clients."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import ClassVar

from zo_sweeps.core.errors import UserError
from zo_sweeps.methods.definition import option
from zo_sweeps.methods.kind import Kind


@dataclass(frozen=True)
class OfClients(Kind):
    """Rounds of K local steps of the clients that are present, each on minibatches of its own rows.

    Raises UserError for more clients present than there are, and for `files` in a folder.
    """

    of_clients: ClassVar[bool] = True

    clients: int = option(10, "clients among which the training rows are divided", least=1)
    present: int = option(2, "clients of a round, drawn anew for each", least=1)
    local_steps: int = option(1, "K, steps that a client takes in a round", least=1)
    alpha: float | None = option(
        None, "each label's rows are divided in shares from Dirichlet(alpha); null: at random, evenly", above=0
    )
    by: str = option(
        "",
        "column of the rows: a client has all rows of its values, or, with alpha, shares of each value's",
        added=True,
    )
    files: str = option(
        "", "how the names of files of a client's own rows begin, in the task's folder: client_ for client_0.jsonl, ..."
    )
    rows: tuple[str, ...] = option(
        (), "SHA-256 of each client's file, its first 32 hexadecimal digits; set by the planner", added=True
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.present > self.clients:
            what = f"method.present={self.present} of method.clients={self.clients}"
            raise UserError(what, fix=f"set method.present={self.clients} or less")
        if {*"/\\"} & {*self.files}:
            what = f"method.files={self.files!r} is not the beginning of a file's name"
            raise UserError(what, fix="put the files into the task's folder, and leave its name out")

    def rounds(self, steps: int) -> int:
        """Return the rounds of a run of so many steps."""
        return -(-steps // self.local_steps)

    def round_of(self, first: int, steps: int) -> range:
        """Return the steps of the round that begins with step `first`, of a run of so many: the last may be short."""
        return range(first, min(first + self.local_steps, steps + 1))

    def members(self, seed: int, first: int) -> tuple[int, ...]:
        """Return the clients of the round that begins with step `first`, counted from 0, in ascending order."""
        if self.present == self.clients:
            return tuple(range(self.clients))
        return tuple(sorted(random.Random(f"clients/{seed}/{first}").sample(range(self.clients), self.present)))
