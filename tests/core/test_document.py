"""JSON of another machine: what a definition accepts, what it refuses, and that nothing else gets through."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from zo_sweeps.core.document import WHOLE, MalformedError, Shape, item

pytestmark = pytest.mark.unit


@dataclass(frozen=True)
class Part(Shape):
    name: str = item(most=3, pattern=re.compile("[a-z]*"))


@dataclass(frozen=True)
class Whole(Shape):
    text: str
    count: int = item(most=9)
    share: float | None = item(None, most=1.0)
    free: float = 0.0
    is_on: bool = False
    parts: tuple[Part, ...] = item((), entries=2)
    rows: tuple[tuple[int, ...], ...] = ()
    notes: Mapping[str, str] = item(dict, entries=1, most=4)
    raw: Mapping[str, Any] = item(dict)


def test_an_object_comes_back_as_it_was() -> None:
    one = Whole("é\n", 9, 0.5, math.inf, True, (Part("ab"),), ((1, 2), ()), {"a": "b"}, {"x": [None, {"y": 1.5}]})
    assert Whole.read(json.loads(json.dumps(one.to_json()))) == one
    assert Whole.read({"text": "", "count": 0}) == Whole("", 0)
    assert math.isnan(Whole.read({"text": "", "count": 0, "free": math.nan}).free)
    assert Whole.read({"text": "\x1b[2J", "count": 0}).text == "?[2J", "nothing moves a terminal's cursor"
    assert Whole.read({"text": "\ud800", "count": 0}).text == "?", "half of a character"
    assert "more" not in Whole.read({"text": "", "count": 0, "more": 1}).to_json(), "an unknown field goes no further"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"text": 1}, "Whole: wrong 'text': a text of at most 200 characters is needed"),
        ({"text": "x" * 201}, "wrong 'text'"),
        ({"count": 10}, "wrong 'count': a whole number from 0 to 9 is needed"),
        ({"count": -1}, "wrong 'count'"),
        ({"count": True}, "wrong 'count'"),
        ({"count": 1.0}, "wrong 'count'"),
        ({"share": 1.5}, "wrong 'share': a number of at most 1 is needed"),
        ({"share": math.nan}, "wrong 'share'"),
        ({"share": "1"}, "wrong 'share': a number is needed"),
        ({"free": WHOLE + 1}, "wrong 'free'"),
        ({"is_on": 1}, "wrong 'is_on': true or false is needed"),
        ({"parts": {}}, "wrong 'parts': a list of at most 2 entries is needed"),
        ({"parts": [{}, {}, {}]}, "wrong 'parts'"),
        ({"parts": [{"name": "abcd"}]}, "wrong 'parts': Part: wrong 'name': a text of at most 3 characters is needed"),
        ({"parts": [{"name": "A"}]}, "Part: wrong 'name': a text like"),
        ({"parts": [[]]}, "Part: a JSON object is needed"),
        ({"rows": [1]}, "wrong 'rows'"),
        ({"notes": {"a": "", "b": ""}}, "wrong 'notes': a mapping of at most 1 entries is needed"),
        ({"notes": {"a": "12345"}}, "wrong 'notes'"),
        ({"raw": []}, "wrong 'raw'"),
    ],
)
def test_a_wrong_field_is_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(MalformedError, match=re.escape(message)):
        Whole.read({"text": "", "count": 0, **change})


def test_a_missing_field_and_what_is_no_object() -> None:
    with pytest.raises(MalformedError, match="Whole: 'count' is missing"):
        Whole.read({"text": ""})
    for value in ([], None, "x"):
        with pytest.raises(MalformedError, match="a JSON object is needed"):
            Whole.read(value)
