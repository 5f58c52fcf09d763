"""The needs of a trial on this machine: model, data, memory."""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from zo_sweeps.core.caveats import remarks
from zo_sweeps.core.errors import UserError
from zo_sweeps.core.fingerprint import fingerprint
from zo_sweeps.core.host import version_of
from zo_sweeps.core.memory_parts import Part
from zo_sweeps.core.trial import Needs
from zo_sweeps.devices.kernels import troubles
from zo_sweeps.methods.arch import Arch
from zo_sweeps.methods.definition import identity, write
from zo_sweeps.methods.task import CHAT
from zo_sweeps.methods.trial_config import TrialConfig, fingerprint_texts
from zo_sweeps.methods.update import Update
from zo_sweeps.models.identity import ModelStatus, status
from zo_sweeps.plan.compatible import check_model, is_corrected, trainable_of
from zo_sweeps.plan.planned_memory import RowTokens, gold_only, memory_of, tokens_forwarded, too_long
from zo_sweeps.plan.planned_work import work_of
from zo_sweeps.tasks.data import DataStatus, check, drawn_marks, facts
from zo_sweeps.tasks.encode import room_of
from zo_sweeps.tasks.kinds.verified import Verified
from zo_sweeps.tasks.spec import TaskSpec
from zo_sweeps.tasks.templates import chat_of

BYTES_PER_TOKEN = 4  # of English text as JSON, roughly; for estimates only
T = TypeVar("T")


@dataclass(frozen=True)
class Availability:
    """The needs of a trial, and why it cannot run here.

    Args:
        config: the trial's, with the fingerprints of model, data and text filled in.
        reasons: every reason why the trial cannot run here.
        needs: on the place where it runs; no bytes if the model's shape is unknown.
        cost: estimated work, in forwarded tokens; a backward pass counts as two forwards.
        operations: of its forwards; see `core.trial.Trial`.
        tokens: mean tokens per row that scoring forwards, its distinct candidates together.
        step_tokens: of a step, which may forward the right candidate alone.
        remarks: lines on what limits a trial that can run.
        warm_key, memory_key: of the functions of these names.
    """

    config: TrialConfig
    reasons: tuple[str, ...]
    needs: Needs
    cost: float = 1.0
    operations: float = 0.0
    tokens: float = 0.0
    step_tokens: float = 0.0
    remarks: tuple[str, ...] = ()
    warm_key: str = ""
    memory_key: str = ""


def warm_key(config: TrialConfig) -> str:
    """Return a key shared by trials with the same loaded model."""
    precision, text = config.precision, config.data.text_fingerprint
    parts = [config.model.fingerprint, identity(precision), config.device.place]
    return fingerprint([*parts, text] if precision.of_text else parts)


def memory_key(config: TrialConfig) -> str:
    """Return a key shared by trials that need the same memory: seed and learning rate may differ, sizes may not."""
    parts = [config.method, config.space, config.evaluation, config.perturbation, config.precision, config.prompt]
    parts.append(replace(config.update, lr=0.0))
    estimator = [config.estimator.name, config.estimator.budget]
    train = config.train
    sizes = [train.batch, train.max_length, train.objective, train.logits, train.packing, config.device.place]
    sizes += [config.split.dev, config.split.test]  # of which as many are scored at a time as one forward holds
    contents = [config.model.fingerprint, config.task.fingerprint, config.task.name]
    return fingerprint([*map(identity, parts), estimator, sizes, contents])


class Places:
    """The models, data and texts of this machine: each is looked up once.

    Args:
        here: whether trials run on this machine; on a cluster, nodes may be able to store weights in other ways.
    """

    def __init__(self, here: bool = True) -> None:
        self._here = here
        self._known: dict[Hashable, Any] = {}
        self._texts: dict[Path, str] = {}
        self._keys: dict[int, tuple[Any, str]] = {}  # id of a part -> the part, which so keeps its id, and its key

    def look(self, config: TrialConfig) -> Availability:
        """Return the needs of a trial, looked up once for all of its seeds and learning rates.

        Raises UserError for parts incompatible with the model, or malformed data.
        """
        parts = tuple(self._key(getattr(config, name)) for name in config.__dataclass_fields__ if name != "seed")
        looked = self._once(parts, lambda: _with_keys(self._look(config)))
        return replace(looked, config=replace(looked.config, seed=config.seed, update=config.update))

    def _look(self, config: TrialConfig) -> Availability:
        kind = config.method.kind
        if not kind.of_model:
            return _of_tools(config)
        model, data = self._model(config), self._task(config)
        check_model(config, model)
        config, missing_text = self._with_sources(config, model)
        config = replace(config, task=self._identified(config.task, fingerprint=data.fingerprint))
        reasons = [*_refused(config), *(status.why for status in (model, data) if not status.available)]
        config, missing_rows = config.with_files(data.available)
        reasons += [missing for missing in (missing_text, missing_rows) if missing]
        if self._here and config.precision.coded and (trouble := troubles().get(config.precision.name)):
            reasons.append(f"weights cannot be stored as {config.precision.name} on this machine: {trouble}")
        if self._here and isinstance(config.task.kind, Verified):
            libraries = {reward.needs: None for reward in config.task.kind.rewards if reward.needs}
            install = "pip install 'zo-sweeps[rewards]'"
            reasons += [f"{one} is not installed; {install}" for one in libraries if not version_of(one)]
        update = config.update
        if self._here and kind.trains and update.has_kernels and (trouble := troubles().get(update.name)):
            reasons.append(f"update {update.name!r} does not work on this machine: {trouble}")
        most = config.train.max_length
        most = most if model.arch is None else min(most, model.arch.positions - config.space.positions)
        tokens, longest = _lengths(config, data, most, self._frame(config, model))
        trainable = trainable_of(config, model.arch) if model.arch and kind.trains else 0
        notes, counted = self._rows(config, model, data, most)
        if counted is not None:
            shown = 1 + kind.demonstrations  # solved examples before each row
            means = counted.mean(False), counted.mean(gold_only(config))
            scored, stepped = (min(mean * shown, max(most, mean)) for mean in means)
        else:
            scored = stepped = tokens
        needs = _needs(config, memory_of(config, model, counted, longest, trainable), model.arch)
        device = config.device
        name = device.display or device.name
        if device.is_phone and not (device.client or device.log):
            reasons.append(f"a {name} runs the light client: set device.client=FILE (packages/edge)")
        needed = needs.client_bytes if device.is_phone else needs.memory_bytes
        if device.memory_gb and not device.reads_log and needed > device.memory_gb * 10**9:
            reasons.append(f"needs about {needed / 10**9:.1f} GB, and a {name} has {device.memory_gb:.3g}")
        split, sizes = config.split, data.sizes
        if kind.trains and not split.shots and "train" in sizes:
            rows = min(split.train, sizes["train"])
            notes += remarks([{"train_rows": rows, "train_rows_short": split.short_of(rows, 0)}])
        if trainable and kind.estimates and (directions := config.perturbation.directions(trainable)) is not None:
            notes += remarks([{"directions": directions}])
        if kind.estimates:
            notes += config.perturbation.remarks(config.train.steps)
        notes += remarks([config.departures])
        notes += kind.remarks(config, data.folder)
        if not kind.generates and data.marks:

            def of_rows() -> list[str]:
                spec = _spec(config)
                return remarks([facts(spec, drawn_marks(spec, config.task, split, data.marks))], of_data=True)

            notes += self._once((id(data), split), of_rows)
        if not kind.generates:
            notes += _not_read(config, model, data)
        dev = min(split.dev, config.task.dev_size or split.dev)
        if split.shots:
            dev = split.shots * len(config.task.wording(config.prompt.name).options)
        drawn = min(dev, sizes.get("validation", dev)), min(split.test, sizes.get("test", split.test))
        cost, operations = work_of(config, model.arch, trainable, stepped, scored, drawn)
        return Availability(
            config, tuple(dict.fromkeys(reasons)), needs, cost, operations, scored, stepped, tuple(notes)
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
        """Return (the configuration with the fingerprints of model and text, why the text is unavailable).

        Several texts have one fingerprint. A package was made from its texts.
        """
        packaged = model.package and (model.package.contents.text, "")
        text, missing = packaged or fingerprint_texts(config, self._texts)
        corrected = model.arch is not None and is_corrected(config, model.arch)
        identified = self._identified(config.model, fingerprint=model.fingerprint, corrected=corrected)
        return replace(config, model=identified, data=self._identified(config.data, text_fingerprint=text)), missing

    def _model(self, config: TrialConfig) -> ModelStatus:
        return self._once(self._key(config.model), lambda: status(config.model))

    def _task(self, config: TrialConfig) -> DataStatus:
        key = "".join(self._key(part) for part in (config.task, config.prompt, config.data))
        return self._once(key, lambda: check(_spec(config), config.task, config.data.dir))

    def _rows(
        self, config: TrialConfig, model: ModelStatus, data: DataStatus, most: int
    ) -> tuple[list[str], RowTokens | None]:
        """Return (remarks on rows of more than `most` tokens, the tokens of rows), where data and tokenizer are here.

        Raises UserError if no text fits, or rows cannot be encoded.
        """
        if config.method.kind.generates:
            return [], None

        def count() -> tuple[list[str], RowTokens | None]:
            spec, tokenizer, folder = _spec(config), model.tokenizer, data.folder
            room_of(spec, most, len(model.front))
            if tokenizer is None or folder is None:
                return [], None
            long, every = too_long(spec, folder, tokenizer, most, model.front)
            number, rows = str(long) if every else f"at least {long}", sum(data.sizes.values())
            note = f"{number} of the {rows} rows of {spec.name} exceed {most} tokens and lose part of their text"
            return [note] if long else [], tokens_forwarded(spec, folder, tokenizer, most, model.front)

        notes, counted = self._once((id(model), id(data), most), count)  # both are kept here, for each wording
        return [*notes], counted

    def _frame(self, config: TrialConfig, model: ModelStatus) -> int:
        """Return the tokens of the chat template around a prompt; 0 for a plain prompt, or where they are not known.

        Raises UserError if the tokenizer has no chat template, or one that the prompt does not fit.
        """
        if config.prompt.name != CHAT or config.method.kind.generates or model.tokenizer is None:
            return 0
        return self._once(
            (id(model), config.prompt.system), lambda: chat_of(model.tokenizer, config.prompt.system).tokens
        )

    def _key(self, part: Any) -> str:
        """Return a text that identifies a part, ten times as fast as a fingerprint; most trials share the object.

        The learning rate of an update is left out: nothing that is looked up depends on it.
        """
        if id(part) not in self._keys:
            content = write(replace(part, lr=0.0) if isinstance(part, Update) else part)
            self._keys[id(part)] = part, json.dumps(content, sort_keys=True, default=str)
        return self._keys[id(part)][1]

    def _identified(self, part: T, **found: Any) -> T:
        """Return a part with what was found of it filled in, the same object for all trials."""
        self._key(part)  # which keeps the part, and so its id
        return self._once((id(part), *found.values()), lambda: replace(part, **found))  # type: ignore[type-var]

    def _once(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return what `make` returned, or raise the UserError that it raised, when it was first called for the key."""
        if key not in self._known:
            try:
                self._known[key] = make()
            except UserError as error:
                self._known[key] = error
        known: T | UserError = self._known[key]
        if isinstance(known, UserError):
            raise known
        return known


def _with_keys(looked: Availability) -> Availability:
    return replace(looked, warm_key=warm_key(looked.config), memory_key=memory_key(looked.config))


def _spec(config: TrialConfig) -> TaskSpec:
    return TaskSpec.of(config.task, config.prompt.name, config.prompt.system)


def _of_tools(config: TrialConfig) -> Availability:
    """Return the needs of a trial without a model: tools, whose versions become part of its identity."""
    kind = config.method.kind
    there = kind.installed_tools()
    reasons = tuple(f"{name} is not installed here: {kind.extra}" for name in kind.tools if name not in there)
    versions = tuple(f"{name} {version}" for name, version in there.items())
    with_versions = replace(config, method=replace(config.method, kind=kind.with_versions(versions)))
    return Availability(with_versions, reasons, replace(_needs(config), tools=versions))


def _needs(
    config: TrialConfig, memory: tuple[int, Mapping[Part, float], int] = (0, {}, 0), arch: Arch | None = None
) -> Needs:
    """Return a trial's needs: `memory` as `memory_of` estimates it, and how many layers may be on several GPUs.

    These are of a model whose every weight is trained by backpropagation: nothing else needs so much memory.
    `gradients` are measured on one device.
    """
    kind, device = config.method.kind, config.device
    apart = kind.backpropagates and config.space.moves_base and not config.precision.coded
    peak, parts, client = memory
    return Needs(
        device.node,
        peak,
        device.runs_programs and not device.reads_log,
        config.precision.name,
        parts={part.value: int(size) for part, size in parts.items()},
        client_bytes=client,
        layers=arch.layers if arch and apart and not config.gradients.samples else 0,
    )


def _refused(config: TrialConfig) -> Iterator[str]:
    """Yield the reasons why a trial cannot run on its device's runtime.

    Its parts go together, and it runs on another device: so it is left out, and the rest of its grid runs.
    """
    if missing := config.device.missing_runtime:
        yield str(missing)
    elif runtime := config.device.installed_runtime:
        yield from runtime.refuses(config)


def _lengths(config: TrialConfig, data: DataStatus, most: int, frame: int) -> tuple[float, int]:
    """Return (mean tokens of a sequence, tokens of the longest of a run), from the rows' bytes and the task's lengths.

    The task's are of whole prompts, and a floor: a row's bytes lack the template. `most` where nothing is known.
    `frame` tokens of a chat template are around each.
    """
    usual, texts = config.task.lengths, 1 + config.method.kind.demonstrations
    mean = data.row_bytes and max(data.row_bytes / BYTES_PER_TOKEN, 16)
    longest = 2 * mean
    if usual is not None:
        mean, longest = max(mean, usual.mean), max(longest, usual.longest)
    if not mean:
        return most, most
    return min(most, (mean + frame) * texts), int(min(most, (longest + frame) * texts))


def _not_read(config: TrialConfig, model: ModelStatus, data: DataStatus) -> Iterator[str]:
    """Yield the remarks on rows whose tokens the plan does not count: those of the hub, or without a tokenizer."""
    if data.folder is None or model.tokenizer is None:
        yield "rows that exceed train.max_length are counted in the run, not in the plan"
    if not data.row_bytes:
        planned = "as is typical of the task" if config.task.lengths else "at train.max_length"
        yield f"lengths are not known here: planned {planned}"
