"""What a report says was found, from outcomes with known numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.results.common import DEVICE, GRID, composed
from zo_sweeps.config.composer import Composer
from zo_sweeps.core.memory_parts import TOTAL
from zo_sweeps.core.trial import Outcome, TrialState
from zo_sweeps.methods.trial_config import TrialConfig
from zo_sweeps.plan.build import Plan
from zo_sweeps.results import tables as readout
from zo_sweeps.schedule.ledger import Standing
from zo_sweeps_report.findings import BASELINE_UNFINISHED, NO_BASELINE, NO_ESTIMATE, Findings, findings

pytestmark = pytest.mark.unit

TRAIN = {"steps": 20, "eval_every": 10, "batch": 4}
ROWS: dict[str, Any] = {  # the first-order row has a name that does not tell
    "a": {"label": "Row A", "fixed": {"method": "fo_lora_fa", "train": TRAIN}},
    "b": {"label": "Row B", "fixed": {"method": "prge", "estimator": {"q": 2}, "train": TRAIN}},
    "z": {"label": "FO", "fixed": {"method": "zero_shot"}},
}
TEST = {"a": (0.90, 0.92, 0.94), "b": (0.85, 0.86, 0.87), "z": (0.5, 0.5, 0.5), "l": (0.88, 0.89, 0.90)}


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Composer, Plan]:
    grid = {
        **GRID,
        "blocks": ROWS,
        "figures": {},
        "tables": {"accuracy": {"layout": "accuracy", "rows": dict.fromkeys(ROWS, "")}},
    }
    return composed(tmp_path_factory.mktemp("findings"), grid)


def outcome(plan: Plan, trial_id: str, **metrics: float) -> Outcome:
    trial = plan.every[trial_id]
    cost = 4.0 if trial.block == "b" else 1.0
    made = {
        "dev/loss": 0.5,
        "test/metric": TEST[trial.block][TrialConfig.of(trial.config).seed],
        "train_seconds": 10 * cost,
        "trainable_parameters": 100.0,
        TOTAL: 2**20 * (30.0 if trial.block == "b" else 50.0),
        **metrics,
    }
    return Outcome(trial_id, TrialState.SUCCEEDED, made, steps_done=20, device=DEVICE)


def found(planned: tuple[Composer, Plan], *blocks: str, of_b: Mapping[str, Any] = {}, **metrics: float) -> Findings:
    """The findings if the trials of these blocks have finished; `of_b` are facts of the device of block b."""
    composer, plan = planned
    done = [i for i, trial in plan.every.items() if trial.block in blocks]
    made = {i: outcome(plan, i, **metrics) for i in done}
    moved = {i: replace(one, device={**DEVICE, **of_b}) for i, one in made.items() if plan.every[i].block == "b"}
    standing = Standing(states=dict.fromkeys(done, TrialState.SUCCEEDED), outcomes={**made, **moved})
    return findings(plan, standing, readout.tables(plan, composer, standing))


def test_the_best_zeroth_order_row_is_held_against_the_row_that_backpropagates_whatever_its_name(
    planned: tuple[Composer, Plan],
) -> None:
    result = found(planned, "a", "b", "z")
    assert result.sentences == (
        "Row B is the best zeroth-order row by dev/loss: 86.0 ± 1.0 % on Movie remarks (3 seeds). That is 6.0 points "
        "below Row A (92.0 ± 2.0 %), the best row trained by backpropagation.",
    )
    values = {headline.label: (headline.value, headline.detail) for headline in result.headlines}
    # differences −5, −6, −7: mean −6, s = 1, t(2) = 4.303, so ± 2.48
    assert values["from backpropagation (Row A)"] == (
        "−6.0 points", "92.0 ± 2.0 %; 95% interval −8.5 to −3.5, 3 pairs by seed",
    )  # fmt: skip
    assert values["memory"] == ("−40 %", "30.0 MiB instead of 50.0 MiB; tensors alive at the peak of a step")
    # 20 steps of 4 examples: 2q = 4 forwards each, and 3 with a backward pass
    assert values["forwards per run"][0] == "1.3 ×"
    assert values["forwards per run"][1].startswith("320 instead of 240 examples")
    assert values["time of a run's steps"] == ("4 ×", "40 s instead of 10 s")
    assert "energy of a run's steps" not in values, "it was not measured"
    assert [(line.row, line.value, line.seeds, line.so_far) for line in result.best] == [
        ("Row A", "92.0 ± 2.0 %", "3 seeds", "")
    ]


FOUR = {name: {**ROWS["b"], "label": name.upper()} for name in ("p", "q", "r")}
FOUR = {
    name: {**row, "fixed": {**row["fixed"], "estimator": {"q": i}}} for i, (name, row) in enumerate(FOUR.items(), 1)
}
SCORES = {  # the highest mean on test is Q's, the lowest loss on dev P's; R is below P in every seed
    "a": (0.5, (0.90, 0.80, 0.70)),
    "p": (0.3, (0.85, 0.86, 0.87)),
    "q": (0.4, (0.70, 0.95, 0.99)),
    "r": (0.6, (0.65, 0.66, 0.68)),
}


def of_four(folder: Path, seeds: int = 3, **scores: Any) -> Findings:
    rows = {"a": ROWS["a"], **FOUR}
    tables = {"accuracy": {"layout": "accuracy", "rows": dict.fromkeys(rows, "")}}
    grid = {**GRID, "blocks": rows, "figures": {}, "tables": tables, "seeds": [*range(seeds)]}
    composer, plan = composed(folder, grid)
    standing = Standing()
    for trial_id, trial in plan.every.items():
        dev, test = {**SCORES, **scores}[trial.block]
        metrics = {"dev/loss": dev, "test/metric": test[TrialConfig.of(trial.config).seed]}
        standing.states[trial_id] = TrialState.SUCCEEDED
        standing.outcomes[trial_id] = Outcome(trial_id, TrialState.SUCCEEDED, metrics, steps_done=20, device=DEVICE)
    return findings(plan, standing, readout.tables(plan, composer, standing))


def test_the_row_is_chosen_on_dev_and_a_difference_is_named_only_where_its_interval_excludes_zero(
    tmp_path: Path,
) -> None:
    result = of_four(tmp_path)
    # P − A: −5, 6, 17: mean 6, s = 11, t(2) = 4.303, so ± 27.3; P − R: 20, 20, 19
    assert result.sentences == (
        "P is the best zeroth-order row by dev/loss: 86.0 ± 1.0 % on Movie remarks (3 seeds). "
        "1 of the 2 others can be told from it. "
        "It cannot be told from Row A (80.0 ± 10.0 %): the 95% interval of the difference is −21.3 to +33.3, "
        "3 pairs by seed.",
    )
    (distance,) = [headline for headline in result.headlines if headline.label.startswith("from backpropagation")]
    assert distance.value == "not told apart"
    assert distance.detail == "80.0 ± 10.0 %; the 95% interval of the difference is −21.3 to +33.3, 3 pairs by seed"
    assert [(line.table, line.row) for line in result.best] == [("accuracy, chosen by dev/loss", "P")]


def test_backpropagation_at_the_same_memory_is_named_where_it_is_not_the_best_row(tmp_path: Path) -> None:
    rows = {**ROWS, "l": {"label": "Layer by layer", "fixed": {"method": "fo_lora_fa_layerwise", "train": TRAIN}}}
    tables = {"accuracy": {"layout": "accuracy", "rows": dict.fromkeys(rows, "")}}
    composer, plan = composed(tmp_path, {**GRID, "blocks": rows, "figures": {}, "tables": tables})

    def at(mib: float, scores: Sequence[float] = ()) -> dict[str, tuple[str, str]]:
        of_l, own = {"dev/loss": 0.6, TOTAL: mib * 2**20}, iter(scores)
        made = {i: outcome(plan, i, **(of_l if trial.block == "l" else {})) for i, trial in plan.every.items()}
        for i, trial in plan.every.items():
            if scores and trial.block == "l":
                made[i] = outcome(plan, i, **of_l, **{"test/metric": next(own)})
        standing = Standing(states=dict.fromkeys(made, TrialState.SUCCEEDED), outcomes=made)
        result = findings(plan, standing, readout.tables(plan, composer, standing))
        return {headline.label: (headline.value, headline.detail) for headline in result.headlines}

    label = "from backpropagation at its memory (Layer by layer)"  # 85, 86, 87 against 88, 89, 90
    assert at(32.9)[label] == ("−3.0 points", "89.0 ± 1.0 %")
    assert at(32.9)["from backpropagation (Row A)"][0] == "−6.0 points"
    # 85, 86, 87 against 80, 90, 97: mean -3, s = 7.55, so ± 18.76
    wide = ("not told apart", "89.0 ± 8.5 %; −3.0 points; 95% interval −21.8 to +15.8")
    assert at(32.9, [0.80, 0.90, 0.97])[label] == wide
    assert label not in at(33.1), "that is more than a tenth above 30 MiB"


def test_columns_of_another_unit_are_in_no_difference(tmp_path: Path) -> None:
    columns = {"plain": {"label": "Remarks"}, "mcc": {"label": "MCC", "task": {"metric": "matthews"}}}
    tables = {"accuracy": {"layout": "accuracy", "rows": dict.fromkeys(ROWS, "")}}
    grid = {**GRID, "axes": {}, "columns": columns, "blocks": ROWS, "figures": {}, "tables": tables}
    composer, plan = composed(tmp_path, grid)
    made = {trial_id: outcome(plan, trial_id) for trial_id in plan.every}
    standing = Standing(states=dict.fromkeys(made, TrialState.SUCCEEDED), outcomes=made)
    for cell in plan.cells:
        if (cell.block, cell.task) == ("b", "mcc"):
            standing.outcomes[cell.trial_id] = outcome(plan, cell.trial_id, **{"test/metric": 0.2})
    result = findings(plan, standing, readout.tables(plan, composer, standing))
    assert "That is 6.0 points below Row A (92.0 ± 2.0 %) on Remarks, the best row" in result.sentences[0]
    (distance,) = [headline for headline in result.headlines if headline.label.startswith("from backpropagation")]
    assert distance.detail == "92.0 ± 2.0 %; 95% interval −8.5 to −3.5, 3 pairs by seed"


def test_of_one_run_each_nothing_is_told_apart(tmp_path: Path) -> None:
    (text,) = of_four(tmp_path, seeds=1).sentences
    assert (
        "None of the others can be told from it. It cannot be told from Row A (90.0 %): no interval, there are" in text
    )
    assert "points" not in text


def test_energy_is_stated_where_both_rows_have_it_by_one_definition(planned: tuple[Composer, Plan]) -> None:
    composer, plan = planned
    standing = Standing()
    for trial_id in plan.every:
        made = outcome(plan, trial_id, **{"energy/joules": 50.0})
        standing.states[trial_id] = TrialState.SUCCEEDED
        standing.outcomes[trial_id] = replace(made, device={**DEVICE, "energy_definition": "of the package"})
    result = findings(plan, standing, readout.tables(plan, composer, standing))
    assert [(h.value, h.detail) for h in result.headlines if "energy" in h.label] == [("1 ×", "50 J instead of 50 J")]


def test_costs_of_different_places_are_not_compared_and_both_are_named(planned: tuple[Composer, Plan]) -> None:
    costs = {h.label: (h.value, h.detail) for h in found(planned, "a", "b", of_b={"threads": 2}).headlines}
    why = "measured in different places: cpu, PyTorch, 2 threads against cpu, PyTorch, 1 thread"
    assert costs["time of a run's steps"] == ("–", why)
    assert "memory" not in costs
    loaded = found(planned, "a", "b", of_b={"load": {"before": 0.0, "during": 0.9}})
    (time,) = (h for h in loaded.headlines if h.label == "time of a run's steps")
    assert time.value == "4 ×"
    assert time.detail.endswith("; measured under load: other processes took 90% of the machine's cores meanwhile")


def test_the_best_row_of_times_is_not_that_of_another_place(tmp_path: Path) -> None:
    grid = {**GRID, "blocks": ROWS, "figures": {}, "tables": {"t": {"layout": "step_time", "rows": {"a": "", "b": ""}}}}
    made = composed(tmp_path, grid)
    assert found(made, "a", "b", seconds_per_step=1.0).best[0].row == "all rows are equal"
    (other,) = found(made, "a", "b", of_b={"name": "Another"}, seconds_per_step=1.0).best
    assert other.row.startswith("none, measured in different places: cpu (")
    assert "Another" in other.row
    (loaded,) = found(made, "a", "b", of_b={"load": {"during": 0.9}}, seconds_per_step=1.0).best
    assert "measured under load" in loaded.so_far


def test_an_unfinished_baseline_is_named_so_and_nothing_is_compared_with_it(planned: tuple[Composer, Plan]) -> None:
    result = found(planned, "b")
    assert result.sentences[0].endswith(BASELINE_UNFINISHED)
    assert len(result.headlines) == 1
    assert result.best[0].so_far == "1 of 3 rows are complete"


def test_a_sweep_without_backpropagation_says_so(tmp_path: Path) -> None:
    grid = {
        **GRID,
        "blocks": {"b": ROWS["b"]},
        "figures": {},
        "tables": {"accuracy": {"layout": "accuracy", "rows": {"b": ""}}},
    }
    assert found(composed(tmp_path, grid), "b").sentences[0].endswith(NO_BASELINE)


def test_a_sweep_whose_zeroth_order_rows_have_no_value_says_so_first(planned: tuple[Composer, Plan]) -> None:
    assert found(planned, "z").sentences == (
        NO_ESTIMATE, "Best accuracy, chosen by dev/loss: 50.0 %, FO (1 of 3 rows are complete)."
    )  # fmt: skip


def test_without_results_nothing_is_claimed(planned: tuple[Composer, Plan]) -> None:
    assert found(planned) == Findings(("No cell of this sweep has a result yet.",), (), ())
