"""Remarks: what a trial's metrics say against its result, as lines for the footnotes of a cell and for a running trial.

To add one, measure a metric (see `core.trial.Outcome`) and add a `Remark` with its bound to REMARKS.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from zo_sweeps.core.trial import SPEEDS


@dataclass(frozen=True)
class Remark:
    """A line on the trials whose metric is `below` the one bound or `above` the other."""

    metric: str  # name in `Outcome.metrics`
    text: str  # `{}` stands for the metric's value, `{name}` for that of another metric of the run
    below: float = -math.inf
    above: float = math.inf
    of_cost: bool = False  # whether it also limits what the trial took (time, memory, operations)
    only: tuple[str, ...] = ()  # how the metrics begin that it is about, if these are not all of them
    of_data: bool = False  # whether it is about the rows, and so about every cell of their column

    def of(self, runs: Iterable[Mapping[str, float]]) -> str:
        """Return the line for the worst of the runs; "" if none is out of bounds or the metric was not measured."""
        measured = sorted((m for m in runs if self.metric in m), key=lambda metrics: metrics[self.metric])
        beyond = [m for m in measured if m[self.metric] < self.below or m[self.metric] > self.above]
        if not beyond:
            return ""
        worst = beyond[0] if beyond[0][self.metric] < self.below else beyond[-1]
        values = {name: _plain(value) for name, value in worst.items() if math.isfinite(value)}
        return self.text.format(_plain(worst[self.metric]), **values)


OTHER_CODE = "other_code"  # 1 for a result that was measured with other code than today's: see `methods.trial_config`
SPLITS = {"train": "training", "dev": "dev", "test": "test"}
SHARED = {  # (rows, their split) that are also in another one -> the consequence
    ("test", "train"): "no test of what was learned",
    ("test", "dev"): "the step and the setting are selected on them",
    ("dev", "train"): "the step and the setting are selected by what was learned by heart",
}
# Rounding noise over signal (see `engine.loss_noise`) above which a trial says so: estimates of one pair of points are
# then expected to correlate 0.87 with those of fp32, and have a third more variance. Measured on the demo model, over
# spaces, codes and eps, in bf16 and fp16: docs/bench/precision.json.
NOISE_TO_SIGNAL = 0.5
REMARKS = (
    Remark("directions", "theta moves along {} distinct directions only: the generator repeats", below=1000),
    Remark(
        OTHER_CODE,
        "measured with other code: engine, models, tasks or members have changed since; see --rerun succeeded",
        above=0,
        of_cost=True,
    ),
    Remark(
        "noise_to_signal",
        "estimates are largely rounding: its noise is {} of the spread of a step's losses; raise estimator.eps or set "
        "precision=fp32",
        above=NOISE_TO_SIGNAL,
    ),
    Remark(
        "dev_loss_change",
        "a run is not better than before training: the dev loss of its selected step is {} above the untrained "
        "model's; other update.lr or estimator.eps may learn",
        above=0,
    ),
    Remark(
        "updates_lost",
        "most of the updates were lost: rounding to half precision left more than half of the weights as they were",
        above=0.5,
    ),
    Remark(
        "sum_bits",
        "this device sums products in {} bits, which can drown projected gradients; use precision=fp32 or w4a8",
        below=32,
    ),
    Remark(
        "trained_bits",
        "the weights themselves are trained in {} bits by backpropagation, and not in fp32: small updates are lost",
        below=32,
        of_cost=True,
    ),
    Remark(
        "steps_skipped",
        "mixed precision: a step's products are in fp16, its weights in fp32; {} steps moved nothing, as a scaled "
        "gradient was not finite",
        above=-1,
        of_cost=True,
    ),
    Remark("state_bits", "the optimizer's states take {} bits per value, and not 32", below=32, of_cost=True),
    Remark(
        "recomputed",
        "gradient checkpointing: each layer is computed again in the backward pass, for less memory and more time",
        above=0,
        of_cost=True,
    ),
    Remark(
        "directions_dropped",
        "directions were dropped from some steps, because a process that shared them was lost",
        above=0,
    ),
    Remark("clients_left_out", "{} answers of clients are in no mean: they were lost, late or wrong", above=0),
    Remark("epsilon", "epsilon is about {} at delta = {delta} for a row of a client, in each trial", above=0),
    Remark("noise_seeded", "noise of simulated clients is seeded, and hides nothing from those who know it", above=0),
    Remark(
        "rows_truncated",
        "{} rows exceed train.max_length, or the model's positions, and have lost part of their text",
        above=0,
    ),
    *(
        Remark(
            f"device/throttled_by_{by}",
            f"measured while the device was throttled {why}",
            above=0,
            of_cost=True,
            only=SPEEDS,
        )
        for by, why in (("heat", "because of its heat"), ("power", "to stay within its power"))
    ),
    Remark(
        "energy/own_share",
        "the joules include other work of the machine: more than a tenth of its CPU time meanwhile was not the trial's",
        below=0.9,
        of_cost=True,
        only=("energy/",),
    ),
    Remark("train_rows_short", "trained on {train_rows} rows, all there are: {} fewer than asked for", above=0),
    *(
        Remark(
            f"{one}_in_{other}",
            f"{{}} of the {{{one}_rows}} {SPLITS[one]} rows have the inputs of a {SPLITS[other]} row "
            f"({{{one}_in_{other}_labelled}} its label too): {consequence}",
            above=0,
            of_data=True,
        )
        for (one, other), consequence in SHARED.items()
    ),
    *(
        Remark(f"{split}_{what}", text.format(name), below=2, of_data=True)
        for split, name in SPLITS.items()
        for what, text in (("labels", "all {} rows have one label"), ("distinct", "all {} rows are the same"))
    ),
)


def remarks(
    runs: Iterable[Mapping[str, float]], metric: str = "", *, of_cost: bool = False, of_data: bool = False
) -> list[str]:
    """Return the lines on runs, given the metrics of each, of whose `metric` one value is the mean.

    `of_cost`: the value is of time, memory or operations; `of_data`: return the lines on the rows, and no others.
    """
    measured = list(runs)
    every = (one for one in REMARKS if one.of_data == of_data)
    meant = (one for one in every if (metric.startswith(one.only) if one.only else one.of_cost or not of_cost))
    return [line for one in meant if (line := one.of(measured))]


def remark(metric: str, value: float) -> str:
    """Return the line on one metric of one run; "" if there is none."""
    return next((one.of([{metric: value}]) for one in REMARKS if one.metric == metric), "")


def _plain(value: float) -> str:
    return f"{value:,.0f}" if value == round(value) else f"{value:.2g}"
