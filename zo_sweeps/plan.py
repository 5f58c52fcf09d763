"""A grid -> the trials it stands for, what each needs, and everything that would go wrong. Launches nothing.

A grid has blocks (printed rows). Each has fixed values and axes; the axes of `column` (the task) are expanded first, so
that a task can replace another axis's values (`per_task`); then the product of the others; then the seeds. A trial that
two cells ask for is one trial: trials are keyed by the fingerprint of everything that changes their result.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from zo_sweeps.config import AXES, TRIAL_GROUPS, Composer, Forced
from zo_sweeps.errors import UserError, unknown
from zo_sweeps.fingerprint import fingerprint
from zo_sweeps.trial import Needs, Trial

NUMERICS = 1  # raised whenever the engine's results change: old results are then not taken for new ones
KINDS = ("zero_shot", "zo", "fo")
MODES = ("sequential", "outer", "inner", "both")
SCHEDULES = ("constant", "linear")
BATCHED_SPACES = ("lora", "lora_fa")
BYTES_A_TOKEN = 4  # of English text as JSON, roughly; for estimates only
ZO_UPDATES, FO_UPDATES = ("sgd",), ("adam",)


@dataclass(frozen=True)
class Cell:
    """One trial's place in a grid: (block, task) is a printed cell, `hyperparameters` the searched axes' values."""

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
        labels: task -> printed name.
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
                labels[config["task"]["name"]] = config["task"].get("display") or config["task"]["name"]
                if trial_id not in trials:
                    trials[trial_id] = _trial(trial_id, config, grid["name"], block, label, setting, memory, tokens)
                    if why:
                        missing[trial_id] = why
                cells.append(Cell(block, config["task"]["name"], config["seed"], dict(setting.searched), trial_id))
        except UserError as error:
            _note(problems, str(error), block)
    found = [f"{text} (block{'s' * (len(where) > 1)} {', '.join(where)})" for text, where in problems.items()]
    if found := [*found, *options.unknown()]:
        raise _all(found, str(grid["name"]))
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
    """One point of a block's axes: group choices and key values, and which of them were searched."""

    choices: Mapping[str, str]
    values: Mapping[str, Any]
    searched: Mapping[str, Any]


def _expand(composer: Composer, grid: Mapping[str, Any], block: str, spec: Mapping[str, Any]) -> Iterator[_Setting]:
    """Every setting of a block, seeds last, in the order of the file."""
    where = f"grid {grid['name']}, block {block}"
    forced = composer.forced
    fixed = {**_flatten(grid["fixed"]), **_flatten(spec["fixed"])}
    axes = {**_axes(grid["axes"], where), **_axes(spec["axes"], where)}
    for name in {*fixed} & {*axes}:
        raise UserError(f"{name!r} is both fixed and an axis", where=where)
    default_task = fixed.get("task", composer.base["task"]["name"])
    tasks: Sequence[str] = forced.choices.get("task") or axes.get("task") or [default_task]
    seeds: Sequence[int] = forced.values.get("seed") or grid["seeds"]
    exclude = [_flatten(entry) for entry in (*grid["exclude"], *spec["exclude"])]
    for task in tasks:
        here, own = _at_task(fixed, axes, spec["per_task"].get(task, {}), forced)
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
                yield _Setting(choices, {**values, "seed": seed}, searched)


def _at_task(
    fixed: Mapping[str, Any], axes: Mapping[str, list[Any]], per_task: Mapping[str, Any], forced: Forced
) -> tuple[dict[str, Any], dict[str, list[Any]]]:
    """(fixed values, axes) of a block at one task: the task's replace the block's, the command line's replace both."""
    here, own = dict(fixed), dict(axes)
    given = {name: list(values) for name, values in {**forced.choices, **forced.values}.items()}
    for name, value in [*_flatten(per_task).items(), *((n, v if len(v) > 1 else v[0]) for n, v in given.items())]:
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
        self._passed: dict[str, str] = {}

    def takes(self, config: Mapping[str, Any], path: str, value: Any) -> bool:
        axis, _, option = path.partition(".")
        if axis not in AXES:
            return True
        member = config[axis]
        if option not in member or option == "name":
            choices = [f"{axis}.{name}" for name in member if name != "name"]
            where = f"{axis} {member.get('name')!r}"
            self._passed.setdefault(path, str(unknown("key", path, choices, where=where)))
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
            kind = type(default).__name__
            raise UserError(f"{path}={value!r} has the wrong type", fix=f"it must be a {kind}, as {default!r}")
        return True

    def unknown(self) -> list[str]:
        return [text for path, text in self._passed.items() if path not in self._taken]


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
    for key, value in scale["split"].items():
        if value is not None and f"split.{key}" not in forced:
            config["split"][key] = value
    if scale["max_length"] is not None and "train.max_length" not in forced:
        train["max_length"] = min(train["max_length"], scale["max_length"])
    if config["method"]["kind"] == "zero_shot":
        train["steps"] = 0
    if config["precision"]["name"] == "auto":
        config["precision"] = {"name": config["model"]["precision"]}
    train["eval_every"] = max(1, min(train["eval_every"], train["steps"]))
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
    if update["schedule"] not in SCHEDULES:
        found.append(str(unknown("schedule", update["schedule"], SCHEDULES, where="update.schedule")))
    if kind == "zo":
        q, eps = config["estimator"]["q"], config["estimator"]["eps"]
        if q < 1 or eps <= 0:
            found.append(f"estimator.q must be at least 1 and estimator.eps above 0, not {q} and {eps}")
        elif train["batch"] is None:
            found.append(f"effective batch {train['effective_batch']} is not a multiple of q={q}; set train.batch")
        if mode != "sequential" and space not in BATCHED_SPACES:
            found.append(
                f"evaluation.mode={mode} cannot hold several points of space {space!r}; use space=lora_fa or "
                "evaluation.mode=sequential"
            )
    if kind != "zero_shot":
        allowed = ZO_UPDATES if kind == "zo" else FO_UPDATES
        if update["name"] not in allowed:
            found.append(f"update {update['name']!r} does not go with method kind {kind!r}; use {' or '.join(allowed)}")
        if train["steps"] < 1:
            found.append(f"train.steps must be at least 1, not {train['steps']}")
        if update["lr"] < 0:
            found.append(f"update.lr must not be negative, not {update['lr']}")
        if config["space"].get("targets") == []:
            found.append(f"space {space!r} names no layers; set space.targets")
    if train["batch"] is not None and train["batch"] < 1:
        found.append(f"train.batch must be at least 1, not {train['batch']}")
    if min(config["split"][name] for name in ("train", "dev", "test")) < 1:
        found.append("split.train, split.dev and split.test must be at least 1")
    if config["device"]["name"] == "cpu" and precision == "fp16" and kind == "fo":
        found.append("backpropagation in fp16 on a CPU is not supported; use precision=fp32 or bf16")
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
        "split": config["split"],
        "max_length": config["train"]["max_length"],
        "kind": kind,
    }
    if not task.get("fingerprint"):
        result["data"] = task["name"]
    if config["device"]["name"] != "auto":
        result["device"] = config["device"]["name"]
    if kind == "zero_shot":
        return result
    result["space"] = config["space"]
    result["update"] = config["update"]
    result["train"] = {key: config["train"][key] for key in ("steps", "batch", "eval_every")}
    result["seed"] = config["seed"]
    if kind == "zo":
        result["estimator"] = config["estimator"]
        result["perturbation"] = config["perturbation"]
        result["mode"] = config["evaluation"]["mode"]
    return result


class _Places:
    """Models and data, looked up once each: are they here, which are they, how large."""

    def __init__(self) -> None:
        self._models: dict[str, Any] = {}
        self._data: dict[str, Any] = {}

    def look(self, config: dict[str, Any]) -> tuple[str, int, float]:
        """Fills in the fingerprints; returns (why it cannot run here, peak memory, tokens a sequence)."""
        model, data = self._model(config["model"]), self._task(config)
        config["model"]["fingerprint"] = model.fingerprint
        config["task"]["fingerprint"] = data.fingerprint
        why = "; ".join(
            text for text in ("" if model.available else model.why, "" if data.available else data.why) if text
        )
        tokens = float(config["train"]["max_length"])
        if data.row_bytes:
            tokens = min(tokens, max(data.row_bytes / BYTES_A_TOKEN, 16))
        return why, self._memory(config, model, tokens), tokens

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

    @staticmethod
    def _memory(config: Mapping[str, Any], model: Any, tokens: float) -> int:
        from zo_sweeps.devices.estimate import RUNTIME_BYTES, peak_memory
        from zo_sweeps.models.shapes import BYTES, lora_parameters

        precision = config["precision"]["name"]
        if not model.arch or precision not in BYTES:
            return 0
        space = config["space"]
        if space["name"] == "full":
            trainable = model.parameters
        else:
            of_A, of_B = lora_parameters(model.arch, space["targets"], space["rank"])
            trainable = of_B + (of_A if space["name"] == "lora" else 0)
        kind = config["method"]["kind"]
        return RUNTIME_BYTES + peak_memory(
            model.parameters,
            model.arch,
            BYTES[precision],
            kind,
            space["name"],
            config["estimator"]["q"],
            config["evaluation"]["mode"],
            config["train"]["batch"] or 1,
            int(min(config["train"]["max_length"], 2 * tokens)),  # the longest row of a batch, not the mean
            int(model.arch["vocab_size"]),
            trainable,
        )


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
    passes = 2 * config["estimator"]["q"] if kind == "zo" else 3  # a backward pass costs about two forwards
    evaluations = -(-train["steps"] // train["eval_every"]) if train["steps"] else 1
    sequences = train["steps"] * batch * passes + evaluations * split["dev"] + split["test"]
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
    given = [f"{k}={','.join(v)}" for k, v in composer.forced.choices.items() if k not in ("task", "device")]
    given += [
        f"{k}={','.join(map(str, v))}" for k, v in composer.forced.values.items() if k not in ("data.dir", "model.path")
    ]
    if given:
        found.append(f"set on the command line: {' '.join(given)}")
    return tuple(found)
