"""A step's points shared among peers that hold the same model and exchange scalars only: the leader's side.

    leader -> follower   the coefficients of the steps that it has not applied yet, and which points to evaluate
    follower -> leader   f at those points

The leader combines the losses in the points' own order and logs the step; a follower (follower.py) gets to the same
weights, bit for bit, because the log is the run. Forwards are dealt out whole, so that a batch has the shape that it
has in a run of one process: on machines of one kind the result is that run's, whoever evaluated what.

A follower that is lost, or has not answered `patience` seconds after the leader's own share was done, is left out:
`drop=False` deals its points to those who are left (the same result); `drop=True` takes the mean over the directions
that came, with NaN in the log for the others. A slow one is back with its next answer, and a lost one is not.

Bytes a step and follower: 16 + 8 q for the log + 4 a point there, 8 a point back.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from zo_sweeps.engine.types import Evaluate
from zo_sweeps.methods.evaluation import Mode
from zo_sweeps.methods.points import Point

HEAD = struct.Struct("<IIII")  # steps before these, steps, coefficients a step, points


class PeerLostError(Exception):
    """A follower cannot be reached any more, or failed; says why."""


class Peer(Protocol):
    """A follower as its leader sees it. Its first answer, to no question, says that it is ready, and with what."""

    def ask(self, message: bytes) -> None:
        """Sends a question, once the one before is answered. Does not wait."""
        ...

    def answer(self, timeout: float) -> bytes | None:
        """The answer, if it comes within `timeout` seconds. Raises PeerLostError."""
        ...


def shares(points: Sequence[Point], mode: Mode) -> list[list[int]]:
    """The points (by index) that stay together: forwards are never split, nor a query's points where each is one."""
    return (mode if mode.batched else Mode.INNER).groups(points)


def pack(done: int, log: Sequence[Sequence[float]], chosen: Sequence[int]) -> bytes:
    """A question: the log's steps done+1, done+2, ..., and the points to evaluate f at after them."""
    width = len(log[0]) if log else 0
    head = HEAD.pack(done, len(log), width, len(chosen))
    steps = b"".join(pack_losses(coefs) for coefs in log)
    return head + steps + struct.pack(f"<{len(chosen)}I", *chosen)


def unpack(message: bytes) -> tuple[int, list[tuple[float, ...]], tuple[int, ...]]:
    """What `pack` was given. Raises ValueError for anything else."""
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
class _Member:
    peer: Peer
    ready: bool = False
    waiting: bool = True  # for its answer; at first, for the one that says it is ready
    told: int = 0  # steps of the log


class Team:
    """The leader's `Peers`.

    Args:
        peers: the followers.
        mode: how the method evaluates f.
        agreed: what a follower must say when it is ready: its parameters are then the leader's.
        drop, patience: see the module's text; `patience` in seconds.
        on_loss: told why, when a follower is lost.

    `exchanged` counts the bytes of questions and answers, `dropped` and `redone` the shares of lost or slow followers,
    in directions (with mode "outer", in forwards).

    Raises ValueError for dropping where no follower evaluates a direction alone.
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
            raise ValueError(f"in mode {mode.value!r} a forward holds a part of every direction: there is none to drop")
        self.exchanged = self.dropped = self.redone = self.lost = 0
        self._mode, self._agreed, self._drop, self._patience, self._on_loss = mode, agreed, drop, patience, on_loss
        self._members = [_Member(peer) for peer in peers]
        self._log: list[tuple[float, ...]] = []

    def ready(self) -> int:
        """Waits up to `patience` seconds for the followers; how many are ready. Others may join later."""
        deadline = time.monotonic() + self._patience
        return sum(self._heard(member, deadline) is not None for member in list(self._members))

    def tell(self, coefs: Sequence[float]) -> None:
        self._log.append(tuple(coefs))

    def losses(self, points: Sequence[Point], f: Evaluate) -> tuple[list[Point], list[float]]:
        found: dict[int, float] = {}
        missing = shares(points, self._mode)
        while missing:
            for member in [member for member in self._members if member.waiting]:
                self._heard(member, 0.0)  # a late answer to an earlier question is of no use any more
            free = [member for member in self._members if not member.waiting]
            own, *others = ([i for unit in missing[k :: len(free) + 1] for i in unit] for k in range(len(free) + 1))
            asked = [(member, share) for member, share in zip(free, others, strict=True) if share]
            for member, share in asked:
                self._ask(member, share)
            found |= zip(own, f([points[i] for i in own]), strict=True)
            deadline = time.monotonic() + self._patience
            for member, share in asked:
                said = self._heard(member, deadline)
                if said is not None:
                    self.exchanged += len(said)
                    found |= zip(share, struct.unpack(f"<{len(share)}d", said), strict=True)
            missing = [unit for unit in missing if unit[0] not in found]
            if self._drop:
                self.dropped += len(missing)
                break
            self.redone += len(missing)
        came = sorted(found)
        return [points[i] for i in came], [found[i] for i in came]

    def _ask(self, member: _Member, share: Sequence[int]) -> None:
        message = pack(member.told, self._log[member.told :], share)
        member.peer.ask(message)
        member.waiting, member.told = True, len(self._log)
        self.exchanged += len(message)

    def _heard(self, member: _Member, deadline: float) -> bytes | None:
        """What a follower answers until then; None when it does not, or is lost."""
        try:
            said = member.peer.answer(max(0.0, deadline - time.monotonic()))
            if not member.ready and said not in (None, self._agreed):
                raise PeerLostError(f"it has {said!r} where the leader has {self._agreed!r}")
        except PeerLostError as error:
            self._members.remove(member)
            self.lost += 1
            self._on_loss(str(error))
            return None
        member.waiting = said is None
        member.ready |= said is not None
        return said
