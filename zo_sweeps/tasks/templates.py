"""The template language of the task YAMLs: sandboxed Jinja; unknown names are errors, and text stays as written.

Filters besides Jinja's own: `upper_first` (first letter to upper case, the rest unchanged) and `lower_first_word`
(first word to lower case unless it is "I").
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from jinja2 import StrictUndefined, Template, TemplateSyntaxError, meta, nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment


def _upper_first(text: str) -> str:
    return text[:1].upper() + text[1:]


def _lower_first_word(text: str) -> str:
    first, space, rest = text.partition(" ")
    return text if first == "I" else first.lower() + space + rest


# Task files may come from anyone, hence the sandbox. Jinja drops a final newline unless told otherwise, and most
# prompts end in one.
_ENV = ImmutableSandboxedEnvironment(undefined=StrictUndefined, keep_trailing_newline=True, autoescape=False)
_ENV.filters.update(upper_first=_upper_first, lower_first_word=_lower_first_word)


@lru_cache(maxsize=1024)
def _compiled(source: str) -> Template:
    return _ENV.from_string(source)


_NEVER_LONGER = {"trim", "lower", "upper", "capitalize", "title", "first", "last", "upper_first", "lower_first_word"}
_NEVER_LONGER |= {"strip", "lstrip", "rstrip", "removeprefix", "removesuffix", "partition", "rpartition", "split"}
_WRITES_ONCE: tuple[type[nodes.Node], ...] = (
    *(
        nodes.Template,
        nodes.Output,
        nodes.TemplateData,
        nodes.Name,
        nodes.Const,
        nodes.Concat,
        nodes.CondExpr,
        nodes.If,
    ),
    *(nodes.Getattr, nodes.Getitem, nodes.Slice, nodes.Neg, nodes.Dict, nodes.Pair, nodes.List),
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
    """Fill the template `source` with the fields of `row`. Raises jinja2.TemplateError if a field is missing."""
    return _compiled(source).render(row)


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
