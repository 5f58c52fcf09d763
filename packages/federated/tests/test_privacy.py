"""Epsilon: against the definition, against Google's accountant, and against a plain count of a row's minibatches."""

from __future__ import annotations

import math
import os
from collections import Counter
from multiprocessing.pool import ThreadPool
from pathlib import Path
from threading import Barrier

import pytest
from scipy.integrate import quad
from scipy.stats import norm

from tests.run.common import make, run
from zo_sweeps.core.errors import UserError
from zo_sweeps.core.events import Warned, only
from zo_sweeps.core.trial import TrialState
from zo_sweeps.engine.batch import indices
from zo_sweeps.record.journal import scalars
from zo_sweeps_federated.federated import Federated
from zo_sweeps_federated.privacy import epsilon, once, uses

pytestmark = pytest.mark.usefixtures("one_thread")
PRIVATE = [
    "method=decomfl", "estimator=rge", "estimator.q=2", "estimator.clip=1", "method.clients=3", "method.noise=2",
    "update.lr=1e-3", "train.batch=3", "train.steps=4", "train.eval_every=2",
]  # fmt: skip


@pytest.mark.parametrize("mu", [0.1, 1.0, 3.0, 20.0])
@pytest.mark.parametrize("delta", [1e-3, 1e-6])
def test_epsilon_is_the_least_at_which_the_outputs_are_as_close_as_delta(mu: float, delta: float) -> None:
    """delta = the integral of max(0, p - exp(epsilon) q), p and q the outputs' densities for two neighbours."""
    least = epsilon(mu, delta)
    start = least / mu + mu / 2  # where p = exp(epsilon) q
    excess = lambda x: norm.pdf(x, mu) - math.exp(least + norm.logpdf(x))
    assert quad(excess, start, start + 12, epsabs=0, epsrel=1e-9)[0] == pytest.approx(delta, rel=1e-6)


@pytest.mark.parametrize(
    ("count", "multiplier", "theirs"),
    [
        (1, 1.0, 4.37717810002493),
        (160, 6.3, 10.04528517632319),
        (1000, 50.0, 2.594383385595595),
        (12, 2.0, 8.385418926834005),
    ],
)
def test_epsilon_is_that_of_googles_accountant(count: int, multiplier: float, theirs: float) -> None:
    """dp-accounting 0.6.0: PLDAccountant of so many GaussianDpEvents, at delta = 1e-5; its bounds are upper ones."""
    ours = epsilon(math.sqrt(count) / multiplier, 1e-5)
    assert ours <= theirs
    assert ours == pytest.approx(theirs, rel=1e-4)


def test_a_row_counts_in_every_minibatch_that_it_is_in() -> None:
    kind, sizes, seed, steps, batch = Federated(clients=5, present=2, local_steps=3), [7, 4, 20, 9, 2], 3, 20, 4

    def counted(again: list[int]) -> int:
        counts: Counter[tuple[int, int]] = Counter()
        for first in [*range(1, steps + 1, 3), *again]:
            for client in kind.members(seed, first):
                for step in range(first, min(first + 3, steps + 1)):
                    counts.update((client, row) for row in indices(seed, step, sizes[client], batch))
        return max(counts.values())

    assert uses(kind, seed, steps, batch, sizes.__getitem__) == counted([])
    assert uses(kind, seed, steps, batch, sizes.__getitem__, [4, 4, 19]) == counted([4, 4, 19]) > counted([])
    present = Counter(client for first in range(1, 21, 3) for client in kind.members(seed, first) for _ in range(3))
    assert max(present.values()) - 1 <= uses(kind, seed, steps, batch, lambda client: None) <= max(present.values())


def test_epsilon_is_recorded_and_reported_and_seeded_noise_said_to_be() -> None:
    trial = make(*PRIVATE)
    found, journal = run(trial)
    assert found.state is TrialState.SUCCEEDED, found.error
    kind = Federated(clients=3, present=2)
    used = uses(kind, 3, 4, 3, lambda client: 8)
    assert found.metrics["epsilon"] == epsilon(math.sqrt(2 * used) / 2, 1e-5)
    assert (found.metrics["delta"], found.metrics["noise_seeded"]) == (1e-5, 1)
    texts = [event.text for event in only(Warned, journal)]
    assert [text for text in texts if "epsilon = " in text and "is seeded, and hides nothing" in text]
    assert scalars(run(trial)[1])[0] == scalars(journal)[0], "for study: the same noise again"

    # A round that an interrupted attempt may have asked for counts twice, and its noise is not drawn again.
    asked = iter([False, False, True])
    stopped, before = run(trial, stop=lambda: next(asked))
    assert stopped.steps_done == 2
    again, both = run(trial, before, attempt=2)
    assert scalars(both)[0] == scalars(journal)[0]
    assert again.metrics["epsilon"] == epsilon(math.sqrt(2 * uses(kind, 3, 4, 3, lambda client: 8, [3])) / 2, 1e-5)


def test_noise_needs_a_bound_and_a_mask_that_is_of_no_rows() -> None:
    with pytest.raises(UserError, match=r"method\.noise hides what a row adds if that is bounded"):
        make(*PRIVATE, "estimator.clip=0")
    with pytest.raises(UserError, match="takes its mask from training rows"):
        make(*PRIVATE, "space=sensitive")
    ids = [make(*PRIVATE, f"method.noise={noise}").trial_id for noise in (0, 1, 2)]
    assert len({*ids}) == 3


@pytest.mark.parametrize("estimator", ["best_of", "es_one_sided", "kerzoo", "rloo"])
def test_noise_is_refused_in_one_line_where_the_estimator_has_no_clip(estimator: str) -> None:
    words = ["method=decomfl", f"estimator={estimator}", "estimator.q=2", "method.clients=3", "method.noise=2"]
    with pytest.raises(UserError) as raised:
        make(*words)
    (line,) = map(str, raised.value.errors)
    assert "what a row adds if that is bounded: set estimator=rge and estimator.clip" in line


def test_a_round_of_a_trial_has_one_answer_however_often_and_by_how_many_it_is_given(tmp_path: Path) -> None:
    file, answers = tmp_path / "client_0.jsonl.answers", iter([b"1", b"2", b"3"])
    ask = lambda trial, first: once(file, trial, first, lambda: next(answers))
    asked = [("a", 1), ("a", 1), ("a", 3), ("b", 1), ("a", 1), ("a", 3)]
    assert [ask(*one) for one in asked] == [b"1", b"1", b"2", b"3", b"1", b"2"]

    together = Barrier(4)  # all of them have computed an answer before one is kept

    def drawn() -> bytes:
        together.wait(30)
        return os.urandom(8)

    with ThreadPool(4) as pool:
        given = pool.map(lambda _: once(file, "c", 1, drawn), range(4))
    assert {once(file, "c", 1, lambda: pytest.fail("it has one"))} == {*given}

    with pytest.raises(UserError, match=r"method\.noise a client keeps what it answers, and cannot \(unable to open"):
        once(tmp_path / "none" / "client_0.jsonl.answers", "a", 1, lambda: pytest.fail("nothing would be kept"))
