"""Test packages of packages/ alone: each in a fresh environment, without the others that it does not name.

    python .ci/alone.py                 # every one
    python .ci/alone.py federated ray

Besides zo-sweeps and the test tools (the group `dev`) an environment has what the package's pyproject.toml names, and
what its group `test` adds: other packages that only its tests use. Needs Python 3.11.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import tomllib

ROOT = Path(__file__).resolve().parent.parent


def editable(name: str, *, tested: bool = False) -> dict[str, str]:
    """Folder -> extras, of a package and all that it needs of packages/; `tested`: what its tests need too."""
    told = tomllib.loads((ROOT / "packages" / name / "pyproject.toml").read_text())
    needs = [*told["project"]["dependencies"], *(told.get("dependency-groups", {}).get("test", []) if tested else [])]
    found = {name: ""}
    for need in needs:
        if match := re.match(r"zo-sweeps-(\w+)(\[.*\])?", need):
            found |= editable(match[1]) | {match[1]: match[2] or ""}
    return found


def test(name: str) -> bool:
    """Install a package and run its tests; whether they pass."""
    print(f"== {name}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        python = f"{folder}/bin/python"
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", "--constraint", "constraints.txt", "uv"], check=True)
        folders = [f"packages/{one}{extras}" for one, extras in editable(name, tested=True).items()]
        given = [part for one in (".", *folders) for part in ("--editable", one)]
        install = [f"{folder}/bin/uv", "pip", "install", "--quiet", "--python", python]
        subprocess.run([*install, "--constraint", "constraints.txt", *given, "--group", "dev"], check=True)
        run = [python, "-m", "pytest", "-n", "2", "--dist", "loadfile", "-q", f"packages/{name}"]
        return subprocess.run(run).returncode == 0


if __name__ == "__main__":
    os.chdir(ROOT)
    names = sys.argv[1:] or [path.parent.name for path in sorted(ROOT.glob("packages/*/pyproject.toml"))]
    sys.exit(f"failed: {', '.join(failed)}" if (failed := [name for name in names if not test(name)]) else 0)
