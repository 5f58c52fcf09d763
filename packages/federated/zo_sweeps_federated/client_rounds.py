"""The base of the kinds whose training rows are divided among clients."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from zo_sweeps.core.errors import UserError
from zo_sweeps.methods.definition import option
from zo_sweeps.methods.kind import Kind
from zo_sweeps.methods.metric import Of
from zo_sweeps.methods.trial_config import TrialConfig
from zo_sweeps.tasks.spec import TaskSpec
from zo_sweeps_federated.client_files import paths_of_clients, rows_of_clients


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

    def problems(self, config: TrialConfig) -> Iterator[str]:
        """Yield the problems of rows that are divided among clients."""
        if config.objective.generates:
            objective = config.train.objective
            yield f"train.objective={objective} generates, and clients compute losses of given answers: leave it out"
        if self.files and config.space.needs_gradients and not config.space.of_text:
            mask = f"space {config.space.name!r} takes its mask from training rows"
            yield f"{mask}, which the clients keep: use source=text"
        if self.files and (self.by or self.alpha is not None):
            name = "by" if self.by else "alpha"
            yield f"method.{name} divides rows that method.files has divided: leave one of them out"
        unlabelled = config.task.kind.predicts is not Of.LABELS or config.task.kind.own_options
        if self.alpha is not None and not self.by and unlabelled:
            yield f"method.alpha divides rows by label, and task {config.task.name} has no labels: leave it out"

    def with_files(self, config: TrialConfig, look: bool) -> tuple[Kind, str]:
        rows, why = tuple[str, ...](), ""
        if self.files and look:
            spec = TaskSpec.of(config.task, config.prompt.name, config.prompt.system)
            rows, why = rows_of_clients(paths_of_clients(config.task, config.data.dir, self.files, self.clients), spec)
        return replace(self, rows=rows), why

    def files_read(self, config: TrialConfig) -> Mapping[str, str]:
        if not self.rows:
            return {}
        paths = paths_of_clients(config.task, config.data.dir, self.files, self.clients)
        return dict(zip(map(str, paths), self.rows, strict=True))

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
