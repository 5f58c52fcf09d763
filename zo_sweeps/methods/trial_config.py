"""A trial's whole configuration, typed: made by the planner, stored as JSON, read by a run; and its code's digest."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, is_dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from zo_sweeps.core.errors import UserError
from zo_sweeps.core.fingerprint import file_digests, fingerprint
from zo_sweeps.core.host import EXTRAS
from zo_sweeps.core.trial import Config
from zo_sweeps.methods import registry
from zo_sweeps.methods.arch import Arch
from zo_sweeps.methods.definition import NOWHERE, Checked, Definition, Locate, option, own_source, read, write
from zo_sweeps.methods.definition import identity as counted
from zo_sweeps.methods.estimator import Estimator
from zo_sweeps.methods.evaluation import Evaluation
from zo_sweeps.methods.objective import OWN
from zo_sweeps.methods.parts import Data, Device, Gradients, Model, NamedMethod, PromptOptions, Split, Train
from zo_sweeps.methods.perturbation import Perturbation
from zo_sweeps.methods.precision import Precision
from zo_sweeps.methods.space import Space
from zo_sweeps.methods.task import Task
from zo_sweeps.methods.update import Update

NUMERICS = 2  # raised whenever the engine's results change, so that old results are not taken for new
# The parts used by every kind that runs a model, and by other kinds.
EVERY = ("model", "task", "prompt", "precision", "device", "method", "split", "data")
WITHOUT_MODEL = ("device", "method")


@dataclass(frozen=True)
class TrialConfig(Checked):
    """A trial's complete configuration.

    A field counts towards the `trial_id` unless its definition marks it `identity=False`, or the method's kind does not
    use the part it belongs to.
    """

    model: Model
    task: Task
    prompt: PromptOptions
    precision: Precision
    device: Device
    method: NamedMethod
    estimator: Estimator
    perturbation: Perturbation
    space: Space
    update: Update
    evaluation: Evaluation
    train: Train
    gradients: Gradients
    split: Split
    data: Data
    seed: int = option(
        0, "seed of noise, batches, initial values and, if split.seed is null, the split", least=0, most=2**32 - 1
    )
    members: tuple[str, ...] = option((), "folders with the user's own members", identity=False)

    @classmethod
    def _called(cls, option: str) -> str:
        return option

    @classmethod
    def read(cls, data: Mapping[str, Any], locate: Locate = NOWHERE) -> TrialConfig:
        """Read a resolved configuration. Raises UserError for an unknown key, a wrong type or a value out of range."""
        return read(cls, data, "", locate)

    @classmethod
    def of(cls, config: Config) -> TrialConfig:
        """Return a trial's typed configuration, reading it if it came from a file or another process.

        Raises UserError as `read` does; the message names a folder of members that is missing on this machine.
        """
        if isinstance(config, TrialConfig):
            return config
        data = config.to_json()
        folders: Sequence[str] = data.get("members", ())
        try:
            with registry.using_folders(folders):
                return cls.read(data)
        except UserError as error:
            absent = next((folder for folder in folders if not Path(folder).is_dir()), None)
            if absent is None:
                raise
            what = f"{error.errors[0].what}, and the folder {absent}, given with --config-dir, is not on this machine"
            raise UserError(what, fix="copy it here, to the same path") from None

    @classmethod
    def task_of(cls, config: Config) -> Task:
        """Return the task of a trial. Its other parts may have members that are not on this machine."""
        if isinstance(config, TrialConfig):
            return config.task
        return read(Task, config.to_json()["task"], "task")

    def to_json(self) -> dict[str, Any]:
        """Return the configuration as plain JSON, as `read` accepts."""
        return {name: write(getattr(self, name)) for name in self.__dataclass_fields__}

    def identity(self, of: Callable[[Any], Any] = counted) -> dict[str, Any]:
        """Return exactly the settings that affect the trial's result; `of` gives those of a part."""
        kind = self.method.kind
        parts = {name: of(getattr(self, name)) for name in self.parts_used if name != "task"}
        if not kind.of_model:
            return {"numerics": NUMERICS, **parts}
        parts["task"] = self.task.in_dialect(self.prompt.name)
        if (objective := self.own_objective) and (own := own_source(objective)):
            parts["objective_source"] = own
        if not kind.trains:  # the only option of `train` that affects a trial without steps
            parts["max_length"] = self.train.max_length
        return {"numerics": NUMERICS, **parts}

    def trial_id(self, of: Callable[[Any], Any] = counted) -> str:
        """Return the fingerprint of `identity`."""
        return fingerprint(self.identity(of))

    def with_files(self, look: bool) -> tuple[TrialConfig, str]:
        """Return (the configuration with the kind that `Kind.with_files` returns, why a file is not known)."""
        kind, why = self.method.kind.with_files(self, look)
        return (self if kind is self.method.kind else replace(self, method=replace(self.method, kind=kind))), why

    @property
    def own_objective(self) -> type[Definition] | None:
        """The member that `train.objective` names; None for the dialect's own loss, and without training."""
        name = self.train.objective if self.method.kind.trains else OWN
        return registry.member("objective", name) if name != OWN and name in registry.names("objective") else None

    @property
    def objective(self) -> Any:
        """The member that is minimized: `own_objective`, or the dialect's own loss."""
        return self.own_objective or self.task.wording(self.prompt.name).loss

    @property
    def members_used(self) -> set[type[Definition]]:
        """The members of all axes that take part in the trial."""
        kind, task = self.method.kind, self.task
        parts = [getattr(self, name) for name in self.parts_used if name != "task"]
        parts += [kind, *([task.kind, task.metric, task.wording(self.prompt.name)] if kind.of_model else [])]
        named = {self.own_objective} if self.own_objective else set()
        if self.device.runs_programs and (runtime := self.device.installed_runtime):
            named.add(type(runtime))
        return {*named, *(kind for part in parts for kind in _members(part))}

    def uses(self, key: str) -> bool:
        """Return whether the trial's kind uses a dotted key of the configuration."""
        return key.partition(".")[0] in self.parts_used or (key == "train.max_length" and self.method.kind.of_model)

    def has(self, key: str) -> bool:
        """Return whether a dotted key is none of a member of an axis, or an option of the one that is chosen."""
        axis, _, option = key.partition(".")
        member = getattr(self, axis, None)
        return not option or not isinstance(member, Definition) or hasattr(member, option.partition(".")[0])

    @property
    def parts_used(self) -> tuple[str, ...]:
        """The names of the parts that the trial's kind uses."""
        kind = self.method.kind
        return (*(EVERY if kind.of_model else WITHOUT_MODEL), *kind.parts)

    @property
    def departures(self) -> dict[str, float]:
        """How training differs from that of the papers' rows: metric -> value; `core.caveats` has a line on each.

        Of backpropagation, what is not fp32 weights and states with all activations kept.
        """
        kind, found = self.method.kind, {}
        if kind.estimates and self.device.sums_in_fp16 and self.precision.format.bytes < 4:
            found["sum_bits"] = 8.0 * self.precision.format.bytes
        if kind.backpropagates:
            own = kind.trained_in
            if self.space.moves_base and own is not None and own.format.bytes < 4:
                found["trained_bits"] = 8.0 * own.format.bytes
            if self.update.state_bits < 32:
                found["state_bits"] = float(self.update.state_bits)
            if kind.recomputes:
                found["recomputed"] = 1.0
        return found

    @property
    def steps(self) -> int:
        """Optimization steps; 0 for a kind that does not train."""
        return self.train.steps if self.method.kind.trains else 0

    def forwards(self, trainable: int) -> int:
        """Return the forwards of the batch per step, for `trainable` values.

        A backward pass counts as two, and as three where it computes the layers again. Sampled answers have one each.
        """
        kind = self.method.kind
        if not kind.trains:
            return 0
        if kind.backpropagates:
            return (3 + kind.recomputes) * max(kind.answers, 1) * kind.batches
        points = self.estimator.evaluations(max(trainable, 1)) + self.perturbation.evaluations(self.estimator)
        return kind.forwards(points + self.update.evaluations, self.estimator)

    def shared_blocks(self, arch: Arch) -> int:
        """Count the blocks whose forward the points of a step share: they run once per minibatch.

        None in a generation, and in an exported program.
        """
        shares = self.method.kind.estimates and not self.objective.generates and not self.device.runs_programs
        return self.space.untouched(arch) if shares else 0


def fingerprint_texts(config: TrialConfig, known: dict[Path, str] | None = None) -> tuple[str, str]:
    """Return (fingerprint of the texts whose gradients a trial takes, why one is unavailable), one of them or both "".

    `known` has the digests of texts that were read before, by file; read ones are added.
    """
    known, found = {} if known is None else known, []
    for name, key in texts_of(config):
        file = Path(config.data.dir or ".").expanduser() / name
        if not file.is_file():
            return "", f"no text at {file} ({key}, under data.dir)"
        if file not in known:
            known[file] = hashlib.sha256(file.read_bytes()).hexdigest()[:16]
        found.append(known[file])
    prints = list(dict.fromkeys(found))
    return (fingerprint(prints) if len(prints) > 1 else "".join(prints)), ""


def texts_of(config: TrialConfig) -> Iterator[tuple[str, str]]:
    """Yield every (text whose gradients a trial takes, key that names it)."""
    if config.gradients.samples:
        yield config.gradients.text, "gradients.text"
    elif config.method.kind.trains and config.space.needs_gradients and config.space.of_text:
        yield config.space.of_text, "space.text"
    if config.precision.of_text:
        yield config.precision.of_text, "precision.text"


def _members(value: Any) -> Iterator[type[Definition]]:
    """Yield the classes of the members in a part of a configuration, and of those within them."""
    if isinstance(value, Definition):
        yield type(value)
    if is_dataclass(value):
        yield from (kind for name in value.__dataclass_fields__ for kind in _members(getattr(value, name)))
    elif isinstance(value, (tuple, list)):
        yield from (kind for item in value for kind in _members(item))


ROOT = Path(__file__).parents[1]
# Step, noise, losses, forwards, batches, scores; in `methods`, the addresses of points and which share a forward.
MEASURING = ("engine", "methods", "models", "run", "tasks")
METERS = tuple(ROOT / "devices" / f"{name}.py" for name in ("counters", "energy", "peak_memory"))


def code_of(config: TrialConfig) -> str:
    """Return a digest of the code that measures the trial: of MEASURING, METERS, the members that it uses, and what is
    not a member in each of this project's other packages that one of them is in.

    Comments, docstrings and formatting do not count. The user's own members are part of the trial_id instead. Cost:
    reads the files once per process, 10 ms; parses those that this machine has not seen, half a second for all.
    """
    return _digest(frozenset(base.__module__ for kind in config.members_used for base in kind.__mro__))


@cache
def _digest(modules: Collection[str]) -> str:
    members = sorted(name for name in modules if name.rpartition(".")[0] in registry.PACKAGES.values())
    files = [*common_files(), *(ROOT.joinpath(*name.split(".")[1:]).with_suffix(".py") for name in members)]
    named = {file.relative_to(ROOT).as_posix(): file for file in files}
    others = {point.module for axis in registry.PACKAGES for point in registry.offered(axis).values()} - {*modules}
    for name in sorted(extra.module for extra in EXTRAS if any(one.startswith(f"{extra.module}.") for one in modules)):
        (folder,) = sys.modules[name].__path__
        paths = (file.relative_to(folder) for file in sorted(Path(folder).rglob("*.py")))
        used = (path for path in paths if ".".join((name, *path.with_suffix("").parts)) not in others)
        named |= {f"{name}/{path.as_posix()}": Path(folder, path) for path in used}
    return fingerprint([[name, one] for name, one in zip(named, file_digests(named.values()), strict=True)])


def common_files() -> list[Path]:
    """Return the files that every trial may use: those of MEASURING but the axes' members, and METERS."""
    axes = [ROOT.joinpath(*package.split(".")[1:]) for package in registry.PACKAGES.values()]
    files = (file for package in MEASURING for file in (ROOT / package).rglob("*.py"))
    return sorted([*METERS, *(file for file in files if file.parent not in axes or file.name.startswith("_"))])
