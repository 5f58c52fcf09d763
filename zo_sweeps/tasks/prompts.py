"""A row of data as text: the prompt and its candidate answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jinja2 import TemplateError

from zo_sweeps.core.errors import UserError
from zo_sweeps.tasks import templates
from zo_sweeps.tasks.spec import MASK, TaskSpec


@dataclass(frozen=True)
class Prompt:
    """The text of one example: candidate i reads `text + options[i]`, and `options[gold]` is right.

    `golds` are the indices of all right options (ReCoRD has several; `gold` is the one trained on). `references` holds
    every accepted answer of a generation task and is empty otherwise; `value` is the right number of a regression. For
    a masked objective the text contains MASK once, and candidate i reads `text` with `options[i]` in its place.
    """

    text: str
    options: tuple[str, ...]
    gold: int
    references: tuple[str, ...]
    golds: tuple[int, ...] = ()
    value: float | None = None


def render(spec: TaskSpec, row: Mapping[str, Any]) -> Prompt:
    """Render the prompt of `row` in the wording of `spec`. Raises UserError if the row does not fit the task."""
    problem = spec.problem(row)
    if problem:
        raise UserError(problem, where=f"a row of task {spec.name!r}")
    try:
        masked = spec.objective.masked
        text = templates.fill(spec.template, {**row, "mask": MASK} if masked else row)
        options = tuple(templates.fill(option, item) for item in _items(spec, row) for option in spec.options)
    except (TemplateError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError) as error:
        where = f"task {spec.name!r}, dialect {spec.dialect!r}"
        raise UserError(f"the template does not fit a row ({error})", where=where) from error
    if masked and text.count(MASK) != 1:
        raise UserError(
            f"the text contains {MASK} {text.count(MASK)} times, not once", where=f"a row of task {spec.name!r}"
        )
    return Prompt(text, options, spec.gold(row), spec.references(row), spec.golds(row), spec.value(row))


def _items(spec: TaskSpec, row: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the rows that fill the option templates: one, or with `each` one per item."""
    return [{**row, "item": item} for item in row[spec.each]] if spec.each else [row]
