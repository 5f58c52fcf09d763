"""The bundle of a trial: its program and its tokenized data, for the light client."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from zo_sweeps.core.errors import UserError
from zo_sweeps.core.trial import Trial
from zo_sweeps.engine.batch import indices
from zo_sweeps.engine.train import evaluation_points
from zo_sweeps.methods.trial_config import TrialConfig
from zo_sweeps.run.recorder import Nowhere, Recorder
from zo_sweeps.run.workbench import Workbench
from zo_sweeps_edge import bundle
from zo_sweeps_edge.in_program import program_of
from zo_sweeps_edge.program import Program
from zo_sweeps_edge.rows import MULTIPLE_OF, Row, call_of


def write(trial: Trial, command: str, folder: Path) -> bundle.Manifest:
    """Write the bundle of a trial into an absent or empty folder.

    Args:
        command: reads the log of its run back.

    Raises UserError if the folder cannot be written. Cost: as `in_program.program_of`.
    """
    config = TrialConfig.of(trial.config)
    bench = Workbench(config, trial.warm_key, Recorder(trial, Nowhere(), []))
    bench.load()
    space = bench.install()
    try:
        program, file = program_of(bench, space)
        splits = {
            "train": [row for example in bench.splits.train for row in program.frame.of_step(example)],
            "dev": [row for example in bench.splits.dev for row in program.frame.of_scores(example)],
            "test": [row for example in bench.splits.test for row in program.frame.of_scores(example)],
        }
        return bundle.write(
            folder,
            file,
            _settings(trial, config, program),
            {split: rows_of(rows, program) for split, rows in splits.items()},
            _training(bench, program),
            config={"command": command, "trial": trial.to_json(), "planned_bytes": program.planned_bytes},
            fingerprints={"model": config.model.fingerprint, "task": config.task.fingerprint},
            initial=np.concatenate([param.detach().numpy().ravel() for param in space.params.values()])
            if config.space.starts_computed
            else None,
            tokenizer=bench.model.tokenizer.backend_tokenizer.to_str() if bench.model.tokenizer.is_fast else "",
        )
    except OSError as error:
        raise UserError(f"cannot write {folder}: {error.strerror or error}") from None
    finally:
        space.uninstall()


def _settings(trial: Trial, config: TrialConfig, program: Program) -> bundle.Settings:
    estimator: Any = config.estimator  # the one estimator that a program can have has eps and clip
    return bundle.Settings(
        trial_id=trial.trial_id,
        seed=config.seed,
        steps=config.train.steps,
        queries=program.calls.q,
        points=program.calls.points,
        directions=program.calls.directions,
        batch=program.batch,
        rows_per_example=program.frame.rows_per_example,
        places=program.frame.places,
        slots=program.frame.slots_per_row,
        multiple=MULTIPLE_OF,
        eps=estimator.eps,
        clip=estimator.clip,
        parameters=tuple(zip(program.names, program.shapes, strict=True)),
        cycles=() if program.cycles is None else (program.cycles.stride, *program.cycles.lengths),
        evaluations=tuple(evaluation_points(config.train.steps, config.train.eval_every)),
    )


def rows_of(rows: Sequence[Row], program: Program) -> bundle.SplitRows:
    """Return rows as a bundle has them."""
    call = call_of(rows, program.frame)
    return bundle.SplitRows(
        call.ids.astype(np.int32),
        np.array([len(row.ids) for row in rows], np.uint32),
        call.columns.astype(np.int32),
        call.tokens.astype(np.int32),
        call.weights,
        call.bias,
    )


def _training(bench: Workbench, program: Program) -> bundle.Training:
    config, examples, rates = bench.config, bench.splits.train, bench.rates()
    lengths = [example.candidates[example.gold].answer_length for example in examples]
    order = np.full((config.train.steps, program.batch), len(examples), np.uint32)  # that is: no example
    for step in range(1, config.train.steps + 1):
        chosen = indices(config.seed, step, len(examples), program.batch)
        order[step - 1, : len(chosen)] = chosen
    return bundle.Training(
        gold=np.array([program.frame.gold(example) for example in examples], np.uint32),
        mass=np.array([bench.objective.mass(length) for length in lengths], np.float32),
        order=order,
        rates=np.array([rates(step) for step in range(1, config.train.steps + 1)], np.float64),
    )
