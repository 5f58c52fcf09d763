"""The verifiers of reasoning-gym, each for the rows of its own generator."""

from __future__ import annotations

import ast
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any, ClassVar

from zo_sweeps.methods.reward import Reward

_ROW = {"question": "0 - 4 =", "answer": "-4", "metadata": {"source_dataset": "chain_sum"}}


@dataclass(frozen=True)
class ReasoningGym(Reward):
    """The score, 0 to 1, that the row's generator gives an answer: the last <answer>...</answer>, or else the text.

    Some generators score parts: one whose text contains the answer, or has a form that can be read, may be above 0.
    Several hand the answer to Python's `eval`; here it is computed if it is numbers, lists or a formula, and no code.
    """

    needs: ClassVar[str] = "reasoning-gym"
    examples = ((_ROW, "-4", 1.0), (_ROW, "I add: <answer>-4</answer>", 1.0), (_ROW, "<answer>4</answer>", 0.0))

    def of(self, row: Mapping[str, Any], text: str) -> float:
        from reasoning_gym import get_score_answer_fn
        from reasoning_gym.utils import extract_answer

        score = get_score_answer_fn(row["metadata"]["source_dataset"])
        _guard()
        return float(score(extract_answer(text) or text, row))


_ARITHMETIC = (ast.Expression, ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop, ast.Load)
_FUNCTIONS = {"sqrt", "exp", "log", "ln", "Abs", "sin", "cos", "tan", "sec", "csc", "cot", "asin", "acos", "atan"}
_FUNCTIONS |= {"sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "Rational", "Integer", "Float"}
_LARGEST = 1000  # exponent of a number


@cache
def _guard() -> None:
    """Put functions that run no code in the place of `eval` and sympy's `parse_expr` in the package's modules."""
    import sympy

    careful = ModuleType(sympy.__name__)
    vars(careful).update(vars(sympy), parse_expr=_parsed)
    others = {id(sympy): careful, id(sympy.parse_expr): _parsed}
    for name, module in [*sys.modules.items()]:
        if name.startswith("reasoning_gym."):
            vars(module).update(
                {key: others.get(id(value), value) for key, value in vars(module).items()}, eval=_evaluated
            )


def _evaluated(text: str) -> Any:
    """Return the value of a literal, or of arithmetic with numbers, as `eval` does."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        _must_compute(text, names=False)
        return eval(text, {"__builtins__": {}})


def _parsed(text: str, *args: Any, **kwargs: Any) -> Any:
    """Return the formula of a text, as sympy's `parse_expr` does."""
    from sympy.parsing.sympy_parser import parse_expr

    _must_compute(text, names=True)
    return parse_expr(text, *args, **kwargs)


def _must_compute(text: str, names: bool) -> None:
    """Raise ValueError unless a text is arithmetic with numbers, of a size that is soon computed.

    names: variables and functions of sympy are allowed too.
    """
    for node in ast.walk(ast.parse(text.strip(), mode="eval")):
        is_name = names and isinstance(node, ast.Name) and not node.id.startswith("_")
        called = node.func if names and isinstance(node, ast.Call) and not node.keywords else None
        is_call = isinstance(called, ast.Name) and called.id in _FUNCTIONS
        if not (isinstance(node, _ARITHMETIC) or _number(node) is not None or is_name or is_call):
            raise ValueError(f"{type(node).__name__} in an answer")
        if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Pow, ast.LShift)):
            left, right = [*ast.walk(node.left)], [*ast.walk(node.right)]
            base = [] if any(isinstance(one, ast.Name) for one in left) else left
            nested = any(isinstance(one, (ast.Pow, ast.LShift)) for one in (*base, *right))
            if nested or any((_number(one) or 0) > _LARGEST for one in right):
                raise ValueError("a number too large to compute in an answer")


def _number(node: ast.AST) -> float | None:
    value = node.value if isinstance(node, ast.Constant) else None
    return value if isinstance(value, (int, float)) else None
