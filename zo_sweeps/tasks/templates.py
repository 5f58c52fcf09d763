"""The template language of the task YAMLs: Jinja, sandboxed, with an unknown name an error and no text altered.

Filters beside Jinja's own: `upper_first` (first letter to upper case, the rest as it is) and `lower_first_word`
(first word to lower case unless it is "I").
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from jinja2 import StrictUndefined, Template, TemplateSyntaxError, meta
from jinja2.sandbox import ImmutableSandboxedEnvironment


def _upper_first(text: str) -> str:
    return text[:1].upper() + text[1:]


def _lower_first_word(text: str) -> str:
    first, space, rest = text.partition(" ")
    return text if first == "I" else first.lower() + space + rest


# Task files may come from anybody, hence the sandbox. Jinja drops a final newline unless told otherwise, and most
# prompts end in one.
_ENV = ImmutableSandboxedEnvironment(undefined=StrictUndefined, keep_trailing_newline=True, autoescape=False)
_ENV.filters.update(upper_first=_upper_first, lower_first_word=_lower_first_word)


@lru_cache(maxsize=1024)
def _compiled(source: str) -> Template:
    return _ENV.from_string(source)


def fill(source: str, row: Mapping[str, Any]) -> str:
    """`source` with the fields of `row` in it. Raises jinja2.TemplateError when a field is absent."""
    return _compiled(source).render(row)


def names_in(source: str) -> set[str]:
    """The fields that `source` uses. Raises ValueError when it is not a template."""
    try:
        _compiled(source)  # unknown filters are only seen by the compiler
        return meta.find_undeclared_variables(_ENV.parse(source)) - set(_ENV.globals)
    except TemplateSyntaxError as error:
        raise ValueError(f"{error.message} (line {error.lineno} of the template)") from error
