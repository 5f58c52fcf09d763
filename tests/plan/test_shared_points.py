"""What trials of a grid share is found once for all of them, and each is what it would be alone."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.plan.common import changed, configs, planned
from zo_sweeps.plan.availability import Places
from zo_sweeps.plan.resolve import Resolver
from zo_sweeps.tasks.spec import TaskSpec

pytestmark = pytest.mark.unit
OWN_SPLIT = {"fixed": {"model": "demo", "prompt": "mezo", "split": {"seed": None}}}


def counted(monkeypatch: pytest.MonkeyPatch, calls: Counter[str], owner: Any, name: str) -> None:
    made = getattr(owner, name)

    def call(*given: Any) -> Any:
        calls[name] += 1
        return made(*given)

    monkeypatch.setattr(owner, name, call)


def test_no_work_of_a_plan_is_done_again_for_each_seed_or_rate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: Counter[str] = Counter()
    for owner, name in ((Resolver, "_resolved"), (Places, "_look"), (TaskSpec, "_validate")):
        counted(monkeypatch, calls, owner, name)
    few = planned(tmp_path, changed(seeds=[0, 1]))
    of_few = Counter(calls)
    many = planned(tmp_path, changed(seeds=list(range(20))))
    assert (len(few.every), len(many.every)) == (4, 40)
    assert calls - of_few == of_few
    assert (of_few["_resolved"], of_few["_look"]) == (2, 1), "of two rates"


@pytest.mark.parametrize("top", [{}, OWN_SPLIT])
def test_a_trial_among_others_is_the_trial_that_it_is_alone(tmp_path: Path, top: dict[str, Any]) -> None:
    together = planned(tmp_path, changed(**top, seeds=[3, 0, 4]))
    alone = [planned(tmp_path, changed(**top, seeds=[seed])) for seed in (3, 0, 4)]
    assert together.every == {trial_id: trial for plan in alone for trial_id, trial in plan.every.items()}
    assert [config.trial_id() for config in configs(together)] == list(together.every)
    assert {config.seed for config in configs(together)} == {0, 3, 4}
    drawn = {config.split.seed for config in configs(together)}
    assert drawn == ({0, 3, 4} if top else {0})
