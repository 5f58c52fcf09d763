"""Token ids: the answer's share of a sequence, what truncation keeps, what stands in front."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from tests.tasks.common import load_task, spec_of
from zo_sweeps.core.errors import UserError
from zo_sweeps.models.checkpoint import front_of
from zo_sweeps.plan import planned_memory
from zo_sweeps.plan.planned_memory import too_long
from zo_sweeps.tasks.encode import EncodedExample, encode, render
from zo_sweeps.tasks.templates import uses

pytestmark = pytest.mark.unit

REMARK = {"sentence": "the film was great , so great that the end was terrible", "label": 1}
ENTAILMENT = {"premise": "It rained.", "hypothesis": "It was wet.", "label": 0}
GAP = {"sentence": "Sarah beat Maria, so _ was great.", "option1": "Sarah", "option2": "Maria", "answer": "2"}
QUESTION = {
    "title": "Film",
    "context": "the film was great " * 30,
    "question": "It was?",
    "answers": {"text": ["so great", "great"], "answer_start": [0, 0]},
}


def encoded(
    name: str, row: dict[str, Any], tokenizer: Any, length: int = 512, dialect: str = "mezo", **kw: Any
) -> EncodedExample:
    front = kw.pop("front", front_of(tokenizer))
    return encode(spec_of(load_task(name), dialect), row, tokenizer, length, front=front, **kw)


def answers(example: EncodedExample, tokenizer: Any) -> list[str]:
    return [tokenizer.decode(c.ids[-c.answer_length :]) for c in example.candidates]


@pytest.mark.parametrize("dialect", ["mezo", "prge"])
def test_the_label_word_with_its_space_is_one_token(dialect: str, tokenizer: Any) -> None:
    example = encoded("sst2", REMARK, tokenizer, dialect=dialect)
    assert answers(example, tokenizer) == [" terrible", " great"]
    assert [c.answer_length for c in example.candidates] == [1, 1]
    assert example.gold == 1


def test_the_two_dialects_of_sst2_are_the_same_sequence(tokenizer: Any) -> None:
    assert encoded("sst2", REMARK, tokenizer) == encoded("sst2", REMARK, tokenizer, dialect="prge")


def test_a_newline_before_the_answer_is_kept_and_a_space_goes_to_the_answer(tokenizer: Any) -> None:
    mezo = encoded("rte", ENTAILMENT, tokenizer)
    assert answers(mezo, tokenizer) == ["Yes", "No"]
    assert tokenizer.decode(mezo.prompt_ids).endswith("Yes or No?\n")
    prge = encoded("rte", ENTAILMENT, tokenizer, dialect="prge")
    assert answers(prge, tokenizer) == [" Yes", " No"]
    assert [c.answer_length for c in prge.candidates] == [1, 1]
    assert tokenizer.decode(prge.prompt_ids).endswith("Yes or No?")


def test_the_candidates_of_winogrande_share_the_text_after_the_gap(tokenizer: Any) -> None:
    example = encoded("winogrande", GAP, tokenizer)
    assert answers(example, tokenizer) == [" Sarah was great.", " Maria was great."]
    assert example.gold == 1


def test_a_gap_at_the_start_scores_everything_but_the_first_token(tokenizer: Any, tokenizer_without_bos: Any) -> None:
    row = {**GAP, "sentence": "_ was great."}
    example = encoded("winogrande", row, tokenizer)
    assert answers(example, tokenizer) == ["Sarah was great.", "Maria was great."]
    assert example.prompt_ids == (tokenizer.bos_token_id,)
    for candidate in encoded("winogrande", row, tokenizer_without_bos).candidates:
        assert candidate.answer_length == len(candidate.ids) - 1


@pytest.mark.parametrize(("dialect", "answer"), [("mezo", " so great\n"), ("prge", " so great")])
def test_squad_trains_on_the_first_answer_and_generates_from_the_prompt(
    tokenizer: Any, dialect: str, answer: str
) -> None:
    example = encoded("squad", QUESTION, tokenizer, dialect=dialect)
    assert answers(example, tokenizer) == [answer]
    assert example.references == ("so great", "great")
    assert tokenizer.decode(example.prompt_ids).endswith("Question: It was?\nAnswer:")
    assert example.candidates[0].ids[: len(example.prompt_ids)] == example.prompt_ids


def test_answer_length_is_the_difference_of_two_tokenisations(tokenizer: Any) -> None:
    prompt = 'It rained.\nDoes this mean that "It was wet." is true? Yes or No?\n'
    example = encoded("rte", ENTAILMENT, tokenizer)
    for candidate, word in zip(example.candidates, ("Yes", "No"), strict=True):
        assert list(candidate.ids) == tokenizer(prompt + word)["input_ids"]
        assert candidate.answer_length == len(tokenizer(prompt + word)["input_ids"]) - len(
            tokenizer(prompt)["input_ids"]
        )


@pytest.mark.parametrize("length", [6, 10, 15])
def test_truncation_drops_from_the_left_and_keeps_the_bos(tokenizer: Any, length: int) -> None:
    whole, cut = encoded("sst2", REMARK, tokenizer), encoded("sst2", REMARK, tokenizer, length)
    for full, short in zip(whole.candidates, cut.candidates, strict=True):
        assert len(short.ids) == length < len(full.ids)
        assert short.ids == (tokenizer.bos_token_id, *full.ids[-(length - 1) :])
        assert short.answer_length == full.answer_length
    assert cut.prompt_ids == (tokenizer.bos_token_id, *whole.prompt_ids[-(length - 1) :])


def test_truncation_without_a_bos_keeps_the_last_tokens(tokenizer_without_bos: Any) -> None:
    whole = encoded("sst2", REMARK, tokenizer_without_bos)
    cut = encoded("sst2", REMARK, tokenizer_without_bos, 8)
    assert [c.ids for c in cut.candidates] == [c.ids[-8:] for c in whole.candidates]
    assert whole.candidates[0].ids[0] != tokenizer_without_bos.bos_token_id


def test_an_answer_longer_than_the_limit_keeps_one_token_of_context(tokenizer: Any) -> None:
    example = encoded("winogrande", {**GAP, "sentence": "so _ was great, so great that it was terrible"}, tokenizer, 5)
    for candidate in example.candidates:
        assert (len(candidate.ids), candidate.answer_length) == (5, 4)


def test_generation_keeps_room_for_the_new_tokens(tokenizer: Any) -> None:
    example = encoded("squad", QUESTION, tokenizer, 90)
    assert len(example.prompt_ids) == len(example.candidates[0].ids) == 90 - 50
    assert example.prompt_ids[0] == tokenizer.bos_token_id
    with pytest.raises(UserError, match="max_length 50 less 50 new tokens leaves no room"):
        encoded("squad", QUESTION, tokenizer, 50)


def test_another_bos_stands_in_front_of_the_same_text(tokenizer: Any, tokenizer_without_bos: Any) -> None:
    own = encoded("sst2", REMARK, tokenizer)
    forced = encoded("sst2", REMARK, tokenizer, front=(7,))
    assert [c.ids for c in forced.candidates] == [(7, *c.ids[1:]) for c in own.candidates]
    assert encoded("sst2", REMARK, tokenizer_without_bos, front=(7,)) == forced


def test_an_option_without_tokens_is_refused(tokenizer: Any) -> None:
    task = load_task("sst2")
    task["dialects"]["mezo"]["options"] = [" great", " "]
    with pytest.raises(UserError, match=r"the option ' ' adds no token to its prompt '.+ It was' in task 'sst2'"):
        encode(spec_of(task, "mezo"), REMARK, tokenizer, 64)


def test_options_that_are_the_same_text_or_the_same_tokens_are_refused(tokenizer: Any) -> None:
    task = load_task("sst2")
    task["dialects"]["mezo"]["options"] = ["great", " great"]
    with pytest.raises(UserError, match=r"two options are both 'great', .* in task 'sst2', dialect 'mezo'"):
        spec_of(task, "mezo")
    task["dialects"]["mezo"]["options"] = ["great", "Great"]

    def uncased(text: str, **options: Any) -> Any:
        return tokenizer(text.lower(), **options)

    with pytest.raises(UserError, match=r"the options 'great', 'Great' are the same tokens for this model in task"):
        encode(spec_of(task, "mezo"), REMARK, uncased, 64)


def test_equal_options_of_a_row_are_its_own(tokenizer: Any) -> None:
    example = encoded("winogrande", {**GAP, "option2": "Sarah"}, tokenizer)
    assert example.candidates[0].ids == example.candidates[1].ids


# --- rows that are too long -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [4, 12, 20, 28, 400])
@pytest.mark.parametrize("name", ["sst2", "squad", "winogrande", "record"])
def test_rows_too_long_are_counted_from_the_files_as_they_are_encoded(
    name: str, length: int, tokenizer: Any, write_jsonl: Any, tmp_path: Path
) -> None:
    rows = {
        "sst2": [{**REMARK, "sentence": "great é \n" * n} for n in (1, 3, 9, 40)],
        "squad": [{**QUESTION, "context": "the film " * n} for n in (1, 30, 90)],
        "winogrande": [{**GAP, "option1": "Sarah " * n} for n in (1, 5, 9)],
        "record": [
            {"passage": "p " * n, "query": "@placeholder won", "entities": ["A", "B" * n], "answers": ["A"]}
            for n in (1, 9)
        ],
    }[name]
    spec, front = spec_of(load_task(name), "mezo"), front_of(tokenizer)
    folder = write_jsonl(tmp_path, train=rows, validation=rows[:1], test=rows[1:])
    length += spec.max_new_tokens
    cut = [encode(spec, row, tokenizer, length, front=front).truncated for row in rows]
    whole = [encode(spec, row, tokenizer, 10_000, front=front) for row in rows]
    room = length - spec.max_new_tokens
    assert cut == [max(map(len, [e.prompt_ids, *(c.ids for c in e.candidates)])) > room for e in whole]
    assert too_long(spec, folder, tokenizer, length, front) == (sum([*cut, cut[0], *cut[1:]]), True)


def test_rows_that_cannot_be_too_long_are_not_tokenised(tokenizer: Any, write_jsonl: Any, tmp_path: Path) -> None:
    asked: list[str] = []

    def counting(text: str, **options: Any) -> Any:
        asked.append(text)
        return tokenizer(text, **options)

    rows = [{**REMARK, "sentence": "great " * n} for n in (1, 30, 2, 3)]
    folder = write_jsonl(tmp_path, train=rows, validation=rows[:1], test=rows[:1])
    assert too_long(spec_of(load_task("sst2"), "mezo"), folder, counting, 150, (0,)) == (0, True)
    assert len({text for text in asked if text.startswith("great")}) == 2 * 3  # two rows: a prompt and two options


def test_a_plan_stops_counting_at_a_bound(
    tokenizer: Any, write_jsonl: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_jsonl(tmp_path, train=[REMARK] * 101, validation=[REMARK], test=[REMARK])
    spec = spec_of(load_task("sst2"), "mezo")
    assert too_long(spec, folder, tokenizer, 6, (0,)) == (103, True)
    monkeypatch.setattr(planned_memory, "MOST", 40 * len(render(spec, REMARK).text) - 1)
    assert too_long(spec, folder, tokenizer, 6, (0,)) == (40, False)


@pytest.mark.parametrize(
    ("template", "times"),
    [
        ("{{ a }} or {{ b }}", 2),
        ("{{ a | trim ~ a }}", 2),
        ("{{ a if b else c }}", 3),
        ("{{ a.removesuffix('?')[:-1] }}", 1),
        ("{{ a * 64 }}", math.inf),
        ("{{ a | urlencode }}", math.inf),
        ("{{ a | center(999) }}", math.inf),
        ("{% for x in a %}{{ b }}{% endfor %}", math.inf),
        ("{{ a.center(999) }}", math.inf),
    ],
)
def test_a_template_says_how_often_it_may_write_a_field(template: str, times: float) -> None:
    assert uses(template) == times


def test_a_row_that_its_template_repeats_is_longer_than_its_line(
    tokenizer: Any, write_jsonl: Any, tmp_path: Path
) -> None:
    folder = write_jsonl(tmp_path, train=[REMARK] * 9, validation=[REMARK], test=[REMARK])
    assert too_long(spec_of(load_task("timing"), "mezo"), folder, tokenizer, 256, (0,)) == (11, True)
