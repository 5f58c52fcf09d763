"""The benchmark measures what it says: plain MeZO and ours take the same step, and the table says what was reached."""

from __future__ import annotations

import json
import math
import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.test_layers import OF_SWEEPS
from zo_sweeps.cli.main import main
from zo_sweeps.core import host
from zo_sweeps.core.caveats import NOISE_TO_SIGNAL
from zo_sweeps.core.errors import UserError
from zo_sweeps.methods.parts import Model
from zo_sweeps.methods.space import FullModel
from zo_sweeps.models.causal import CausalModel
from zo_sweeps.models.families import describe
from zo_sweeps.models.load import load
from zo_sweeps_bench import codes, engine_parts, gpu, measure, precision, sparse
from zo_sweeps_bench.engine_parts import BenchSteps
from zo_sweeps_bench.measure import RatioRow

pytestmark = pytest.mark.unit


@pytest.fixture
def model() -> CausalModel:
    arch = {**engine_parts.LLAMA_58M, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}
    return load(Model(source="random", arch=arch), torch.float32, torch.device("cpu"))


@pytest.mark.parametrize("options", [1, 2])
def test_the_loop_compared_against_has_the_same_loss(options: int, model: CausalModel) -> None:
    data = engine_parts.examples([12] * 3, options)
    with torch.inference_mode():
        ours = float(BenchSteps(model, FullModel(model.module), data).forward(1))
        assert float(engine_parts.mezo_loss(model, data)) == pytest.approx(ours, rel=1e-5)


def test_plain_mezo_moves_along_its_own_noise(model: CausalModel) -> None:
    before = {name: param.clone() for name, param in model.module.named_parameters()}
    g = engine_parts.mezo_step(model, engine_parts.examples([8] * 2, 1), seed=3, lr=1e-2)
    torch.manual_seed(3)
    for name, param in model.module.named_parameters():
        z = torch.normal(mean=0, std=1, size=param.shape)
        torch.testing.assert_close(param, before[name] - 1e-2 * g * z, rtol=0, atol=1e-6)


def test_plain_lozo_moves_matrices_in_the_columns_of_a_v_that_is_kept(model: CausalModel) -> None:
    data, draw = engine_parts.examples([8] * 2, 1), engine_parts.lozo_directions(model, rank=2)
    before = {name: param.clone() for name, param in model.module.named_parameters()}
    moved = []
    for seed in (3, 4):
        g = engine_parts.mezo_step(model, data, seed, lr=1e-2, draw=draw)
        torch.manual_seed(seed)
        for name, param in model.module.named_parameters():
            z = draw(param)
            torch.testing.assert_close(param, before[name] - 1e-2 * g * z, rtol=0, atol=1e-5)
            before[name] = param.clone()
            moved += [z] if name.endswith("layers.0.mlp.up_proj.weight") else []
    for z, rank in ((moved[0], 2), (torch.cat(moved), 2), (torch.cat(moved, dim=1), 4)):
        assert torch.linalg.matrix_rank(z) == rank, "both steps have one V, each its own U"


def test_a_measured_step_moves_the_weights(model: CausalModel) -> None:
    before = [param.clone() for param in model.module.parameters()]
    BenchSteps(model, FullModel(model.module), engine_parts.examples([8] * 2, 2), lr=1e-2).one()()
    assert all(not torch.equal(a, b) for a, b in zip(before, model.module.parameters(), strict=True))


def test_rounds_alternate_and_the_first_is_not_counted() -> None:
    calls: list[str] = []
    seconds = host.interleaved({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, rounds=2)
    assert calls == ["a", "b"] * 3
    assert all(0 < value < 1 for value in seconds.values())


def test_a_row_is_reached_from_the_right_side() -> None:
    assert RatioRow("faster", 3.0, "x", 2.5, 5.0, "").reached
    assert not RatioRow("faster", 2.4, "x", 2.5, 5.0, "").reached
    assert RatioRow("cost", 1.1, "of", 1.15, 1.05, "").reached
    assert not RatioRow("memory", 15.0, "MiB", 14.0, 0.0, "").reached


def test_the_noise_part_is_measured_printed_and_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(engine_parts, "ELEMENTS", 1 << 14)
    rows = [*measure.run("noise", rounds=1)]
    shown = measure.text(rows)
    assert "noise, torch expression (must 1x, aim 1x, limit memory bandwidth)" in shown
    measure.write(rows, tmp_path / "noise.json")
    content = json.loads((tmp_path / "noise.json").read_text())
    assert content["host"]["processor"]
    assert [row["name"] for row in content["rows"]] == [row.name for row in rows]
    assert all(row["ratio"] > 0 for row in content["rows"])


def test_two_files_are_compared_row_by_row(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By hand: 3 of 2 is +50 %, 1.2 of 1 is +20 % and a cost; a lost goal, or a row with one, is exit status 1."""
    one, two = (str(tmp_path / name) for name in ("one.json", "two.json"))
    here = {"processor": "A chip", "threads": 1, "torch": "2.0", "load_average": [0.5, 0.4, 0.3]}
    speed, cost = (
        RatioRow(name, value, unit, 1.1, 1, "") for name, value, unit in (("speed", 2, "x"), ("cost", 1, "of"))
    )
    monkeypatch.setattr(measure, "host", lambda: here)
    measure.write([speed, cost, RatioRow("noise", 1, "s", 2, 1, "")], Path(one))
    monkeypatch.setattr(measure, "host", lambda: {**here, "threads": 2, "load_average": [9.0, 0.4, 0.3]})
    measure.write(
        [replace(speed, ratio=3), replace(cost, ratio=1.2), RatioRow("memory", 9, "MiB", 2, 1, "")], Path(two)
    )
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["bench", "compare", one, two]) == 1
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        "benchmark A B change goal",
        "speed 2x 3x +50.0 %, better ok",
        "cost 1x 1.2x +20.0 %, worse ok → NO",
        "noise 1 s – – ok, only in A",
        "memory – 9 MiB – NO, only in B",
        "hosts, A → B: threads 1 → 2; load average 0.5 0.4 0.3 → 9.0 0.4 0.3",
        "2 goals reached in A and not in B",
    ]
    assert main(["bench", "compare", two, one]) == 0, "a goal reached again is no loss"
    assert main(["bench", "compare", one, one]) == 0
    assert "hosts, A → B: no difference" in capsys.readouterr().out


def test_a_file_that_cannot_be_written_is_said_before_the_first_measurement_or_after_the_last(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [RatioRow(name, 1, "x", 1, 1, "") for name in ("one", "two")]
    folder, measured = tmp_path / "later", list[str]()

    def run(part: str, rounds: int) -> Iterator[RatioRow]:
        for row in rows:
            measured.append(row.name)
            yield row
            shutil.rmtree(folder, ignore_errors=True)

    monkeypatch.setattr(measure, "run", run)
    given = ["bench", "noise", "--json", str(folder / "x.json")]
    assert main(given) == 2
    assert measured == []
    folder.mkdir()
    capsys.readouterr()
    assert main(given) == 2
    told = capsys.readouterr()
    assert [line.split()[2] for line in told.out.splitlines()] == ["one", "two"]
    assert "cannot write" in told.err


def test_an_unknown_part_is_refused_with_the_choices() -> None:
    with pytest.raises(UserError, match="memory"):
        next(measure.run("nois", rounds=1))


def test_rows_that_were_measured_before_an_error_are_printed_and_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(rounds: int) -> Iterator[RatioRow]:
        yield RatioRow("first", 2, "x", 1, 3, "4x")
        raise RuntimeError("the second")

    monkeypatch.setattr(engine_parts, "noise_rows", broken)
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(RuntimeError, match="the second"):
        main(["bench", "noise", "--json", str(tmp_path / "noise.json")])
    assert "ok  first (must 1x, aim 3x, limit 4x)" in capsys.readouterr().out
    assert [*measure.read(tmp_path / "noise.json")[1]] == ["first"]


TINY_LLAMA = {
    **engine_parts.LLAMA_58M,
    "vocab_size": 4096,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
}
TINY_OPT = {**gpu.arch("random_opt_13b"), "vocab_size": 4096, "hidden_size": 64, "word_embed_proj_dim": 64} | {
    "ffn_dim": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
TINY = gpu.Sizes(
    elements=1 << 16,
    layers=((64, 128),),
    shapes={"OPT-13B": TINY_OPT, gpu.LLAMA: TINY_LLAMA},
    tokens=8,
    memory_tokens=16,
    settings=((8, 1), (8, 2)),
    members=(2, 4),
    rows=4,
    new=2,
)


def test_the_gpu_part_runs_whole_on_any_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ZO_PEERS", raising=False)
    for name in OF_SWEEPS:
        monkeypatch.setitem(sys.modules, name, None)  # an import raises
    monkeypatch.setattr(codes, "ROWS", (1, 8))
    monkeypatch.setattr(sparse, "ROWS", (1, 4))
    rows = list(gpu.rows(1, torch.device("cpu"), TINY))
    assert len({row.name for row in rows}) == len(rows)
    assert all(math.isfinite(row.ratio) and row.ratio > 0 and row.limit for row in rows)
    of = lambda text: [row for row in rows if text in row.name]
    for row in of("perturbation pass"):
        assert row.detail["bits of the CPU"]
        assert row.ratio == pytest.approx(row.detail["perturbation, GB/s"] / row.detail["copy, GB/s"])
    methods = ["MeZO, LoRA-FA", "P-RGE, outer loop", "P-RGE, inner loop", "P-RGE, both loops"]
    for kind in ("OPT-13B shape, fp16", "Llama-2-7B shape, fp16", "Llama-2-7B shape, int8", "Llama-2-7B shape, nf4"):
        moved = ["MeZO, all weights", "LOZO, all weights"] * ("fp16" in kind) + methods  # codes are not moved
        times, peaks = ([row for row in of(f"{kind}, E=") if text in row.name] for text in ("bare", "peak"))
        for found in (times, peaks):
            assert [row.name.split(f", {kind}")[0] for row in found] == moved
        for name, row in zip(moved, times, strict=True):
            assert row.ratio == row.detail[name] / row.detail["two forwards"]
            assert row.detail["FO-Adam"] > 0
        for name, row in zip(moved, peaks, strict=True):
            assert row.ratio == row.detail[f"{name}, MiB"] / row.detail["inference, MiB"]
    loops = of("the released step against ours")
    for row in loops:
        method = row.name.partition(",")[0]
        assert row.detail["released code"] == "written out"
        assert row.ratio == row.detail[f"{method}, released"] / row.detail[f"{method}, all weights"]
    assert [row.name[:13] for row in loops if "8.13x" in row.limit] == ["LOZO, OPT-13B"]
    for row in of("full-parameter step"):
        assert row.ratio == pytest.approx(row.detail["ours"] / (row.detail["two forwards"] + row.detail["two passes"]))
    inner = of("P-RGE's inner loop")
    assert [row.aim for row in inner] == [1.79, 1.79, 1.97]
    for row in inner:
        at = row.detail["T=8 B=1, sequential, s"] / row.detail["T=8 B=1, inner loop, s"]
        assert (row.ratio, len(row.detail)) == (at, 12)
    (coded,) = of("SqueezeLLM")
    assert coded.detail["entries"] == sum(max(1, round(1e-3 * n)) for n in [64 * 64] * 8 + [64 * 96] * 6)
    assert coded.detail["inference, MiB"] > coded.detail["weights, MiB"]
    assert [row.name.split(" of rank")[0] for row in of("members")] == [f"tokens/s of {n} members" for n in (2, 4)]
    assert all(row.detail["plain, tokens"] == row.detail["population, tokens"] == 8 for row in of("members"))


def test_a_part_that_memory_does_not_hold_is_left_out_and_said(capsys: pytest.CaptureFixture[str]) -> None:
    row = RatioRow("faster", 3.0, "x", 2.5, 5.0, "")

    def part(error: Exception) -> Any:
        yield row
        raise error

    assert [*gpu.fitting("OPT-13B shape", part(torch.cuda.OutOfMemoryError("CUDA out of memory")))] == [row]
    assert capsys.readouterr().err == "OPT-13B shape: left out, the memory of this device does not hold it\n"
    with pytest.raises(RuntimeError, match="another"):
        [*gpu.fitting("OPT-13B shape", part(RuntimeError("another")))]


def test_the_seven_billion_are_counted() -> None:
    assert describe(gpu.Sizes().shapes[gpu.LLAMA]).parameters == 6_738_415_616


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_its_part_says_so_in_one_line() -> None:
    with pytest.raises(UserError, match="no CUDA GPU here") as raised:
        [*gpu.rows(rounds=1)]
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("compute", ["fp32", "bf16"])
def test_products_with_codes_are_compared_with_the_gemm_and_are_exact(
    compute: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(codes, "ROWS", (1, 8, 1024))
    found = list(codes.products(torch.device("cpu"), (64, 128), compute, rounds=1))
    assert [row.name.split(",")[0] for row in found] == list(codes.schemes(compute))
    for row in found:
        assert row.ratio == row.detail["1024 rows"]
        assert all(row.detail[f"{count} rows, decoding alone"] > 0 for count in (1, 8, 1024))
        assert row.detail["error"] < {"fp32": 1e-6, "bf16": 2**-8}[compute]
    assert 1e-3 < found[0].detail["error, bitsandbytes"] < 0.05, "LLM.int8 rounds the activations too"


@pytest.mark.parametrize("kind", ["fp32", "nf4"])
def test_sparse_add_and_sparse_addmm_are_timed_at_the_same_moved_theta(kind: str, monkeypatch: Any) -> None:
    monkeypatch.setattr(sparse, "ROWS", (1, 4))
    seen: list[dict[str, torch.Tensor]] = []

    def once(functions: Any, rounds: int) -> dict[str, float]:
        seen.append({name: function.keywords["of"]() for name, function in functions.items()})
        return dict(zip(functions, (1.0, 2.0, 4.0, 3.0), strict=True))

    monkeypatch.setattr(sparse, "interleaved", once)
    monkeypatch.setattr(sparse, "awaited", lambda function, device: partial(lambda of: None, of=function))
    row = sparse.products(torch.device("cpu"), (96, 128), kind, "fp32", rounds=1)
    assert row.ratio == 0.5
    assert row.detail["4 rows, SparseAddMM, fixed theta"] == 3.0
    for results in seen:
        theta = results["SparseAdd"]
        torch.testing.assert_close(results["SparseAddMM"], theta, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(results["SparseAddMM, fixed theta"], theta, rtol=1e-4, atol=1e-5)
        assert not torch.allclose(results["GEMM"], theta, rtol=1e-4, atol=1e-5)


def test_the_bound_on_rounding_noise_tells_estimates_from_noise_in_the_published_measurements() -> None:
    rows = json.loads((Path(__file__).parents[3] / "docs/bench/precision.json").read_text())["rows"]
    noise = [row for row in rows if "correlation" in row["detail"]]
    assert {row["must"] for row in noise} == {NOISE_TO_SIGNAL}
    for row in noise:
        estimator = next(
            method.estimator for name, _, _, method, _ in precision.SETTINGS if f", {name}, " in row["name"]
        )
        expected, correlation = row["detail"]["expected"], row["detail"]["correlation"]
        assert expected == pytest.approx(precision.expected_correlation(row["ratio"], estimator))

        def error(correlation: float, ratio: float) -> float:  # see tests/engine/test_rounding.py
            return math.hypot(
                1 / math.sqrt(precision.DIRECTIONS - 3), correlation / (1 - ratio**2) / math.sqrt(precision.DIRECTIONS)
            )

        measured, at_bound = fisher(correlation), precision.expected_correlation(NOISE_TO_SIGNAL, estimator)
        beyond = measured - fisher(at_bound) if not row["reached"] else fisher(at_bound) - measured
        assert beyond < 2 * error(at_bound, NOISE_TO_SIGNAL), row
        if expected:
            assert abs(measured - fisher(expected)) < 4 * error(expected, row["ratio"]), row


def fisher(correlation: float) -> float:
    return math.atanh(min(correlation, 1 - 1e-9))
