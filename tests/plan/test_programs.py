"""What runs as an exported program and what does not: said in the plan, in one line, with what to use."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.plan.common import TINY, changed, configs, named, planned, problem
from zo_sweeps.config.composer import Composer
from zo_sweeps.devices import probe
from zo_sweeps.methods import registry
from zo_sweeps.methods.definition import Definition
from zo_sweeps.plan.build import build
from zo_sweeps.schedule.this_host import for_this_host

pytestmark = pytest.mark.unit

ON = "device=executorch"
AS_GIVEN = "grid.relabel=true"  # rows keep no part of their own
IN_PROGRAMS = {
    "estimator": {"rge"},
    "perturbation": {"gaussian"},
    "space": {"lora", "lora_fa", "dora", "vera", "prefix"},
    "update": {"sgd"},
    "precision": {"fp32", "fp16", "w4a8"},
    "objective": {"tokens", "candidates"},
    "kind": {"zo"},
    "task_kind": {"classification", "multiple_choice", "regression"},
}
MADE: dict[str, dict[str, Any]] = {"generate": {"text": "x"}}  # members with options that have no default


@pytest.mark.parametrize("axis", IN_PROGRAMS)
def test_every_member_runs_in_a_program_or_says_in_a_line_why_not(axis: str) -> None:
    members: dict[str, type[Definition]] = dict(registry.members(axis))
    reasons = {name: one(**MADE.get(name, {})).not_in_program for name, one in members.items()}
    assert {name for name, why in reasons.items() if not why} == IN_PROGRAMS[axis]
    for why in filter(None, reasons.values()):
        assert "\n" not in why
        assert not why.endswith(".")


OF_OTHERS = {"schedule", "metric", "executor"}  # the host computes them


def test_axes_of_the_host_have_no_reason() -> None:
    assert {*IN_PROGRAMS, *OF_OTHERS} == {*registry.PACKAGES}
    for axis in OF_OTHERS - {"metric"}:
        assert not any(one().not_in_program for one in registry.members(axis).values())


@pytest.mark.parametrize("axis", ["estimator", "perturbation", "space", "update", "precision"])
def test_a_plan_refuses_what_no_program_holds_and_names_what_one_does(axis: str, tmp_path: Path) -> None:
    held = sorted(IN_PROGRAMS[axis])
    others = [name for name in registry.names(axis) if name not in held]
    for name in (others[0], others[-1]):
        text = problem(tmp_path, TINY, ON, AS_GIVEN, f"{axis}={name}")
        line = next(line for line in text.splitlines() if f"{axis}={name} does not run on executorch" in line)
        assert f"use {axis}={' or '.join(held)}" in line
    for name in held:
        mode = f"evaluation.mode={'sequential' if axis == 'space' else 'inner'}"
        grid = changed(fixed={"model": "demo", "prompt": "mezo"})
        assert planned(tmp_path, grid, ON, AS_GIVEN, f"{axis}={name}", mode).trials


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (
            ["update.weight_decay=0.1"],
            "update=sgd does not run on executorch: the update inside a program is theta - l",
        ),
        (["update.nonnegative=true"], "leave out update.weight_decay, update.nonnegative and update.rounding"),
        (["evaluation.mode=sequential", "evaluation.restore=in_place"], "use evaluation.restore=exact"),
        (["train.logits=all"], "use train.logits=answers"),
        (
            ["precision=w4a8", "space=dora"],
            "space=dora over precision=w4a8 does not run on executorch: it multiplies by",
        ),
        (["precision=w4a8", "device.delegate=none"], "XNNPACK alone multiplies it"),
        (["device.form=dual", "evaluation.mode=sequential"], "use evaluation.mode=both"),
        (["train.flops=true"], "use train.flops=false"),
        (["train.objective=accuracy"], "objective accuracy does not run on executorch: a program computes the losses"),
        (["method=zero_shot"], "method.kind=zero_shot does not run on executorch: a program holds the steps of"),
        (["method=fo_lora_fa"], "an inference engine has no backward pass; use a zeroth-order method"),
        (["prompt=mezo_medium", "model=random_roberta"], "a program reads the token after a text, not a mask"),
    ],
)
def test_options_and_other_parts_that_no_program_holds_are_refused(given: list[str], why: str, tmp_path: Path) -> None:
    assert why in problem(tmp_path, TINY, ON, AS_GIVEN, *given)


def test_a_task_that_generates_is_refused(tmp_path: Path) -> None:
    grid = changed(axes={"task": ["squad"]})
    assert "task squad does not run on executorch: a program scores given" in problem(tmp_path, grid, ON, "prompt=prge")


OWN = '''
from dataclasses import dataclass

from zo_sweeps.engine.perturbations.gaussian import Gaussian


@dataclass(frozen=True)
class Mine(Gaussian):
    """A member that inherits from one that programs hold."""
'''


def test_a_member_of_one_s_own_is_refused_even_if_its_base_runs(tmp_path: Path) -> None:
    (tmp_path / "perturbation").mkdir()
    (tmp_path / "perturbation" / "mine.py").write_text(OWN)
    assert planned(tmp_path, TINY, AS_GIVEN, "perturbation=mine").trials
    text = problem(tmp_path, TINY, ON, AS_GIVEN, "perturbation=mine")
    assert text.endswith("does not run on executorch: it is a member of your own; use perturbation=gaussian (block zo)")


def test_a_trial_of_any_device_keeps_its_id_on_the_other_runtime_and_a_named_device_is_another_trial(
    tmp_path: Path,
) -> None:
    torch, edge = planned(tmp_path, TINY), planned(tmp_path, TINY, "device.runtime=executorch")
    assert set(torch.every) == set(edge.every)
    assert not set(torch.every) & set(planned(tmp_path, TINY, ON).every)
    (one, *_), (other, *_) = torch.trials, edge.trials
    assert (one.needs.programs, other.needs.programs) == (False, True)
    assert one.warm_key != other.warm_key, "the model may be loaded on a GPU for one, and is on the CPU for the other"
    assert one.memory_key != other.memory_key
    assert all(config.device.cpu for config in configs(edge))
    assert not any(config.device.cpu for config in configs(torch))


def test_steps_of_a_program_are_not_shared_among_processes(tmp_path: Path) -> None:
    (trial, *_) = planned(tmp_path, TINY, ON).trials
    assert trial.shared_steps
    assert trial.shared_steps.one_process == "an exported program evaluates all points of a step"


def test_without_the_extra_the_plan_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = planned(tmp_path, TINY, ON)
    assert for_this_host(plan).trials, "the extra is part of the tests' environment"
    real = probe.probe
    monkeypatch.setattr(probe, "probe", lambda: {**real(), "executorch": False})
    held = for_this_host(plan)
    assert not held.trials
    assert set(held.missing.values()) == {
        "needs device executorch, and this host has no executorch: pip install 'zo-sweeps[edge]'"
    }
    assert for_this_host(planned(tmp_path, TINY)).trials, "PyTorch needs no extra"


def test_a_phone_s_trials_are_programs_and_wait_for_a_node_with_the_phone(tmp_path: Path) -> None:
    plan = planned(tmp_path, TINY, "device=oneplus-12", "device.client=zo_client")
    assert {trial.needs.programs for trial in plan.trials} == {True}
    held = for_this_host(plan)
    assert not held.trials
    assert all(why.startswith("needs device oneplus-12, and this host is a ") for why in held.missing.values())
    assert "precision=bf16 does not run on executorch" in problem(tmp_path, TINY, "device=oneplus-12", "precision=bf16")


def test_the_shapes_of_prge_table3_run_on_executorch_without_nf4_and_all_logits() -> None:
    rows = ["tinyllama_zo_ours", "tinyllama_inner_ours", "llama2_zo_ours", "llama2_inner_ours"]
    left_out = [f"~grid.blocks.{name.removesuffix('_ours')}" for name in rows]
    given = ["device=executorch", "precision=fp16", "grid.relabel=true", *left_out]
    plan = build(Composer(["+grid=prge_table3", *given]))
    assert [*plan.grid.blocks] == rows
    assert len(plan.trials) == 32
    with pytest.raises(Exception, match="precision=nf4 does not run on executorch"):
        named("prge_table3", "device=executorch", "grid.relabel=true")
