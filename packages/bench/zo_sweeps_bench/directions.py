"""How well the steps of a grid's rows follow the gradient.

    python -m zo_sweeps_bench.directions OUT.json +grid=league …

Each zeroth-order row takes STEPS steps at its first setting's values and seed, all on one minibatch. Of each step:

    cosine = <theta_t - theta_(t+1), grad f(theta_t)> / (|…| |…|)      over the trained parameters, by backpropagation

A direction drawn at random in d dimensions has a cosine of about sqrt(2 q / (pi d)) in the mean.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch

from zo_sweeps.config.composer import Composer
from zo_sweeps.core.trial import Trial
from zo_sweeps.engine.losses import token_logprobs
from zo_sweeps.engine.step import step
from zo_sweeps.methods.trial_config import TrialConfig
from zo_sweeps.plan.build import Plan, build
from zo_sweeps.run.recorder import Nowhere, Recorder
from zo_sweeps.run.workbench import Workbench

STEPS = 20


def cosines(trial: Trial) -> list[float]:
    """Return the cosine of each step of a zeroth-order trial with the gradient of its minibatch."""
    config = TrialConfig.of(trial.config)
    bench = Workbench(config, trial.warm_key, Recorder(trial, Nowhere(), []))
    bench.load()
    space = bench.install()
    method = bench.method().bind(space.params)
    state, f, lr = method.init(space.params), bench.losses(space)(1), bench.rates()(1)
    found = []
    for number in range(1, STEPS + 1):
        slopes = gradient(bench, space.params)
        before = {name: param.detach().clone() for name, param in space.params.items()}
        _, state = step(method, bench.model.module, space, f, state, seed=config.seed, step=number, lr=lr)
        moved = {name: (before[name] - param.detach()).double() for name, param in space.params.items()}
        product = sum((moved[name] * slopes[name]).sum().item() for name in moved)
        norms = [math.sqrt(sum(v.square().sum().item() for v in some.values())) for some in (moved, slopes)]
        found.append(product / (norms[0] * norms[1]) if norms[0] else 0.0)
    space.uninstall()
    return found


def gradient(bench: Workbench, params: Any) -> dict[str, torch.Tensor]:
    """Return the gradient of step 1's minibatch, all of its rows, in fp64."""
    for param in params.values():
        param.requires_grad_(True)
    numbers = bench.config.estimator.minibatches(1)
    with torch.enable_grad():
        batches = [bench.batch(number) for number in numbers]
        losses = [bench.objective.loss(token_logprobs(bench.model, batch), batch)[0] for batch in batches]
        slopes = torch.autograd.grad(torch.stack(losses).mean(), list(params.values()), allow_unused=True)
    for param in params.values():
        param.requires_grad_(False)
    found = zip(params.items(), slopes, strict=True)
    return {name: torch.zeros_like(p) if slope is None else slope.double() for (name, p), slope in found}


def rows(plan: Plan) -> list[dict[str, Any]]:
    """Return a line for each zeroth-order row of a plan."""
    lines, seen = [], set()
    for cell in plan.cells:
        trial = plan.every[cell.trial_id]
        if cell.block in seen or not TrialConfig.of(trial.config).method.kind.estimates:
            continue
        seen.add(cell.block)
        found = cosines(trial)
        line = {"row": cell.block, "setting": dict(cell.hyperparameters), "cosine": fmean(found)}
        lines.append({**line, "standard_error": stdev(found) / math.sqrt(len(found)), "steps": len(found)})
        print(f"{cell.block:20} {line['cosine']:+.5f} ± {lines[-1]['standard_error']:.5f}", flush=True)
    return lines


if __name__ == "__main__":
    out, *overrides = sys.argv[1:]
    Path(out).write_text(json.dumps(rows(build(Composer(overrides))), indent=1) + "\n")
