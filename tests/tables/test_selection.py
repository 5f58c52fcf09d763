"""Which setting a cell reports."""

from __future__ import annotations

import itertools
import math
import random
import statistics

import pytest

from zo_sweeps.tables import CellState, Record, Rule, build
from zo_sweeps.tables.select import edges, select, settings

from .examples import LR, Q, record, shuffled, spec

pytestmark = pytest.mark.unit

CELL = ("zo", "sst2")


def brute_force(records: list[Record], rule: Rule) -> tuple[float, list[Record]] | None:
    """The rule written plainly: every group of seeds, its mean, the best one."""
    best = None
    for key in dict.fromkeys(tuple(r.hyperparameters.items()) for r in sorted(records, key=lambda r: r.order)):
        group = [r for r in records if tuple(r.hyperparameters.items()) == key]
        if any(r.state != "SUCCEEDED" for r in group):
            continue
        score = sum(r.metrics[rule.metric] for r in group) / len(group)
        better = best is None or (score < best[0] if rule.mode == "min" else score > best[0])
        if better:
            best = (score, sorted(group, key=lambda r: r.seed))
    return best


@pytest.mark.parametrize("trial", range(40))
def test_the_selected_setting_is_that_of_a_brute_force_search(trial: int) -> None:
    rng = random.Random(trial)
    rule = Rule("dev/loss", "min") if trial % 2 else Rule("dev/metric", "max")
    records = []
    for i, (lr, q) in enumerate(itertools.product((1e-4, 5e-4, 1e-3), (1, 2, 4))):
        for seed in range(rng.choice((1, 2, 3))):
            state = rng.choices(("SUCCEEDED", "DIVERGED", "OUT_OF_MEMORY"), (8, 1, 1))[0]
            one = record({LR: lr, Q: q}, seed, state=state, order=10 * i + seed)
            # Multiples of 1/8 add up exactly, so that equal means are equal here and there.
            scores = {"dev/loss": rng.randrange(8) / 8, "dev/metric": rng.randrange(8) / 8, "test/metric": rng.random()}
            # A trial that diverged may have been evaluated before it did, and a good score then must not count.
            records.append(Record(**{**vars(one), "metrics": scores}))
    cell = build(spec(rule=rule), shuffled(records, trial)).cells[CELL]
    expected = brute_force(records, rule)
    if expected is None:
        assert cell.mean is None
        return
    runs = expected[1]
    tests = [100 * r.metrics["test/metric"] for r in runs]
    assert cell.trial_ids == tuple(r.trial_id for r in runs)
    assert cell.mean == pytest.approx(sum(tests) / len(tests))
    assert cell.n == len(tests)
    if len(tests) > 1:
        variance = sum((x - sum(tests) / len(tests)) ** 2 for x in tests) / (len(tests) - 1)
        assert cell.std == pytest.approx(math.sqrt(variance))
    else:
        assert cell.std is None


def test_test_scores_never_change_the_selection() -> None:
    records = [record({LR: lr}, dev=dev, test=test) for lr, dev, test in ((1e-4, 0.3, 0.6), (1e-3, 0.4, 0.99))]
    assert build(spec(), records).cells[CELL].selected == {LR: 1e-4}


def test_the_first_setting_in_grid_order_wins_a_tie() -> None:
    records = [record({LR: lr}, dev=0.5, order=order) for lr, order in ((1e-3, 0), (5e-3, 1), (1e-4, 2))]
    for ordered in itertools.permutations(records):
        assert build(spec(), ordered).cells[CELL].selected == {LR: 1e-3}


def test_without_an_order_a_tie_goes_to_the_smallest_number_not_to_the_first_text() -> None:
    records = [record({Q: q}, dev=0.5) for q in (16, 2, 4)]
    assert build(spec(), records).cells[CELL].selected == {Q: 2}


def test_mode_max_takes_the_highest_dev_metric() -> None:
    records = [
        record({LR: 1e-4}, metrics={"dev/metric": 0.8, "dev/loss": 0.1, "test/metric": 0.7}),
        record({LR: 1e-3}, metrics={"dev/metric": 0.9, "dev/loss": 0.9, "test/metric": 0.6}),
    ]
    assert build(spec(rule=Rule("dev/metric", "max")), records).cells[CELL].selected == {LR: 1e-3}
    assert build(spec(), records).cells[CELL].selected == {LR: 1e-4}


def test_a_better_setting_that_lacks_a_seed_is_not_selected_yet() -> None:
    records = [record({LR: 1e-4}, seed, dev=0.5) for seed in range(2)]
    records += [record({LR: 1e-3}, 0, dev=0.1), record({LR: 1e-3}, 1, state="RUNNING")]
    cell = build(spec(), records).cells[CELL]
    assert cell.selected == {LR: 1e-4}
    assert (cell.state, cell.finished, cell.planned) == (CellState.PARTIAL, 3, 4)


def test_a_setting_with_one_diverged_seed_is_out_and_the_search_still_complete() -> None:
    records = [record({LR: 1e-4}, seed, dev=0.5) for seed in range(2)]
    records += [record({LR: 1e-3}, 0, dev=0.1), record({LR: 1e-3}, 1, state="DIVERGED")]
    cell = build(spec(), records).cells[CELL]
    assert cell.selected == {LR: 1e-4}
    assert cell.state is CellState.DONE


def test_a_success_whose_dev_loss_is_not_finite_is_no_candidate() -> None:
    records = [record({LR: 1e-4}, dev=math.nan), record({LR: 1e-3}, dev=0.7)]
    assert build(spec(), records).cells[CELL].selected == {LR: 1e-3}
    assert build(spec(), [record({LR: 1e-4}, dev=math.nan), record({LR: 1e-3}, dev=math.inf)]).cells[CELL].state is (
        CellState.DIVERGED
    )


def test_integral_floats_and_integers_are_one_setting() -> None:
    assert len(settings([record({Q: 4}, 0), record({Q: 4.0}, 1)])) == 1


def test_two_trials_of_one_seed_in_a_setting_are_refused() -> None:
    with pytest.raises(ValueError, match=r"same cell \(zo, sst2\)"):
        build(spec(), [record({LR: 1e-4}, 0), record({LR: 1e-4}, 0, trial_id="other")])


@pytest.mark.parametrize(
    ("best", "expected"), [(0, {LR: "smallest"}), (1, {}), (2, {LR: "largest"})], ids=["low", "inside", "high"]
)
def test_the_edge_of_a_searched_axis_is_named(best: int, expected: dict[str, str]) -> None:
    lrs = (1e-4, 5e-4, 1e-3)
    candidates = settings(
        record({LR: lr, "evaluation.mode": mode}, dev=0.5 - 0.1 * (i == best) - 0.01 * (mode == "both"))
        for i, lr in enumerate(lrs)
        for mode in ("inner", "both")
    )
    selected = select(candidates, Rule())
    assert selected is not None
    assert selected.hyperparameters[LR] == lrs[best]
    assert edges(selected, candidates) == expected


def test_an_axis_with_one_value_has_no_edge() -> None:
    records = [record({LR: lr, Q: 1}, dev=dev) for lr, dev in ((1e-4, 0.5), (5e-4, 0.4), (1e-3, 0.5))]
    assert build(spec(), records).cells[CELL].edges == {}


def test_mean_and_spread_are_those_of_the_statistics_module() -> None:
    tests = (0.901, 0.913, 0.922, 0.87)
    cell = build(spec(), [record({}, seed, test=value) for seed, value in enumerate(tests)]).cells[CELL]
    assert cell.mean == pytest.approx(100 * statistics.mean(tests))
    assert cell.std == pytest.approx(100 * statistics.stdev(tests))
