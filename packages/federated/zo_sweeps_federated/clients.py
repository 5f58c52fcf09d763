"""Rounds of training over clients that keep their rows: what they send is losses, what they receive is the log.

    server -> client   the coefficients of all steps that it has not applied yet, 8 bytes each
    client -> server   f at its points in each of the round's K local steps, 4 bytes each (with noise, coefficients); or
                       why it takes no part; after the last step, the SHA-256 of its weights

The server makes of the losses the coefficients of K steps of the run (see `zo_sweeps_federated.federated`), which
are its log: a client that missed any number of rounds, or joins late, has the others' weights to the bit once it has
replayed their coefficients. Nobody sends rows, gradients or weights.
"""

from __future__ import annotations

import math
import random
import struct
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import nn

from zo_sweeps.engine.evaluate import StepObjective
from zo_sweeps.engine.peers import Member, Peer, Team, pack_losses
from zo_sweeps.engine.replay import digest, rebuild, replay
from zo_sweeps.engine.rounding import LostUpdates, probed
from zo_sweeps.engine.step import Method, RunState, losses_at
from zo_sweeps.engine.train import Evaluated, Scores, StepDone, evaluated_at, evaluation_points, no_joules
from zo_sweeps.engine.types import DivergedError
from zo_sweeps.methods.estimator import ClippedDirections
from zo_sweeps.methods.evaluation import Mode
from zo_sweeps.methods.points import Estimate, Point
from zo_sweeps.methods.schedule import Rates
from zo_sweeps.methods.space import InstalledSpace
from zo_sweeps_federated.federated import Federated

START_SECONDS = 600.0  # for which the first round waits for a client, which may have to fetch its model
LONGEST = 1000  # bytes of a client's reason
OfStep = Callable[[int], StepObjective]  # step of the run -> f of a client's minibatch; with noise, of each of its rows
Once = Callable[[int, Callable[[], bytes]], bytes]  # first step of a round, its answer -> the one given before, or this


def sent(losses: Sequence[float]) -> bytes:
    """Encode a client's losses, of one local step after the other."""
    return struct.pack(f"<{len(losses)}f", *losses)


def declined(why: str) -> bytes:
    """Encode why a client takes no part, in a length that no losses have."""
    text = b"!" + why.encode()[:LONGEST]
    return text + b" " * ((1 - len(text)) % 4)


def received(message: bytes) -> list[float]:
    """Decode a client's losses. Raises ValueError for another length than of whole numbers, and if it declined."""
    if len(message) % 4:
        why = message[1 : LONGEST + 1].decode(errors="replace").strip()
        known = message[:1] == b"!" and why.isprintable()
        raise ValueError(f"it takes no part: {why}" if known else f"{len(message)} bytes are no losses")
    return list(struct.unpack(f"<{len(message) // 4}f", message))


@dataclass(frozen=True)
class LocalSteps:
    """What a client computes in a round, from the round's theta, and what the server makes of it.

    Args:
        method: bound to the space's parameters; its update has no state, and its directions' is that of the round.
    """

    protocol: Federated
    method: Method
    module: nn.Module
    space: InstalledSpace
    rates: Rates
    seed: int
    steps: int  # of the run

    def points(self, step: int, place: int) -> list[Point]:
        """Return the points of the round's client number `place`: all of them, or those of its own direction."""
        points = self.method.estimator.points(self.seed, step)
        own = self.protocol.own_directions
        return [point for point in points if not own or point.key.query == place or not point.scale]

    @property
    def width(self) -> int:
        """Return how many numbers a client sends per local step."""
        return len(self._queries(0)) if self.protocol.noise else len(self.points(1, 0))

    @property
    def bound(self) -> float:
        """Return the largest |coefficient| of a client that counts: the clip, plus 8 deviations of noise; 0: any."""
        return self._clip * (1 + 16 * self.protocol.noise)

    @property
    def _clip(self) -> float:
        estimator = self.method.estimator
        return estimator.clip if isinstance(estimator, ClippedDirections) else 0.0

    def _queries(self, place: int) -> Sequence[int]:
        return [place] if self.protocol.own_directions else range(self.method.estimator.budget)

    def losses(
        self, objective: OfStep, first: int, place: int, state: RunState, draw: random.Random | None = None
    ) -> list[float]:
        """Return f at the client's points in each step of the round that begins with step `first`, as they are sent.

        With noise, from `draw`, the coefficients instead. Theta and `state` are those of the round, before and after.
        Cost: the forwards of K steps, with noise of one row each; for K > 1 a copy of theta.
        """
        params, steps = self.space.params, self.protocol.round_of(first, self.steps)
        kept, losses = {}, list[float]()
        if len(steps) > 1:
            kept = {name: param.detach().clone() for name, param in params.items()}
        try:
            for step in steps:
                points, method = self.points(step, place), self.method.at(params, state, step)
                f = objective(step)
                if self.protocol.noise:
                    assert draw is not None
                    values = self._noised(method, f, points, place, draw)
                else:
                    values = losses_at(method, self.module, self.space, f, points)
                own = received(sent(values))
                losses += own
                if not all(map(math.isfinite, own)):
                    return [*losses, *[math.nan] * ((steps[-1] - step) * self.width)]
                if step < steps[-1]:
                    state = method.move(params, self._of_step(step, place, own), state, self.rates(step))
        finally:
            with torch.no_grad():
                for name, value in kept.items():
                    params[name].copy_(value)
        return losses

    def _noised(
        self, method: Method, rows: StepObjective, points: Sequence[Point], place: int, draw: random.Random
    ) -> list[float]:
        """Return the mean over rows of their bounded coefficients, each with noise of its own."""
        assert not callable(rows), "f of each row"
        clip = self._clip
        totals = dict.fromkeys(self._queries(place), 0.0)
        for f in rows:
            coefs = method.estimator.combine(points, losses_at(method, self.module, self.space, f, points)).coefs
            for query in totals:
                totals[query] += 0.0 if math.isnan(coefs[query]) else min(max(coefs[query], -clip), clip)
        deviation = self.protocol.noise * 2 * clip / len(rows)
        return [total / len(rows) + draw.gauss(0.0, deviation) for total in totals.values()]

    def _of_step(self, step: int, place: int, own: Sequence[float]) -> Estimate:
        """Return the estimate of what a client sent for a step."""
        if not self.protocol.noise:
            return self.method.estimator.combine(self.points(step, place), own)
        coefs = dict(zip(self._queries(place), (min(max(g, -self.bound), self.bound) for g in own), strict=True))
        budget = self.method.estimator.budget
        return Estimate.mean(self.seed, step, [coefs.get(query, math.nan) for query in range(budget)], math.nan)

    def estimates(self, first: int, of_clients: Sequence[Sequence[float] | None]) -> list[Estimate]:
        """Return the estimates of the round's steps from the losses of its clients, in the order of `members`.

        Clients without losses are left out of the mean; own directions of theirs have NaN in the log. Raises
        DivergedError if a loss is not finite, or if there is none.
        """
        members, steps = self.protocol.members(self.seed, first), self.protocol.round_of(first, self.steps)
        each: list[list[Estimate]] = [[] for _ in steps]
        places = [place for place, losses in enumerate(of_clients) if losses is not None]
        if not places:
            raise DivergedError(f"no client of the round of step {first}, seed {self.seed}, has losses")
        for place in places:
            losses = of_clients[place] or ()
            wrong = next((at for at, loss in enumerate(losses) if not math.isfinite(loss)), None)
            if wrong is not None:
                step = steps[wrong * len(steps) // len(losses)]
                what = f"non-finite loss at step {step}, seed {self.seed}, client {members[place]}"
                raise DivergedError(f"{what}: {losses[wrong]}")
            for estimates, one in zip(each, self.of_client(first, place, losses), strict=True):
                estimates.append(one)
        return [self._together(step, places, estimates) for step, estimates in zip(steps, each, strict=True)]

    def of_client(self, first: int, place: int, losses: Sequence[float]) -> list[Estimate]:
        """Return the estimates of one client's local steps. Raises ValueError for another number of losses."""
        steps, width = self.protocol.round_of(first, self.steps), self.width
        if len(losses) != width * len(steps):
            raise ValueError(f"{len(losses)} losses, not {width} for each of {len(steps)} local steps")
        parts = [losses[k * width : (k + 1) * width] for k in range(len(steps))]
        return [self._of_step(step, place, own) for step, own in zip(steps, parts, strict=True)]

    def _together(self, step: int, places: Sequence[int], each: Sequence[Estimate]) -> Estimate:
        loss = _mean([estimate.loss for estimate in each])
        if self.protocol.own_directions:
            by_query = {place: estimate.coefs[place] for place, estimate in zip(places, each, strict=True)}
            coefs = [by_query.get(query, math.nan) for query in range(self.protocol.present)]
        else:
            coefs = [_mean(of_query) for of_query in zip(*(estimate.coefs for estimate in each), strict=True)]
        return Estimate.mean(self.seed, step, coefs, loss)

    def apply(self, log: Sequence[Sequence[float]], first: int, state: RunState) -> RunState:
        """Move theta by the steps first, first + 1, ... of the run's log; return the state after them."""
        return replay(self.method, self.space.params, log, self.rates, seed=self.seed, first=first, state=state)


def _mean(values: Sequence[float]) -> float:
    total = 0.0  # not `sum`, which newer versions of Python compensate
    for value in values:
        total += value
    return total / len(values)


def coefficients(log: Sequence[Sequence[float]]) -> bytes:
    """Encode the steps that a client has not applied yet."""
    return b"".join(pack_losses(line) for line in log)


class ClientTeam(Team):
    """The clients as the server sees them: client c is the c-th of the peers; the first message to it is c, 4 bytes.

    A client that is lost or late has no answer. A late one that answers in the meantime takes part again. `up` and
    `down` count the bytes of answers and questions.
    """

    def __init__(self, peers: Sequence[Peer], **options: Any) -> None:
        super().__init__(peers, Mode.SEQUENTIAL, **options)
        self._clients = list(self._members)
        self._greeted: set[int] = set()
        self.up = self.down = 0

    def begin(self, should_stop: Callable[[], bool]) -> int:
        """Wait for every client that is not lost, START_SECONDS at most; return how many are ready.

        Who is slow to load its model misses no round.
        """
        end = time.monotonic() + START_SECONDS
        while (missing := [one for one in self._members if not one.ready]) and time.monotonic() < end:
            if should_stop():
                break
            for one in missing:
                self._heard(one, time.monotonic() + 1.0 / len(missing))
        return sum(one.ready for one in self._members)

    def answers(self, members: Sequence[int], log: Sequence[Sequence[float]]) -> list[bytes | None]:
        """Return what the members of a round answer to the log so far."""
        asked: dict[int, Member] = {}
        for number in members:
            member = self._clients[number]
            if member in self._members and member.waiting:
                late = self._heard(member, 0.0)  # to an earlier round
                if late is not None:
                    self._takes_part(number, late)
            if member in self._members and not member.waiting:
                message = coefficients(log[member.sent :])
                self.down += len(message)
                member.peer.ask(message if number in self._greeted else struct.pack("<I", number) + message)
                self._greeted.add(number)
                member.waiting, member.sent, asked[number] = True, len(log), member
        deadline = time.monotonic() + self._patience
        answers = [self._heard(asked[number], deadline) if number in asked else None for number in members]
        self.up += sum(len(answer) for answer in answers if answer is not None)
        return answers

    def weights(self, log: Sequence[Sequence[float]]) -> dict[int, str]:
        """Return the SHA-256 of the weights of each client that answers, after all steps; not counted in the bytes."""
        up, down = self.up, self.down
        answers = self.answers(range(len(self._clients)), log)
        self.up, self.down = up, down
        there = [(number, answer) for number, answer in enumerate(answers) if answer is not None]
        return {number: answer.hex() for number, answer in there if self._takes_part(number, answer)}

    def _takes_part(self, number: int, answer: bytes) -> bool:
        """Return whether an answer is none of a client that declines, which is expelled."""
        try:
            received(answer)
        except ValueError as error:
            self.expel(number, str(error))
            return False
        return True

    def expel(self, number: int, why: str) -> None:
        """Take no more answers of a client that does not keep to the protocol."""
        self._members.remove(self._clients[number])
        self.lost += 1
        self._on_loss(f"client {number}: {why}")


class Client:
    """A client with a model and rows of its own, at the run's initial weights until it has answered.

    Its noise is secret, of the operating system. `once` gives a round the answer that it had, where it had one.
    """

    def __init__(
        self, local: LocalSteps, number: int, objective: OfStep, once: Once = lambda first, answer: answer()
    ) -> None:
        self._local, self._number, self._objective, self._once = local, number, objective, once
        self._width = local.method.estimator.directions(local.method.d)
        self._state = local.method.init(local.space.params)
        self.done = 0  # steps of the run that it has applied
        self._draw = random.SystemRandom() if local.protocol.noise else None

    def catch_up(self, message: bytes) -> None:
        """Apply the steps that a message has, none of which it has yet. Raises ValueError for a part of a step."""
        count, left = divmod(len(message), 8 * self._width)
        if left:
            raise ValueError(f"{len(message)} bytes are no whole steps of {self._width} coefficients")
        log = [struct.unpack_from(f"<{self._width}d", message, 8 * self._width * i) for i in range(count)]
        self._state = self._local.apply(log, self.done + 1, self._state)
        self.done += count

    def answer(self, message: bytes) -> bytes:
        """Apply the steps before a round, and return the losses of the client's steps in it; its weights after all.

        Raises ValueError if the round is not one of the client's.
        """
        self.catch_up(message)
        local, first = self._local, self.done + 1
        if self.done == local.steps:
            return bytes.fromhex(digest(local.space.params))
        members = local.protocol.members(local.seed, first)
        if self._number not in members or self.done % local.protocol.local_steps:
            raise ValueError(f"client {self._number} has no part in the round of step {first}")
        place = members.index(self._number)
        return self._once(first, lambda: sent(local.losses(self._objective, first, place, self._state, self._draw)))


def train_in_rounds(
    local: LocalSteps,
    gather: Callable[[int, RunState], tuple[Sequence[Sequence[float] | None], int]],
    evaluate_dev: Callable[[], Scores],
    *,
    eval_every: int,
    log: Sequence[Sequence[float]] = (),
    evaluated: Collection[int] = (),
    joules: Callable[[], float] = no_joules,
) -> Iterator[StepDone | Evaluated]:
    """Run the rounds after those that `log` has whole, as `train` runs steps.

    Args:
        gather: first step of a round, its state -> the losses of its clients (None: it has none), and the tokens that
            they forwarded. It is called with theta at the round's beginning.

    A round's time is spread evenly over its steps: of simulated clients, that of all of them, in turn. Dev is
    scored after any step, also within a round, with the weights that the log has there. Raises
    DivergedError as `LocalSteps.estimates` does.
    """
    protocol, params, steps, seed = local.protocol, local.space.params, local.steps, local.seed
    whole = len(log) if len(log) == steps else len(log) - len(log) % protocol.local_steps
    state = rebuild(local.method, local.space, log[:whole], local.rates, seed=seed)
    due = set(evaluation_points(steps, eval_every)) - set(evaluated)
    if whole in due:
        yield evaluated_at(whole, evaluate_dev, seed)
    for first in range(whole + 1, steps + 1, protocol.local_steps):
        spent, began, count = joules(), time.perf_counter(), len(protocol.round_of(first, steps))
        losses, tokens = gather(first, state)
        estimates = local.estimates(first, losses)
        seconds, spent = (time.perf_counter() - began) / count, (joules() - spent) / count
        for number, estimate in enumerate(estimates, start=first):
            if number <= len(log):  # of an earlier attempt, whose clients may have been others
                estimate = replace(local.method.estimator.from_log(seed, number, log[number - 1]), loss=estimate.loss)
            began, lr = time.perf_counter(), local.rates(number)
            measured = LostUpdates.is_measured(number) and not local.method.update.rounds_randomly
            lost = LostUpdates() if measured else None
            method = local.method.at(params, state, number)
            estimated = partial(probed, estimate, method.perturbation.stepped())
            with lost.around(params, estimated) if lost is not None else nullcontext():
                state = method.move(params, estimate, state, lr)
            share = math.nan if lost is None else lost.share(lr != 0 and any(weight for _, weight in estimate.terms))
            took = seconds + time.perf_counter() - began
            yield StepDone(number, estimate.loss, estimate.coefs, took, tokens // count, share, spent)
            if number in due:
                yield evaluated_at(number, evaluate_dev, seed)
