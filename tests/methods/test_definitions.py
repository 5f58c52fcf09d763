"""Every member's definition: its options as they are read, written and counted in a trial's identity."""

from __future__ import annotations

import json
import math
import pickle
import re
import subprocess
import sys
from dataclasses import Field, dataclass, fields, replace
from enum import Enum
from types import NoneType
from typing import Any, Literal, get_args, get_origin

import pytest

from tests.engine import contract
from zo_sweeps.core.errors import UserError
from zo_sweeps.methods.definition import Definition, convert, hints, identity, option, options, read, write
from zo_sweeps.methods.executor import Executor
from zo_sweeps.methods.schedule import Schedule

LIMITS = ("least", "most", "above", "below")
MEMBERS = [pytest.param(axis, name, id=f"{axis} {name}") for axis, name in contract.every()]
EVERY_OPTION = [(axis, name, f) for axis, name in contract.every() for f in options(contract.kind(axis, name))]
OPTIONS = [pytest.param(axis, name, f, id=f"{axis} {name} {f.name}") for axis, name, f in EVERY_OPTION]
RANGED = [
    pytest.param(axis, name, f, id=f"{axis} {name} {f.name}")
    for axis, name, f in EVERY_OPTION
    if any(f.metadata[key] is not None for key in LIMITS)
]


def located(key: str) -> str:
    return f"my.yaml ({key})"


def kind_of(made: Any, f: Field[Any]) -> Any:
    """The type of an option."""
    return hints(made.__class__)[f.name]


def another(kind: Any, f: Field[Any], value: Any) -> Any:
    """A value that the option takes and that is not `value`."""
    least, most, above, below = (f.metadata[key] for key in LIMITS)
    if NoneType in get_args(kind):
        return value + 1 if value is not None else another(get_args(kind)[0], f, value)
    if kind is bool:
        return not value
    if kind in (int, float):
        value = 1 if value is None else value
        tried = [value + 1, value - 1, value / 2 if kind is float else value, 0.5 if kind is float else 3, least]
        fits = [
            one
            for one in tried
            if one not in (None, value)
            and (least is None or one >= least)
            and (most is None or one <= most)
            and (above is None or one > above)
            and (below is None or one < below)
        ]
        return kind(fits[0])
    if kind is str:
        return f"{value}x"
    if get_origin(kind) is Literal:
        return next(choice for choice in get_args(kind) if choice != value)
    if get_origin(kind) is tuple:
        return ("q",) if value != ("q",) else ("v",)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return next(choice for choice in kind if choice != value)
    if isinstance(kind, type) and issubclass(kind, Definition):
        name = next(one for one in contract.names(kind.axis) if one != value.name)
        return contract.member(kind.axis, name)
    raise AssertionError(f"no other value for an option of type {kind}: extend another() in {__file__}")


def changed(axis: str, name: str) -> Any:
    """The member with every option at another value than its default."""
    made = contract.member(axis, name)
    return replace(made, **{f.name: another(kind_of(made, f), f, getattr(made, f.name)) for f in options(made)})


# What every member keeps to


@pytest.mark.parametrize(("axis", "name"), MEMBERS)
def test_every_option_has_one_line_of_help(axis: str, name: str) -> None:
    kind = contract.kind(axis, name)
    assert (kind.axis, kind.name) == (axis, name)
    assert kind.__doc__
    for f in options(kind):
        assert f.metadata.get("option") is True, f"{f.name} is declared by option(...)"
        assert f.metadata["help"], f.name
        assert "\n" not in f.metadata["help"], f.name


@pytest.mark.parametrize(("axis", "name"), MEMBERS)
def test_reading_what_was_written_gives_the_member(axis: str, name: str) -> None:
    for made in (contract.member(axis, name), changed(axis, name)):
        written = json.loads(json.dumps(write(made)))
        again = type(made).read(written)
        assert again == made
        assert type(again) is type(made)
        assert write(again) == write(made)


@pytest.mark.parametrize(("axis", "name"), MEMBERS)
def test_the_name_alone_means_the_defaults(axis: str, name: str) -> None:
    kind = contract.kind(axis, name)
    if contract.required(axis, name):
        with pytest.raises(UserError, match="is missing"):
            kind.read(name)
    else:
        assert kind.read(name) == kind() == kind.read({"name": name}) == kind.read(kind.defaults())


@pytest.mark.parametrize(("axis", "name", "f"), OPTIONS)
def test_a_misspelt_option_is_refused_with_the_near_match(axis: str, name: str, f: Field[Any]) -> None:
    wrong = f.name + f.name[-1]
    with pytest.raises(UserError) as raised:
        contract.kind(axis, name).read({"name": name, wrong: 1}, axis, located)
    error = raised.value
    assert error.what == f"unknown key '{axis}.{wrong}'"
    assert error.where == f"my.yaml ({axis}.{wrong})"
    assert set(error.choices) == {f"{axis}.{one.name}" for one in options(contract.kind(axis, name))}
    assert error.fix == f"did you mean '{axis}.{f.name}'?"
    assert "\n" not in str(error)


@pytest.mark.parametrize(("axis", "name", "f"), OPTIONS)
def test_a_value_of_a_wrong_type_is_refused_with_its_key_and_place(axis: str, name: str, f: Field[Any]) -> None:
    kind = contract.kind(axis, name)
    wanted = hints(kind)[f.name]
    wrong: list[Any] = [{"a": 1}, None] if f.default is not None else [{"a": 1}]
    if wanted in (int, float):
        wrong += [True, "1", [1]]  # true is no number
        wrong += [1.5] if wanted is int else [math.nan, math.inf, -math.inf]
    elif wanted is bool:
        wrong += [1, "true"]
    elif wanted is str or get_origin(wanted) is Literal:
        wrong += [3, True]
    elif get_origin(wanted) is tuple:
        wrong += ["q", [3]]
    for value in wrong:
        given = {"name": name, **contract.required(axis, name), f.name: value}
        with pytest.raises(UserError) as raised:
            kind.read(given, axis, located)
        shown = str(raised.value)
        assert f"{axis}.{f.name}" in shown, shown
        assert "my.yaml" in shown, shown
        assert "\n" not in shown


@pytest.mark.parametrize(("axis", "name", "f"), RANGED)
def test_a_number_out_of_its_range_is_refused(axis: str, name: str, f: Field[Any]) -> None:
    least, most, above, below = (f.metadata[key] for key in LIMITS)
    outside = [limit for limit in (above, below) if limit is not None]
    outside += [least - 1] if least is not None else []
    outside += [most + 1] if most is not None else []
    for value in outside:
        with pytest.raises(UserError, match=rf"^{axis}\.{f.name} of {name} must be .*, not {value}$"):
            contract.member(axis, name, **{f.name: value})
        with pytest.raises(UserError) as raised:
            contract.kind(axis, name).read({"name": name, f.name: value}, axis, located)
        assert re.match(rf"{axis}\.{f.name} of {name} must be .*, not \S+ in my\.yaml", str(raised.value))
    for value in (least, most):
        if value is not None:
            assert getattr(contract.member(axis, name, **{f.name: value}), f.name) == value


@pytest.mark.parametrize(("axis", "name", "f"), OPTIONS)
def test_every_option_counts_in_the_identity_unless_it_says_otherwise(axis: str, name: str, f: Field[Any]) -> None:
    made = contract.member(axis, name)
    other = replace(made, **{f.name: another(kind_of(made, f), f, getattr(made, f.name))})
    if f.metadata["identity"]:
        assert identity(other) != identity(made)
        assert (f.name in identity(made)) != f.metadata["added"]
    else:
        assert identity(other) == identity(made)
        assert f.name not in identity(made)
    assert identity(made)["name"] == name
    assert write(other) != write(made)  # a trial's record keeps what its identity leaves out


@pytest.mark.parametrize(("axis", "name"), MEMBERS)
def test_what_bind_sets_is_no_option(axis: str, name: str) -> None:
    made = contract.member(axis, name)
    others = {f.name for f in fields(made)} - {f.name for f in options(made)}
    assert not others & set(hints(made.__class__))
    for field_name in others:
        with pytest.raises(UserError, match="unknown key"):
            type(made).read({"name": name, field_name: None})
    if axis == "perturbation":
        assert (write(made.bind(contract.LAYOUT)), identity(made.bind(contract.LAYOUT))) == (
            write(made),
            identity(made),
        )


@pytest.mark.multiprocess
def test_planning_with_members_loads_no_torch() -> None:
    code = f"""
import sys
from zo_sweeps.methods import registry
for axis in {contract.AXES}:
    for name, kind in registry.members(axis).items():
        kind.defaults()
        heavy = {{"torch", "numpy", "triton", "transformers"}} & set(sys.modules)
        assert not heavy, f"{{axis}} {{name}} loads {{heavy}}"
print("done")
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert ended.stdout == "done\n", ended.stderr


@dataclass(frozen=True)
class Grown:
    first: int = option(1, "since the beginning")
    second: bool = option(True, "later", added=True)


def test_an_option_that_was_added_counts_only_where_it_is_not_its_default() -> None:
    assert identity(Grown()) == {"first": 1}, "as before it was there"
    assert identity(Grown(second=False)) == {"first": 1, "second": False}
    assert write(Grown()) == {"first": 1, "second": True}


# Reading, beyond the members that there are


@dataclass(frozen=True)
class Inner:
    steps: int = option(3, "how many")
    note: str = option("", "for people", identity=False)


@dataclass(frozen=True)
class Outer:
    inner: Inner = option(Inner, "a part")
    scale: float | None = option(None, "absent, or a factor", above=0)
    rates: tuple[float, ...] = option((), "one per group")
    table: dict[str, int] = option(dict, "by name")
    size: int = option(help="of it", kw_only=True)


def test_nested_parts_lists_and_mappings_are_read_with_their_full_keys() -> None:
    data = {"inner": {"steps": 4}, "scale": 2, "rates": [1, 2.5], "table": {"a": 1}, "size": 7}
    made = read(Outer, data)
    assert made == Outer(Inner(4), 2.0, (1.0, 2.5), {"a": 1}, size=7)
    assert isinstance(made.scale, float)
    assert read(Outer, write(made)) == made
    assert identity(made)["inner"] == {"steps": 4}
    refused: list[tuple[dict[str, Any], str]] = [
        ({"inner": {"step": 4}}, "unknown key 'outer.inner.step' in my.yaml (outer.inner.step)"),
        ({"inner": 4}, "outer.inner=4 has the wrong type in my.yaml (outer.inner)"),
        ({"table": {"a": "x"}}, "outer.table.a='x' has the wrong type"),
        ({"rates": [1, "x"]}, "outer.rates='x' has the wrong type"),
    ]
    for wrong, shown in refused:
        with pytest.raises(UserError) as raised:
            read(Outer, {"size": 7, **wrong}, "outer", located)
        assert shown in str(raised.value)


def test_an_option_without_a_default_must_be_given() -> None:
    with pytest.raises(UserError, match=r"outer\.size is missing in my\.yaml .*; of it"):
        read(Outer, {}, "outer", located)


def test_every_wrong_option_is_listed_in_one_error() -> None:
    with pytest.raises(UserError) as raised:
        Executor.read({"name": "ray", "slotz": 1, "workers": "two", "slots": 0}, "executor", located)
    first, *listed = str(raised.value).splitlines()
    assert first == "3 problems:"
    for line, start in zip(
        listed,
        (
            "  - unknown key 'executor.slotz' in my.yaml",
            "  - executor.workers='two' has the wrong type in my.yaml",
            "  - executor.slots of ray must be at least 1, not 0 in my.yaml",
        ),
        strict=True,
    ):
        assert line.startswith(start)
    assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value)
    with pytest.raises(UserError, match=r"^unknown key 'siz'"):  # not missing as well
        read(Outer, {"siz": 7})


def test_absent_is_a_value_only_where_the_type_says_so() -> None:
    assert read(Outer, {"size": 1, "scale": None}).scale is None
    with pytest.raises(UserError, match="size=None has the wrong type; it must be an integer"):
        read(Outer, {"size": None})


@pytest.mark.parametrize("data", [3, None, {}, {"name": 3}, {"rank": 4}])
def test_a_member_without_a_name_is_refused(data: Any) -> None:
    with pytest.raises(UserError, match=r"schedule names no schedule in my\.yaml"):
        Schedule.read(data, "schedule", located)


def test_an_unknown_member_is_refused_with_the_near_match() -> None:
    with pytest.raises(UserError, match=r"unknown schedule 'liner' in my\.yaml .*did you mean 'linear'\?"):
        Schedule.read({"name": "liner"}, "schedule", located)


def test_a_number_too_large_for_a_float_is_refused() -> None:
    with pytest.raises(UserError, match="is not a finite number"):
        convert(float, 10**400, "lr")


def test_no_two_members_are_one_class() -> None:
    kinds = [contract.kind(axis, name) for axis, name in contract.every()]
    assert len(set(kinds)) == len(kinds)


def test_rows_of_the_contract_are_of_members_that_exist() -> None:
    rows = set(contract.REQUIRED)
    rows |= {("perturbation", name) for name in {*contract.NORMS, *contract.OTHER_BITS_ON_GPU}}
    rows |= {("update", name) for name in {*contract.REFUSING_RATES, *contract.OWN_DECAY}}
    assert rows <= set(contract.every()), f"remove the rows of members that are gone from {contract.FILE}"
