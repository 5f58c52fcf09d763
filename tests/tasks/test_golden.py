"""Every task in every dialect against text written by hand from the protocol."""

from __future__ import annotations

import json

import pytest

from tests.tasks.common import DIALECTS, GOLDEN, TASK_FILES, load_task
from zo_sweeps.tasks import TaskSpec, render

pytestmark = pytest.mark.unit

CASES = [
    pytest.param(name, dialect, case, id=f"{name}-{dialect}-{number}")
    for name in TASK_FILES
    if (GOLDEN / f"{name}.json").is_file()
    for number, case in enumerate(json.loads((GOLDEN / f"{name}.json").read_text(encoding="utf-8")))
    for dialect in DIALECTS
]


def test_every_task_file_has_golden_text() -> None:
    assert {path.stem for path in GOLDEN.glob("*.json")} == set(TASK_FILES)


@pytest.mark.parametrize(("name", "dialect", "case"), CASES)
def test_the_prompt_is_the_golden_text_byte_for_byte(name: str, dialect: str, case: dict) -> None:
    prompt = render(TaskSpec.from_config(load_task(name), dialect), case["row"])
    expected = case[dialect]
    assert prompt.text == expected["text"]
    assert list(prompt.options) == expected["options"]
    assert prompt.gold == expected["gold"]
    assert list(prompt.references) == expected.get("references", [])


@pytest.mark.parametrize("name", ["sst2_sent", "demo_remarks"])
def test_the_variants_of_sst2_keep_its_wording(name: str) -> None:
    assert load_task(name)["dialects"] == load_task("sst2")["dialects"]


def test_losses_are_those_of_the_two_protocols() -> None:
    mezo = {name: load_task(name)["dialects"]["mezo"]["loss"] for name in TASK_FILES}
    prge = {load_task(name)["dialects"]["prge"]["loss"] for name in TASK_FILES}
    assert {name for name, loss in mezo.items() if loss == "tokens"} == {"copa", "winogrande", "squad"}
    assert prge == {"tokens"}
