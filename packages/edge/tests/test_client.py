"""The light client: its log is the one of Python's bindings to the bit, also after kills; bad input gets one line."""

from __future__ import annotations

import fcntl
import hashlib
import json
import random
import shutil
import subprocess
from contextlib import suppress
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import toy
from reference import Reference, log_of
from zo_sweeps.engine.perturbations.pezo_onthefly import PeZOOnTheFly
from zo_sweeps.engine.perturbations.pezo_pool import PeZOPool
from zo_sweeps.methods.evaluation import Mode
from zo_sweeps.methods.points import Layout
from zo_sweeps_edge.build_client import SOURCES
from zo_sweeps_edge.bundle import read
from zo_sweeps_edge.pezo_noise import PooledNoise, RegisterNoise

pytestmark = pytest.mark.multiprocess


def run(client: Path, *arguments: object, status: int = 0, warns: bool = False) -> str:
    """Run the client; return the single line that it prints on an error, or as a warning."""
    done = subprocess.run([client, *map(str, arguments)], capture_output=True, text=True, timeout=120)
    assert done.returncode == status, done.stderr
    assert len(done.stderr.splitlines()) == (status != 0 or warns), done.stderr
    return done.stderr.strip()


@pytest.mark.parametrize(
    ("mode", "q", "rows", "slots"),
    [
        (Mode.BOTH, 2, 1, 2),
        pytest.param(
            Mode.INNER, 1, 2, 1, marks=pytest.mark.long
        ),  # the client reads as many points as BOTH has it read
        pytest.param(Mode.OUTER, 2, 1, 3, marks=pytest.mark.long),
        pytest.param(Mode.SEQUENTIAL, 3, 1, 2, marks=pytest.mark.long),
    ],
)
def test_the_log_is_the_one_of_the_bindings(
    client: Path, tmp_path: Path, mode: Mode, q: int, rows: int, slots: int
) -> None:
    bundle = toy.write(tmp_path / "bundle", mode, q, rows, slots)
    run(client, bundle.folder)
    log, expected = log_of(bundle.folder), Reference(bundle).run()
    assert log == expected
    assert len({tuple(line["coefs"]) for line in log if line["type"] == "step"}) == toy.STEPS


@pytest.mark.parametrize(
    ("mode", "kind", "member"),
    [
        (Mode.BOTH, PooledNoise, PeZOPool(k=6, advance="coprime")),
        pytest.param(Mode.SEQUENTIAL, RegisterNoise, PeZOOnTheFly(k=3, bits=4), marks=pytest.mark.long),
    ],
)
def test_directions_of_two_cycles_are_those_of_the_bindings_also_after_a_kill(
    client: Path, tmp_path: Path, mode: Mode, kind: Any, member: Any
) -> None:
    layout = Layout({name: torch.Size(shape) for name, shape in toy.PARAMETERS}, 2)
    noise = kind(member.bind(layout), [prod(shape) for _, shape in toy.PARAMETERS], 7)
    bundle = toy.write(tmp_path / "bundle", mode, 2, noise=noise)
    run(client, bundle.folder)
    log = log_of(bundle.folder)
    assert log == Reference(bundle).run()
    assert len({tuple(line["coefs"]) for line in log if line["type"] == "step"}) == toy.STEPS
    for steps in (1, 7):  # a run that ended there goes on from its log
        cut(bundle.folder, steps)
        run(client, bundle.folder)
        assert log_of(bundle.folder) == log


@pytest.fixture(scope="module")
def finished(
    client: Path, exported: tuple[Path, list[dict[str, Any]]], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A bundle whose run is finished; tests copy it."""
    folder = Path(shutil.copytree(exported[0], tmp_path_factory.mktemp("finished") / "bundle"))
    run(client, folder)
    assert log_of(folder) == exported[1]
    return folder


@pytest.fixture
def bundle(finished: Path, tmp_path: Path) -> Path:
    """A copy of the bundle, with the log of its run."""
    return Path(shutil.copytree(finished, tmp_path / "bundle"))


def lines_of(bundle: Path) -> list[str]:
    return (bundle / "log.jsonl").read_text().splitlines(keepends=True)


def cut(bundle: Path, steps: int) -> None:
    """Leave the first steps of the log only."""
    lines = lines_of(bundle)
    last = next(i for i, line in enumerate(lines) if json.loads(line).get("step") == steps)
    (bundle / "log.jsonl").write_text("".join(lines[: last + 1]))


def test_a_run_killed_at_any_moment_ends_with_the_same_log(client: Path, bundle: Path) -> None:
    expected = log_of(bundle)
    (bundle / "log.jsonl").unlink()
    moments, kills = random.Random(0), 0
    for attempt in range(8):
        process = subprocess.Popen([client, bundle])
        with suppress(subprocess.TimeoutExpired):
            process.wait(moments.uniform(0.02, 0.03 * (attempt + 2)))
        process.kill()
        kills += process.wait() < 0 and (bundle / "log.jsonl").exists()
    assert kills >= 2, "the run is over too soon: it has to be longer"
    run(client, bundle)
    assert log_of(bundle) == expected


@pytest.mark.parametrize("torn", ['{"type":"step","step":151,"losses":[0.1', "\0\0\0\0\n", '{"type":"step"}\n'])
def test_a_torn_last_line_is_cut_off(client: Path, bundle: Path, torn: str) -> None:
    expected = log_of(bundle)
    cut(bundle, 150)
    with (bundle / "log.jsonl").open("a") as log:
        log.write(torn)
    whole = torn.endswith("\n")
    line = run(client, bundle, warns=whole)
    assert (f"({len(torn)} bytes): it is not the next line of this trial" in line) == whole
    assert log_of(bundle) == expected


def test_scores_that_a_kill_lost_are_made_again(client: Path, bundle: Path) -> None:
    expected = log_of(bundle)
    cut(bundle, 100)
    assert log_of(bundle)[-1]["type"] == "step"
    run(client, bundle)
    assert log_of(bundle) == expected


def test_a_split_is_scored_with_the_weights_of_a_step(client: Path, bundle: Path) -> None:
    before = log_of(bundle)
    for _ in range(2):  # the second time, the log has them
        run(client, bundle, "--score", "test", "--at", 37)
    assert log_of(bundle)[: len(before)] == before
    (scores,) = log_of(bundle)[len(before) :]
    reference = Reference(read(bundle))
    for number, line in enumerate((line for line in before if line["type"] == "step"), 1):
        theta = reference.update(number, line["coefs"])
        if number == 37:
            break
    assert scores == reference.scores("test", 37, theta)
    run(client, bundle)  # a finished run stays as it is
    assert log_of(bundle)[-1] == scores
    assert "the log has 3000 steps" in run(client, bundle, "--score", "test", "--at", 3001, status=1)
    assert "no split 'train' to score" in run(client, bundle, "--score", "train", "--at", 1, status=1)


def test_a_loss_that_is_not_finite_ends_the_run(client: Path, tmp_path: Path) -> None:
    bundle = toy.write(tmp_path / "bundle", rates=np.full(toy.STEPS, 1e60))
    assert "not finite" in run(client, bundle.folder, status=3)
    expected = Reference(bundle).run()
    assert [line["type"] for line in expected] == [*["step"] * (len(expected) - 1), "diverged"]
    assert repr(log_of(bundle.folder)) == repr(expected)  # NaN is not equal to itself
    lines = lines_of(bundle.folder)
    run(client, bundle.folder, status=3)
    assert lines_of(bundle.folder) == lines


def test_projected_gradients_are_clipped(client: Path, tmp_path: Path) -> None:
    bundle = toy.write(tmp_path / "bundle", clip=0.25)
    run(client, bundle.folder)
    coefs = [g for line in log_of(bundle.folder) if line["type"] == "step" for g in line["coefs"]]
    assert max(map(abs, coefs)) == 0.25
    assert min(map(abs, coefs)) < 0.25
    assert log_of(bundle.folder) == Reference(bundle).run()


def test_one_bundle_has_one_client(client: Path, bundle: Path) -> None:
    with (bundle / "log.jsonl").open() as log:
        fcntl.flock(log, fcntl.LOCK_EX)
        assert "another zo_client is running" in run(client, bundle, status=4)


def test_a_log_of_another_bundle_is_refused(client: Path, bundle: Path) -> None:
    with (bundle / "settings.txt").open("a") as settings:
        settings.write("evaluate 7\n")
    assert "belongs to another bundle" in run(client, bundle, status=1)


def test_a_log_with_a_damaged_line_is_refused(client: Path, bundle: Path) -> None:
    lines = lines_of(bundle)
    (bundle / "log.jsonl").write_text("".join([*lines[:10], *lines[11:]]))
    assert "line 11 is not the next line of this trial" in run(client, bundle, status=1)


@pytest.mark.parametrize("name", ["program.pte", "order.bin", "train.ids.bin"])
def test_a_damaged_file_is_refused(client: Path, bundle: Path, name: str) -> None:
    whole = (bundle / name).read_bytes()
    (bundle / name).write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert f"{name} does not have the SHA-256" in run(client, bundle, status=1)
    (bundle / name).write_bytes(whole[:-1])
    assert f"{name} does not have the {len(whole)} bytes" in run(client, bundle, status=1)
    (bundle / name).unlink()
    assert f"cannot read {bundle / name}" in run(client, bundle, status=1)


@pytest.mark.parametrize(
    ("line", "instead", "message"),
    [
        ("steps 3000", "", "needs one line 'steps', has 0"),
        ("steps 3000", "steps 3000\nsteps 3000", "needs one line 'steps', has 2"),
        ("steps 3000", "steps -1", "no number from 0"),
        ("steps 3000", "steps 99999999999999999999", "no number from 0"),
        ("steps 3000", "steps 3001", "order.bin has 36000 bytes instead of 9003 elements of 4"),
        ("slots 2", "slots 65537", "no number from 0 to 65536"),
        ("batch 3", "batch 0", "'batch' must be at least 1"),
        ("points 4", "points 3", "do not go together"),
        ("eps 0.01", "eps nan", "'eps' is no finite number"),
        ("format 1", "format 2", "has format 2, and this client reads format 1"),
        ("seed 7", "seed 7\nspeed 3", "unknown key 'speed'"),
        ("seed 7", "seed", "a line without a value"),
        ("seed 7", "seed 7\ncycles 1 2", "'cycles' needs a stride and two lengths: 1 2"),
        ("seed 7", "seed 7\ncycles 1 0 1", "'cycles' must be at least 1: 1 0 1"),
        ("dev 17 16", "dev 17 15", "'dev': tokens are no multiple of 8"),
    ],
)
def test_malformed_settings_get_one_line(client: Path, bundle: Path, line: str, instead: str, message: str) -> None:
    text = (bundle / "settings.txt").read_text()
    assert f"\n{line}\n" in f"\n{text}"
    (bundle / "settings.txt").write_text(
        f"\n{text}".replace(f"\n{line}\n", f"\n{instead}\n").lstrip("\n").replace("\n\n", "\n")
    )
    assert message in run(client, bundle, status=1)


def test_settings_cut_anywhere_are_refused(client: Path, bundle: Path) -> None:
    text = (bundle / "settings.txt").read_bytes()
    for end in random.Random(0).sample(range(len(text) - 1), 40):
        (bundle / "settings.txt").write_bytes(text[:end])
        assert run(client, bundle, status=1)


def test_a_program_of_other_shapes_is_refused(client: Path, bundle: Path) -> None:
    other = toy.write(bundle.parent / "other", Mode.INNER, 1, 2, 1).folder
    before, after = ((folder / "program.pte") for folder in (bundle, other))
    lines = [line for line in (other / "settings.txt").read_text().splitlines() if line.startswith("file program.pte")]
    settings = (bundle / "settings.txt").read_text().splitlines()
    shutil.copyfile(after, before)
    (bundle / "log.jsonl").unlink()
    (bundle / "settings.txt").write_text(
        "\n".join(lines[0] if line.startswith("file program.pte") else line for line in settings) + "\n"
    )
    assert "method 'apply' failed: ExecuTorch error" in run(client, bundle, status=1)


def test_wrong_usage_gets_one_line_and_help_names_everything(client: Path, bundle: Path) -> None:
    for arguments in (
        [],
        [bundle, bundle],
        ["--speed"],
        [bundle, "--at", "3"],
        [bundle, "--score", "dev", "--at", "x"],
    ):
        assert "see zo_client --help" in run(client, *arguments, status=2)
    shown = subprocess.run([client, "--help"], capture_output=True, text=True, check=True).stdout
    assert all(word in shown for word in ("BUNDLE", "--score", "--at", "exit status"))
    assert "cannot read" in run(client, bundle / "nothing", status=1)


def test_the_hashes_are_those_of_the_standard_library(tmp_path: Path) -> None:
    sources = [Path(__file__).with_name("hashes.cpp"), SOURCES / "hashes.cpp"]
    subprocess.run(["c++", "-std=c++17", "-O1", f"-I{SOURCES}", *sources, "-o", tmp_path / "hashes"], check=True)
    lines = ["x" * size for size in range(400)] + ["7/12/3/model.layers.0.self_attn.q_proj.B"]
    done = subprocess.run(
        [tmp_path / "hashes"], input="\n".join(lines) + "\n", capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == [
        f"{hashlib.blake2b(line.encode(), digest_size=8).hexdigest()} {hashlib.sha256(line.encode()).hexdigest()}"
        for line in lines
    ]
