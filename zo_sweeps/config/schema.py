"""Hydra's schema: the keys of a run and of its trials, with their types and defaults.

The parts of a trial come from their definitions in `zo_sweeps.methods`. The axes are untyped here, because the options
depend on the member: `TrialConfig.read` checks them.
"""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields, is_dataclass, make_dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from zo_sweeps.core.errors import UserError, unknown
from zo_sweeps.methods.definition import hints, options, write
from zo_sweeps.methods.evaluation import Evaluation
from zo_sweeps.methods.executor import Budget, Executor
from zo_sweeps.methods.parts import Data, Device, Gradients, Model, PromptOptions, Split, Train
from zo_sweeps.methods.registry import members

# Groups that only choose their own sub-tree: each option is composed once, in however many trials it is combined.
OWN_TREE = ("model", "task", "prompt", "precision", "device")
# Those of them that a grid's row names as a whole: with another path it is another model.
WHOLE = ("model", "task", "prompt", "precision")
# Groups that a method preset chooses together.
AXES = ("estimator", "perturbation", "space", "update")
METHOD = ("method", *AXES)
TRIAL_GROUPS = OWN_TREE + METHOD
# Parts that Hydra checks; the others are untyped until the member is known.
TYPED = {
    "model": Model,
    "prompt": PromptOptions,
    "device": Device,
    "evaluation": Evaluation,
    "train": Train,
    "gradients": Gradients,
    "split": Split,
    "data": Data,
}
# The keys of a trial; all others belong to the run.
TRIAL_KEYS = (*TRIAL_GROUPS, "evaluation", "train", "gradients", "split", "data", "seed")
# What a label promises (see plan/overrides.py): amounts of work are no part of it, except the length that a column
# names; the command line may replace an axis over a searched key, and restrict any other.
LENGTH = "train.max_length"
AMOUNTS = ("train.steps", "train.eval_every", LENGTH, "split.train", "split.dev", "split.test")
SEARCHED = ("update.lr", "estimator.eps")
OF_DEVICE = ("device.kind", "device.runtime", "device.form")  # what computes a row that names its device
# One amount in two ways, of which the second replaces the first where both are set.
EITHER = {
    "train.effective_batch": "train.batch",
    "train.steps": "train.examples",
    "split.train": "split.shots",
    "split.dev": "split.shots",
}
FILLED_IN = {  # by the planner, not by the user
    "model": ("fingerprint",),
    "data": ("text_fingerprint",),
    "train": ("halving_among",),
}


def schema_of(part: Any, without: tuple[str, ...] = ()) -> type:
    """Return Hydra's schema of a definition: a mutable dataclass with types that OmegaConf supports."""
    types_of: Mapping[str, Any] = hints(part)
    made: list[Any] = []
    for f in options(part):
        if f.name not in without:
            default = f.default_factory() if f.default_factory is not MISSING else f.default
            plain = write(default)
            mutable = isinstance(plain, (list, dict))
            made.append((f.name, _plain(types_of[f.name]), field(default_factory=plain.copy) if mutable else plain))
    return make_dataclass(part.__name__, made)


def _plain(kind: Any) -> Any:
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        return Union[tuple(map(_plain, get_args(kind)))]  # noqa: UP007  # the types are known at run time only
    if origin is Literal or (isinstance(kind, type) and issubclass(kind, Enum)):
        return str
    if origin is tuple:
        return list[Any]
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return dict[str, Any]
    return kind


@dataclass
class ScaleSteps:
    steps: int | None = None
    eval_every: int | None = None


@dataclass
class ScaleSplit:
    train: int | None = None
    dev: int | None = None
    test: int | None = None
    shots: int | None = None  # only if the grid has shots


@dataclass
class ScaleConfig:
    name: str = "paper"
    zo: ScaleSteps = field(default_factory=ScaleSteps)
    fo: ScaleSteps = field(default_factory=ScaleSteps)
    split: ScaleSplit = field(default_factory=ScaleSplit)
    max_length: int | None = None
    layers: int | None = None  # of models with random weights


@dataclass
class ClusterConfig:
    address: str | None = None  # host:port of a Ray head; null: a local cluster for this sweep


@dataclass
class TrackingConfig:
    uri: str | None = None  # an MLflow server; null: state_dir's own store, without one
    also: list[str] = field(default_factory=list)  # other trackers that get each trial when it ends: wandb, tensorboard


@dataclass
class OnConfig:
    """A command (run without a shell) or a URL (JSON is posted to it) each; in no record of the sweep."""

    done: str | None = None  # called when the sweep has ended and its exit status is 0
    failed: str | None = None  # called when it ended in any other way, interrupted included
    first_result: str | None = None  # called when the first trial of this run has a result


@dataclass
class BlockConfig:
    label: str = ""
    fixed: dict[str, Any] = field(default_factory=dict)
    axes: dict[str, Any] = field(default_factory=dict)
    per_task: dict[str, dict[str, Any]] = field(default_factory=dict)
    exclude: list[dict[str, Any]] = field(default_factory=list)
    setting_of: str = ""  # the block whose selected setting its rows show; "": the best of its own


@dataclass
class SelectConfig:
    metric: str = "dev/loss"
    mode: str = "min"
    seeds: int | None = None  # the first seeds, at which settings are compared; the others run the selected one alone


@dataclass
class GridDifference:
    """What a grid does otherwise than the paper, or where the paper says nothing; no rows or columns: all of them."""

    about: str = ""  # one of zo_sweeps.tables.records.ASPECTS
    text: str = ""  # "NF4; the paper: SqueezeLLM"
    rows: list[str] = field(default_factory=list)  # blocks
    columns: list[str] = field(default_factory=list)

    @property
    def note(self) -> str:
        """The footnote."""
        return f"differs in {self.about}: {self.text}"

    def line(self, labels: Sequence[str]) -> str:
        """Return the footnote for a place without marks; labels: of the rows and columns that it is on."""
        return f"{'; '.join(labels)}: {self.note}" if labels else self.note


@dataclass
class GridTable:
    layout: str = "accuracy"  # a file of conf/table
    published: str | None = None  # paper/table of conf/paper
    title: str = ""
    rows: dict[str, str] = field(default_factory=dict)  # block -> published row name; "": its label; {}: every block
    over: dict[str, str] = field(default_factory=dict)  # row -> the block that it is compared with, of some layouts
    against: str = ""  # the block that every other row is compared with, in place of `over`
    beyond: str = ""  # of a ratio: a block that is subtracted from both
    footnotes: list[str] = field(default_factory=list)
    differs: list[GridDifference] = field(default_factory=list)  # of this table alone
    may_differ: list[str] = field(default_factory=list)  # what the places of its costs differ in by design: runtime
    average: bool = False  # a column with the mean over the columns
    rank: bool = False  # a column with the mean rank over the columns
    largest: bool = False  # a column with the largest value of the row
    target: float | None = None  # of a layout of costs to a target: of the task's first metric on dev; 0.8 is 80 %
    within: float | None = None  # of a layout of dev scores: seconds of steps; later evaluations do not count
    select: SelectConfig | None = None  # the rule of this table; null: the grid's


@dataclass
class GridFigure:
    kind: str = "line"  # a member of figure_kind: line, bar (of finished runs), curve (over training), cumulative, …
    title: str = ""
    x: str = "column"  # line, bar: "column", an axis or a key (estimator.q); scatter: as y; curve: step, seconds
    x_label: str = ""  # line, bar: of the axis, in words and units; "": the key's last word
    y_label: str = ""  # the same; "": the measure's name and unit
    y: str = "accuracy"  # line, bar: a file of conf/table or a metric; curve: dev/loss, dev/metric or train/loss
    curves: dict[str, str] = field(default_factory=dict)  # curve: y (gradients/...) -> label, for several; replaces y
    at: list[float] = field(default_factory=lambda: [1.0])  # cumulative: fractions of the training
    panels: str = "column"  # "column" or a key of a trial: a panel per value; "": one panel
    series: dict[str, str] = field(default_factory=dict)  # block -> label; {}: every block
    over: dict[str, str] = field(default_factory=dict)  # block -> the block divided by it, for a y that is a ratio
    published: list[Any] = field(default_factory=list)  # {series: block, panel: column, x: ..., y: ...}
    footnotes: list[str] = field(default_factory=list)
    differs: list[GridDifference] = field(default_factory=list)  # of this figure alone
    select: SelectConfig | None = None  # the rule of this figure; null: the grid's


@dataclass
class GridConfig:
    name: str = ""  # of its sweeps in MLflow and in file names; "": its file's
    title: str = ""
    paper: str = ""
    differs: list[GridDifference] = field(default_factory=list)  # from the paper, in every table and figure
    fixed: dict[str, Any] = field(default_factory=dict)
    axes: dict[str, Any] = field(default_factory=dict)
    # name -> its fixed values, `label`; if they are not tasks
    columns: dict[str, dict[str, Any]] = field(default_factory=dict)
    seeds: list[int] = field(default_factory=lambda: [0])
    rates: list[float] = field(default_factory=list)  # an axis: factors of the update.lr of each row that has one
    relabel: bool = False  # run rows and columns with overrides of what they fix, under labels that name these
    select: SelectConfig = field(default_factory=SelectConfig)
    exclude: list[dict[str, Any]] = field(default_factory=list)
    blocks: dict[str, BlockConfig] = field(default_factory=dict)
    only: list[str] = field(default_factory=list)  # blocks: all others are left out; []: none is
    entrants: dict[str, dict[str, Any]] = field(default_factory=dict)  # method that joins as a block -> its own axes
    tables: dict[str, GridTable] = field(default_factory=dict)  # {}, without figures too: the accuracy of all blocks
    figures: dict[str, GridFigure] = field(default_factory=dict)  # {}: convergence curves of all blocks

    @classmethod
    def read(cls, data: Mapping[str, Any]) -> GridConfig:
        """Return the grid of which `data` is `asdict`."""
        from omegaconf import OmegaConf

        grid = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(cls), OmegaConf.create(dict(data))))
        assert isinstance(grid, GridConfig)
        return grid

    def label(self, block: str) -> str:
        """Return the printed name of a block: its label, or its own name if it has none."""
        return self.blocks[block].label or block

    def column_label(self, column: str) -> str:
        """Return the printed name of one of `columns`: its label, or its own name if it has none."""
        return str(self.columns[column].get("label", column))

    def column_values(self, column: str) -> dict[str, Any]:
        """Return the values that one of `columns` fixes."""
        return {key: value for key, value in self.columns[column].items() if key != "label"}


@dataclass(frozen=True)
class RunConfig:
    """The configuration of a run: every key that is not a trial's."""

    scale: ScaleConfig
    executor: Executor
    cluster: ClusterConfig
    tracking: TrackingConfig
    on: OnConfig
    budget: Budget
    grid: GridConfig
    state_dir: str  # as the user wrote it

    @property
    def folder(self) -> Path:
        """The state folder, `~` expanded."""
        return Path(self.state_dir).expanduser()

    def to_json(self) -> dict[str, Any]:
        """Return the configuration as Hydra composed it, without `on`, whose values may hold credentials."""
        data = {**asdict(self), "executor": self.executor.to_json()}
        del data["on"]
        return data


_BUDGET: Any = schema_of(Budget)
_OPEN: Any = dict[str, Any]
Config = make_dataclass(
    "Config",
    [
        *((name, _OPEN, field(default_factory=dict)) for name in ("task", "precision", *METHOD)),
        *(
            (name, made := schema_of(part, FILLED_IN.get(name, ())), field(default_factory=made))
            for name, part in TYPED.items()
        ),
        ("seed", int, 0),
        ("scale", ScaleConfig, field(default_factory=ScaleConfig)),
        ("executor", _OPEN, field(default_factory=dict)),
        ("cluster", ClusterConfig, field(default_factory=ClusterConfig)),
        ("tracking", TrackingConfig, field(default_factory=TrackingConfig)),
        ("on", OnConfig, field(default_factory=OnConfig)),
        ("budget", _BUDGET, field(default_factory=_BUDGET)),
        ("grid", GridConfig, field(default_factory=GridConfig)),
        ("state_dir", str, "zo_runs"),
    ],
)


SCALARS = {str: "text (in quotes, if it has ': ' in it)", int: "an integer", float: "a number"}


def faults(value: Any, path: str) -> Iterator[tuple[str, str]]:
    """Yield every dotted key below a value that nothing declares, with "", or of a wrong type, with what it must be.

    OmegaConf takes any key with a + before it, and any mapping or list as an entry of a list[str] or dict[str, str].
    """
    if not is_dataclass(value):
        return
    hints = get_type_hints(type(value))
    yield from ((f"{path}.{key}", "") for key in vars(value) if key not in hints)
    for f in fields(value):
        inner, own = getattr(value, f.name), f"{path}.{f.name}"
        yield from faults(inner, own)
        entries = dict(enumerate(inner)) if isinstance(inner, list) else inner
        for key, entry in entries.items() if isinstance(entries, dict) else ():
            yield from faults(entry, f"{own}.{key}")
            if isinstance(entry, (dict, list)) and (kind := SCALARS.get(get_args(hints[f.name])[-1])):
                yield f"{own}.{key}", kind


def unknown_key(path: str, where: str) -> UserError:
    """Return the error for a key that nothing declares; the likely fix: one of that name elsewhere, or like it."""
    error, name = unknown("key", path, siblings(path), where=where), path.rpartition(".")[2]
    parts = {key: fields(part) for key, part in get_type_hints(Config).items() if is_dataclass(part)}
    declared = {f"{key}.{f.name}" for key, own in parts.items() for f in own}
    for axis in ("precision", *AXES):
        declared |= {f"{axis}.{f.name}" for one in members(axis).values() for f in options(one)}
    if named := sorted(key for key in declared if key.endswith(f".{name}")):
        error.fix = f"did you mean {' or '.join(map(repr, named))}?"
    return error


def siblings(path: str) -> list[str]:
    """Return the dotted keys that the schema declares where `path` is."""
    node: Any = Config
    *parents, _ = path.split(".")
    for part in parents:
        node = get_type_hints(node).get(part) if is_dataclass(node) else None
    return [".".join([*parents, f.name]) for f in fields(node)] if is_dataclass(node) else []
