"""The pages on adding a part, done: their files are written as they stand, and a trial uses each."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from test_figures import check_kind as check_figure_kind
from tests.conftest import REPO
from tests.engine import oracles
from tests.engine.test_oracles import check_space
from tests.run.common import run
from tests.tasks.test_examples import check_kind, check_layout, check_metric, check_objective, check_reward
from zo_sweeps.config.composer import Composer
from zo_sweeps.core.files import cache_at
from zo_sweeps.core.trial import Outcome, TrialState
from zo_sweeps.methods import registry
from zo_sweeps.methods.trial_config import TrialConfig
from zo_sweeps.plan.build import build
from zo_sweeps.schedule.ledger import Standing
from zo_sweeps.tables import Measure
from zo_sweeps_report.draw import render
from zo_sweeps_report.sweep_figures import check, figures

PAGES = REPO / "docs" / "adding"


def written(page: str, folder: Path) -> list[str]:
    """Write the page's files, each named by its first line; return their paths below the folder."""
    text = (PAGES / f"{page}.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```(?:python|yaml)\n# FOLDER/(\S+)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    for name, code in blocks:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(code, encoding="utf-8")
    return [name for name, _ in blocks]


def outcome_of(folder: Path, block: str, *overrides: str) -> Outcome:
    rows = re.search(r"^```json\n(.*?)^```", (PAGES / "task.md").read_text(encoding="utf-8"), re.M | re.S)
    assert rows
    lines = [json.loads(line) for line in rows[1].splitlines()] * 8
    (folder / "data" / "closeness").mkdir(parents=True)
    for split in ("train", "validation", "test"):
        text = "".join(json.dumps(row) + "\n" for row in lines)
        (folder / "data" / "closeness" / f"{split}.jsonl").write_text(text, encoding="utf-8")
    (folder / "grid").mkdir()
    head = "# @package grid\nname: mine\nfixed: {model: demo, prompt: mezo, task: demo_remarks}\nseeds: [0]\n"
    (folder / "grid" / "mine.yaml").write_text(f"{head}blocks:\n  a: {{fixed: {block}}}\n")
    small = ["split.train=16", "split.dev=8", "split.test=8", "train.max_length=64", f"data.dir={folder / 'data'}"]
    (trial,) = build(Composer(["+grid=mine", "grid.relabel=true", *small, *overrides], [str(folder)])).trials
    outcome, _ = run(trial)
    assert outcome.state is TrialState.SUCCEEDED, outcome.traceback or outcome.error
    return outcome


FEW = "train: {steps: 2, batch: 2, eval_every: 2}"


def test_a_metric_is_one_file(tmp_path: Path) -> None:
    assert written("metric", tmp_path) == ["metric/misses.py"]
    metrics = outcome_of(tmp_path, "{method: zero_shot}", "task.metric=[accuracy,{name:misses,weight:2.0}]").metrics
    assert metrics["test/misses"] == pytest.approx(16 * (1 - metrics["test/accuracy"]))


def test_an_objective_is_one_file(tmp_path: Path) -> None:
    assert written("objective", tmp_path) == ["objective/hinge.py"]
    assert outcome_of(tmp_path, f"{{method: prge, {FEW}}}", "train.objective=hinge").steps_done == 2


def test_a_task_is_one_yaml_and_its_rows(tmp_path: Path) -> None:
    assert written("task", tmp_path) == ["task/closeness.yaml"]
    metrics = outcome_of(tmp_path, f"{{method: prge, task: closeness, {FEW}}}").metrics
    assert {"test/pearson", "test/spearman", "dev/pearson"} <= set(metrics)
    assert abs(metrics["test/pearson"]) == pytest.approx(1), "two rows, eight times: a line goes through both"


def test_a_task_kind_is_one_file(tmp_path: Path) -> None:
    assert written("task_kind", tmp_path) == ["task_kind/ordinal.py"]
    written("task", tmp_path)
    metrics = outcome_of(tmp_path, "{method: zero_shot, task: closeness}", "task.kind=ordinal").metrics
    assert -1 <= metrics["test/spearman"] <= 1


@pytest.mark.multiprocess
def test_a_reward_is_one_file_and_a_task_names_it(tmp_path: Path) -> None:
    files = ["reward/initials.py", "task/acrostic.yaml", "grid/acrostic.yaml", "task/sorting.yaml"]
    assert written("reward", tmp_path) == files
    (tmp_path / "data" / "acrostic").mkdir(parents=True)
    row = {"letters": "abc", "example": "All birds came"}
    for split in ("train", "validation", "test"):
        (tmp_path / "data" / "acrostic" / f"{split}.jsonl").write_text(8 * f"{json.dumps(row)}\n")
    small = ["model=demo", "prompt=mezo", "estimator.q=1", "train.steps=2", "train.batch=2", "train.eval_every=2"]
    given = ["+grid=acrostic", "grid.relabel=true", *small, "split.dev=2", "split.test=4"]
    (trial,) = build(Composer([*given, f"data.dir={tmp_path / 'data'}"], [str(tmp_path)])).trials
    outcome, _ = run(trial)
    assert outcome.state is TrialState.SUCCEEDED, outcome.traceback or outcome.error
    assert outcome.metrics["test/reward"] < 0, "its texts are longer than the example"
    assert outcome.metrics["test/length"] > 0


@pytest.mark.long
def test_a_generator_s_rows_are_a_task(tmp_path: Path) -> None:
    pytest.importorskip("reasoning_gym", reason="it comes with the extra [rewards]")
    written("reward", tmp_path)
    with cache_at(tmp_path / "cache"):
        plan = build(Composer(["+grid=acrostic", "model=demo", "prompt=mezo", "task=sorting"], [str(tmp_path)]))
    assert not plan.obstacles
    assert TrialConfig.of(plan.trials[0].config).task.fingerprint.startswith("sha256:")


ZO = f"method: prge, space: {{targets: [q, v]}}, {FEW}"


def test_a_perturbation_is_one_file(tmp_path: Path) -> None:
    assert written("perturbation", tmp_path) == ["perturbation/three_point.py"]
    row = f"{{{ZO}, perturbation: {{name: three_point, share: 0.5}}}}"
    assert outcome_of(tmp_path, row).steps_done == 2


def test_an_update_is_one_file(tmp_path: Path) -> None:
    assert written("update", tmp_path) == ["update/clipped.py"]
    assert outcome_of(tmp_path, f"{{{ZO}, update: {{name: clipped, lr: 1e-3, most: 0.5}}}}").steps_done == 2


def test_an_estimator_is_one_file(tmp_path: Path) -> None:
    assert written("estimator", tmp_path) == ["estimator/backward.py"]
    row = f"{{{ZO}, estimator: {{name: backward, q: 2, eps: 1e-2}}, evaluation: {{mode: sequential}}}}"
    assert outcome_of(tmp_path, row).steps_done == 2


def test_a_precision_is_one_file(tmp_path: Path) -> None:
    assert written("precision", tmp_path) == ["precision/fp64.py"]
    outcome = outcome_of(tmp_path, f"{{{ZO}, precision: fp64}}")
    assert outcome.metrics["weights_bytes"] % 8 == 0
    assert outcome.steps_done == 2


def test_a_schedule_is_one_file(tmp_path: Path) -> None:
    assert written("schedule", tmp_path) == ["schedule/warm_up.py"]
    row = f"{{{ZO}}}"
    assert outcome_of(tmp_path, row, "update.schedule={name:warm_up,share:0.5}").steps_done == 2


def test_a_space_is_one_file(tmp_path: Path) -> None:
    assert written("space", tmp_path) == ["space/biases.py"]
    row = f"{{method: mezo, space: biases, update: {{lr: 1e-4}}, {FEW}}}"
    outcome = outcome_of(tmp_path, row)
    assert outcome.metrics["trainable_parameters"] < 10_000


CONTRACTS = {
    "estimator": oracles.estimator,
    "perturbation": oracles.perturbation,
    "precision": oracles.precision,
    "schedule": oracles.schedule,
    "space": check_space,
    "update": oracles.update,
    "metric": check_metric,
    "objective": check_objective,
    "task_kind": check_kind,
    "reward": check_reward,
    "figure_kind": check_figure_kind,
}


@pytest.mark.parametrize("axis", CONTRACTS)
def test_a_pages_member_keeps_the_contract(axis: str, tmp_path: Path) -> None:
    (file,) = (one for one in written(axis, tmp_path) if one.startswith(f"{axis}/"))
    with registry.using_folders([tmp_path]):
        CONTRACTS[axis](registry.member(axis, Path(file).stem)())


def test_a_kind_of_figure_is_one_file(tmp_path: Path) -> None:
    (name,) = written("figure_kind", tmp_path)
    assert name == "figure_kind/stairs.py"
    composer = Composer(["+grid=pezo_fig4", "grid.figures.loss.kind=stairs"], [str(tmp_path)])
    check(build(composer), composer)
    (figure,) = figures(build(composer), composer, Standing(), ["loss"])
    assert figure.kind.name == "stairs"
    assert render(figure, "svg").startswith(b"<?xml")


def test_a_grid_is_one_yaml(tmp_path: Path) -> None:
    assert written("grid", tmp_path) == ["grid/rank.yaml"]
    plan = build(Composer(["+grid=rank"], [str(tmp_path)]))
    members = {TrialConfig.of(trial.config).estimator.name for trial in plan.trials}
    assert members == {"rge", "rge_one_sided"}
    assert len(plan.trials) == 4


def test_a_table_and_a_device_are_one_yaml_each(tmp_path: Path) -> None:
    assert written("table", tmp_path) == ["table/tokens.yaml"]
    assert written("device", tmp_path) == ["device/rpi-5.yaml"]
    composer = Composer(["device=rpi-5"], [str(tmp_path)])
    layout = Measure.from_mapping(composer.option("table", "tokens"), "tokens.yaml")
    assert layout.unit == "tokens/s"
    check_layout(layout)
    plan = build(Composer(["+grid=quickstart", "device=rpi-5"], [str(tmp_path)]))
    assert {trial.needs.device for trial in plan.trials} == {"rpi-5"}
