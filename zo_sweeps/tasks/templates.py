"""The template language of the task YAMLs: sandboxed Jinja; unknown names are errors, and text stays as written.

Filters besides Jinja's own: `upper_first` (first letter to upper case, the rest unchanged) and `lower_first_word`
(first word to lower case unless it is "I").
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from jinja2 import StrictUndefined, Template, TemplateSyntaxError, meta, nodes
from jinja2.exceptions import SecurityError
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

LONGEST = 1 << 20  # characters of a filled template: a row keeps `train.max_length` tokens of it


def _upper_first(text: str) -> str:
    return text[:1].upper() + text[1:]


def _lower_first_word(text: str) -> str:
    first, space, rest = text.partition(" ")
    return text if first == "I" else first.lower() + space + rest


class Sandbox(ImmutableSandboxedEnvironment):
    """Jinja's sandbox, which bounds `range` alone, with bounds on what an operator or a call may make in one go."""

    intercepted_binops = frozenset({"*", "**"})

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        sized, times = (right, left) if isinstance(left, int) and operator == "*" else (left, right)
        size = sized.bit_length() if isinstance(sized, int) else len(sized) if isinstance(sized, Sequence) else 0
        if isinstance(times, int) and size * (times if operator == "**" or not isinstance(sized, int) else 1) > LONGEST:
            raise SecurityError(f"{operator} makes more than {LONGEST:,} characters")
        return super().call_binop(context, operator, left, right)

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        if any(isinstance(one, int) and one > LONGEST for one in (*args, *kwargs.values())):  # as of text.ljust(n)
            raise SecurityError(f"a call with a number above {LONGEST:,}")
        return super().call(context, obj, *args, **kwargs)


# Task files may come from anyone, hence the sandbox. Jinja drops a final newline unless told otherwise, and most
# prompts end in one.
_ENV = Sandbox(undefined=StrictUndefined, keep_trailing_newline=True, autoescape=False)
_ENV.filters.update(upper_first=_upper_first, lower_first_word=_lower_first_word)


@lru_cache(maxsize=1024)
def _compiled(source: str) -> Template:
    return _ENV.from_string(source)


_NEVER_LONGER = {"trim", "lower", "upper", "capitalize", "title", "first", "last", "upper_first", "lower_first_word"}
_NEVER_LONGER |= {"strip", "lstrip", "rstrip", "removeprefix", "removesuffix", "partition", "rpartition", "split"}
_WRITES_ONCE: tuple[type[nodes.Node], ...] = (
    *(nodes.Template, nodes.Output, nodes.TemplateData, nodes.Name, nodes.Const, nodes.Concat, nodes.CondExpr),
    *(nodes.If, nodes.Getattr, nodes.Getitem, nodes.Slice, nodes.Neg, nodes.Dict, nodes.Pair, nodes.List),
    *(nodes.Compare, nodes.Operand, nodes.Not),
)


def uses(source: str) -> float:
    """Return how often a template may write a field; infinity if it has anything that may lengthen or repeat one."""
    counted = 0
    left: list[nodes.Node] = [_ENV.parse(source)]
    while left:
        node = left.pop()
        if not (isinstance(node, _WRITES_ONCE) or _called(node) in _NEVER_LONGER):
            return math.inf
        counted += isinstance(node, nodes.Name)
        left += node.iter_child_nodes()
    return counted


def _called(node: nodes.Node) -> str:
    """Return the name of the filter or method that a node calls; "" if it calls none."""
    if isinstance(node, nodes.Filter):
        return node.name
    return node.node.attr if isinstance(node, nodes.Call) and isinstance(node.node, nodes.Getattr) else ""


def fill(source: str, row: Mapping[str, Any]) -> str:
    """Fill the template `source` with the fields of `row`.

    Raises jinja2.TemplateError if a field is missing, ValueError if the text is longer than LONGEST, and whatever else
    an expression of the template raises.
    """
    parts, room = list[str](), LONGEST
    for part in _compiled(source).generate(row):
        parts.append(part)
        room -= len(part)
        if room < 0:
            raise ValueError(f"it makes more than {LONGEST:,} characters")
    return "".join(parts)


def names_in(source: str) -> set[str]:
    """Return the fields that the template `source` uses.

    Raises ValueError if it is not a template, or reaches for what the sandbox refuses in every row (`_` attributes).
    """
    try:
        _compiled(source)  # only the compiler notices unknown filters
        for node in _ENV.parse(source).find_all(nodes.Getattr):
            if not _ENV.is_safe_attribute(None, node.attr, None):
                raise ValueError(f"the attribute {node.attr!r} is not accessible")
        return meta.find_undeclared_variables(_ENV.parse(source)) - set(_ENV.globals)
    except TemplateSyntaxError as error:
        raise ValueError(f"{error.message} (line {error.lineno} of the template)") from error
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
