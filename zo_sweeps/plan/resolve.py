"""A block of a grid -> the settings of its axes -> the configurations of its trials."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any
from weakref import WeakKeyDictionary

from zo_sweeps.config.command_line import PLACE, Forced, both
from zo_sweeps.config.composer import Composer
from zo_sweeps.config.schema import AXES, EITHER, TRIAL_GROUPS, GridConfig, ScaleConfig, ScaleSteps
from zo_sweeps.core.errors import UserError, unknown
from zo_sweeps.devices import probe
from zo_sweeps.devices.speed import format_times
from zo_sweeps.methods import registry
from zo_sweeps.methods.definition import Locate, options, read
from zo_sweeps.methods.kind import Kind
from zo_sweeps.methods.parts import Device, Model, ModelSource, NamedMethod
from zo_sweeps.methods.precision import FASTEST, OWN, Precision
from zo_sweeps.methods.trial_config import TrialConfig
from zo_sweeps.models import package
from zo_sweeps.models.families import with_layers
from zo_sweeps.models.identity import fetched
from zo_sweeps.plan.grid_file import LR, axes_of, check, flatten
from zo_sweeps.plan.overrides import Overrides, Promise


@dataclass(frozen=True)
class Setting:
    """One point of a block's axes at one column and seed.

    Args:
        choices: group -> option. values: key -> value.
        searched: the values of the axes, of groups and keys.
        promise: what the block and its column promise there.
        column: one of the grid's `columns`; "" if the columns are tasks.
        own: keys that the block sets for members that it alone chooses: an error if the member lacks them.
        where: grid and block, for messages.
    """

    choices: Mapping[str, str]
    values: Mapping[str, Any]
    searched: Mapping[str, Any]
    promise: Promise = field(default_factory=Promise)
    column: str = ""
    own: frozenset[str] = frozenset()
    where: str = ""


def expand(grid: GridConfig, name: str, overrides: Overrides) -> Iterator[Setting]:
    """Yield the settings of a grid's block in the order of the file; the seeds vary fastest.

    Args:
        overrides: the command line's, which leave columns of the block out or change what they promise.

    Raises UserError for what is said in vain (see `check`), for an axis that is no list, is empty or is fixed as well,
    for two ways to set one amount, and for keys and values of a wrong type.
    """
    composer, block, where = overrides.composer, grid.blocks[name], f"grid {grid.name}, block {name}"
    forced = composer.forced
    check(grid, name, composer)
    of_grid, of_block = flatten(grid.fixed), flatten(block.fixed)
    fixed = {**of_grid, **of_block}
    of_grid_axes, of_axes = axes_of(grid.axes, where), axes_of(block.axes, where)
    axes = {**of_grid_axes, **of_axes}
    lr = None
    if grid.rates and LR not in axes:
        lr = fixed.pop(LR, None)
        of_block.pop(LR, None)
        axes[LR] = grid.rates  # to be multiplied where the column's method is known
    for key in {*fixed} & {*axes}:
        raise UserError(f"{key!r} is both fixed and an axis", where=where)
    default_task = fixed.get("task", composer.trial["task"]["name"])
    seeds: Sequence[int] = forced.get("seed") or grid.seeds
    exclude = [flatten(entry) for entry in (*grid.exclude, *block.exclude)]
    for column, task, of_column in _columns(grid, forced, axes.get("task"), default_task, where):
        per_task = flatten(block.per_task.get(column or task, {}))
        promise = Promise(of_grid, of_block, of_column, per_task, axes, task)
        if (kept := overrides.at(promise, name, column or task)) is None:
            continue
        of_column = {key: value for key, value in of_column.items() if key != "task"}
        here, own = _at_task(fixed, axes, {**of_column, **per_task}, kept)
        levels = ({**of_grid, **of_grid_axes}, {**of_block, **of_axes}, of_column, per_task, kept)
        for key in _replaced(levels, where):
            here.pop(key, None)
            own.pop(key, None)
        if own.get(LR) is grid.rates:
            if factor := lr or _own_lr(composer, here, own, where):
                own[LR] = [float(f"{rate * factor:.2g}") for rate in grid.rates]
            else:
                del own[LR]  # of a method that takes no steps
        others = {*own, *forced}  # groups whose member may not be the block's own
        strict = {key for key in {*of_block, *of_axes, *per_task} if not others & {key.partition(".")[0], "method"}}
        strict -= {*forced}
        for key, value in [*here.items(), *((key, value) for key, several in own.items() for value in several)]:
            if key.endswith(".display"):
                at = PLACE if key in forced else where
                fix = f"a name of your own is one of a file of your own, conf/{key.partition('.')[0]}/NAME.yaml"
                raise UserError(f"{key} is the printed name of what runs, and no option", where=at, fix=fix)
            if key not in TRIAL_GROUPS:
                composer.check_value(key, value, where)
        for point in itertools.product(*own.values()):
            searched = dict(zip(own, point, strict=True))
            chosen = {**here, **searched, "task": task}
            if any(all(chosen.get(key) == value for key, value in entry.items()) for entry in exclude):
                continue
            choices = {key: str(value) for key, value in chosen.items() if key in TRIAL_GROUPS}
            values = {key: value for key, value in chosen.items() if key not in TRIAL_GROUPS}
            for seed in seeds:
                yield Setting(choices, {**values, "seed": seed}, searched, promise, column, frozenset(strict), where)


def _columns(
    grid: GridConfig, forced: Forced, tasks: Sequence[str] | None, default_task: str, where: str
) -> list[tuple[str, str, dict[str, Any]]]:
    """Return (name, task, values) for each of the grid's `columns`, or ("", task, {}) for each task if it has none.

    The values have the key `task` if the column fixes it. Tasks of the command line replace the grid's.
    """
    given = forced.get("task", ())
    if not grid.columns:
        return [("", task, {}) for task in given or tasks or [default_task]]
    if len(given) > 1 or tasks:
        raise UserError("the columns of this grid are not tasks: there can be one task", where=where)
    flat = {name: flatten(grid.column_values(name)) for name in grid.columns}
    return [(name, given[0] if given else of.get("task", default_task), of) for name, of in flat.items()]


def _at_task(
    fixed: Mapping[str, Any], axes: Mapping[str, list[Any]], per_task: Mapping[str, Any], forced: Forced
) -> tuple[dict[str, Any], dict[str, list[Any]]]:
    """Return (fixed values, axes) of a block at one column.

    The column's values, `per_task` (flattened), replace the block's, and the command line's replace both.
    """
    here, own = dict(fixed), dict(axes)
    given = {name: list(values) for name, values in forced.items()}
    for name, value in [*per_task.items(), *((n, v if len(v) > 1 else v[0]) for n, v in given.items())]:
        here.pop(name, None)
        if isinstance(value, list) and (name not in forced or len(given[name]) > 1):
            own[name] = value
        else:
            own.pop(name, None)
            here[name] = value
    for name in ("task", "seed"):
        here.pop(name, None)
        own.pop(name, None)
    return here, own


def _own_lr(
    composer: Composer, fixed: Mapping[str, Any], axes: Mapping[str, Sequence[Any]], where: str
) -> float | None:
    """Return the learning rate of the method at a column. Raises UserError if there are several methods or updates."""
    for key in ("method", "update"):
        if key in axes:
            what = f"rates are factors of the {LR} of one {key}, and {key} is an axis"
            raise UserError(what, where=where, fix=f"give each a block of its own, or set {LR}")
    lr: float | None = composer.option_of(fixed, LR)
    return lr


def _replaced(levels: Sequence[Mapping[str, Any]], where: str) -> Iterator[str]:
    """Yield the keys whose amount a more specific level sets in another way (see EITHER).

    Args:
        levels: what sets values, the most specific last: the command line.

    Raises UserError for two ways at one level. `split.shots` replaces both sizes there and on the command line, whose
    sizes are for all grids; another more specific size is refused, as the other one would be the default.
    """
    for key, other in EITHER.items():
        last, last_other = (
            max((i for i, level in enumerate(levels) if one in level), default=-1) for one in (key, other)
        )
        if min(last, last_other) < 0 or levels[last_other][other] in (None, (None,)):
            continue
        if other == "split.shots":
            if last_other < last < len(levels) - 1:
                what = f"{key} says nothing beside {other}"
                raise UserError(what, where=where, fix=f"set {other}, to null or another number")
            yield key
            continue
        if last == last_other:
            raise both(key, other, where)
        yield other if last > last_other else key


class Resolver:
    """Settings -> configurations, and the keys of a grid (`space.rank`) that are options of no member.

    A key of the grid or the command line is ignored for members without that option (rank, in a full space). It is an
    error if a block sets it for its own member, or if it is an option of no member.

    Args:
        parts: the parts of configurations as they were read, to share: most trials have most of them in common.
    """

    def __init__(self, composer: Composer, parts: dict[tuple[str, str], Any] | None = None) -> None:
        self.composer = composer
        self.parts = {} if parts is None else parts
        self._point: tuple[Mapping[str, str], TrialConfig] | None = None  # the last one: its choices, its configuration
        self._taken: set[str] = set()
        self._ignored: set[str] = set()

    def resolve(self, setting: Setting) -> TrialConfig:
        """Return the configuration of a trial; ascending precedence: presets, grid, scale, command line.

        Raises UserError for a key or value that no definition has. Cost: microseconds where the last trial was one of
        the same point, and differs in its seed alone.
        """
        if self._point is None or self._point[0] is not setting.choices:
            self._point = setting.choices, self._resolved(setting)
        config = self._point[1]
        seed = setting.values.get("seed", config.seed)
        split = config.split if config.split.seed is not None else replace(config.split, seed=seed)
        return replace(config, seed=seed, split=split)

    def _resolved(self, setting: Setting) -> TrialConfig:
        """Return the configuration of a point; `split.seed` is still None where it is the trial's."""
        composer = self.composer
        forced = composer.forced
        base = composer.trial_part(setting.choices)
        tree = {key: dict(value) if isinstance(value, dict) else value for key, value in base.items()}
        given: dict[str, str] = {}
        for path, value in setting.values.items():
            if self._takes(tree, path, setting):
                _set(tree, path, value)
                given[path] = PLACE if path in forced else setting.where
        for key, other in EITHER.items():
            if key in given and other not in given:
                _set(tree, other, None)  # the preset's
        tree["model"] = _model(tree["model"], {path: setting.values[path] for path in given}, given)
        located = composer.locate(setting.choices)

        def where(key: str) -> str:
            return given.get(key) or located(key)

        method = self.parts.get(_key("method", tree["method"])) or NamedMethod.read(tree["method"], "method", where)
        kind, steps = method.kind, tree["train"]["steps"]
        kept = {*forced, *setting.promise.of_column}  # a column's values, no scale cuts
        if tree["train"]["examples"] is not None and "train.examples" in kept:
            kept |= {"train.steps", "train.eval_every"}
        _scale(tree, composer.run.scale, kind, kept)
        if tree["train"]["steps"] != steps:  # the scale's
            tree["train"]["examples"] = None
        if not kind.trains:
            tree["train"]["steps"] = 0
        if tree["precision"]["name"] in (OWN, FASTEST):
            tree["precision"] = _precision(composer, tree, read(Device, tree["device"], "device", where), kind)
        tree["members"] = [str(folder) for folder in registry.folders()]
        return _with_batch(self._read(tree, where))

    def _read(self, tree: Mapping[str, Any], where: Locate) -> TrialConfig:
        """Return the configuration of a tree, equal parts as the same object."""
        keys = {name: _key(name, value) for name, value in tree.items()}
        config = TrialConfig.read({name: self.parts.get(keys[name], tree[name]) for name in tree}, where)
        self.parts |= {key: getattr(config, name) for name, key in keys.items()}
        return config

    def _takes(self, config: Mapping[str, Any], path: str, setting: Setting) -> bool:
        """Return whether a key applies to a configuration. Raises UserError for a block's own key that does not."""
        axis, _, option = path.partition(".")
        if axis not in AXES:
            return True
        name = config[axis]["name"]
        known = [f.name for f in options(registry.member(axis, name, where=setting.where))]
        if option.partition(".")[0] in known:  # update.schedule.name is of the option `schedule`
            self._taken.add(path)
            return True
        if path in setting.own:
            raise unknown("key", path, [f"{axis}.{one}" for one in known], where=f"{setting.where} ({axis}={name})")
        self._ignored.add(path)
        return False

    def unknown(self, overrides: Overrides) -> list[str]:
        """Return the problems of keys that no block took.

        The grid may have keys that only another member of the axis has (with method=mezo, its layers for LoRA). The
        command line may not, unless it left the rows with such a member out.
        """
        problems = []
        for path in self._ignored - self._taken:
            axis, _, option = path.partition(".")
            having = {
                name: {f"{axis}.{f.name}" for f in options(member)} for name, member in registry.members(axis).items()
            }
            forced, name = path in self.composer.forced, f"{axis}.{option.partition('.')[0]}"
            where = PLACE if forced else f"grid {self.composer.run.grid.name}"
            if not any(name in one for one in having.values()):
                problems.append(unknown("key", path, {key for one in having.values() for key in one}, where=where))
            elif forced and not overrides.leaves_out(path):
                members = " or ".join(f"{axis}={member}" for member, one in having.items() if name in one)
                what = f"{path} is an option of no row's {axis}"
                problems.append(UserError(what, where=where, fix=f"{members} has it"))
        return sorted(map(str, problems))


def _key(name: str, value: Any) -> tuple[str, str]:
    """Return the key of a part among those that were read."""
    return name, repr(value)


def _model(model: dict[str, Any], given: Mapping[str, Any], places: Mapping[str, str]) -> dict[str, Any]:
    """Return a model as this machine has it: a folder as a local one, and a hub model as the file that `fetch` left.

    Args:
        given: what the grid and the command line set; with another path or shape it is shown as another model.
        places: key -> where that is.

    Raises UserError for what has no meaning for a model of its source, which would run unchanged.
    """
    edited = {path for path in given if path.startswith("model.")}
    path = model["path"]
    if model["source"] == ModelSource.HUB:
        # No id of the hub begins with /, ~ or a dot, or has two slashes.
        if isinstance(path, str) and (path.startswith(("/", "~", ".")) or path.count("/") > 1):
            model = {**model, "source": ModelSource.LOCAL.value}
            edited -= {"model.path"}  # a caveat names the folder
        elif not edited and (file := fetched(model)):
            local: dict[str, Any] = {"source": ModelSource.LOCAL.value, "path": str(file), "revision": None, "arch": {}}
            model = {**model, **local, "display": model["wheel"]["display"]}
    source = ModelSource(model["source"])
    for key in sorted(edited):
        option = key.split(".")[1]
        having = [one.value for one in ModelSource if option in one.reads]
        if having and source.value not in having and given[key] is not None:
            what = f"{key} says nothing of {model['name']}, whose source is {source.value}, not {' or '.join(having)}"
            raise UserError(what, where=places[key], fix=f"model=local model.path={given[key]}" * (option == "path"))
    if edited:
        said = {"another shape" if key.startswith("model.arch") else f"{key}={given[key]}" for key in edited}
        model = {**model, "display": f"{model['display']} ({', '.join(sorted(said))})"}
    return model


def _precision(composer: Composer, tree: Mapping[str, Any], device: Device, kind: Kind) -> dict[str, Any]:
    """Return the precision that a trial does not name: its package's, the fastest measured here, or the model's own.

    A device that sums in fp16 takes the model in fp32 (`Device.sums_in_fp16`).
    """
    own, model = dict(tree["precision"]), tree["model"]
    chosen = own.pop("name")
    stored = package.of(Model(source=ModelSource(model["source"]), path=model["path"]))
    if stored is not None:
        return {**stored.contents.precision, **own}
    if chosen == FASTEST and not device.makes_circuits:
        name = format_times(fastest_on(composer, device)).fastest(difference(kind, tree["estimator"].get("eps")))
    else:
        half = Precision.read(model["precision"]).format.bytes < 4
        name = "fp32" if half and device.sums_in_fp16 else model["precision"]
    return {"name": name, **own}


def difference(kind: Kind, eps: object) -> float | None:
    """Return the eps of a trial's loss differences; None if it takes none."""
    return float(eps) if kind.estimates and isinstance(eps, (int, float)) else None


def fastest_on(composer: Composer, device: Device) -> str:
    """Return the torch device whose fastest precision a trial takes. Raises UserError for one that is not here."""
    here = probe.has_cuda() and not device.cpu
    if composer.run.cluster.address or device.is_phone:
        what = "precision=fastest is what this machine measures, and the trials run on others"
        raise UserError(what, fix="name a precision, such as precision=bf16")
    return "cuda" if here else "cpu"


def _scale(tree: dict[str, Any], scale: ScaleConfig, kind: Kind, forced: Collection[str]) -> None:
    """Apply the scale (smoke, short) to keys that neither the command line nor the column sets."""
    train, model = tree["train"], tree["model"]
    steps = scale.zo if kind.estimates else scale.fo if kind.backpropagates else ScaleSteps()
    for part, values in (("train", steps), ("split", scale.split)):
        for key, value in asdict(values).items():
            if value is not None and tree[part][key] is not None and f"{part}.{key}" not in forced:
                tree[part][key] = value
    random = model["source"] == ModelSource.RANDOM
    if scale.layers is not None and random and "model.arch.num_hidden_layers" not in forced:
        model["arch"] = with_layers(model["arch"], scale.layers)
        if tree["space"].get("blocks"):
            tree["space"]["blocks"] = min(tree["space"]["blocks"], scale.layers)
    if scale.max_length is not None and "train.max_length" not in forced and isinstance(train["max_length"], int):
        train["max_length"] = min(train["max_length"], scale.max_length)


def _with_batch(config: TrialConfig) -> TrialConfig:
    """Fill in B = E / q, or E, and the steps of `examples`, and limit eval_every to the number of steps."""
    train, q = config.train, config.estimator.budget if config.method.kind.estimates else 1
    if train.batch is not None:
        train = replace(train, effective_batch=train.batch * q)
    elif train.effective_batch % q == 0:
        train = replace(train, batch=train.effective_batch // q)
    if train.examples is not None and train.batch is not None and config.method.kind.trains:
        evaluations = max(round(train.examples / train.eval_every), 1)
        each = config.method.kind.answers or config.forwards(1)
        steps = max(train.examples // (each * train.batch), 1)
        train = replace(train, steps=steps, eval_every=-(-steps // evaluations))
    train = replace(train, eval_every=min(train.eval_every, max(train.steps, 1)))
    return replace(config, train=train)


def _set(tree: dict[str, Any], path: str, value: Any) -> None:
    *parents, leaf = path.split(".")
    node = tree
    for key in parents:
        child = node.get(key)
        node[key] = dict(child) if isinstance(child, Mapping) else {}
        node = node[key]
    node[leaf] = value


@dataclass(frozen=True)
class Ran:
    """A cell: what its row and column promise, and the configurations of its trials."""

    promise: Promise
    configs: list[TrialConfig] = field(default_factory=list)


Runs = Mapping[tuple[str, str], Ran]  # (block, column) -> the cell
_resolved: WeakKeyDictionary[Composer, tuple[GridConfig, Runs]] = WeakKeyDictionary()


def add(runs: dict[tuple[str, str], Ran], block: str, setting: Setting, config: TrialConfig) -> None:
    """Add a trial to the cell of its block and column."""
    column = setting.column or config.task.name
    runs.setdefault((block, column), Ran(setting.promise)).configs.append(config)


def as_written(composer: Composer, parts: dict[tuple[str, str], Any] | None = None) -> tuple[GridConfig, Runs]:
    """Return the composer's grid without any override of trials, and its cells; none if the command line has none.

    The first seed stands for all; `parts` as of `Resolver`. A block that only an override makes valid has no cells.
    Resolved once per composer.
    """
    runs: dict[tuple[str, str], Ran] = {}
    if not composer.command_line.changes_trials:
        return composer.run.grid, runs
    written = composer.as_written()
    if written in _resolved:
        return _resolved[written]
    grid = replace(written.run.grid, seeds=written.run.grid.seeds[:1])
    resolver = Resolver(written, parts)
    for name in grid.blocks:
        try:
            for setting in expand(grid, name, Overrides(written)):
                add(runs, name, setting, resolver.resolve(setting))
        except UserError:
            continue
    _resolved[written] = written.run.grid, runs
    return _resolved[written]
