"""The keys of a configuration, their types and defaults: what Hydra composes must be made of these.

The options of an axis member (estimator, perturbation, space, update), of a task and of a device are free here: each
member's own file says which it has.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class ModelConfig:
    name: str = "demo"
    display: str = ""
    source: str = "demo"
    path: str | None = None
    revision: str | None = None
    family: str | None = None
    precision: str = "fp32"
    arch: dict[str, Any] = field(default_factory=dict)  # Hugging Face config keys
    seed: int = 0  # of random weights


@dataclass
class Named:
    name: str = ""


@dataclass
class MethodConfig:
    name: str = "mezo"
    kind: str = "zo"  # zero_shot, icl, zo, fo, generate
    demonstrations: int = 0  # of icl: solved examples before the prompt
    text: str = ""  # of generate: what is continued
    new_tokens: int = 0  # of generate: by how many tokens, in each round


@dataclass
class EvaluationConfig:
    mode: str = "sequential"  # sequential, outer, inner, both
    restore: str = "exact"  # exact: theta is never written to; in_place: perturbed and restored, its drift recorded


@dataclass
class TrainConfig:
    steps: int = 0
    batch: int | None = None  # B; null: effective_batch / q
    effective_batch: int = 16  # E = q * B
    eval_every: int = 500
    max_length: int = 2048
    flops: bool = False  # count the floating-point operations of the first step
    objective: str = "loss"  # of zeroth-order steps: the task's loss, or 1 - "accuracy", or -"f1" of generated answers
    select: str = "loss"  # the step whose weights are tested: lowest dev loss, or highest dev "metric"


@dataclass
class GradientsConfig:
    """Squared gradients of the task, looked at before the first step of backpropagation and at every evaluation."""

    samples: int = 0  # training examples; 0: they are not looked at
    text: str = "text/c4_sample.jsonl"  # under data.dir; its gradients choose a mask before training
    text_samples: int = 128
    length: int = 512  # tokens of a text sample


@dataclass
class SplitConfig:
    train: int = 1000
    dev: int = 500
    test: int = 1000
    seed: int | None = 0  # null: the trial's own
    shots: int | None = None  # rows a class, for train and again for dev; they then replace train and dev


@dataclass
class DataConfig:
    dir: str | None = None  # a folder of <task>/{train,validation,test}.jsonl; null: the Hugging Face hub


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
class ExecutorConfig:
    name: str = "ray"
    cpus_per_trial: int = 1
    slots: int | None = None
    workers: int = 1
    on_lost_worker: str = "redo"
    worker_patience: float = 60.0
    retries_failed: int = 1
    retries_lost: int = 3


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


@dataclass
class Config:
    model: ModelConfig = field(default_factory=ModelConfig)
    task: dict[str, Any] = field(default_factory=dict)
    prompt: Named = field(default_factory=Named)
    precision: Named = field(default_factory=Named)
    device: dict[str, Any] = field(default_factory=dict)
    method: MethodConfig = field(default_factory=MethodConfig)
    # The axes: each member's own file says which options it has.
    estimator: dict[str, Any] = field(default_factory=dict)
    perturbation: dict[str, Any] = field(default_factory=dict)
    space: dict[str, Any] = field(default_factory=dict)
    update: dict[str, Any] = field(default_factory=dict)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    gradients: GradientsConfig = field(default_factory=GradientsConfig)
    split: SplitConfig = field(default_factory=SplitConfig)
    data: DataConfig = field(default_factory=DataConfig)
    seed: int = 0
    scale: ScaleConfig = field(default_factory=ScaleConfig)
    executor: ExecutorConfig = field(default_factory=ExecutorConfig)
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    tracking: TrackingConfig = field(default_factory=TrackingConfig)
    grid: GridConfig = field(default_factory=GridConfig)
    state_dir: str = "zo_runs"
