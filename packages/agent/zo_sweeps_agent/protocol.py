"""What agents and the gateway say to each other: one definition per JSON object, with the sizes that are accepted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from zo_sweeps.core.document import Shape, item
from zo_sweeps.devices.probe import Reading
from zo_sweeps_agent.agent_facts import NAME, Facts
from zo_sweeps_agent.lease_contents import LEASE

PEM = 100_000  # characters of a certificate, or of a chain
EVENTS = 20_000  # per message
QUESTION = "Zo-Question"  # header: the number of the question in the answer to POST /v1/leases/ID/answers/NUMBER
LEASES = 1000  # in an answer to the poll


@dataclass(frozen=True)
class AuthorityReply(Shape):
    """The answer to GET /v1/ca: the certificate of the head's own authority, and the head's version."""

    ca: str = item(most=PEM)
    version: str = ""


@dataclass(frozen=True)
class Enrolment(Shape):
    """POST /v1/enrol: a request for a certificate.

    Args:
        code_secret: of a one-time code, hexadecimal.
        csr: signing request, PEM.
        name, device: of the agent, and its device profile.
    """

    code_secret: str
    csr: str = item(most=PEM)
    name: str = item(pattern=NAME)
    device: str = item(pattern=NAME)


@dataclass(frozen=True)
class Enrolled(Shape):
    """The answer: the agent's certificate, and the authority's, PEM."""

    agent: str
    certificate: str = item(most=PEM)
    ca: str = item("", most=PEM)


@dataclass(frozen=True)
class KnownBundle(Shape):
    """The files of a bundle for the light client, in base64."""

    files: Mapping[str, str] = item(most=2**24)


@dataclass(frozen=True)
class KnownPrograms(Shape):
    """The answer to GET /v1/challenge?of=programs: what a board with the light client has to compute.

    Args:
        programs: precision -> a bundle with the log of a run.
        at: the step of that run after which dev is scored.
        nonce: under which the head expects the answers; "" where nobody waits for them.
    """

    programs: Mapping[str, KnownBundle]
    at: int
    nonce: str = ""


@dataclass(frozen=True)
class Joining(Shape):
    """POST /v1/join; with a nonce, the fields of `known_answers.Answers` besides.

    Args:
        nonce: of the challenge that the answers are to; None: those from before shall count.
    """

    facts: Facts
    nonce: str | None = None


@dataclass(frozen=True)
class Joined(Shape):
    """The answer: what is lent ("noise" and precisions), and what is not -> why."""

    lent: tuple[str, ...]
    refused: Mapping[str, str] = item(most=1000)


@dataclass(frozen=True)
class Report(Shape):
    """POST /v1/facts: a reading of the agent's condition."""

    facts: Reading


@dataclass(frozen=True)
class Reported(Shape):
    """The answer: a remark on this machine, for its owner."""

    remark: str = item("", most=1000)


@dataclass(frozen=True)
class Leave(Shape):
    """POST /v1/leave: the agent takes no trial until it joins again.

    Args:
        why: it lends nothing for a while; "": it ends.
    """

    why: str = item("", most=1000)


@dataclass(frozen=True)
class Offer(Shape):
    """A lease that an agent is to take; `held` of its events are on the head."""

    lease: str = item(pattern=LEASE)
    trial_id: str = item()
    attempt: int = item()
    held: int = item()


@dataclass(frozen=True)
class WorkReply(Shape):
    """The answer to GET /v1/work: leases to take, and ids of leases whose trials are to stop."""

    leases: tuple[Offer, ...] = item((), entries=LEASES)
    stop: tuple[str, ...] = item((), entries=LEASES)


@dataclass(frozen=True)
class Message(Shape):
    """POST /v1/leases/ID/events: a part of a lease's journal, and with its last part the outcome.

    Args:
        first: number of the first of these events.
        outcome: `Outcome.to_json()`.
    """

    first: int
    events: tuple[Mapping[str, Any], ...] = item(entries=EVENTS)
    outcome: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Received(Shape):
    """The answer: how many events of the lease the head has."""

    acknowledged: int


@dataclass(frozen=True)
class Refusal(Shape):
    """The answer to a request that ends with an error status.

    Args:
        error: one line for a person.
        challenge: the head wants known answers first.
        expected: the number of the event that the head lacks first.
        differs: an event differs from the one of that number that was sent before.
        revoked: the agent's key was revoked.
        version: the head's version of this package, if the agent's is another.
        join: the agent is to join again: the head was updated, or its store made again.
    """

    error: str = item("", most=10_000)
    challenge: bool = False
    expected: int | None = None
    differs: bool = False
    revoked: bool = False
    version: str = ""
    join: bool = False
