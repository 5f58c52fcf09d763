"""One grid under one override: everything that is printed of it, against the configurations of its trials."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import yaml

from tests.labels.reading import files, model_of, wrong
from tests.papers import common as papers
from tests.plan.common import PLACES
from zo_sweeps.config.composer import Composer, conf_dir
from zo_sweeps.core.errors import UserError
from zo_sweeps.methods.definition import write
from zo_sweeps.methods.trial_config import TrialConfig
from zo_sweeps.plan.as_written import beside_written
from zo_sweeps.plan.build import Plan, build
from zo_sweeps.results import tables
from zo_sweeps.schedule.ledger import Standing
from zo_sweeps_report import sweep_figures

GRIDS = sorted(file.stem for file in (conf_dir() / "grid").glob("*.yaml"))
OVERRIDES = [
    one
    for part in yaml.safe_load(Path(__file__).with_name("overrides.yaml").read_text("utf-8")).values()
    for one in part
]
SEEDS = ("seed", "grid.seeds", "grid.relabel")


@dataclass(frozen=True)
class Printed:
    """What one plan prints: published numbers by (table or figure, block, column)."""

    plan: Plan
    faults: tuple[str, ...]
    numbers: dict[tuple[str, str, str], float]

    def settings(self, block: str, column: str) -> set[str]:
        return {_paper(one) for one in self.behind(block, column)}

    def behind(self, block: str = "", column: str = "") -> list[TrialConfig]:
        blocks = [block] if block else self.plan.grid.blocks
        columns = [column] if column in self.plan.labels else self.plan.labels  # else: a mean, a rank
        return _of(self, blocks, columns)


def _paper(config: TrialConfig) -> str:
    """The part of a configuration that a published number is of."""
    model, task = config.model, config.task
    kept = [
        getattr(config, name)
        for name in ("precision", "estimator", "perturbation", "space")
        if name in config.parts_used
    ]
    return str(
        [
            model_of(config) or [model.source, model.path, model.revision],
            model.arch,
            task.name,
            task.metric,
            config.method.kind,
            config.split.shots,
            write(kept),
        ]
    )


def overrides(grid: str, number: int) -> list[str]:
    """The texts of one of the overrides for a grid."""
    data = yaml.safe_load((conf_dir() / "grid" / f"{grid}.yaml").read_text("utf-8"))
    columns = [name for name in data.get("columns", {}) if name.replace("_", "").replace("-", "").isalnum()]
    given = OVERRIDES[number]
    text = given if isinstance(given, str) else given[0 if columns else 1]
    own = {data.get("fixed", {}).get("task"), *data.get("axes", {}).get("task", [])}
    task = next(name for name in ("rte", "sst2", "wic", "trec") if name not in own)
    block = next(iter(data["blocks"]))
    return _split(text.format(block=block, column=columns[0] if columns else "", task=task))


def _split(text: str) -> list[str]:
    """Split at spaces outside of braces."""
    parts, depth = [""], 0
    for sign in text:
        depth += (sign == "{") - (sign == "}")
        parts = [*parts, ""] if sign == " " and not depth else [*parts[:-1], parts[-1] + sign]
    return parts


def read(plan: Plan, composer: Composer) -> Printed:
    """Build a grid's tables and figures without a result, and read all of their texts."""
    plan = beside_written(plan, composer)
    numbers: dict[tuple[str, str, str], float] = {}
    made = Printed(plan, (), numbers)
    further = " ".join([plan.title, *plan.caveats])
    faults = []
    for table in tables.tables(plan, composer, Standing()):
        columns = [column for column, _ in table.spec.columns]
        keys = {column: column if column in plan.labels else column.partition("/")[0] for column in columns}
        rows = [block for block, _ in table.spec.rows]
        own = table.spec.title.removeprefix(f"{plan.title}: ")
        faults += wrong(own, _of(made, rows, keys.values()), title=True, further=further)
        for block, label in table.spec.rows:
            faults += wrong(label, _of(made, [block], keys.values()))
        for column, label in table.spec.columns:
            if column in plan.labels:
                faults += wrong(label, _of(made, rows, [column]))
        for (block, column), cell in table.cells.items():
            if cell.published is not None:
                numbers[table.spec.name, block, keys.get(column, column)] = cell.published
    for name, spec in plan.grid.figures.items():
        (figure,) = sweep_figures.figures(plan, composer, Standing(), [name])
        blocks = list(spec.series or dict.fromkeys(plan.grid.blocks, ""))
        faults += wrong(figure.title, _of(made, blocks, plan.labels), title=True, further=further)
        for panel in figure.panels:
            for series in panel.series:
                if not series.is_published:
                    faults += wrong(series.label, made.behind(blocks[series.color]))
                for x, y in zip(series.x, series.y, strict=True) if series.is_published else ():
                    tick = figure.ticks[int(x)] if figure.ticks else panel.title
                    column = next((key for key, label in plan.labels.items() if label == tick), "")
                    numbers[figure.name, blocks[series.color], column] = y
    faults += wrong(plan.title, made.behind(), title=True, further=further)
    for block in plan.grid.blocks:
        faults += wrong(plan.grid.label(block), made.behind(block))
    if not plan.grid.columns:
        for column, label in plan.labels.items():
            for config in made.behind("", column):
                display = files("task")[config.task.name]["display"]
                if not label.startswith(str(display)):
                    faults.append(f"column {label!r}: runs {display}")
    return Printed(plan, tuple(dict.fromkeys(faults)), numbers)


def _of(made: Printed, blocks: Iterable[str], columns: Iterable[str]) -> list[TrialConfig]:
    rows, shown = {*blocks}, {*columns}
    ids = {c.trial_id for c in made.plan.cells if c.block in rows and c.task in shown}
    return [TrialConfig.of(made.plan.every[one].config) for one in sorted(ids)]


@cache
def written(grid: str) -> Printed:
    """The grid without an override."""
    return read(papers.plan(grid), papers.composer(grid))


def faults(grid: str, number: int) -> Iterator[str]:
    """Yield everything printed of a grid under one of the overrides that its trials do not hold."""
    given = overrides(grid, number)
    try:
        composer = Composer([f"+grid={grid}", *given])
        now = read(build(composer, PLACES), composer)
    except UserError:
        return  # refused: nothing is printed
    before = written(grid)
    yield from now.faults
    for (name, block, column), number_ in now.numbers.items():
        where = f"{name}, {block} at {column or 'all'}"
        if before.numbers.get((name, block, column)) != number_:
            yield f"{where}: {number_} is not published there"
        elif not now.settings(block, column) <= before.settings(block, column):
            yield f"{where}: {number_} is published of other settings"
    labels = [now.plan.grid.label(block) for block in now.plan.grid.blocks] + [*now.plan.labels.values()]
    unsaid = SEEDS if "device" in before.plan.grid.fixed else (*SEEDS, "device")
    free = all(text.lstrip("+").startswith(unsaid) for text in given)
    said = now.plan.caveats or any("→" in label for label in labels) or now.plan.labels != before.plan.labels
    if not free and not {*now.plan.every} <= {*before.plan.every} and not said:
        yield "other trials than the grid's, and no line says so"
    devices = {c.device.display for c in now.behind() if not c.device.any and not c.device.makes_circuits}
    if "device" in before.plan.grid.fixed and not all(name.partition(" (")[0] in now.plan.title for name in devices):
        yield f"{now.plan.title!r} does not name {devices}"
