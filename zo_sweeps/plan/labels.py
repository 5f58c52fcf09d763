"""The printed labels and titles of a plan, made from the configurations of its trials.

A text may name options in braces: "LOZO (q={estimator.q})" is filled in with what runs. A row or column with an option
that its grid promises there and that runs otherwise has "→ key=value" behind its label, whatever changed it: an
override, an edit of the grid, a scale.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from zo_sweeps.config.schema import AXES, OF_DEVICE, TRIAL_GROUPS, TRIAL_KEYS, WHOLE, GridConfig
from zo_sweeps.core.errors import UserError, require_known
from zo_sweeps.methods.definition import write
from zo_sweeps.methods.trial_config import TrialConfig
from zo_sweeps.plan.grid_file import flatten
from zo_sweeps.plan.overrides import short, text_of
from zo_sweeps.plan.resolve import Ran, Runs

_NONE = object()  # the value of an option that a member does not have
_OPTION = re.compile(r"\{([a-z_0-9.]+)\}")
_UNCOMPARED = ("display", "source", "fingerprint", "dialects")

Renamed = Mapping[str, Sequence[str]]  # row or column -> "key=value" of what it runs otherwise


@dataclass(frozen=True)
class Labels:
    """The printed texts of a plan.

    Args:
        now: its cells. written: those of the grid as written.
        rows, columns: the rows and columns that run something else than they promise.
    """

    grid: GridConfig
    now: Runs
    written: Runs
    rows: Renamed
    columns: Renamed

    def row(self, block: str) -> str:
        """Return the printed name of a block. Raises UserError if its columns disagree on an option that it names."""
        return self._arrow(self._filled(self.grid.label(block), block), self.rows.get(block, ()))

    def column(self, column: str) -> str:
        """Return the printed name of a column: its label, or the display name of its task."""
        if column in self.grid.columns:
            label = _fill(self.grid.column_label(column), self._configs(column=column), ",".join)
        else:
            label = next((one.task.display for one in self._configs(column=column)), "") or column
        return self._arrow(label, self.columns.get(column, ()))

    def title(self, text: str, blocks: Collection[str] = ()) -> str:
        """Return a title of what the blocks run, of all blocks if none is named."""
        return _fill(text, [one for name in blocks or self.grid.blocks for one in self._configs(name)], _enumerated)

    def applied(self) -> GridConfig:
        """Return the grid with its printed texts."""
        grid = self.grid
        blocks = {name: replace(block, label=self.row(name)) for name, block in grid.blocks.items()}
        tables = {
            name: replace(table, title=self.title(table.title, table.rows), rows=self._named(table.rows))
            for name, table in grid.tables.items()
        }
        figures = {
            name: replace(figure, title=self.title(figure.title, figure.series), series=self._named(figure.series))
            for name, figure in grid.figures.items()
        }
        return replace(grid, title=self.title(grid.title), blocks=blocks, tables=tables, figures=figures)

    def _named(self, rows: Mapping[str, str]) -> dict[str, str]:
        """Return the names that a table or figure has for its rows; "" is the block's label."""
        return {block: self._arrow(name, self.rows.get(block, ())) if name else "" for block, name in rows.items()}

    @staticmethod
    def _arrow(label: str, changed: Sequence[str]) -> str:
        return " → ".join([label, *([" ".join(changed)] if changed else [])])

    def _configs(self, block: str = "", column: str = "") -> list[TrialConfig]:
        for runs in (self.now, self.written):  # a row that is left out is named as it is written
            cells = (ran for key, ran in runs.items() if block in ("", key[0]) and column in ("", key[1]))
            if found := [config for ran in cells for config in ran.configs]:
                return found
        return []

    def _filled(self, label: str, block: str) -> str:
        if not _OPTION.search(label):
            return label
        columns = [column for name, column in self.now if name == block]
        texts = {_fill(label, self._configs(block, column), ",".join): column for column in columns}
        if len(texts) > 1:
            listed = "; ".join(f"{text!r} at {column}" for text, column in texts.items())
            what = f"the label of a row names one value, and its columns have several: {listed}"
            raise UserError(what, where=f"grid {self.grid.name}, block {block}", fix="label its columns instead")
        return next(iter(texts), None) or _fill(label, self._configs(block), ",".join)


def labels(grid: GridConfig, now: Runs, written: Runs, skipped: Collection[str]) -> Labels:
    """Return the printed texts of a plan.

    Args:
        grid: with templates as texts. now: the cells that run. written: the cells of the grid as written.
        skipped: how the keys begin that are said elsewhere.
    """
    rows: dict[str, dict[str, None]] = {}
    columns: dict[str, dict[str, None]] = {}
    for at, ran in now.items():
        for part, found in enumerate((rows, columns)):
            if (then := _reference(written, at, part)) is None:
                continue
            keys = {**_keys(then, part, grid), **_keys(ran, part, grid)}
            # A column's value replaces that of its rows, where the grid as written has it.
            of_column = {*ran.promise.of_column} & {*then.promise.of_column} - {*ran.promise.of_both}
            kept = [key for key in keys if found is columns or key not in of_column]
            for key in _changed(kept, ran.configs, then.configs, skipped):
                found.setdefault(at[part], {})[key] = None

    def texts(found: Mapping[str, Iterable[str]], part: int) -> dict[str, list[str]]:
        """Return "key=value" of each changed key, with its values in every cell of the row or column."""
        made = {}
        for name, keys in found.items():
            configs = [config for at, ran in now.items() if at[part] == name for config in ran.configs]
            made[name] = [text_of(key, [*_values(configs, key).values()]) for key in keys]
        return made

    return Labels(grid, now, written, texts(rows, 0), texts(columns, 1))


def _reference(written: Runs, at: tuple[str, str], part: int) -> Ran | None:
    """Return the cell as written; of a further column that of its row (part 0), of a further row that of its column."""
    if at in written:
        return written[at]
    others = [ran for key, ran in written.items() if key[part] == at[part]]
    if not others:
        return None
    return Ran(replace(others[0].promise, of_both={}), [config for ran in others for config in ran.configs])


def _keys(ran: Ran, part: int, grid: GridConfig) -> dict[str, None]:
    """Return the keys that the row (part 0) or column (1) of a cell promises."""
    if part and not grid.columns:
        return {"task": None}
    return dict.fromkeys(ran.promise.of_column_alone if part else ran.promise.of_row)


def _changed(
    keys: Iterable[str], now: Sequence[TrialConfig], then: Sequence[TrialConfig], skipped: Collection[str]
) -> Iterator[str]:
    """Yield the keys, and the keys of what they choose, that have another value than in `then`."""
    found: set[str] = set()

    for key in keys:
        axis = key.partition(".")[0]
        for one in (key, *_chosen_by(key, now, then)):
            values, before = _values(now, one), _values(then, one)
            if one in found or one.startswith(tuple(skipped)) or (values and values.keys() <= before.keys()):
                continue
            if one != key and not before:
                continue  # an option that nothing chose before is no promise
            if values:
                found.add(one)
                yield one
                if one == key:
                    break  # what else it chooses goes without saying
            elif before and not {axis, "method"} & found and any(config.uses(one) for config in now):
                found.add(axis)  # the member that is chosen now has no such option
                yield axis


def _chosen_by(key: str, now: Sequence[TrialConfig], then: Sequence[TrialConfig]) -> Iterator[str]:
    """Yield the keys that a choice stands for as well: another path is another model."""
    if key == "method":
        yield from AXES
    elif key == "device":
        yield from OF_DEVICE
    elif key in WHOLE:
        one, other = getattr(now[0], key), {id(getattr(config, key)) for config in then}
        if id(one) not in other:
            leaves = flatten(write(one))
            yield from (f"{key}.{name}" for name in leaves if name.partition(".")[0] not in _UNCOMPARED)


def _values(configs: Sequence[TrialConfig], key: str) -> dict[str, Any]:
    """Return the distinct values of a key in the trials that use it and whose members have it."""
    values = (_value(config, key) for config in configs if config.uses(key))
    return {str(value): value for value in values if value is not _NONE}


def _value(config: TrialConfig, key: str) -> Any:
    """Return the value of a key, of a group the name of what is chosen."""
    if key in TRIAL_GROUPS:
        return getattr(config, key).name
    if key == "split.seed" and config.split.seed == config.seed:
        return None
    if key == "device.form" and not config.device.runs_programs:
        return _NONE  # a form is of programs
    group, _, rest = key.partition(".")
    value: Any = vars(config.method.kind) if group == "method" and rest != "name" else getattr(config, group, _NONE)
    for part in rest.split("."):
        value = value.get(part, _NONE) if isinstance(value, Mapping) else getattr(value, part, _NONE)
    return value if value is _NONE else write(value)


def _fill(text: str, configs: Sequence[TrialConfig], several: Callable[[Sequence[str]], str]) -> str:
    """Return a text with its options in braces filled in, `several` values each as one text."""

    def values(option: re.Match[str]) -> str:
        key = option[1]
        require_known("part of a trial", [key.partition(".")[0]], TRIAL_KEYS, where=f"the text {text!r}")
        shown = [short(value) for value in _values(configs, key).values()]
        if not shown and not any(config.uses(key) for config in configs):
            return "none"
        if not shown:
            raise UserError(f"no trial has {key!r}", where=f"the text {text!r}")
        return several(shown)

    return _OPTION.sub(values, text)


def _enumerated(values: Sequence[str]) -> str:
    return f"{', '.join(values[:-1])} and {values[-1]}" if len(values) > 1 else values[0]
