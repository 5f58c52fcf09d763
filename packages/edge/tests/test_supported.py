"""What runs as an exported program and what does not: said in the plan, in one line, with what to use."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.plan.common import TINY, changed, configs, named, of, planned, problem
from zo_sweeps.devices import probe
from zo_sweeps.methods import registry
from zo_sweeps.methods.definition import Definition
from zo_sweeps.schedule.this_host import for_this_host
from zo_sweeps_edge.runtime import HELD, INSTEAD, ExecuTorch, outside

pytestmark = pytest.mark.unit

ON = "device=executorch"
AS_GIVEN = "grid.relabel=true"  # rows keep no part of their own
IN_PROGRAMS = {
    "estimator": {"rge"},
    "perturbation": {"gaussian", "pezo_onthefly", "pezo_pool"},
    "space": {"lora", "lora_fa", "dora", "vera", "prefix", "outliers", "random_subset", "sensitive"},
    "update": {"sgd"},
    "precision": {"fp32", "fp16", "w4a8"},
    "objective": {"tokens", "candidates"},
    "kind": {"zo"},
}
MADE: dict[str, dict[str, Any]] = {"generate": {"text": "x"}}  # members with options that have no default


@pytest.mark.parametrize("axis", IN_PROGRAMS)
def test_every_member_runs_in_a_program_or_says_in_a_line_why_not(axis: str) -> None:
    members: dict[str, type[Definition]] = dict(registry.members(axis))
    reasons = {name: outside(one(**MADE.get(name, {}))) for name, one in members.items()}
    assert {name for name, why in reasons.items() if not why} == IN_PROGRAMS[axis]
    for why in filter(None, reasons.values()):
        assert "\n" not in why
        assert not why.endswith(".")


OF_OTHERS = {
    "schedule",
    "metric",
    "reward",
    "executor",
    "task_kind",
    "runtime",
    "figure_kind",
}  # the host computes them


def test_axes_of_the_host_have_no_reason() -> None:
    assert {*IN_PROGRAMS, *OF_OTHERS} == {*registry.PACKAGES}
    assert {*HELD} == {*IN_PROGRAMS}
    assert all(name in registry.names(axis) and name not in HELD[axis][0] for axis, name in INSTEAD)
    kinds = registry.members("task_kind").items()
    assert {name for name, one in kinds if not one().generates} == {"classification", "multiple_choice", "regression"}


def refused(folder: Path, grid: dict[str, Any], *overrides: str) -> list[str]:
    """Why no trial of a grid can run: one line for each reason."""
    plan = planned(folder, grid, *overrides)
    assert plan.every
    assert not plan.trials
    return [*plan.obstacles]


@pytest.mark.parametrize(
    "axis", ["estimator", pytest.param("space", marks=pytest.mark.long), "perturbation", "update", "precision"]
)
def test_a_plan_refuses_what_no_program_holds_and_names_what_one_does(axis: str, tmp_path: Path) -> None:
    held = sorted(IN_PROGRAMS[axis])
    others = [name for name in registry.names(axis) if name not in held]
    (config, *_) = configs(planned(tmp_path, TINY, ON))
    for name in others:
        (line,) = ExecuTorch().refuses(replace(config, **{axis: registry.member(axis, name)()}))
        assert line.startswith(f"{axis}={name} does not run on executorch: ")
        assert line.endswith(f"; use {axis}={' or '.join(held)}")
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
        (
            ["perturbation=pezo_onthefly", "perturbation.length=perturbation"],
            "perturbation=pezo_onthefly does not run on executorch: a program holds no scale for each place",
        ),
        (["train.logits=all"], "use train.logits=answers"),
        (["prompt.shared=true"], "each row of a program is one text; use prompt.shared=false"),
        (
            ["precision=w4a8", "space=dora"],
            "space=dora over precision=w4a8 does not run on executorch: it multiplies by",
        ),
        (["precision=w4a8", "device.delegate=none"], "XNNPACK alone multiplies it"),
        (["device.form=dual", "evaluation.mode=sequential"], "use evaluation.mode=both"),
        (
            ["space=random_subset", "space.refresh=5"],
            "a program's entries are those of its export; use space.refresh=0",
        ),
        (["train.flops=true"], "use train.flops=false"),
        (["train.objective=accuracy"], "objective accuracy does not run on executorch: a program computes the losses"),
        (["method=zero_shot"], "method.kind=zero_shot does not run on executorch: a program holds the steps of"),
        (["method=fo_lora_fa"], "an inference engine has no backward pass; use a zeroth-order method"),
        (["prompt=mezo_medium", "model=random_roberta"], "a program reads the token after a text, not a mask"),
    ],
)
def test_options_and_other_parts_that_no_program_holds_are_refused(given: list[str], why: str, tmp_path: Path) -> None:
    assert any(why in line for line in refused(tmp_path, TINY, ON, AS_GIVEN, *given))


def test_a_task_that_generates_is_refused(tmp_path: Path) -> None:
    grid = changed(axes={"task": ["squad"]})
    lines = refused(tmp_path, grid, ON, "prompt=prge")
    assert any(line.startswith("task squad does not run on executorch: a program scores given") for line in lines)


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
    (line,) = refused(tmp_path, TINY, ON, AS_GIVEN, "perturbation=mine")
    held = "perturbation=gaussian or pezo_onthefly or pezo_pool"
    assert line.endswith(f"does not run on executorch: it is a member of your own; use {held}")


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
    lines = refused(tmp_path, TINY, "device=oneplus-12", "device.client=zo_client", "precision=bf16")
    assert any("precision=bf16 does not run on executorch" in line for line in lines)


def test_the_shapes_of_prge_table3_run_on_executorch_but_for_rows_that_compute_all_logits() -> None:
    plan = named("prge_table3", "device=executorch", "precision=fp16", "grid.relabel=true")
    rows = ["tinyllama_zo_ours", "tinyllama_inner_ours", "llama2_zo_ours", "llama2_inner_ours"]
    assert [*dict.fromkeys(trial.block for trial in plan.trials)] == rows
    assert len(plan.trials) == 32
    (why,) = plan.obstacles
    assert why.startswith("train.logits=all does not run on executorch")
    (why, *_) = named("prge_table3", "device=executorch", "grid.relabel=true").obstacles
    assert why.startswith("precision=nf4 does not run on executorch")


def test_rows_that_no_program_holds_are_left_out_and_the_others_run() -> None:
    """A row stays what its label says: the zero-shot row of this device is absent, not run on another runtime."""
    plan = named("quickstart", ON)
    assert {trial.block for trial in plan.trials} == {"zo_lora_fa_q1", "zo_lora_fa_q4"}
    assert {plan.every[i].block for i in plan.reasons} == {
        "zero_shot",
        "fo_full",
        "mezo",
        "fo_lora_fa",
        "fo_lora_fa_layerwise",
    }
    assert {of(trial).device.name for trial in plan.every.values()} == {"executorch"}
    assert len(plan.cells) == len(named("quickstart").cells), "every row of the grid is in its tables"
    zero_shot, *_ = sorted(plan.obstacles, key=len)
    assert "method.kind=zero_shot does not run on executorch" in zero_shot


def test_trials_of_a_grid_with_columns_are_told_apart_and_no_length_is_named_that_is_not_theirs() -> None:
    plan = named("prge_table4", ON, "model=random_llama", "scale=smoke", AS_GIVEN)
    labels = [trial.label for trial in plan.trials]
    assert len({*labels}) == len(labels) == 24
    assert labels[0] == "Dual-Forwarding · T=64, E=2 · seed 0"
    assert not any("texts of at most" in line for line in plan.caveats), "half of the columns have 128 tokens"


def test_a_log_of_the_light_client_is_read_on_any_node_without_the_extra_and_only_in_place_of_a_program(
    tmp_path: Path,
) -> None:
    for device in (ON, "device=oneplus-12", "device.runtime=executorch"):
        program = planned(tmp_path, TINY, device, "device.client=zo_client")
        log = planned(tmp_path, TINY, device, "device.log=BUNDLE")
        assert set(program.every) == set(log.every), "the same trials"
        for trial in log.trials:
            assert (trial.needs.programs, trial.needs.device) == (False, "cpu")
            assert trial.memory_key != program.every[trial.trial_id].memory_key, "it holds no program"
    assert len(log.trials) == 2
    assert "device.log is of a program's run: set device.runtime=executorch" in problem(
        tmp_path, TINY, "device.log=BUNDLE"
    )


def test_a_cpu_that_sums_in_fp16_takes_fp32_by_default_and_fp16_is_named(tmp_path: Path) -> None:
    grid = changed(axes={})
    half = ("model.precision=fp16", "method=prge", "update.lr=0.01")
    phone = ("device=oneplus-12", f"device.client={__file__}", AS_GIVEN)
    said = "this device sums products in 16 bits, which can drown projected gradients; use precision=fp32 or w4a8"

    def found(*overrides: str) -> tuple[set[str], bool]:
        plan = planned(tmp_path, grid, *half, *overrides)
        every = {one.precision.name for one in configs(plan)}
        return every, any(said in remarks for remarks in plan.remarks.values())

    assert found("device=cpu") == ({"fp16"}, False)
    assert found(ON, AS_GIVEN) == ({"fp16"}, False), "an x86 sums in fp32"
    assert found(*phone) == ({"fp32"}, False)
    assert found(*phone, "precision=fp16") == ({"fp16"}, True)
    assert found("device=jetson-orin-nano", "device.runtime=executorch", "precision=fp16", AS_GIVEN) == ({"fp16"}, True)
    assert found("device=jetson-orin-nano", "precision=fp16") == ({"fp16"}, False), "PyTorch's GPU sums in fp32"


def test_the_readme_lists_every_precision_that_programs_hold() -> None:
    readme = Path(__file__).parents[1].joinpath("README.md").read_text(encoding="utf-8")
    (cell,) = re.findall(r"^\| precision \| (.*?) \|", readme, re.MULTILINE)
    assert set(re.findall(r"`(\w+)`", cell)) == {*HELD["precision"][0]}
