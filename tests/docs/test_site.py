"""The documentation site: what is generated is all there is, and its checks find what they look for.

`make docs` builds the site; these tests do not.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import zo_sweeps
from tests.conftest import REPO
from zo_sweeps import engine
from zo_sweeps.cli.main import commands
from zo_sweeps.methods import registry
from zo_sweeps.methods.definition import options
from zo_sweeps.results.papers import items

pytestmark = pytest.mark.unit
SITE = REPO / "docs" / "site"


@pytest.fixture(scope="module", autouse=True)
def _importable() -> Iterator[None]:
    """The modules of docs/site, which are scripts of the build and in no package."""
    known = set(sys.modules)
    sys.path.insert(0, str(SITE))
    yield
    sys.path.remove(str(SITE))
    for name in {*sys.modules} - known:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(SITE)):
            del sys.modules[name]


def generate(page: str) -> str:
    from generated import fill

    return str(fill((REPO / "docs" / page).read_text(encoding="utf-8")))


def test_every_command_is_there_with_every_argument() -> None:
    text = generate("reference/commands.md")
    assert [line[3:] for line in text.splitlines() if line.startswith("## ")][1:] == [*commands()]
    for argument in (
        "--rerun",
        "--config-dir FOLDER",
        "--out FILE\\|DIR",
        "--gateway-port",
        "revoke NAME",
        "--ca FILE",
    ):
        assert argument in text, argument
    assert "--multirun" not in text, "it is hidden: it only explains itself"


def test_every_member_is_there_with_every_option_its_range_and_default() -> None:
    text = generate("reference/members.md") + generate("reference/configuration.md")
    axes = [axis for axis in registry.PACKAGES if f"<!-- generated: members {axis} -->" in _sources()]
    assert set(axes) == set(registry.PACKAGES)
    for axis in axes:
        for name, member in registry.members(axis).items():
            section = text[text.index(f"\n### {name}\n") :]
            own = [one.name for one in options(member) if "set by the planner" not in one.metadata["help"]]
            assert all(f".{one}`" in section for one in own), (axis, name)
    assert "| `estimator.q`† | integer | ≥ 1 | `1` | query budget: directions per step |" in text
    assert "| `train.eval_every`† | integer | ≥ 1 | `500` | steps between evaluations on dev |" in text
    assert "| `train.effective_batch` | integer |" in text, "it does not count towards the id"
    assert "model.fingerprint" not in text, "the planner's, not the user's"


def _sources() -> str:
    return "".join(path.read_text() for path in (REPO / "docs" / "reference").glob("*.md"))


def test_every_named_choice_is_there() -> None:
    text = generate("reference/names.md")
    for folder in ("grid", "method", "model", "task", "device", "scale", "table"):
        for path in (REPO / "conf" / folder).glob("*.yaml"):
            assert f"| [`{path.stem}`](../../conf/{folder}/{path.name}) |" in text
    assert "| MeZO: all parameters, one two-sided Gaussian direction per step." in text, "the comment of the file"


def test_every_public_name_of_python_is_there() -> None:
    text = generate("reference/python.md")
    for module in (zo_sweeps, engine):
        for name in module.__all__:
            assert f"\n### {module.__name__}.{name}\n" in text
    assert "zo_sweeps.results.dataframe.results" in text, "what a docstring refers to"


def test_every_table_and_figure_of_the_papers_is_there() -> None:
    text = generate("PAPERS.md")
    for item in items():
        assert f"| `{item.reference}` |" in text
        assert all(f"(../conf/grid/{grid}.yaml)" in text for grid in item.grids)
    assert "| ZO-LoRA-FA (q\\>1) | 91.6 | 72.9 | 77.7 | 78.0 | 79.4 | 66.2 |" in text, "P-RGE, Table 1"


PAGE = '<html lang="en"><body id="top"><a href="{}">x</a>{}</body></html>'


@pytest.mark.parametrize(
    ("link", "more", "fault"),
    [
        ("b.html#here", "", None),
        ("https://example.org", '<img src="p.svg" alt="a plot">', None),
        ("gone.html", "", "no such file: gone.html"),
        ("b.html#there", "", "no such place: b.html#there"),
        ("#top", '<img src="p.svg">', "a picture without a description: p.svg"),
        ("#top", '<script src="https://cdn.example/x.js"></script>', "loads https://cdn.example/x.js"),
        ("#top", '<link rel="stylesheet" href="//fonts.example/x.css">', "loads //fonts.example/x.css"),
    ],
)
def test_the_check_of_the_site_finds_what_a_reader_would_miss(
    link: str, more: str, fault: str | None, tmp_path: Path
) -> None:
    from check import faults

    (tmp_path / "a.html").write_text(PAGE.format(link, more))
    (tmp_path / "b.html").write_text('<html lang="en"><p id="here"></p></html>')
    (tmp_path / "p.svg").write_text("<svg/>")
    assert [*faults(tmp_path)] == ([f"a.html: {fault}"] if fault else [])


def test_every_path_that_a_page_names_is_there() -> None:
    pages = [*REPO.glob("*.md"), *REPO.glob("packages/*/README.md"), *(REPO / "docs").rglob("*.md"), REPO / "llms.txt"]
    named = r"`((?:zo_sweeps|tests|conf|docs|packages|examples)/[a-z0-9_./-]+\.(?:py|ya?ml|md|sh|json))`"
    for page in pages:
        for path in re.findall(named, page.read_text(encoding="utf-8")):
            assert (REPO / path).exists() or (page.parent / path).exists(), f"{page}: {path}"


def test_plain_text_stays_plain_in_markdown() -> None:
    from markdown import escape

    assert escape("E[z z^T] = I, `a_b`, x_i < |y|") == "E\\[z z\\^T\\] = I, `a_b`, x\\_i \\< \\|y\\|"
