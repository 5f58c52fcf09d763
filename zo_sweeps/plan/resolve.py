"""A setting -> the configuration of its trial."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any
from weakref import WeakKeyDictionary

from zo_sweeps.config.command_line import PLACE
from zo_sweeps.config.composer import Composer
from zo_sweeps.config.schema import AXES, GridConfig, ScaleConfig, ScaleSteps
from zo_sweeps.core.errors import UserError, unknown
from zo_sweeps.devices import probe
from zo_sweeps.devices.speed import format_times
from zo_sweeps.methods import registry
from zo_sweeps.methods.definition import Locate, options, read
from zo_sweeps.methods.kind import Kind
from zo_sweeps.methods.parts import Device, Model, ModelSource, NamedMethod
from zo_sweeps.methods.precision import FASTEST, OWN, Precision
from zo_sweeps.methods.trial_config import TrialConfig
from zo_sweeps.plan.expand import Setting, expand
from zo_sweeps.plan.overrides import Overrides, Promise


class Parts:
    """The parts of a plan's configurations as they were read: most trials share most of them."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], Any] = {}

    def read(self, tree: Mapping[str, Any], locate: Locate) -> TrialConfig:
        """Return the configuration of a tree, equal parts as the same object. Raises UserError as TrialConfig.read."""
        keys = {name: (name, repr(value)) for name, value in tree.items()}
        config = TrialConfig.read({name: self._known.get(keys[name], tree[name]) for name in tree}, locate)
        self._known |= {key: getattr(config, name) for name, key in keys.items()}
        return config


class Options:
    """Checks that the keys of a grid (`space.rank`) are options of its members.

    A key of the grid or the command line is ignored for members without that option (rank, in a full space). It is an
    error if a block sets it for its own member, or if it is an option of no member.
    """

    def __init__(self) -> None:
        self._taken: set[str] = set()
        self._ignored: set[str] = set()

    def takes(self, config: Mapping[str, Any], path: str, setting: Setting) -> bool:
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

    def unknown(self, composer: Composer, overrides: Overrides) -> list[str]:
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
            forced, name = path in composer.forced.values, f"{axis}.{option.partition('.')[0]}"
            where = PLACE if forced else f"grid {composer.run.grid.name}"
            if not any(name in one for one in having.values()):
                problems.append(str(unknown("key", path, {key for one in having.values() for key in one}, where=where)))
            elif forced and not overrides.leaves_out(path):
                members = " or ".join(f"{axis}={member}" for member, one in having.items() if name in one)
                problems.append(
                    str(UserError(f"{path} is an option of no row's {axis}", where=where, fix=f"{members} has it"))
                )
        return sorted(problems)


def resolve(composer: Composer, setting: Setting, options: Options, parts: Parts) -> TrialConfig:
    """Return the configuration of a trial; ascending precedence: presets, grid, scale, command line.

    Raises UserError for a key or value that no definition has.
    """
    forced: Collection[str] = composer.forced.values
    base = composer.trial_part(setting.choices)
    tree = {key: dict(value) if isinstance(value, dict) else value for key, value in base.items()}
    given: dict[str, str] = {}
    for path, value in setting.values.items():
        if options.takes(tree, path, setting):
            _set(tree, path, value)
            given[path] = PLACE if path in forced else setting.where
    edited = {path for path in given if path.startswith("model.")}  # with another path or shape it is another model
    if tree["model"]["source"] == ModelSource.HUB and is_folder(tree["model"]["path"]):
        tree["model"] = {**tree["model"], "source": ModelSource.LOCAL.value}
        edited -= {"model.path"}  # a caveat names the folder
    elif tree["model"]["source"] == ModelSource.HUB and not edited:
        tree["model"] = _as_fetched(tree["model"])
    if edited:
        said = {
            "another shape" if path.startswith("model.arch") else f"{path}={setting.values[path]}" for path in edited
        }
        tree["model"] = {**tree["model"], "display": f"{tree['model']['display']} ({', '.join(sorted(said))})"}
    located = composer.locate(setting.choices)

    def where(key: str) -> str:
        return given.get(key) or located(key)

    kind, steps = NamedMethod.read(tree["method"], "method", where).kind, tree["train"]["steps"]
    if "train.steps" in forced and "train.examples" in forced:
        raise UserError("train.examples gives the steps", where=PLACE, fix="omit train.steps, or train.examples")
    _scale(tree, composer.run.scale, kind, {*forced, *setting.promise.of_column})  # what a column fixes, no scale cuts
    if "train.steps" in forced or tree["train"]["steps"] != steps:  # the command line's, or the scale's
        tree["train"]["examples"] = None
    if tree["split"]["seed"] is None:
        tree["split"]["seed"] = tree["seed"]
    if not kind.trains:
        tree["train"]["steps"] = 0
    if tree["precision"]["name"] in (OWN, FASTEST):
        own = {key: value for key, value in tree["precision"].items() if key != "name"}
        measured = {} if tree["precision"]["name"] == OWN else _fastest(composer, tree, kind)
        tree["precision"] = {
            **_own_precision(tree["model"], read(Device, tree["device"], "device", where)),
            **measured,
            **own,
        }
    tree["members"] = [str(folder) for folder in registry.folders()]
    return _with_batch(parts.read(tree, where))


def is_folder(path: object) -> bool:
    """Return whether a hub model's path is a folder: no id begins with /, ~ or a dot, or has two slashes."""
    return isinstance(path, str) and (path.startswith(("/", "~", ".")) or path.count("/") > 1)


def _as_fetched(model: dict[str, Any]) -> dict[str, Any]:
    """Return a hub model as the GGUF file that `fetch` left for it, where that is what this machine has of it."""
    from zo_sweeps.models.identity import fetched

    if (file := fetched(model)) is None:
        return model
    local: dict[str, Any] = {"source": ModelSource.LOCAL.value, "path": str(file), "revision": None, "arch": {}}
    return {**model, **local, "display": model["wheel"]["display"]}


def _own_precision(model: Mapping[str, Any], device: Device) -> Mapping[str, Any]:
    """Return the precision of a model that a trial does not choose: the package's, if it is one.

    A device that sums in fp16 takes the model in fp32 (`Device.sums_in_fp16`).
    """
    from zo_sweeps.models import package

    source, path = ModelSource(model["source"]), model["path"]
    stored = package.of(Model(source=source, path=path))
    if stored is not None:
        return stored.contents.precision
    own = Precision.read(model["precision"])
    return {"name": "fp32" if own.format.bytes < 4 and device.sums_in_fp16 else model["precision"]}


def _fastest(composer: Composer, tree: Mapping[str, Any], kind: Kind) -> Mapping[str, Any]:
    """Return the precision that was measured as the fastest for the trial's device on this machine.

    Nothing for a package, whose codes are fixed, and for a trial without a model.
    """
    from zo_sweeps.models import package

    device, model = read(Device, tree["device"], "device"), tree["model"]
    if device.makes_circuits or package.of(Model(source=ModelSource(model["source"]), path=model["path"])) is not None:
        return {}
    eps = difference(kind, tree["estimator"].get("eps"))
    return {"name": format_times(fastest_on(composer, device)).fastest(eps)}


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
    train, split, model = tree["train"], tree["split"], tree["model"]
    steps = scale.zo if kind.estimates else scale.fo if kind.backpropagates else ScaleSteps()
    for key, value in asdict(steps).items():
        if value is not None and f"train.{key}" not in forced:
            train[key] = value
    for key, value in asdict(scale.split).items():
        if value is not None and split[key] is not None and f"split.{key}" not in forced:
            split[key] = value
    if (
        scale.layers is not None
        and model["source"] == ModelSource.RANDOM
        and "model.arch.num_hidden_layers" not in forced
    ):
        from zo_sweeps.models.families import with_layers

        model["arch"] = with_layers(model["arch"], scale.layers)
    if scale.max_length is not None and "train.max_length" not in forced and isinstance(train["max_length"], int):
        train["max_length"] = min(train["max_length"], scale.max_length)


def _with_batch(config: TrialConfig) -> TrialConfig:
    """Fill in B = E / q and the steps of `examples`, and limit eval_every to the number of steps."""
    train, q = config.train, config.estimator.budget if config.method.kind.estimates else 1
    if train.batch is None and train.effective_batch % q == 0:
        train = replace(train, batch=train.effective_batch // q)
    if train.examples is not None and train.batch is not None and config.method.kind.trains:
        evaluations = max(round(train.examples / train.eval_every), 1)
        steps = max(train.examples // (config.forwards(1) * train.batch), 1)
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


def as_written(composer: Composer, parts: Parts) -> tuple[GridConfig, Runs]:
    """Return the composer's grid without any override of trials, and its cells; none if the command line has none.

    The first seed stands for all. A block that only an override makes valid has no cells. Resolved once per composer.
    """
    runs: dict[tuple[str, str], Ran] = {}
    if not composer.command_line.changes_trials:
        return composer.run.grid, runs
    written = composer.as_written()
    if written in _resolved:
        return _resolved[written]
    grid = replace(written.run.grid, seeds=written.run.grid.seeds[:1])
    options = Options()
    for name, block in grid.blocks.items():
        try:
            for setting in expand(written, grid, name, block, Overrides(written)):
                add(runs, name, setting, resolve(written, setting, options, parts))
        except UserError:
            continue
    _resolved[written] = written.run.grid, runs
    return _resolved[written]
