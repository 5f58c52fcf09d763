"""Write constraints.txt: resolve the project afresh on each interpreter given and merge what pip chose.

    python .ci/lock.py python3.10 python3.11

The last interpreter gives the pins. An earlier one that had to choose otherwise gets lines of its own, with a marker.
CUDA's libraries and triton are left out: torch pins those itself, differently for each of its builds.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = [str(path.parent) for path in sorted(ROOT.glob("packages/*/pyproject.toml"))]
TORCH = "torch==2.13.0"
HEADER = """\
# The lock: one version of everything in pyproject.toml, its extras and the dev group, for Python 3.10 to 3.13.
# Made by `make lock`: pip resolves on 3.10 and on 3.11, .ci/lock.py merges the two. Do not edit by hand.
"""


def resolve(python: str) -> dict[str, str]:
    """Name -> version of everything that a fresh `make test` and the rewards would install today."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([python, "-m", "venv", folder], check=True)
        run = [f"{folder}/bin/python", "-m", "pip", "install", "--quiet"]
        subprocess.run([*run, "--upgrade", "pip"], check=True)
        report = f"{folder}/report.json"
        root = f"{ROOT}[agents,bench,demo,edge,federated,league,ray,report,rewards,rtl,tensorboard,tracking,wandb]"
        wanted = [TORCH, root, *PACKAGES, "--group", "dev"]
        subprocess.run(
            [*run, "--dry-run", "--report", report, *wanted],
            check=True,
            cwd=ROOT,
        )
        packages = [item["metadata"] for item in json.loads(Path(report).read_text())["install"]]
    chosen = {re.sub(r"[-_.]+", "-", p["name"]).lower(): p["version"].split("+")[0] for p in packages}
    return {name: v for name, v in chosen.items() if not re.match(r"zo-sweeps|nvidia-|cuda-|triton$", name)}


def merge(old: dict[str, str], new: dict[str, str], boundary: str) -> list[str]:
    """Constraint lines: plain where both agree or only the new one has it, with markers where they differ."""
    lines = []
    for name in sorted(old | new):
        if old.get(name, new.get(name)) == new.get(name):
            lines.append(f"{name}=={new[name]}")
            continue
        if name in new:
            lines.append(f'{name}=={new[name]} ; python_version >= "{boundary}"')
        lines.append(f'{name}=={old[name]} ; python_version < "{boundary}"')
    return lines


def main(oldest: str, main_python: str) -> None:
    version = "import sys; print('%d.%d' % sys.version_info[:2])"
    boundary = subprocess.run([main_python, "-c", version], check=True, capture_output=True, text=True).stdout.strip()
    lines = merge(resolve(oldest), resolve(main_python), boundary)
    (ROOT / "constraints.txt").write_text(HEADER + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
