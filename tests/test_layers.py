"""The layers of the design, read off the import statements, and what importing the light modules costs."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[1]
PACKAGE = REPO / "zo_sweeps"
NAME = PACKAGE.name
# Lower floors first. Rooms of one floor do not import each other.
FLOORS = (
    {"core"},
    {"methods"},
    {"engine", "models", "tasks", "devices", "record", "tables"},
    {"config"},
    {"plan"},
    {"run"},
    {"schedule"},
    {"results"},
    {"session"},
    {"cli"},
)
# MeZO draws its seeds from numpy, and who wants its bits must too; 4-bit codes and 8-bit Adam are bitsandbytes'.
ALSO = {
    "engine/perturbations/mezo_compat.py": {"numpy"},
    "engine/codes/four_bit.py": {"bitsandbytes"},
    "engine/updates/adam_8bit.py": {"bitsandbytes"},
}
AXES = {"estimators", "perturbations", "spaces", "precisions", "updates", "objectives"}
ONLY_IN = {
    "ray": set(),
    "aiohttp": set(),
    "cryptography": {"record/archive.py"},
    "mlflow": set(),
    "wandb": set(),
    "tensorboard": set(),
    "hydra": {"config/"},
    "omegaconf": {"config/"},
    "transformers": {"models/", "tasks/", "session/trainer.py"},
    "datasets": {"tasks/"},
    "executorch": set(),
    "torchao": set(),
    "bitsandbytes": {"engine/codes/", "engine/updates/adam_8bit.py"},
}
LIGHT = (
    "zo_sweeps.plan.build",
    "zo_sweeps.tables",
    "zo_sweeps.schedule.sweep",
    "zo_sweeps.cli.main",
    "zo_sweeps.cli.status",
)
HEAVY = {"torch", "ray", "mlflow", "wandb"}
HEAVY |= {"transformers", "datasets", "bitsandbytes", "accelerate", "executorch", "torchao"}
OF_SWEEPS = {"ray", "mlflow", "hydra", "omegaconf", "datasets"}  # which a machine that only measures need not have
# Names of Ray that are not its public interface, as imports or as texts (import_module, `python -m`).
PRIVATE_RAY = re.compile(r"ray\.(_\w+|core|experimental|scripts|gcs_utils|dashboard)\b|internal_kv")
STANDARD_LIBRARY = set(sys.stdlib_module_names)
FILES = sorted(path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py"))
LEAGUE = REPO / "packages/league/zo_sweeps_league"  # members of the engine's axes
ENGINE = [(file, PACKAGE) for file in FILES if file.startswith("engine/")]
ENGINE += [(path.relative_to(LEAGUE).as_posix(), LEAGUE) for path in sorted(LEAGUE.rglob("*.py"))]
PACKAGES = [PACKAGE, *sorted(REPO.glob("packages/*/zo_sweeps_*"))]
# Distributions of their own, found by entry points -> those of them that they import.
APART: dict[str, set[str]] = {
    "agent": {"bench", "edge", "ray"},
    "bench": {"ray", "tracking"},
    "demo": set(),
    "edge": {"bench"},
    "federated": set(),
    "league": set(),
    "ray": {"tracking"},
    "report": set(),
    "rtl": set(),
    "tracking": set(),
}


@cache
def imported(file: str, package: Path = PACKAGE) -> list[tuple[str, int]]:
    """Full names of what a file imports anywhere in it, type-checking blocks and functions included, with the line."""
    module, found = [package.name, *file.removesuffix(".py").split("/")], []
    for node in ast.walk(ast.parse((package / file).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [(alias.name, node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = module[: -node.level] if node.level else []
            parent = ".".join([*base, *([node.module] if node.module else [])])
            found += [(f"{parent}.{alias.name}", node.lineno) for alias in node.names]
    return found


def room(name: str) -> str:
    """The room of a dotted name or a file of the package; "" for the package itself (its version)."""
    parts = name.removesuffix(".py").replace("/", ".").split(".")
    parts = parts[1:] if parts[0] == NAME else parts
    return parts[0] if parts and parts[0] in ROOMS else ""


ROOMS = {rooms for floor in FLOORS for rooms in floor}
FLOOR = {name: height for height, floor in enumerate(FLOORS) for name in floor}


def inside(file: str, places: set[str]) -> bool:
    return any(file == place or (place.endswith("/") and file.startswith(place)) for place in places)


def test_every_module_has_a_floor() -> None:
    assert {file.split("/")[0] for file in FILES} - ROOMS == {"__init__.py", "__main__.py"}


def test_a_room_imports_lower_rooms_only() -> None:
    wrong = []
    for file in FILES:
        mine = room(file)
        top = FLOOR.get(mine, len(FLOORS))  # __init__ and __main__ lead to the rooms
        for name, line in imported(file):
            other = room(name) if name.split(".")[0] == NAME else ""
            if other and other != mine and FLOOR[other] >= top:
                wrong.append(f"{file}:{line} imports {name}")
    assert not wrong


def test_packages_import_zo_sweeps_and_are_never_imported_by_it() -> None:
    assert {path.parent.name for path in REPO.glob("packages/*/pyproject.toml")} == {*APART}
    own = {*(f"{NAME}_{name}" for name in APART)}
    assert not [(file, name) for file in FILES for name, _ in imported(file) if name.split(".")[0] in own]
    for package, known in APART.items():
        folder = REPO / "packages" / package / f"{NAME}_{package}"
        files = [path.relative_to(folder).as_posix() for path in folder.rglob("*.py")]
        found = {name.split(".")[0] for file in files for name, _ in imported(file, folder)}
        assert found & own <= {f"{NAME}_{name}" for name in (package, *known)}
        assert NAME in found


def test_the_engine_knows_torch_and_itself() -> None:
    ours = (f"{NAME}.engine", f"{NAME}.methods", f"{NAME}.core", LEAGUE.name)
    wrong = [
        f"{file}:{line} imports {name}"
        for file, folder in ENGINE
        for name, line in imported(file, folder)
        if name.split(".")[0] not in STANDARD_LIBRARY | {"torch", "triton"} | ALSO.get(file, set())
        and not name.startswith(ours)
    ]
    assert not wrong


def test_a_member_of_an_axis_knows_no_other_axis_and_nothing_above() -> None:
    above = {"evaluate", "step", "train", "replay", "first_order"}
    wrong = [
        f"{file}:{line} imports {name}"
        for file, folder in ENGINE
        if (axis := (folder / file).parent.name) in AXES
        for name, line in imported(file, folder)
        if (found := re.match(rf"(?:{NAME}\.engine|{LEAGUE.name})\.(\w+)", name))
        and found[1] in above | AXES
        and found[1] != axis
    ]
    assert not wrong


@pytest.mark.parametrize("library", ONLY_IN)
def test_a_library_appears_in_one_place(library: str) -> None:
    found = {file for file in FILES for name, _ in imported(file) if name.split(".")[0] == library}
    assert {file for file in found if not inside(file, ONLY_IN[library])} == set()


def test_nothing_is_unpickled() -> None:
    """Checkpoints, journals and messages are data: what reads Python objects runs what a stranger wrote."""
    libraries = {"pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}
    every = [(folder, path.relative_to(folder).as_posix()) for folder in PACKAGES for path in folder.rglob("*.py")]
    found = [(file, name) for folder, file in every for name, _ in imported(file, folder)]
    assert not [(file, name) for file, name in found if name.split(".")[0] in libraries]
    calls = re.compile(r"torch\.load\(|allow_pickle|weights_only=False|trust_remote_code=True")
    assert not [file for folder, file in every if calls.search((folder / file).read_text(encoding="utf-8"))]


def test_private_ray_appears_in_one_module() -> None:
    every = [path for folder in PACKAGES for path in folder.rglob("*.py")]
    found = [path for path in every if PRIVATE_RAY.search(path.read_text(encoding="utf-8"))]
    assert found == [REPO / "packages/ray/zo_sweeps_ray/private.py"]


def test_ray_is_pinned_to_the_minor_version_that_its_private_parts_were_tested_with() -> None:
    project = (REPO / "packages/ray/pyproject.toml").read_text(encoding="utf-8")
    locked = re.search(r"^ray==(\d+)\.(\d+)\.", (REPO / "constraints.txt").read_text(), re.MULTILINE)
    assert locked
    major, minor = map(int, locked.groups())
    assert f'"ray[default]>={major}.{minor},<{major}.{minor + 1}"' in project


def test_the_vocabulary_is_standard_library() -> None:
    for file in FILES:
        types = {"torch"} if file.startswith("methods/") else set()  # of annotations: see LIGHT
        if file.startswith(("core/", "methods/")):
            assert {name.split(".")[0] for name, _ in imported(file)} <= STANDARD_LIBRARY | {NAME} | types


@pytest.mark.multiprocess
@pytest.mark.parametrize(
    ("module", "heavy"),
    [*((module, HEAVY) for module in LIGHT), ("zo_sweeps_bench.gpu, zo_sweeps_bench.command", OF_SWEEPS)],
)
def test_importing_a_light_module_loads_nothing_heavy(module: str, heavy: set[str]) -> None:
    code = f"import sys, {module}; print(' '.join(sorted({{name.split('.')[0] for name in sys.modules}})))"
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=90).stdout
    assert set(loaded.split()) & heavy == set()


def test_an_upward_import_would_be_seen() -> None:
    """The walk itself: names resolve, relative ones too, and function-level imports count."""
    assert "zo_sweeps.models.identity.status" in {name for name, _ in imported("plan/availability.py")}
    assert room("zo_sweeps.models.identity.status") == "models"
    assert room("engine/spaces/full.py") == "engine"
