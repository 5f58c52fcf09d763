"""Rows divided among clients: each belongs to one, and shares by label are Dirichlet's."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from zo_sweeps.core.errors import UserError
from zo_sweeps_federated.shards import by_source, shards

pytestmark = pytest.mark.unit
LABELS = [row % 3 for row in range(300)]


@pytest.mark.parametrize("alpha", [None, 0.5, 100.0])
@pytest.mark.parametrize("clients", [1, 7])
def test_every_row_belongs_to_one_client_and_every_client_has_one(clients: int, alpha: float | None) -> None:
    of_client = shards(LABELS, clients, alpha, 4)
    assert len(of_client) == clients
    assert sorted(row for own in of_client for row in own) == list(range(300))
    assert all(own and own == sorted(own) for own in of_client)
    assert shards(LABELS, clients, alpha, 4) == of_client
    if clients > 1:
        assert shards(LABELS, clients, alpha, 5) != of_client


def test_without_alpha_clients_have_equally_many_rows_of_any_label() -> None:
    of_client = shards(LABELS, 7, None, 4)
    assert {len(own) for own in of_client} == {42, 43}
    assert all(min(Counter(LABELS[row] for row in own).values()) > 4 for own in of_client)


@pytest.mark.parametrize("alpha", [0.5, 5.0])
def test_shares_of_a_label_are_distributed_as_numpys_dirichlet(alpha: float) -> None:
    clients, labels = 4, [row % 2 for row in range(4000)]
    ours = []
    for seed in range(150):
        for own in shards(labels, clients, alpha, seed):
            counts = Counter(labels[row] for row in own)
            ours += [counts[label] / 2000 for label in (0, 1)]
    theirs = np.random.default_rng(3).dirichlet([alpha] * clients, 6000).flatten()
    found, expected = np.sort(ours), np.sort(theirs)
    apart = np.abs(
        np.searchsorted(found, expected, "right") / len(found) - np.arange(1, len(expected) + 1) / len(expected)
    ).max()
    assert apart < 2.0 * (1 / len(found) + 1 / len(expected)) ** 0.5, "Kolmogorov and Smirnov, at 0.0007"
    assert np.var(ours) == pytest.approx((clients - 1) / (clients**2 * (clients * alpha + 1)), rel=0.15)


def test_too_many_clients_are_refused() -> None:
    with pytest.raises(UserError, match="4 clients cannot share 3 training rows"):
        shards([0, 1, 0], 4, None, 0)
    with pytest.raises(UserError, match=r"no draw of Dirichlet\(1e-05\) shares gives each of 3 clients a row"):
        shards([0, 0, 0], 3, 1e-5, 0)


def test_a_source_belongs_to_one_client_and_clients_have_about_equally_many_rows() -> None:
    sources = [*"aaaaabbbccd"]
    assert by_source(sources, 4) == [[0, 1, 2, 3, 4], [5, 6, 7], [8, 9], [10]]
    assert by_source(sources, 2) == [[0, 1, 2, 3, 4, 10], [5, 6, 7, 8, 9]]
    with pytest.raises(UserError, match=r"5 clients cannot share 4 sources of rows.*set method\.clients=4 or less"):
        by_source(sources, 5)
