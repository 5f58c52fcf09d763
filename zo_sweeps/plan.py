"""A grid -> the trials it stands for, what each needs, and everything that would go wrong. Launches nothing.

A grid has blocks (printed rows) and columns: the tasks of its axis `task`, or what `columns` names. Each block has
fixed values and axes; the columns are expanded first, so that a column can replace a value or an axis (`columns` for
every block, `per_task` for one); then the product of the axes; then the seeds. A trial that two cells ask for is one
trial: trials are keyed by the fingerprint of everything that changes their result.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from zo_sweeps.config import AXES, TRIAL_GROUPS, Composer, Forced
from zo_sweeps.errors import UserError, unknown
from zo_sweeps.fingerprint import fingerprint
from zo_sweeps.trial import Needs, Trial

NUMERICS = 1  # raised whenever the engine's results change: old results are then not taken for new ones
KINDS = ("zero_shot", "icl", "zo", "fo")
TRAINED = ("zo", "fo")
MODES = ("sequential", "outer", "inner", "both")
SCHEDULES = ("constant", "linear")
SELECTS = ("loss", "metric")
RESTORES = ("exact", "in_place")
OBJECTIVES = ("loss", "accuracy", "f1")
BATCHED_SPACES = ("lora", "lora_fa", "dora", "vera", "prefix", "sensitive", "random_subset", "outliers")
# Options of members with more to them than a type; the engine's members refuse the same.
CHOICES: Mapping[tuple[str, str], tuple[str, ...]] = {
    ("pezo_pool", "length"): ("pool", "perturbation"),
    ("pezo_pool", "rounding"): ("none", "linear", "log"),
    ("pezo_onthefly", "length"): ("block", "perturbation"),
    ("pezo_onthefly", "address"): ("fixed", "pointer"),
    ("pezo_onthefly", "rounding"): ("none", "linear", "log"),
    ("sensitive", "scope"): ("per_layer", "global"),
    ("sensitive", "score"): ("fisher", "mean_gradient"),
    ("sensitive", "source"): ("task", "text"),
    ("outliers", "scope"): ("per_layer", "global"),
}
RANGES: Mapping[tuple[str, str], tuple[float, float]] = {
    ("low_rank", "rank"): (1, math.inf),
    ("low_rank", "interval"): (1, math.inf),
    ("pezo_pool", "k"): (2, 24),
    ("pezo_onthefly", "k"): (2, 10),
    ("pezo_onthefly", "bits"): (2, 16),
    ("vera", "rank"): (1, math.inf),
    ("dora", "rank"): (1, math.inf),
    ("prefix", "length"): (1, math.inf),
    ("sensitive", "density"): (1e-9, 1),
    ("sensitive", "samples"): (1, math.inf),
    ("sensitive", "length"): (2, math.inf),
    ("sensitive", "refresh"): (0, math.inf),
    ("random_subset", "density"): (1e-9, 1),
    ("random_subset", "refresh"): (0, math.inf),
    ("outliers", "density"): (1e-9, 1),
}
BYTES_A_TOKEN = 4  # of English text as JSON, roughly; for estimates only
ZO_UPDATES = ("sgd", "momentum", "adam", "sign", "conservative", "mezo_compat")
FO_UPDATES = ("adam", "sgd")
MOMENTS = {"adam": 2, "momentum": 1}  # fp32 copies of the trainable state that an update keeps


@dataclass(frozen=True)
class Cell:
    """One trial's place in a grid: (block, task) is a printed cell, `hyperparameters` the searched axes' values.

    `task` is the column: a task's name, or a name of the grid's `columns`.
    """

    block: str
    task: str
    seed: int
    hyperparameters: Mapping[str, Any]
    trial_id: str


@dataclass(frozen=True)
class Plan:
    """What a grid comes to.

    Args:
        grid: the grid's configuration. config: the run's (executor, scale, state_dir, ...).
        trials: each once, in grid order; those that can run here.
        cells: every (block, task, setting, seed), those that cannot run here included.
        missing: trial_id -> why its model or data is not to be had here.
        labels: column -> printed name.
        caveats: in what the trials differ from the grid as written.
    """

    grid: Mapping[str, Any]
    config: Mapping[str, Any]
    trials: tuple[Trial, ...]
    cells: tuple[Cell, ...]
    missing: Mapping[str, str]
    labels: Mapping[str, str]
    caveats: tuple[str, ...]
    every: Mapping[str, Trial] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return str(self.grid["name"])


def build(composer: Composer) -> Plan:
    """The plan of the composed grid.

    Raises UserError listing every problem at once: unknown names and keys, wrong types, parts that do not go together,
    malformed data, and a grid of which nothing can run here.
    """
    grid = composer.base["grid"]
    problems: dict[str, list[str]] = {}  # what is wrong -> the blocks it is wrong in
    cells: list[Cell] = []
    trials: dict[str, Trial] = {}
    missing: dict[str, str] = {}
    labels: dict[str, str] = {}
    places = _Places()
    options = _Options()
    if not grid["blocks"]:
        raise UserError(f"grid {grid['name']!r} has no blocks", where=f"grid/{composer.grid_name}.yaml")
    for block, spec in grid["blocks"].items():
        try:
            for setting in _expand(composer, grid, block, spec):
                config = _resolve(composer, setting, options)
                wrong = _incompatible(config)
                for text in wrong:
                    _note(problems, text, block)
                if wrong:
                    continue
                why, memory, tokens = places.look(config)
                trial_id = fingerprint(identity(config))
                label = spec["label"] or block
                column = setting.column or config["task"]["name"]
                labels[column] = setting.column or config["task"].get("display") or column
                if trial_id not in trials:
                    trials[trial_id] = _trial(trial_id, config, grid["name"], block, label, setting, memory, tokens)
                    if why:
                        missing[trial_id] = why
                cells.append(Cell(block, column, config["seed"], dict(setting.searched), trial_id))
        except UserError as error:
            _note(problems, str(error), block)
    found = [f"{text} (block{'s' * (len(where) > 1)} {', '.join(where)})" for text, where in problems.items()]
    if found := [*found, *options.unknown(composer)]:
        raise _all(found, str(grid["name"]))
    if not trials:
        raise UserError(f"grid {grid['name']!r} has no trials: no seeds, or everything is excluded")
    runnable = tuple(trial for trial_id, trial in trials.items() if trial_id not in missing)
    caveats = _caveats(composer)
    return Plan(grid, composer.base, runnable, tuple(cells), missing, labels, caveats, trials)


def _note(problems: dict[str, list[str]], text: str, block: str) -> None:
    where = problems.setdefault(text, [])
    if block not in where:
        where.append(block)


def _all(problems: Sequence[str], grid: str) -> UserError:
    if len(problems) == 1:
        return UserError(problems[0])
    listed = "".join(f"\n  - {problem}" for problem in problems)
    return UserError(f"{len(problems)} problems in grid {grid!r}:{listed}")


@dataclass(frozen=True)
class _Setting:
    """One point of a block's axes: group choices and key values, and which of them were searched.

    `column` is its name among the grid's `columns`; "" where the columns are tasks.
    """

    choices: Mapping[str, str]
    values: Mapping[str, Any]
    searched: Mapping[str, Any]
    column: str = ""


def _expand(composer: Composer, grid: Mapping[str, Any], block: str, spec: Mapping[str, Any]) -> Iterator[_Setting]:
    """Every setting of a block, seeds last, in the order of the file."""
    where = f"grid {grid['name']}, block {block}"
    forced = composer.forced
    fixed = {**_flatten(grid["fixed"]), **_flatten(spec["fixed"])}
    axes = {**_axes(grid["axes"], where), **_axes(spec["axes"], where)}
    for name in {*fixed} & {*axes}:
        raise UserError(f"{name!r} is both fixed and an axis", where=where)
    default_task = fixed.get("task", composer.base["task"]["name"])
    seeds: Sequence[int] = forced.values.get("seed") or grid["seeds"]
    exclude = [_flatten(entry) for entry in (*grid["exclude"], *spec["exclude"])]
    for column, task, of_column in _columns(grid["columns"], forced, axes.get("task"), default_task, where):
        own_values = {**of_column, **_flatten(spec["per_task"].get(column or task, {}))}
        here, own = _at_task(fixed, axes, own_values, forced)
        for name, options in {**{name: [value] for name, value in here.items()}, **own}.items():
            if name not in TRIAL_GROUPS:
                for value in options:
                    composer.check_value(name, value, where)
        for point in itertools.product(*own.values()):
            searched = dict(zip(own, point, strict=True))
            chosen = {**here, **searched, "task": task}
            if any(all(chosen.get(name) == value for name, value in entry.items()) for entry in exclude):
                continue
            choices = {name: str(value) for name, value in chosen.items() if name in TRIAL_GROUPS}
            values = {name: value for name, value in chosen.items() if name not in TRIAL_GROUPS}
            for seed in seeds:
                yield _Setting(choices, {**values, "seed": seed}, searched, column)


def _columns(
    named: Mapping[str, Any], forced: Forced, tasks: Sequence[str] | None, default_task: str, where: str
) -> list[tuple[str, str, dict[str, Any]]]:
    """(name, task, values) of every column: of the grid's `columns`, else of its tasks, which have no such name.

    A task of the command line takes the place of all of the grid's.
    """
    given = forced.choices.get("task", ())
    if not named:
        return [("", task, {}) for task in given or tasks or [default_task]]
    if len(given) > 1 or tasks:
        raise UserError("the columns of this grid are not tasks: there can be one task", where=where)
    found = []
    for name, values in named.items():
        flat = _flatten(values)
        task = flat.pop("task", default_task)
        found.append((name, given[0] if given else task, flat))
    return found


def _at_task(
    fixed: Mapping[str, Any], axes: Mapping[str, list[Any]], per_task: Mapping[str, Any], forced: Forced
) -> tuple[dict[str, Any], dict[str, list[Any]]]:
    """(fixed values, axes) of a block at one column: `per_task`, its own (flattened), replace the block's, and the
    command line's replace both."""
    here, own = dict(fixed), dict(axes)
    given = {name: list(values) for name, values in {**forced.choices, **forced.values}.items()}
    for name, value in [*per_task.items(), *((n, v if len(v) > 1 else v[0]) for n, v in given.items())]:
        here.pop(name, None)
        if isinstance(value, list) and (name not in forced.values or len(given[name]) > 1):
            own[name] = value
        else:
            own.pop(name, None)
            here[name] = value
    for name in ("task", "seed"):
        here.pop(name, None)
        own.pop(name, None)
    return here, own


def _flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """{"update": {"lr": 1}} -> {"update.lr": 1}; a group given a name stays as it is."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        path = f"{prefix}{key}"
        if isinstance(value, Mapping):
            flat.update(_flatten(value, f"{path}."))
        else:
            flat[path] = value
    return flat


def _axes(tree: Mapping[str, Any], where: str) -> dict[str, list[Any]]:
    axes = {}
    for name, values in _flatten(tree).items():
        if not isinstance(values, list):
            raise UserError(f"axis {name!r} must be a list", where=where, fix=f"did you mean [{values}]?")
        if not values:
            raise UserError(f"axis {name!r} is empty", where=where)
        axes[name] = values
    return axes


class _Options:
    """The options of axis members (`space.rank`), as their own files list them.

    A value that a grid or the command line gives to every block is passed over where the block's member has no such
    option (rank, in a full space); one that no block has is an error.
    """

    def __init__(self) -> None:
        self._taken: set[str] = set()
        self._passed: set[str] = set()

    def takes(self, config: Mapping[str, Any], path: str, value: Any) -> bool:
        axis, _, option = path.partition(".")
        if axis not in AXES:
            return True
        member = config[axis]
        if option not in member or option == "name":
            self._passed.add(path)
            return False
        self._taken.add(path)
        default = member[option]
        number = isinstance(default, (int, float)) and not isinstance(default, bool)
        fits = isinstance(value, (int, float)) and not isinstance(value, bool) if number else True
        if number and isinstance(default, int) and not isinstance(value, int):
            fits = False
        if isinstance(default, (str, bool, list)) and not isinstance(value, type(default)):
            fits = False
        if not fits:
            kind = {bool: "true or false", int: "an integer", float: "a number", str: "a name", list: "a list"}[
                type(default)
            ]
            raise UserError(f"{path}={value!r} has the wrong type", fix=f"it must be {kind}")
        if isinstance(value, float) and not math.isfinite(value):
            raise UserError(f"{path}={value!r} is not a finite number")
        return True

    def unknown(self, composer: Composer) -> list[str]:
        """A grid may name what only another member of the axis has (method=mezo, where it lists layers for LoRA)."""
        found = []
        for path in self._passed - self._taken:
            axis = path.partition(".")[0]
            members = {file.stem for folder in composer.folders for file in (folder / axis).glob("*.yaml")}
            options = {f"{axis}.{name}" for member in members for name in composer.option(axis, member)}
            if path not in options or path in composer.forced.values:
                found.append(str(unknown("key", path, options - {f"{axis}.name"})))
        return sorted(found)


def _resolve(composer: Composer, setting: _Setting, options: _Options) -> dict[str, Any]:
    """A trial's whole configuration: presets, then the grid, then the scale, then the command line."""
    scale = composer.base["scale"]
    base = composer.trial_part(setting.choices)
    config = {key: dict(value) if isinstance(value, dict) else value for key, value in base.items()}
    for path, value in setting.values.items():
        if options.takes(config, path, value):
            _set(config, path, value)
    train, forced = config["train"], composer.forced.values
    for kind in ("zo", "fo"):
        if config["method"]["kind"] == kind:
            for key, value in scale[kind].items():
                if value is not None and f"train.{key}" not in forced:
                    train[key] = value
    split = config["split"]
    for key, value in scale["split"].items():
        if value is not None and split[key] is not None and f"split.{key}" not in forced:
            split[key] = value
    if split["seed"] is None:
        split["seed"] = config["seed"]
    model = config["model"]
    if scale["layers"] is not None and model["source"] == "random" and "model.arch.num_hidden_layers" not in forced:
        layers = min(model["arch"]["num_hidden_layers"], scale["layers"])
        model["arch"] = {**model["arch"], "num_hidden_layers": layers}
    if scale["max_length"] is not None and "train.max_length" not in forced:
        train["max_length"] = min(train["max_length"], scale["max_length"])
    if config["method"]["kind"] not in TRAINED:
        train["steps"] = 0
    if config["precision"]["name"] == "auto":
        config["precision"] = {"name": config["model"]["precision"]}
    train["eval_every"] = min(train["eval_every"], max(train["steps"], 1))
    q = config["estimator"].get("q", 1) if config["method"]["kind"] == "zo" else 1
    if train["batch"] is None and q >= 1 and train["effective_batch"] % q == 0:
        train["batch"] = train["effective_batch"] // q
    return config


def _set(config: dict[str, Any], path: str, value: Any) -> None:
    *parents, leaf = path.split(".")
    node = config
    for key in parents:
        child = node.get(key)
        node[key] = dict(child) if isinstance(child, Mapping) else {}
        node = node[key]
    node[leaf] = value


def _incompatible(config: Mapping[str, Any]) -> list[str]:
    """Why a configuration cannot be run anywhere; empty when it can."""
    kind, mode, space = config["method"]["kind"], config["evaluation"]["mode"], config["space"]["name"]
    train, update, precision = config["train"], config["update"], config["precision"]["name"]
    found = []
    if kind not in KINDS:
        found.append(str(unknown("kind", kind, KINDS, where="method.kind")))
    if mode not in MODES:
        found.append(str(unknown("mode", mode, MODES, where="evaluation.mode")))
    if train["select"] not in SELECTS:
        found.append(str(unknown("select", train["select"], SELECTS, where="train.select")))
    if update["schedule"] not in SCHEDULES:
        found.append(str(unknown("schedule", update["schedule"], SCHEDULES, where="update.schedule")))
    if kind == "zo":
        q, eps = config["estimator"].get("q", 1), config["estimator"]["eps"]
        if q < 1 or eps <= 0:
            found.append(f"estimator.q must be at least 1 and estimator.eps above 0, not {q} and {eps}")
        elif train["batch"] is None:
            found.append(f"effective batch {train['effective_batch']} is not a multiple of q={q}; set train.batch")
        if mode != "sequential" and space not in BATCHED_SPACES:
            found.append(
                f"evaluation.mode={mode} cannot hold several points of space {space!r}; use space=lora_fa or "
                "evaluation.mode=sequential"
            )
        found += _wrong_directions(config["estimator"]["name"], config["perturbation"], mode)
    found += _wrong_objective(config)
    if kind == "icl" and config["method"]["demonstrations"] < 1:
        found.append(f"method.demonstrations must be at least 1, not {config['method']['demonstrations']}")
    if kind in TRAINED:
        allowed = ZO_UPDATES if kind == "zo" else FO_UPDATES
        if update["name"] not in allowed:
            found.append(f"update {update['name']!r} does not go with method kind {kind!r}; use {' or '.join(allowed)}")
        if train["steps"] < 1:
            found.append(f"train.steps must be at least 1, not {train['steps']}")
        if update["lr"] < 0:
            found.append(f"update.lr must not be negative, not {update['lr']}")
        if config["space"].get("targets") == []:
            found.append(f"space {space!r} names no layers; set space.targets")
        found += _wrong_options("space", config["space"])
        if kind == "fo" and config["space"].get("refresh"):
            found.append("space.refresh must be 0 in backpropagation: its optimizer holds the entries it began with")
    for key in ("batch", "eval_every", "max_length"):
        if train[key] is not None and train[key] < 1:
            found.append(f"train.{key} must be at least 1, not {train[key]}")
    split = config["split"]
    if min(split[name] for name in ("train", "dev", "test")) < 1 or (split["shots"] is not None and split["shots"] < 1):
        found.append("split.train, split.dev, split.test and split.shots must be at least 1")
    if config["device"]["name"] == "cpu" and precision == "fp16" and kind == "fo":
        found.append("backpropagation in fp16 on a CPU is not supported; use precision=fp32 or bf16")
    return found


def _wrong_objective(config: Mapping[str, Any]) -> list[str]:
    """Why f cannot be what is asked for, or not be evaluated as is asked for."""
    objective, restore, mode = config["train"]["objective"], *(config["evaluation"][key] for key in ("restore", "mode"))
    generation = config["task"].get("kind") == "generation"
    found = []
    if restore not in RESTORES:
        found.append(str(unknown("restore", restore, RESTORES, where="evaluation.restore")))
    elif restore == "in_place" and mode != "sequential":
        found.append(f"evaluation.restore=in_place holds one point: evaluation.mode must be sequential, not {mode}")
    if objective not in OBJECTIVES:
        found.append(str(unknown("objective", objective, OBJECTIVES, where="train.objective")))
    elif objective != "loss":
        if config["method"]["kind"] != "zo":
            found.append(f"train.objective={objective} is not differentiable: it needs a zeroth-order method")
        if generation != (objective == "f1"):
            found.append(f"train.objective must be {'f1' if generation else 'accuracy'} or loss for this task")
        if objective == "f1" and mode != "sequential":
            found.append(f"train.objective=f1 generates at one point: evaluation.mode must be sequential, not {mode}")
    return found


def _wrong_directions(estimator: str, perturbation: Mapping[str, Any], mode: str) -> list[str]:
    name = perturbation["name"]
    found = []
    if (estimator == "cge") != (name == "coordinate"):
        found.append("estimator=cge and perturbation=coordinate go together, not with others")
    elif estimator == "cge" and mode != "sequential":
        found.append(f"estimator=cge has two points a parameter: evaluation.mode must be sequential, not {mode}")
    return found + _wrong_options("perturbation", perturbation)


def _wrong_options(axis: str, member: Mapping[str, Any]) -> list[str]:
    name, found = member["name"], []
    for option, value in member.items():
        choices, (least, most) = CHOICES.get((name, option)), RANGES.get((name, option), (-math.inf, math.inf))
        if choices and value not in choices:
            found.append(str(unknown(option, value, choices, where=f"{axis}.{option}")))
        elif not choices and (name, option) in RANGES and not least <= value <= most:
            limits = f"at least {least}" if most == math.inf else f"from {least} to {most}"
            found.append(f"{axis}.{option} of {name} must be {limits}, not {value}")
    return found


def identity(config: Mapping[str, Any]) -> dict[str, Any]:
    """What changes a trial's result, and nothing else: its fingerprint is the trial_id.

    Names, paths and places are out; contents are in, as the fingerprints of model and data. A zero-shot row has no
    optimiser, seed or step in it; a first-order row no estimator. A device is in only when the grid pins one, as the
    tables of a device do.
    """
    kind, task = config["method"]["kind"], config["task"]
    dialect = task["dialects"][config["prompt"]["name"]]
    described = ("dialects", "display", "hub", "local", "source", "name")
    result: dict[str, Any] = {
        "numerics": NUMERICS,
        "model": config["model"].get("fingerprint") or {k: config["model"][k] for k in ("source", "path", "revision")},
        "task": {**{k: v for k, v in task.items() if k not in described}, "dialect": dialect},
        "precision": config["precision"]["name"],
        "split": _split_identity(config["split"]),
        "max_length": config["train"]["max_length"],
        "kind": kind,
    }
    if not task.get("fingerprint"):
        result["data"] = task["name"]
    elif task["fingerprint"].startswith("hf:"):  # of a whole data set: which parts of it are used is in the task
        result["data"] = {k: v for k, v in task["hub"].items() if k not in ("path", "name")}
    if config["device"]["name"] != "auto":
        result["device"] = config["device"]["name"]
    if kind == "zero_shot":
        return result
    if kind == "icl":
        return {**result, "demonstrations": config["method"]["demonstrations"], "seed": config["seed"]}
    result["space"] = {key: value for key, value in config["space"].items() if key != "text"}  # a path
    result["update"] = config["update"]
    result["train"] = {key: config["train"][key] for key in ("steps", "batch", "eval_every")}
    if config["train"]["select"] != "loss":
        result["train"]["select"] = config["train"]["select"]
    result["seed"] = config["seed"]
    if kind == "zo":
        result["estimator"] = config["estimator"]
        result["perturbation"] = config["perturbation"]
        result["mode"] = config["evaluation"]["mode"]
        if config["evaluation"]["restore"] != "exact":
            result["restore"] = config["evaluation"]["restore"]
        if config["train"]["objective"] != "loss":
            result["objective"] = config["train"]["objective"]
    return result


def _split_identity(split: Mapping[str, Any]) -> dict[str, Any]:
    unused = ("train", "dev") if split["shots"] else ("shots",)
    return {name: value for name, value in split.items() if name not in unused}


class _Places:
    """Models and data, looked up once each: are they here, which are they, how large."""

    def __init__(self) -> None:
        self._models: dict[str, Any] = {}
        self._data: dict[str, Any] = {}
        self._texts: dict[Path, str] = {}

    def look(self, config: dict[str, Any]) -> tuple[str, int, float]:
        """Fills in the fingerprints; returns (why it cannot run here, peak memory, tokens a sequence)."""
        model, data = self._model(config["model"]), self._task(config)
        config["model"]["fingerprint"] = model.fingerprint
        config["task"]["fingerprint"] = data.fingerprint
        self._masked(config, model.arch.get("model_type"))
        text = self._text(config)
        precision = config["precision"]["name"]
        stored = find_spec(f"zo_sweeps.engine.precisions.{precision}") is not None
        why = "; ".join(
            reason
            for reason, there in (
                (model.why, model.available),
                (data.why, data.available),
                (text, not text),
                (f"weights cannot be stored as {precision} yet (choose precision=fp16, bf16 or fp32)", stored),
            )
            if not there
        )
        tokens = float(config["train"]["max_length"])
        if data.row_bytes:
            tokens = min(tokens, max(data.row_bytes / BYTES_A_TOKEN, 16) * (1 + config["method"]["demonstrations"]))
        return why, self._memory(config, model, tokens), tokens

    @staticmethod
    def _masked(config: Mapping[str, Any], model_type: object) -> None:
        """Raises UserError for a causal model with a prompt for a masked one, or the other way round."""
        from zo_sweeps.models import families

        if model_type not in families.names():
            return
        wording, masked = config["task"]["dialects"].get(config["prompt"]["name"]), families.is_masked(model_type)
        if wording and masked != (wording["loss"] == "label_words"):
            kind, other = ("masked", "without") if masked else ("causal", "with")
            raise UserError(
                f"model {config['model']['name']!r} is a {kind} one, and prompt {config['prompt']['name']!r} of task "
                f"{config['task']['name']!r} is {other} a mask"
            )
        if masked and config["method"]["kind"] == "icl":
            raise UserError("in-context learning needs a causal model", fix="leave kind icl out for masked models")

    def _model(self, model: Mapping[str, Any]) -> Any:
        from zo_sweeps.models.identity import status

        key = fingerprint({k: v for k, v in model.items() if k != "fingerprint"})
        if key not in self._models:
            self._models[key] = status(model)
        return self._models[key]

    def _task(self, config: Mapping[str, Any]) -> Any:
        from zo_sweeps.tasks.data import check
        from zo_sweeps.tasks.spec import TaskSpec

        task = {k: v for k, v in config["task"].items() if k != "fingerprint"}
        dialect, folder = config["prompt"]["name"], config["data"]["dir"]
        key = fingerprint([task, dialect, folder])
        if key not in self._data:
            try:
                self._data[key] = check(TaskSpec.from_config(task, dialect), task, folder)
            except UserError as error:
                self._data[key] = error
        if isinstance(self._data[key], UserError):
            raise self._data[key]
        return self._data[key]

    def _text(self, config: dict[str, Any]) -> str:
        """Fills in the fingerprint of the text that a mask is found on; returns why it cannot be had."""
        space = config["space"]
        if space.get("source") != "text" or config["method"]["kind"] not in TRAINED:
            return ""
        file = Path(config["data"]["dir"] or ".").expanduser() / space["text"]
        if not file.is_file():
            return f"no text at {file} (space.text, under data.dir)"
        if file not in self._texts:
            self._texts[file] = hashlib.sha256(file.read_bytes()).hexdigest()[:16]
        config["space"] = {**space, "text_fingerprint": self._texts[file]}
        return ""

    @staticmethod
    def _memory(config: Mapping[str, Any], model: Any, tokens: float) -> int:
        from zo_sweeps.devices.estimate import RUNTIME_BYTES, finding_memory, peak_memory
        from zo_sweeps.models.shapes import BYTES, target_entries, trainable_parameters

        precision = config["precision"]["name"]
        if not model.arch or precision not in BYTES:
            return 0
        space = config["space"]
        trainable = model.parameters if space["name"] == "full" else trainable_parameters(model.arch, space)
        kind = config["method"]["kind"]
        finding = 0
        if space["name"] == "sensitive" and kind in TRAINED:
            of_text = space["source"] == "text"
            length = space["length"] if of_text else int(min(config["train"]["max_length"], 2 * tokens))
            entries = target_entries(model.arch, space["targets"])
            finding = finding_memory(
                model.parameters, model.arch, BYTES[precision], length, length if of_text else 1, entries
            )
        peak = peak_memory(
            model.parameters,
            model.arch,
            BYTES[precision],
            kind if kind in TRAINED else "zero_shot",
            space["name"],
            config["estimator"].get("q", 1),
            config["evaluation"]["mode"],
            config["train"]["batch"] or 1,
            int(min(config["train"]["max_length"], 2 * tokens)),  # the longest row of a batch, not the mean
            int(model.arch["vocab_size"]),
            trainable,
            moments=MOMENTS.get(config["update"]["name"], 0) if kind in TRAINED else 0,
        )
        return RUNTIME_BYTES + max(peak, finding)


def _trial(
    trial_id: str,
    config: Mapping[str, Any],
    grid: str,
    block: str,
    label: str,
    setting: _Setting,
    memory: int,
    tokens: float,
) -> Trial:
    kind, train, split = config["method"]["kind"], config["train"], config["split"]
    batch = train["batch"] or 1
    q = config["estimator"].get("q", 1)
    passes = (q + 1 if config["estimator"]["name"] == "rge_one_sided" else 2 * q) if kind == "zo" else 3
    # 3: a backward pass costs about two forwards; conservative looks at three points more
    passes += 3 * (kind == "zo" and config["update"]["name"] == "conservative")
    evaluations = -(-train["steps"] // train["eval_every"]) if train["steps"] else 1
    dialect = config["task"]["dialects"][config["prompt"]["name"]]
    dev = split["shots"] * len(dialect["options"]) if split["shots"] else split["dev"]
    sequences = train["steps"] * batch * passes + evaluations * dev + split["test"]
    task = config["task"]
    parts = [label, task.get("display") or task["name"]]
    if kind != "zero_shot":
        parts += [f"{name.rpartition('.')[2]} {_short(value)}" for name, value in setting.searched.items()]
        parts.append(f"seed {config['seed']}")
    return Trial(
        trial_id=trial_id,
        config=config,
        needs=Needs(device=config["device"]["name"], memory_bytes=memory),
        warm_key=fingerprint([config["model"]["fingerprint"], config["precision"]["name"], config["device"]["name"]]),
        cost=sequences * tokens,
        label=" · ".join(parts),
        grid=grid,
        block=block,
        task=task["name"],
    )


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _caveats(composer: Composer) -> tuple[str, ...]:
    """In what the trials differ from the grid as it is written, for the table's caption."""
    found = []
    scale = composer.base["scale"]
    if scale["name"] != "paper":
        found.append(f"scale={scale['name']}: fewer steps and examples than the grid's; not comparable with a paper")
    choices, values = composer.forced.choices, composer.forced.values
    if "model" in choices:
        model = composer.base["model"]
        found.append(f"run on {' and '.join(values.get('model.path') or choices['model'])} ({model['display']})")
    apart = ("device", "model", "data.dir", "model.path", *(() if composer.base["grid"]["columns"] else ("task",)))
    given = [f"{name}={','.join(map(str, v))}" for name, v in {**choices, **values}.items() if name not in apart]
    if given:
        found.append(f"set on the command line: {' '.join(given)}")
    return tuple(found)
