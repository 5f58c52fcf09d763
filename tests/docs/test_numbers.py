"""Numbers in the pages come from data: measurements in docs/bench, two sweeps, plans, definitions."""

from __future__ import annotations

import json
import re
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from io import BytesIO
from statistics import fmean, stdev
from typing import Any

import pytest

from tests.conftest import REPO
from zo_sweeps.config.composer import Composer
from zo_sweeps.plan.build import build
from zo_sweeps.tables.published import load

pytestmark = pytest.mark.unit

DOCS = REPO / "docs"
NUMBER = re.compile(r"[+−-]?\d[\d,]*(?:\.\d+)?")


@cache
def page(name: str) -> str:
    return (DOCS / f"{name}.md").read_text(encoding="utf-8")


def table(name: str, head: str) -> list[list[str]]:
    """The cells of the lines below the head of a page's table, the first of each line its label."""
    lines = page(name)[page(name).index(f"\n{head}") :].strip().splitlines()
    found = []
    for line in lines[2:]:
        if not line.startswith("|"):
            break
        found.append([cell.strip() for cell in line.strip("|").split("|")])
    assert found
    return found


def check(text: str, *values: float) -> None:
    """Hold the numbers of a text against values, rounded to the digits that are printed."""
    numbers = [number.replace("−", "-").replace(",", "") for number in NUMBER.findall(text)]
    assert len(numbers) == len(values), (text, values)
    for number, value in zip(numbers, values, strict=True):
        digits = len(number.partition(".")[2])
        assert float(number) == float(f"{value:.{digits}f}"), f"{number} in {text!r}, {value:.4f} in the data"


def sentence(name: str, pattern: str) -> str:
    """The numbers of a sentence: the groups of a pattern in which any blank may be a line's end."""
    found = re.search(pattern.replace(" ", r"\s+"), page(name), re.DOTALL)
    assert found, f"{name}.md has no {pattern!r}"
    return " ".join(found.groups())


def bench(name: str) -> dict[str, Mapping[str, Any]]:
    data = json.loads((DOCS / "bench" / f"{name}.json").read_text(encoding="utf-8"))
    return {row["name"]: row for row in data["rows"]}


def one(rows: Mapping[str, Mapping[str, Any]], *parts: str) -> Mapping[str, Any]:
    (found,) = (row for name, row in rows.items() if all(part in name for part in parts))
    return found


STEPS = (  # of the table of measurements, line by line
    ("full-parameter step, 58 M, B=1 ",),
    ("of rank 1", "q=1 B=1", "plain MeZO"),
    ("of rank 1", "q=1 B=1", "bare forward"),
    ("LoRA-FA step, both loops",),
    ("LoRA-FA step, demo model",),
    ("noise, compiled",),
    ("replay of 1000",),
)


def test_the_ratios_of_steps_are_those_of_the_measurements() -> None:
    single, double = bench("cpu-1-thread"), bench("cpu-2-threads")
    double.pop("noise, compiled, 2 threads against 1")
    lines = table("SPEED", "| | one thread | two threads | limit")
    for (_, first, second, limit), parts in zip(lines, STEPS, strict=True):
        check(first, one(single, *parts)["ratio"])
        check(second, one(double, *parts)["ratio"])
        check(limit, *map(float, NUMBER.findall(one(double, *parts)["limit"])))
    name = "noise, torch expression"
    check(sentence("SPEED", r"`normal_` on one thread \((.*?)x\)"), single[name]["ratio"])
    check(sentence("SPEED", r"on two threads \((.*?)x\)"), double[name]["ratio"])


def test_the_ratios_of_codes_sparse_spaces_and_programs_are_those_of_the_measurements() -> None:
    codes = bench("codes-1-thread")
    steps = [row for name, row in codes.items() if name.startswith("LoRA-FA step")]
    weights = [steps[0]["detail"][f"weights of {name}, MiB"] for name in ("int8", "nf4", "nf4 + double quantization")]
    check(sentence("SPEED", r"in (\d+), (\d+) and (\d+) MiB of weights"), *weights)
    for row in steps:
        check(sentence("SPEED", r"takes ([\d.]+) times that over bf16"), row["ratio"])

    detail = [row["detail"] for name, row in codes.items() if "against the bf16 GEMM" in name]
    check(
        sentence("SPEED", r"cost up to ([\d.]+) times the bf16 GEMM"),
        max(value for row in detail for name, value in row.items() if name in ("1 rows", "16 rows")),
    )

    sparse = [row["detail"] for row in bench("sparse-1-thread").values()]
    fastest = min(
        row[f"{rows} rows, SparseAddMM"] / row[f"{rows} rows, SparseAdd"] for row in sparse for rows in (1, 4)
    )
    check(sentence("SPEED", r"at most (\d+) % faster"), 100 * (1 - fastest))

    programs = [row["ratio"] for row in bench("programs").values()]
    check(sentence("SPEED", r"takes ([\d.]+ to [\d.]+) times the same runtime"), min(programs), max(programs))


def test_the_ratios_of_a_population_are_those_of_the_measurement() -> None:
    said = r"write ([\d.]+) of the tokens per second .* and ([\d.]+) where finished answers leave; .* allow ([\d.]+)\."
    together, to_a_stop, fp32, bf16 = bench("population").values()
    limit = float(together["limit"].partition(":")[0])
    check(sentence("SPEED", said), together["ratio"], to_a_stop["ratio"], limit)
    same = sentence("SPEED", r"In fp32 ([\d,]+) of the texts are .* in bf16 ([\d,]+) \(")
    check(same, fp32["detail"]["same"], bf16["detail"]["same"])


def test_the_ratios_on_a_gpu_are_those_of_the_measurement() -> None:
    rows = bench("gpu-h200")
    kinds = [f"shape, {kind}," for kind in ("fp16", "int8", "nf4")]
    lines = table("SPEED", "| Llama-2-7B shape, E=16 T=64 |")
    lora_fa = "MeZO, LoRA-FA"
    times, peaks = ([one(rows, lora_fa, kind, what)["detail"] for kind in kinds] for what in ("a step", "peak"))
    methods = (lora_fa, *(f"P-RGE, {loop}" for loop in ("outer loop", "both loops")), "FO-Adam")
    (_, *full), *steps = lines[:5]
    check(" ".join(full), one(rows, "MeZO, all weights", "a step")["ratio"])
    for (_, *cells), name in zip(steps, methods, strict=True):
        check(" ".join(cells), *(each[name] / each["two forwards"] for each in times))
    check(" ".join(lines[5][1:]), *(1e3 * each["two forwards"] for each in times))
    check(" ".join(lines[6][1:]), *(each["inference, MiB"] / 1024 for each in peaks))
    for (_, *cells), name in zip(lines[7:], (methods[0], *methods[2:]), strict=True):
        check(" ".join(cells), *(each[f"{name}, MiB"] / each["inference, MiB"] for each in peaks))

    said = sentence("SPEED", r"forwards of one row take (\d+) ms. MeZO over all weights needs ([\d.]+) times")
    whole = one(rows, "MeZO, all weights", "peak")["ratio"]
    check(said, 1e3 * one(rows, "full-parameter step")["detail"]["two forwards"], whole)
    passes = [one(rows, f"perturbation pass, {dtype}") for dtype in ("float32", "float16")]
    said = r"at ([\d.]+) of a copy's bandwidth in fp32 and ([\d.]+) in fp16"
    check(sentence("SPEED", said), *(row["ratio"] for row in passes))
    int8, nf4 = ([row["ratio"] for name, row in rows.items() if name.startswith(kind)] for kind in ("int8,", "nf4,"))
    said = r"1024 rows take ([\d.]+) to ([\d.]+) times the fp16 GEMM's time with INT8 and ([\d.]+) to ([\d.]+) with"
    check(sentence("SPEED", said), min(int8), max(int8), min(nf4), max(nf4))


def test_the_noise_of_half_precision_is_that_of_the_measurement() -> None:
    rows = bench("precision")
    of = lambda eps: [
        rows[f"rounding noise over signal, LoRA-FA, rge, {precision}, eps={eps:g}"]["ratio"]
        for precision in ("bf16", "fp16")
    ]
    said = r"LoRA-FA has ([\d.]+) in bf16 and ([\d.]+) in fp16 at eps = 1e-3, and ([\d.]+) and ([\d.]+) at 1e-2"
    check(sentence("SPEED", said), *of(1e-3), *of(1e-2))


@cache
def sweep(name: str) -> dict[str, Any]:
    """A small sweep's trials, selected rates and tables, as its report had them when it was run."""
    data: dict[str, Any] = json.loads((DOCS / "bench" / f"{name}.json").read_text(encoding="utf-8"))
    return data


def accuracies(name: str, row: str, rate: float | None) -> dict[int, float]:
    """Seed -> accuracy on test, in percent, of a row's trials at a learning rate (None: it has none)."""
    data = sweep(name)
    trials = (dict(zip(data["columns"], trial, strict=True)) for trial in data["trials"])
    of_rate = (trial for trial in trials if (trial["row"], trial["lr"]) == (row, rate))
    return {trial["seed"]: 100 * trial["right on test"] / data["test_rows"] for trial in of_rate}


def selected(name: str, row: str) -> dict[int, float]:
    """Seed -> accuracy of the learning rate that was selected on dev."""
    return accuracies(name, row, sweep(name)["selected"].get(row))


def part_of(name: str, title: str) -> dict[str, list[str]]:
    """Row -> the other cells, of a table of a sweep."""
    return {row: cells for row, *cells in sweep(name)["tables"][title][1:]}


def mean_and_spread(values: Iterable[float]) -> tuple[float, ...]:
    given = [*values]
    return (fmean(given), stdev(given)) if len(given) > 1 else tuple(given)


def paired(name: str, row: str, other: str, per_error: float) -> tuple[float, float]:
    """The mean difference of two rows by seed, and `per_error` of its standard errors."""
    one, two = selected(name, row), selected(name, other)
    differences = [one[seed] - two[seed] for seed in one]
    return fmean(differences), per_error * stdev(differences) / len(differences) ** 0.5


def test_the_tables_of_the_two_small_sweeps_are_those_of_their_trials() -> None:
    for label, value in table("METHODS", "|                             | SST-2 (sentences) |"):
        check(value.partition("[")[0], *mean_and_spread(selected("methods", label).values()))
    lines = table("PRECISIONS", "|                                    |   accuracy |")
    for label, accuracy, *_ in lines:
        check(accuracy, *mean_and_spread(selected("precisions", label).values()))
    parts = part_of("precisions", "memory by part (MiB)")
    for label, _, *memory in lines:
        measured = [cell.partition(" ±")[0] for cell in parts.get(label, [])]
        assert [text for text in memory if text] == [measured[i] for i in (0, 4, 6) if measured], label
    for name in ("methods", "precisions"):
        assert sweep(name)["commit"][:7] in page(name.upper()), "the page says which commit ran its sweep"


def test_the_hard_task_s_table_is_that_of_its_archive() -> None:
    with tarfile.open(DOCS / "methods" / "trec.tar.xz") as archive:
        files = {name: (archive.extractfile(name) or BytesIO()).read() for name in archive.getnames()}
    trials = [
        (trial["label"].split(" · "), json.loads(files[f"journal/{trial['trial_id']}.jsonl"].splitlines()[-1]))
        for trial in json.loads(files["plan.json"])["trials"]
    ]
    lines = table("METHODS", "| TREC, one seed")
    assert len(lines) == len({row for (row, *_), _ in trials})
    for label, rate, *cells in lines:
        of_row = [(*parts, end["outcome"]["metrics"]) for (row, *parts), end in trials if row == label]
        (_, *parts, metrics) = min(of_row, key=lambda one: one[-1]["dev/loss"])
        assert rate == (parts[0].removeprefix("lr ") if parts else "–"), label
        for text, name, scale in zip(cells, ("dev/loss", "test/accuracy"), (1, 100), strict=True):
            check(text, scale * metrics[name])
    check(
        sentence("METHODS", r"the most frequent class alone, ([\d.]+) %"),
        100 * trials[0][1]["outcome"]["metrics"]["majority"],
    )


PRGE = "P-RGE (q=4), "
CODES = (("INT8", "INT8"), ("NF4", "NF4"), ("NF4 with 8-bit scales", "NF4, scales in 8 bits"), ("and bf16", "bf16"))


def test_paired_differences_between_precisions_are_those_of_the_sweep() -> None:
    said = sentence("PRECISIONS", r"paired by seed, (.*?) points above fp32").replace("8-bit", "")
    values = [paired("precisions", PRGE + row, f"{PRGE}fp32", 1) for _, row in CODES]
    named = [text for text, _ in CODES]
    assert all(text.removesuffix(" with 8-bit scales") in said for text in named)
    check(re.sub(r"INT8|NF4|bf16", "", said), *(number for pair in values for number in pair))
    said = sentence("PRECISIONS", r"\(SensZOQ\) is (.*?) points above")
    check(said, *paired("precisions", "Sensitive 0.1%, NF4", "Sensitive 0.1%, fp32", 1))
    said = sentence("PRECISIONS", r"reaches 70\.5 from 53\.4: (.*?) points behind")
    check(said, *paired("precisions", f"{PRGE}fp32", "QZO (scales), NF4", 1))
    check(
        sentence("PRECISIONS", r"the rate 0\.003 has ([\d.]+)"),
        fmean(accuracies("precisions", "QZO (scales), NF4", 0.003).values()),
    )


T_4 = 2.7764451  # Student's t with 4 degrees of freedom at 97.5 %
MEZO = "MeZO, full (q=1)"
PAIRS: Sequence[tuple[str, str, str]] = (
    (r"The gap is (.*?) \(full", "FO-Adam, full", MEZO),
    (r"MeZO\) and (.*?) points \(LoRA-FA against", "FO-Adam, LoRA-FA", "P-RGE, LoRA-FA (q=4)"),
    (r"one on 16 differ by (.*?) points", "P-RGE, LoRA-FA (q=4)", "P-RGE, LoRA-FA (q=1)"),
    (r"Gaussian noise: (.*?) \(pre-generated", MEZO, "PeZO, pre-generated (q=1)"),
    (r"\(pre-generated\) and (.*?) points", MEZO, "PeZO, on the fly (q=1)"),
    (r"beats a random one by (.*?) points", "Sensitive (C4), 0.1% (q=1)", "Random, 0.1% (q=1)"),
    (r"largest weights \((.*?)\)", "Sensitive (C4), 0.1% (q=1)", "Weight outliers, 0.1% (q=1)"),
    (r"one direction is (.*?) points behind", MEZO, "P-RGE, LoRA-FA (q=1)"),
)


@pytest.mark.parametrize(("said", "row", "other"), PAIRS)
def test_paired_differences_between_methods_are_those_of_the_sweep(said: str, row: str, other: str) -> None:
    check(sentence("METHODS", said), *paired("methods", row, other, T_4))


def test_the_readme_says_what_memory_is_planned_for_7_billion_parameters() -> None:
    plan = build(Composer(["+grid=llama2_superglue", "~grid.tables.memory", "task=sst2"]))
    needed = {cell.block: plan.every[cell.trial_id].needs.memory_bytes for cell in plan.cells}
    readme = " ".join((REPO / "README.md").read_text(encoding="utf-8").split())
    backpropagation, mezo = (f"{needed[block] / 2**30:.0f} GiB" for block in ("fo_full", "zo_full"))
    assert f"{backpropagation} for Adam by backpropagation and {mezo} for MeZO" in readme
    assert "8-bit Adam needs two fifths of the memory" in readme
    assert needed["fo_full_8bit"] / needed["fo_full"] == pytest.approx(2 / 5, abs=0.05)


def test_the_profiles_of_the_devices_of_a_paper_have_its_memory() -> None:
    profiles = ("gtx-1080-ti", "rtx-3060-ti", "jetson-tx2", "oppo-find-x7-ultra", "galaxy-s10")
    published = load("sensitive/table3")
    assert published.unit == "GiB"
    for name, row in zip(profiles, published.rows.values(), strict=True):
        profile = Composer([f"device={name}"]).trial["device"]
        assert round(profile["memory_gb"] * 10**9) == row["memory_GiB"] * 2**30, name
