"""A grid -> its trials, their needs, and every problem with them. Launches nothing.

A grid has blocks (printed rows) and columns: the tasks of its axis `task`, or the entries of `columns`. Each block has
fixed values and axes. The columns are expanded first, so that a column can replace a value or an axis (`columns` for
every block, `per_task` for one); then the product of the axes; then the seeds. Cells share a trial if nothing that
changes its result differs: trials are keyed by their fingerprint.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass, replace
from functools import cached_property
from typing import Any

from zo_sweeps.config.composer import Composer
from zo_sweeps.config.schema import EITHER, GridConfig, RunConfig, SelectConfig
from zo_sweeps.core.errors import NotInstalledError, UserError
from zo_sweeps.core.fingerprint import Canonical, canonical, fingerprint
from zo_sweeps.core.trial import SharedSteps, Trial
from zo_sweeps.devices.speed import format_times
from zo_sweeps.methods.definition import identity
from zo_sweeps.methods.evaluation import Restore
from zo_sweeps.methods.parts import ModelSource, Train
from zo_sweeps.methods.precision import FASTEST
from zo_sweeps.methods.trial_config import TrialConfig
from zo_sweeps.plan.availability import Availability, Places
from zo_sweeps.plan.compatible import incompatible
from zo_sweeps.plan.grid_file import LR, flatten
from zo_sweeps.plan.labels import labels
from zo_sweeps.plan.overrides import Overrides, short, shown
from zo_sweeps.plan.resolve import Ran, Resolver, Setting, add, as_written, difference, expand, fastest_on

CONFIRMS = "runs only if its setting is the one that the first seeds select"


@dataclass(frozen=True)
class Cell:
    """The position of a trial in a grid: (block, task) is a printed cell, with one trial per setting and seed.

    Args:
        task: the column: the name of a task, or of one of the grid's `columns`.
        hyperparameters: the values of the searched axes that the method's kind uses.
    """

    block: str
    task: str
    seed: int
    hyperparameters: Mapping[str, Any]
    trial_id: str


@dataclass(frozen=True)
class Plan:
    """The trials of a grid.

    Args:
        config: of the run; its grid without the rows and series that the command line leaves out, and with the printed
            labels and titles (see `plan.labels`).
        trials: the trials that can run here, each once, in grid order.
        cells: every (block, task, setting, seed), with the trials that cannot run here.
        reasons: trial_id -> every reason why the trial cannot run here.
        labels: column -> printed name.
        caveats: the differences between the trials and the grid as written.
        every: trial_id -> trial, with those that cannot run here.
        remarks: trial_id -> lines on what limits it, such as few distinct directions.
        relabelled: the blocks whose labels name what they run otherwise.
        altered: the cells that `plan.altered` has found, of a plan that is run or was read from a sweep's record.
        extents: what `plan.extent` has found, likewise.
    """

    config: RunConfig
    trials: tuple[Trial, ...]
    cells: tuple[Cell, ...]
    reasons: Mapping[str, tuple[str, ...]]
    labels: Mapping[str, str]
    caveats: tuple[str, ...]
    every: Mapping[str, Trial] = field(default_factory=dict)
    remarks: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    relabelled: frozenset[str] = frozenset()
    altered: frozenset[tuple[str, str]] | None = None
    extents: Mapping[tuple[str, str], tuple[int, int]] | None = None

    @cached_property
    def missing(self) -> Mapping[str, str]:
        """trial_id -> why the trial cannot run here, in one text."""
        return {trial_id: "; ".join(reasons) for trial_id, reasons in self.reasons.items()}

    @cached_property
    def obstacles(self) -> Mapping[str, list[str]]:
        """reason -> the trial_ids that it holds back, the most frequent reason first; a trial may have several."""
        return dict(sorted(by_line(self.reasons).items(), key=lambda item: -len(item[1])))

    @property
    def grid(self) -> GridConfig:
        return self.config.grid

    @property
    def name(self) -> str:
        return self.grid.name

    @property
    def title(self) -> str:
        """The grid's title, or its name where it has none."""
        return self.grid.title or self.name


def by_line(lines: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Return line -> the trial_ids that have it, of trial_id -> lines."""
    found: dict[str, list[str]] = {}
    for trial_id, of_trial in lines.items():
        for line in dict.fromkeys(of_trial):
            found.setdefault(line, []).append(trial_id)
    return found


def build(composer: Composer, places: Places | None = None) -> Plan:
    """Return the plan of the composed grid.

    Args:
        places: looks for models and rows, and counts their tokens, each once; None: a new one.

    Raises UserError listing every problem at once: unknown names and keys, wrong types, incompatible parts, malformed
    data, and a grid without trials.
    """
    grid = composer.run.grid
    if not grid.blocks:
        raise UserError(f"grid {grid.name!r} has no blocks", where=f"grid/{composer.command_line.grid}.yaml")
    draft = _Draft(composer, places or places_of(composer))
    for name in draft.grid.blocks:
        draft.add(name)
    return draft.finished()


def places_of(composer: Composer) -> Places:
    """Return where to look for models and rows: on this machine, unless the trials run on a cluster."""
    return Places(here=composer.run.cluster.address is None)


class _Draft:
    """A plan in the making, and everything that is wrong with it."""

    def __init__(self, composer: Composer, places: Places) -> None:
        self.composer = composer
        self.grid = composer.run.grid
        self.drafts: list[tuple[str, Availability, Setting]] = []
        self.runs: dict[tuple[str, str], Ran] = {}
        self.problems: dict[str, list[str]] = {}  # what is wrong -> the blocks it is wrong in
        self.devices: set[str] = set()
        self.measured: dict[str, None] = {}  # what precision=fastest is, in a line each
        self.places = places
        # (id of a part, dialect) -> the part, which so keeps its id, and what counts of it
        self.identities: dict[tuple[int, str], tuple[Any, Canonical]] = {}
        self.resolver, self.overrides = Resolver(composer), Overrides(composer)
        try:
            self.grid = shown(self.grid, composer.left_out)
        except UserError as error:
            self.problems[str(error)] = []

    def add(self, name: str) -> None:
        """Add the cells of a block, or what is wrong with it."""
        drafts: list[tuple[Availability, Setting]] = []
        try:
            for setting in expand(self.grid, name, self.overrides):
                config = self.resolver.resolve(setting)
                if setting.choices.get("precision") == FASTEST and config.method.kind.of_model:
                    eps = difference(config.method.kind, getattr(config.estimator, "eps", None))
                    self.measured[format_times(fastest_on(self.composer, config.device)).line(eps)] = None
                if (device := config.device.name) not in self.devices:
                    self.composer.option("device", device)  # no node is labelled with a name that has no profile
                    self.devices.add(device)
                if wrong := incompatible(config):
                    for text in wrong:
                        self._note(text, name)
                else:
                    drafts.append((self.places.look(config), setting))
                    add(self.runs, name, setting, config)
        except NotInstalledError:
            raise
        except UserError as error:
            for one in error.errors:
                self._note(str(one), name)

        self.drafts += [(name, *draft) for draft in among(drafts, self.grid.select)]

    def finished(self) -> Plan:
        """Return the plan. Raises UserError listing everything that is wrong."""
        wrong = [
            f"{text} (block{'s' * (len(where) > 1)} {', '.join(where)})" if where else text
            for text, where in self.problems.items()
        ]
        if wrong := [*wrong, *self.resolver.unknown(self.overrides)]:
            listed = "".join(f"\n  - {text}" for text in wrong)
            several = f"{len(wrong)} problems in grid {self.grid.name!r}:{listed}"
            raise UserError(several if len(wrong) > 1 else wrong[0])
        kept = self.overrides.kept(self.grid)
        if not self.drafts:
            raise UserError(f"grid {kept.name!r} has no trials: no seeds, or everything is excluded")
        _, written = as_written(self.composer, self.resolver.parts)
        texts = labels(kept, self.runs, written, self._scaled())
        rows = {block: texts.row(block) for block in kept.blocks}
        columns = {column: texts.column(column) for column in dict.fromkeys(column for _, column in self.runs)}
        cells: list[Cell] = []
        every: dict[str, Trial] = {}
        behind: dict[str, Availability] = {}
        for block, looked, setting in self.drafts:
            config, searched = looked.config, used(setting.searched, looked.config)
            trial_id, column = self._trial_id(config), setting.column or config.task.name
            cells.append(Cell(block, column, config.seed, searched, trial_id))
            if trial_id not in every:
                trial = _trial(trial_id, looked, searched, rows[block], columns[column])
                every[trial_id] = replace(trial, grid=self.grid.name, block=block)
                behind[trial_id] = looked
        notes = tuple(self.overrides.notes(replace(texts, grid=self.grid).row, columns))
        notes += tuple(f"precision=fastest is {line}" for line in self.measured)
        if kept.rates and self.composer.command_line.sets("grid.rates") and not any(map(self._by_rates, self.drafts)):
            notes += ("no row takes grid.rates: each that trains has a rate or an axis of its own",)
        return Plan(
            config=replace(self.composer.run, grid=texts.applied()),
            trials=tuple(trial for trial_id, trial in every.items() if not behind[trial_id].reasons),
            cells=tuple(cells),
            reasons={trial_id: looked.reasons for trial_id, looked in behind.items() if looked.reasons},
            labels=columns,
            caveats=(*_caveats(self.composer, self.grid, cells, every), *notes),
            every=every,
            remarks={trial_id: looked.remarks for trial_id, looked in behind.items() if looked.remarks},
            relabelled=frozenset(texts.rows),
        )

    def _by_rates(self, draft: tuple[str, Availability, Setting]) -> bool:
        name, _, setting = draft
        return LR in setting.searched and LR not in {*flatten(self.grid.axes), *flatten(self.grid.blocks[name].axes)}

    def _trial_id(self, config: TrialConfig) -> str:
        """Return the trial_id; what counts of a part is made canonical once for all trials that share the object."""
        counted = config.identity(self._identity)
        if "task" in counted:
            counted["task"] = self._canonical(config.task, lambda task: counted["task"], config.prompt.name)
        return fingerprint(counted)

    def _identity(self, part: Any) -> Any:
        return self._canonical(part, identity) if is_dataclass(part) else part  # such as the seed

    def _canonical(self, part: Any, counted: Callable[[Any], Any], dialect: str = "") -> Canonical:
        known = self.identities.get((id(part), dialect)) or (part, Canonical(canonical(counted(part))))
        return self.identities.setdefault((id(part), dialect), known)[1]

    def _scaled(self) -> tuple[str, ...]:
        """Return how the keys begin that a caveat names, and no label: the shape that the scale cuts."""
        shape = "model.arch"
        given = any(key.startswith(shape) for key in self.composer.forced)
        return () if given or self.composer.run.scale.layers is None else (shape,)

    def _note(self, text: str, block: str) -> None:
        where = self.problems.setdefault(text, [])
        if block not in where:
            where.append(block)


def _trial(trial_id: str, looked: Availability, searched: Mapping[str, Any], row: str, column: str) -> Trial:
    config, kind, names = looked.config, looked.config.method.kind, [row, column]
    if kind.trains or kind.demonstrations or kind.generates:
        names += [f"{name.rpartition('.')[2]} {short(value)}" for name, value in searched.items()]
        names.append(f"seed {config.seed}")
    return Trial(
        trial_id=trial_id,
        config=config,
        needs=looked.needs,
        warm_key=looked.warm_key,
        cost=looked.cost,
        operations=looked.operations,
        steps=config.steps,
        memory_key=looked.memory_key,
        shared_steps=_shared_steps(config),
        label=" · ".join(names),
        task=config.task.name if kind.of_model else "",
    )


def _shared_steps(config: TrialConfig) -> SharedSteps | None:
    """Return how processes can share the steps of a trial; None if it has no zeroth-order steps."""
    kind = config.method.kind
    if not kind.estimates:
        return None
    if kind.shared_steps is not None:
        return kind.shared_steps
    why = ""
    if config.evaluation.restore is Restore.IN_PLACE:
        why = "evaluation.restore=in_place, unlike exact, leaves rounding in theta at every point"
    elif config.device.runs_programs:
        why = "an exported program evaluates all points of a step"
    directions = 0 if config.estimator.coordinates else config.estimator.budget
    evaluation = config.evaluation
    return SharedSteps(directions, evaluation.mode.forwards, evaluation.mode.value, why, evaluation.parts or 1)


def _column(grid: GridConfig, cell: Cell, trial: Trial) -> str:
    """Return what a cell's column sets in its trial: columns of densities are one column to a full space."""
    if cell.task not in grid.columns:
        return cell.task
    config = TrialConfig.of(trial.config)
    return str({key: value for key, value in flatten(grid.column_values(cell.task)).items() if config.has(key)})


def _caveats(
    composer: Composer, grid: GridConfig, cells: Sequence[Cell], trials: Mapping[str, Trial]
) -> tuple[str, ...]:
    """Return the differences between the trials and the grid as written, for the captions of tables."""
    found, configs = [], [TrialConfig.of(trial.config) for trial in trials.values()]
    scale = composer.run.scale
    if scale.name != "paper":
        cut = scale.max_length and all(config.train.max_length <= scale.max_length for config in configs)
        less = f", texts of at most {scale.max_length} tokens" if cut else ""  # a column may set a length of its own
        if scale.layers and any(config.model.source == ModelSource.RANDOM for config in configs):
            less += f", random weights of {scale.layers} layer{'s' * (scale.layers != 1)}"
        found.append(f"scale={scale.name}: fewer steps and examples than the grid's{less}; not comparable with a paper")
    places: dict[str, set[tuple[str, str]]] = {}
    for cell in cells:
        places.setdefault(cell.trial_id, set()).add((cell.block, _column(grid, cell, trials[cell.trial_id])))
    shared = sum(len(where) for where in places.values() if len(where) > 1)
    if shared:
        under = " under these overrides" * bool(composer.forced)
        found.append(f"{shared} entries became identical to others{under} and share their trials")
    if composer.left_out:
        found.append(f"left out: {', '.join(composer.left_out)}")
    forced = composer.forced
    if "model" in forced:
        display = composer.trial["model"]["display"]
        found.append(f"run on {' and '.join(forced.get('model.path') or forced['model'])} ({display})")
    found += filter(None, [moved(configs)])
    claimed = {
        config.model.display or config.model.name: config.model.path for config in configs if config.model.is_claimed
    }
    found += [
        f"{name} is {path}: compared by shape and vocabulary, and not by its weights" for name, path in claimed.items()
    ]
    apart = ["model", "data.dir", "model.path"]
    apart += [] if "device" in composer.run.grid.fixed else ["device"]
    apart += [] if composer.run.grid.columns else ["task"]
    if all(config.split.shots for config in configs):
        apart += [size for size, other in EITHER.items() if other == "split.shots"]  # which passes them over
    given = [f"{name}={','.join(map(str, v))}" for name, v in forced.items() if name not in apart]
    given += composer.command_line.edits
    if given:
        found.append(f"set on the command line: {' '.join(given)}")
    return tuple(found)


def among(drafts: Sequence[tuple[Availability, Setting]], rule: SelectConfig) -> Iterator[tuple[Availability, Setting]]:
    """Yield a row's trials in order; those that depend on others have the digest of these and of the rule.

    These are trials with rungs, and with `rule.seeds` a search's trials of further seeds, which run in full or not at
    all: see `schedule.halving`.
    """
    if rule.seeds is not None and rule.seeds < 1:
        raise UserError(f"grid.select.seeds must be at least 1, not {rule.seeds}", fix="omit it: all seeds select")
    seeds = [*dict.fromkeys(setting.values["seed"] for _, setting in drafts)][: rule.seeds]
    for _, column in itertools.groupby(drafts, key=lambda draft: draft[1].column or draft[0].config.task.name):
        yield from _of_column([*column], seeds, rule)


def _of_column(
    drafts: Sequence[tuple[Availability, Setting]], seeds: Sequence[int], rule: SelectConfig
) -> Iterator[tuple[Availability, Setting]]:
    def digest(configs: Iterable[TrialConfig]) -> str:
        return fingerprint([rule.metric, rule.mode, [config.trial_id() for config in configs]])

    first = [needs.config for needs, setting in drafts if setting.values["seed"] in seeds]
    if len(first) == len(drafts) and not any(config.train.halving for config in first):
        yield from drafts
        return
    rungs, search = digest(config for config in first if has_rungs(config)), digest(first)
    searched = {fingerprint([used(setting.searched, needs.config)]) for needs, setting in drafts}
    whole: dict[str, Any] = {"halving": (), "halving_keep": Train.halving_keep}  # the same trial as without the option
    for needs, setting in drafts:
        config, change, remarks = needs.config, dict[str, Any](), needs.remarks
        if setting.values["seed"] not in seeds and len(searched) > 1 and config.method.kind.trains:
            change, remarks = {**whole, "halving_among": search}, (*remarks, CONFIRMS)
        elif has_rungs(config):
            change = {"halving_among": rungs}
        elif config.train.halving:
            change = whole
        config = replace(config, train=replace(config.train, **change))
        yield replace(needs, config=config, remarks=remarks), setting


def used(searched: Mapping[str, Any], config: TrialConfig) -> dict[str, Any]:
    """Return those of the searched values that a trial's kind uses, and its members have."""
    return {key: value for key, value in searched.items() if config.uses(key) and config.has(key)}


def has_rungs(config: TrialConfig) -> bool:
    """Return whether the trial is compared with others at rungs: its kind can pause, and resume from the log."""
    return bool(config.train.rungs) and config.method.kind.resumes


def moved(configs: Iterable[TrialConfig]) -> str:
    """Return the line on trials whose rungs are not at their share of the steps; "" without any."""
    places: dict[str, None] = {}
    for config in configs:
        train = config.train
        if has_rungs(config) and [share * train.steps for share in train.halving] != [*train.rungs]:
            places[f"step {' and '.join(map(str, train.rungs))} of {train.steps}"] = None
    return f"train.halving compares where dev is evaluated next: {'; '.join(places)}" if places else ""
