"""Rows divided among clients, at random, by label or by source."""

from __future__ import annotations

import random
from collections.abc import Hashable, Sequence
from itertools import accumulate, pairwise

from zo_sweeps.core.errors import UserError

TRIES = 1000  # draws of Dirichlet shares, until every client has a row


def shards(labels: Sequence[Hashable], clients: int, alpha: float | None, seed: int) -> list[list[int]]:
    """Return the rows (by index) of each client, ascending; every row belongs to one, and every client has one.

    Without `alpha`, rows are shuffled and dealt in lengths that differ by 1 at most. With it, those of each label are
    cut in shares p ~ Dirichlet(alpha, ..., alpha) over the clients: E p = 1/N, Var p = (N - 1) / (N^2 (N alpha + 1)).
    Shares that leave a client without rows are drawn again, all of them.

    Raises UserError for fewer rows than clients, or if no draw gives every client a row. Source: Hsu et al., Measuring
    the effects of non-identical data distribution for federated visual classification, 2019.
    """
    if len(labels) < clients:
        what = f"{clients} clients cannot share {len(labels)} training rows"
        raise UserError(what, where="method.clients", fix="use fewer clients, or a larger split.train")
    if alpha is None:
        rows = list(range(len(labels)))
        random.Random(f"shards/{seed}").shuffle(rows)
        ends = [len(rows) * client // clients for client in range(clients + 1)]
        return [sorted(rows[start:stop]) for start, stop in pairwise(ends)]
    by_label: dict[Hashable, list[int]] = {}
    for row, label in enumerate(labels):
        by_label.setdefault(label, []).append(row)
    for attempt in range(TRIES):
        draw = random.Random(f"shards/{seed}/{attempt}")
        of_client: list[list[int]] = [[] for _ in range(clients)]
        for rows in by_label.values():
            rows = draw.sample(rows, len(rows))
            weights = [draw.gammavariate(alpha, 1) for _ in range(clients)]
            if not any(weights):  # all below the smallest float: then one share is 1
                weights[draw.randrange(clients)] = 1.0
            sums = list(accumulate(weights, initial=0.0))
            ends = [round(len(rows) * one / sums[-1]) for one in sums]
            for own, (start, stop) in zip(of_client, pairwise(ends), strict=True):
                own += rows[start:stop]
        if all(of_client):
            return [sorted(own) for own in of_client]
    what = f"no draw of Dirichlet({alpha:g}) shares gives each of {clients} clients a row"
    raise UserError(what, where="method.alpha", fix="use fewer clients, a larger alpha or a larger split.train")


def by_source(sources: Sequence[Hashable], clients: int) -> list[list[int]]:
    """Return the rows (by index) of each client, ascending; those of a source belong to one client.

    Sources in descending order of their rows, each to the client that has the fewest so far; ties go to the first. As
    many clients as sources have one each. Raises UserError for fewer sources than clients.
    """
    of_source: dict[Hashable, list[int]] = {}
    for row, source in enumerate(sources):
        of_source.setdefault(source, []).append(row)
    if len(of_source) < clients:
        what = f"{clients} clients cannot share {len(of_source)} sources of rows"
        raise UserError(what, where="method.by", fix=f"set method.clients={len(of_source)} or less, or method.alpha")
    of_client: list[list[int]] = [[] for _ in range(clients)]
    for rows in sorted(of_source.values(), key=len, reverse=True):
        min(of_client, key=len).extend(rows)
    return [sorted(own) for own in of_client]
