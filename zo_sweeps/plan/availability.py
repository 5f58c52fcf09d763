"""The needs of a trial on this machine: model, data, memory."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zo_sweeps.core.errors import UserError
from zo_sweeps.core.fingerprint import fingerprint
from zo_sweeps.core.memory import Part
from zo_sweeps.core.remarks import remarks
from zo_sweeps.devices.estimate import RUNTIME_BYTES, finding_memory, memory_by_part, program_memory
from zo_sweeps.devices.kernels import troubles
from zo_sweeps.engine.packing import CAPACITY
from zo_sweeps.methods.arch import ALL
from zo_sweeps.methods.definition import write
from zo_sweeps.methods.evaluation import SCORED_TOKENS, Restore
from zo_sweeps.methods.trial_config import TrialConfig
from zo_sweeps.plan.compatible import outside_programs

if TYPE_CHECKING:
    from zo_sweeps.methods.arch import Arch
    from zo_sweeps.methods.parts import Model, Split
    from zo_sweeps.models.identity import ModelStatus
    from zo_sweeps.models.package import Package
    from zo_sweeps.plan.lengths import Tokens
    from zo_sweeps.tasks.data import DataStatus

# What tells models apart, of `Arch`; the number of parameters follows, and so do the projections.
SHAPE = ("family", "layers", "width", "inner", "heads", "kv_heads", "head_width", "vocabulary", "positions", "tied")
BYTES_PER_TOKEN = 4  # of English text as JSON, roughly; for estimates only


@dataclass(frozen=True)
class Availability:
    """The needs of a trial, and why it cannot run here.

    Args:
        config: the trial's, with the fingerprints of model, data and text filled in.
        reasons: every reason why the trial cannot run here.
        memory_bytes: estimated peak; 0 if the model's shape is unknown.
        parts: these bytes by part, without those of the process; empty if finding the mask, or exporting the program,
            needs more.
        tokens: mean tokens per row that scoring forwards, its distinct candidates together, for the cost.
        step_tokens: of a step, which may forward the right candidate alone.
        trainable: number of trainable parameters; 0 if the model's shape is unknown.
        remarks: lines on what limits a trial that can run.
        tools: see `Needs`.
        client_bytes: of a program, the peak of the light client: without PyTorch, its weights, and the export.
        arch: the model's shape; None if it is unknown.
        dev, test: rows that are scored.
    """

    config: TrialConfig
    reasons: tuple[str, ...]
    memory_bytes: int
    parts: Mapping[Part, float]
    tokens: float
    step_tokens: float
    trainable: int
    remarks: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()
    client_bytes: int = 0
    arch: Arch | None = None
    dev: int = 0
    test: int = 0


class Places:
    """A cache of the models, data and texts of this machine: each is looked up once.

    Args:
        here: whether trials run on this machine; on a cluster, nodes may be able to store weights in other ways.
    """

    def __init__(self, here: bool = True) -> None:
        self._here = here
        self._models: dict[str, ModelStatus] = {}
        self._data: dict[str, DataStatus | UserError] = {}
        self._texts: dict[Path, str] = {}
        self._lengths: dict[tuple[int, int, int], str | UserError] = {}
        self._tokens: dict[tuple[int, int, int], Tokens] = {}
        self._rows: dict[tuple[int, Split], tuple[str, ...]] = {}

    def look(self, config: TrialConfig) -> Availability:
        """Return the needs of a trial. Raises UserError for parts incompatible with the model, or malformed data."""
        if not config.method.kind.of_model:
            return _of_tools(config)
        model, data = self._model(config), self._task(config)
        _goes_with(config, model)
        config, missing_text = self._with_sources(config, model)
        config = replace(config, task=replace(config.task, fingerprint=data.fingerprint))
        reasons = [*outside_programs(config), *(status.why for status in (model, data) if not status.available)]
        reasons += [missing_text] if missing_text else []
        if self._here and config.precision.coded and (trouble := troubles().get(config.precision.name)):
            reasons.append(f"weights cannot be stored as {config.precision.name} on this machine: {trouble}")
        update = config.update
        tried = config.method.kind.trains and update.has_kernels
        if self._here and tried and (trouble := troubles().get(update.name)):
            reasons.append(f"update {update.name!r} does not work on this machine: {trouble}")
        tokens, longest = _lengths(config, data, most := _most(config, model))
        trainable = _trainable(config, model.arch) if model.arch and config.method.kind.trains else 0
        counted = self._counted(config, model, data)
        scored, stepped = (_forwarded(config, counted, most, gold) for gold in (False, _gold_only(config)))
        memory, parts, client = self._memory(config, model, counted, longest, trainable)
        device = config.device
        if device.is_phone and not (device.client or device.log):
            reasons.append(
                f"a {device.display or device.name} runs the light client: set device.client=FILE (docs/EDGE.md)"
            )
        needed = client if device.is_phone else memory
        if device.memory_gb and not device.reads_log and needed > device.memory_gb * 10**9:
            reasons.append(
                f"needs about {needed / 10**9:.1f} GB, and a {device.display or device.name} has {device.memory_gb:.3g}"
            )
        notes = [self._truncated(config, model, data), _few_rows(config, data), _few_directions(config, trainable)]
        notes += [*remarks([config.departures]), *self._duplicates(config, data), *_not_read(config, model, data)]
        return Availability(
            config,
            tuple(reasons),
            memory,
            parts,
            scored or tokens,
            stepped or tokens,
            trainable,
            tuple(filter(None, notes)),
            client_bytes=client,
            arch=model.arch,
            dev=_rows(_dev(config), data, "validation"),
            test=_rows(config.split.test, data, "test"),
        )

    def to_package(self, config: TrialConfig) -> TrialConfig:
        """Return the configuration of a package to be made, with the fingerprints of model and text filled in.

        Raises UserError if one of them is not here, or the model is a package.
        """
        model = self._model(config)
        if model.package is not None:
            raise UserError("the model is a package", where=str(model.package.folder), fix="package the plain model")
        config, missing_text = self._with_sources(config, model)
        for why in ("" if model.available else model.why, missing_text):
            if why:
                raise UserError(why)
        return config

    def _with_sources(self, config: TrialConfig, model: ModelStatus) -> tuple[TrialConfig, str]:
        """Return (the configuration with the fingerprints of model and text, why the text is unavailable)."""
        text, missing = self._text(config, model)
        corrected = model.arch is not None and _is_corrected(config, model.arch)
        identified = replace(config.model, fingerprint=model.fingerprint, corrected=corrected)
        with_model = replace(config, model=identified)
        return replace(with_model, data=replace(config.data, text_fingerprint=text)), missing

    def _model(self, config: TrialConfig) -> ModelStatus:
        from zo_sweeps.models.identity import status

        key = _key(config.model)
        if key not in self._models:
            self._models[key] = status(config.model)
        return self._models[key]

    def _task(self, config: TrialConfig) -> DataStatus:
        from zo_sweeps.tasks.data import check
        from zo_sweeps.tasks.spec import TaskSpec

        key = _key(config.task) + _key(config.prompt) + _key(config.data)
        if key not in self._data:
            try:
                self._data[key] = check(TaskSpec.of(config.task, config.prompt.name), config.task, config.data.dir)
            except UserError as error:
                self._data[key] = error
        found = self._data[key]
        if isinstance(found, UserError):
            raise found
        return found

    def _truncated(self, config: TrialConfig, model: ModelStatus, data: DataStatus) -> str:
        """Return the remark on rows that are longer than a sequence may be; "" for none.

        Raises UserError if no text fits. Where data and tokenizer are here, rows are tried, and it is also raised if
        they cannot be encoded.
        """
        if config.method.kind.generates:
            return ""
        most = _most(config, model)
        key = (id(model), id(data), most)  # both are cached here, one for each model and each task in its wording
        if key not in self._lengths:
            try:
                self._lengths[key] = _longer(config, model, data, most)
            except UserError as error:
                self._lengths[key] = error
        found = self._lengths[key]
        if isinstance(found, UserError):
            raise found
        return found

    def _counted(self, config: TrialConfig, model: ModelStatus, data: DataStatus) -> Tokens | None:
        """Return the tokens of rows, counted where data and tokenizer are here; otherwise None."""
        if config.method.kind.generates or model.tokenizer is None or data.folder is None:
            return None
        from zo_sweeps.plan.lengths import tokens_forwarded
        from zo_sweeps.tasks.spec import TaskSpec

        most = _most(config, model)
        key = (id(model), id(data), most)
        if key not in self._tokens:
            spec = TaskSpec.of(config.task, config.prompt.name)
            self._tokens[key] = tokens_forwarded(spec, data.folder, model.tokenizer, most, model.front)
        return self._tokens[key]

    def _duplicates(self, config: TrialConfig, data: DataStatus) -> tuple[str, ...]:
        """Return the remarks on the rows that a trial draws from local files."""
        if config.method.kind.generates or not data.marks:
            return ()
        from zo_sweeps.tasks.data import drawn_marks
        from zo_sweeps.tasks.duplicates import facts
        from zo_sweeps.tasks.spec import TaskSpec

        key = (id(data), config.split)
        if key not in self._rows:
            spec = TaskSpec.of(config.task, config.prompt.name)
            drawn = drawn_marks(spec, config.task, config.split, data.marks)
            self._rows[key] = tuple(remarks([facts(spec, drawn)], of_data=True))
        return self._rows[key]

    def _text(self, config: TrialConfig, model: ModelStatus) -> tuple[str, str]:
        """Return (fingerprint of the text whose gradients are taken, why it is unavailable), one of them or both "".

        Several texts have one fingerprint. A package was made from its texts.
        """
        if model.package is not None:
            return model.package.contents.text, ""
        return fingerprint_texts(config, self._texts)

    @staticmethod
    def _memory(
        config: TrialConfig, model: ModelStatus, counted: Tokens | None, longest: int, trainable: int
    ) -> tuple[int, Mapping[Part, float], int]:
        """Return (estimated peak, its parts, of a program the peak of the light client)."""
        arch, kind, space, precision = model.arch, config.method.kind, config.space, config.precision
        if arch is None:
            return 0, {}, 0
        train, examples = config.train, max(config.split.dev, config.split.test)
        rows = train.batch or 1
        longest_row = max(CAPACITY, longest) if train.packing else longest
        stepped, scored = float(rows * longest), 0.0 if kind.generates else float(examples * longest)
        if counted is not None and not kind.shown:
            longest = counted.longest
            fits = not arch.masked and not arch.no_packing
            options = config.task.wording(config.prompt.name).options
            every = 1 if arch.masked else max(len(options), counted.texts)
            stepped = counted.of_rows(rows, train.packing and fits, every, _gold_only(config))
            scored = counted.of_rows(examples, fits, every)
        finding = client = 0
        if space.needs_gradients and kind.trains and model.package is None:
            text = space.of_text
            length = getattr(space, "length", longest) if text else longest
            entries = arch.entries(space.layers)
            finding = finding_memory(arch, precision.format.bytes, length, length if text else 1, entries)
        if precision.of_text and model.package is None:
            length = getattr(precision, "length", longest)
            finding = max(finding, finding_memory(arch, precision.format.bytes, length, length, arch.entries([ALL])))
        added = space.added_bytes(arch, precision) if kind.trains else 0
        weights = precision.weight_bytes(arch) + added
        points = config.evaluation.points_per_forward(config.estimator.budget) if kind.estimates else 1
        parts: Mapping[Part, float] = memory_by_part(
            arch,
            precision.format.bytes,
            weights=weights,
            scales=precision.decoding_bytes(arch),
            kept=precision.outside_bytes(arch),
            coded=precision.coded,
            sparse=space.sparse,
            trains=kind.trains,
            backpropagates=kind.backpropagates,
            moves_base=space.moves_base and kind.trains,
            integers=space.integers,
            in_parts=hasattr(config.perturbation, "combine"),  # as `engine.types.Partial` is told
            trained_bytes=(kind.trained_in or precision).format.bytes,
            recomputes=kind.recomputes,
            mixed_bytes=kind.multiplied_in.format.bytes if kind.multiplied_in else 0,
            on_host=config.device.in_host_memory,
            points=points,
            batch=stepped / longest,
            tokens=longest,
            trainable=trainable,
            frozen=space.frozen_values(arch) if kind.trains else 0,
            state_copies=config.update.state_copies * config.update.state_bits / 32 if kind.trains else 0,
            answer_tokens=longest if kind.trains and train.logits == "all" else rows * longest / stepped,
            scored_tokens=min(scored, max(SCORED_TOKENS, longest)),
            attended=space.positions and space.positions + longest_row if kind.trains else 0,
            rank=getattr(space, "rank", 0) if kind.trains else 0,
            inputs=None if space.moves_base or space.sparse else arch.inputs(space.layers),
        )
        if config.device.runs_programs and not config.device.reads_log and kind.estimates:
            q, size = config.estimator.budget, precision.format.bytes
            form: dict[str, Any] = {
                "points": points,
                "queries": q,
                "d": trainable,
                "dual": config.device.keeps_copies,
            }
            parts, exporting = program_memory(parts, arch, size, weights=weights, **form)
            finding = max(finding, exporting)
            client = int(sum(parts.values())) - weights
        peak = int(sum(parts.values()))
        return RUNTIME_BYTES + max(peak, finding), parts if peak >= finding else {}, client


def _of_tools(config: TrialConfig) -> Availability:
    """Return the needs of a trial without a model: tools, whose versions become part of its identity."""
    kind = config.method.kind
    there = kind.installed_tools()
    reasons = tuple(f"{name} is not installed here: {kind.extra}" for name in kind.tools if name not in there)
    versions = tuple(f"{name} {version}" for name, version in there.items())
    with_versions = replace(config, method=replace(config.method, kind=kind.with_versions(versions)))
    return Availability(with_versions, reasons, 0, {}, 0, 0, 0, tools=versions)


def _dev(config: TrialConfig) -> int:
    """Return the rows of dev that a trial asks for."""
    split, task = config.split, config.task
    if split.shots:
        return split.shots * len(task.wording(config.prompt.name).options)
    return min(split.dev, task.dev_size or split.dev)


def _rows(asked: int, data: DataStatus, split: str) -> int:
    """Return how many rows of those asked for there are, as far as it is known."""
    return min(asked, data.sizes.get(split, asked))


def _most(config: TrialConfig, model: ModelStatus) -> int:
    """Return the most tokens that a sequence may have."""
    most = config.train.max_length
    return most if model.arch is None else min(most, model.arch.positions - config.space.positions)


def _lengths(config: TrialConfig, data: DataStatus, most: int) -> tuple[float, int]:
    """Return (mean tokens of a sequence, tokens of the longest of a run), from the rows' bytes and the task's lengths.

    The task's are of whole prompts, and a floor: a row's bytes lack the template. `most` where nothing is known.
    """
    usual, texts = config.task.lengths, 1 + config.method.kind.shown
    mean = data.row_bytes and max(data.row_bytes / BYTES_PER_TOKEN, 16)
    longest = 2 * mean
    if usual is not None:
        mean, longest = max(mean, usual.mean), max(longest, usual.longest)
    return (min(most, mean * texts), int(min(most, longest * texts))) if mean else (most, most)


def _forwarded(config: TrialConfig, counted: Tokens | None, most: int, gold_only: bool) -> float:
    """Return the mean tokens of a row; 0 where they are not counted. A trial may show solved examples before it."""
    mean = 0.0 if counted is None else counted.mean(gold_only)
    return min(mean * (1 + config.method.kind.shown), max(most, mean))


def _gold_only(config: TrialConfig) -> bool:
    """Return whether a step forwards a row's right candidate alone."""
    objective: Any = config.own_objective or config.task.wording(config.prompt.name).loss
    return bool(objective.gold_only)


def _not_read(config: TrialConfig, model: ModelStatus, data: DataStatus) -> list[str]:
    """Return the remarks on rows whose tokens the plan does not count: those of the hub, or without a tokenizer."""
    if config.method.kind.generates:
        return []
    notes = []
    if data.folder is None or model.tokenizer is None:
        notes.append("rows that exceed train.max_length are counted in the run, not in the plan")
    if not data.row_bytes:
        planned = "as is typical of the task" if config.task.lengths else "at train.max_length"
        notes.append(f"lengths are not known here: planned {planned}")
    return notes


def fingerprint_texts(config: TrialConfig, known: dict[Path, str] | None = None) -> tuple[str, str]:
    """Return (fingerprint of the texts whose gradients a trial takes, why one is unavailable), one of them or both "".

    Args:
        known: file -> digest of the texts that were read before; read ones are added.
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


def _trainable(config: TrialConfig, arch: Arch) -> int:
    return config.space.bind(config.precision).trainable(arch)


def _goes_with(config: TrialConfig, model: ModelStatus) -> None:
    """Raise UserError for a model incompatible with the prompt, the precision, the method's kind or the space."""
    arch, kind = model.arch, config.method.kind
    if model.package is not None:
        _goes_with_package(config, model.package)
    if arch is None:
        return
    if config.model.is_claimed and (differs := _difference(config.model, arch)):
        fix = f"model=local model.path={config.model.path} runs it as what it is"
        raise UserError(f"the folder does not hold {config.model.name}: {differs}", where="model.path", fix=fix)
    dialect = config.task.dialects.get(config.prompt.name)
    if dialect is not None and arch.masked != dialect.loss.masked:
        one, other = ("masked", "without") if arch.masked else ("causal", "with")
        fitting = [name for name, it in config.task.dialects.items() if it.loss.masked == arch.masked]
        suited, needed = ("causal", "with") if arch.masked else ("masked", "without")
        fix = " or ".join(f"prompt={name}" for name in fitting) or (
            f"a {suited} model, or a dialect of the task {needed} {{{{ mask }}}} (docs/adding/task.md)"
        )
        raise UserError(
            f"model {config.model.name!r} is a {one} one, and prompt {config.prompt.name!r} of task "
            f"{config.task.name!r} is {other} a mask",
            fix=f"use {fix}",
        )
    if arch.masked and kind.causal_only:
        raise UserError(f"{kind.causal_only} needs a causal model", fix=f"leave kind {kind.name} out for masked models")
    if kind.trains and not _trainable(config, arch):
        what = f"space {config.space.name!r} trains no parameter of model {config.model.name!r}"
        raise UserError(what, fix="use other space.targets")
    if config.space.takes_positions and kind.trains and arch.no_prefix:
        raise UserError(arch.no_prefix, fix="use another space")
    if arch.no_points and kind.estimates and config.evaluation.mode.batched:
        what = f"one forward of model {config.model.name!r} cannot hold several points: {arch.no_points}"
        raise UserError(what, fix="use evaluation.mode=sequential")
    if arch.no_full_points and _holds_full_points(config):
        what = f"one forward of model {config.model.name!r} cannot hold several points of all its weights: "
        raise UserError(what + arch.no_full_points, fix="use evaluation.mode=sequential")
    if arch.no_full and kind.estimates and config.space.moves_base and config.evaluation.restore is Restore.EXACT:
        what = f"model {config.model.name!r} is not evaluated beside its weights: {arch.no_full}"
        raise UserError(what, fix="use evaluation.restore=in_place, or another space")


def _difference(claimed: Model, arch: Arch) -> str:
    """Return in what the shape of a folder's model is not that of the model that it is said to hold; "" if it is."""
    from zo_sweeps.models.families import describe

    expected = describe(claimed.arch)
    sizes = [(name, getattr(arch, name), getattr(expected, name)) for name in SHAPE]
    return ", ".join(f"{name} {here}, not {there}" for name, here, there in sizes if here != there)


def _holds_full_points(config: TrialConfig) -> bool:
    """Return whether a trial's forwards hold several points of all weights."""
    return config.method.kind.estimates and config.space.moves_base and config.evaluation.mode.batched


def _is_corrected(config: TrialConfig, arch: Arch) -> bool:
    """Return whether a trial of this model was computed wrongly before, so that it has another id than it had.

    Over codes, buffers around the projections had no values; of several points of all weights in one forward, a
    parameter in common moved as if it were a norm's.
    """
    return (arch.filled and config.precision.coded) or (arch.shared and _holds_full_points(config))


def _goes_with_package(config: TrialConfig, package: Package) -> None:
    """Raise UserError for a trial whose settings are not those that a package was made with."""
    where = str(package.folder)
    if wrong := package.contradiction(config.precision):
        raise UserError(wrong, where=where, fix="leave precision out for the package's")
    if not (config.method.kind.trains and config.space.needs_gradients):
        return
    mask, wanted = package.contents.mask, config.space.found_from
    if mask is None:
        what = "the package holds no mask, and none can be found without the plain weights"
        raise UserError(what, where=where, fix="package the model again, with the space")
    for key, value in write({"targets": config.space.layers, **wanted}).items():
        if mask.get(key) != value:
            raise UserError(f"space.{key} is {mask.get(key)} in the package, not {value}", where=where)


def _longer(config: TrialConfig, model: ModelStatus, data: DataStatus, most: int) -> str:
    """Return the remark on rows of more than `most` tokens; "" for none. Raises UserError if no text fits."""
    from zo_sweeps.plan.lengths import too_long
    from zo_sweeps.tasks.encode import room_of
    from zo_sweeps.tasks.spec import TaskSpec

    spec = TaskSpec.of(config.task, config.prompt.name)
    room_of(spec, most, len(model.front))
    if model.tokenizer is None or data.folder is None:
        return ""
    long, every = too_long(spec, data.folder, model.tokenizer, most, model.front)
    if not long:
        return ""
    number = str(long) if every else f"at least {long}"
    rows = sum(data.sizes.values())
    return f"{number} of the {rows} rows of {spec.name} exceed {most} tokens and lose part of their text"


def _few_rows(config: TrialConfig, data: DataStatus) -> str:
    """Return the remark on a split with fewer training rows than asked for, if its size is known."""
    if not config.method.kind.trains or config.split.shots or "train" not in data.sizes:
        return ""
    rows = min(config.split.train, data.sizes["train"])
    return "; ".join(remarks([{"train_rows": rows, "train_rows_short": config.split.short_of(rows, 0)}]))


def _few_directions(config: TrialConfig, d: int) -> str:
    """Return the remark on a trial whose directions repeat, if its d is known."""
    if not d or not config.method.kind.estimates:
        return ""
    directions = config.perturbation.directions(d)
    return "" if directions is None else "; ".join(remarks([{"directions": directions}]))


def _key(part: Any) -> str:
    """Return a text that identifies a part; ten times as fast as a fingerprint."""
    return json.dumps(write(part), sort_keys=True, default=str)
