"""Hydra composition: configuration files and the command line -> a typed run and the trees of its trials.

Hydra only composes (groups, search path, override grammar); it schedules nothing. This module adds two things: the
overrides that the command line forces on every trial of a grid, and error messages of one line.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

from zo_sweeps.config.interpolation import closed
from zo_sweeps.config.schema import AXES, METHOD, OWN_TREE, TRIAL_GROUPS, TRIAL_KEYS, Config, RunConfig
from zo_sweeps.core.errors import UserError, unknown
from zo_sweeps.core.files import folder_at
from zo_sweeps.methods import registry
from zo_sweeps.methods.definition import Locate, options
from zo_sweeps.methods.executor import Executor
from zo_sweeps.methods.parts import Method

if TYPE_CHECKING:
    from omegaconf import DictConfig

CHOOSES = {f"{group}.name": group for group in (*AXES, "precision")}  # estimator.name=X chooses X, as estimator=X does
MEMBER_GROUPS = (*AXES, "precision", "executor")  # groups whose options are the members of an axis
OPEN = (*AXES, "precision", "task", "method")  # parts of a trial that Hydra takes as they are
SEARCH = "hydra.searchpath="  # Hydra's own override for further folders; --config-dir is short for it
PATHS = ("model.path", "data.dir", "state_dir", "tracking.uri")  # taken as typed: Hydra's grammar stops at "~" and "("
# Keys that give a grid's cells the trials that its files do, seed and machine aside.
SAME_TRIALS = ("seed", "grid.seeds", "device", "data.dir", "executor", "cluster", "tracking", "state_dir")
KINDS = {"Integer": "an integer", "Float": "a number", "Boolean": "true or false", "String": "text"}
_NOTHING = object()


def conf_dir() -> Path:
    """Return the folder of the packaged configuration: next to the package in a checkout, inside it in a wheel."""
    package = Path(__file__).parents[1]
    for candidate in (package / "conf", package.parent / "conf"):
        if (candidate / "config.yaml").is_file():
            return candidate
    raise UserError("the configuration files are missing", where=str(package), fix="reinstall zo-sweeps")


@dataclass(frozen=True)
class Forced:
    """The command line's overrides of every trial: each replaces a grid's fixed value or its axis over the same key.

    `choices` are group options (task=sst2), `values` are keys (update.lr=1e-3); several values, separated by commas,
    make an axis.
    """

    choices: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    values: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class _Compositions:
    """A cache: choices of group options -> their composition, and the option that it has of every group."""

    composed: dict[tuple[tuple[str, str], ...], dict[str, Any]] = field(default_factory=dict)
    chosen: dict[tuple[tuple[str, str], ...], dict[str, str]] = field(default_factory=dict)


_PACKAGED = _Compositions()  # of the packaged files alone: shared by all composers of the process


class Composer:
    """Configurations composed from the packaged files, the user's folders and the command line.

    Args:
        overrides: the command line's, in Hydra's grammar.
        config_dirs: folders with further groups (`grid/mine.yaml`), searched after the packaged ones.

    Attributes:
        run: the run's configuration, its grid included.
        trial: one trial's configuration without a grid, as the defaults and the command line have it. Not typed, as
            the options depend on the members.
        forced: the command line's overrides of every trial.

    Raises UserError for anything unknown, misplaced or of the wrong type.
    """

    def __init__(self, overrides: Sequence[str] = (), config_dirs: Sequence[str] = ()) -> None:
        from omegaconf import OmegaConf

        self._config_dirs = config_dirs
        self._searched = [text for text in overrides if text.startswith(SEARCH)]
        if absent := [folder for folder in config_dirs if not Path(folder).is_dir()]:
            raise UserError(f"no such folder: {', '.join(absent)}", where="--config-dir")
        searched = [url for text in self._searched for url in _searchpath(text)]
        self._search = [*(f"file://{Path(folder).resolve()}" for folder in config_dirs), *searched]
        if absent := [str(path) for path in self.folders[1:] if not path.is_dir()]:
            raise UserError(f"no such folder: {', '.join(absent)}", where="hydra.searchpath")
        further = {path.name for folder in self.folders[1:] for path in folder.iterdir()}
        local = len(self.folders) == 1 + len(self._search)  # a remote address may hold any group
        compositions = _PACKAGED if local and further <= {"grid"} else _Compositions()
        self._composed, self._chosen_by = compositions.composed, compositions.chosen
        registry.use_folders(self.folders[1:])
        self._register()
        self._given = [_with_path(text) for text in overrides if not text.startswith(SEARCH)]
        self.forced, self._run_level = self._sort(self._given)
        with self._hydra():
            composed = self._compose([*self._run_level, *self._single_forced()])
        self.trial: Mapping[str, Any] = {key: value for key, value in _tree(composed).items() if key in TRIAL_KEYS}
        self.run = self._run_config(composed)
        if not self.run.state_dir.strip():
            raise UserError("state_dir is empty", fix="write state_dir=FOLDER, or leave it out for zo_runs")
        folder_at(self.run.state_dir, "state_dir")
        if (uri := self.run.tracking.uri) and not uri.startswith(("http://", "https://")):
            what = f"tracking.uri={uri!r} is not the address of a server"
            raise UserError(what, fix="write tracking.uri=http://HOST:PORT, or leave it out for one of this sweep")
        self._scratch = OmegaConf.structured(Config)  # for check_value, which would be slow with a new one per value
        self._checked: set[tuple[str, str]] = set()
        for path, values in self.forced.values.items():
            for value in values if path.split(".")[0] not in OPEN else ():
                self.check_value(path, value, "the command line")
        self.grid_name = next((t.split("=", 1)[1] for t in self._given if t.startswith("+grid=")), "")

    @property
    def folders(self) -> list[Path]:
        """The folders that are searched for configuration files, in order."""
        local = (url.removeprefix("file://") for url in self._search)
        return [conf_dir(), *(Path(path) for path in local if "://" not in path)]

    @property
    def changes_trials(self) -> bool:
        """Whether the command line may give the grid's cells other trials than the files do, seed and machine aside."""
        keys = [_key(text) for text in self._given]
        return any(key not in SAME_TRIALS and key.partition(".")[0] not in SAME_TRIALS for key in keys if key != "grid")

    def as_written(self) -> Composer:
        """Return a composer of the same grid and folders without any other override."""
        return Composer([*self._searched, f"+grid={self.grid_name}"], self._config_dirs)

    @property
    def left_out(self) -> list[str]:
        """The blocks and columns that the command line removes: `~grid.blocks.NAME`, `~grid.columns.NAME`."""
        given = (text for text in self._given if text.startswith(("~grid.blocks.", "~grid.columns.")))
        return [text.partition("=")[0].split(".", 2)[2] for text in given]

    def _sort(self, overrides: Sequence[str]) -> tuple[Forced, list[str]]:
        """Split the overrides into those forced on trials and those of the run (grid, executor, state_dir, ...)."""
        from hydra.core.override_parser.overrides_parser import OverridesParser
        from hydra.errors import HydraException

        parser = OverridesParser.create()
        choices: dict[str, tuple[str, ...]] = {}
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
                    raise UserError(
                        f"several values for {key}", where=repr(text), fix="only a trial's keys make an axis"
                    )
                given: tuple[Any, ...] = tuple(override.sweep_iterator())
                given = tuple(v.value() if hasattr(v, "value") and callable(v.value) else v for v in given)
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
        return Forced(choices, values), run_level

    def _single_forced(self) -> list[str]:
        """Return the forced overrides, reduced to the first value of each axis, so that Hydra checks them."""
        shown = []
        for text in self._given:
            key = text.split("=", 1)[0].lstrip("+")
            if key not in self.forced.choices and key not in self.forced.values:
                continue
            if key.split(".")[0] in OPEN and key not in self.forced.choices:
                continue  # the options depend on the member that a block chooses: the plan checks them
            if key in self.forced.choices:
                shown.append(f"{key}={self.forced.choices[key][0]}")
            elif len(self.forced.values[key]) == 1:
                shown.append(text)
            else:
                shown.append(f"{key}={_as_override(self.forced.values[key][0])}")
        return shown

    def _register(self) -> None:
        """Register the schema with Hydra, and each member's options and defaults unless it has a YAML file."""
        from hydra.core.config_store import ConfigStore

        store = ConfigStore.instance()
        store.store(name="base_config", node=Config, provider="zo_sweeps")
        for axis in MEMBER_GROUPS:
            store.repo.pop(axis, None)  # Hydra's store outlives a composer; the next one may have other folders
            own = {name for name in registry.names(axis) for d in self.folders if (d / axis / f"{name}.yaml").is_file()}
            for name, member in registry.members(axis).items():
                if name not in own:
                    store.store(group=axis, name=name, node=member.defaults(), provider="zo_sweeps")
        store.store(group="precision", name="auto", node={"name": "auto"}, provider="zo_sweeps")  # the model's own

    @contextmanager
    def _hydra(self) -> Iterator[None]:
        from hydra import initialize_config_dir
        from hydra.core.global_hydra import GlobalHydra

        GlobalHydra.instance().clear()
        with initialize_config_dir(config_dir=str(conf_dir()), version_base="1.3"):
            yield

    def _run_config(self, composed: DictConfig) -> RunConfig:
        """Return the run's part of a composition, typed. Raises UserError for an unknown or misconfigured executor."""
        from omegaconf import OmegaConf

        where = self.locate({"executor": self._chosen["executor"]})
        executor = Executor.read(OmegaConf.to_container(composed.executor), "executor", where)
        assert isinstance(executor, Executor)
        typed: dict[str, Any] = {
            key: OmegaConf.to_object(composed[key]) for key in ("scale", "cluster", "tracking", "grid")
        }
        for path in _strangers(typed, ""):  # a + on the command line adds any key, and Hydra keeps it
            raise unknown("key", path, _siblings(path), where=self.locate({})(path))
        return RunConfig(executor=executor, state_dir=composed.state_dir, **typed)

    def _compose(self, overrides: Sequence[str]) -> DictConfig:
        """Return Hydra's composition with interpolations resolved; `_chosen` is then the option of every group."""
        from hydra import compose
        from hydra.errors import HydraException
        from omegaconf import OmegaConf, open_dict
        from omegaconf.errors import OmegaConfBaseException
        from yaml import YAMLError

        search = [f"{SEARCH}[{','.join(map(_quoted, self._search))}]"] if self._search else []
        try:
            with closed():
                config = compose("config", overrides=[*search, *overrides], return_hydra_config=True)
                self._chosen = dict(config.hydra.runtime.choices)
                with open_dict(config):
                    del config["hydra"]
                for key in [text[:-3].lstrip("+") for text in overrides if text.endswith("={}")]:
                    OmegaConf.update(config, key, {}, merge=False)  # Hydra merges, which would change nothing
                _resolve(config)
        except (HydraException, OmegaConfBaseException, YAMLError, ValueError) as error:  # ValueError: task=3
            chosen = dict(text.lstrip("+").split("=", 1) for text in overrides if "=" in text)
            where = lambda key: self._on_command_line(key) or self._file_of(key, chosen)
            raise _explain(error, overrides, where) from None
        return config

    def trial_part(self, choices: Mapping[str, str]) -> dict[str, Any]:
        """Return the trial's part of the composition of these group options; other groups keep their defaults.

        Cached by sub-tree: a grid over m methods and t tasks costs m + t compositions.
        """
        result = dict(self._cached(_of_method(choices)))
        for group in OWN_TREE:
            if group in choices:
                result[group] = self._cached(((group, choices[group]),))[group]
        return result

    def _cached(self, choices: tuple[tuple[str, str], ...]) -> dict[str, Any]:
        if choices not in self._composed:
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
            self._composed[choices] = {key: composed[key] for key in TRIAL_KEYS}
            self._chosen_by[choices] = chosen
        return self._composed[choices]

    def _renamed(self, composed: Mapping[str, Any], choices: Mapping[str, str]) -> dict[str, str]:
        """Return axis -> member, for the axes where a preset's {name: X, ...} differs from the chosen option."""
        members = {axis: self.member_name(axis, self._chosen[axis]) for axis in AXES if axis not in choices}
        named = {axis: str(composed[axis].get("name", member)) for axis, member in members.items()}
        return {axis: name for axis, name in named.items() if name != members[axis]}

    def member_name(self, axis: str, choice: str) -> str:
        """Return the member that an axis's option chooses: the `name` in its file, or the option itself."""
        files = [file for folder in self.folders if (file := folder / axis / f"{choice}.yaml").is_file()]
        return str(_yaml(files[0]).get("name", choice)) if files else choice

    def member_of(self, method: str, axis: str) -> str | None:
        """Return the member of an axis that a method's preset chooses; None if its trials do not use the axis."""
        preset = self._cached((("method", method),))
        kind = Method.read(preset["method"], "method", self.locate({"method": method})).kind
        return str(preset[axis]["name"]) if axis in kind.parts else None

    @staticmethod
    def _names(axis: str, member: str) -> set[str]:
        return {f.name for f in options(registry.member(axis, member))}

    def _drop(self, composed: Mapping[str, Any], choices: Mapping[str, str]) -> None:
        """Drop the options that a preset sets for its own member of an axis and that the chosen member lacks."""
        for axis in (one for one in AXES if one in choices):
            preset = self._cached(tuple((group, name) for group, name in choices.items() if group == "method"))
            own = self._names(axis, preset[axis]["name"]) - self._names(axis, composed[axis]["name"])
            for key in own & {*composed[axis]}:
                del composed[axis][key]

    def locate(self, choices: Mapping[str, str]) -> Locate:
        """Return a function: key -> its origin, "the command line" or one of the chosen files."""

        def where(key: str) -> str:
            if any(_key(text) == key for text in self._given):
                return "the command line"
            return self._file_of(key, {**self._chosen_by.get(_of_method(choices), {}), **choices})

        return where

    def _on_command_line(self, key: str) -> str:
        """Return "the command line" if it sets a key or chooses an option (group/name), else ""."""
        group, _, name = key.rpartition("/")
        if name in self.forced.choices.get(group, ()):
            return "the command line"
        given = [text.lstrip("+~") for text in self._given]
        return "the command line" if any(text.startswith((key, key.replace("/", "="))) for text in given) else ""

    def _file_of(self, key: str, choices: Mapping[str, str]) -> str:
        """Return the chosen file (of group -> option) that sets a key; "" if none does."""
        for group in ("method", *choices):  # a method's preset overrides the files of its axes
            for folder in self.folders:
                file = folder / group / f"{choices.get(group, '')}.yaml"
                if file.is_file() and _holds(_yaml(file), key, group):
                    return f"{group}/{file.name}" if folder == conf_dir() else str(file)
        return ""

    def option(self, group: str, name: str) -> dict[str, Any]:
        """Return the contents of a group's file, for groups that Hydra does not compose (conf/table, conf/paper).

        Raises UserError for an unknown name.
        """
        from omegaconf import OmegaConf
        from omegaconf.errors import OmegaConfBaseException
        from yaml import YAMLError

        path = next((file for d in self.folders if (file := d / group / f"{name}.yaml").is_file()), None)
        if path is None:
            raise unknown(group, name, [p.stem for folder in self.folders for p in (folder / group).glob("*.yaml")])
        try:
            with closed():
                loaded = OmegaConf.to_container(OmegaConf.load(path), resolve=True)
        except (OmegaConfBaseException, YAMLError) as error:
            raise _explain(error, [], lambda _: str(path)) from None
        assert isinstance(loaded, dict)
        return {str(key): value for key, value in loaded.items()}

    def check_value(self, path: str, value: Any, where: str) -> None:
        """Raise UserError unless `path` is a key of a trial and `value` has its type."""
        from omegaconf import OmegaConf
        from omegaconf.errors import OmegaConfBaseException

        if (path, repr(value)) in self._checked:
            return
        node: Any = Config
        parts = path.split(".")
        for depth, part in enumerate(parts):
            if not is_dataclass(node):
                return  # inside an untyped mapping (task, model.arch)
            names = {f.name for f in fields(node)}
            if depth == 0:
                names &= set(TRIAL_KEYS)
            if part not in names:
                raise unknown("key", path, [".".join([*parts[:depth], name]) for name in names], where=where)
            node = get_type_hints(node)[part]
        try:
            OmegaConf.update(self._scratch, path, value)
        except OmegaConfBaseException as error:
            reason = str(error).splitlines()[0]
            if found := re.search(r"could not be converted to (\w+)", reason):
                reason = f"it must be {KINDS.get(found[1], found[1])}"
            raise UserError(f"{path}={value!r} has the wrong type", where=where, fix=reason) from None
        self._checked.add((path, repr(value)))


def _resolve(config: DictConfig) -> None:
    """Resolve the interpolations of a composition in place; an error names the key."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        OmegaConf.resolve(config)
    except OmegaConfBaseException:
        OmegaConf.to_container(config, resolve=True)  # the same error, with the key
        raise


def _tree(composed: DictConfig) -> dict[str, Any]:
    """Return a composition as plain dictionaries and lists."""
    from omegaconf import OmegaConf

    plain = OmegaConf.to_container(composed)
    assert isinstance(plain, dict)
    return {str(key): value for key, value in plain.items()}


def _of_method(choices: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Return the choices of a method and its axes: these are composed together."""
    return tuple((group, choices[group]) for group in METHOD if group in choices)


def _searchpath(text: str) -> list[str]:
    """Return the addresses listed by an override of hydra.searchpath."""
    from hydra.core.override_parser.overrides_parser import OverridesParser

    listed = _plain(OverridesParser.create().parse_override(text).value())
    return [str(url) for url in listed] if isinstance(listed, list) else [str(listed)]


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


def _yaml(file: Path) -> Mapping[str, Any]:
    """Return the contents of a configuration file, its defaults list included."""
    import yaml

    loaded = yaml.safe_load(file.read_text(encoding="utf-8"))
    return loaded if isinstance(loaded, Mapping) else {}


def _holds(tree: Mapping[str, Any], key: str, group: str) -> bool:
    """Return whether a group's file sets a key: by its full path (a preset), or relative to the group."""
    for path in (key, key.removeprefix(f"{group}.")):
        node: Any = tree
        for part in path.split("."):
            node = node.get(part) if isinstance(node, Mapping) and part in node else _NOTHING
        if node is not _NOTHING and (group == "method" or key.startswith(f"{group}.")):
            return True
    return False


def _as_override(value: Any) -> str:
    if isinstance(value, str):
        return _quoted(value)
    return "null" if value is None else str(value)


def _with_path(text: str) -> str:
    """Return an override whose value is a path as Hydra reads it: in its grammar most punctuation has a meaning.

    Values that the user quoted are Hydra's, and so are several (model.path=A,B) unless all of it is one path.
    """
    key, _, value = text.partition("=")
    if key.lstrip("+") not in PATHS or value in ("", "null") or value.startswith(("'", '"', "${")):
        return text
    if key != "state_dir" and not os.path.exists(os.path.expanduser(value)) and _several(text):
        return text
    return f"{key}={_quoted(value)}"


def _several(text: str) -> bool:
    """Return whether an override can be read as several values."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    try:
        return bool(OverridesParser.create().parse_override(text).is_sweep_override())
    except HydraException:
        return False


def _quoted(value: str) -> str:
    """Return a string quoted in Hydra's grammar, where a backslash counts before a quote only."""
    return "'" + re.sub(r"(\\*)('|$)", lambda found: found[1] * 2 + ("\\'" if found[2] else ""), value) + "'"


def _how_to_write(text: str, reason: str) -> str:
    key, equals, value = text.partition("=")
    if not equals:
        return f"write key=value ({reason})"
    return f"quote text twice, once for the shell: {shlex.quote(f'{key}={_quoted(value)}')} ({reason})"


def _explain(error: Exception, overrides: Sequence[str], locate: Locate) -> UserError:
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
    if found := re.search(r"Could not find '([^']+)'", text):
        group, _, name = found[1].rpartition("/")
        listed = re.search(r"Available options in '[^']*':\n((?:\t.+\n?)*)", text)
        choices = listed[1].split() if listed else ()
        return unknown(group or "configuration", name, choices, where=locate(found[1]))
    if found := re.search(r"Could not override '([^']+)'\. No match in the defaults list", text):
        group = found[1].split("@")[0]
        given = next((text for text in overrides if text.startswith(f"{group}=")), f"{group}=NAME")
        return UserError(f"{group} is not in the defaults list", fix=f"to append to your default list use +{given}")
    if found := re.search(r"Key '([^']+)' (?:not in|is not in) '?(\w+)", text):
        full = re.search(r"full_key: (\S+)", text)
        path = full[1] if full else found[1]
        return unknown("key", path, _siblings(path), where=locate(path))
    if found := re.search(r"Interpolation key '([^']*)' not found", text):
        full = re.search(r"full_key: (\S+)", text)
        key = full[1] if full else "a key"
        return UserError(f"${{{found[1]}}} names no key", where=f"{key} ({locate(key)})" if full else "")
    if found := re.search(r"Multiple values for ([\w/]+)", text):
        return UserError(f"{found[1]} is given twice", fix="name it once")
    if found := re.search(r"Value '(.*?)' of type '(.*?)' could not be converted to (\w+)", text):
        full = re.search(r"full_key: (\S+)", text)
        key = full[1] if full else "a key"
        fix = f"it must be {KINDS.get(found[3], found[3])}"
        return UserError(f"{key}={found[1]!r} has the wrong type", where=locate(key), fix=fix)
    if found := re.search(r"Invalid value assigned: (\w+) is not a (\w+)", text):
        full = re.search(r"full_key: (\S+)", text)
        kind = "list" if found[2].startswith("List") else found[2]
        key = full[1] if full else "a key"
        return UserError(f"{key} has the wrong type", where=locate(key), fix=f"it must be a {kind}")
    if found := re.search(r"Error merging override (\S+?)=(.).*\s+Cannot assign \w+ to Dict", text):
        fix = "its entries must be mappings" if found[2] == "[" else "it must be a mapping"
        return UserError(f"{found[1]} has the wrong type", where=locate(found[1]), fix=fix)
    if found := re.search(r"Error merging override (\S+?)=", text):
        return UserError(f"{found[1]} has the wrong type", where=locate(found[1]), fix=chain[-1].splitlines()[0])
    if found := re.search(r"Primary config|mapping values are not allowed|while (?:parsing|scanning)[^\n]*", text):
        return UserError("a configuration file is not valid YAML", fix=" ".join(text.split())[:300])
    reason = "" if chain[-1] == chain[0] else chain[-1].splitlines()[0]
    return UserError(" ".join(chain[0].split()), fix=reason)


def _strangers(value: Any, path: str) -> Iterator[str]:
    """Yield the dotted keys below `value` that its dataclasses do not declare."""
    if is_dataclass(value):
        known = {f.name for f in fields(value)}
        yield from (f"{path}.{key}" for key in vars(value) if key not in known)
        value = {name: getattr(value, name) for name in known}
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _strangers(inner, f"{path}.{key}" if path else str(key))


def _siblings(path: str) -> list[str]:
    node: Any = Config
    parts = path.split(".")
    for part in parts[:-1]:
        hints = get_type_hints(node) if is_dataclass(node) else {}
        node = hints.get(part)
    if not is_dataclass(node):
        return []
    return [".".join([*parts[:-1], f.name]) for f in fields(node)]
