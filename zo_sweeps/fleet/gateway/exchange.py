"""Requests and answers: a JSON object in; JSON, or a refusal with an error status, out."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from aiohttp import web

from zo_sweeps.fleet.gateway import limits
from zo_sweeps.fleet.gateway.events import printable
from zo_sweeps.schedule.leases import canonical


class ProblemError(Exception):
    """A request that ends with an error status."""

    def __init__(self, status: int, text: str, **more: Any) -> None:
        super().__init__(text)
        self.status, self.more = status, more


async def body_of(request: web.Request, most: int = limits.BODY_BYTES) -> dict[str, Any]:
    """Return the JSON object that a request has as its body. Raises ProblemError."""
    data = await request.read()
    if len(data) > most:
        raise ProblemError(413, f"more than {most >> 10} KiB")
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ProblemError(400, f"the body is not JSON ({type(error).__name__})") from None
    if not isinstance(value, dict):
        raise ProblemError(400, "the body is no JSON object")
    return value


def text_of(body: Mapping[str, Any], name: str) -> str:
    """Return a text of a body. Raises ProblemError if it has none of this name."""
    value = body.get(name)
    if not isinstance(value, str):
        raise ProblemError(400, f"no {name!r}")
    return value


def line(value: Any) -> str:
    """Return the JSON of a value, without control characters. Raises ValueError for a text that is none."""
    text = canonical(value)
    text.encode()  # a lone surrogate is no text
    cleaned = printable(text, value)
    return text if cleaned is value else canonical(cleaned)


def answer(value: Any) -> web.Response:
    """Return the answer with this JSON."""
    return web.Response(body=canonical(value).encode("utf-8", "surrogatepass"), content_type="application/json")


def refusal(status: int, text: str, retry: float = 0.0, **more: Any) -> web.Response:
    """Return the answer that refuses a request.

    Args:
        text: for the person or program that asked.
        retry: seconds after which to ask again; 0: not at all.
        more: further fields of the answer.
    """
    response = answer({"error": text, **more})
    response.set_status(status)
    if retry:
        response.headers["Retry-After"] = str(max(1, round(retry + 0.5)))
    return response
