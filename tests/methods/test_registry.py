"""Where members are found (shipped, in a user's folder, in an installed package), and what is said of a bad one."""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from zo_sweeps.core.errors import UserError
from zo_sweeps.core.host import EXTRAS, Extra
from zo_sweeps.methods import registry
from zo_sweeps.methods.definition import identity, own_source, write
from zo_sweeps.methods.schedule import Schedule

pytestmark = pytest.mark.unit
MEMBER = """
from dataclasses import dataclass

from zo_sweeps.methods.definition import option
from zo_sweeps.methods.schedule import Schedule


@dataclass(frozen=True)
class Halving(Schedule):
    every: int = option(10, "steps between halvings", least=1)

    def rate(self, lr, step, steps):
        return lr * 0.5 ** ((step - 1) // self.every)
"""


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The registry as it was: its folders, what it has found, and the modules that it loaded."""
    monkeypatch.setattr(registry, "_folders", ())
    monkeypatch.setattr(sys, "path", list(sys.path))
    modules = set(sys.modules)
    forget()
    yield
    for name in set(sys.modules) - modules:
        if name.startswith(("zo_sweeps_own", "halving_package")):
            del sys.modules[name]
    forget()


def forget() -> None:
    importlib.invalidate_caches()
    for cached in (registry._names, registry._load, registry._run, registry.offered, registry._entry_points):
        cached.cache_clear()


def own(folder: Path, text: str, name: str = "halving") -> Path:
    """A file of the user's own, in a folder that is looked in."""
    file = folder / "schedule" / f"{name}.py"
    file.parent.mkdir(exist_ok=True)
    file.write_text(text)
    registry.use_folders([folder])
    return file


def package(folder: Path, text: str, entry: str = "halving_package:Halving") -> None:
    """An installed package with one entry point."""
    (folder / "halving_package.py").write_text(text)
    info = folder / "halving_package-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: halving-package\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[zo_sweeps.schedule]\nhalving = {entry}\n")
    sys.path.insert(0, str(folder))
    forget()


def assert_it_is_a_member() -> None:
    assert "halving" in registry.names("schedule")
    made = Schedule.read({"name": "halving", "every": 2})
    assert isinstance(made, Schedule)
    assert [made.over(0.8, 6)(step) for step in range(1, 7)] == [0.8, 0.8, 0.4, 0.4, 0.2, 0.2]
    assert write(made) == {"name": "halving", "every": 2}
    assert identity(made) == {**write(made), "source": own_source(type(made))}
    assert Schedule.read("halving") == type(made)()
    with pytest.raises(UserError, match=r"schedule\.every of halving must be at least 1, not 0"):
        Schedule.read({"name": "halving", "every": 0})
    with pytest.raises(UserError, match=r"did you mean 'schedule\.every'\?"):
        Schedule.read({"name": "halving", "evry": 3})


def refused(name: str = "halving") -> str:
    with pytest.raises(UserError) as raised:
        registry.member("schedule", name)
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_a_python_file_in_a_users_folder_is_a_member(tmp_path: Path) -> None:
    own(tmp_path, MEMBER)
    assert_it_is_a_member()
    assert registry.folders() == (tmp_path.resolve(),)


def test_a_folder_is_looked_in_until_others_are_named(tmp_path: Path) -> None:
    assert "halving" not in registry.names("schedule")
    own(tmp_path, MEMBER)
    assert "halving" in registry.names("schedule")
    first = registry.member("schedule", "halving")
    with registry.using_folders([]):
        assert "halving" not in registry.names("schedule")
        refused()
    assert registry.member("schedule", "halving") is first, "a file is run once"


def test_folders_that_are_used_in_turn_may_hold_the_same_name(tmp_path: Path) -> None:
    made = {}
    for folder, factor in ((tmp_path / "a", "0.5"), (tmp_path / "b", "0.25")):
        folder.mkdir()
        own(folder, MEMBER.replace("0.5", factor))
        made[folder] = registry.member("schedule", "halving")
    for folder, factor in ((tmp_path / "a", 0.5), (tmp_path / "b", 0.25)):
        with registry.using_folders([folder]):
            schedule = Schedule.read({"name": "halving", "every": 1})
            assert type(schedule) is made[folder]
            assert schedule.over(1.0, 3)(2) == factor


def test_an_entry_point_of_an_installed_package_is_a_member(tmp_path: Path) -> None:
    package(tmp_path, MEMBER)
    assert_it_is_a_member()


def test_shipped_members_are_still_there_beside_others(tmp_path: Path) -> None:
    before = set(registry.names("schedule"))
    own(tmp_path, MEMBER)
    assert set(registry.names("schedule")) == before | {"halving"}
    assert registry.member("schedule", "linear").name == "linear"


def test_files_that_begin_with_an_underscore_are_no_members(tmp_path: Path) -> None:
    own(tmp_path, MEMBER, name="_halving")
    assert "_halving" not in registry.names("schedule")
    assert "_encoded" not in registry.names("precision")


def test_a_name_that_is_none_is_refused_with_the_near_match(tmp_path: Path) -> None:
    own(tmp_path, MEMBER)
    assert "did you mean 'halving'?" in refused("halvin")
    with pytest.raises(UserError, match=r"unknown axis 'schedul'.*did you mean 'schedule'\?"):
        registry.names("schedul")


def test_a_file_with_two_public_classes_is_refused_in_a_line_that_names_it(tmp_path: Path) -> None:
    file = own(tmp_path, MEMBER + "\n\n@dataclass(frozen=True)\nclass Other(Schedule):\n    pass\n")
    assert refused() == f"it must define exactly one public schedule class, but defines Halving, Other in {file}"


def test_a_file_without_a_class_is_refused_in_a_line_that_names_it(tmp_path: Path) -> None:
    file = own(tmp_path, "x = 1\n")
    assert refused() == f"it must define exactly one public schedule class, but defines none in {file}"


def test_a_private_base_in_the_same_file_does_not_count(tmp_path: Path) -> None:
    own(tmp_path, MEMBER.replace("class Halving(Schedule)", "class _Base(Schedule)") + (
        "\n\n@dataclass(frozen=True)\nclass Halving(_Base):\n    pass\n"
    ))  # fmt: skip
    assert_it_is_a_member()


def test_a_class_of_another_axis_is_refused(tmp_path: Path) -> None:
    text = MEMBER.replace("methods.schedule import Schedule", "methods.update import Update as Schedule")
    file = own(tmp_path, text)
    assert refused() == f"Halving is a member of the axis update, not schedule in {file}"


def test_a_class_that_is_no_dataclass_is_refused_since_its_options_would_be_none(tmp_path: Path) -> None:
    file = own(tmp_path, MEMBER.replace("@dataclass(frozen=True)\n", ""))
    assert refused() == f"Halving is not a dataclass in {file}; put @dataclass(frozen=True) above it"


def test_a_syntax_error_is_one_line_with_its_place(tmp_path: Path) -> None:
    file = own(tmp_path, "def rate(:\n")
    said = refused()
    assert said.startswith("cannot load it (SyntaxError: ")
    assert "line 1" in said
    assert said.endswith(f"in {file}")


def test_an_error_while_loading_is_one_line_however_many_it_has(tmp_path: Path) -> None:
    file, before = own(tmp_path, "raise RuntimeError('one\\ntwo')\n"), set(sys.modules)
    assert refused() == f"cannot load it (RuntimeError: one two) in {file}"
    assert not [name for name in sys.modules if name.startswith("zo_sweeps_own") and name not in before]


def test_an_entry_point_that_cannot_be_loaded_is_one_line_with_its_package(tmp_path: Path) -> None:
    package(tmp_path, "import nonesuch_library\n")
    place = "entry point halving of zo_sweeps.schedule (halving_package:Halving)"
    assert refused() == f"cannot load it (ModuleNotFoundError: No module named 'nonesuch_library') in {place}"


def test_an_entry_point_that_is_no_member_is_refused(tmp_path: Path) -> None:
    package(tmp_path, "def Halving():\n    pass\n")
    place = "entry point halving of zo_sweeps.schedule (halving_package:Halving)"
    assert refused() == f"it must be a class of the axis schedule in {place}"


def test_an_entry_point_to_a_shipped_member_does_not_rename_it(tmp_path: Path) -> None:
    package(tmp_path, "", entry="zo_sweeps.engine.schedules.linear:Linear")
    assert refused().startswith("Linear is shipped as 'linear' in entry point halving")
    assert registry.member("schedule", "linear").name == "linear"


def test_a_member_with_anothers_name_is_refused_and_not_passed_over(tmp_path: Path) -> None:
    """The other would run under a file that says otherwise."""
    file = own(tmp_path, MEMBER, name="linear")
    assert refused("linear") == f"the schedule 'linear' already exists in {file}; give it another name"
    package(tmp_path, MEMBER)
    file = own(tmp_path, MEMBER)
    assert refused() == f"the schedule 'halving' already exists in {file}; give it another name"


@pytest.mark.parametrize(
    ("extra", "group", "name"),
    [(extra, group, name) for extra in EXTRAS for group, every in extra.offers.items() for name in every],
)
def test_what_a_package_of_this_project_offers_is_there_or_says_what_to_install(
    extra: Extra, group: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert registry.load(registry.offered(group)[name]).__module__.startswith(f"{extra.module}.")
    assert registry.absent(group, name) is None
    monkeypatch.setattr(registry.metadata, "entry_points", lambda: importlib.metadata.EntryPoints(()))
    forget()
    missing = registry.absent(group, name)
    assert missing is not None
    assert missing.fix == f"pip install 'zo-sweeps[{extra.name}]'"
    assert registry.absent(group, "another") is None


@pytest.mark.parametrize("extra", EXTRAS, ids=lambda extra: extra.name)
def test_all_that_a_package_of_this_project_offers_is_known_where_it_is_not_installed(extra: Extra) -> None:
    points = importlib.metadata.distribution(extra.distribution).entry_points
    offered = {(point.group, point.name) for point in points}
    assert offered == {(f"zo_sweeps.{group}", name) for group, every in extra.offers.items() for name in every}
