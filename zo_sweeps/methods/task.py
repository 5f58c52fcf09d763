"""A task as its YAML describes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from zo_sweeps.methods.definition import option, write


@dataclass(frozen=True)
class Task:
    name: str = option("", "name in conf/task", identity=False)
    display: str = option("", "as the papers print it", identity=False)
    kind: str = option("classification", "classification, multiple_choice, generation")
    metric: str = option("accuracy", "what is reported")
    fields: tuple[str, ...] = option((), "columns that a row must have")
    label_field: str = option("label", "column with the gold")
    dialects: Mapping[str, Any] = option(dict, "wordings by name", identity=False)
    hub: Mapping[str, Any] | None = option(None, "where it lies on the hub", identity=False)
    local: str | None = option(None, "folder under data.dir", identity=False)
    source: str | None = option(None, "packaged, or not given", identity=False)
    labels: tuple[Any, ...] = option((), "the value of label_field for each option")
    dev_size: int | None = option(None, "bound on dev rows")
    stop: str = option("", "where a generated answer ends")
    max_new_tokens: int = option(0, "of a generated answer")
    fingerprint: str = option("", "of its rows; the planner fills it in")

    def in_dialect(self, dialect: str) -> Any:
        from zo_sweeps.methods.definition import _identity_fields

        fields = {**_identity_fields(self), "dialect": write(self.dialects.get(dialect))}
        if not self.fingerprint:
            fields["data"] = self.name
        elif self.fingerprint.startswith("hf:"):  # of a whole data set: which parts of it are used is in the task
            fields["data"] = {k: v for k, v in (self.hub or {}).items() if k not in ("path", "name")}
        return fields
