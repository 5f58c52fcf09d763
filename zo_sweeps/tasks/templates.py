"""The template language of the task YAMLs: sandboxed Jinja; unknown names are errors, and text stays as written.

Filters besides Jinja's own: `upper_first` (first letter to upper case, the rest unchanged) and `lower_first_word`
(first word to lower case unless it is "I").
"""

from __future__ import annotations

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
