"""What the rows drawn for a trial say about its scores: rows in two splits, one label, the score of a guess."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from zo_sweeps.methods.metric import Of
from zo_sweeps.tasks.spec import TaskSpec

PAIRS = (("test", "train"), ("test", "dev"), ("dev", "train"))


class Mark(NamedTuple):
    """A row in short: digests of its inputs and of its label, and the index of its right option."""

    inputs: bytes
    label: bytes
    gold: int


def mark(spec: TaskSpec, row: Mapping[str, Any]) -> Mark:
    """Return the mark of a row without a `problem`. Rows are equal if the columns that the task reads are."""
    label = spec.label_field.partition(".")[0]
    inputs = _digest([row[column] for column in spec.columns if column != label])
    return Mark(inputs, _digest(row[label]), spec.gold(row))


def facts(spec: TaskSpec, splits: Mapping[str, Sequence[Mark]]) -> dict[str, float]:
    """Return the facts of the rows drawn for a trial, under the names of `Outcome.metrics`.

    Args:
        splits: the marks of "train", "dev" and "test".

    `X_in_Y` counts the rows of X with the inputs of a row of Y, `X_in_Y_labelled` those with its label too; both are
    absent if there are none. `X_labels` and `X_distinct` are there if they are 1: one label, one row over and over.
    `test_rows` and `dev_rows` are their sizes.
    `chance` and `majority` are accuracies on test, of a uniform guess and of always answering with the most frequent
    label; only where every row has the same options.
    """
    found: dict[str, float] = {}
    for one, other in PAIRS:
        inputs = {row.inputs for row in splits[other]}
        if shared := [row for row in splits[one] if row.inputs in inputs]:
            labelled = {(row.inputs, row.label) for row in splits[other]}
            found[f"{one}_in_{other}"] = len(shared)
            found[f"{one}_in_{other}_labelled"] = sum((row.inputs, row.label) in labelled for row in shared)
    found |= {f"{name}_rows": len(splits[name]) for name in ("dev", "test")}
    for name, rows in splits.items():
        if len(rows) > 1:
            labels, distinct = len({row.label for row in rows}), len({row[:2] for row in rows})
            found |= {fact: 1 for fact, n in {f"{name}_labels": labels, f"{name}_distinct": distinct}.items() if n == 1}
    if spec.kind.predicts is Of.LABELS and not spec.kind.own_options:
        most = max(Counter(row.gold for row in splits["test"]).values())
        found |= {"chance": 1 / len(spec.options), "majority": most / len(splits["test"])}
    return {name: float(value) for name, value in found.items()}


def _digest(value: Any) -> bytes:
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, default=str)
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=12).digest()
