"""Steps shared among peers give the bits of one process; lost, slow and dropped peers; what goes over the wire."""

from __future__ import annotations

import math
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from tests.engine.conftest import make_examples, targets, tiny_model
from zo_sweeps.engine import losses
from zo_sweeps.engine.batch import Batch, BatchParts, collate, divided
from zo_sweeps.engine.estimators.mezo_compat import MezoCompat
from zo_sweeps.engine.estimators.rge import RGE
from zo_sweeps.engine.estimators.rge_one_sided import RGEOneSided
from zo_sweeps.engine.evaluate import InPlace, RowParts
from zo_sweeps.engine.peers import HEAD, Follower, PeerLostError, Team, pack, pack_losses, shares, unpack
from zo_sweeps.engine.perturbations.gaussian import Gaussian
from zo_sweeps.engine.perturbations.pezo_pool import PeZOPool
from zo_sweeps.engine.replay import rebuild
from zo_sweeps.engine.schedules.linear import Linear
from zo_sweeps.engine.spaces.lora_fa import LoRAFA
from zo_sweeps.engine.spaces.random_subset import RandomSubset
from zo_sweeps.engine.step import Method, losses_at
from zo_sweeps.engine.train import Scores, StepDone, of_batch, train
from zo_sweeps.engine.types import DivergedError
from zo_sweeps.engine.updates.adam import Adam
from zo_sweeps.engine.updates.sgd import SGD
from zo_sweeps.methods.estimator import Estimator
from zo_sweeps.methods.evaluation import Mode
from zo_sweeps.methods.perturbation import Perturbation
from zo_sweeps.methods.points import NoiseKey
from zo_sweeps.methods.space import FullModel
from zo_sweeps.methods.update import Update
from zo_sweeps_league.perturbations.agzo import AGZO
from zo_sweeps_league.updates.conservative import Conservative

pytestmark = pytest.mark.unit
STEPS, SEED = 6, 5
EXAMPLES = make_examples(12)
SCHEDULE = Linear().over(0.05, STEPS)


def batches(step: int) -> Batch:
    return collate(EXAMPLES[step % 5 : step % 5 + 3], 0)


def installed(space: str) -> tuple[Any, Any]:
    """A model of its own, as a process of its own has, and the space in it."""
    model = tiny_model()
    if space == "full":
        return model, FullModel(model.module)
    if space == "random_subset":  # its mask is drawn again in the middle of the run
        return model, RandomSubset(density=0.2, refresh=3).install(model.module, targets(model), SEED)
    return model, LoRAFA(rank=4, alpha=4).install(model.module, targets(model), SEED)


class Thread:
    """A follower in a thread, with a model of its own. `dies` and `slow`: at which of its answers."""

    def __init__(
        self, method: Method, space: str, *, dies: int = 0, slow: int = 0, rows: Callable[[int], Any] = batches
    ) -> None:
        self.asked: queue.Queue[bytes] = queue.Queue()
        self.said: queue.Queue[bytes | None] = queue.Queue()
        self.go_on = threading.Event()
        self.answers = 0
        self.lent: list[int] = []
        model, self.space = installed(space)  # not in the thread: torch's generator is seeded for it
        objective = lambda step: of_batch(model, rows(step), losses.candidates, self.space)
        follower = Follower(method, model, self.space, objective, SCHEDULE, seed=SEED)
        threading.Thread(target=self._serve, args=(follower, dies, slow), daemon=True).start()

    def _serve(self, follower: Follower, dies: int, slow: int) -> None:
        self.said.put(b"ready")
        while True:
            question = self.asked.get()
            self.answers += 1
            if self.answers == dies:
                self.said.put(None)
                return
            if self.answers == slow:
                self.go_on.wait(30)
            self.said.put(follower.answer(question))

    def ask(self, message: bytes) -> None:
        self.lent.append(len(unpack(message)[2]))
        self.asked.put(message)

    def answer(self, timeout: float) -> bytes | None:
        try:
            said = self.said.get(timeout=timeout) if timeout else self.said.get_nowait()
        except queue.Empty:
            return None
        if said is None:
            raise PeerLostError("it died")
        return said


def make(
    estimator: Estimator,
    mode: Mode = Mode.SEQUENTIAL,
    update: Update | None = None,
    noise: Perturbation | None = None,
) -> Method:
    return Method(estimator, noise or Gaussian(), update or SGD(), mode)


def run(
    method: Method,
    space: str,
    team: Team | None = None,
    log: Sequence[Sequence[float]] = (),
    at: Callable = lambda n: 0,
    rows: Callable[[int], Any] = batches,
) -> tuple[list[list[float]], dict[str, torch.Tensor]]:
    """The log and the last weights. `at(step)` is called after each step."""
    model, its_space = installed(space)
    coefs = [list(line) for line in log]
    events = train(
        method,
        model,
        its_space,
        rows,
        losses.candidates,
        SCHEDULE,
        lambda: Scores(0.0, 0.0, {}),
        seed=SEED,
        steps=STEPS,
        eval_every=STEPS,
        log=log,
        peers=team,
    )
    for event in events:
        if isinstance(event, StepDone):
            coefs.append(list(event.coefs))
            at(event.step)
    return coefs, {name: param.detach().clone() for name, param in its_space.params.items()}


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def team_of(peers: Sequence[Thread], mode: Mode = Mode.SEQUENTIAL, **options: Any) -> Team:
    team = Team(peers, mode, agreed=b"ready", **({"patience": 30.0} | options))
    assert team.ready() == len(peers)
    return team


KINDS: dict[str, tuple[Method, str, int]] = {
    "full, q=3": (make(RGE(3)), "full", 3),
    "full, q=5": (make(RGE(5)), "full", 3),
    "full, one-sided, q=4": (make(RGEOneSided(4)), "full", 3),
    "full, of the data": (make(RGEOneSided(4), noise=AGZO()), "full", 3),
    "full, MeZO's rounding": (make(MezoCompat(3)), "full", 3),
    "full, conservative": (make(RGE(3), update=Conservative()), "full", 3),
    "lora_fa, adam": (make(RGE(4), update=Adam()), "lora_fa", 3),
    "lora_fa, inner": (make(RGE(4), Mode.INNER), "lora_fa", 3),
    "lora_fa, outer": (make(RGE(4), Mode.OUTER), "lora_fa", 2),
    "lora_fa, one-sided, inner": (make(RGEOneSided(3), Mode.INNER), "lora_fa", 3),
    "lora_fa, a pool": (make(RGE(4), noise=PeZOPool(k=6)), "lora_fa", 3),
    "a mask that changes on the way": (make(RGE(3), update=Adam()), "random_subset", 3),
}


ALIKE = ("full, q=3", "full, one-sided, q=4", "lora_fa, adam")  # q = 5, of the data and the mask have what they have


@pytest.mark.parametrize("kind", [pytest.param(one, marks=pytest.mark.long) if one in ALIKE else one for one in KINDS])
def test_any_number_of_peers_gives_the_bits_of_one_process(kind: str) -> None:
    method, space, most = KINDS[kind]
    log, weights = run(method, space)
    for n in range(2, most + 1):
        peers = [Thread(method, space) for _ in range(n - 1)]
        team = team_of(peers, method.mode)
        shared_log, shared_weights = run(method, space, team)
        assert shared_log == log
        assert same(shared_weights, weights)
        assert all(peer.answers == STEPS for peer in peers), "each had a share of every step"
        assert (team.lost, team.redone, team.dropped) == (0, 0, 0)


def in_parts(count: int) -> Callable[[int], BatchParts]:
    """The minibatches of `batches` with their rows divided."""

    def rows(step: int) -> BatchParts:
        parts = [collate(part, 0) for part in divided(EXAMPLES[step % 5 : step % 5 + 3], count)]
        return BatchParts(parts, [part.examples for part in parts])

    return rows


DIVIDED = {
    "full, q=1, a row each": (make(RGE(1)), "full", 3),
    "full, conservative": (make(RGE(2), update=Conservative()), "full", 2),
    "full, one-sided, q=2": (make(RGEOneSided(2)), "full", 2),
    "lora_fa, both, adam": (make(RGE(2), Mode.BOTH, update=Adam()), "lora_fa", 3),
}


@pytest.mark.parametrize("kind", DIVIDED)
def test_rows_divided_among_any_number_of_peers_give_the_bits_of_one_process(kind: str) -> None:
    method, space, parts = DIVIDED[kind]
    rows = in_parts(parts)
    log, weights = run(method, space, rows=rows)
    for n in range(2, parts + 1):
        peers = [Thread(method, space, rows=rows) for _ in range(n - 1)]
        team = team_of(peers, method.mode)
        shared_log, shared_weights = run(method, space, team, rows=rows)
        assert shared_log == log
        assert same(shared_weights, weights)
        assert all(peer.answers == STEPS for peer in peers), "each had a share of every step"
    _, replayed = installed(space)
    rebuild(method, replayed, log, SCHEDULE, seed=SEED)
    assert same(weights, dict(replayed.params))


@pytest.mark.parametrize("parts", [2, 3])
def test_the_loss_of_divided_rows_is_that_of_all_rows_within_their_rounding(parts: int) -> None:
    """Each part's fp32 loss is off by some roundings of its forward, and their mean in fp64 by the same."""
    method = make(RGE(1))
    model, space = installed("full")
    for step in (1, 4):
        points = method.bind(space.params).estimator.points(SEED, step)
        whole, of_parts = (
            losses_at(method, model.module, space, of_batch(model, rows(step), losses.candidates, space), points)
            for rows in (batches, in_parts(parts))
        )
        assert of_parts != whole, "other forwards, which round otherwise"
        assert of_parts == pytest.approx(whole, rel=8 * torch.finfo(torch.float32).eps)


def test_parts_weigh_as_many_terms_as_they_have() -> None:
    f = RowParts([lambda points: torch.full((points,), 1.0), lambda points: torch.full((points,), 5.0)], [3, 1])
    assert f(2).tolist() == [2.0, 2.0]
    points = RGE(1).points(0, 1)
    assert [point.part for point in f.divide(points)] == [0, 1, 0, 1]
    assert f.of_divided([1.0, 5.0, 2.0, 6.0]) == [2.0, 3.0]
    assert [list(part) for part in divided(range(7), 3)] == [[0, 1], [2, 3], [4, 5, 6]]
    assert [list(part) for part in divided(range(2), 3)] == [[0], [1]]


def test_rows_of_a_lost_peer_are_evaluated_by_the_others_with_the_same_bits_and_none_is_dropped() -> None:
    method, rows = make(RGE(1)), in_parts(3)
    log, weights = run(method, "full", rows=rows)
    peers = [Thread(method, "full", dies=3, rows=rows), Thread(method, "full", rows=rows)]
    team = team_of(peers)
    shared_log, shared_weights = run(method, "full", team, rows=rows)
    assert shared_log == log
    assert same(shared_weights, weights)
    assert (team.lost, team.redone, team.dropped) == (1, 1, 0)
    with pytest.raises(ValueError, match="rows are divided cannot be dropped"):
        run(method, "full", team_of([Thread(method, "full", rows=rows)], drop=True), rows=rows)


def test_followers_hold_the_leaders_weights_after_each_step() -> None:
    method = make(RGE(3), update=Adam())
    peers = [Thread(method, "full"), Thread(method, "full")]
    team = team_of(peers)
    _, weights = run(method, "full", team)
    team.losses(method.estimator.points(SEED, STEPS + 1), lambda points: [0.0] * len(points))  # sends the last step
    for peer in peers:
        assert same(weights, {name: param.detach() for name, param in peer.space.params.items()})


def test_a_resumed_run_brings_its_followers_up_to_date() -> None:
    method = make(RGE(3), update=Adam())
    log, weights = run(method, "full")
    for done in (1, 4):
        again, shared = run(method, "full", team_of([Thread(method, "full")]), log[:done])
        assert again == log
        assert same(shared, weights)


@pytest.mark.parametrize("dies", [1, 3])
def test_what_a_lost_peer_owes_is_evaluated_by_the_others_with_the_same_bits(dies: int) -> None:
    method = make(RGE(5))
    log, weights = run(method, "full")
    peers = [Thread(method, "full", dies=dies), Thread(method, "full")]
    why: list[str] = []
    team = team_of(peers, on_loss=why.append)
    shared_log, shared_weights = run(method, "full", team)
    assert shared_log == log
    assert same(shared_weights, weights)
    assert (why, team.lost, team.redone, team.dropped) == (["it died"], 1, 2, 0)
    assert peers[1].answers == STEPS + 1, "it had a part of what the other owed"


def test_with_all_peers_gone_the_leader_goes_on_alone() -> None:
    method = make(RGE(3))
    log, _ = run(method, "full")
    team = team_of([Thread(method, "full", dies=2), Thread(method, "full", dies=2)])
    assert run(method, "full", team)[0] == log
    assert team.lost == 2


def test_directions_of_a_lost_peer_are_dropped_and_the_log_replays_to_the_same_weights() -> None:
    method = make(RGE(5), update=Adam())
    undisturbed, _ = run(method, "full")
    team = team_of([Thread(method, "full", dies=3), Thread(method, "full")], drop=True)
    log, weights = run(method, "full", team)
    gone = [(i, query) for i, line in enumerate(log) for query, g in enumerate(line) if math.isnan(g)]
    assert gone == [(2, 1), (2, 4)], "the share of the first follower, at the step at which it died"
    assert (team.dropped, team.redone, team.lost) == (2, 0, 1)
    assert log[:2] == undisturbed[:2]
    assert log[3] != undisturbed[3]
    _, space = installed("full")
    rebuild(method, space, log, SCHEDULE, seed=SEED)
    assert same(weights, dict(space.params))
    again, resumed = run(method, "full", team_of([Thread(method, "full")]), log[:4])
    assert same(resumed, weights)
    assert again[4:] == log[4:]


def test_a_slow_peer_is_left_out_until_it_has_answered_and_catches_up() -> None:
    method = make(RGE(4), update=Adam())
    log, weights = run(method, "full")
    slow = Thread(method, "full", slow=2)
    team = team_of([slow])

    def at(step: int) -> None:
        if step == 1:
            team._patience = 0.0  # nobody waits for the second answer
        if step == 4:
            team._patience = 30.0
            slow.go_on.set()
            while slow.said.empty():
                time.sleep(0.01)

    shared_log, shared_weights = run(method, "full", team, at=at)
    assert shared_log == log
    assert same(shared_weights, weights)
    assert (team.lost, team.redone) == (0, 2), "the two directions of the second step"
    assert slow.answers == 4, "at steps 1, 2, 5 and 6"


@pytest.mark.parametrize("estimator", [RGE(4), MezoCompat(4), RGEOneSided(4)])
def test_the_estimate_of_the_points_that_came_is_their_mean(estimator: Estimator) -> None:
    points = estimator.points(1, 2)
    came = [point for point in points if point.scale == 0 or point.key.query != 2]
    values = [math.sin(10 * point.scale + point.key.query) for point in came]
    whole = dict(zip(points, [math.sin(10 * point.scale + point.key.query) for point in points], strict=True))
    estimate = estimator.combine(came, values)
    everything = estimator.combine(points, [whole[point] for point in points])
    assert math.isnan(estimate.coefs[2])
    for query in (0, 1, 3):
        assert estimate.coefs[query] == everything.coefs[query]
    assert estimate.terms == tuple((NoiseKey(1, 2, i), estimate.coefs[i] / 3) for i in (0, 1, 3))
    assert estimator.from_log(1, 2, estimate.coefs).terms == estimate.terms
    assert math.isfinite(estimate.loss)


@pytest.mark.parametrize("mode", [Mode.SEQUENTIAL, Mode.OUTER, Mode.INNER, Mode.BOTH])
@pytest.mark.parametrize("estimator", [RGE(5), RGEOneSided(5)])
def test_shares_are_whole_forwards_and_cover_every_point_once(mode: Mode, estimator: Estimator) -> None:
    points = estimator.points(0, 1)
    found = shares(points, mode)
    assert sorted(i for share in found for i in share) == list(range(len(points)))
    forwards = mode.groups(points)
    for share in found:
        chosen = [points[i] for i in share]
        alone = [[share[i] for i in group] for group in mode.groups(chosen)]
        assert all(group in forwards for group in alone), "its forwards are those of the whole step"
    if mode in (Mode.SEQUENTIAL, Mode.INNER):
        assert len(found) == 5, "a direction each"


def test_the_bytes_are_those_of_the_format() -> None:
    method = make(RGE(4))
    peers = [Thread(method, "full") for _ in range(2)]
    team = team_of(peers)
    run(method, "full", team)
    # Two sides of directions 1 and 2 for one follower each step: of 4 directions over 3, the leader has two.
    asked = STEPS * (HEAD.size + 2 * 4) + (STEPS - 1) * 4 * 8  # the log of each step but the last
    assert [set(peer.lent) for peer in peers] == [{2}, {2}]
    assert team.exchanged == 2 * (asked + STEPS * 2 * 8)


def test_a_question_survives_the_wire() -> None:
    log = [(0.1, float("nan")), (1e-300, -1e300)]
    done, back, chosen = unpack(pack(7, log, [0, 3]))
    assert (done, chosen, repr(back)) == (7, (0, 3), repr(log))
    assert unpack(pack(0, [], [])) == (0, [], ())
    with pytest.raises(ValueError, match="not a question"):
        unpack(pack(7, log, [0, 3])[:-1])


def test_a_follower_refuses_a_log_with_a_gap() -> None:
    model, space = installed("full")
    follower = Follower(make(RGE(2)), model, space, lambda step: None, SCHEDULE, seed=SEED)
    with pytest.raises(ValueError, match="the next step here is 1"):
        follower.answer(pack(1, [(0.0, 0.0)], [0]))


def test_what_cannot_be_shared_is_refused() -> None:
    with pytest.raises(ValueError, match="a part of every direction"):
        Team([], Mode.OUTER, drop=True)
    in_place = Method(RGE(2), Gaussian(), SGD(), in_place=InPlace())
    with pytest.raises(ValueError, match="out-of-place"):
        run(in_place, "full", Team([], Mode.SEQUENTIAL))


def test_a_follower_with_other_parameters_is_not_taken() -> None:
    method = make(RGE(2))
    why: list[str] = []
    team = Team([Thread(method, "full")], Mode.SEQUENTIAL, agreed=b"something else", patience=30.0, on_loss=why.append)
    assert team.ready() == 0
    assert why == ["its fingerprint is b'ready', the leader's is b'something else'"]
    assert run(method, "full", team)[0] == run(method, "full")[0]


def test_a_loss_that_is_not_finite_at_a_follower_stops_the_run() -> None:
    class Infinite:
        def ask(self, message: bytes) -> None:
            self.count = len(unpack(message)[2])

        def answer(self, timeout: float) -> bytes | None:
            count, self.count = getattr(self, "count", 0), 0
            return pack_losses([math.inf] * count)

    method = make(RGE(2))
    team = Team([Infinite()], Mode.SEQUENTIAL)
    team.ready()
    with pytest.raises(DivergedError, match="step 1, seed 5, query 1"):
        run(method, "full", team)
