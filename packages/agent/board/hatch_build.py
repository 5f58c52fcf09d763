"""The files of a board's wheel: the agent, and what runs a trial; nothing of plans, sweeps, heads and tables.

tests/test_wheel.py runs what is here without the rest. The demo model's weights come from the head, as any model's do.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.core import load_toml
from hatchling.metadata.plugin.interface import MetadataHookInterface

AGENT = Path(__file__).resolve().parents[1] / "zo_sweeps_agent"
REPO = AGENT.parents[2]
RAY = REPO / "packages/ray/zo_sweeps_ray"
FOLDERS = ("core", "devices", "engine", "methods", "models", "run", "tasks")
FILES = (
    "__init__",
    *("cli/__init__", "cli/parser", "cli/text"),
    "plan/__init__",
    *("record/__init__", "record/journal", "record/spent"),
    "results/__init__",
    *("schedule/__init__", "schedule/backend", "schedule/placement"),
)
OF_AGENT = ("__init__", "agent_facts", "codes", "command", "known_answers", "lease_contents", "protocol")
OF_RAY = ("__init__", "cluster", "node", "systemd")  # these import no Ray
NOT = {"model.safetensors"}
NOT_MEMBERS = ("zo_sweeps.command", "zo_sweeps.benchmark")


class Members(MetadataHookInterface):
    """Offers the members of the axes that the packages in the wheel have, and not their commands."""

    def update(self, metadata: dict[str, Any]) -> None:
        members = metadata.setdefault("entry-points", {})
        for package in ("edge", "federated", "league"):
            offered = load_toml(str(REPO / f"packages/{package}/pyproject.toml"))["project"]["entry-points"]
            for group, points in offered.items():
                if group not in NOT_MEMBERS:
                    members.setdefault(group, {}).update(points)


class Files(BuildHookInterface[Any]):
    """Adds them to the wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        whole = REPO / "zo_sweeps"
        edge = REPO / "packages/edge/zo_sweeps_edge"  # programs of trials, where the board has torch and ExecuTorch
        federated = REPO / "packages/federated/zo_sweeps_federated"  # a board is a client of rows that it keeps
        league = REPO / "packages/league/zo_sweeps_league"
        paths = {whole / f"{file}.py": f"zo_sweeps/{file}.py" for file in FILES}
        paths |= {AGENT / f"{file}.py": f"zo_sweeps_agent/{file}.py" for file in OF_AGENT}
        paths |= {RAY / f"{file}.py": f"zo_sweeps_ray/{file}.py" for file in OF_RAY}
        paths |= {REPO / "LICENSE": "zo_sweeps/LICENSE", AGENT / "__main__.py": "zo_sweeps/__main__.py"}
        folders = {whole / name: f"zo_sweeps/{name}" for name in FOLDERS}
        folders |= {REPO / "conf/device": "zo_sweeps/conf/device"}
        folders |= {AGENT / "agent": "zo_sweeps_agent/agent", edge: "zo_sweeps_edge"}
        folders |= {federated: "zo_sweeps_federated", league: "zo_sweeps_league"}
        for folder, there in folders.items():
            for path in folder.rglob("*"):
                if path.is_file() and path.parent.name != "__pycache__" and path.name not in NOT:
                    paths[path] = f"{there}/{path.relative_to(folder).as_posix()}"
        build_data["force_include"] |= {str(path): name for path, name in sorted(paths.items())}
