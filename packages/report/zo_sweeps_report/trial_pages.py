"""A page per trial that has run, and the list of a sweep's trials: what the cells of a report lead to.

A report has none of them in itself, so that it opens as fast with 10,000 trials as with ten.
"""

from __future__ import annotations

import json
import math
import os
import shlex
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import astuple, dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

from zo_sweeps.core.files import replace_text
from zo_sweeps.core.fingerprint import fingerprint
from zo_sweeps.core.host import VERSION
from zo_sweeps.core.memory_parts import MEANINGS, MEMORY, TOTAL
from zo_sweeps.core.trial import Trial, TrialState
from zo_sweeps.core.units import bytes_text, metric_text
from zo_sweeps.methods.metric import Metric
from zo_sweeps.methods.trial_config import TrialConfig
from zo_sweeps.plan.build import Plan
from zo_sweeps.record.journal import JournalStore, trail
from zo_sweeps.results.facts import TrialFacts, described_trial, differing
from zo_sweeps.schedule.ledger import Standing
from zo_sweeps.tables.html import STYLE, document
from zo_sweeps.tables.text_cells import plain
from zo_sweeps_report.figure_kinds.curve import CURVES, windowed
from zo_sweeps_report.fragments import WEB
from zo_sweeps_report.metric_meanings import METRICS
from zo_sweeps_report.report import LIST, device_of, has_page, made_by, page_script, versions_of

COLUMNS = ("trial", "state", "selected step", "dev loss", "test", "seconds", "id")
COMMANDS = ("status {}", "answers {}", "export {} --out adapter")
PARTS = (*((part.metric, part.value, text) for part, text in MEANINGS.items()), (TOTAL, "total", METRICS[TOTAL]))
ALIKE = 100  # trials of other seeds that a page names, at most: else its length would grow with the sweep
SPLITS, MARK = ("dev", "test"), " (selected)"
WIDTH, HEIGHT, EDGE = 320, 120, 4  # of a drawn curve
CLOCK = 0.001  # seconds, to which a file system keeps a time


@dataclass(frozen=True)
class TrialPages:
    """The pages of a sweep's trials.

    Args:
        command: that runs or resumes the grid.
        report: address of the sweep's report, from the pages.
        assets: that of the folder with style.css and page.js.
    """

    plan: Plan
    standing: Standing
    command: str
    report: str
    assets: str

    @cached_property
    def ran(self) -> list[str]:
        """The ids of the trials with a page: ID.html."""
        return [trial_id for trial_id in self.plan.every if has_page(self.standing, trial_id)]

    def index(self) -> str:
        """Return LIST, a line per trial."""
        return self._document(
            "trials.html.j2",
            f"Trials of {self.plan.title}",
            columns=COLUMNS,
            rows=[_line(self.plan, self.standing, trial) for trial in self.plan.every.values()],
            linked={trial_id: f"{trial_id}.html" for trial_id in self.ran},
        )

    def page(self, trial_id: str) -> str:
        """Return the page of a trial. Raises UserError if its journal is damaged. Cost: reads it; some milliseconds."""
        trial, ended = self.plan.every[trial_id], self.standing.outcomes.get(trial_id)
        events = self._journals.read(trial_id, ended=self.standing.has_result(trial_id))
        facts = described_trial(self.plan, self.standing, trial, events, self._differing)
        metric, others = _metric(trial), (i for ids in self._settings[trial_id] for i in ids if i != trial_id)
        alike = dict.fromkeys(islice((i for i in others if has_page(self.standing, i)), ALIKE))
        state = f" state_dir={shlex.quote(at)}" if (at := self.plan.config.state_dir) != "zo_runs" else ""
        measured = [(name, metric_text(name, value), METRICS.get(name, "")) for name, value in facts.metrics.items()]
        parts = [(name, facts.metrics.get(key, 0), meaning) for key, name, meaning in PARTS]
        return self._document(
            "trial.html.j2",
            trial.label,
            of=self.plan.title,
            trial=facts,
            metric=" ".join([metric.display or metric.name, *([f"({metric.unit})"] if metric.unit else [])]),
            scores=_scores(metric, facts, ended.selected_step if ended else -1),
            curves=_curves(metric, trail(events)),
            differs=[(name, plain(value)) for name, value in facts.differs.items()],
            configuration=json.dumps(facts.configuration, indent=1, sort_keys=True, ensure_ascii=False),
            memory=[(name, bytes_text(size), meaning) for name, size, meaning in parts if size],
            measured=[line for line in measured if not line[0].startswith(MEMORY)],
            machine=device_of(ended) if ended else (),
            versions=versions_of(ended) if ended else "",
            attempts=[(number, *astuple(one)) for number, one in enumerate(facts.attempts, 1)],
            alike=[(i, self.plan.every[i].label) for i in alike],
            most=ALIKE,
            commands=[f"python -m zo_sweeps {words.format(trial_id)}{state}" for words in COMMANDS],
        )

    def write(self, folder: Path) -> None:
        """Write all of them, and what they load, into a folder. A page that is of the ledger's last line stays.

        Raises OSError if a file cannot be written. Cost: that of the pages of trials that have changed.
        """
        folder.mkdir(parents=True, exist_ok=True)
        mark, key = folder / ".made-of", fingerprint([VERSION, self.command, self.report, sorted(self._differing)])
        known = mark.exists() and mark.read_text(encoding="utf-8") == key
        replace_text(folder / "style.css", STYLE.read_text(encoding="utf-8"))
        replace_text(folder / "page.js", page_script())
        for trial_id in self.ran:
            path, last = folder / f"{trial_id}.html", self.standing.last.get(trial_id, 0.0)
            over = self.standing.state(trial_id) is not TrialState.RUNNING
            if known and over and path.exists() and abs(path.stat().st_mtime - last) < CLOCK:
                continue
            replace_text(path, self.page(trial_id))
            os.utime(path, (last, last))  # not the time now: the ledger may have had another line meanwhile
        replace_text(folder / LIST, self.index())
        replace_text(mark, key)

    def _document(self, template: str, title: str, **values: Any) -> str:
        links = [(self.report, "Report"), *([(LIST, "All trials")] if template == "trial.html.j2" else [])]
        return document(
            template,
            WEB,
            files=True,
            title=title,
            links=links,
            command=self.command,
            assets=self.assets,
            chart_style="",
            scripts={"page.js": ""},
            provenance=self._provenance,
            **values,
        )

    @cached_property
    def _provenance(self) -> Sequence[str]:
        return made_by(self.plan, self.standing)

    @cached_property
    def _journals(self) -> JournalStore:
        return JournalStore(self.plan.config.folder)

    @cached_property
    def _differing(self) -> frozenset[str]:
        return differing(self.plan.every.values())

    @cached_property
    def _settings(self) -> Mapping[str, Sequence[Collection[str]]]:
        return _settings(self.plan)


def _settings(plan: Plan) -> Mapping[str, Sequence[Collection[str]]]:
    """Return trial -> the trials of each of its cells' settings, over all seeds."""
    settings: defaultdict[str, dict[str, None]] = defaultdict(dict)
    keys: defaultdict[str, dict[str, None]] = defaultdict(dict)
    for cell in plan.cells:
        key = json.dumps([cell.block, cell.task, cell.hyperparameters], sort_keys=True, default=str)
        settings[key][cell.trial_id] = keys[cell.trial_id][key] = None
    return {trial_id: [settings[key] for key in own] for trial_id, own in keys.items()}


def _line(plan: Plan, standing: Standing, trial: Trial) -> tuple[str, ...]:
    """Return the trial's line of the list."""
    ended = standing.outcomes.get(trial.trial_id)
    metrics: Mapping[str, float] = ended.metrics if ended else {}
    state = "missing" if trial.trial_id in plan.missing else standing.state(trial.trial_id).value.lower()
    return (
        trial.label,
        state.replace("_", " "),
        str(ended.selected_step) if ended else "",
        f"{metrics['dev/loss']:.4f}" if "dev/loss" in metrics else "",
        _metric(trial).printed(metrics["test/metric"]) if "test/metric" in metrics else "",
        f"{metrics['wall_seconds']:.0f}" if "wall_seconds" in metrics else "",
        trial.trial_id,
    )


def _scores(metric: Metric, facts: TrialFacts, selected: int) -> list[tuple[str, ...]]:
    """Return a line per evaluation: split, step, with a mark if it is the selected one, rows, loss, metric."""
    rows = {split: f"{facts.metrics[key]:.0f}" for split in SPLITS if (key := f"{split}_rows") in facts.metrics}
    return [
        (it.split, f"{it.step}{MARK * (it.step == selected)}", rows.get(it.split, ""), f"{it.loss:.4f}", printed)
        for it in facts.evaluations
        for printed in [metric.printed(it.metric)]
    ]


def _curves(metric: Metric, curves: Mapping[str, Sequence[tuple[int, float, float]]]) -> list[dict[str, Any]]:
    """Return each curve of two points or more as a path, with the numbers at the ends of its axes."""
    named = {**CURVES, "dev/metric": (f"Dev {metric.display or metric.name} ({metric.unit})", metric.unit_size)}
    drawn = []
    for name, (label, unit) in named.items():
        run = windowed(curves[name]) if name == "train/loss" else curves[name]
        points = [(step, value / unit) for step, _, value in run if math.isfinite(value)]
        if len(points) < 2:
            continue
        steps, values = zip(*points, strict=True)
        low, high, last = min(values), max(values), steps[-1]
        right, up = (WIDTH - 2 * EDGE) / last, (HEIGHT - 2 * EDGE) / (high - low or 1.0)
        at = [f"{EDGE + right * step:.1f} {HEIGHT - EDGE - up * (value - low):.1f}" for step, value in points]
        ends = {"low": f"{low:.4g}", "high": f"{high:.4g}", "last": last}
        drawn.append({"label": label, "path": f"M{'L'.join(at)}", **ends})
    return drawn


def _metric(trial: Trial) -> Metric:
    """Return the first metric of the trial's task."""
    return TrialConfig.task_of(trial.config).metric[0]
