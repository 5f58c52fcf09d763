"""The launch files, and the commands of this project in them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from tests.conftest import REPO

JOBS, DOCKER = REPO / "jobs", REPO / "docker"
SCRIPTS = sorted([*JOBS.glob("*.sh"), *DOCKER.glob("*.sh")])
UNITS = sorted(JOBS.rglob("*.service"))
DOCKERFILES = sorted(DOCKER.glob("*.Dockerfile"))
FILES = sorted(path for folder in (JOBS, DOCKER) for path in folder.rglob("*") if path.is_file())
FILES = [path for path in FILES if DOCKER / "secrets" not in path.parents]
OVERRIDES = '"$@"'  # what the caller adds
VALUES = {  # of the variables in command lines
    "ZO_HEAD": "10.0.0.5:6379",
    "ZO_HOST": "10.0.0.5",
    "ZO_DEVICE": "jetson-orin-nano",
    "CREDENTIALS_DIRECTORY": "/run/credentials/zo-sweeps-worker.service",
    "RAY_ADDRESS": "10.0.0.5:6379",
    "nodes[0]": "node-1",
    "port": "6379",
    "device": "cuda",
    "token": "/shared/.zo-job/ray_token",
    "job": "/shared/.zo-job",
    "node": "node-2",
    "cpus": "8",
    "gpus": "1",
    "grid": "quickstart",
}


def documents(path: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(path.read_text(encoding="utf-8")))


def compose() -> dict[str, Any]:
    (document,) = documents(DOCKER / "compose.yaml")
    return document


def commands(path: Path) -> list[list[str]]:
    """The arguments of each command of ours in a script, a unit, a Kubernetes or compose file or a README."""
    found = [_words(line) for line in _lines(path.read_text(encoding="utf-8"))]
    if path.name == "compose.yaml":
        ours = (service for service in compose()["services"].values() if service["image"].startswith("zo-sweeps:"))
        found += [service["command"] for service in ours if "entrypoint" not in service]
    return found


def _lines(text: str) -> Iterator[str]:
    """What follows the name of our command, up to the end of the shell's command."""
    text = re.sub(r"\\\n(?:#)?\s*", " ", text)
    for line in text.splitlines():
        for match in re.finditer(r"(?:^|[ /'`])(?:python -m zo_sweeps|zo-sweeps) ((?![-|])[^#`]*)", line):
            rest = re.split(r"' | (?:&|\|\||&&|>)(?: |$)|;|'$", match[1])[0]
            if re.match(r"(head|worker|[+~]?[\w.]+=|\"\+|\"\$@\")", rest):
                yield rest


def _words(line: str) -> list[str]:
    line = line.replace(OVERRIDES, "+grid=quickstart" if "+grid" not in line else "scale=smoke")
    line = re.sub(r"\$\{?(\w+(?:\[0\])?)\}?", lambda name: VALUES[name[1]], line)
    return shlex.split(line)
