"""The parts of a trial's configuration that are no axis: model, device, method, training, splits, data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from zo_sweeps.core.errors import UserError, unknown
from zo_sweeps.methods.definition import NOWHERE, Checked, Locate, option, options, write
from zo_sweeps.methods.kind import Kind
from zo_sweeps.methods.registry import member, names


@dataclass(frozen=True)
class Model(Checked):
    """Where a model comes from. Its identity is its fingerprint: a path or a name is none."""

    name: str = option("demo", "name in conf/model", identity=False)
    display: str = option("", "as the papers print it", identity=False)
    source: str = option("demo", "hub, local, random or demo", identity=False)
    path: str | None = option(None, "folder (local) or id (hub)", identity=False)
    revision: str | None = option(None, "of a hub model; null: main", identity=False)
    family: str | None = option(None, "for people; what counts is config.json", identity=False)
    precision: str = option("fp32", "the precision that precision=auto means", identity=False)
    arch: Mapping[str, Any] = option(dict, "Hugging Face config keys, where no file has them", identity=False)
    seed: int = option(0, "of random weights", identity=False)
    fingerprint: str = option("", "of its weights and tokenizer; the planner fills it in")

    def to_identity(self) -> Any:
        return self.fingerprint or [self.source, self.path, self.revision]


@dataclass(frozen=True)
class Device(Checked):
    """A kind of machine. It belongs to a trial's identity only where a grid names one, as tables of a device do."""

    name: str = option("auto", "name in conf/device; the label of a cluster's node")
    display: str = option("", "as the papers print it", identity=False)
    kind: Literal["auto", "cpu", "cuda", "jetson"] = option("auto", "auto: a GPU where there is one", identity=False)
    memory_gb: float | None = option(None, "memory in GB (10^9 bytes); null: what the host has", identity=False)
    unified: bool = option(False, "CPU and GPU share the memory", identity=False)
    precisions: tuple[str, ...] = option((), "what it can store weights as", identity=False)

    @property
    def any(self) -> bool:
        """Whether any device will do."""
        return self.kind == "auto"

    @property
    def cpu(self) -> bool:
        """Whether the trial runs on the processor even where there is a GPU."""
        return self.kind == "cpu"

    def to_identity(self) -> Any:
        return None if self.any else self.name


@dataclass(frozen=True)
class Method:
    """A named method and what kind of trial it makes; the kind's options stand beside the name."""

    name: str = option("mezo", "name in conf/method", identity=False)
    kind: Kind = field(kw_only=True)

    @classmethod
    def read(cls, data: Any, path: str = "", locate: Locate = NOWHERE) -> Method:
        """Read {name, kind, options of the kind}. Raises UserError for an unknown kind or option."""
        if not isinstance(data, Mapping):
            raise UserError(f"{path}={data!r} is not a mapping", where=locate(path))
        given = {key: value for key, value in data.items() if key not in ("name", "kind")}
        chosen = str(data.get("kind"))
        if chosen not in names("kind"):
            raise unknown("kind", chosen, names("kind"), where=locate(f"{path}.kind"))
        known = ["name", "kind", *(f.name for f in options(member("kind", chosen)))]
        for key in {*given} - {*known}:
            raise unknown("key", f"{path}.{key}", [f"{path}.{name}" for name in known], where=locate(f"{path}.{key}"))
        kind = Kind.read({**given, "name": chosen}, path, locate)
        assert isinstance(kind, Kind)
        return cls(str(data.get("name", "")), kind=kind)

    def to_json(self) -> dict[str, Any]:
        own = {key: value for key, value in self.kind.to_json().items() if key != "name"}
        return {"name": self.name, "kind": self.kind.name, **own}


@dataclass(frozen=True)
class Train(Checked):
    """Steps, batches and selection."""

    steps: int = option(0, "optimization steps", least=0)
    batch: int | None = option(None, "B, examples per minibatch; null: effective_batch / q", least=1)
    effective_batch: int = option(16, "E = q * B", least=1, identity=False)
    eval_every: int = option(500, "steps between evaluations on dev", least=1)
    max_length: int = option(2048, "tokens per sequence", least=1)
    flops: bool = option(False, "count the floating-point operations of the first step")
    objective: str = option("loss", "of zeroth-order steps: the task's loss, or another objective by name")
    select: Literal["loss", "metric"] = option("loss", "the tested step: lowest dev loss, or best dev metric")


@dataclass(frozen=True)
class Gradients(Checked):
    """Squared gradients of the task, measured before the first step of backpropagation and at every evaluation."""

    samples: int = option(0, "training examples; 0: they are not measured", least=0)
    text: str = option("text/c4_sample.jsonl", "under data.dir; it chooses a mask before training", identity=False)
    text_samples: int = option(128, "documents of the text", least=1)
    length: int = option(512, "tokens of a text sample", least=2)


@dataclass(frozen=True)
class Split(Checked):
    """Rows that are drawn for a trial."""

    train: int = option(1000, "training rows", least=1)
    dev: int = option(500, "rows that select the step", least=1)
    test: int = option(1000, "rows of the reported number", least=1)
    seed: int | None = option(0, "of the draw; null: the trial's own seed")
    shots: int | None = option(None, "rows per class, for train and again for dev, in place of both", least=1)

    def to_identity(self) -> Any:
        unused = ("train", "dev") if self.shots else ("shots",)
        return {name: value for name, value in write(self).items() if name not in unused}


@dataclass(frozen=True)
class Data:
    """Where the rows lie. What they are is in the task's fingerprint."""

    dir: str | None = option(None, "a folder of <task>/{train,validation,test}.jsonl; null: the hub", identity=False)
    text_fingerprint: str = option("", "of the text that a mask is found on; the planner fills it in")


@dataclass(frozen=True)
class Prompt:
    """The wording of the task's prompt."""

    name: str = option("mezo", "a dialect of the task")
