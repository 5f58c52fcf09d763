"""The needs of a trial on this machine: model, data, memory."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zo_sweeps.core.caveats import remarks
from zo_sweeps.core.errors import UserError
from zo_sweeps.core.memory_parts import Part
from zo_sweeps.devices.kernels import troubles
from zo_sweeps.methods.definition import write
from zo_sweeps.methods.trial_config import TrialConfig
from zo_sweeps.plan.compatible import check_model, is_corrected, trainable_of
from zo_sweeps.plan.planned_memory import gold_only, memory_of
from zo_sweeps.plan.texts import fingerprint_texts

if TYPE_CHECKING:
    from zo_sweeps.methods.arch import Arch
    from zo_sweeps.methods.parts import Split
    from zo_sweeps.models.identity import ModelStatus
    from zo_sweeps.plan.lengths import Tokens
    from zo_sweeps.tasks.data import DataStatus

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
        check_model(config, model)
        config, missing_text = self._with_sources(config, model)
        config = replace(config, task=replace(config.task, fingerprint=data.fingerprint))
        reasons = [*_refused(config), *(status.why for status in (model, data) if not status.available)]
        reasons += [missing_text] if missing_text else []
        if self._here and config.precision.coded and (trouble := troubles().get(config.precision.name)):
            reasons.append(f"weights cannot be stored as {config.precision.name} on this machine: {trouble}")
        update = config.update
        tried = config.method.kind.trains and update.has_kernels
        if self._here and tried and (trouble := troubles().get(update.name)):
            reasons.append(f"update {update.name!r} does not work on this machine: {trouble}")
        tokens, longest = _lengths(config, data, most := _most(config, model))
        trainable = trainable_of(config, model.arch) if model.arch and config.method.kind.trains else 0
        counted = self._counted(config, model, data)
        scored, stepped = (_forwarded(config, counted, most, gold) for gold in (False, gold_only(config)))
        memory, parts, client = memory_of(config, model, counted, longest, trainable)
        device = config.device
        if device.is_phone and not (device.client or device.log):
            reasons.append(
                f"a {device.display or device.name} runs the light client: set device.client=FILE (packages/edge)"
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
        corrected = model.arch is not None and is_corrected(config, model.arch)
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
        from zo_sweeps.tasks.local_rows import facts
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


def _of_tools(config: TrialConfig) -> Availability:
    """Return the needs of a trial without a model: tools, whose versions become part of its identity."""
    kind = config.method.kind
    there = kind.installed_tools()
    reasons = tuple(f"{name} is not installed here: {kind.extra}" for name in kind.tools if name not in there)
    versions = tuple(f"{name} {version}" for name, version in there.items())
    with_versions = replace(config, method=replace(config.method, kind=kind.with_versions(versions)))
    return Availability(with_versions, reasons, 0, {}, 0, 0, 0, tools=versions)


def _refused(config: TrialConfig) -> Iterator[str]:
    """Yield the reasons why a trial cannot run on its device's runtime.

    Its parts go together, and it runs on another device: so it is left out, and the rest of its grid runs.
    """
    if missing := config.device.missing_runtime:
        yield str(missing)
    elif runtime := config.device.installed_runtime:
        yield from runtime.refuses(config)


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
