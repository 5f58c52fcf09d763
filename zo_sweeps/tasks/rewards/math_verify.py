"""The right mathematical expression, as math-verify reads and compares them."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from zo_sweeps.methods.definition import option
from zo_sweeps.methods.reward import Reward


@dataclass(frozen=True)
class MathVerify(Reward):
    r"""1 if the text's expression equals that of the row, as numbers or as formulas (LaTeX or plain), otherwise 0.

    Which expression of several counts is math-verify's rule: a \boxed one, one that is announced as the answer, or the
    last. For GSM8K, whose answers end in the number (#### 18), MATH and the like. A text without any has 0.
    """

    needs: ClassVar[str] = "math-verify"
    examples = (
        ({"answer": "48 + 24 = 72 clips.\n#### 72"}, "So the answer is $72.00$, not 77.", 1.0),
        ({"answer": "1/2"}, r"It is \boxed{\frac{2}{4}}.", 1.0),
        ({"answer": "-3"}, "5-3", 0.0),
        ({"answer": "7"}, "Seven!", 0.0),
    )

    column: str = option("answer", "column with the right expression")

    def of(self, row: Mapping[str, Any], text: str) -> float:
        import math_verify

        logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns of the missing limits that the task has
        right, given = (math_verify.parse(one, parsing_timeout=0) for one in (str(row[self.column]), text))
        return float(math_verify.verify(right, given, timeout_seconds=0))
