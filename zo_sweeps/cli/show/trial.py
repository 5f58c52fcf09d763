"""The output of `status ID`."""

from __future__ import annotations

import json

from rich.console import Console

from zo_sweeps.cli.show.text import listing, say
from zo_sweeps.core.units import metric_text
from zo_sweeps.results.compare import flat
from zo_sweeps.results.facts.trial import TrialFacts
from zo_sweeps.tables.text_cells import plain


def show_trial(trial: TrialFacts, to: Console, *, config: bool) -> None:
    """Print one trial: its state, in which settings it differs, its attempts, evaluations, metrics and traceback.

    Args:
        config: whether to print the whole configuration at the end.
    """
    say(to, f"{trial.trial_id}  {trial.label}")
    say(to, f"state {trial.state}, attempts {trial.started}, step {trial.step}/{trial.steps}")
    if trial.other_code:
        say(to, "measured with other code than today's: --rerun with its id measures it again")
    for number, attempt in enumerate(trial.attempts, 1):
        say(to, f"  attempt {number} on {attempt.node} ({attempt.device}), from step {attempt.from_step}")
    say(to, "")
    title = f"differs in {trial.grid}"
    listing(to, (title, "here"), [(name, plain(value)) for name, value in trial.differs.items()])
    same = len(flat(trial.configuration)) - len(trial.differs)
    say(to, f"{same} other settings are those of every trial of the grid{'' if config else '; --config prints all'}")
    for caveat in trial.caveats:
        say(to, f"note: {caveat}")
    if trial.evaluations:
        say(to, "")
        rows = [
            (f"{one.split} at step {one.step}", f"{one.loss:.4f}", f"{one.metric:.4f}") for one in trial.evaluations
        ]
        listing(to, ("evaluated", "loss", "metric"), rows)
    if trial.metrics:
        say(to, "")
        listing(to, ("measured", ""), [(name, metric_text(name, value)) for name, value in trial.metrics.items()])
    for name, why in trial.unmeasured.items():
        say(to, f"{name} not measured: {why}")
    if trial.error:
        say(to, f"\n{trial.error}\n{trial.traceback}")
    if config:
        say(to, "")
        to.print(
            json.dumps(trial.configuration, indent=1, sort_keys=True, ensure_ascii=False), markup=False, soft_wrap=True
        )
