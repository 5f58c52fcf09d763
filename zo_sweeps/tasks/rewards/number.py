"""The right number, whatever is around it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Literal

from zo_sweeps.methods.definition import option
from zo_sweeps.methods.reward import Reward

# The minus of 5-3 and top-5 is no sign, the dot of No.5 and ...7 no decimal point, and 3 no number of v1.2.3.
_NUMBER = re.compile(r"(?<!\d)(?<!\d\.)(?:(?<!\w)-)?(?:\d+(?:,\d{3})*(?:\.\d+)?|(?<![\w.])\.\d+)")


@dataclass(frozen=True)
class Number(Reward):
    """1 if the text has the row's number, otherwise 0. Numbers are equal as decimals: 1,000 is 1000.0.

    `position=last` is the usual rule of GSM8K, whose answers end in the number: #### 18.
    """

    examples = (
        ({"answer": "7"}, "3 + 4 = 7.0, I think.", 1.0),
        ({"answer": "#### 1,000"}, "1000", 1.0),
        ({"answer": "-3"}, "5-3", 0.0),
        ({"answer": "7"}, "It is 77.", 0.0),
        ({"answer": "7"}, "The answer is...7", 1.0),
        ({"answer": "0.5"}, "It is .5", 1.0),
        ({"answer": "3"}, "The answer is \u22123", 0.0),
    )

    column: str = option("answer", "column with the number, the last one in its text")
    position: Literal["any", "last"] = option("any", "which number of the text must be the right one")

    def of(self, row: Mapping[str, Any], text: str) -> float:
        right, numbers = _numbers(str(row[self.column])), _numbers(text)
        if not right:
            raise ValueError(f"column {self.column!r} of the row has no number: {row[self.column]!r}")
        return float(right[-1] in (numbers if self.position == "any" else numbers[-1:]))


def _numbers(text: str) -> list[Decimal]:
    text = text.replace("\u2212", "-")  # the minus of typesetting
    return [Decimal(number.replace(",", "")) for number in _NUMBER.findall(text)]
