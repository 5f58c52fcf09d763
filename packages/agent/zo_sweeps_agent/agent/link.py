"""The connection to the head: HTTPS that this machine opens, with the head's authority pinned and a key of its own.

A proxy is used as HTTPS_PROXY and NO_PROXY say; TLS passes through it to the head.
"""

from __future__ import annotations

import json
import random
import ssl
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path
from typing import Any

import httpx2

from zo_sweeps.core.document import MalformedError, S
from zo_sweeps.core.errors import UserError
from zo_sweeps_agent.protocol import QUESTION, Refusal

CONNECT_SECONDS, ANSWER_SECONDS = 10.0, 40.0  # a long poll takes 25 s
FIRST_WAIT, LONGEST_WAIT = 1.0, 60.0  # between attempts to reach the head


class UnreachableError(Exception):
    """The head did not answer, or cannot now: try again later, after `after` seconds if it says so.

    `untrusted`: something answered, with a certificate that is not trusted.
    """

    def __init__(self, why: str, after: float = 0.0, *, untrusted: bool = False) -> None:
        super().__init__(why)
        self.after, self.untrusted = after, untrusted


class HeadRefusedError(UserError):
    """The head answered that it will not; `refusal` says why.

    401: it does not know the key; 403: the key is revoked; 404, 410: the lease is not, or no longer, this agent's;
    409: it wants something else first.
    """

    def __init__(self, status: int, refusal: Refusal) -> None:
        super().__init__(refusal.error or f"the head answered {status}")
        self.status, self.refusal = status, refusal


class Backoff:
    """Waits between attempts: doubled from `FIRST_WAIT` to `LONGEST_WAIT`, half of each at random.

    Agents that lost their head together do not return together.
    """

    def __init__(self) -> None:
        self._next = FIRST_WAIT

    def wait(self, error: UnreachableError) -> float:
        """Return the seconds to wait after an error."""
        wait, self._next = self._next, min(2 * self._next, LONGEST_WAIT)
        return max(error.after, wait * random.uniform(0.5, 1.0))

    def reset(self) -> None:
        """Begin again with `FIRST_WAIT`: the head answered."""
        self._next = FIRST_WAIT


class Link:
    """A client of one head. Thread-safe.

    Args:
        url: "https://HOST:PORT".
        context: see `pinned` and `trusted`.
        also: further addresses of that head: where one does not answer, the next request goes to the next.
    """

    def __init__(self, url: str, context: ssl.SSLContext, also: Sequence[str] = ()) -> None:
        self._urls = cycle([*also, url])
        timeout = httpx2.Timeout(ANSWER_SECONDS, connect=CONNECT_SECONDS)
        limits = httpx2.Limits(max_connections=4, keepalive_expiry=90.0)
        self._client = httpx2.Client(base_url=url, verify=context, timeout=timeout, limits=limits)

    def get(self, path: str, params: Mapping[str, str] | None = None) -> dict[str, Any]:
        """Return the JSON at a path."""
        return self._call("GET", path, params=params)

    def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Send JSON (NaN and infinity by name, as Python writes them) and return the answer's."""
        text = json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogatepass")
        return self._call("POST", path, content=text, headers={"Content-Type": "application/json"})

    def answer(self, path: str, body: bytes) -> tuple[int, bytes] | None:
        """Send the answer to a question; return the next one's number and bytes, None if there is none yet."""
        headers = {"Content-Type": "application/octet-stream"}
        answer = self._answer("POST", path, content=body, headers=headers)
        if answer.status_code != 200:
            _checked(answer)
            return None
        number = answer.headers.get(QUESTION, "")
        if not number.isdigit():
            raise UnreachableError("its question has no number")
        return int(number), answer.content

    @contextmanager
    def bytes_from(self, path: str, start: int) -> Iterator[tuple[int, Iterator[bytes]]]:
        """Open a file at the head from byte `start` on; yield the byte that it begins with, and its parts."""
        try:
            headers = {"Accept-Encoding": "identity", **({"Range": f"bytes={start}-"} if start else {})}
            with self._client.stream("GET", path, headers=headers) as answer:
                if answer.status_code not in (200, 206):
                    answer.read()
                    _checked(answer)
                yield (start if answer.status_code == 206 else 0), answer.iter_raw()
        except httpx2.HTTPError as error:
            raise self._unreachable(error) from None

    def close(self) -> None:
        self._client.close()

    def _call(self, method: str, path: str, **options: Any) -> dict[str, Any]:
        return _checked(self._answer(method, path, **options))

    def _answer(self, method: str, path: str, **options: Any) -> httpx2.Response:
        try:
            return self._client.request(method, path, **options)
        except httpx2.HTTPError as error:
            raise self._unreachable(error) from None

    def _unreachable(self, error: Exception) -> UnreachableError:
        self._client.base_url = next(self._urls)
        return _unreachable(error)


def pinned(authority: str, key: Path | None = None, certificate: Path | None = None) -> ssl.SSLContext:
    """Return a TLS context that trusts one authority alone (PEM), that of the head itself.

    It signs one certificate for servers, so any name of the head will do: it may be behind a port that is forwarded.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(cadata=authority)
    return _with_key(context, key, certificate)


def trusted(authorities: str | None, key: Path | None = None, certificate: Path | None = None) -> ssl.SSLContext:
    """Return a TLS context that trusts these authorities (PEM), or this system's, for the host's name."""
    context = ssl.create_default_context(cadata=authorities)
    return _with_key(context, key, certificate)


def unverified() -> ssl.SSLContext:
    """Return a TLS context that trusts anybody: only to ask for a certificate that a code names."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def _with_key(context: ssl.SSLContext, key: Path | None, certificate: Path | None) -> ssl.SSLContext:
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if key and certificate:
        context.load_cert_chain(certificate, key)
    return context


def understood(shape: type[S], answer: Any) -> S:
    """Return an answer of the head as its definition. Raises UnreachableError if it is something else."""
    try:
        return shape.read(answer)
    except MalformedError as error:
        raise UnreachableError(f"its answer makes no sense: {error}") from None


def _checked(answer: httpx2.Response) -> dict[str, Any]:
    """Return the answer's JSON. Raises UnreachableError for 408, 429 and 5xx, HeadRefusedError for any other error."""
    try:
        content = answer.json() if answer.content else {}
    except (ValueError, RecursionError):
        content = {}
    content = content if isinstance(content, dict) else {}
    if answer.is_success:
        return content
    refusal = understood(Refusal, content)
    if answer.status_code in (408, 429) or answer.status_code >= 500:
        after = answer.headers.get("Retry-After", "")
        why = refusal.error or f"the head answered {answer.status_code}"
        raise UnreachableError(why, float(after) if after.isdigit() else 0.0)
    raise HeadRefusedError(answer.status_code, refusal)


def _unreachable(error: Exception) -> UnreachableError:
    text = str(error).strip()
    if "CERTIFICATE_VERIFY_FAILED" not in text:
        return UnreachableError(text or type(error).__name__)
    reason = text.partition("certificate verify failed: ")[2].partition(" (_ssl.c")[0].rstrip(".") or text
    if "issuer" not in reason and "self" not in reason:  # expired, or for another name
        return UnreachableError(f"its certificate is not valid: {reason}", untrusted=True)
    what = "it is not the head that this machine trusts: its certificate is another authority's"
    return UnreachableError(what, untrusted=True)
