"""A follower of a trial as a Ray actor: the handle that the leader holds in another actor."""

from __future__ import annotations

from typing import Any

from zo_sweeps.schedule.ray_cluster import why_lost


class RayPeer:
    """A `zo_sweeps.engine.peers.Peer` in a Ray actor.

    Args:
        actor: a TrialActor on which `follow` was called.
        joined: the reference of that call: its result is the first answer.
        name: the name of its node.
    """

    def __init__(self, actor: Any, joined: Any, name: str) -> None:
        self._actor, self._pending, self._name = actor, joined, name

    def ask(self, message: bytes) -> None:
        self._pending = self._actor.answer.remote(message)

    def answer(self, timeout: float) -> bytes | None:
        import ray

        from zo_sweeps.engine.peers import PeerLostError

        ready, _ = ray.wait([self._pending], timeout=timeout)
        if not ready:
            return None
        try:
            message: bytes = ray.get(self._pending)
        except ray.exceptions.RayTaskError as error:
            line = str(error).strip().splitlines()[-1]
            raise PeerLostError(f"the peer on {self._name} failed: {line}") from error
        except ray.exceptions.RayError as error:
            raise PeerLostError(f"the peer on {self._name} is lost: {why_lost(error)}") from error
        return message
