"""Options reach the member that they are meant for, or are refused before anything is launched.

Every case here was once planned as something else without a word, or failed only when its trials ran.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser

from tests.plan.common import changed, configs, of, planned, problem, write_grid
from zo_sweeps.cli.main import main
from zo_sweeps.config.command_line import CommandLine
from zo_sweeps.config.composer import Composer
from zo_sweeps.config.schema import GridTable
from zo_sweeps.core.errors import UserError
from zo_sweeps.core.trial import Trial
from zo_sweeps.engine.estimators.rge_one_sided import RGEOneSided
from zo_sweeps.methods.trial_config import TrialConfig
from zo_sweeps.models.families import describe
from zo_sweeps.models.identity import status
from zo_sweeps.plan.build import Plan

pytestmark = pytest.mark.unit

PRESET: dict[str, Any] = {  # a user's method
    "defaults": [
        {"override /estimator": "rge"},
        {"override /perturbation": "gaussian"},
        {"override /space": "lora_fa"},
        {"override /update": "sgd"},
    ],
    "method": {"name": "mine", "kind": "zo"},
    "train": {"steps": 4, "eval_every": 2},
}
ONE_SIDED = """
from dataclasses import dataclass
from typing import ClassVar
from zo_sweeps.engine.estimators.rge_one_sided import RGEOneSided

@dataclass(frozen=True)
class Forward(RGEOneSided):
    "Another name for forward differences."
"""
TWO_COPIES = """
from dataclasses import dataclass
from typing import ClassVar
from zo_sweeps.engine.updates.sgd import SGD

@dataclass(frozen=True)
class Heavy(SGD):
    "SGD that keeps two numbers per parameter."
    state_copies: ClassVar[int] = 2
"""


def write(folder: Path, path: str, content: str | dict[str, Any]) -> None:
    """A file of a user's configuration folder; of a mapping, a YAML file, a method's at the root of the tree."""
    file = folder / path
    file.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, str):
        file.write_text(content)
    else:
        package = "# @package _global_\n" if path.startswith("method/") else ""
        file.write_text(package + yaml.safe_dump(content, sort_keys=False))


def block(folder: Path, fixed: dict[str, Any], *overrides: str, **more: Any) -> Plan:
    """The plan of a grid with one block, `zo`, that fixes these values."""
    return planned(folder, grid_of(fixed, **more), *overrides)


def grid_of(fixed: dict[str, Any], **more: Any) -> dict[str, Any]:
    zo = {"label": "ZO", "fixed": {"train": {"steps": 4, "eval_every": 2}, **fixed}, **more}
    return changed(blocks={"zo": zo}, fixed={"model": "demo", "prompt": "mezo"})


def the_one(plan: Plan) -> TrialConfig:
    (config,) = configs(plan)
    return config


# --- {name: X, ...} chooses the member X, wherever it is written


def test_a_grid_that_names_a_member_beside_its_options_gets_that_member_with_its_own_defaults(tmp_path: Path) -> None:
    fixed = {"method": "prge", "estimator": {"name": "rge_one_sided", "q": 8}, "evaluation": {"mode": "sequential"}}
    config = the_one(block(tmp_path, fixed))
    assert (config.estimator, config.train.batch) == (RGEOneSided(q=8, eps=1e-2), 2), "prge's eps, which it has too"
    bare = the_one(block(tmp_path, {"method": "mezo", "estimator": {"name": "rge_one_sided", "q": 8}}))
    assert bare.estimator == RGEOneSided(q=8)


def test_a_method_preset_that_names_a_member_beside_its_options_gets_that_member(tmp_path: Path) -> None:
    write(tmp_path, "method/mine.yaml", {**PRESET, "estimator": {"name": "rge_one_sided", "q": 8}})
    assert the_one(block(tmp_path, {"method": "mine"})).estimator == RGEOneSided(q=8)


def test_the_command_line_that_names_a_member_gets_that_member(tmp_path: Path) -> None:
    more = ("estimator.q=8", "grid.relabel=true")
    config = the_one(block(tmp_path, {"method": "mezo"}, "estimator.name=rge_one_sided", *more))
    assert config.estimator == RGEOneSided(q=8)
    assert config == the_one(block(tmp_path, {"method": "mezo"}, "estimator=rge_one_sided", *more))


def test_a_member_that_the_grid_chooses_wins_over_the_one_that_the_preset_names(tmp_path: Path) -> None:
    write(tmp_path, "method/mine.yaml", {**PRESET, "estimator": {"name": "rge_one_sided", "q": 8}})
    config = the_one(block(tmp_path, {"method": "mine", "estimator": "cge", "perturbation": "coordinate"}))
    assert config.estimator.name == "cge", "the preset's q is an option of its own member, and cge has none"


def test_a_file_of_an_axis_is_its_member_under_another_name(tmp_path: Path) -> None:
    write(tmp_path, "estimator/mine.yaml", {"name": "rge_one_sided", "q": 8})
    assert the_one(block(tmp_path, {"method": "mezo", "estimator": "mine"})).estimator.name == "rge_one_sided"


def test_a_file_of_a_users_own_member_need_not_repeat_its_name(tmp_path: Path) -> None:
    write(tmp_path, "estimator/forward.py", ONE_SIDED)
    write(tmp_path, "estimator/forward.yaml", {"q": 8})
    write(tmp_path, "method/mine.yaml", {**PRESET, "defaults": [{"override /estimator": "forward"}]})
    estimator = the_one(block(tmp_path, {"method": "mine"})).estimator
    assert (estimator.name, estimator.budget) == ("forward", 8)


def test_an_option_of_a_member_within_a_part_is_given_by_its_dotted_key(tmp_path: Path) -> None:
    fixed = {"method": "mezo", "update": {"lr": 0.1, "schedule": {"name": "linear"}}}
    assert the_one(block(tmp_path, fixed)).update.schedule.name == "linear"
    again = the_one(block(tmp_path, {"method": "mezo"}, "update.lr=0.1", "update.schedule.name=linear"))
    assert again.update.schedule.name == "linear"


# --- facts come from the member, not from a list of names


def test_the_coordinate_estimator_is_planned_with_two_forwards_per_parameter(tmp_path: Path) -> None:
    fixed = {"method": "prge", "estimator": "cge", "perturbation": "coordinate", "evaluation": {"mode": "sequential"}}
    sizes = {"split": {"train": 16, "dev": 16, "test": 16}}
    plan = block(tmp_path, {**fixed, **sizes})
    (trial,) = plan.every.values()
    config = the_one(plan)
    arch = status(config.model).arch
    assert arch
    d = config.space.trainable(arch)
    two = next(iter(block(tmp_path, {**sizes, "method": "prge", "estimator": {"q": 1}}).every.values()))
    assert config.train.batch == 16, "E, as the user chooses no queries"
    tokens = two.cost / (4 * 16 * 2 + 2 * 16 + 16)  # steps * batch * forwards, two evaluations on dev, the test
    assert trial.cost == pytest.approx((4 * 16 * 2 * d + 2 * 16 + 16) * tokens)
    assert d > 1000


def test_blocks_that_the_points_of_a_step_share_cost_one_forward(tmp_path: Path) -> None:
    """The demo model has 6 blocks, of which 2 are trained: a step of 2q = 8 points runs 4 once, and 2 for each."""

    def trial(q: int, *overrides: str, **space: Any) -> Trial:
        fixed = {"method": "prge", "space": {"name": "lora", **space}, "estimator": {"q": q}, "train": {"batch": 2}}
        (one,) = block(tmp_path, fixed, *overrides).every.values()
        return one

    whole, few = trial(4), trial(4, blocks=2)
    point = (whole.cost - trial(2).cost) / 4  # of all steps
    assert whole.cost - few.cost == pytest.approx(7 * point * 4 / 6)
    assert few.operations / whole.operations == pytest.approx(few.cost / whole.cost)
    assert trial(4, blocks=None).trial_id == whole.trial_id != few.trial_id
    generated = ("task=squad", "train.objective=f1")
    assert trial(4, *generated, blocks=2).cost == trial(4, *generated).cost, "a generation shares nothing"
    d = [TrialConfig.of(one.config).space for one in (whole, few)]
    arch = status(TrialConfig.of(few.config).model).arch
    assert arch
    assert d[1].trainable(d[1].moved(arch)) * 3 == d[0].trainable(arch)
    with pytest.raises(UserError, match="the last 7 blocks of a model that has 6"):
        trial(4, blocks=7)
    smoke = of(trial(4, "scale=smoke", "model=random_llama", "grid.relabel=true", blocks=3))
    assert (smoke.space.untouched(describe(smoke.model.arch)), smoke.model.arch["num_hidden_layers"]) == (0, 1)


def test_a_one_sided_estimator_of_another_name_is_planned_by_its_own_evaluations(tmp_path: Path) -> None:
    write(tmp_path, "estimator/forward.py", ONE_SIDED)
    costs = []
    for name in ("rge_one_sided", "forward"):
        (trial,) = block(tmp_path, {"method": "mezo", "estimator": {"name": name, "q": 8}}).every.values()
        costs.append(trial.cost)
    (two_sided,) = block(tmp_path, {"method": "mezo", "estimator": {"q": 8}}).every.values()
    assert costs[0] == costs[1] < two_sided.cost


def test_a_perturbation_that_reads_a_forward_is_planned_with_it_where_no_point_is_theta(tmp_path: Path) -> None:
    def cost(**fixed: Any) -> float:
        (trial,) = block(tmp_path, {"method": "agzo", **fixed}).every.values()
        return trial.cost

    assert cost() == cost(perturbation="gaussian"), "it shares f(theta)"
    assert cost(estimator="rge") == cost(estimator="rge_curved", perturbation="gaussian"), "three forwards"


@pytest.mark.parametrize(
    ("fixed", "said"),
    [
        ({"space": "lora_fa"}, "use space=full, not lora_fa"),
        ({"estimator": {"name": "rge_per_row", "q": 2}}, "rge_per_row has one for each direction"),
        ({"evaluation": {"restore": "in_place"}}, "moves the weights that perturbation=agzo reads"),
        ({"update": {"name": "adamezo", "lr": 0.1}}, "depend on the minibatch at its step; use another update"),
        ({"train": {"objective": "f1"}}, "f1 generates, and perturbation=agzo reads one forward"),
    ],
)
def test_a_perturbation_that_reads_the_minibatch_is_refused_where_it_cannot(
    tmp_path: Path, fixed: dict[str, Any], said: str
) -> None:
    assert said in problem(tmp_path, grid_of({"method": "agzo", **fixed}))


def test_a_new_update_is_used_without_a_list_and_planned_with_the_memory_of_its_state(tmp_path: Path) -> None:
    write(tmp_path, "update/heavy.py", TWO_COPIES)
    light, heavy = (
        next(iter(block(tmp_path, {"method": "mezo", "update": {"name": name, "lr": 0.1}}).every.values()))
        for name in ("sgd", "heavy")
    )
    arch = status(of(light).model).arch
    assert arch
    assert heavy.needs.memory_bytes - light.needs.memory_bytes == 2 * 4 * arch.parameters


def test_a_model_of_a_family_that_nobody_listed_plans(tmp_path: Path) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    from zo_sweeps.models.identity import DEMO

    folder = tmp_path / "gpt2"
    config = GPT2Config(vocab_size=4096, n_positions=128, n_embd=16, n_layer=2, n_head=2)
    GPT2LMHeadModel(config).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes((DEMO / name).read_bytes())
    plan = block(tmp_path, {"method": "prge"}, "model=local", f"model.path='{folder}'")
    (trial,) = plan.trials
    assert trial.needs.memory_bytes > 0


# --- a misspelt key is refused where it stands


def refused(capsys: pytest.CaptureFixture[str], folder: Path, *overrides: str) -> str:
    """The one line with which the command ends; asserts status 2 and that nothing was made."""
    before = sorted(folder.rglob("*"))
    status = main([*overrides, "--config-dir", str(folder)])
    out, err = capsys.readouterr()
    assert (status, out) == (2, "")
    assert err.count("\n") == 1, err
    assert sorted(folder.rglob("*")) == before
    return err


def near(line: str, key: str, meant: str, where: object) -> None:
    assert f"unknown key {key!r}" in line
    assert f"did you mean {meant!r}?" in line
    assert f" in {where}" in line


FILES = [  # file, its content (a change of PRESET for a method), the key, the key meant; the file is used by its name
    ("method/mine.yaml", {"space": {"ranks": 4}}, "space.ranks", "space.rank"),
    ("method/mine.yaml", {"estimator": {"q": 4, "epsilon": 1e-2}}, "estimator.epsilon", "estimator.eps"),
    ("method/mine.yaml", {"train": {"stepz": 4}}, "train.stepz", "train.steps"),
    ("method/mine.yaml", {"tran": {"steps": 4}}, "tran", "train"),
    ("method/mine.yaml", {"evaluation": {"mod": "both"}}, "evaluation.mod", "evaluation.mode"),
    ("method/mine.yaml", {"method": {"name": "mine", "kind": "zo", "knd": 1}}, "method.knd", "method.kind"),
    ("model/mine.yaml", {"name": "mine", "source": "demo", "familly": "llama"}, "model.familly", "model.family"),
    ("device/mine.yaml", {"name": "mine", "kind": "cpu", "memory": 4}, "device.memory", "device.memory_gb"),
    ("estimator/mine.yaml", {"name": "rge", "epss": 0.1}, "estimator.epss", "estimator.eps"),
    ("update/mine.yaml", {"name": "adam", "beta_1": 0.1}, "update.beta_1", "update.beta1"),
]


@pytest.mark.parametrize(("file", "content", "key", "meant"), FILES, ids=lambda value: str(value)[:40])
def test_a_misspelt_key_of_a_file_is_refused_with_the_file_and_the_near_match(
    file: str,
    content: dict[str, Any],
    key: str,
    meant: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, file, {**PRESET, **content} if file.startswith("method/") else content)
    line = refused(capsys, tmp_path, f"{file.partition('/')[0]}=mine", "grid.relabel=true")
    near(line, key, meant, tmp_path / file)


def test_a_misspelt_key_of_a_task_is_refused_with_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from zo_sweeps.config.composer import conf_dir

    monkeypatch.chdir(tmp_path)
    task = yaml.safe_load((conf_dir() / "task" / "demo_remarks.yaml").read_text())
    write(tmp_path, "task/mine.yaml", {**task, "name": "mine", "dev_sise": 3})
    near(refused(capsys, tmp_path, "task=mine"), "task.dev_sise", "task.dev_size", tmp_path / "task/mine.yaml")
    task["dialects"]["mezo"]["tempalte"] = "x"
    write(tmp_path, "task/mine.yaml", {**task, "name": "mine"})
    line = refused(capsys, tmp_path, "task=mine")
    near(line, "task.dialects.mezo.tempalte", "task.dialects.mezo.template", tmp_path / "task/mine.yaml")


@pytest.mark.parametrize(
    ("override", "key", "meant"),
    [
        ("space.ranks=4", "space.ranks", "space.rank"),
        ("estimator.epsilon=1e-2", "estimator.epsilon", "estimator.eps"),
        ("train.stepz=4", "train.stepz", "train.steps"),
        ("task.metrc=f1", "task.metrc", "task.metric"),
        ("method.knd=zo", "method.knd", "method.kind"),
    ],
)
def test_a_misspelt_key_of_the_command_line_is_refused(
    override: str,
    key: str,
    meant: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    near(refused(capsys, tmp_path, "method=prge", override), key, meant, "the command line")


def test_a_precision_left_to_the_model_hides_no_misspelt_key(tmp_path: Path) -> None:
    assert "unknown key 'precision.nme' in the command line" in problem(tmp_path, changed(), "precision.nme=fp32")


def with_typo(place: str, part: str, key: str) -> dict[str, Any]:
    """A grid with an unknown key in one of its places."""
    value = {part: {key: [4] if place.endswith("axes") else 4}}
    grid = changed()
    zo = grid["blocks"]["zo"]
    if place == "fixed":
        zo["fixed"] = {**zo["fixed"], **value} if part not in zo["fixed"] else _merged(zo["fixed"], value)
    elif place == "axes":
        zo["axes"] = _merged(zo["axes"], value)
    elif place == "per_task":
        zo["per_task"] = {"demo_remarks": value}
    elif place == "columns":
        grid["axes"] = {}
        grid["columns"] = {"four": value}
    else:
        grid["fixed"] = _merged(grid["fixed"], value)
    return grid


def _merged(tree: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    return {**tree, **{key: {**tree.get(key, {}), **value} for key, value in more.items()}}


@pytest.mark.parametrize("place", ["fixed", "axes", "per_task", "columns", "grid_fixed"])
@pytest.mark.parametrize(
    ("part", "key", "meant"), [("space", "ranks", "space.rank"), ("train", "stepz", "train.steps")]
)
def test_a_misspelt_key_of_a_grid_is_refused_with_the_grid_and_the_block(
    place: str,
    part: str,
    key: str,
    meant: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    write_grid(tmp_path, with_typo(place, part, key))
    line = refused(capsys, tmp_path, "+grid=tiny")
    of_grid = part == "space" and place in ("columns", "grid_fixed")  # no block alone is wrong
    near(line, f"{part}.{key}", meant, "grid tiny" if of_grid else "grid tiny, block zo")


def test_a_misspelt_part_of_a_grid_is_refused_with_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_grid(tmp_path, changed(fixd={"model": "demo"}))
    near(refused(capsys, tmp_path, "+grid=tiny"), "grid.fixd", "grid.fixed", tmp_path / "grid/tiny.yaml")


@pytest.mark.parametrize(
    ("parts", "key", "kind"),
    [
        (
            {"figures": {"one": {"footnotes": ["fine", {"published points": "Table 4"}]}}},
            "figures.one.footnotes.1",
            "text",
        ),
        ({"figures": {"one": {"series": {"zo": ["a", "b"]}}}}, "figures.one.series.zo", "text"),
        ({"figures": {"one": {"at": [[0.5, 1.0]]}}}, "figures.one.at.0", "a number"),
        ({"tables": {"one": {"rows": {"zo": {"a": "b"}}}}}, "tables.one.rows.zo", "text"),
        ({"seeds": [{"a": 1}]}, "seeds.0", "an integer"),
    ],
)
def test_a_list_or_mapping_in_the_place_of_a_text_or_number_is_refused_with_its_file(
    parts: dict[str, Any], key: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """`- published points: Table 4` is a mapping in YAML."""
    monkeypatch.chdir(tmp_path)
    write_grid(tmp_path, changed(**parts))
    line = refused(capsys, tmp_path, "+grid=tiny")
    assert f"grid.{key} has the wrong type" in line
    assert f"it must be {kind}" in line
    assert str(tmp_path / "grid/tiny.yaml") in line


# --- an option of another member


def test_an_option_that_a_block_gives_a_member_without_it_is_refused(tmp_path: Path) -> None:
    text = problem(tmp_path, grid_of({"method": "mezo", "space": {"name": "full", "rank": 4}}))
    assert "unknown key 'space.rank' in grid tiny, block zo (space=full)" in text


def test_an_option_that_a_grid_gives_to_every_block_is_passed_over_by_a_member_without_it(tmp_path: Path) -> None:
    grid = changed()
    grid["fixed"]["space"] = {"rank": 4}
    grid["blocks"]["full"] = {"fixed": {"method": "mezo", "update": {"lr": 0.1}}}
    plan = planned(tmp_path, grid)
    ranks = {trial.block: getattr(of(trial).space, "rank", None) for trial in plan.every.values()}
    assert ranks == {"zo": 4, "full": None}


def test_a_blocks_own_option_is_passed_over_where_the_command_line_chooses_another_member(tmp_path: Path) -> None:
    fixed = {"method": "prge", "space": {"rank": 4}, "evaluation": {"mode": "sequential"}}
    assert the_one(block(tmp_path, fixed, "space=full", "grid.relabel=true")).space.name == "full"


@pytest.mark.parametrize(
    ("content", "part"),
    [
        ({"train": {"steps": "many"}}, "train.steps='many' has the wrong type"),
        ({"estimator": {"q": 0}}, "estimator.q of rge must be at least 1, not 0"),
        ({"space": {"rank": "four"}}, "space.rank='four' has the wrong type"),
        ({"estimator": {"name": "rgee"}}, "unknown estimator 'rgee'"),
        ({"method": {"name": "mine", "kind": "zoo"}}, "unknown kind 'zoo'"),
    ],
)
def test_a_wrong_value_of_a_file_is_refused_with_the_file(content: dict[str, Any], part: str, tmp_path: Path) -> None:
    write(tmp_path, "method/mine.yaml", {**PRESET, **content})
    text = problem(tmp_path, changed(blocks={"zo": {"fixed": {"method": "mine"}}}))
    assert part in text
    assert str(tmp_path / "method/mine.yaml") in text


def test_a_trial_that_came_as_json_is_the_same_trial(tmp_path: Path) -> None:
    config = the_one(block(tmp_path, {"method": "prge"}))
    again = TrialConfig.read(json.loads(json.dumps(config.to_json())))
    assert again == config
    assert again.trial_id() == config.trial_id()
    with pytest.raises(UserError, match=r"unknown key 'train\.stepz'"):
        TrialConfig.read({**config.to_json(), "train": {"stepz": 3}})


def test_a_path_is_read_as_typed() -> None:
    """Every short string over the characters that Hydra's grammar quotes with."""
    for length in range(1, 5):
        for letters in itertools.product("a\\'\" ,", repeat=length):
            name = "/" + "".join(letters)
            override = OverridesParser.create().parse_override(*CommandLine.read([f"state_dir={name}"]).texts)
            assert override.value() == name


def test_a_comma_belongs_to_a_path_that_exists_and_else_separates_two(tmp_path: Path) -> None:
    (tmp_path / "a,b").mkdir()
    one, two = f"{tmp_path}/a,b", f"{tmp_path}/a,{tmp_path}/c"
    assert Composer([f"model.path={one}"]).forced["model.path"] == (one,)
    assert Composer([f"model.path={two}"]).forced["model.path"] == tuple(two.split(","))


def test_an_empty_mapping_replaces_what_the_grid_has() -> None:
    """Hydra would merge it, and so change nothing."""
    assert set(Composer().run.grid.tables) == set()
    assert set(Composer(["+grid=quickstart"]).run.grid.tables) == {"accuracy", "runtime", "memory"}
    assert set(Composer(["+grid=quickstart", "grid.tables={}"]).run.grid.tables) == set()


def test_a_grid_without_tables_and_figures_has_the_table_of_accuracies(tmp_path: Path) -> None:
    conf = write_grid(tmp_path, changed(tables={}))
    assert Composer(["+grid=tiny"], [conf]).run.grid.tables == {"accuracy": GridTable(layout="accuracy")}
    assert not Composer(["+grid=tiny", "grid.tables={}"], [conf]).run.grid.tables
