"""The privacy of clients' rows under Gaussian noise: how often a row is used, epsilon, and one answer per round."""

from __future__ import annotations

import math
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path

from zo_sweeps.core.errors import UserError
from zo_sweeps.engine.batch import indices
from zo_sweeps_federated.federated import Federated


def uses(
    kind: Federated, seed: int, steps: int, batch: int, rows: Callable[[int], int | None], again: Iterable[int] = ()
) -> int:
    """Return in how many minibatches of a run a client's row is, at most: minibatches are public, as the seed is.

    Args:
        rows: client -> the number of its rows; None: unknown, and its minibatches may be of the same rows.
        again: first steps of rounds that an earlier attempt may have asked for too.

    Cost: one pass over all minibatches.
    """
    rounds = [(first, kind.members(seed, first)) for first in (*range(1, steps + 1, kind.local_steps), *again)]
    most = 0
    for client in range(kind.clients):
        size, used = rows(client), Counter[int]()
        for first, members in rounds:
            for step in kind.round_of(first, steps) if client in members else ():
                used.update((0,) if size is None else indices(seed, step, size, batch))
        most = max(most, *used.values(), 0)
    return most


def epsilon(mu: float, delta: float) -> float:
    """Return the least epsilon of (epsilon, delta)-privacy that Gaussian mechanisms have together.

        delta(epsilon) = Phi(mu/2 - epsilon/mu) - exp(epsilon) Phi(-mu/2 - epsilon/mu)

    Exact, also if each is chosen by the outputs of earlier ones. Args: mu: the root of the sum of their squared
    (sensitivity / standard deviation). Source: Balle and Wang, Improving the Gaussian mechanism for differential
    privacy, 2018, Theorem 8; their composition: Dong et al., Gaussian differential privacy, 2019, Corollary 3.3.
    """
    from scipy.optimize import brentq
    from scipy.special import log_ndtr

    def excess(candidate: float) -> float:
        one, other = log_ndtr(mu / 2 - candidate / mu), candidate + log_ndtr(-mu / 2 - candidate / mu)
        return float(math.exp(one) - math.exp(other)) - delta

    if not mu or excess(0.0) <= 0:
        return 0.0
    bound = mu**2 / 2 + mu * math.sqrt(2 * math.log(1 / delta))  # of Renyi divergences
    return float(brentq(excess, 0.0, bound, xtol=1e-12))


def once(path: Path, trial_id: str, first: int, answer: Callable[[], bytes]) -> bytes:
    """Return a client's answer to the round of step `first`: the one that it gave before, else `answer()`, now kept.

    A second answer would have other noise, and both together less. Its process may be asked again: it was killed after
    its answer had left, or the journal of its leader lost its end. The same bytes tell nothing new, also where other
    clients answered meanwhile, so that the round begins at other weights: its coefficients are those of the first ones.

    Args:
        path: an SQLite file. Of two processes of a client that answer at once, both send the answer of one.

    Raises UserError if the answer cannot be kept: it is on the disk before it leaves. Cost: some writes, flushed.
    """
    try:
        with closing(sqlite3.connect(path, isolation_level=None)) as kept:
            kept.execute("PRAGMA synchronous = EXTRA")  # also after a power cut
            columns = "trial TEXT, first INTEGER, answer BLOB, PRIMARY KEY (trial, first)"
            kept.execute(f"CREATE TABLE IF NOT EXISTS answers ({columns}) WITHOUT ROWID")
            query = "SELECT answer FROM answers WHERE trial = ? AND first = ?"
            if (row := kept.execute(query, (trial_id, first)).fetchone()) is None:
                kept.execute("INSERT OR IGNORE INTO answers VALUES (?, ?, ?)", (trial_id, first, answer()))
                row = kept.execute(query, (trial_id, first)).fetchone()
            return bytes(row[0])
    except sqlite3.Error as error:
        what = f"with method.noise a client keeps what it answers, and cannot ({error})"
        raise UserError(what, where=str(path), fix="it must be a file that you may write") from None
