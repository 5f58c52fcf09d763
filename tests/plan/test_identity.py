"""What makes two trials the same trial: everything that changes the result, and nothing else.

The fields are found by walking the definitions: an option that is added tomorrow is checked tomorrow, and counts unless
it is marked `identity=False`.
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator
from dataclasses import MISSING, Field, is_dataclass, replace
from enum import Enum
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

import pytest

from tests.plan.common import changed, configs, named, planned
from zo_sweeps.core.fingerprint import canonical_json, fingerprint
from zo_sweeps.methods import registry
from zo_sweeps.methods.definition import Definition, hints, identity, options
from zo_sweeps.methods.metric import Metrics
from zo_sweeps.methods.parts import NamedMethod
from zo_sweeps.methods.task import Gym, Hub, Lengths
from zo_sweeps.methods.trial_config import EVERY, TrialConfig
from zo_sweeps.models.identity import DEMO
from zo_sweeps.results.tables import records
from zo_sweeps.schedule.ledger import Standing
from zo_sweeps.tasks.kinds.verified import Verified

pytestmark = pytest.mark.unit

TYPES = hints(TrialConfig)
AXES = [name for name, kind in TYPES.items() if isinstance(kind, type) and issubclass(kind, Definition)]
WITHIN = {
    "objective": "loss",
    "metric": "metric",
    "task_kind": "kind",
    "reward": "kind",
    "schedule": "schedule",
}  # axis -> its field
PLAIN = [name for name, kind in TYPES.items() if is_dataclass(kind) and name not in (*AXES, "method", "task")]


@cache
def example(kind: str = "zo") -> TrialConfig:
    """A trial of the demo grid as it was planned, over adapters, of a method of this kind."""
    plan = named("quickstart", "~grid.blocks.fo_full", "~grid.blocks.mezo", "grid.tables={}")
    planned_kinds = {config.method.kind.name: config for config in reversed(configs(plan))}
    if kind in planned_kinds:
        return planned_kinds[kind]
    text = {"text": "Once"} if kind == "generate" else {}
    return replace(planned_kinds["zo"], method=NamedMethod.read({"name": "other", "kind": kind, **text}))


def other(kind: Any, value: Any) -> Any:
    """A value of the type, in any range, that is not `value`."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return other(next(one for one in arguments if one is not NoneType), value)
    if origin is Literal:
        return next(one for one in arguments if one != value)
    if origin is tuple:
        return (*value, other(arguments[0], value[0] if value else None))
    if isinstance(origin, type):  # a mapping
        return {**value, "another": next(iter(value.values()), 1)}
    if kind is Any or (issubclass(kind, str) and not issubclass(kind, Enum)):
        return f"{value}_other"
    if kind is bool:
        return not value
    if kind is int:
        return (value or 0) + 1
    if kind is float:
        return (value or 1.0) / 2
    if issubclass(kind, Enum):
        return next(one for one in kind if one is not value)
    if issubclass(kind, Definition):
        return made(
            registry.member(kind.axis, next(n for n in registry.names(kind.axis) if value is None or n != value.name))
        )
    if kind is Metrics:
        return Metrics([made(one) for name, one in registry.members("metric").items() if name != value[0].name][:1])
    if kind in (Hub, Gym):
        return made(kind)
    if kind is Lengths:
        return Lengths(30, 90)
    raise AssertionError(f"no other value of a {kind}: add one to this function")


def made(kind: Any) -> Any:
    """A part or member with its defaults, and text for what has none."""
    return kind(**{f.name: "x" for f in options(kind) if f.default is MISSING and f.default_factory is MISSING})


def varied(part: Any) -> Iterator[tuple[str, bool, Any]]:
    """(field, whether it counts, the part with that field changed) for each field that can be set."""
    kind: Any = type(part)
    for f in options(part):
        value, least, most = getattr(part, f.name), f.metadata.get("least"), f.metadata.get("most")
        outside = value is None or value == most  # one more than it is no value of an option with a range
        after = least if outside and None not in (least, most) else other(hints(kind)[f.name], value)
        yield f.name, counts(f), replace(part, **{f.name: after})


def counts(f: Field[Any]) -> bool:
    return bool(f.metadata.get("identity", True))


def changes(before: TrialConfig, after: TrialConfig) -> bool:
    return before.trial_id() != after.trial_id()


# --- every field


def test_the_parts_of_a_trial_are_all_walked_here() -> None:
    assert {*PLAIN, *AXES, "method", "task", "seed", "members"} == {*TYPES}
    no_part = {"executor", "runtime", "figure_kind"}
    assert {*AXES, *WITHIN, "kind", *no_part} == {*registry.PACKAGES}


@pytest.mark.parametrize("name", [name for name in PLAIN if name not in ("device", "prompt")])
def test_a_field_of_a_part_counts_unless_it_is_marked_otherwise(name: str) -> None:
    config = example()
    for field, identified, part in varied(getattr(config, name)):
        assert changes(config, replace(config, **{name: part})) == identified, f"{name}.{field}"


def test_the_wording_that_is_chosen_counts() -> None:
    config = example()
    assert [f.name for f in options(config.prompt)] == ["name", "shared", "system"]
    for change in ({"shared": True}, {"system": "Be brief."}):
        assert changes(config, replace(config, prompt=replace(config.prompt, **change)))
    ids = {replace(config, prompt=replace(config.prompt, name=name)).trial_id() for name in config.task.dialects}
    assert len(ids) == len(config.task.dialects)


def test_a_device_counts_by_its_name_and_only_where_one_is_pinned() -> None:
    free = example()
    assert free.device.any
    pinned = replace(free, device=replace(free.device, kind="cuda"))
    assert changes(free, pinned)
    for config in (free, pinned):
        for field, _, device in varied(config.device):
            if field != "kind":
                counted = config is pinned and field == "name"
                assert changes(config, replace(config, device=device)) == counted, field


def test_rows_per_class_take_the_place_of_the_sizes_of_train_and_dev() -> None:
    config = example()
    few = replace(config, split=replace(config.split, shots=8))
    for field, _, split in varied(few.split):
        assert changes(few, replace(few, split=split)) == (field not in ("train", "dev")), field


def test_a_seed_counts_and_where_members_were_found_does_not() -> None:
    config = example()
    for f in options(config):
        if f.name in ("seed", "members"):
            after = replace(config, **{f.name: other(TYPES[f.name], getattr(config, f.name))})
            assert changes(config, after) == counts(f) == (f.name == "seed")


@pytest.mark.parametrize(("axis", "name"), [(axis, name) for axis in AXES for name in registry.names(axis)])
def test_every_option_of_every_member_counts_unless_it_is_marked_otherwise(axis: str, name: str) -> None:
    config = replace(example(), **{axis: made(registry.member(axis, name))})
    for field, identified, member in varied(getattr(config, axis)):
        assert changes(config, replace(config, **{axis: member})) == identified, f"{axis}.{field} of {name}"


@pytest.mark.parametrize("name", registry.names("kind"))
def test_every_option_of_a_kind_counts_and_the_methods_name_does_not(name: str) -> None:
    config = example(name)
    assert not changes(config, replace(config, method=replace(config.method, name="under_another_name")))
    for field, identified, kind in varied(config.method.kind):
        assert changes(config, replace(config, method=replace(config.method, kind=kind))) == identified, field


def test_a_field_of_a_task_counts_unless_it_is_marked_otherwise_and_of_its_wordings_only_the_one_in_use() -> None:
    config = example()
    for field, identified, task in varied(config.task):
        if field != "dialects":
            assert changes(config, replace(config, task=task)) == identified, field
    assert len(config.task.dialects) > 1
    for dialect, wording in config.task.dialects.items():
        for field, identified, reworded in varied(wording):
            task = replace(config.task, dialects={**config.task.dialects, dialect: reworded})
            used = dialect == config.prompt.name
            assert changes(config, replace(config, task=task)) == (identified and used), f"{dialect}.{field}"


def test_of_a_data_set_on_the_hub_the_parts_that_are_used_count() -> None:
    task = replace(example().task, hub=made(Hub), fingerprint="hf:org/set")
    config = replace(example(), task=task)
    for field, identified, hub in varied(task.hub):
        assert changes(config, replace(config, task=replace(task, hub=hub))) == identified, field


@pytest.mark.parametrize("axis", WITHIN)
def test_every_option_of_a_member_within_a_part_counts_unless_it_is_marked_otherwise(axis: str) -> None:
    for member in registry.members(axis).values():
        for field, identified, after in varied(made(member)):
            before = with_member(example(), axis, made(member))
            assert changes(before, with_member(example(), axis, after)) == identified, f"{field} of {member.name}"


def test_a_member_whose_results_changed_makes_another_trial() -> None:
    assert identity(registry.member("update", "helene")())["numerics"] == 2
    assert "numerics" not in identity(registry.member("update", "sgd")())


@pytest.mark.parametrize("axis", [*AXES, *WITHIN])
def test_another_member_of_an_axis_is_another_trial(axis: str) -> None:
    ids = {with_member(example(), axis, made(member)).trial_id() for member in registry.members(axis).values()}
    assert len(ids) == len(registry.names(axis)) > 1


def with_member(config: TrialConfig, axis: str, value: Any) -> TrialConfig:
    """The trial with this member of an axis, wherever members of that axis belong."""
    if axis in AXES:
        return replace(config, **{axis: value})
    if axis == "schedule":
        return replace(config, update=replace(config.update, schedule=value))
    if axis == "objective":
        wording = replace(config.task.wording(config.prompt.name), loss=value)
        dialects = {**config.task.dialects, config.prompt.name: wording}
        return replace(config, task=replace(config.task, dialects=dialects))
    placed: Any = Metrics([value]) if axis == "metric" else Verified((value,)) if axis == "reward" else value
    return replace(config, task=replace(config.task, **{WITHIN[axis]: placed}))


# --- what a kind of trial uses


@pytest.mark.parametrize("name", registry.names("kind"))
def test_a_part_counts_only_where_the_kind_of_trial_uses_it(name: str) -> None:
    config = example(name)
    used = (*EVERY, *config.method.kind.parts)
    for part in {*TYPES} - {*EVERY, "members"}:
        value = getattr(config, part)
        if part in (*AXES, "seed"):
            after = other(TYPES[part], value)
        else:
            after = next(varying for field, counted, varying in varied(value) if counted and field != "max_length")
        assert changes(config, replace(config, **{part: after})) == (part in used), part


def test_a_first_order_trial_has_no_estimator_and_a_zero_shot_one_no_optimizer_and_no_seed() -> None:
    fo, zero = example("fo"), example("zero_shot")
    assert not {"estimator", "perturbation", "evaluation"} & {*fo.identity()}
    assert not {"estimator", "update", "space", "seed", "train"} & {*zero.identity()}
    assert changes(zero, replace(zero, train=replace(zero.train, max_length=77))), "tokens of a prompt"


def test_a_zero_shot_cell_of_every_seed_and_rate_is_one_trial() -> None:
    plan = named("quickstart", "grid.seeds=[0,1,2]", "update.lr=0.1,0.2")
    cells = [cell for cell in plan.cells if cell.block == "zero_shot"]
    assert (len(cells), len({cell.trial_id for cell in cells})) == (6, 1)


# --- the fingerprint


def test_a_zero_shot_cell_was_searched_over_nothing(tmp_path: Path) -> None:
    axes = {"estimator": {"q": [1, 2]}, "update": {"lr": [0.01, 0.1]}}
    blocks = {
        "zero_shot": {"fixed": {"method": "zero_shot"}},
        "fo": {"fixed": {"method": "fo_lora_fa"}},
        **changed()["blocks"],
    }
    blocks["zo"] = {"fixed": {"method": "prge"}}
    grid = {**changed(seeds=[0, 1]), "blocks": blocks, "axes": {"task": ["demo_remarks"], **axes}}
    plan = planned(tmp_path, grid)
    keys = {cell.block: {*cell.hyperparameters} for cell in plan.cells}
    assert keys == {"zero_shot": set(), "fo": {"update.lr"}, "zo": {"update.lr", "estimator.q"}}
    found = [r for r in records(plan, Standing()) if r.block == "zero_shot"]
    assert [(r.seed, r.also) for r in found] == [(0, (1,))]
    assert {len([r for r in records(plan, Standing()) if r.block == name]) for name in ("fo", "zo")} == {4, 8}


def test_two_configurations_share_an_id_only_if_their_identities_are_equal() -> None:
    rng = random.Random(5)
    base = example()
    parts = {name: [part for _, _, part in varied(getattr(base, name))] for name in ("estimator", "train", "split")}
    seen: dict[str, str] = {}
    for _ in range(300):
        drawn = {name: rng.choice(parts[name]) for name in rng.sample(sorted(parts), rng.randint(0, 3))}
        config = replace(base, **drawn)
        identified = canonical_json(config.identity())
        assert seen.setdefault(config.trial_id(), identified) == identified
    assert len(seen) > 50


OWN_MEMBER = """from dataclasses import dataclass
from zo_sweeps.methods.{axis} import {base}

@dataclass(frozen=True)
class Mine({base}):
    def computed(self):
        return 1
"""


@pytest.mark.parametrize("axis", ["perturbation", "schedule", "objective", "metric"])
def test_a_member_of_the_user_s_counts_by_what_it_computes(tmp_path: Path, axis: str) -> None:
    file = tmp_path / axis / "mine.py"
    file.parent.mkdir()
    source = OWN_MEMBER.format(axis=axis, base=axis.capitalize())

    def trial_id(text: str, used: bool = True) -> str:
        file.write_text(text)
        registry.use_folders([tmp_path])
        config, mine = example(), registry.member(axis, "mine")()
        if not used:
            return config.trial_id()
        parts = {
            "perturbation": {"perturbation": mine},
            "schedule": {"update": replace(config.update, schedule=mine)},
            "objective": {"train": replace(config.train, objective="mine")},
            "metric": {"task": replace(config.task, metric=Metrics([mine]))},
        }
        return replace(config, **parts[axis]).trial_id()

    first = trial_id(source)
    assert trial_id(source.replace("return 1", '"""Says more."""\n        return (1)  # one')) == first
    other = source.replace("return 1", "return 2")
    assert trial_id(other) != first, "of the same size, perhaps in the same second"
    assert trial_id(source) == first
    assert trial_id(source, used=False) == trial_id(other, used=False)


def test_the_order_of_keys_and_the_spelling_of_numbers_do_not_matter() -> None:
    config = example()
    shuffled = json.loads(json.dumps(config.to_json(), sort_keys=True))
    shuffled["space"]["alpha"] = int(shuffled["space"]["alpha"])
    assert TrialConfig.read(shuffled).trial_id() == config.trial_id() == fingerprint(config.identity())


def test_a_model_copied_elsewhere_is_the_same_model_and_a_changed_one_is_not(tmp_path: Path) -> None:
    copied = shutil.copytree(DEMO, tmp_path / "under another name")
    here = planned(tmp_path / "conf", changed())
    there = planned(tmp_path / "conf", changed(), "model=local", f"model.path='{copied}'")
    assert list(there.every) == list(here.every)
    config = json.loads((copied / "config.json").read_text())
    (copied / "config.json").write_text(json.dumps({**config, "rms_norm_eps": 1e-3}))
    other = planned(tmp_path / "conf", changed(), "model=local", f"model.path='{copied}'")
    assert not set(other.every) & set(here.every)


def test_data_copied_elsewhere_is_the_same_data_and_a_changed_row_is_not(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name / "sst2").mkdir(parents=True)
        for split in ("train", "validation", "test"):
            rows = [{"sentence": f"{split} film {i}", "label": i % 2} for i in range(8)]
            (tmp_path / name / "sst2" / f"{split}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))

    def ids(name: str) -> list[str]:
        return list(planned(tmp_path / "conf", changed(), "task=sst2", f"data.dir={tmp_path / name}").every)

    assert ids("a") == ids("b")
    before = ids("a")
    path = tmp_path / "b" / "sst2" / "test.jsonl"
    path.write_text(path.read_text().replace("film 3", "film three"))
    assert not set(ids("b")) & set(before)
