"""Federated rounds: one client is MeZO, scalars alone give all of them the same weights, the bytes are as planned."""

from __future__ import annotations

import itertools
import math
import random
import struct
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

from tests.engine.conftest import make_examples, tiny_model
from zo_sweeps.core.errors import UserError
from zo_sweeps.engine import losses, noise
from zo_sweeps.engine.batch import collate, indices
from zo_sweeps.engine.estimators.rge import RGE
from zo_sweeps.engine.estimators.rge_one_sided import RGEOneSided
from zo_sweeps.engine.evaluate import Objective, evaluate
from zo_sweeps.engine.peers import PeerLostError
from zo_sweeps.engine.perturbations.gaussian import Gaussian
from zo_sweeps.engine.replay import digest, rebuild
from zo_sweeps.engine.step import Method, RunState
from zo_sweeps.engine.train import Scores, StepDone, of_batch, train
from zo_sweeps.engine.types import DivergedError
from zo_sweeps.engine.updates.sgd import SGD
from zo_sweeps.methods.estimator import Estimator
from zo_sweeps.methods.evaluation import Mode
from zo_sweeps.methods.perturbation import Perturbation
from zo_sweeps.methods.points import NoiseKey, Point
from zo_sweeps.methods.space import FullModel
from zo_sweeps_federated.clients import Client, ClientTeam, LocalSteps, declined, received, sent, train_in_rounds
from zo_sweeps_federated.federated import Federated
from zo_sweeps_federated.seed_pool import SeedPool
from zo_sweeps_federated.seed_pool_pro import SeedPoolPro
from zo_sweeps_league.perturbations.cone import Cone

pytestmark = pytest.mark.unit
STEPS, SEED, LR, EPS = 6, 5, 1e-3, 1e-3
EXAMPLES = make_examples(24)
DECOMFL = Federated(clients=4, present=2, local_steps=2)
FEDKSEED = Federated(clients=4, present=2, local_steps=4, own_directions=True)  # the last round is a half


def minibatch(protocol: Federated, client: int, step: int) -> Any:
    own = EXAMPLES[client :: protocol.clients]
    return collate([own[i] for i in indices(SEED, step, len(own), 3)], 0)


def made(
    protocol: Federated, estimator: Estimator, directions: Perturbation | None = None
) -> tuple[LocalSteps, Callable[[int, int], Objective]]:
    """A model of its own with what its client computes, and (client, step) -> f."""
    model = tiny_model()
    space = FullModel(model.module)
    method = Method(estimator, directions or Gaussian(), SGD()).bind(space.params)
    local = LocalSteps(protocol, method, model.module, space, lambda step: LR, SEED, STEPS)
    return local, lambda client, step: of_batch(model, minibatch(protocol, client, step), losses.candidates, space)


def run(
    local: LocalSteps, gather: Callable[[int, RunState], tuple[Sequence[Sequence[float]], int]], log: Any = ()
) -> tuple[list[tuple[float, ...]], list[float]]:
    """The log and the losses of the steps that are run."""
    nothing = lambda: Scores(0.0, 0.0, {})
    events = train_in_rounds(local, gather, nothing, eval_every=STEPS, log=log)
    steps = [event for event in events if isinstance(event, StepDone)]
    return [step.coefs for step in steps], [step.loss for step in steps]


def simulated(local: LocalSteps, objective: Any, log: Any = ()) -> tuple[list[tuple[float, ...]], list[float]]:
    def gather(first: int, state: RunState) -> tuple[list[list[float]], int]:
        members = enumerate(local.protocol.members(SEED, first))
        return [local.losses(lambda step, c=c: objective(c, step), first, place, state) for place, c in members], 0

    return run(local, gather, log)


@pytest.mark.parametrize(
    "estimator", [RGE(1, EPS), RGE(3, EPS, clip=2.0), RGEOneSided(2, EPS), RGEOneSided(2, EPS, clip=2.0)]
)
@pytest.mark.parametrize("local_steps", [1, 3])
def test_one_client_is_the_run_of_one_process_bit_for_bit(estimator: Estimator, local_steps: int) -> None:
    protocol = Federated(clients=1, present=1, local_steps=local_steps)
    local, objective = made(protocol, estimator)
    log, of_steps = simulated(local, objective)
    model = tiny_model()
    space = FullModel(model.module)
    batches = lambda step: minibatch(protocol, 0, step)
    events = train(
        Method(estimator, Gaussian(), SGD()), model, space, batches, losses.candidates, lambda step: LR,
        lambda: Scores(0.0, 0.0, {}), seed=SEED, steps=STEPS, eval_every=STEPS,
    )  # fmt: skip
    alone = [event for event in events if isinstance(event, StepDone)]
    assert [step.coefs for step in alone] == log
    assert [step.loss for step in alone] == of_steps
    assert digest(space.params) == digest(local.space.params)


@pytest.mark.parametrize("estimator", [RGE(2, EPS), RGEOneSided(2, EPS)], ids=["two-sided", "one-sided"])
@pytest.mark.parametrize("protocol", [DECOMFL, FEDKSEED], ids=["shared", "own"])
def test_clients_forward_as_often_as_planned(protocol: Federated, estimator: Estimator) -> None:
    local, _ = made(protocol, estimator)
    points = [local.points(1, place) for place in range(protocol.present)]
    assert protocol.forwards(estimator.evaluations(1), estimator) == sum(map(len, points))


@pytest.mark.parametrize("protocol", [DECOMFL, FEDKSEED], ids=["shared", "own"])
def test_a_round_is_what_its_definition_says(protocol: Federated) -> None:
    """Against plain tensors: theta is set to each point, and moved, by the definition, in each client's own copy."""
    q, eps = 2, 1e-2
    directions = SeedPool(seeds=8) if protocol.own_directions else Gaussian()
    local, objective = made(protocol, RGE(q, eps), directions)
    params = dict(local.space.params)
    start = {name: param.detach().clone() for name, param in params.items()}

    def z(step: int, query: int) -> dict[str, torch.Tensor]:
        key = NoiseKey(SEED, step, query)
        return {name: directions.sample(key, name, param.shape, "cpu") for name, param in params.items()}

    @torch.no_grad()
    def f(theta: dict[str, torch.Tensor], of: Objective) -> float:
        for name, param in params.items():
            param.copy_(theta[name])
        return float(of(1)[0])

    def plus(theta: dict[str, torch.Tensor], move: dict[str, torch.Tensor], scale: float) -> dict[str, torch.Tensor]:
        return {name: value + scale * move[name] for name, value in theta.items()}

    members = protocol.members(SEED, 1)
    assert len({*members}) == 2
    coefs = [[0.0] * q for _ in range(protocol.local_steps)]
    for place, client in enumerate(members):
        theta = start
        for k in range(protocol.local_steps):
            queries = [place] if protocol.own_directions else range(q)
            moved = theta
            for query in queries:
                of, own = objective(client, k + 1), z(k + 1, query)
                g = (f(plus(theta, own, eps), of) - f(plus(theta, own, -eps), of)) / (2 * eps)
                coefs[k][query] += g if protocol.own_directions else g / len(members)
                moved = plus(moved, own, -LR * g / len(queries))
            theta = moved
    f(start, objective(0, 1))
    log, _ = simulated(local, objective)
    rounding = 4 * torch.finfo(torch.float32).eps * 3 / eps  # of losses of about 3 over 2 eps
    for line, expected in zip(log, coefs, strict=False):
        assert line == pytest.approx(expected, abs=rounding)


@pytest.mark.parametrize(
    ("protocol", "estimator", "directions"),
    [
        (DECOMFL, RGE(2, EPS), Gaussian()),
        (DECOMFL, RGEOneSided(3, EPS), Gaussian()),
        (DECOMFL, RGE(2, EPS), SeedPoolPro(seeds=5, every=2)),
        (FEDKSEED, RGE(2, EPS), SeedPool(seeds=5)),
        (FEDKSEED, RGE(2, EPS), SeedPoolPro(seeds=5, every=4)),
        (Federated(clients=4, present=2), RGE(2, EPS), Cone()),
    ],
    ids=["shared", "shared, one-sided", "shared, by the log", "own", "own, by the log", "momentum"],
)
def test_clients_with_models_of_their_own_exchange_as_many_bytes_as_planned(
    protocol: Federated, estimator: Estimator, directions: Perturbation
) -> None:
    clients, server = [], made(protocol, estimator, directions)[0]
    for number in range(protocol.clients):
        local, objective = made(protocol, estimator, directions)
        clients.append(Client(local, number, lambda step, f=objective, c=number: f(c, step)))
    log: list[tuple[float, ...]] = []
    counted: list[int] = []

    def gather(first: int, state: RunState) -> tuple[list[list[float]], int]:
        answers = []
        for number in protocol.members(SEED, first):
            missed = log[clients[number].done : first - 1]
            question = b"".join(struct.pack(f"<{len(line)}d", *line) for line in missed)
            answers.append(clients[number].answer(question))
            counted.extend((len(question), len(answers[-1])))
        return [received(answer) for answer in answers], 0

    for event in train_in_rounds(server, gather, lambda: Scores(0.0, 0.0, {}), eval_every=STEPS):
        if isinstance(event, StepDone):
            log.append(event.coefs)
    assert log == simulated(*made(protocol, estimator, directions))[0]
    of_client = len(server.points(1, 0))
    assert sum(counted) == sum(protocol.traffic(SEED, STEPS, of_client, estimator.budget))
    up, down = protocol.traffic(SEED, STEPS, of_client, estimator.budget)
    assert up == protocol.present * 4 * of_client * STEPS
    assert up + down <= 16 * protocol.clients * estimator.budget * STEPS, "16 bytes per query and client, at most"

    # One was present in some rounds and missed others; one joins when the run is over; both have the server's weights.
    weights = digest(server.space.params)
    late = Client(made(protocol, estimator, directions)[0], 0, lambda step: pytest.fail("it evaluates nothing"))
    for client in (*clients, late):
        missed = log[client.done :]
        client.catch_up(b"".join(struct.pack(f"<{len(line)}d", *line) for line in missed))
        assert digest(client._local.space.params) == weights
        assert client.done == STEPS
    replayed, _ = made(protocol, estimator, directions)
    rebuild(replayed.method, replayed.space, log, replayed.rates, seed=SEED)
    assert digest(replayed.space.params) == weights


@pytest.mark.parametrize("protocol", [DECOMFL, FEDKSEED], ids=["shared", "own"])
def test_a_run_that_stopped_within_a_round_goes_on_with_the_same_bits(protocol: Federated) -> None:
    local, objective = made(protocol, RGE(2, EPS))
    log, _ = simulated(local, objective)
    for done in (1, protocol.local_steps, protocol.local_steps + 1, STEPS):
        again, of_client = made(protocol, RGE(2, EPS))
        whole = done if done == STEPS else done // protocol.local_steps * protocol.local_steps
        assert simulated(again, of_client, log[:done])[0] == log[whole:]
        assert digest(again.space.params) == digest(local.space.params)


def test_a_client_goes_back_to_the_rounds_weights_also_when_its_loss_fails() -> None:
    local, objective = made(DECOMFL, RGE(2, EPS))
    before = digest(local.space.params)
    start = local.method.init(local.space.params)
    assert len(local.losses(lambda step: objective(1, step), 1, 0, start)) == 2 * 4
    assert digest(local.space.params) == before

    def fails(step: int) -> Objective:
        if step == 2:
            raise RuntimeError("no memory")
        return objective(1, step)

    with pytest.raises(RuntimeError, match="no memory"):
        local.losses(fails, 1, 0, start)
    assert digest(local.space.params) == before


def test_the_sums_of_a_pools_coefficients_give_the_weights_of_the_steps() -> None:
    """theta_0 - lr sum_j a_j z_j, exactly, is off the steps' theta by their roundings: one of each addition."""
    seeds = 5
    pool = SeedPool(seeds=seeds)
    local, objective = made(FEDKSEED, RGE(2, EPS), pool)
    start = {name: param.detach().clone() for name, param in local.space.params.items()}
    log, _ = simulated(local, objective)
    sums = [Fraction(0)] * seeds
    for step, line in enumerate(log, start=1):
        for query, g in enumerate(line):
            sums[pool.drawn(NoiseKey(SEED, step, query)).query] += Fraction(g) / len(line)
    assert sum(map(bool, sums)) > 2
    for name, param in local.space.params.items():
        summed = start[name].double()
        for j, a in enumerate(sums):
            summed -= LR * float(a) * noise.gaussian(NoiseKey(SEED, 0, j), name, param.shape).double()
        moved = (param.detach().double() - start[name].double()).abs().max()
        bound = 2 * STEPS * torch.finfo(torch.float32).eps * (start[name].abs().max() + moved)
        assert (summed - param.detach().double()).abs().max() <= bound
        assert moved > 10 * bound


def test_members_are_drawn_anew_and_uniformly() -> None:
    protocol = Federated(clients=7, present=3)
    drawn = [protocol.members(1, first) for first in range(1, 2101)]
    assert all(len({*one}) == 3 and one == tuple(sorted(one)) for one in drawn)
    counts = [sum(client in one for one in drawn) for client in range(7)]
    assert all(abs(count - 900) < 5 * (2100 * 3 / 7 * 4 / 7) ** 0.5 for count in counts)
    assert [protocol.members(1, first) for first in range(1, 2101)] == drawn
    with pytest.raises(UserError, match=r"method\.present=8 of method\.clients=7"):
        Federated(clients=7, present=8)


def test_what_a_client_sends_is_checked() -> None:
    local, objective = made(DECOMFL, RGE(2, EPS))
    good = local.losses(lambda step: objective(1, step), 1, 0, RunState())
    assert received(sent(good)) == good, "fp32 holds a loss"
    first, second = DECOMFL.members(SEED, 1)
    with pytest.raises(ValueError, match="3 losses, not 4 for each of 2 local steps"):
        local.estimates(1, [good, good[:3]])
    with pytest.raises(DivergedError, match=f"step 2, seed 5, client {first}: nan"):
        local.estimates(1, [[*good[:7], float("nan")], good])
    with pytest.raises(DivergedError, match=f"step 1, seed 5, client {second}: inf"):
        local.estimates(1, [good, [*good[:3], float("inf"), *good[4:]]])
    with pytest.raises(DivergedError, match="no client of the round of step 1"):
        local.estimates(1, [None, None])
    with pytest.raises(ValueError, match="5 bytes are no losses"):
        received(b"12345")
    for length in range(1, 9):
        why = "no rows"[:length]
        assert len(declined(why)) % 4 == 1
        with pytest.raises(ValueError, match=f"it takes no part: {why.strip()}$"):
            received(declined(why))
    with pytest.raises(ValueError, match="13 bytes are no losses"):
        received(declined("a line\nmore"))
    client = Client(local, second, lambda step: objective(second, step))
    with pytest.raises(ValueError, match="no whole steps of 2 coefficients"):
        client.answer(struct.pack("<3d", 1, 2, 3))
    absent = next(number for number in range(4) if number not in DECOMFL.members(SEED, 1))
    with pytest.raises(ValueError, match=f"client {absent} has no part in the round of step 1"):
        Client(local, absent, lambda step: objective(absent, step)).answer(b"")


@pytest.mark.parametrize("protocol", [DECOMFL, FEDKSEED], ids=["shared", "own"])
def test_a_client_without_an_answer_is_in_no_mean_and_the_log_replays(protocol: Federated) -> None:
    local, objective = made(protocol, RGE(2, EPS))
    both: list[list[list[float]]] = []

    def gather(first: int, state: RunState) -> tuple[list[list[float] | None], int]:
        members = enumerate(protocol.members(SEED, first))
        both.append([local.losses(lambda step, c=c: objective(c, step), first, place, state) for place, c in members])
        return [None, both[-1][1]], 0

    log, _ = run(local, gather)
    (own,) = [made(protocol, RGE(2, EPS))[0].of_client(1, 1, both[0][1])[0].coefs]
    assert repr(log[0]) == repr(own), "NaN for the absent client's direction, or the other's alone"
    assert ("nan" in repr(log)) == protocol.own_directions
    replayed, _ = made(protocol, RGE(2, EPS))
    rebuild(replayed.method, replayed.space, log, replayed.rates, seed=SEED)
    assert digest(replayed.space.params) == digest(local.space.params)

    # Another attempt from the middle of a round, in which all are present, keeps the steps that are logged.
    again, of_all = made(protocol, RGE(2, EPS))
    later, _ = simulated(again, of_all, log[:1])
    assert repr(later[0]) == repr(log[0])
    assert repr(later[1]) != repr(log[1])
    replayed, _ = made(protocol, RGE(2, EPS))
    rebuild(replayed.method, replayed.space, later, replayed.rates, seed=SEED)
    assert digest(replayed.space.params) == digest(again.space.params)


@pytest.mark.parametrize("estimator", [RGE(2, EPS, clip=3.0), RGEOneSided(2, EPS, clip=3.0)])
def test_a_huge_loss_of_one_client_is_bounded_by_clip(estimator: Estimator) -> None:
    local, objective = made(DECOMFL, estimator)
    good = local.losses(lambda step: objective(1, step), 1, 0, RunState())
    width = len(good) // DECOMFL.local_steps
    forged = [1e30, -1e30, 1e30, -1e30] if width == 4 else [0.0, 1e30, 1e30]
    for one, honest in zip(local.estimates(1, [forged * 2, good]), local.estimates(1, [good, good]), strict=True):
        assert one.coefs == tuple((3.0 + g) / 2 for g in honest.coefs), "at most clip / M of the mean"


def test_a_pools_probabilities_are_those_of_the_paper_and_follow_from_the_log_alone() -> None:
    """Against the definition in plain numpy: of the log up to the last whole round."""
    pool, seeds, every, clip = SeedPoolPro(seeds=6, every=3, clip=2.0), 6, 3, 2.0
    log = [[0.5, -9.0], [1.5, math.nan], [-0.25, 3.0], [8.0, 0.125], [1.0, -1.0], [0.0, 2.5], [4.0, 4.0]]
    history: dict[int, list[float]] = {j: [0.0] for j in range(seeds)}
    state, estimator, expected = pool.init({}), RGE(2, EPS), None
    for step, line in enumerate(log, start=1):
        now = pool.at({}, state, step)
        for query in range(2):
            key = NoiseKey(SEED, step, query)
            if expected is None:
                assert now.drawn(key) == SeedPool(seeds=seeds).drawn(key), "uniform, as without probabilities"
            else:
                place = np.searchsorted(np.cumsum(expected), pool.word(key) / 2**32, side="right")
                assert now.drawn(key) == NoiseKey(SEED, 0, place)
            if not math.isnan(line[query]):
                history[now.drawn(key).query].append(line[query])
        before = repr(state)
        after = now.observe({}, estimator.from_log(SEED, step, line), state)
        assert repr(state) == before, "a client's local steps begin with it again"
        state = after
        if step % every == 0:
            means = np.array([np.abs(np.clip(own, -clip, clip)).mean() for own in history.values()])
            scaled = np.exp((means - means.min()) / (means.max() - means.min() + 1e-10))
            expected = scaled / scaled.sum()
            weights = np.diff([0, *state["ends"]])
            assert weights / weights.sum() == pytest.approx(expected, rel=1e-8)
            assert max(expected) > 2 * min(expected), "they differ"
    now = pool.at({}, state, 8)
    counts = Counter(now.drawn(NoiseKey(SEED, 8, query)).query for query in range(6000))
    assert expected is not None
    assert all(abs(counts[j] - 6000 * p) < 5 * (6000 * p * (1 - p)) ** 0.5 for j, p in enumerate(expected))


class OneDeviation(random.Random):
    """Noise of one standard deviation, always."""

    def gauss(self, mu: float = 0.0, sigma: float = 1.0) -> float:
        return mu + sigma


def rows_of(protocol: Federated, wrong: float | None = None) -> tuple[LocalSteps, Callable[[int, int], Any]]:
    """A model with what its client computes, and (client, step) -> f of each row; `wrong`: the first row's loss."""
    model = tiny_model()
    space = FullModel(model.module)
    method = Method(RGE(2, EPS, clip=0.5), Gaussian(), SGD()).bind(space.params)
    local = LocalSteps(protocol, method, model.module, space, lambda step: LR, SEED, STEPS)

    def each(client: int, step: int) -> list[Objective]:
        own = EXAMPLES[client :: protocol.clients]
        rows = [own[i] for i in indices(SEED, step, len(own), 3)]
        of = [of_batch(model, collate([row], 0), losses.candidates, space) for row in rows]
        if wrong is not None:
            signs = itertools.cycle([1, -1])
            of[0] = lambda points: torch.tensor([next(signs) * wrong] * points)
        return of

    return local, each


PRIVATE = [replace(DECOMFL, noise=4.0), replace(FEDKSEED, noise=4.0)]


@pytest.mark.parametrize("protocol", PRIVATE, ids=["shared", "own"])
def test_a_private_client_sends_the_noised_mean_of_its_rows_bounded_coefficients(protocol: Federated) -> None:
    """Against plain sums of losses at the two points of each query, at the round's first step."""
    local, each = rows_of(protocol)
    place, client = 1, protocol.members(SEED, 1)[1]
    method, params, module = local.method, local.space.params, local.module
    expected = []
    for query in [place] if protocol.own_directions else range(2):
        total, bounded = 0.0, 0
        for f in each(client, 1):
            points = [Point(NoiseKey(SEED, 1, query), sign * EPS) for sign in (1, -1)]
            plus, minus = evaluate(f, module, local.space, method.perturbation, points, Mode.SEQUENTIAL)
            g = (plus - minus) / (2 * EPS)
            total += max(-0.5, min(0.5, g))
            bounded += abs(g) > 0.5
        expected.append(total / 3 + 4.0 * 2 * 0.5 / 3)
        assert 0 < bounded < 3 or query, "some are bounded"
    before = digest(params)
    own = local.losses(lambda step: each(client, step), 1, place, RunState(), OneDeviation())
    assert len(own) == local.width * protocol.local_steps
    assert own[: local.width] == pytest.approx(expected, rel=1e-6)
    assert digest(params) == before

    # Whatever else one row is, what is sent before noise moves by 2 C / B at most, and stays a number.
    for wrong in (math.nan, math.inf, 1e30, -1e30):
        other_local, other = rows_of(protocol, wrong)
        moved = other_local.losses(lambda step, of=other: of(client, step), 1, place, RunState(), OneDeviation())
        apart = [abs(one - two) for one, two in zip(own[: local.width], moved[: local.width], strict=True)]
        assert max(apart) <= 2 * 0.5 / 3 * (1 + 1e-6)
        assert all(map(math.isfinite, moved))


@pytest.mark.parametrize("protocol", PRIVATE, ids=["shared", "own"])
def test_private_clients_draw_noise_that_no_seed_tells_and_their_log_replays(protocol: Federated) -> None:
    def trained() -> tuple[list[tuple[float, ...]], str, list[Client], list[int]]:
        clients, server, log, counted = [], rows_of(protocol)[0], list[tuple[float, ...]](), list[int]()
        for number in range(protocol.clients):
            local, each = rows_of(protocol)
            given: dict[int, bytes] = {}
            once = lambda first, answer, given=given: given.get(first) or given.setdefault(first, answer())
            clients.append(Client(local, number, lambda step, f=each, c=number: f(c, step), once))

        def gather(first: int, state: RunState) -> tuple[list[list[float]], int]:
            answers = []
            for number in protocol.members(SEED, first):
                question = b"".join(struct.pack("<2d", *line) for line in log[clients[number].done : first - 1])
                answers.append(clients[number].answer(question))
                counted.append(len(question) + len(answers[-1]))
                assert clients[number].answer(b"") == answers[-1], "asked again, it draws no other noise"
            return [received(answer) for answer in answers], 0

        for event in train_in_rounds(server, gather, lambda: Scores(0.0, 0.0, {}), eval_every=STEPS):
            if isinstance(event, StepDone):
                log.append(event.coefs)
                assert math.isnan(event.loss), "nobody sends a loss"
        return log, digest(server.space.params), clients, counted

    log, weights, clients, counted = trained()
    assert sum(counted) == sum(protocol.traffic(SEED, STEPS, clients[0]._local.width, 2))
    other, others_weights, *_ = trained()
    assert log[0] != other[0]
    assert weights != others_weights
    for client in (*clients, Client(rows_of(protocol)[0], 0, lambda step: pytest.fail("it evaluates nothing"))):
        client.catch_up(b"".join(struct.pack("<2d", *line) for line in log[client.done :]))
        assert digest(client._local.space.params) == weights
    # What a client may have sent is bounded, whoever it is.
    local, _ = rows_of(protocol)
    (huge, *_) = local.of_client(1, 0, [1e30] * local.width * protocol.local_steps)
    assert {g for g in huge.coefs if not math.isnan(g)} == {0.5 * (1 + 16 * 4.0)}


def test_a_client_answers_at_the_beginning_of_rounds_only() -> None:
    protocol = replace(DECOMFL, present=4, noise=4.0)
    local, each = rows_of(protocol)
    client = Client(local, 0, lambda step: each(0, step))
    with pytest.raises(ValueError, match="no part in the round of step 2"):
        client.answer(struct.pack("<2d", 0.0, 0.0))


class Scripted:
    """A peer that says these things in turn; an error: that it is lost."""

    def __init__(self, *script: bytes | str | None) -> None:
        self._script = list(script)

    def ask(self, message: bytes) -> None: ...

    def answer(self, timeout: float) -> bytes | None:
        said = self._script.pop(0)
        if isinstance(said, str):
            raise PeerLostError(said)
        return said


def test_the_first_round_waits_for_clients_that_are_slow_and_for_none_that_is_lost() -> None:
    lost: list[str] = []
    script = [(b"x",), (None, None, b"x"), (None, "gone"), (b"y",)]
    team = ClientTeam([Scripted(*one) for one in script], agreed=b"x", patience=0.0, on_loss=lost.append)
    assert team.begin(lambda: False) == 2
    assert sorted(lost) == ["gone", "its fingerprint is b'y', the leader's is b'x'"]
    asked = iter([False, True])
    team = ClientTeam([Scripted(None), Scripted(None), Scripted(b"x")], agreed=b"x")
    assert team.begin(lambda: next(asked)) == 1, "also behind those that are not"


def test_a_client_that_declines_late_or_when_all_is_done_is_named_with_its_reason() -> None:
    lost: list[str] = []
    no, weights = declined("its rows are gone"), bytes(range(32))
    script = [(b"x", no), (b"x", None, no), (b"x", weights)]
    team = ClientTeam([Scripted(*one) for one in script], agreed=b"x", patience=0.0, on_loss=lost.append)
    assert team.begin(lambda: False) == 3
    assert [team.answers([1], [])[0], team.answers([1], [])[0]] == [None, None]
    assert team.weights([]) == {2: weights.hex()}
    assert lost == [f"client {number}: it takes no part: its rows are gone" for number in (1, 0)]
