"""Requests and answers: a JSON object in; JSON, or a refusal with an error status, out."""

from __future__ import annotations

import json
from typing import Any

from aiohttp import web

from zo_sweeps.core.document import MalformedError, S, Shape
from zo_sweeps.record.received import printable
from zo_sweeps_agent.gateway import limits
from zo_sweeps_agent.leases import canonical
from zo_sweeps_agent.protocol import Refusal


class ProblemError(Exception):
    """A request that ends with an error status."""

    def __init__(self, status: int, text: str, *, retry: float = 0.0, **more: Any) -> None:
        super().__init__(text)
        self.status, self.refusal, self.retry = status, Refusal(text, **more), retry


async def body_of(request: web.Request, shape: type[S], most: int | None = None) -> S:
    """Return the object that a request has as its body. Raises ProblemError for one that is not of its shape."""
    return shaped(shape, await json_of(request, most))


def shaped(shape: type[S], value: Any) -> S:
    """Return the object of parsed JSON. Raises ProblemError for one that is not of its shape."""
    try:
        return shape.read(value)
    except MalformedError as error:
        raise ProblemError(400, str(error)) from None


async def json_of(request: web.Request, most: int | None = None) -> Any:
    """Return the JSON that a request has as its body. Raises ProblemError.

    Args:
        most: bytes of it, decompressed; None: `limits.BODY_BYTES`. No more is read.
    """
    most = limits.BODY_BYTES if most is None else most
    data, announced = bytearray(), request.content_length or 0
    while announced <= most >= len(data) and (part := await request.content.readany()):
        data += part
    if max(announced, len(data)) > most:
        raise ProblemError(413, f"more than {most >> 10} KiB")
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ProblemError(400, f"the body is not JSON ({type(error).__name__})") from None


def line(value: Any) -> str:
    """Return the JSON of a value, without control characters. Raises ValueError for a text that is none."""
    text = canonical(value)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("half a character in a text") from None
    cleaned = printable(text, value)
    return text if cleaned is value else canonical(cleaned)


def answer(value: Shape | None = None) -> web.Response:
    """Return the answer with this JSON; {} without."""
    text = canonical(value.to_json() if value else {})
    return web.Response(body=text.encode("utf-8", "surrogatepass"), content_type="application/json")


def refuse(status: int, refusal: Refusal, retry: float = 0.0) -> web.Response:
    """Return the answer that refuses a request, and after how many seconds to ask again; 0: not at all."""
    response = answer(refusal)
    response.set_status(status)
    if retry:
        response.headers["Retry-After"] = str(max(1, round(retry + 0.5)))
    return response
