"""Verification of an archive: what it says is computed again from its scalar logs, on the reader's copies.

Of every zeroth-order trial, the weights are replayed and their digest compared, without a forward unless its directions
read the minibatches. Then they score dev and test. An untrained model scores them as it is. Weights of backpropagation
are kept nowhere: of these trials, and of those that diverged, only the log is compared with what is said of it. No
time, memory or energy is computed again.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory

from zo_sweeps.config.composer import Composer
from zo_sweeps.config.schema import GridConfig
from zo_sweeps.core.errors import UserError, unknown
from zo_sweeps.core.events import Event, ScoredDev, ScoredTest, Start, only
from zo_sweeps.core.files import packed, unpacked
from zo_sweeps.core.host import provenance
from zo_sweeps.core.trial import Outcome, Trial, TrialState
from zo_sweeps.core.units import counted
from zo_sweeps.devices.peak_memory import is_out_of_memory
from zo_sweeps.devices.probe import probe
from zo_sweeps.devices.speed import torch_threads
from zo_sweeps.engine.replay import OtherBasesError, digest
from zo_sweeps.engine.train import Scores
from zo_sweeps.methods.parts import Model, ModelSource
from zo_sweeps.methods.trial_config import TrialConfig, fingerprint_texts, texts_of
from zo_sweeps.models.identity import fingerprint_model
from zo_sweeps.plan.availability import warm_key
from zo_sweeps.plan.build import Cell, Plan
from zo_sweeps.plan.grid_file import flatten
from zo_sweeps.record.archive import Archive
from zo_sweeps.record.journal import outcome, tested
from zo_sweeps.results.exchange import Shared, differences, same_json, unpack
from zo_sweeps.run.recorder import Nowhere, Recorder
from zo_sweeps.run.workbench import OTHER_START, Workbench
from zo_sweeps.session.export import replayed
from zo_sweeps.tasks import data
from zo_sweeps.tasks.spec import TaskSpec

OF_A_HUB = "hf:"  # how fingerprints begin that name a source, and not its content
SCORED = 1e-4  # relative: of fp32 losses, which another machine rounds in another way
ON_THE_EDGE = 0.01  # share of the test predictions that may be others where weights or scores are rounded otherwise
ROUNDINGS = 8  # of half-precision activations, elsewhere: by how much losses may differ, and metrics of texts
MOST_THREADS = 512  # that an archive may ask for
TIE = 64  # of these, in nats: a prediction that leads by less may be another, as logits up to 32 are as coarse as that


class Verdict(str, Enum):
    """What was found of a trial: computed again and equal; equal but for how this machine rounds; equal to its log,
    which cannot be replayed here; not computed, as the reader's copy of its model or data is not here; or wrong.
    """

    PROVED = "proved"
    ROUNDED = "rounded"
    ATTESTED = "attested"
    MISSING = "missing"
    WRONG = "wrong"


@dataclass(frozen=True)
class Finding:
    """A line of a verification: of a trial, or with trial_id "" of the archive."""

    verdict: Verdict
    text: str
    trial_id: str = ""


class _WrongError(Exception):
    """Something in an archive is not what it was computed from."""


class _MissingError(UserError):
    """A copy that the reader has to name, or to complete."""


@dataclass(frozen=True)
class Copies:
    """The reader's own copies: folders of models (HF format), of data (`data.dir`), and of own members."""

    models: Sequence[Path] = ()
    data: Path | None = None
    members: Sequence[str] = ()


def verify(source: Archive, copies: Copies, only: Sequence[str] = ()) -> Iterator[Finding]:
    """Yield what comes of computing an archive again, as it is found: first of the whole, then trial by trial.

    Args:
        only: ids of trials, or the start of each; (): all.

    Raises UserError for contents that are not an archive's, and for an id that it does not have. Cost: loads the models
    and rows; q noise passes per step; the forwards that score dev and test once per trial.
    """
    composer = Composer([], copies.members)
    with TemporaryDirectory(prefix="zo_sweeps-") as folder:
        shared = unpack(source, Path(folder), composer, copies.members)
        held = [trial_id for trial_id in shared.plan.every if trial_id in shared.standing.outcomes]
        for name in only:
            if not any(trial_id.startswith(name) for trial_id in held):
                raise unknown("trial", name, held[:5], where="the archive")
        ran = [i for i in held if not shared.standing.outcomes[i].never_ran]
        chosen = [trial_id for trial_id in ran if not only or trial_id.startswith(tuple(only))]
        if n := len(held) - len(ran):
            yield Finding(Verdict.ATTESTED, f"{counted(n, 'trial')} not run: others of their cell were selected")
        wrong = set()
        for trial_id in held:
            try:
                _configured(shared.plan, shared.plan.every[trial_id])
            except (_WrongError, UserError) as error:
                wrong.add(trial_id)
                yield Finding(Verdict.WRONG, str(error), trial_id)
        if strays := {*shared.standing.outcomes} - {*shared.plan.every}:
            yield Finding(Verdict.WRONG, f"journals of trials that the plan does not have: {', '.join(sorted(strays))}")
        yield from (Finding(Verdict.WRONG, text) for text in differences(shared, composer))
        for trial_id in chosen:
            if trial_id not in wrong:
                yield _trial(shared, shared.plan.every[trial_id], copies)


def _configured(plan: Plan, trial: Trial) -> None:
    """Raise _WrongError unless a trial's configuration has its id, and is that of the cells that it stands in."""
    config = TrialConfig.of(trial.config)
    if config.trial_id() != trial.trial_id:
        what = f"its configuration is not that of its id, but of {config.trial_id()}: a value was changed"
        raise _WrongError(f"{what}, or the archive is of another version of zo_sweeps")
    values = flatten(config.to_json())
    for cell in plan.cells:
        if cell.trial_id == trial.trial_id:
            for key, value in cell.hyperparameters.items():
                if key in values and values[key] != value:
                    raise _WrongError(f"{key}={value} in the plan, and {values[key]} in its configuration")
            if config.seed != cell.seed and "seed" in config.parts_used:
                raise _WrongError(f"seed {cell.seed} in the plan, and {config.seed} in its configuration")
    cells = [cell for cell in plan.cells if cell.trial_id == trial.trial_id]
    others = [_other_than_named(plan.grid, cell, config) for cell in cells]  # rows of equal settings share a trial
    if others and all(others):
        raise _WrongError(others[0])


def _other_than_named(grid: GridConfig, cell: Cell, config: TrialConfig) -> str:
    """Return how a trial's method or task is not the one that the grid names for a cell's row and column, or ""."""
    block, column = grid.blocks[cell.block], grid.columns.get(cell.task, {})
    methods = (fixed.get("method") for fixed in (block.per_task.get(cell.task, {}), column, block.fixed, grid.fixed))
    named = {
        "method": (next((name for name in methods if isinstance(name, str)), None), config.method.name),
        "task": (column.get("task") if column else cell.task, config.task.name),
    }
    for part, (wanted, found) in named.items():
        if wanted not in (None, found) and part in config.parts_used and not grid.relabel:
            return f"{part} {wanted} in the row and column where it stands, and {found} in its configuration"
    return ""


def _trial(shared: Shared, trial: Trial, copies: Copies) -> Finding:
    """Return what comes of computing a trial again."""
    verdict = Verdict.WRONG
    try:
        verdict, text = _computed(shared, trial, copies)
    except OtherBasesError as error:  # as a changed coefficient makes them too, where the machine is the same
        if _elsewhere(shared.journals.read(trial.trial_id)):
            verdict = Verdict.ATTESTED
        text = str(error)
    except _MissingError as error:
        verdict, text = Verdict.MISSING, str(error)
    except (_WrongError, UserError) as error:
        text = str(error)
    except (MemoryError, RuntimeError) as error:  # one that asks for too much leaves the others to be verified
        verdict = Verdict.MISSING if is_out_of_memory(error) else verdict
        text = f"it cannot be computed here ({type(error).__name__}: {str(error)[:100]})"
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        text = f"its log does not fit its configuration ({type(error).__name__}: {str(error)[:100]})"
    return Finding(verdict, f"{trial.label} ({_what(trial)}): {text}", trial.trial_id)


def _what(trial: Trial) -> str:
    """Return the method and the task that a trial has, whatever it is called."""
    config = TrialConfig.of(trial.config)
    return f"{config.method.name}, {config.task.name}"


def _computed(shared: Shared, trial: Trial, copies: Copies) -> tuple[Verdict, str]:
    events = shared.journals.read(trial.trial_id)
    ended = outcome(events)
    assert ended is not None
    _follows(trial, events, ended)
    config = TrialConfig.of(trial.config)
    kind = config.method.kind
    if ended.state is not TrialState.SUCCEEDED:
        return Verdict.ATTESTED, f"ended as {ended.state.value.lower().replace('_', ' ')}"
    if kind.backpropagates:
        return Verdict.ATTESTED, "trained by backpropagation, which keeps no weights and no log to replay"
    test = tested(events)
    if kind.generates or not kind.of_model:
        return Verdict.ATTESTED, "a measurement of time or of circuits, without a test score"
    if not test or test.weights is None or test.rows is None or test.right is None or test.examples is None:
        raise _WrongError("its log has no digest of the weights: it was taken out, or an earlier version ran the trial")
    mine = _here(config, copies)
    here = replace(trial, config=mine, warm_key=warm_key(mine))
    again = replayed(here, events, ended.selected_step) if kind.estimates else _untrained(here, events)
    with torch_threads(_threads_of(events)), again as (bench, space):
        weights = digest(space.params) if space is not None else ""
        elsewhere = _elsewhere(events)
        portable = config.perturbation.portable and config.update.portable
        rounded = weights != test.weights and bool(elsewhere) and not portable
        if weights != test.weights and not (rounded and not bench.began_elsewhere):
            what = f"the replayed weights are {weights[:12] or 'none'}, and those of the run {test.weights[:12]}"
            if bench.began_elsewhere:
                raise _WrongError(f"{what}: {OTHER_START.format(space=config.space.name)}{elsewhere}")
            raise _WrongError(f"{what}: a coefficient was changed{elsewhere}")
        if bench.splits.test_rows != test.rows:
            raise _WrongError(f"its test rows are {test.rows[:12]}, and those here {bench.splits.test_rows[:12]}")
        bench.recorder.selection = bench.selection()
        if bench.recorder.best() != ended.selected_step:
            raise _WrongError(f"step {ended.selected_step} was tested, and dev selects step {bench.recorder.best()}")
        unit = config.precision.unit if elsewhere and ROUNDINGS * config.precision.unit > SCORED else 0.0
        edge = ON_THE_EDGE * (rounded or unit > 0)

        def scored(split: str, here: Scores, event: ScoredDev | ScoredTest) -> bool:
            tied = sum(lead <= TIE * unit for lead in here.leads) / max(1, len(here.leads)) if unit else 0.0
            return _scored(split, here, event, events, ROUNDINGS * unit, max(edge, tied, ROUNDINGS * unit))

        exact = scored("dev", bench.score_dev(), bench.recorder.evaluations[ended.selected_step])
        scores = bench.score(bench.splits.test)
        exact &= scored("test", scores, test)
        there = unpacked(test.right, test.examples)
        others = [row for row, (a, b) in enumerate(zip(scores.right, there, strict=True)) if a != b]
        different = len(others)
        if unit and scores.leads:
            others = [row for row in others if scores.leads[row] > TIE * unit]
        if len(others) > max(edge, 0.0 if scores.leads else ROUNDINGS * unit) * len(scores.right):
            raise _WrongError(f"{len(others)} of {len(scores.right)} test predictions are others here{elsewhere}")
    metric = config.task.metric[0]
    shown = f"test {metric.display or metric.name} {metric.printed(scores.metric)}{metric.unit and ' ' + metric.unit}"
    what = "weights of other roundings" if rounded else f"weights {weights[:12]}" if weights else "untrained"
    if rounded or different or not exact:
        same = f"{len(scores.right) - different} of {len(scores.right)} test predictions are the run's"
        return Verdict.ROUNDED, f"{what}, {shown}, {same}"
    return Verdict.PROVED, f"{what}, {shown}"


def _follows(trial: Trial, events: list[Event], ended: Outcome) -> None:
    """Raise _WrongError unless what is said of a trial follows from its log."""
    recorder = Recorder(trial, Nowhere(), events)
    recorder.selected = ended.selected_step
    derived = recorder.outcome(ended.state).metrics
    for name in {*derived, *ended.metrics}:
        if name.startswith(("dev/", "test/")) or name == "final_train_loss":
            there, here = ended.metrics.get(name), derived.get(name)
            if not same_json(there, here):
                raise _WrongError(f"{name} is {there} in its result, and {here} in its log")
    if ended.steps_done != len(recorder.losses):
        raise _WrongError(f"{ended.steps_done} steps in its result, and {len(recorder.losses)} in its log")
    test = tested(events)
    if test and test.right and packed(unpacked(test.right, test.examples or 0)) != test.right:
        raise _WrongError("its predictions are not a bit per example")


def _scored(
    split: str, scores: Scores, event: ScoredDev | ScoredTest, events: list[Event], near: float, edge: float
) -> bool:
    """Return whether a split is scored here as in the run, to fp32's rounding.

    Raises _WrongError unless the loss is, or is `near` (relative, or nats); metrics may differ by `edge`.
    """
    exact = math.isclose(scores.loss, event.loss, rel_tol=SCORED)
    if not exact and not math.isclose(scores.loss, event.loss, rel_tol=near, abs_tol=near):
        what = f"{split}/loss is {event.loss:.6g} in its log, and {scores.loss:.6g} here"
        raise _WrongError(f"{what}{_elsewhere(events)}")
    if {*scores.metrics} != {*event.metrics} or event.metric != next(iter(event.metrics.values())):
        raise _WrongError(f"the metrics of {split} in its log are not those of its task")
    for name, value in scores.metrics.items():
        there = event.metrics[name]
        same = math.isclose(value, there, rel_tol=SCORED, abs_tol=SCORED)
        if not same and not math.isclose(value, there, rel_tol=max(SCORED, near), abs_tol=edge):
            raise _WrongError(f"{split}/{name} is {there:.6g} in its log, and {value:.6g} here{_elsewhere(events)}")
        exact &= same
    return exact


def _threads_of(events: list[Event]) -> int:
    """Return the run's threads, 0 if they are not known: in half precision a product's last bits depend on them."""
    then = only(Start, events)[-1].device.get("threads")
    return then if isinstance(then, int) and 0 < then <= MOST_THREADS else 0


@contextmanager
def _untrained(trial: Trial, events: list[Event]) -> Iterator[tuple[Workbench, None]]:
    config = TrialConfig.of(trial.config)
    bench = Workbench(config, trial.warm_key, Recorder(trial, Nowhere(), events))
    bench.load()
    yield bench, None


def _elsewhere(events: list[Event]) -> str:
    """Return how the run's versions and processors differ from those here, which may round in another way; or ""."""
    start = only(Start, events)[-1]
    then, here = start.versions, provenance()
    packages = then.get("packages", {})
    pairs = [(name, packages.get(name), here["packages"].get(name)) for name in ("zo_sweeps", "torch", "transformers")]
    processors = {(then.get("cpu"), here["cpu"]), (start.device.get("name"), probe()["name"])}  # a GPU's host has both
    pairs += [("processor", old, new) for old, new in sorted(processors, key=str)]
    other = [f"{name} {old} then, {new} here" for name, old, new in pairs if old != new]
    return f", or this machine rounds in another way ({'; '.join(other)})" if other else ""


def _here(config: TrialConfig, copies: Copies) -> TrialConfig:
    """Return a configuration with the reader's copies in place of what it names, their identities checked.

    A GPU that it names is left to the reader's machine: replayed weights are the same on a CPU.

    Raises UserError for one that is not given, and _WrongError for one that is another.
    """
    packaged = config.model.fingerprint.startswith("package:")  # with its mask, so that no text is read
    texts = [] if packaged else [name for name, _ in texts_of(config)]
    for name in (config.task.folder, *texts):
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or name.startswith("~"):
            raise _WrongError(f"it names a file outside of the data: {name!r}")
    folder = None if copies.data is None else str(copies.data)
    if folder is None and (texts or config.task.source != "packaged"):
        fix = "name your copy of the data with --data DIR, which has a folder per task"
        what = f"its {'text' if texts else 'rows'} ({config.task.name}) do not ship with zo_sweeps"
        raise _MissingError(what, fix=fix)
    device = config.device if config.device.cpu else replace(config.device, kind="auto")
    model = _model(config.model, copies.models)
    here = replace(config, model=model, data=replace(config.data, dir=folder), device=device)
    here = replace(here, task=replace(config.task, fingerprint=_rows(here)))
    text, missing = fingerprint_texts(here) if texts else (config.data.text_fingerprint, "")
    if missing:
        raise _MissingError(missing)
    if text != config.data.text_fingerprint:
        raise _WrongError(f"its text is {config.data.text_fingerprint}, and the one here {text}")
    return here


def _model(model: Model, folders: Sequence[Path]) -> Model:
    """Return a trial's model as it is here, with its fingerprint here: a hub's names a model, and not its content."""
    of_hub = model.fingerprint.startswith(OF_A_HUB)
    if model.source in (ModelSource.DEMO, ModelSource.RANDOM):
        here = [model]
    else:
        here = [replace(model, source=ModelSource.LOCAL, path=str(folder)) for folder in folders]
    found = [replace(one, fingerprint=fingerprint_model(one)) for one in here]
    if same := [one for one in found if one.fingerprint == model.fingerprint or (of_hub and len(found) == 1)]:
        return same[0]
    if len(found) == 1:
        what = f"its model is {model.fingerprint}, and the one here {found[0].fingerprint}"
        raise _WrongError(f"{what}: a weight, the configuration or the tokenizer is another")
    what = f"its model ({model.name}, {model.fingerprint}) does not ship with zo_sweeps"
    if found:
        what = f"none of the {len(found)} models here is its ({model.name}, {model.fingerprint})"
    raise _MissingError(what, fix=f"name your copy of it{' alone' * of_hub} with --model DIR")


def _rows(config: TrialConfig) -> str:
    """Return the fingerprint of a task's rows here."""
    there = config.task.fingerprint
    status = data.check(TaskSpec.of(config.task, config.prompt.name), config.task, config.data.dir)
    if not status.available:
        raise _MissingError(f"its rows are not here: {status.why}")
    if status.fingerprint != there and not there.startswith(OF_A_HUB):
        what = f"its rows ({config.task.name}) are {there}, and those here {status.fingerprint}"
        raise _WrongError(f"{what}: an example is another")
    return status.fingerprint
