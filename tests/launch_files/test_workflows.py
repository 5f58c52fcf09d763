"""The public workflows: pinned actions, few rights, commands that exist; and what a release asks of its tag."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import REPO

pytestmark = pytest.mark.unit
WORKFLOWS = sorted((REPO / ".github" / "workflows").glob("*.yml"))


def workflow(path: Path) -> dict[str, Any]:
    return {str(key): value for key, value in yaml.safe_load(path.read_text()).items()}  # YAML reads `on` as true


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_pins_its_actions_and_has_no_right_that_it_does_not_name(path: Path) -> None:
    document = workflow(path)
    assert document["permissions"] in ({}, {"contents": "read"})
    for name, job in document["jobs"].items():
        rights = job.get("permissions", document["permissions"])
        assert set(rights.values()) <= {"read", "write"}
        if any(value == "write" for value in rights.values()):
            assert (path.stem, name) in {("docs", "deploy"), ("images", "cluster"), ("images", "cuda")} | {
                ("release", one) for one in ("images", "pypi", "github")
            }
        assert "uses" in job or job["timeout-minutes"] <= 60
        for step in job.get("steps", []):
            if "uses" in step:
                assert re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", step["uses"]), step
    for line in re.findall(r"uses: (?!\./).*", path.read_text()):
        assert re.search(r"# v\d+\.\d+\.\d+$", line), "the version of the commit, for people and dependabot"


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_what_a_workflow_names_is_there(path: Path) -> None:
    text = path.read_text()
    targets = re.findall(r"^([\w./$()-]+):.*##", (REPO / "Makefile").read_text(), re.MULTILINE)
    for target in re.findall(r"make (\w+)", text):
        assert target in targets
    for name in re.findall(r"(?:docker|\.ci|tests|docs)/[\w./-]+\.\w+", text):
        assert (REPO / name).is_file(), name


def test_nothing_is_published_before_it_was_installed_and_tried() -> None:
    jobs = workflow(REPO / ".github" / "workflows" / "release.yml")["jobs"]
    assert jobs["install"]["needs"] == "packages"
    assert jobs["pypi"]["needs"] == ["install", "images"]
    assert jobs["pypi"]["permissions"] == {"id-token": "write"}, "trusted publishing: no token"
    assert jobs["github"]["needs"] == "pypi"
    assert "secrets." not in (REPO / ".github" / "workflows" / "release.yml").read_text()


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy of what a release reads, at version 1.2.3, ready to be released."""
    for name in (".ci/release.py", "zo_sweeps/core/host.py", "CITATION.cff"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(REPO / name, tmp_path / name)
    for name, old in (("zo_sweeps/core/host.py", r'(VERSION = )".*"'), ("CITATION.cff", r"(?m)^(version: ).*")):
        file = tmp_path / name
        new = r'\1"1.2.3"' if name.endswith(".py") else r"\g<1>1.2.3"
        file.write_text(re.sub(old, new, file.read_text()))
    log = "# Changelog\n\n## [1.2.3] - 2026-12-01\n### Added\n- A thing.\n\n## [1.2.2] - 2026-11-01\n- Another.\n"
    (tmp_path / "CHANGELOG.md").write_text(log)
    return tmp_path


def notes(project: Path, tag: str) -> tuple[str, str]:
    sys.path.insert(0, str(project / ".ci"))
    try:
        import release

        return release.notes(tag, project), ""
    except ValueError as error:
        return "", str(error)
    finally:
        sys.path.pop(0)
        sys.modules.pop("release", None)


def test_a_release_has_the_notes_of_its_version(project: Path) -> None:
    assert notes(project, "v1.2.3") == ("### Added\n- A thing.\n", "")


@pytest.mark.parametrize(
    ("file", "old", "new", "tag", "said"),
    [
        ("CHANGELOG.md", "", "", "v1.2.4", "the tag is v1.2.4, and zo_sweeps/core/host.py says 1.2.3"),
        ("CHANGELOG.md", "", "", "1.2.3", "the tag is 1.2.3"),
        ("CHANGELOG.md", "2026-12-01", "unreleased", "v1.2.3", "CHANGELOG.md says 'unreleased' for 1.2.3"),
        ("CHANGELOG.md", "[1.2.3]", "[1.2.9]", "v1.2.3", "CHANGELOG.md has no section for 1.2.3"),
        ("CITATION.cff", "version: 1.2.3", "version: 1.2.2", "v1.2.3", "CITATION.cff has another version"),
    ],
)
def test_a_tag_that_is_no_release_is_refused(project: Path, file: str, old: str, new: str, tag: str, said: str) -> None:
    path = project / file
    path.write_text(path.read_text().replace(old, new))
    found, error = notes(project, tag)
    assert not found
    assert error.startswith(said)
