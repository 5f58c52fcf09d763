"""Hydra composition: configuration files and the command line -> a typed run and the trees of its trials.

Hydra only composes (groups, search path, override grammar); it schedules nothing. The overrides that the command line
forces on every trial of a grid are read in `command_line`.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from zo_sweeps.config.command_line import OPEN, PLACE, CommandLine, Forced, quoted
from zo_sweeps.config.parsed_files import closed, light, loaded, use
from zo_sweeps.config.schema import (
    AXES,
    METHOD,
    OWN_TREE,
    TRIAL_GROUPS,
    TRIAL_KEYS,
    BlockConfig,
    Config,
    GridTable,
    OnConfig,
    RunConfig,
    faults,
    unknown_key,
)
from zo_sweeps.core.errors import UserError, unknown
from zo_sweeps.core.files import conf_dir, folder_at, reading
from zo_sweeps.methods import registry
from zo_sweeps.methods.definition import Locate, options, read
from zo_sweeps.methods.executor import Budget, Executor
from zo_sweeps.methods.parts import NamedMethod
from zo_sweeps.methods.precision import FASTEST, OWN

MEMBER_GROUPS = (*AXES, "precision", "executor")  # groups whose options are the members of an axis
DEFAULT, WITHOUT = "ray", "executor=inline"  # the executor of conf/config.yaml, and the choice where no package has it
_NOTHING = object()


_registered: list[Path] = []  # the folders whose members Hydra's store holds: one for the whole process
Choices = tuple[tuple[str, str], ...]


@dataclass
class Compositions:
    """What the files of some folders compose to: a composition takes a tenth of a second, and a grid needs several."""

    composed: dict[Choices, dict[str, Any]] = field(default_factory=dict)  # of a method and its axes
    chosen: dict[Choices, dict[str, str]] = field(default_factory=dict)  # the same -> the option of every group
    alone: dict[tuple[str, str], Any] = field(default_factory=dict)  # (group of OWN_TREE, option) -> its part


PACKAGED = Compositions()  # of the packaged files alone: shared by all composers of the process


@cache
def _packaged_grid(name: str) -> Composer:
    """Return the composer of a packaged grid as it is written: shared by all composers of the process."""
    return Composer([f"+grid={name}"])


@cache
def _schema() -> DictConfig:
    """Return the schema's values, to be copied: a fifth of the time that making them takes."""
    values: DictConfig = OmegaConf.structured(Config)
    return values


class Composer:
    """Configurations composed from the packaged files, the user's folders and the command line.

    Args:
        overrides: the command line's, in Hydra's grammar.
        config_dirs: folders with further groups (`grid/mine.yaml`), searched after the packaged ones.

    Attributes:
        run: the run's configuration, its grid included.
        trial: one trial's configuration without a grid, as the defaults and the command line have it. Not typed, as
            the options depend on the members.
        command_line: the overrides, read.
        left_out: the grid's blocks and columns that the command line removes.
        folders: those that are searched for configuration files, in order.
        notes: what to say of the run before its trials begin.

    Raises UserError for anything unknown, misplaced or of the wrong type.
    """

    def __init__(
        self,
        overrides: Sequence[str] = (),
        config_dirs: Sequence[str] = (),
        _compositions: Compositions | None = None,
    ) -> None:
        self._config_dirs = config_dirs
        self._written: Composer | None = None
        self.command_line = CommandLine.read(overrides)
        if absent := [folder for folder in config_dirs if not Path(folder).is_dir()]:
            raise UserError(f"no such folder: {', '.join(absent)}", where="--config-dir")
        self.folders = [conf_dir(), *(Path(folder).resolve() for folder in config_dirs)]  # searched in this order
        with reading():
            further = {path.name for folder in self.folders[1:] for path in folder.iterdir()}
        registry.use_folders(self.folders[1:])
        self._has_default = DEFAULT in registry.names("executor")
        falls_back = not (self._has_default or self.command_line.sets("executor"))
        why = registry.absent("executor", DEFAULT) if falls_back else None
        self.notes = (f"trials run one after the other: {why}",) if why else ()
        self._register()
        if _compositions is None:
            _compositions = PACKAGED if further <= {"grid"} else Compositions()
        self._compositions = _compositions
        with self._hydra():
            composed = self._compose([*self.command_line.of_run, *self.command_line.one_of_each])
        self.trial: Mapping[str, Any] = {key: value for key, value in _tree(composed).items() if key in TRIAL_KEYS}
        self.run = self._run_config(composed)
        if not self.run.state_dir.strip():
            raise UserError("state_dir is empty", fix="write state_dir=FOLDER, or leave it out for zo_runs")
        folder_at(self.run.state_dir, "state_dir")
        if "@" in (uri := self.run.tracking.uri or "").partition("//")[2].partition("/")[0]:
            what = "tracking.uri names a user or a password, which commands and records would keep"
            fix = "write http://HOST:PORT, and set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"
            raise UserError(what, fix=fix)
        if uri and not uri.startswith(("http://", "https://")):
            what = f"tracking.uri={uri!r} is not the address of a server"
            raise UserError(what, fix="write tracking.uri=http://HOST:PORT, or leave it out for one of this sweep")
        self._checked: set[tuple[str, str]] = set()
        for path, values in self.forced.items():
            for value in values if path not in TRIAL_GROUPS and path.split(".")[0] not in OPEN else ():
                self.check_value(path, value, PLACE)

    @property
    def forced(self) -> Forced:
        """The command line's overrides of every trial."""
        return self.command_line.forced

    def as_written(self) -> Composer:
        """Return a composer of the same grid and folders without any other override: composed once."""
        if len(self.folders) == 1:
            return _packaged_grid(self.command_line.grid)
        if self._written is None:
            self._written = Composer([f"+grid={self.command_line.grid}"], self._config_dirs, self._compositions)
        return self._written

    def _register(self) -> None:
        """Register the schema with Hydra, and each member's options and defaults unless it has a YAML file."""
        global _registered
        if self.folders == _registered == [conf_dir()]:  # the packaged members do not change
            return
        _registered, store = [], ConfigStore.instance()  # nothing, should a member fail to load
        store.store(name="base_config", node=Config, provider="zo_sweeps")
        for axis in MEMBER_GROUPS:
            store.repo.pop(axis, None)  # Hydra's store outlives a composer; the next one may have other folders
            for name, member in registry.members(axis).items():
                if not self._files(axis, name):
                    store.store(group=axis, name=name, node=member.defaults(), provider="zo_sweeps")
        for name in (OWN, FASTEST):
            store.store(group="precision", name=name, node={"name": name}, provider="zo_sweeps")
        _registered = self.folders

    @contextmanager
    def _hydra(self) -> Iterator[None]:
        use()
        GlobalHydra.instance().clear()
        with initialize_config_dir(config_dir=str(conf_dir()), version_base="1.3"), light():
            yield

    def _run_config(self, composed: DictConfig) -> RunConfig:
        """Return the run's part of a composition, typed. Raises UserError for an unknown or misconfigured executor."""
        where = self.locate({"executor": self._chosen["executor"]})
        executor = Executor.read(OmegaConf.to_container(composed.executor), "executor", where)
        typed: dict[str, Any] = {
            key: OmegaConf.to_object(composed[key]) for key in ("scale", "cluster", "tracking", "budget", "grid")
        }
        hooks: Any = OmegaConf.to_container(composed.on)  # not resolved once more: ${...} is of the hook's own shell
        typed["on"] = OnConfig(**hooks)
        origin = self.locate(self._chosen)
        for path, kind in (fault for key, part in typed.items() for fault in faults(part, key)):
            if not kind:
                raise unknown_key(path, origin(path))
            raise UserError(f"{path} has the wrong type", where=origin(path), fix=f"it must be {kind}")
        grid = typed["grid"]
        grid.name = grid.name or self.command_line.grid.rpartition("/")[2]
        if both := {*grid.entrants} & {*grid.blocks}:
            raise UserError(f"{' and '.join(sorted(both))} of grid.entrants is a block", where=origin("grid.entrants"))
        for block in grid.only:
            if block not in (known := [*grid.blocks, *grid.entrants]):
                raise unknown("block", block, known, where=origin("grid.only"))
        absent = [block for block in grid.blocks if grid.only and block not in grid.only]
        self.left_out = [*self.command_line.left_out, *absent]
        grid.blocks = {block: config for block, config in grid.blocks.items() if block not in absent}
        grid.blocks |= {name: BlockConfig(fixed={"method": name}, axes=axes) for name, axes in grid.entrants.items()}
        if grid.blocks and not (grid.tables or grid.figures or self.command_line.names("grid.tables")):
            grid.tables = {"accuracy": GridTable(layout="accuracy")}
        typed["budget"] = read(Budget, asdict(typed["budget"]), "budget", origin)
        return RunConfig(executor=executor, state_dir=composed.state_dir, **typed)

    def _compose(self, overrides: Sequence[str]) -> DictConfig:
        """Return Hydra's composition with interpolations resolved; `_chosen` is then the option of every group."""
        further = ",".join(quoted(f"file://{folder}") for folder in self.folders[1:])
        given = [f"hydra.searchpath=[{further}]", *overrides]
        if not (self._has_default or any(text.startswith("executor=") for text in overrides)):
            given.append(WITHOUT)
        try:
            with closed(), reading():
                config = compose("config", overrides=given, return_hydra_config=True)
                self._chosen = dict(config.hydra.runtime.choices)
                with open_dict(config):
                    del config["hydra"]
                for key in [text[:-3].lstrip("+") for text in overrides if text.endswith("={}")]:
                    OmegaConf.update(config, key, {}, merge=False)  # Hydra merges, which would change nothing
                _resolve(config)
        except (HydraException, OmegaConfBaseException, ValueError) as error:  # ValueError: task=3
            chosen = dict(text.lstrip("+").split("=", 1) for text in overrides if "=" in text)
            where = lambda key: PLACE if self.command_line.names(key) else self._file_of(key, chosen)
            raise explained(error, overrides, where) from None
        return config

    def trial_part(self, choices: Mapping[str, str]) -> dict[str, Any]:
        """Return the trial's part of the composition of these group options; other groups keep their defaults.

        Cached by sub-tree: a grid over m methods and t tasks costs at most m + t compositions.
        """
        result = dict(self._cached(_of_method(choices)))
        alone = self._compositions.alone
        own = [(group, choices[group]) for group in OWN_TREE if group in choices]
        if absent := [choice for choice in own if choice not in alone]:
            with self._hydra():
                composed = _tree(self._compose([f"{group}={option}" for group, option in absent]))
            alone.update({choice: composed[choice[0]] for choice in absent})
        return {**result, **{choice[0]: alone[choice] for choice in own}}

    def _cached(self, choices: Choices) -> dict[str, Any]:
        if choices not in self._compositions.composed:
            with self._hydra():
                composed = _tree(self._compose([f"{group}={option}" for group, option in choices]))
                # {name: X, ...} of an axis in a preset chooses the member X, with the defaults of its other options.
                renamed = self._renamed(composed, dict(choices))
                for axis, name in renamed.items():
                    where = self._file_of(f"{axis}.name", {**self._chosen, **dict(choices)})
                    registry.member(axis, name, where=where)
                if renamed:
                    meant = {**dict(choices), **renamed}
                    composed = _tree(self._compose([f"{group}={option}" for group, option in meant.items()]))
            chosen = dict(self._chosen)
            for axis in AXES:
                composed[axis]["name"] = self.member_name(axis, chosen[axis])
            self._drop(composed, dict(choices))
            self._compositions.composed[choices] = {key: composed[key] for key in TRIAL_KEYS}
            self._compositions.chosen[choices] = chosen
        return self._compositions.composed[choices]

    def _renamed(self, composed: Mapping[str, Any], choices: Mapping[str, str]) -> dict[str, str]:
        """Return axis -> member, for the axes where a preset's {name: X, ...} differs from the chosen option."""
        members = {axis: self.member_name(axis, self._chosen[axis]) for axis in AXES if axis not in choices}
        named = {axis: str(composed[axis].get("name", member)) for axis, member in members.items()}
        return {axis: name for axis, name in named.items() if name != members[axis]}

    def member_name(self, axis: str, choice: str) -> str:
        """Return the member that an axis's option chooses: the `name` in its file, or the option itself."""
        files = self._files(axis, choice)
        return str(_yaml(files[0]).get("name", choice)) if files else choice

    def member_of(self, method: str, axis: str) -> str | None:
        """Return the member of an axis that a method's preset chooses; None if its trials do not use the axis."""
        preset = self._cached((("method", method),))
        kind = NamedMethod.read(preset["method"], "method", self.locate({"method": method})).kind
        return str(preset[axis]["name"]) if axis in kind.parts else None

    def option_of(self, choices: Mapping[str, Any], key: str) -> Any:
        """Return an option of one of a method's axes, as these choices have it; None if its trials do not use it."""
        groups = {group: str(name) for group, name in choices.items() if group in METHOD}
        axis, _, option = key.partition(".")
        if self.member_of(groups.get("method") or self._chosen["method"], axis) is None:
            return None
        return self.trial_part(groups)[axis].get(option)

    def _drop(self, composed: Mapping[str, Any], choices: Mapping[str, str]) -> None:
        """Drop the options that a preset sets for its own member of an axis and that the chosen member lacks."""
        for axis in (one for one in AXES if one in choices):
            preset = self._cached(tuple((group, name) for group, name in choices.items() if group == "method"))
            had, has = (options(registry.member(axis, tree[axis]["name"])) for tree in (preset, composed))
            for key in ({f.name for f in had} - {f.name for f in has}) & {*composed[axis]}:
                del composed[axis][key]

    def locate(self, choices: Mapping[str, str]) -> Locate:
        """Return a function: key -> its origin, "the command line" or one of the chosen files."""

        def where(key: str) -> str:
            if self.command_line.sets(key):
                return PLACE
            return self._file_of(key, {**self._compositions.chosen.get(_of_method(choices), {}), **choices})

        return where

    def _file_of(self, key: str, choices: Mapping[str, str]) -> str:
        """Return the chosen file (of group -> option) that sets a key, or a group; "" if none does."""
        for group in ("method", *choices):  # a method's preset overrides the files of its axes
            for file in self._files(group, choices.get(group, "")):
                if key == group or _holds(_yaml(file), key, group):
                    return f"{group}/{file.name}" if file.parents[1] == conf_dir() else str(file)
        return ""

    def _files(self, group: str, option: str) -> list[Path]:
        """Return the files of a group's option, in the order of the folders."""
        return [file for folder in self.folders if (file := folder / group / f"{option}.yaml").is_file()]

    def option(self, group: str, name: str) -> dict[str, Any]:
        """Return the contents of a group's file, for groups that Hydra does not compose (conf/table, conf/paper).

        Raises UserError for an unknown name.
        """
        if not (files := self._files(group, name)):
            raise unknown(group, name, [p.stem for folder in self.folders for p in (folder / group).glob("*.yaml")])
        try:
            with closed():
                return _tree(loaded(files[0])[0], resolve=True)
        except OmegaConfBaseException as error:
            raise explained(error, [], lambda _: str(files[0])) from None

    @cached_property
    def _scratch(self) -> DictConfig:
        """The schema's values, for `check_value` to set: new ones per value would be slow."""
        return copy.deepcopy(_schema())

    def check_value(self, path: str, value: Any, where: str) -> None:
        """Raise UserError unless `path` is a key of a trial and `value` has its type."""
        if (path, repr(value)) in self._checked:
            return
        if path.split(".")[0] not in TRIAL_KEYS:
            raise unknown_key(path, where)
        try:
            OmegaConf.update(self._scratch, path, value)
        except OmegaConfBaseException as error:
            raise explained(error, [], lambda _: where) from None
        self._checked.add((path, repr(value)))


KINDS = {
    "Integer": "an integer",
    "Float": "a number",
    "Boolean": "true or false",
    "bool": "true or false",
    "String": "text",
}


def explained(error: Exception, overrides: Sequence[str], locate: Locate) -> UserError:
    """Reduce Hydra's and OmegaConf's messages to one line: the problem, its place, the choices, the likely fix."""
    chain: list[str] = []
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, UserError):  # of an interpolation that is refused
            full = re.search(r"full_key: (\S+)", "\n".join(chain))
            key = full[1] if full and full[1] != "_dummy_" else ""  # Hydra's name for an option of the defaults list
            return UserError(cause.what, where=f"{key} ({locate(key)})" if key else "", fix=cause.fix)
        chain.append(str(cause))
        cause = cause.__cause__ or cause.__context__
    text = "\n".join(chain)
    full = re.search(r"full_key: (\S+)", text)
    key, last = full[1] if full else "a key", next(iter(chain[-1].splitlines()), "")
    if found := re.search(r"Could not find '([^']+)'", text):
        group, _, name = found[1].rpartition("/")
        listed = re.search(r"Available options in '[^']*':\n((?:\t.+\n?)*)", text)
        choices = listed[1].split() if listed else ()
        where = locate(found[1])
        kind, _, path = found[1].partition("/")
        if "/" in path:
            here, stem = f"{'+' * (kind == 'grid')}{kind}", Path(path).stem
            file = f"{here}={stem} --config-dir FOLDER, where FOLDER/{kind}/{stem}.yaml is the file"
            fix = f"write model=local model.path={path}" if kind == "model" else f"write {file}"
            return UserError(f"{path} is no name of a {kind}", where=locate(kind), fix=fix)
        return registry.absent(group, name, where) or unknown(group or "configuration", name, choices, where=where)
    if found := re.search(r"Could not override '([^']+)'\. No match in the defaults list", text):
        group = found[1].split("@")[0]
        given = next((text for text in overrides if text.startswith(f"{group}=")), f"{group}=NAME")
        return UserError(f"{group} is not in the defaults list", fix=f"to append to your default list use +{given}")
    if found := re.search(r"Key '([^']+)' (?:not in|is not in) '?(\w+)", text):
        path = full[1] if full else found[1]
        return unknown_key(path, locate(path))
    if found := re.search(r"Interpolation key '([^']*)' not found", text):
        return UserError(f"${{{found[1]}}} names no key", where=f"{key} ({locate(key)})" if full else "")
    if found := re.search(r"Multiple values for ([\w/]+)", text):
        return UserError(f"{found[1]} is given twice", fix="name it once")
    if found := re.search(r"Could not delete from config\. '([^']+)'", text):
        return UserError(f"{found[1]} is not there to leave out", where=PLACE, fix="grid.only=[?] lists the blocks")
    merged = re.search(r"Error merging override [~+]*([^\s=]+)", text)
    if merged and "does not support deletion" in text:
        fix = "whole blocks, columns, tables and figures can"
        return UserError(f"{merged[1]} cannot be left out", where=PLACE, fix=fix)
    if merged and "dict is not a subclass of" in text:
        return UserError(f"{merged[1]} cannot be added", where=PLACE, fix="write it into a grid file of your own")
    what, fix = "", last
    if found := re.search(r"Value '(.*?)' (?:of type '.*?' could not be converted to|is not a valid) (\w+)", text):
        what, fix = f"{key}={found[1]!r}", f"it must be {KINDS.get(found[2], found[2])}"
    elif found := re.search(r"Invalid value assigned: (\w+) is not a (\w+)", text):
        what, fix = key, f"it must be a {'list' if found[2].startswith('List') else found[2]}"
    elif "reference_type=Dict[str, Dict[" in text:
        what, fix = key, "it must be a mapping"
    elif found := re.search(r"Error merging override (\S+?)=(.)", text):
        what = key = found[1]
        if re.search(r"\s+Cannot assign \w+ to Dict", text):
            fix = "its entries must be mappings" if found[2] == "[" else "it must be a mapping"
    if what:
        return UserError(f"{what} has the wrong type", where=locate(key), fix=fix)
    return UserError(" ".join(chain[0].split()), fix="" if chain[-1] == chain[0] else last)


def _resolve(config: DictConfig) -> None:
    """Resolve the interpolations of a composition in place; an error names the key."""
    try:
        OmegaConf.resolve(config)
    except OmegaConfBaseException:
        OmegaConf.to_container(config, resolve=True)  # the same error, with the key
        raise


def _tree(composed: DictConfig, resolve: bool = False) -> dict[str, Any]:
    """Return a composition as plain dictionaries and lists."""
    plain = OmegaConf.to_container(composed, resolve=resolve)
    assert isinstance(plain, dict)
    return {str(key): value for key, value in plain.items()}


def _of_method(choices: Mapping[str, str]) -> Choices:
    """Return the choices of a method and its axes: these are composed together."""
    return tuple((group, choices[group]) for group in METHOD if group in choices)


def _yaml(file: Path) -> dict[str, Any]:
    """Return the contents of a configuration file, its defaults list included; not to be changed."""
    return loaded(file)[2]


def _holds(tree: Mapping[str, Any], key: str, group: str) -> bool:
    """Return whether a group's file sets a key: by its full path (a preset), or relative to the group."""
    for path in (key, key.removeprefix(f"{group}.")):
        node: Any = tree
        for part in path.split("."):
            entries = {str(i): entry for i, entry in enumerate(node)} if isinstance(node, list) else node
            node = entries[part] if isinstance(entries, Mapping) and part in entries else _NOTHING
        if node is not _NOTHING and (group == "method" or key.startswith(f"{group}.")):
            return True
    return False
