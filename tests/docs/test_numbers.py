"""Numbers in the pages come from data: measurements in docs/bench, sweeps, archives, plans, definitions."""

from __future__ import annotations

import json
import re
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from io import BytesIO
from itertools import cycle
from statistics import fmean, stdev
from typing import Any

import pytest
from scipy.stats import spearmanr

from tests.conftest import REPO
from zo_sweeps.config.composer import Composer
from zo_sweeps.engine.batch import indices
from zo_sweeps.methods.trial_config import TrialConfig
from zo_sweeps.plan.build import build
from zo_sweeps.tables.published import load
from zo_sweeps.tables.stats import interval

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


STEPS = {  # of the page's table -> of a row's name
    "CPU: full-parameter step": ("full-parameter step, 58 M, B=1 ",),
    "the same of rank 1": ("of rank 1", "q=1 B=1", "plain MeZO"),
    "over a bare forward": ("of rank 1", "q=1 B=1", "bare forward"),
    "LoRA-FA step, q=4": ("LoRA-FA step, both loops",),
    "on sentences": ("LoRA-FA step, demo model",),
    "noise, compiled": ("noise, compiled",),
    "replay of 1000": ("replay of 1000",),
}


def goals() -> list[list[str]]:
    """The page's one table of speeds: label, measured, limit."""
    return table("SPEED", "| | measured | limit |")


def goal(start: str) -> tuple[str, str]:
    """The numbers of the line whose label starts so: measured, limit."""
    (line,) = (line for line in goals() if line[0].startswith(start))
    return line[1], line[2]


def test_the_ratios_of_steps_are_those_of_the_measurements() -> None:
    single, double = bench("cpu-1-thread"), bench("cpu-2-threads")
    double.pop("noise, compiled, 2 threads against 1")
    for start, parts in STEPS.items():
        measured, limit = goal(start)
        check(measured, one(single, *parts)["ratio"], one(double, *parts)["ratio"])
        check(limit, *map(float, NUMBER.findall(one(double, *parts)["limit"])))
    name = "noise, torch expression"
    check(sentence("SPEED", r"`normal_` on one thread \((.*?)x\)"), single[name]["ratio"])
    check(sentence("SPEED", r"on two threads \((.*?)x\)"), double[name]["ratio"])
    for row in bench("last-blocks").values():
        measured, limit = goal("over the last k=L/3 blocks")
        check(measured, row["ratio"])
        check(limit, *map(float, NUMBER.findall(row["limit"])))


def test_the_ratios_of_codes_sparse_spaces_and_programs_are_those_of_the_measurements() -> None:
    codes = bench("codes-1-thread")
    steps = [row for name, row in codes.items() if name.startswith("LoRA-FA step")]
    weights = [steps[0]["detail"][f"weights of {name}, MiB"] for name in ("int8", "nf4", "nf4 + double quantization")]
    check(sentence("SPEED", r"take (\d+), (\d+) and (\d+) MiB"), *weights)
    measured, limit = goal("with codes")
    for row in steps:
        check(measured, row["ratio"])
        check(limit, float(row["limit"].partition(":")[0]))

    products = [row for name, row in codes.items() if "against the bf16 GEMM" in name]
    few = [row["detail"][name] for row in products for name in ("1 rows", "16 rows")]
    sizes = [float(NUMBER.findall(row["limit"])[1]) for row in products]  # in bytes
    measured, limit = goal("few rows with codes")
    check(measured, max(few))
    check(limit, max(sizes), min(sizes))

    sparse = [row["detail"] for row in bench("sparse-1-thread").values()]
    fastest = min(
        row[f"{rows} rows, SparseAddMM"] / row[f"{rows} rows, SparseAdd"] for row in sparse for rows in (1, 4)
    )
    check(sentence("SPEED", r"at most (\d+) % faster"), 100 * (1 - fastest))

    programs = [row["ratio"] for row in bench("programs").values()]
    check(goal("P-RGE's step in ExecuTorch")[0], min(programs), max(programs))


def test_the_ratios_of_a_population_are_those_of_the_measurement() -> None:
    together, to_a_stop, fp32, bf16 = bench("population").values()
    measured, limit = goal("generation by 64 members")
    check(measured, together["ratio"], to_a_stop["ratio"])
    check(limit, float(together["limit"].partition(":")[0]))
    same = sentence("SPEED", r"texts, ([\d,]+) are those .* in fp32, ([\d,]+) in bf16")
    check(same, fp32["detail"]["same"], bf16["detail"]["same"])


def test_the_steps_on_another_processor_are_those_of_the_measurement() -> None:
    rows = bench("xeon-1-thread")
    thin = [one(rows, "of rank 1", f"{shape} ", "bare forward") for shape in ("q=1 B=1", "q=4 B=1", "q=4 B=4")]
    check(
        sentence("SPEED", r"rank 1 is ([\d.]+) of a bare .* B=1, ([\d.]+) at .* and ([\d.]+) at q=4 B=4"),
        *(r["ratio"] for r in thin),
    )
    limits = [float(row["limit"].partition(":")[0]) for row in thin]
    check(sentence("SPEED", r"\(limits ([\d.]+), ([\d.]+), ([\d.]+)\); keeping"), *limits)
    signs = one(rows, "step of signs")
    check(sentence("SPEED", r"signs is ([\d.]+) of two forwards"), signs["ratio"])
    check(sentence("SPEED", r"two forwards \(limit ([\d.]+)\); hashing"), float(signs["limit"].partition(":")[0]))


def test_the_engine_of_others_is_compared_by_the_measurement() -> None:
    data = json.loads((DOCS / "bench" / "vllm.json").read_text(encoding="utf-8"))
    speeds: dict[tuple[str, str], list[float]] = {}
    for run in data["runs"]:
        if run["what"] == "64 members":
            speeds.setdefault((run["engine"], run["dtype"]), []).append(run["tokens/s"])
            assert run["dtype"] != "fp32" or run["same"] == run["of"]
    theirs, ours = (
        [min(speeds[one, "fp32"]), max(speeds[one, "fp32"]), *speeds[one, "bf16"]] for one in ("vLLM", "ours")
    )
    check(sentence("SPEED", r"at (\d+) to (\d+) tokens/s in fp32 and (\d+) in bf16, ours"), *theirs)
    check(sentence("SPEED", r"ours at (\d+) to (\d+) and (\d+): alike"), *ours)
    seconds = [64 * (data["seconds"]["to write an adapter"] + one) for one in data["seconds"]["to load an adapter"]]
    check(sentence("SPEED", r"adapters takes (\d) to (\d) s of every step"), min(seconds), max(seconds))


def test_the_costs_of_thousands_of_trials_are_those_of_the_measurement() -> None:
    rows = bench("cluster")
    driver = [row["ratio"] for name, row in rows.items() if "driver per report" in name]
    check(goal("driver with")[0], min(driver), max(driver))
    *sizes, report, again = [row["detail"] for row in bench("growth").values()]
    largest = [detail["100,000 trials"] for detail in (report, again)]
    check(goal("`report`")[0], *(detail["s"] for detail in largest))
    check(sentence("SPEED", r"the sweep again \(([\d.]+) GiB\)"), largest[1]["MiB"] / 1024)
    most = [max(detail[f"{size:,} trials"]["s"] for detail in sizes) for size in (1_000, 10_000, 100_000)]
    check(goal("`plan`, `status`")[0], *most)
    memory = max(detail["100,000 trials"]["MiB"] for detail in sizes)
    check(sentence("SPEED", r"in at most (\d+) MiB"), memory)


def test_the_steps_on_a_gpu_are_those_of_the_measurement() -> None:
    rows, shapes = bench("gpu-h200-steps"), ("OPT-1.3B", "Llama-2-7B", "OPT-13B")
    for method in ("MeZO", "LOZO"):
        found = [one(rows, f"{method}, {shape} shape", "the released step") for shape in shapes]
        measured, limit = goal(f"released {method}'s")
        check(measured, *(row["ratio"] for row in found))
        check(limit, *(float(row["limit"].partition("x")[0]) for row in found))
    loop, step = one(rows, "P-RGE's inner loop"), one(rows, "step over random SqueezeLLM")
    measured, limit = goal("P-RGE's inner loop")
    check(measured, loop["ratio"])
    check(limit.partition(";")[0], float(loop["limit"].partition("x")[0]))
    measured, limit = goal("step over SqueezeLLM")
    check(measured, step["ratio"] / 1024)
    check(limit.partition(":")[0], step["detail"]["inference, MiB"] / 1024)


def test_the_ratios_on_a_gpu_are_those_of_the_measurement() -> None:
    rows = bench("gpu-h200")
    shape = "Llama-2-7B shape"
    kinds = [f"{shape}, {kind}," for kind in ("fp16", "int8", "nf4")]
    every = [[label, cell] for label, cell, _ in goals()]
    first = next(i for i, (label, _) in enumerate(every) if label.startswith("H200"))
    lines = every[first : first + 10]
    lora_fa = "MeZO, LoRA-FA"
    times, peaks = ([one(rows, lora_fa, kind, what)["detail"] for kind in kinds] for what in ("a step", "peak"))
    methods = (lora_fa, *(f"P-RGE, {loop}" for loop in ("outer loop", "both loops")), "FO-Adam")
    (_, *full), *steps = lines[:5]
    check(" ".join(full), one(rows, "MeZO, all weights", shape, "a step")["ratio"])
    for (_, *cells), name in zip(steps, methods, strict=True):
        check(" ".join(cells), *(each[name] / each["two forwards"] for each in times))
    check(" ".join(lines[5][1:]), *(1e3 * each["two forwards"] for each in times))
    check(" ".join(lines[6][1:]), *(each["inference, MiB"] / 1024 for each in peaks))
    for (_, *cells), name in zip(lines[7:], (methods[0], *methods[2:]), strict=True):
        check(" ".join(cells), *(each[f"{name}, MiB"] / each["inference, MiB"] for each in peaks))

    row = one(rows, "full-parameter step", shape)
    check(sentence("SPEED", r"forwards of one row take (\d+) ms"), 1e3 * row["detail"]["two forwards"])
    check(every[first + 10][1], one(rows, "MeZO, all weights", shape, "peak")["ratio"])
    passes = [one(rows, f"perturbation pass, {dtype}") for dtype in ("float32", "float16")]
    check(goal("noise pass")[0], *(row["ratio"] for row in passes))
    for start, kind in (("products of 1024 rows", "int8,"), ("with NF4", "nf4,")):
        found = [row for name, row in rows.items() if name.startswith(kind)]
        limits = [float(row["limit"].partition(":")[0]) for row in found]
        for cell, values in zip(goal(start), ([row["ratio"] for row in found], limits), strict=True):
            check(cell, min(values), max(values))


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


def test_the_table_of_the_small_sweep_is_that_of_its_trials() -> None:
    lines = table("PRECISIONS", "|                                    |   accuracy |")
    for label, accuracy, *_ in lines:
        check(accuracy, *mean_and_spread(selected("precisions", label).values()))
    parts = part_of("precisions", "memory by part (MiB)")
    for label, _, *memory in lines:
        measured = [cell.partition(" ±")[0] for cell in parts.get(label, [])]
        assert [text for text in memory if text] == [measured[i] for i in (0, 4, 6) if measured], label
    assert sweep("precisions")["commit"][:7] in page("PRECISIONS"), "the page says which commit ran its sweep"


TASKS = ("sst2_sent", "sst2", "trec")
Settings = dict[tuple[str, ...], dict[int, Mapping[str, float]]]  # setting -> seed -> metrics


@cache
def league(task: str) -> dict[str, Settings]:
    """Row -> the trials of an archive of the league that succeeded."""
    with tarfile.open(DOCS / "league" / f"{task}.tar.xz") as archive:
        files = {name: (archive.extractfile(name) or BytesIO()).read() for name in archive.getnames()}
    rows: dict[str, Settings] = {}
    for trial in json.loads(files["plan.json"])["trials"]:
        row, _, *parts = trial["label"].split(" · ")
        if (journal := f"journal/{trial['trial_id']}.jsonl") not in files:  # of a row that did not run
            continue
        outcome = json.loads(files[journal].splitlines()[-1])["outcome"]
        if outcome["state"] == "SUCCEEDED":
            seed = int(parts.pop().removeprefix("seed ")) if parts and parts[-1].startswith("seed ") else None
            seeds = rows.setdefault(row, {}).setdefault(tuple(parts), {})
            # The labels of what learns nothing have no seed.
            seeds[len(seeds) if seed is None else seed] = outcome["metrics"]
    return rows


def chosen(task: str, row: str) -> dict[int, Mapping[str, float]]:
    """Seed -> metrics of the setting with the lowest dev loss at the first seed, which alone has further ones."""
    settings = league(task)[row]
    best = min(settings, key=lambda one: settings[one][0]["dev/loss"])
    assert all(len(seeds) == 1 for one, seeds in settings.items() if one != best)
    return settings[best]


def right(task: str, row: str) -> dict[int, float]:
    return {seed: 100 * metrics["test/accuracy"] for seed, metrics in chosen(task, row).items()}


def ahead(row: str, other: str, tasks: Sequence[str], rows: int) -> tuple[float, ...]:
    """The mean difference of two rows, paired by seed and task, and its interval for all rows together."""
    every = [(right(task, row), right(task, other)) for task in tasks]
    pairs = [one.get(seed, one[0]) - two[seed] for one, two in every for seed in two]
    return fmean(pairs), *(interval(pairs, 1 - 0.05 / rows) or ())


def tried(task: str, row: str) -> float:
    """Settings that are expected until one has 95 % of the best dev accuracy at the first seed."""
    values = [seeds[0]["dev/accuracy"] for seeds in league(task)[row].values()]
    return (len(values) + 1) / (sum(value >= 0.95 * max(values) for value in values) + 1)


def rewards(task: str, row: str) -> list[float]:
    """Test rewards of the setting with the highest dev reward at the first seed, or of the untrained model."""
    best = max(league(f"rewards_{task}")[row].values(), key=lambda seeds: seeds[0]["dev/metric"])
    return [metrics["test/metric"] for metrics in best.values()]


def reward_pairs(task: str, row: str, other: str) -> list[float]:
    """The differences of two rows by seed; the untrained model has one value."""
    return [one - two for one, two in zip(rewards(task, row), cycle(rewards(task, other)), strict=False)]


def above(task: str, row: str, other: str = "Zero-shot") -> str:
    pairs = reward_pairs(task, row, other)
    ends = interval(pairs, 0.95)
    assert ends is not None
    return f"{fmean(pairs):.3f} [{ends[0]:.3f}, {ends[1]:.3f}]".replace("-", "−")


def test_the_rewards_are_those_of_their_archives() -> None:
    tasks, zero_shot, best, mezo = ("demo_sums", "demo_concise"), "Zero-shot", "Best of 8, untrained", "MeZO (ZO-Full)"
    es, released, prge = "ES at Scale (N=30)", "ES at Scale, as released (N=30)", "P-RGE, LoRA-FA (q=4)"
    trained: list[tuple[str, str]] = []
    for row, *cells in table("LEAGUE", "|                                  | Sums of digits |"):
        for task, cell, difference in zip(tasks, cells[::2], cells[1::2], strict=True):
            found = rewards(task, row)
            assert len(found) == (1 if row == zero_shot else 5)
            spread = f" ± {stdev(found):.3f}" if len(found) > 1 else ""
            assert cell == f"{fmean(found):.3f}{spread}".replace("-", "−")
            assert difference == ("" if row == zero_shot else above(task, row))
            if row in (zero_shot, best):
                continue
            trained.append((task, row))
            assert "[−" not in difference, "the page says that each is above the untrained model"
            settings = league(f"rewards_{task}")[row]
            rates = sorted(settings, key=lambda setting: float(setting[-1].rpartition(" ")[2]))  # of random search, eps
            assert len(rates) == 3
            assert (len(settings[rates[-1]]) == 5) == (row != prge), "the page says of which the largest was selected"
    words = " ".join(page("LEAGUE").split())
    lowest = min(league("rewards_demo_concise")[prge].values(), key=lambda seeds: -len(seeds))
    first, *others = (lowest[seed]["dev/metric"] for seed in range(5))
    on_dev = f"has {first:.3f} on dev and the other four {min(others):.3f} to {max(others):.3f}."
    assert f"P-RGE is below it, {above('demo_concise', prge, mezo)}: of three rates its first seed selected" in words
    assert on_dev in words
    assert f"P-RGE's interval on sums, {above('demo_sums', prge, mezo)}, is one of five" in words
    assert f"independent is {above('demo_sums', released, es)} and {above('demo_concise', released, es)}." in words
    assert f"on concise sums, {above('demo_concise', best, mezo)}; on sums" in words
    assert f"not told apart, {above('demo_sums', best, mezo)}." in words
    for task, row in trained:
        if row != mezo:
            assert fmean(reward_pairs(task, row, mezo)) < 0, "the page says that MeZO's mean is the highest"
            ends = interval(reward_pairs(task, row, mezo), 1 - 0.05 / 5)
            assert ends, "it has one value"
            assert ends[0] < 0
            assert (ends[1] < 0) == ((task, row) == ("demo_concise", prge)), "the page says which is told apart"
    assert [sum(one == task and row != mezo for one, row in trained) for task in tasks] == [5, 5]
    found = {row: rewards("demo_concise", row) for task, row in trained if task == "demo_concise"}
    search = found["Best point of 48 (random search)"]
    assert max(found.values(), key=stdev) == search, "the page says that it differs most by seed"
    assert f"differs most by seed, {min(search):.3f} to {max(search):.3f}." in words


def test_the_answers_of_the_rewards_rows_are_as_many_as_is_said() -> None:
    written = []
    for trial in build(Composer(["+grid=rewards", "task=demo_sums"])).every.values():
        config = TrialConfig.of(trial.config)
        if config.method.kind.trains:
            each, train = config.method.kind.answers or config.forwards(1), config.train
            rows = (len(indices(config.seed, step, 60, train.batch or 0)) for step in range(1, train.steps + 1))
            written.append(each * sum(rows))
    assert f"of which they write {min(written):,} to {max(written):,} (the last" in page("LEAGUE")


def test_the_league_s_table_is_that_of_its_archives() -> None:
    lines = table("LEAGUE", "|                                  | SST-2, sentences |")
    compared = len(league("sst2_sent").keys() | league("sst2").keys()) - 1
    cosines = json.loads((DOCS / "bench" / "league_directions.json").read_text(encoding="utf-8"))
    for row, *cells, average, difference, settings, size, seconds, _ in lines:
        tasks = [task for task in TASKS if row in league(task)]
        for task, cell in zip(TASKS, cells, strict=True):
            check(cell, *(mean_and_spread(right(task, row).values()) if task in tasks else ()))
        means = [fmean(right(task, row).values()) for task in tasks]
        check(average, *([fmean(means)] if tasks == [*TASKS] else []))
        check(difference, *(ahead(row, "MeZO", TASKS, compared) if average and row != "MeZO" else ()))
        if not settings:
            continue
        check(settings, fmean(tried(task, row) for task in TASKS))
        ours, mezo = (list(chosen("trec", one).values()) for one in (row, "MeZO"))
        totals = [fmean(run["memory/total_bytes"] for run in runs) for runs in (ours, mezo)]
        check(size, totals[0] / totals[1])
        check(seconds, fmean(run["train_seconds"] for run in ours))
    assert len(lines) == compared + 1 - sum("as released" in row for row in league("sst2"))
    assert sorted(round(1e4 * row["cosine"]) for row in cosines) == sorted(int(line[-1]) for line in lines if line[-1])


def test_the_table_of_the_last_blocks_is_that_of_its_archives() -> None:
    (whole, *first, _), *others = table("LEAGUE", "|                        | SST-2, sentences |")
    tasks = [f"last_blocks_{task}" for task in TASKS]
    assert all(league(task).keys() == {whole, *(row for row, *_ in others)} for task in tasks)
    for task, cell in zip(tasks, first, strict=True):
        check(cell, *mean_and_spread(right(task, whole).values()))
    for row, *cells, difference in others:
        for task, cell in zip(tasks, cells, strict=True):
            check(cell, *mean_and_spread(right(task, row).values()))
        check(difference, *ahead(row, whole, tasks, len(others)))


RESULTS = [f"results_{task}" for task in ("sst2_sent", "trec", "copa", "wic", "rte")]


def of_both(*rows: str) -> list[str]:
    """The tasks of the results on which all rows ran."""
    return [task for task in RESULTS if {*rows} <= league(task).keys()]


def test_the_table_of_the_papers_methods_is_that_of_its_archives() -> None:
    lines, mezo = table("RESULTS", "|                                      | SST-2, sentences |"), "MeZO (ZO-Full)"
    assert [row for row, *_ in lines] == [*league(RESULTS[0])]
    for row, *cells, average, difference, size, seconds in lines:
        for task, cell in zip(RESULTS, cells, strict=True):
            check(cell, *(mean_and_spread(right(task, row).values()) if task in of_both(row) else ()))
        whole = of_both(row) == RESULTS
        check(average, *([fmean(fmean(right(task, row).values()) for task in RESULTS)] if whole else ()))
        check(difference, *(ahead(row, mezo, RESULTS, len(lines) - 1) if whole and row != mezo else ()))
        runs = [run for task in of_both(row) for run in chosen(task, row).values()]
        check(size, *([max(run["memory/total_bytes"] for run in runs) / 2**20] if "train_seconds" in runs[0] else ()))
        timed = chosen("results_steps", row)[0]["seconds_per_step"] if row in league("results_steps") else None
        check(seconds, *(() if timed is None else (timed,)))
        assert (timed is None) == ("train_seconds" not in runs[0])


def test_what_is_said_of_the_papers_claims_is_that_of_the_archives() -> None:
    lines = table("RESULTS", "| claim ")
    for _, row, other, difference in lines:
        check(difference, *ahead(row, other, of_both(row, other), len(lines)))
    fo, mezo, sentences = "FO-Adam, LoRA-FA", "MeZO (ZO-Full)", RESULTS[0]
    rows = [row for row in league(sentences) if "noise_to_signal" in chosen(sentences, row)[0]]
    behind = [
        fmean(right(task, fo).values()) - fmean(right(task, row).values()) for task in RESULTS[:2] for row in rows
    ]
    said = sentence("RESULTS", r"gets ([\d.]+) to ([\d.]+) points above .* and ([\d.]+) to ([\d.]+) on TREC")
    half = len(rows)
    check(said, min(behind[:half]), max(behind[:half]), min(behind[half:]), max(behind[half:]))
    for task in RESULTS[2:]:
        _, low, high = ahead(fo, mezo, [task], len(RESULTS))
        assert low < 0 < high
    layerwise = f"{fo}, layer by layer"
    apart = [ahead(fo, layerwise, [task], 1)[0] for task in of_both(layerwise)]
    check(sentence("RESULTS", r"stays within ([\d.]+) points of plain"), max(map(abs, apart)))
    best = [(min(rates, key=lambda one: rates[one][0]["dev/loss"]), [*rates]) for rates in searches()]
    edges = [one in (rates[0], rates[-1]) for one, rates in best]
    check(sentence("RESULTS", r"In (\d+) of (\d+) searches the selected rate is the"), sum(edges), len(edges))
    for row, said in (
        ("P-RGE, LoRA-FA (q=4)", r"is ([\d.]+) to ([\d.]+) of the spread of a step's losses under P-RGE"),
        ("Sensitive (C4), 0.1%", r"and ([\d.]+) to ([\d.]+) under Sensitive"),
    ):
        noise = [run["noise_to_signal"] for task in of_both(row) for run in chosen(task, row).values()]
        check(sentence("RESULTS", said), min(noise), max(noise))
    counts = [sum(count(task, profile) for task in RESULTS) for profile in ("cuda", "cpu")]
    check(sentence("RESULTS", r"(\d+) trials ran on an H200 .* (\d+) on a CPU"), *counts)


def count(task: str, profile: str) -> int:
    """The trials of an archive that ended on such a device."""
    with tarfile.open(DOCS / "league" / f"{task}.tar.xz") as archive:
        files = [archive.extractfile(name) or BytesIO() for name in archive.getnames() if name.startswith("journal/")]
        events = [[json.loads(line) for line in file] for file in files]
    started = [[event["profile"] for event in one if event["type"] == "start"] for one in events]
    return sum(profiles[-1] == profile for profiles in started if profiles)


def searches() -> list[Settings]:
    """Rate -> its trials, from the lowest, of every row and task of the results that compare several."""
    found = (settings for task in RESULTS for settings in league(task).values() if len(settings) > 1)
    return [dict(sorted(one.items(), key=lambda item: float(item[0][0].removeprefix("lr ")))) for one in found]


def test_the_table_of_clients_is_that_of_its_archives() -> None:
    lines = table("../packages/federated/README", "|                             | SST-2, sentences |")
    tasks = ["clients_sst2_sent", "clients_trec"]
    assert {row for row, *_ in lines} == league(tasks[0]).keys() == league(tasks[1]).keys()
    for row, *cells, difference, rounds, sent, received in lines:
        for task, cell in zip(tasks, cells, strict=True):
            check(cell, *mean_and_spread(right(task, row).values()))
        mezo = "MeZO, one process"
        check(difference, *(ahead(row, mezo, tasks, len(lines) - 1) if row != mezo else ()))
        runs = [run for task in tasks for run in chosen(task, row).values()]
        assert {run.get("rounds") for run in runs} == {float(rounds) if rounds else None}
        for cell, name in ((sent, "client_bytes_up"), (received, "client_bytes_down")):
            check(cell.replace(",", ""), *([fmean(run[name] for run in runs) / 1000] if cell else ()))


def test_what_the_second_quickstart_learns_is_that_of_its_archive() -> None:
    said = " ".join((DOCS / "adding" / "reward.md").read_text(encoding="utf-8").split())
    before, after = (settings[()][0] for settings in league("sums").values())
    for name, text in (
        ("test/reward", r"reward rises from (\S+) to (\S+)"),
        ("test/length", r"length falls from (\S+) characters to ([\d.]+)"),
    ):
        found = re.search(text, said)
        assert found, text
        check(found[1], before[name])
        check(found[2].rstrip(","), after[name])


def test_the_league_s_releases_are_those_of_its_archive() -> None:
    lines = table("LEAGUE", "| SST-2       | as published |")
    compared = len([row for row in league("sst2") if row.endswith("as released")])
    assert len(lines) == compared
    for row, published, released, difference in lines:
        check(published, *mean_and_spread(right("sst2", row).values()))
        check(released, *mean_and_spread(right("sst2", f"{row}, as released").values()))
        check(difference, *ahead(f"{row}, as released", row, ["sst2"], compared))


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


def test_what_the_league_says_of_its_table_is_so() -> None:
    said = sentence("LEAGUE", r"FO-Adam is (.*?) points above MeZO there over all weights, and (.*?) over LoRA-FA")
    compared = len(league("sst2_sent").keys() | league("sst2").keys()) - 1
    over = [ahead(f"FO-Adam, {what}", "MeZO", ["trec"], compared) for what in ("full", "LoRA-FA")]
    check(said, *over[0], *over[1])
    said = sentence("LEAGUE", r"of MeZO's bytes, are (.*?) points above it on TREC")
    check(said, *ahead("FO-Adam, LoRA-FA, layer by layer", "MeZO", ["trec"], compared))
    check(sentence("LEAGUE", r"the most frequent alone is ([\d.]+) %"), 100 * chosen("trec", "MeZO")[0]["majority"])
    first_order = [row for row in league("trec") if row.startswith("FO-")]
    for row in league("trec").keys() - set(first_order):
        assert fmean(right("trec", row).values()) < 27.6, row
    told = {
        row
        for row in league("trec").keys() - {"MeZO", "Zero-shot", "ICL (32 examples)"}
        for _, low, high in [ahead(row, "MeZO", TASKS, compared)]
        if low > 0 or high < 0
    }
    assert told == {"KerZOO"}
    labels = [
        line[0] for line in table("LEAGUE", "|                                  | SST-2, sentences |") if line[-1]
    ]
    rows = json.loads((DOCS / "bench" / "league_directions.json").read_text(encoding="utf-8"))  # in the same order
    cosine = {label: row["cosine"] for label, row in zip(labels, rows, strict=True) if label in league("trec")}
    average = [fmean(fmean(right(task, label).values()) for task in TASKS) for label in cosine]
    found = spearmanr([*cosine.values()], average).statistic
    check(sentence("LEAGUE", r"\(Spearman\) with the average is ([\d.]+) over (\d+) methods"), found, len(cosine))


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


def test_bytes_that_flower_adds_are_those_measured() -> None:
    row = one(bench("flower"), "beyond polls: a question")
    check(sentence("../packages/federated/README", r"adds ([\d.]+) kB per answer"), row["ratio"])
    assert row["detail"]["same weights"]
