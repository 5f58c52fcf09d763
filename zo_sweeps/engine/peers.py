"""A step's points shared among peers that hold the same model and exchange scalars only.

    leader -> follower   the coefficients of the steps that it has not applied yet, and the points to evaluate
    follower -> leader   f at these points

The leader combines the losses in the order of the points and logs the step; a follower arrives at the same weights, bit
for bit, because the log is the run. A forward is never split, so that a batch has the same shape as in a run of one
process: on machines of the same kind the result is bit-identical, however the points were divided. With
`evaluation.parts`, a point is several: one for each part of the minibatch's rows, which a process can evaluate apart.

A follower that is lost, or has not answered `patience` seconds after the leader finished its own share, is left out:
`drop=False` reassigns its points to the remaining processes (the same result); `drop=True` takes the mean over the
directions that arrived, with NaN in the log for the others. A slow follower rejoins with its next answer.

Bytes per step and follower: 16 + 8 q for the log + 4 per point sent, 8 per point returned.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from zo_sweeps.engine.evaluate import RowParts, StepObjective
from zo_sweeps.engine.replay import Data, replay
from zo_sweeps.engine.step import Method, losses_at, with_bases
from zo_sweeps.engine.types import Evaluate, LanguageModel
from zo_sweeps.methods.evaluation import Mode
from zo_sweeps.methods.points import Point
from zo_sweeps.methods.schedule import Rates
from zo_sweeps.methods.space import InstalledSpace

HEAD = struct.Struct("<IIII")  # steps already sent, steps, coefficients per step, points


class PeerLostError(Exception):
    """An unreachable or failed follower; the message is the reason."""


class Peer(Protocol):
    """A follower as the leader sees it.

    Its first message is unsolicited: it signals readiness and carries its fingerprint.
    """

    def ask(self, message: bytes) -> None:
        """Send a question; the previous one must have been answered. Does not wait."""

    def answer(self, timeout: float) -> bytes | None:
        """Return the answer, or None after `timeout` seconds. Raises PeerLostError."""


def shares(points: Sequence[Point], mode: Mode) -> list[list[int]]:
    """Return the points (by index) that stay together: those of one forward, or of one query in sequential mode."""
    return (mode if mode.batched else Mode.INNER).groups(points)


def pack(done: int, log: Sequence[Sequence[float]], chosen: Sequence[int]) -> bytes:
    """Encode a question: the log's steps done+1, done+2, ..., and the points at which to evaluate f after them."""
    width = len(log[0]) if log else 0
    head = HEAD.pack(done, len(log), width, len(chosen))
    steps = b"".join(pack_losses(coefs) for coefs in log)
    return head + steps + struct.pack(f"<{len(chosen)}I", *chosen)


def unpack(message: bytes) -> tuple[int, list[tuple[float, ...]], tuple[int, ...]]:
    """Decode a question of `pack`. Raises ValueError for anything else."""
    try:
        done, steps, width, count = HEAD.unpack_from(message)
        at = HEAD.size
        log = [struct.unpack_from(f"<{width}d", message, at + 8 * width * i) for i in range(steps)]
        chosen = struct.unpack(f"<{count}I", message[at + 8 * width * steps :])
    except struct.error as error:
        raise ValueError(f"not a question to a peer: {error}") from error
    return done, log, chosen


def pack_losses(losses: Sequence[float]) -> bytes:
    return struct.pack(f"<{len(losses)}d", *losses)


@dataclass
class Member:
    peer: Peer
    ready: bool = False
    waiting: bool = True  # for its answer; initially for its message of readiness
    sent: int = 0  # steps of the log that it has received


class Team:
    """The leader's `Peers`.

    Args:
        mode: how the method evaluates f.
        agreed: the fingerprint that a follower must send: its parameters then equal the leader's.
        drop, patience: see the module's docstring; `patience` in seconds.
        on_loss: called with the reason when a follower is lost.

    `exchanged` counts the bytes of questions and answers, `dropped` and `redone` the shares of lost or slow followers,
    in directions (with mode "outer", in forwards). Raises ValueError for `drop` in a mode where a forward mixes
    directions.
    """

    def __init__(
        self,
        peers: Sequence[Peer],
        mode: Mode,
        *,
        agreed: bytes = b"",
        drop: bool = False,
        patience: float = 60.0,
        on_loss: Callable[[str], None] = lambda why: None,
    ) -> None:
        if drop and mode.mixes_queries:
            why = "each forward holds a part of every direction"
            raise ValueError(f"mode {mode.value!r} cannot drop directions: {why}")
        self.exchanged = self.dropped = self.redone = self.lost = 0
        self._mode, self._agreed, self._drop, self._patience, self._on_loss = mode, agreed, drop, patience, on_loss
        self._members = [Member(peer) for peer in peers]
        self._log: list[tuple[float, ...]] = []

    def ready(self) -> int:
        """Wait up to `patience` seconds for the followers; return how many are ready. Others may join later."""
        deadline = time.monotonic() + self._patience
        return sum(self._heard(member, deadline) is not None for member in list(self._members))

    def tell(self, coefs: Sequence[float]) -> None:
        self._log.append(tuple(coefs))

    def losses(self, points: Sequence[Point], f: Evaluate) -> tuple[list[Point], list[float]]:
        if self._drop and points[0].part is not None:
            raise ValueError("a direction whose rows are divided cannot be dropped: set executor.on_lost_worker=redo")
        losses: dict[int, float] = {}
        missing = shares(points, self._mode)
        while missing:
            for member in [member for member in self._members if member.waiting]:
                self._heard(member, 0.0)  # discard a late answer to an earlier question
            free = [member for member in self._members if not member.waiting]
            own, *others = ([i for unit in missing[k :: len(free) + 1] for i in unit] for k in range(len(free) + 1))
            asked = [(member, share) for member, share in zip(free, others, strict=True) if share]
            for member, share in asked:
                self._ask(member, share)
            losses |= zip(own, f([points[i] for i in own]), strict=True)
            deadline = time.monotonic() + self._patience
            for member, share in asked:
                answer = self._heard(member, deadline)
                if answer is not None:
                    self.exchanged += len(answer)
                    losses |= zip(share, struct.unpack(f"<{len(share)}d", answer), strict=True)
            missing = [unit for unit in missing if unit[0] not in losses]
            if self._drop:
                self.dropped += len(missing)
                break
            self.redone += len(missing)
        arrived = sorted(losses)
        return [points[i] for i in arrived], [losses[i] for i in arrived]

    def _ask(self, member: Member, share: Sequence[int]) -> None:
        message = pack(member.sent, self._log[member.sent :], share)
        member.peer.ask(message)
        member.waiting, member.sent = True, len(self._log)
        self.exchanged += len(message)

    def _heard(self, member: Member, deadline: float) -> bytes | None:
        """Return a follower's answer; None if it has not answered by the deadline, or is lost."""
        try:
            answer = member.peer.answer(max(0.0, deadline - time.monotonic()))
            if not member.ready and answer not in (None, self._agreed):
                raise PeerLostError(f"its fingerprint is {answer!r}, the leader's is {self._agreed!r}")
        except PeerLostError as error:
            self._members.remove(member)
            self.lost += 1
            self._on_loss(str(error))
            return None
        member.waiting = answer is None
        member.ready |= answer is not None
        return answer


class Follower:
    """A process that answers a `Team`. Its space is at its base values: the first question brings the whole log."""

    def __init__(
        self,
        method: Method,
        model: LanguageModel,
        space: InstalledSpace,
        objective: Callable[[int], StepObjective],
        rates: Rates,
        *,
        seed: int,
    ) -> None:
        self._data, self._rates, self._seed = Data(model.module, space, objective), rates, seed
        self._method = method.bind(space.params)
        self._state = self._method.init(space.params)
        self._step = 0  # the next step; 0: none has begun
        self._begin()

    def answer(self, question: bytes) -> bytes:
        """Apply the question's steps, then return the losses at its points. Raises ValueError for other steps."""
        done, log, chosen = unpack(question)
        if done != self._step - 1:
            raise ValueError(f"the leader sent steps from {done + 1} on, but the next step here is {self._step}")
        data, rates, seed = self._data, self._rates, self._seed
        module, space, objective = data
        for coefs in log:
            self._state = replay(
                self._method, space.params, [coefs], rates, seed=seed, state=self._state, first=self._step, data=data
            )
            self._begin()
        f = objective(self._step)
        points: Sequence[Point] = self._method.estimator.points(seed, self._step)
        if isinstance(f, RowParts):
            points = f.divide(points)
        method = self._method.at(space.params, self._state, self._step)
        method = with_bases(method, module, space, f, seed, self._step)
        return pack_losses(losses_at(method, module, space, f, [points[i] for i in chosen]))

    def _begin(self) -> None:
        """Begin the next step: the space changes at the same steps as in `train`."""
        self._step += 1
        self._method, self._state = self._method.begin(self._data.space, self._step, self._state)
