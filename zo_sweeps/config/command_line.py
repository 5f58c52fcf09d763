"""The command line's overrides: what they force on every trial of a grid, what they set of the run, paths as typed."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

from zo_sweeps.config.schema import AXES, EITHER, TRIAL_GROUPS, TRIAL_KEYS
from zo_sweeps.core.errors import UserError

CHOOSES = {f"{group}.name": group for group in TRIAL_GROUPS}  # estimator.name=X chooses X, as estimator=X does
OPEN = (*AXES, "precision", "task", "method")  # parts of a trial that Hydra takes as they are
# Taken as typed: Hydra's grammar stops at "~" and "(".
PATHS = ("model.path", "data.dir", "device.log", "device.client", "state_dir", "tracking.uri")
HOOKS = ("on.done", "on.failed", "on.first_result")  # so are commands and URLs, whatever commas they have
# Keys that give a grid's cells the trials that its files do, the seed aside.
SAME_TRIALS = ("seed", "grid.seeds", "data.dir", "executor", "cluster", "tracking", "on", "state_dir")
EDITS = ("grid.fixed", "grid.axes", "grid.exclude", "grid.columns", "grid.blocks")  # what a grid's trials are made of
PLACE = "the command line"  # as the origin of a value


# Overrides of every trial: group -> options (task=sst2), key -> values (update.lr=1e-3); several values make an axis.
# Each replaces a grid's fixed value or its axis over the same key.
Forced = Mapping[str, tuple[Any, ...]]


@dataclass(frozen=True)
class CommandLine:
    """The overrides of a command.

    Args:
        texts: as given, in Hydra's grammar.
        forced: what they force on every trial.
        of_run: those of the run: grid, executor, state_dir, ...
    """

    texts: tuple[str, ...]
    forced: Forced
    of_run: tuple[str, ...]

    @classmethod
    def read(cls, overrides: Sequence[str]) -> CommandLine:
        """Sort a command's overrides. Raises UserError for one that cannot be read."""
        texts = tuple(map(_with_path, overrides))
        return cls(texts, *_sorted(texts))

    @property
    def grid(self) -> str:
        """The name of the grid; "" if none is named."""
        return next((text.split("=", 1)[1] for text in self.texts if text.startswith("+grid=")), "")

    @property
    def changes_trials(self) -> bool:
        """Whether it may give the grid's cells other trials than the files do, the seed aside."""
        keys = [_key(text) for text in self.texts]
        return any(key not in SAME_TRIALS and key.partition(".")[0] not in SAME_TRIALS for key in keys if key != "grid")

    @property
    def left_out(self) -> list[str]:
        """The blocks and columns that it removes: `~grid.blocks.NAME`, `~grid.columns.NAME`."""
        given = (text for text in self.texts if text.startswith(("~grid.blocks.", "~grid.columns.")))
        return [text.partition("=")[0].split(".", 2)[2] for text in given]

    @property
    def edits(self) -> list[str]:
        """The overrides that change what the grid's trials are made of, without those that leave something out."""
        return [text.lstrip("+") for text in self.texts if text.lstrip("+").startswith(EDITS)]

    def sets(self, key: str) -> bool:
        """Return whether it sets this very key."""
        return any(_key(text) == key for text in self.texts)

    def names(self, key: str) -> bool:
        """Return whether it sets a key, or one below it, or chooses an option (group/name)."""
        group, _, name = key.rpartition("/")
        if name in self.forced.get(group, ()):
            return True
        return any(text.lstrip("+~").startswith((key, key.replace("/", "="))) for text in self.texts)

    @property
    def one_of_each(self) -> list[str]:
        """The forced overrides, reduced to the first value of each axis, so that Hydra checks them."""
        shown = []
        for text in self.texts:
            key = text.split("=", 1)[0].lstrip("+")
            given = self.forced.get(key, ())
            if given and key in TRIAL_GROUPS:
                shown.append(f"{key}={given[0]}")
            elif given and key.split(".")[0] not in OPEN:  # options depend on the member that a block chooses
                shown.append(text if len(given) == 1 else f"{key}={_as_override(given[0])}")
        return shown


def _sorted(overrides: Sequence[str]) -> tuple[Forced, tuple[str, ...]]:
    """Split the overrides into those forced on trials and those of the run (grid, executor, state_dir, ...)."""
    parser = OverridesParser.create()
    choices: dict[str, tuple[Any, ...]] = {}
    values: dict[str, tuple[Any, ...]] = {}
    run_level: list[str] = []
    for text in overrides:
        try:
            override = parser.parse_override(text)
        except HydraException as error:
            reason = str(error).splitlines()[0]
            raise UserError(f"cannot read the override {text!r}", fix=_how_to_write(text, reason)) from None
        key = override.key_or_group
        if not key:
            raise UserError(f"cannot read the override {text!r}", fix="write key=value")
        if key.startswith("hydra."):
            raise UserError(f"{key} is Hydra's own", where=repr(text), fix="name further folders with --config-dir")
        if override.is_delete() and not re.match(r"grid\.\w+\.", key):
            fix = "only parts of the grid can (~grid.tables.NAME); grid.tables={} leaves out all"
            raise UserError(f"{key} cannot be left out", where=repr(text), fix=fix)
        trial_level = key.split(".")[0].split("/")[0] in TRIAL_KEYS
        if key != "grid" and not re.match(r"grid\.\w+\.", key) and not trial_level:
            text = text.lstrip("+")  # a + would add a key that nothing reads
        if key.startswith("executor."):
            text = f"++{text}"  # the options depend on the executor: its definition checks them
        if override.is_sweep_override():
            if not trial_level:
                raise UserError(f"several values for {key}", where=repr(text), fix="only a trial's keys make an axis")
            try:
                swept = [*override.sweep_iterator()]
            except HydraException:  # an interval, a pattern
                raise UserError(f"{text!r} lists no values", fix=f"write {key}=A,B") from None
            given = tuple(v.value() if hasattr(v, "value") and callable(v.value) else v for v in swept)
        else:
            given = (override.value(),)
        if key in TRIAL_GROUPS or key in CHOOSES:
            key = CHOOSES.get(key, key)
            if not all(isinstance(v, str) for v in given):
                raise UserError(f"{text!r} does not name a {key}", fix=f"write {key}=NAME, or {key}=NAME,NAME")
            choices[key] = tuple(map(str, given))
        elif trial_level:
            values[key] = tuple(_plain(v) for v in given)
        else:
            run_level.append(text)
    for key, other in EITHER.items():
        if key in values and any(value is not None for value in values.get(other, ())):
            raise both(key, other, PLACE)
    if "seed" in values and any(_key(text) == "grid.seeds" for text in run_level):
        raise both("seed", "grid.seeds", PLACE)
    return {**choices, **values}, tuple(run_level)


def both(key: str, other: str, where: str) -> UserError:
    """Return the error for the two ways to set one amount, side by side."""
    return UserError(f"{key} and {other} are both set", where=where, fix="omit one of them")


def _key(text: str) -> str:
    """Return the key of an override, without Hydra's prefixes."""
    return text.lstrip("+~").split("=")[0]


def _plain(value: Any) -> Any:
    """Convert a value parsed by Hydra (a quoted string, ...) to plain Python."""
    if hasattr(value, "text") and hasattr(value, "quote"):
        return value.text
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {str(_plain(key)): _plain(item) for key, item in value.items()}
    return value


def _as_override(value: Any) -> str:
    if isinstance(value, str):
        return quoted(value)
    return "null" if value is None else str(value)


def _with_path(text: str) -> str:
    """Return an override whose value is a path as Hydra reads it: in its grammar most punctuation has a meaning.

    Values that the user quoted are Hydra's, and so are several (model.path=A,B) unless all of it is one path.
    """
    key, _, value = text.partition("=")
    if key.lstrip("+") not in (*PATHS, *HOOKS) or value in ("", "null") or value.startswith(("'", '"', "${")):
        return text
    if key not in ("state_dir", *HOOKS) and not os.path.exists(os.path.expanduser(value)) and _several(text):
        return text
    if key.lstrip("+") in HOOKS:
        value = value.replace("${", "\\${")  # a variable of the hook's own shell, and no interpolation
    return f"{key}={quoted(value)}"


def _several(text: str) -> bool:
    """Return whether an override can be read as several values."""
    try:
        return bool(OverridesParser.create().parse_override(text).is_sweep_override())
    except HydraException:
        return False


def quoted(value: str) -> str:
    """Return a string quoted in Hydra's grammar, where a backslash counts before a quote only."""
    return "'" + re.sub(r"(\\*)('|$)", lambda found: found[1] * 2 + ("\\'" if found[2] else ""), value) + "'"


def _how_to_write(text: str, reason: str) -> str:
    key, equals, value = text.partition("=")
    if not equals:
        return f"write key=value ({reason})"
    return f"quote text twice, once for the shell: {shlex.quote(f'{key}={quoted(value)}')} ({reason})"
