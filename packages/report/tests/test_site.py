"""The site of a state folder: its pages, what it may write over, and what a browser makes of it."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.results.common import composed, fill
from tests.results.pages import Page
from zo_sweeps.cli.main import main
from zo_sweeps.config.composer import Composer
from zo_sweeps.core.errors import UserError
from zo_sweeps.core.trial import TrialState
from zo_sweeps.plan.build import Plan
from zo_sweeps.record.sweep_book import Command, remember
from zo_sweeps.results import past_sweeps
from zo_sweeps.results import tables as readout
from zo_sweeps.schedule.ledger import Ledger, read_standing
from zo_sweeps_report.paired import differences
from zo_sweeps_report.site import COMPARE, INDEX, MARK, write_site

CHROMIUM = shutil.which("chromium")
QUIET = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Composer, Plan, Path]:
    """A state folder with a sweep, and its site."""
    folder = tmp_path_factory.mktemp("site")
    composer, plan = composed(folder)
    fill(plan, folder)
    past_sweeps.save(plan, composer, folder / "state", "0123456789")
    remember(folder / "state", "0123456789", plan.name, Command(("+grid=tiny",), (str(folder / "conf"),)))
    assert write_site(folder / "state", folder / "out" / "site").index.is_file()
    return composer, plan, folder


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.unit
def test_a_site_is_an_index_a_page_per_sweep_and_a_comparison_that_load_only_what_is_beside_them(
    swept: tuple[Composer, Plan, Path],
) -> None:
    site = swept[2] / "out" / "site"
    pages = sorted(site.rglob("*.html"))
    names = [str(page.relative_to(site)) for page in pages if page.parent.name != "tiny-01234567_trials"]
    assert names == [COMPARE, INDEX, "reports/tiny-01234567.html"]
    assert len(pages) == len(names) + len(swept[1].every) + 1
    for path in pages:
        page = Page(path.read_text(encoding="utf-8"))
        assert page.faults() == []
        assert page.policy_faults() == []
        linked = {given["href"] for given, _ in page.all("a") if not given["href"].startswith(("#", "data:"))}
        for name in page.loaded() | linked:
            assert (path.parent / name).resolve().is_relative_to(site.resolve())
            assert (path.parent / name).is_file(), name
    assert not [name for name, data in files(site).items() if b"://" in data]
    (entry,) = [text for given, text in Page((site / INDEX).read_text(encoding="utf-8")).all("li")]
    assert "A & B <compared>" in entry
    assert "19 trials: 17 succeeded, 1 diverged, 1 failed" in " ".join(entry.split())


@pytest.mark.unit
def test_the_same_results_give_the_same_site_and_a_page_of_a_sweep_that_is_gone_goes(
    swept: tuple[Composer, Plan, Path],
) -> None:
    state, site = swept[2] / "state", swept[2] / "out" / "site"
    before = files(site)
    (site / "reports" / "gone-1.html").write_text("an old sweep's")
    (site / MARK).write_text(json.dumps([*json.loads(before[MARK]), "reports/gone-1.html"]))
    write_site(state, site)
    assert files(site) == before


@pytest.mark.unit
@pytest.mark.parametrize("mark", [None, "{}", '["../a.txt"]', '["reports/../../a.txt"]', "not json"])
def test_a_folder_with_other_content_is_left_alone(
    swept: tuple[Composer, Plan, Path], tmp_path: Path, mark: str | None
) -> None:
    (tmp_path / "a.txt").write_text("mine")
    target = tmp_path if mark is None else tmp_path / "site"
    if mark is not None:
        target.mkdir()
        (target / MARK).write_text(mark)
    before = files(tmp_path)
    with pytest.raises(UserError, match="has other content than a site"):
        write_site(swept[2] / "state", target)
    assert files(tmp_path) == before


@pytest.mark.unit
def test_a_state_folder_without_a_result_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nothing has been run"):
        write_site(tmp_path / "state", tmp_path / "site")
    with Ledger(tmp_path / "state") as ledger:
        ledger.write("a" * 16, TrialState.RUNNING, attempt=1)
    with pytest.raises(UserError, match="no trial has finished"):
        write_site(tmp_path / "state", tmp_path / "site")
    assert not (tmp_path / "site").exists()


@pytest.mark.unit
def test_the_command_writes_the_site_and_says_what_it_needs(
    swept: tuple[Composer, Plan, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = f"state_dir={swept[2] / 'state'}"
    assert main(["report", "--all", "--out", str(tmp_path / "site"), state]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'site' / INDEX}   1 sweep\n"
    for given in (["--all"], ["--out", "x"], ["--all", "--out", "x", "--output", "y.html"]):
        assert main(["report", *given, state]) == 2
        assert "a site is written by --all --out DIR" in capsys.readouterr().err


@pytest.mark.multiprocess
@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")
def test_a_browser_sorts_draws_and_compares_as_the_tables_do(swept: tuple[Composer, Plan, Path]) -> None:
    composer, plan, folder = swept

    def shown(name: str) -> str:
        address = (folder / "out" / "site" / name).as_uri()
        command = [str(CHROMIUM), *QUIET, f"--user-data-dir={folder / 'browser'}", "--virtual-time-budget=3000"]
        return subprocess.run([*command, "--dump-dom", address], capture_output=True, text=True, timeout=120).stdout

    report = shown("reports/tiny-01234567.html")
    assert 'aria-sort="none"><button type="button">' in report
    assert "<canvas" in report
    assert '<p class="fallback" hidden="">' in report
    compared = " ".join(shown(COMPARE).split())
    (each,) = differences(readout.tables(plan, composer, read_standing(folder / "state"))[0])
    assert each.low is not None
    assert each.high is not None
    text = f"<b>{each.mean:+.1f}</b><span>[{each.low:+.1f}, {each.high:+.1f}] seeds 0, 1, 2</span>"
    assert text.replace("-", "−") in compared
