"""A row of data as text: the prompt and its candidate answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jinja2 import TemplateError

from zo_sweeps.errors import UserError
from zo_sweeps.tasks import templates
from zo_sweeps.tasks.spec import TaskSpec


@dataclass(frozen=True)
class Prompt:
    """The text of one example: candidate i reads `text + options[i]`, and `options[gold]` is right.

    `references` holds every accepted answer of a generation task and is empty otherwise.
    """

    text: str
    options: tuple[str, ...]
    gold: int
    references: tuple[str, ...]


def render(spec: TaskSpec, row: Mapping[str, Any]) -> Prompt:
    """The prompt of `row` in the words of `spec`. Raises UserError when the row does not fit the task."""
    problem = spec.problem(row)
    if problem:
        raise UserError(problem, where=f"a row of task {spec.name!r}")
    try:
        text = templates.fill(spec.template, row)
        options = tuple(templates.fill(option, row) for option in spec.options)
    except (TemplateError, TypeError, ValueError, AttributeError) as error:
        where = f"task {spec.name!r}, dialect {spec.dialect!r}"
        raise UserError(f"the template does not fit a row ({error})", where=where) from error
    return Prompt(text, options, spec.gold(row), spec.references(row))
