"""An agent's leases: their contents down, their events and outcome up."""

from __future__ import annotations

import json
from functools import lru_cache

from aiohttp import web

from zo_sweeps.core.trial import TrialState
from zo_sweeps.record.received import checked, checked_outcome
from zo_sweeps_agent.gateway.admission import AGENT
from zo_sweeps_agent.gateway.exchange import ProblemError, answer, body_of, line
from zo_sweeps_agent.gateway.writer import Writer
from zo_sweeps_agent.lease_contents import LeaseContents
from zo_sweeps_agent.leases import OPEN, GapError, Lease, LeaseOverError, Store, TooLargeError
from zo_sweeps_agent.protocol import Message, Received

KNOWN = 10_000  # leases whose trial is kept in memory


class Trials:
    """The requests of an agent about its leases.

    Args:
        store: for the event loop.
        write: to the store.
    """

    def __init__(self, store: Store, write: Writer) -> None:
        self._store, self._write = store, write
        self._trial_of = lru_cache(KNOWN)(lambda lease, agent: store.lease_of(lease, agent).trial_id)

    @property
    def routes(self) -> list[web.RouteDef]:
        """Its requests."""
        return [web.get("/v1/leases/{lease}", self._lease), web.post("/v1/leases/{lease}/events", self._events)]

    async def _lease(self, request: web.Request) -> web.Response:
        lease = open_lease(self._store, request)
        held = self._store.contents(lease.id)
        files = tuple(file.announced for file in held.files)
        standing = (lease.id, lease.trial_id, lease.attempt, lease.received)
        response = answer(LeaseContents(*standing, held.trial, held.journal, files, held.threads, held.client))
        size = len(response.body) if isinstance(response.body, bytes) else 0
        response.enable_compression()
        await self._write(lambda store: store.sent(lease.id, size))
        return response

    async def _events(self, request: web.Request) -> web.Response:
        lease, name = request.match_info["lease"], request[AGENT]
        trial_id = self._trial_of(lease, name)
        try:
            sent = await body_of(request, Message)
            texts = [line(checked(event, trial_id)) for event in sent.events]
            end = None if sent.outcome is None else line(checked_outcome(sent.outcome, trial_id))
            if end is not None:
                _must_end(end, texts[-1] if texts else self._store.last_event(lease))
            size = request.content_length or 0
            received = await self._write(lambda store: store.append(lease, name, sent.first, texts, end, size))
        except (ValueError, RecursionError, ProblemError, GapError, TooLargeError) as error:
            if isinstance(error, GapError) and not error.differs:
                raise  # it goes on from the event that is missing
            why = f"{name} sent {error}"  # it would send it again: the trial goes elsewhere
            await self._write(lambda store: store.give_up(lease, why))
            if isinstance(error, ValueError | RecursionError):
                raise ProblemError(400, str(error)) from None
            raise
        return answer(Received(received))


def _must_end(outcome: str, last: str) -> None:
    """Raise ValueError unless a lease's last event is the end that has this outcome: readers of a result look for it.

    A lost process writes no end.
    """
    ended = json.loads(outcome)
    said = json.loads(last).get("outcome")
    same = json.dumps(said, sort_keys=True) == json.dumps(ended, sort_keys=True)  # as text, for NaN
    if ended["state"] != TrialState.LOST.value and not same:
        raise ValueError(f"the outcome {ended['state']} without the end event that has it")


def open_lease(store: Store, request: web.Request) -> Lease:
    """Return the lease that a request names. Raises UnknownLeaseError unless it is its agent's, and LeaseOverError."""
    lease = store.lease_of(request.match_info["lease"], request[AGENT])
    if lease.state != OPEN:
        raise LeaseOverError(lease.why or "the lease has ended")
    return lease
