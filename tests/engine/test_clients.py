"""Federated rounds: one client is MeZO, scalars alone give all of them the same weights, the bytes are as planned."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import pytest
import torch

from tests.engine.conftest import make_examples, tiny_model
from zo_sweeps.core.errors import UserError
from zo_sweeps.engine import losses, noise
from zo_sweeps.engine.batch import collate, indices
from zo_sweeps.engine.clients import Client, ClientTeam, LocalSteps, declined, received, sent, train_in_rounds
from zo_sweeps.engine.estimators.rge import RGE
from zo_sweeps.engine.estimators.rge_one_sided import RGEOneSided
from zo_sweeps.engine.evaluate import Objective
from zo_sweeps.engine.peers import PeerLostError
from zo_sweeps.engine.perturbations.gaussian import Gaussian
from zo_sweeps.engine.perturbations.seed_pool import SeedPool
from zo_sweeps.engine.replay import digest, rebuild
from zo_sweeps.engine.step import Method
from zo_sweeps.engine.train import Scores, StepDone, of_batch, train
from zo_sweeps.engine.types import DivergedError
from zo_sweeps.engine.updates.sgd import SGD
from zo_sweeps.methods.estimator import Estimator
from zo_sweeps.methods.kinds.federated import Federated
from zo_sweeps.methods.perturbation import Perturbation
from zo_sweeps.methods.points import NoiseKey
from zo_sweeps.methods.space import FullModel

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
    local: LocalSteps, gather: Callable[[int], tuple[Sequence[Sequence[float]], int]], log: Any = ()
) -> tuple[list[tuple[float, ...]], list[float]]:
    """The log and the losses of the steps that are run."""
    nothing = lambda: Scores(0.0, 0.0, {})
    events = train_in_rounds(local, gather, nothing, eval_every=STEPS, log=log)
    steps = [event for event in events if isinstance(event, StepDone)]
    return [step.coefs for step in steps], [step.loss for step in steps]


def simulated(local: LocalSteps, objective: Any, log: Any = ()) -> tuple[list[tuple[float, ...]], list[float]]:
    def gather(first: int) -> tuple[list[list[float]], int]:
        members = enumerate(local.protocol.members(SEED, first))
        return [local.losses(lambda step, c=c: objective(c, step), first, place) for place, c in members], 0

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
    ("protocol", "estimator"),
    [(DECOMFL, RGE(2, EPS)), (DECOMFL, RGEOneSided(3, EPS)), (FEDKSEED, RGE(2, EPS))],
    ids=["shared", "shared, one-sided", "own"],
)
def test_clients_with_models_of_their_own_exchange_as_many_bytes_as_planned(
    protocol: Federated, estimator: Estimator
) -> None:
    clients, server = [], made(protocol, estimator)[0]
    for number in range(protocol.clients):
        local, objective = made(protocol, estimator)
        clients.append(Client(local, number, lambda step, f=objective, c=number: f(c, step)))
    log: list[tuple[float, ...]] = []
    counted: list[int] = []

    def gather(first: int) -> tuple[list[list[float]], int]:
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
    assert log == simulated(*made(protocol, estimator))[0]
    of_client = len(server.points(1, 0))
    assert sum(counted) == sum(protocol.traffic(SEED, STEPS, of_client, estimator.budget))
    up, down = protocol.traffic(SEED, STEPS, of_client, estimator.budget)
    assert up == protocol.present * 4 * of_client * STEPS
    assert up + down <= 16 * protocol.clients * estimator.budget * STEPS, "16 bytes per query and client, at most"

    # One was present in some rounds and missed others; one joins when the run is over; both have the server's weights.
    weights = digest(server.space.params)
    for client in (*clients, Client(made(protocol, estimator)[0], 0, lambda step: pytest.fail("it evaluates nothing"))):
        missed = log[client.done :]
        client.catch_up(b"".join(struct.pack(f"<{len(line)}d", *line) for line in missed))
        assert digest(client._local.space.params) == weights
        assert client.done == STEPS
    replayed, _ = made(protocol, estimator)
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
    assert len(local.losses(lambda step: objective(1, step), 1, 0)) == 2 * 4
    assert digest(local.space.params) == before

    def fails(step: int) -> Objective:
        if step == 2:
            raise RuntimeError("no memory")
        return objective(1, step)

    with pytest.raises(RuntimeError, match="no memory"):
        local.losses(fails, 1, 0)
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
    good = local.losses(lambda step: objective(1, step), 1, 0)
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

    def gather(first: int) -> tuple[list[list[float] | None], int]:
        members = enumerate(protocol.members(SEED, first))
        both.append([local.losses(lambda step, c=c: objective(c, step), first, place) for place, c in members])
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
    good = local.losses(lambda step: objective(1, step), 1, 0)
    width = len(good) // DECOMFL.local_steps
    forged = [1e30, -1e30, 1e30, -1e30] if width == 4 else [0.0, 1e30, 1e30]
    for one, honest in zip(local.estimates(1, [forged * 2, good]), local.estimates(1, [good, good]), strict=True):
        assert one.coefs == tuple((3.0 + g) / 2 for g in honest.coefs), "at most clip / M of the mean"


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
    assert lost == ["gone", "its fingerprint is b'y', the leader's is b'x'"]
    asked = iter([False, True])
    assert ClientTeam([Scripted(None), Scripted()], agreed=b"x").begin(lambda: next(asked)) == 0
