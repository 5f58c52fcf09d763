"""The memory of trials by part: the tensors of a step and of a scored forward, against torch's own count."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from tests.conftest import REPO
from tests.devices.test_planned_memory import within
from tests.run.common import make, measured, run
from zo_sweeps.core.memory_parts import SCORING, TOTAL, Part, current
from zo_sweeps.core.trial import Outcome, Trial, TrialState
from zo_sweeps.devices.tensors import Tensors
from zo_sweeps.engine.types import DivergedError
from zo_sweeps.run import runner, workbench
from zo_sweeps.run.training import ZerothOrderRunner
from zo_sweeps.schedule.placement import Node, refusal

pytestmark = pytest.mark.usefixtures("one_thread")

TINY = [
    *("model=random_llama", "model.arch.hidden_size=64", "model.arch.intermediate_size=96"),
    *("model.arch.num_hidden_layers=2", "train.steps=2"),
]
ZO = ["method=prge", "estimator.q=2", "update.lr=0.05"]
RUNS = {
    "zero-shot": ["method=zero_shot"],
    "lora_fa, inner": [*ZO, "evaluation.mode=inner"],
    "lora, int8, both": [*ZO, "space=lora", "precision=int8", "evaluation.mode=both"],
    "lora_fa, w4a8, inner": [*ZO, "precision=w4a8", "evaluation.mode=inner"],
    "lora over the last block, inner": [*ZO, "space=lora", "space.blocks=1", "evaluation.mode=inner"],
    "dora, nf4 twice": [*ZO, "space=dora", "precision=nf4", "precision.double_quantization=true"],
    "vera, bf16": [*ZO, "space=vera", "space.rank=16", "precision=bf16"],
    "sparse": ["method=random_subset", "update.lr=0.1", "space.density=0.01"],
    "sparse beside codes, outer": [
        *("method=random_subset", "space.density=0.01", "precision=fp4", *ZO[1:], "evaluation.mode=outer"),
    ],
    "scales": ["method=qzo", "update.lr=1e-4", "precision=nf4"],
    "full": ["method=mezo", "update.lr=1e-4"],
    "full, adam, fp16": ["method=mezo", "update=adam", "update.lr=1e-4", "precision=fp16"],
    "in place": ["method=mezo_compat", "update.lr=1e-4"],
    "all logits": [*ZO, "train.logits=all", "train.packing=false", "evaluation.mode=inner"],
    "fo lora_fa, int8": ["method=fo_lora_fa", "update.lr=1e-3", "precision=int8", "precision.compute=bf16"],
    "fo, a layer at a time": ["method=fo_lora_fa_layerwise", "update.lr=1e-3"],
    "fo full": ["method=fo_full", "update.lr=1e-4"],
    "fo, all logits": ["method=fo_lora_fa", "update.lr=1e-3", "train.logits=all"],
}  # fmt: skip
# The library that multiplies in half precision has scratch of its own, which differs between CPUs.
IN_FP32 = {name: ["precision.compute=fp32"] for name in ("sparse beside codes, outer", "fo lora_fa, int8")}
CODED = ("precision=int8", "precision=w4a8", "precision=nf4", "precision=fp4")
ALONE = ["task=timing", "train.max_length=64"]  # no text shares a row, whose mask attention would write out in fp32
SCRATCH = 128 * 2**10  # of the fused attention, per thread, whatever the model's size: within an operator, so not seen
# The largest weight in fp32: where noise is added to one in half precision, the operator casts it, which is not seen.
CAST = {"full, adam, fp16": 4 * 2048 * 64}
Totals = list[tuple[int, int]]  # of each work: (followed, as torch's CPU allocator counts)


@pytest.fixture
def totals(monkeypatch: pytest.MonkeyPatch) -> Totals:
    """The peaks of all work that is followed, and the allocator's, which sees the temporaries within operators too."""
    seen: Totals = []
    meters: list[Tensors] = []

    class Kept(Tensors):
        def __enter__(self) -> Tensors:
            meters.append(self)
            return super().__enter__()

    def at_peak(*args: Any) -> Mapping[Part, int]:
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
            parts = original(*args)
        events = [e for e in profiled.profiler.kineto_results.events() if e.name() == "[memory]"]
        held = most = 0
        for event in sorted(events, key=lambda e: e.start_ns()):
            held += event.nbytes()
            most = max(most, held)
        older = sum(storage.bytes for storage in meters[-1]._every if not storage.born)
        seen.append((sum(parts.values()), older + most))
        return parts

    original = runner.at_peak
    monkeypatch.setattr(runner, "Tensors", Kept)
    monkeypatch.setattr(runner, "at_peak", at_peak)
    return seen


def parts(outcome: Outcome) -> dict[Part, float]:
    return {part: outcome.metrics[part.metric] for part in Part}


# The parts of these are those of others, in another precision or mode.
ALIKE = ("lora_fa, inner", "vera, bf16", "sparse", "full", "fo full", "fo, all logits")


@pytest.mark.parametrize("name", [pytest.param(one, marks=pytest.mark.long) if one in ALIKE else one for one in RUNS])
def test_the_parts_are_what_the_allocator_counts_and_the_weights_what_is_stored(name: str, totals: Totals) -> None:
    outcome, _ = run(make(*TINY, *RUNS[name], *IN_FP32.get(name, []), *ALONE))
    assert outcome.state is TrialState.SUCCEEDED, outcome.traceback
    found, metrics = parts(outcome), outcome.metrics
    assert found[Part.WEIGHTS] + found[Part.SCALES] == metrics["weights_bytes"]
    assert sum(found.values()) == metrics[TOTAL]
    assert [round(metrics[key]) for key in ([SCORING, TOTAL] if len(totals) == 2 else [SCORING])] == [
        f for f, _ in totals
    ]
    for followed, allocated in totals:
        assert 0 <= allocated - followed <= SCRATCH + CAST.get(name, 0)
    assert bool(found[Part.SCALES]) == any(option in CODED for option in RUNS[name])
    assert bool(found[Part.SPARSE]) == name.startswith("sparse")
    assert bool(found[Part.TRAINABLE]) == (name not in ("zero-shot", "full", "in place")), (
        "in full the weights are theta"
    )
    assert current() is Part.WORKSPACE


def test_trainable_state_is_theta_its_points_and_the_state_of_the_update() -> None:
    d = run(make(*TINY, *RUNS["full"]))[0].metrics["trainable_parameters"]
    adam = parts(run(make(*TINY, *RUNS["full, adam, fp16"]))[0])
    assert adam[Part.TRAINABLE] == 2 * 4 * d
    assert adam[Part.WEIGHTS] == 2 * d, "the weights themselves are theta"
    first_order = parts(run(make(*TINY, *RUNS["fo full"]))[0])
    table = 4096 * 64  # has two gradients, as head and as table, while they are summed
    counters = 20  # of the optimizer's steps, one for each tensor
    assert first_order[Part.TRAINABLE] == 4 * (3 * d + 2 * table + counters), "a gradient and two moments"
    outcome = run(make(*TINY, *ZO, "space=lora", "evaluation.mode=both"))[0]
    d = outcome.metrics["trainable_parameters"]
    assert parts(outcome)[Part.TRAINABLE] == 4 * d * (1 + 4), "theta, and two queries of two signs"


@pytest.mark.parametrize("name", ["lora_fa, inner", "sparse beside codes, outer", "fo lora_fa, int8"])
def test_the_measurement_changes_no_result_and_leaves_the_model_as_it_was(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = make(*TINY, *RUNS[name])
    first = run(trial)
    assert workbench.warm is not None
    model, hooks = (
        workbench.warm.model,
        [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in workbench.warm.model.module.modules()],
    )
    stored = [tensor.clone() for tensor in model.stored()]
    again = run(trial)
    assert workbench.warm.model is model
    assert all(torch.equal(a, b) for a, b in zip(stored, model.stored(), strict=True))
    assert not any(tensor.requires_grad for tensor in model.module.parameters())
    assert hooks == [0] * len(hooks)
    monkeypatch.setattr(runner.Runner, "measure_parts", lambda *_: None)
    without = run(trial)
    assert TOTAL not in without[0].metrics
    assert measured(*first) == measured(*again) == measured(*without)
    assert parts(first[0]) == parts(again[0]), "and the bytes are the same every time"


@pytest.mark.parametrize("error", [DivergedError("non-finite loss"), MemoryError()], ids=["diverges", "has no room"])
def test_a_step_that_fails_is_not_recorded_and_the_trial_keeps_its_result(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise error

    trial = make(*TINY, *ZO)
    expected = measured(*run(trial))
    monkeypatch.setattr(ZerothOrderRunner, "_one_more", lambda *_: fails)
    outcome, journal = run(trial)
    assert measured(outcome, journal) == expected
    assert {SCORING, TOTAL} & {*outcome.metrics} == {SCORING}


def planned(name: str, *more: str) -> tuple[Trial, Outcome]:
    trial = make(*TINY[:3], "model.arch.num_hidden_layers=6", "train.steps=2", *RUNS[name], *more)
    return trial, run(trial)[0]


# The others score as one of these does.
SCORES = ["sparse beside codes, outer", "full, adam, fp16", "fo full"]
ALSO = ["lora, int8, both", "zero-shot", "dora, nf4 twice", "vera, bf16", "all logits"]


@pytest.mark.parametrize("name", [*SCORES, *(pytest.param(name, marks=pytest.mark.long) for name in ALSO)])
def test_the_plans_estimate_is_one_to_one_and_a_half_of_the_tensors_that_score_many_rows(name: str) -> None:
    trial, outcome = planned(name, "split.dev=200", "split.test=200")
    within(trial, outcome)
    for part in (Part.WEIGHTS, Part.SCALES):
        assert trial.needs.parts[part.value] == outcome.metrics[part.metric]


def test_the_plan_counts_the_hidden_states_that_the_points_of_a_step_share() -> None:
    trial, outcome = planned("lora over the last block, inner", "split.dev=1", "split.test=1", "train.batch=16")
    within(trial, outcome)
    without, _ = planned(
        "lora over the last block, inner", "space.blocks=6", "split.dev=1", "split.test=1", "train.batch=16"
    )
    assert trial.needs.parts["activations"] > without.needs.parts["activations"]


LIMITED = """
import json, os, resource, sys
import torch
from tests.run.common import make, run
from zo_sweeps.devices.estimate import RUNTIME_BYTES
from zo_sweeps.run import workbench

torch.set_num_threads(1)


def ended(options, factor):
    trial = make(*options)
    held = next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith("VmData"))
    limit = int(held + factor * (trial.needs.memory_bytes - RUNTIME_BYTES))
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    outcome, _ = run(trial)
    return [outcome.state.value, outcome.error]


for small, large, factors in json.loads(sys.argv[1]):
    outcome, _ = run(make(*small))  # imports are not the trial's
    assert outcome.state.value == "SUCCEEDED", outcome.error
    workbench.warm = None
    for factor in factors:  # each in a process of its own, which has imported everything
        if (child := os.fork()) == 0:
            print(json.dumps(ended(large, factor)), flush=True)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0, (large, factor)
"""


# Without this, glibc keeps up to 120 MiB of what was freed, in pieces, whatever the model's size.
GIVEN_BACK = {"MALLOC_MMAP_THRESHOLD_": "65536"}
FACTORS = {0.5: "OUT_OF_MEMORY", 1.2: "SUCCEEDED"}


@pytest.mark.multiprocess
@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_DATA counts anonymous memory on Linux only")
@pytest.mark.parametrize(
    "names",
    [("lora_fa, inner", "fo full"), pytest.param(("sparse beside codes, outer",), marks=pytest.mark.long)],
    ids=", and ".join,
)
def test_a_process_with_a_fifth_more_than_the_estimate_ends_and_one_with_half_has_too_little(
    names: tuple[str, ...],
) -> None:
    """The limit is on the process's own writable memory: what it held before, and a multiple of the estimate."""
    # So large that what the library of products keeps for itself, which differs between CPUs, is little beside it.
    wide = ["model.arch.hidden_size=512", "model.arch.intermediate_size=1408", "model.arch.num_hidden_layers=4"]
    cases = []
    for name in names:
        large = ["model=random_llama", *wide, "train.steps=2", "train.batch=16", *RUNS[name], *IN_FP32.get(name, [])]
        cases.append(([*TINY, *RUNS[name]], large, [*FACTORS]))
    command = [sys.executable, "-c", LIMITED, json.dumps(cases)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=REPO, env={**os.environ, **GIVEN_BACK})
    assert done.returncode == 0, done.stderr
    ends = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    expected = [(name, factor, state) for name in names for factor, state in FACTORS.items()]
    found = [(name, factor, state) for (name, factor, _), (state, _) in zip(expected, ends, strict=True)]
    assert found == expected, [error for _, error in ends]


def test_a_node_that_lends_less_than_the_estimate_is_not_chosen() -> None:
    needs = make(*TINY, *RUNS["full"]).needs
    assert refusal(needs, Node("1", "desk", "cpu", 8, 0, needs.memory_bytes)) == ""
    assert refusal(needs, Node("1", "desk", "cpu", 8, 0, needs.memory_bytes - 1)).startswith("lends")
