"""What Hydra composes: the keys of a run and of its trials, with their types and defaults.

The parts of a trial come from their definitions in `zo_sweeps.methods`; the members of the axes stay open here, as the
options depend on the member: `TrialConfig.read` holds them to their definition.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, make_dataclass
from enum import Enum
from typing import Any, Literal, Union, get_args, get_origin

from zo_sweeps.methods.definition import hints, options, write
from zo_sweeps.methods.evaluation import Evaluation
from zo_sweeps.methods.parts import Data, Device, Gradients, Model, Prompt, Split, Train

# Groups that only choose their own sub-tree: composed one at a time, however many trials combine them.
OWN_TREE = ("model", "task", "prompt", "precision", "device")
# Groups that a method preset chooses together.
AXES = ("estimator", "perturbation", "space", "update")
METHOD = ("method", *AXES)
TRIAL_GROUPS = OWN_TREE + METHOD
# Parts that are typed when Hydra composes them; the others are open until the member is known.
TYPED = {
    "model": Model,
    "prompt": Prompt,
    "device": Device,
    "evaluation": Evaluation,
    "train": Train,
    "gradients": Gradients,
    "split": Split,
    "data": Data,
}
# What a trial's configuration consists of; everything else belongs to the run.
TRIAL_KEYS = (*TRIAL_GROUPS, "evaluation", "train", "gradients", "split", "data", "seed")
FILLED_IN = {"model": ("fingerprint",), "data": ("text_fingerprint",)}  # by the planner, not by a user


def schema_of(part: Any, without: tuple[str, ...] = ()) -> type:
    """Make Hydra's schema of a definition: a dataclass that is not frozen, of types that OmegaConf knows."""
    types_of: Mapping[str, Any] = hints(part)
    made: list[Any] = []
    for f in options(part):
        if f.name not in without:
            default = f.default_factory() if f.default_factory is not MISSING else f.default
            plain = write(default)
            made.append((f.name, _plain(types_of[f.name]), _field(plain)))
    return make_dataclass(part.__name__, made)


def _field(default: Any) -> Any:
    return field(default_factory=lambda: type(default)(default)) if isinstance(default, (list, dict)) else default


def _plain(kind: Any) -> Any:
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        inner = [_plain(one) for one in get_args(kind)]
        return Union[tuple(inner)]  # noqa: UP007
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
    shots: int | None = None  # where the grid has shots


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
    uri: str | None = None  # an MLflow server; null: one on loopback, kept in state_dir


@dataclass
class BlockConfig:
    label: str = ""
    fixed: dict[str, Any] = field(default_factory=dict)
    axes: dict[str, Any] = field(default_factory=dict)
    per_task: dict[str, Any] = field(default_factory=dict)
    exclude: list[Any] = field(default_factory=list)


@dataclass
class SelectConfig:
    metric: str = "dev/loss"
    mode: str = "min"


@dataclass
class GridTable:
    layout: str = "accuracy"  # a file of conf/table
    published: str | None = None  # paper/table of conf/paper
    title: str = ""
    rows: dict[str, str] = field(default_factory=dict)  # block -> row name, as published
    footnotes: list[str] = field(default_factory=list)
    average: bool = False  # a column with the mean over the columns
    rank: bool = False  # a column with the mean rank over the columns


@dataclass
class GridFigure:
    kind: str = "line"  # line, bar: of finished runs; from the journals: curve: over training; cumulative: of gradients
    title: str = ""
    x: str = "column"  # line, bar: an axis or key of a trial (estimator.q) or column; curve: step or seconds
    y: str = "accuracy"  # line, bar: a file of conf/table or a metric; curve: dev/loss, dev/metric, train/loss
    curves: dict[str, str] = field(default_factory=dict)  # curve: several y (gradients/...) -> label, in place of y
    at: list[float] = field(default_factory=lambda: [1.0])  # cumulative: after which parts of training
    panels: str = "column"  # a panel for each column, or for each value of a key; "": one panel
    series: dict[str, str] = field(default_factory=dict)  # block -> label; {}: every block
    published: list[Any] = field(default_factory=list)  # {series: block, panel: column, x: ..., y: ...}
    footnotes: list[str] = field(default_factory=list)


@dataclass
class GridConfig:
    name: str = ""
    title: str = ""
    paper: str = ""
    fixed: dict[str, Any] = field(default_factory=dict)
    axes: dict[str, Any] = field(default_factory=dict)
    columns: dict[str, Any] = field(default_factory=dict)  # name -> what it fixes, where the columns are not tasks
    seeds: list[int] = field(default_factory=lambda: [0])
    select: SelectConfig = field(default_factory=SelectConfig)
    exclude: list[Any] = field(default_factory=list)
    blocks: dict[str, BlockConfig] = field(default_factory=dict)
    tables: dict[str, GridTable] = field(default_factory=dict)
    figures: dict[str, GridFigure] = field(default_factory=dict)  # {}: convergence curves of every block


_OPEN: Any = dict[str, Any]
_PARTS = {name: schema_of(part, FILLED_IN.get(name, ())) for name, part in TYPED.items()}
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
        ("grid", GridConfig, field(default_factory=GridConfig)),
        ("state_dir", str, "zo_runs"),
    ],
)
