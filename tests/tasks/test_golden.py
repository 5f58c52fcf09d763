"""Every task in every dialect against text written by hand from the protocol."""

from __future__ import annotations

import json

import pytest

from tests.tasks.common import DIALECTS, GOLDEN, TASK_FILES, cases, load_task, spec_of
from zo_sweeps.tasks.encode import render

pytestmark = pytest.mark.unit

CASES = [
    pytest.param(name, dialect, case, id=f"{name}-{dialect}-{number}")
    for name, dialect in cases()
    if (GOLDEN / f"{name}.json").is_file()
    for number, case in enumerate(json.loads((GOLDEN / f"{name}.json").read_text(encoding="utf-8")))
]


def test_every_task_file_has_golden_text() -> None:
    assert {path.stem for path in GOLDEN.glob("*.json")} == set(TASK_FILES)


@pytest.mark.parametrize(("name", "dialect", "case"), CASES)
def test_the_prompt_is_the_golden_text_byte_for_byte(name: str, dialect: str, case: dict) -> None:
    prompt = render(spec_of(load_task(name), dialect), case["row"])
    expected = case[dialect]
    assert prompt.text == expected["text"]
    assert list(prompt.options) == expected["options"]
    assert prompt.gold == expected["gold"]
    assert list(prompt.references) == expected.get("references", [])
    assert list(prompt.golds) == expected.get("golds", [prompt.gold])


@pytest.mark.parametrize(("name", "dialect", "case"), CASES)
def test_an_answer_to_generate_has_the_text_that_ends_it_at_its_end_alone(name: str, dialect: str, case: dict) -> None:
    spec = spec_of(load_task(name), dialect)
    if spec.kind.generates:
        (answer,) = render(spec, case["row"]).options
        assert (spec.stop or "\n") not in answer.strip()


def test_every_dialect_is_a_prompt_that_can_be_chosen_and_every_prompt_has_a_task() -> None:
    assert {dialect for _, dialect in cases()} == set(DIALECTS)


@pytest.mark.parametrize("name", ["sst2_sent", "demo_remarks"])
def test_the_variants_of_sst2_keep_its_wording(name: str) -> None:
    assert load_task(name)["dialects"] == load_task("sst2")["dialects"]


def test_losses_are_those_of_the_two_protocols() -> None:
    losses: dict[str, dict[str, str]] = {}
    for name, dialect in cases():
        losses.setdefault(dialect, {})[name] = load_task(name)["dialects"][dialect]["loss"]
    tokens = {name for name, loss in losses["mezo"].items() if loss == "tokens"}
    rewarded = {"demo_sums", "demo_concise", "gsm8k", "gym_products"}
    assert tokens == {"copa", "winogrande", "squad", "record", "drop", "trec", *rewarded}
    assert {name for name, loss in losses["sensitive_llama2"].items() if loss == "tokens"} == {"copa"}
    assert set(losses["prge"].values()) == {"tokens"}
    assert set(losses["mezo_medium"].values()) == {"label_words"}


def test_the_label_words_of_a_masked_model_are_single_words() -> None:
    for name, dialect in cases():
        wording = load_task(name)["dialects"][dialect]
        if wording["loss"] == "label_words":
            assert all(option.isalpha() for option in wording["options"]), name
