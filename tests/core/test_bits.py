"""Truth values as hexadecimal digits."""

from __future__ import annotations

import random

import pytest

from zo_sweeps.core.files import packed, unpacked


def test_a_bit_a_value_the_first_in_the_highest() -> None:
    assert packed([True, False, False, False, True, True, True, True, True]) == "8f80"
    assert packed([]) == ""
    draw = random.Random(0)
    for count in (1, 7, 8, 9, 1000):
        values = tuple(draw.random() < 0.5 for _ in range(count))
        assert unpacked(packed(values), count) == values
        assert len(packed(values)) == 2 * -(-count // 8)


@pytest.mark.parametrize(("text", "count"), [("8f", 9), ("8", 1), ("zz", 1)])
def test_a_text_that_holds_fewer_values_is_refused(text: str, count: int) -> None:
    with pytest.raises(ValueError, match=r"bits for 9 values|hexadecimal|fromhex"):
        unpacked(text, count)
