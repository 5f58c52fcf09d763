"""The price of work, by hand."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from tests.plan.common import TINY, planned
from zo_sweeps.core.errors import UserError
from zo_sweeps.core.work import Pass, Rates, Work, seconds, terms
from zo_sweeps.devices import rates as kept
from zo_sweeps.devices.rates import keep, known
from zo_sweeps.methods.trial_config import TrialConfig
from zo_sweeps.models.identity import status
from zo_sweeps.plan.work import layer_values, products
from zo_sweeps.run.rating import TEXT, with_elements

pytestmark = pytest.mark.unit
RATES = Rates(
    device="a processor",
    threads=2,
    products={"float32": {1: 1e9, 100: 4e9}, "bfloat16": {1: 8e9}},
    memory_bytes=1e9,
    layer_bytes={10: 2e8, 1000: 1e8},
    numbers=1e6,
    layer=0.001,
    tensor=0.01,
    trial=0.5,
    start=3.0,
)


def test_the_seconds_of_a_trial_are_the_sum_of_its_terms() -> None:
    work = Work(
        kind="zo",
        passes=(Pass("steps", 10, 100, 8e9), Pass("scoring", 2, 1000, 4e9), Pass("scoring", 1, 10, 2e9)),
        layers=4,
        layer_bytes=1e5,
        tensors=30,
        numbers=2e6,
        moved_bytes=5e8,
    )
    step = 4 * 0.001 + 8e9 / 4e9 + 100 * 1e5 / (2e8 * 2**-0.5)  # half-way between 10 and 1000, on a scale of logarithms
    large = 4 * 0.001 + 4e9 / 4e9 + 1000 * 1e5 / 1e8
    small = 4 * 0.001 + 2e9 / 2e9 + 10 * 1e5 / 2e8  # 10 rows: half-way between 1 and 100, at 2e9
    expected = {"trial": 0.5, "noise": 30 * 0.01 + 2, "values": 0.5, "steps": 10 * step, "scoring": 2 * large + small}
    assert terms(work, RATES) == pytest.approx(expected)
    assert seconds(work, RATES) == pytest.approx(sum(expected.values()))


def test_weights_beyond_the_cache_are_read_from_memory_in_every_forward_and_once_when_loaded() -> None:
    work = Work("zo", passes=(Pass("steps", 3, 1, 1e6),), weight_bytes=2e9, reloads=True)
    assert terms(work, RATES)["steps"] == pytest.approx(3 * 2.0), "2 GB at 1 GB/s, which takes longer than the products"
    assert terms(work, RATES)["loading"] == pytest.approx(4 * 2.0)
    assert terms(replace(work, weight_bytes=1e6), RATES)["steps"] == pytest.approx(3 * 1e6 / 1e9)


def test_products_have_the_rate_of_their_dtype_and_of_the_nearest_rows_beyond_those_measured() -> None:
    rates = [RATES.of_products(dtype, rows) for dtype, rows in (("bfloat16", 7), ("float64", 7e5), ("float32", 0.5))]
    assert rates == pytest.approx([8e9, 4e9, 1e9])


def test_a_tiny_trial_has_the_forwards_that_its_configuration_says(tmp_path: Path) -> None:
    grid = {**TINY, "blocks": {"zo": {**TINY["blocks"]["zo"], "axes": {}}}}  # q = 2, 4 steps, dev after 2 and 4
    overrides = ("split.dev=6", "split.test=5", "train.batch=8", "evaluation.mode=both")
    (trial,) = planned(tmp_path, grid, *overrides).trials
    work, config = trial.work, TrialConfig.of(trial.config)
    arch = status(config.model).arch
    assert work is not None
    assert arch is not None
    parts = [(one.part, one.count, one.tokens) for one in work.passes]
    tokens = trial.cost / (4 * 8 * 4 + 2 * 6 + 5)  # of a row: a step forwards 8 rows at 4 points, all in one forward
    scoring = [("scoring", 2, 6), ("scoring", 1, 5), ("measurement", 1, 6), ("measurement", 1, 6)]  # last: untrained
    expected = [*scoring, ("steps", 4, 32), ("measurement", 1, 32)]
    assert parts == [(part, count, pytest.approx(rows * tokens)) for part, count, rows in expected]
    d = config.space.trainable(arch)
    assert d == 6 * 2 * 256 * 16  # B of q and v in 6 layers, rank 16
    draws = 4 * 2 + 4 * 2 * (1 + 0.5 * 0.5)  # each direction for its points, for its update, and in half of the replays
    assert (work.numbers, work.tensors) == pytest.approx((d * draws, 6 * 2 * draws))
    weights = 6 * (4 * 256 * 256 + 3 * 256 * 704)
    attention = 4 * 6 * 256 * 5 * tokens * tokens
    assert work.passes[1].products == pytest.approx(2 * 5 * tokens * weights + attention + 2 * 5 * 4096 * 256)


def test_rates_survive_their_file_and_a_damaged_one_is_named_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ZO_SWEEPS_CACHE", str(tmp_path))
    assert known("a processor", 2) is None
    keep(RATES)
    assert known("a processor", 2) == RATES
    assert known("a processor", 1) is None, "of another number of threads"
    (file,) = (tmp_path / "rates").iterdir()
    whole = json.loads(file.read_text())
    for damaged in ("{", "[]", *(json.dumps({**whole, **one}) for one in ({"layer_bytes": {}}, {"numbers": -1}))):
        file.write_text(damaged)
        with pytest.raises(UserError, match=r"cannot read this machine's rates.*plan --probe") as error:
            known("a processor", 2)
        assert str(file) in str(error.value)
        assert "\n" not in str(error.value)
    assert Rates.from_json(json.loads(json.dumps(kept.REFERENCE.to_json()))) == kept.REFERENCE


def test_elementwise_rates_are_those_with_which_the_probes_forwards_take_what_they_took(tmp_path: Path) -> None:
    (trial, *_) = planned(tmp_path, TINY).trials
    arch = status(TrialConfig.of(trial.config).model).arch
    assert arch is not None
    taken = {320: 3.0, 3200: 30.0}
    rates = with_elements(replace(RATES, layer_bytes={1: math.inf}), arch, taken)
    for tokens, whole in taken.items():
        one = Pass("steps", 1, tokens, products(arch, tokens, TEXT, 0))
        work = Work("", passes=(one,), layers=arch.layers, layer_bytes=4 * arch.layers * layer_values(arch))
        assert terms(work, rates)["steps"] == pytest.approx(whole)
