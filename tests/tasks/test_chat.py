"""prompt=chat: the tokens of a conversation as transformers writes it, and the answer's share of them."""

from __future__ import annotations

import json
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.tasks.chats import CHATS, tokenizer_of
from tests.tasks.common import GOLDEN, TASK_FILES, load_task, spec_of, typed
from tests.tasks.test_encode import ENTAILMENT, GAP, QUESTION, REMARK
from zo_sweeps.core.errors import UserError
from zo_sweeps.models.checkpoint import TokenizerFile
from zo_sweeps.plan.planned_memory import tokens_forwarded, too_long
from zo_sweeps.tasks.encode import Demonstrator, EncodedExample, demonstration, encode, length, render
from zo_sweeps.tasks.spec import TaskSpec
from zo_sweeps.tasks.templates import Chat, chat_of

pytestmark = pytest.mark.unit

ROWS = {"sst2": REMARK, "rte": ENTAILMENT, "winogrande": GAP, "squad": QUESTION}
SYSTEM = "So great."
BOTH = [(name, system) for name, chat in CHATS.items() for system in ("", SYSTEM) if chat.system or not system]
tokenizer_for = cache(tokenizer_of)


def chat_spec(task: str, system: str = "") -> TaskSpec:
    return TaskSpec.of(typed(load_task(task)), "chat", system)


def in_chat(task: str, name: str, length: int = 2000, system: str = "") -> EncodedExample:
    return encode(chat_spec(task, system), ROWS[task], tokenizer_for(name), length, front=(1,))


def turns(*texts: str, system: str = "") -> list[dict[str, str]]:
    roles = [{"role": "system", "content": system}] if system else []
    return [*roles, *({"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(texts))]


def written(name: str, *texts: str, system: str = "", **options: Any) -> list[int]:
    """The tokens of a conversation by transformers itself, today's date aside."""
    today = {"date_string": "26 Jul 2024", "enable_thinking": False}
    conversation = turns(*texts, system=system)
    given = tokenizer_for(name).apply_chat_template(conversation, return_dict=False, **today, **options)
    return list(given)


@pytest.mark.parametrize("task", ROWS)
@pytest.mark.parametrize(("name", "system"), BOTH)
def test_a_prompt_with_its_answer_is_the_conversation_that_transformers_writes(
    name: str, system: str, task: str
) -> None:
    spec, tokenizer = chat_spec(task, system), tokenizer_for(name)
    example, prompt = in_chat(task, name, system=system), render(spec, ROWS[task])
    if name != "r1":  # whose generation prompt opens a thought
        expected = written(name, prompt.text.strip(), system=system, add_generation_prompt=True)
        assert list(example.prompt_ids) == expected
    for candidate, option in zip(example.candidates, prompt.options, strict=True):
        whole = written(name, prompt.text.strip(), option.strip(), system=system)
        ids, answer = list(candidate.ids), list(candidate.ids[-candidate.answer_length :])
        assert ids == whole[: len(ids)]
        assert tuple(ids[: -len(answer)]) == example.prompt_ids  # no token of an answer is merged with its prompt
        end = tokenizer.convert_tokens_to_ids(CHATS[name].end)
        assert chat_of(tokenizer, system).stop == end
        if spec.kind.generates:  # learns where to stop
            assert answer.pop() == end
        else:
            assert end in whole[len(ids) : len(ids) + 2]  # Llama 2 writes a space before it
        assert tokenizer.decode(answer).strip() == option.strip()
        assert ids.count(tokenizer.bos_token_id) == ("bos_token" in CHATS[name].template)
    assert not example.truncated


@pytest.mark.parametrize("name", ["chatml", "qwen3", "llama3", "mistral"])
def test_demonstrations_are_earlier_turns(name: str) -> None:
    spec, tokenizer = chat_spec("rte", SYSTEM), tokenizer_for(name)
    rows = [{"premise": f"It was {i}.", "hypothesis": "great", "label": i % 2} for i in range(5)]
    solved = [demonstration(spec, row) for row in rows]
    example = Demonstrator(spec, solved, 3, 0, tokenizer, 2000).encode(ENTAILMENT, "test", 7)
    text = tokenizer.decode(example.prompt_ids)
    shown = sorted(
        (one for one in solved if one.prompt.strip() in text), key=lambda one: text.index(one.prompt.strip())
    )
    assert len(shown) == 3
    own = render(spec, ENTAILMENT)
    earlier = [part.strip() for one in shown for part in one]
    assert list(example.prompt_ids) == written(
        name, *earlier, own.text.strip(), system=SYSTEM, add_generation_prompt=True
    )
    alone = encode(spec, ENTAILMENT, tokenizer, 2000)
    assert [c.ids[-c.answer_length :] for c in example.candidates] == [
        c.ids[-c.answer_length :] for c in alone.candidates
    ]


@pytest.mark.parametrize("name", ["chatml", "mistral"])
def test_as_many_demonstrations_as_fit_before_the_last_turn(name: str) -> None:
    spec, tokenizer = chat_spec("sst2"), tokenizer_for(name)
    solved = [demonstration(spec, {"sentence": "great " * i, "label": i % 2}) for i in range(1, 9)]
    whole = Demonstrator(spec, solved, 8, 0, tokenizer, 9000).encode(REMARK, "test", 0)
    for limit in range(length(spec, REMARK, tokenizer), len(whole.candidates[0].ids), 17):
        example = Demonstrator(spec, solved, 8, 0, tokenizer, limit).encode(REMARK, "test", 0)
        assert not example.truncated
        kept, alone = example.candidates[0].ids, chat_of(tokenizer, "").tokens
        assert len(kept) <= limit
        longest = max(len(tokenizer(one.prompt, add_special_tokens=False)["input_ids"]) for one in solved)
        assert limit - len(kept) < 1.2 * (longest + alone + 8)  # one more would hardly have fitted


@pytest.mark.parametrize("task", ["sst2", "squad"])
@pytest.mark.parametrize(("name", "system"), BOTH)
def test_what_is_too_long_loses_the_left_of_the_user_s_text_and_nothing_of_the_frame(
    name: str, system: str, task: str
) -> None:
    spec, tokenizer = chat_spec(task, system), tokenizer_for(name)
    whole, row = in_chat(task, name, system=system), dict(ROWS[task])
    before, between = chat_of(tokenizer, system).around(())
    end = tokenizer(between.rstrip(" "), add_special_tokens=False)["input_ids"]
    words = tokenizer.convert_ids_to_tokens(whole.prompt_ids)
    for limit in range(chat_of(tokenizer, system).tokens + spec.max_new_tokens + 2, length(spec, row, tokenizer), 7):
        cut = in_chat(task, name, limit, system)
        assert cut.truncated
        room = limit - spec.max_new_tokens
        assert len(cut.prompt_ids) == min(room, len(whole.prompt_ids))
        text = tokenizer.decode(cut.prompt_ids)
        assert text.startswith(tokenizer.decode(tokenizer(before, add_special_tokens=False)["input_ids"]).rstrip())
        assert list(cut.prompt_ids[-len(end) :]) == end
        kept = tokenizer.convert_ids_to_tokens(cut.prompt_ids)
        first = next((i for i, (a, b) in enumerate(zip(kept, words, strict=False)) if a != b), len(kept))
        assert kept[first:] == words[len(words) - len(kept) + first :]  # one piece is gone, and what follows it is not
        for candidate, full in zip(cut.candidates, whole.candidates, strict=True):
            assert len(candidate.ids) <= limit
            assert candidate.ids[-candidate.answer_length :] == full.ids[-full.answer_length :]
            if not spec.max_new_tokens:
                assert len(candidate.ids) == limit


def test_a_token_of_both_prompt_and_answer_is_the_answer_s() -> None:
    tokenizer = tokenizer_of("chatml")
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m.content + (' grea' if m.role == 'user' else '</s>') }}{% endfor %}"
    )
    task = load_task("sst2")
    task["dialects"]["chat"] = {"loss": "tokens", "template": "It was", "options": ["t", "d"]}
    one, other = encode(spec_of(task, "chat"), REMARK, tokenizer, 99).candidates
    assert tokenizer.convert_ids_to_tokens(one.ids)[-1] == "Ġgreat"
    assert (one.answer_length, tokenizer.decode(other.ids[-other.answer_length :])) == (1, "d")


def test_an_answer_that_does_not_fit_loses_its_end() -> None:
    tokenizer, row = tokenizer_for("chatml"), {**GAP, "sentence": "so _ was great" + ", so great" * 9}
    spec = chat_spec("winogrande")
    whole, room = encode(spec, row, tokenizer, 2000), chat_of(tokenizer, "").tokens + 6
    for candidate, full in zip(encode(spec, row, tokenizer, room).candidates, whole.candidates, strict=True):
        answer = candidate.ids[-candidate.answer_length :]
        assert (len(candidate.ids), len(answer)) == (room, 6)
        assert full.ids[-full.answer_length :][:6] == answer


def test_a_length_without_room_for_the_frame_is_refused() -> None:
    tokens = chat_of(tokenizer_for("chatml"), "").tokens
    with pytest.raises(UserError, match=f"leaves no room for a prompt of task 'sst2'.*set it to {tokens + 2} or more"):
        in_chat("sst2", "chatml", tokens + 1)


@pytest.mark.parametrize("name", ["chatml", "phi"])
@pytest.mark.parametrize("limit", [70, 90, 130, 400])
def test_a_plan_counts_rows_as_they_are_encoded(name: str, limit: int, write_jsonl: Any, tmp_path: Path) -> None:
    rows = [{**REMARK, "sentence": "great terrible " * n} for n in (1, 3, 9, 40, 90)]
    spec, folder = chat_spec("sst2"), write_jsonl(tmp_path, train=rows, validation=rows[:1], test=rows[1:])
    tokenizer_for(name).save_pretrained(tmp_path / "model")
    tokenizer = TokenizerFile(tmp_path / "model")
    examples = [encode(spec, row, tokenizer_for(name), limit) for row in rows]
    cut = [example.truncated for example in examples]
    assert too_long(spec, folder, tokenizer, limit, (1,)) == (sum([*cut, cut[0], *cut[1:]]), True)
    counted = tokens_forwarded(spec, folder, tokenizer, limit, (1,))
    assert counted.gold == tuple((len(example.candidates[example.gold].ids),) for example in examples)


# --- what a template may do


def test_a_model_that_thinks_is_asked_without_a_thought() -> None:
    tokenizer = tokenizer_for("qwen3")
    assert tokenizer.decode(in_chat("rte", "qwen3").prompt_ids).endswith("assistant\n<think>\n\n</think>\n\n")
    solved = [demonstration(chat_spec("rte"), ENTAILMENT)]
    before, between = chat_of(tokenizer, "").around(solved)
    assert (before.count("<think>"), between.count("<think>")) == (0, 1)  # as Qwen3 writes earlier answers
    switched = tokenizer_of("phi")
    template = "{{ '/think ' if enable_thinking or thinking else '/no_think ' }}"
    switched.chat_template = template + "{% for m in messages %}{{ m.content + '<|end|>' }}{% endfor %}"
    assert Chat(switched, "").around(())[0] == "/no_think "
    switched.chat_template = switched.chat_template.replace(
        " or thinking", " is not defined or thinking is not defined"
    )
    assert Chat(switched, "").around(())[0] == "/no_think "
    r1 = tokenizer_for("r1")
    assert r1.decode(in_chat("rte", "r1").prompt_ids).endswith("Yes or No?<|Assistant|>")


def test_a_template_that_writes_today_s_date_has_one_that_stays() -> None:
    text = tokenizer_for("llama3").decode(in_chat("rte", "llama3").prompt_ids)
    assert "Today: 26 Jul 2024\n" in text
    assert datetime.now().strftime("%d %b %Y") not in text


@pytest.mark.parametrize(
    ("name", "template", "system", "message"),
    [
        ("gemma", None, SYSTEM, r"does not take the system text \(System role not supported\) in prompt\.system"),
        (
            "phi",
            "{% for m in messages if m.role != 'system' %}{{ m.content }}\n{% endfor %}",
            SYSTEM,
            "leaves the system",
        ),
        ("phi", "", "", "prompt=chat needs a chat template, and the model's tokenizer has none in model; use an instr"),
        ("phi", "{{ messages[0].content * 2 }}", "", "does not write every text of a conversation once"),
        ("phi", "{{ messages[1].content + messages[0].content }}", "", "does not write every text of a conversation"),
        ("phi", "{{ messages[2].content }}", "", r"does not take a conversation \(.*no element 2\) in model"),
        ("phi", "{% for m in %}", "", "does not take a conversation"),
    ],
)
def test_a_template_that_cannot_be_used_is_one_line(name: str, template: Any, system: str, message: str) -> None:
    tokenizer = tokenizer_of(name)
    if template is not None:
        tokenizer.chat_template = template
    with pytest.raises(UserError, match=message) as caught:
        Chat(tokenizer, system)
    assert "\n" not in str(caught.value)


def test_a_turn_without_an_end_of_its_own_ends_with_the_text() -> None:
    tokenizer = tokenizer_of("phi")
    tokenizer.chat_template = "{% for m in messages %}{{ m.role + ': ' + m.content + '\n' }}{% endfor %}"
    chat = Chat(tokenizer, "")
    assert (chat.end, chat.stop) == ("</s>", tokenizer.eos_token_id)
    tokenizer.add_tokens(["<|e"])  # is not what ends a turn, though the end of a turn begins with it
    tokenizer.chat_template = CHATS["phi"].template
    chat = Chat(tokenizer, "")
    assert (chat.end, chat.stop) == ("<|end|>", tokenizer.convert_tokens_to_ids("<|end|>"))
    tokenizer.chat_template = "{% for m in messages %}{{ '<|' + m.role + '|>\n' + m.content }}{% endfor %}"
    chat = Chat(tokenizer, "")  # as of GLM-4.5: the next turn begins
    assert (chat.end, chat.stop) == ("<|user|>", tokenizer.convert_tokens_to_ids("<|user|>"))
    tokenizer.chat_template = "{% for m in messages %}{{ m.role + ': ' + m.content + '\n' }}{% endfor %}"
    tokenizer.eos_token = None
    with pytest.raises(UserError, match="neither the chat template nor the tokenizer has a token that ends a turn"):
        Chat(tokenizer, "")


def test_of_several_templates_the_default_counts() -> None:
    tokenizer = tokenizer_of("chatml")
    tokenizer.chat_template = {"tool_use": "{{ nothing }}", "default": tokenizer.chat_template}
    assert Chat(tokenizer, "").around(()) == chat_of(tokenizer_for("chatml"), "").around(())


@pytest.mark.parametrize("form", ["jinja", "inline", "several"])
@pytest.mark.parametrize("name", CHATS)
def test_a_plan_reads_the_template_that_transformers_reads(name: str, form: str, tmp_path: Path) -> None:
    tokenizer = tokenizer_of(name)
    tokenizer.save_pretrained(tmp_path, save_jinja_files=form == "jinja")
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert (tmp_path / "chat_template.jinja").is_file() == (form == "jinja") == ("chat_template" not in settings)
    if form == "several":
        settings["chat_template"] = [{"name": "default", "template": tokenizer.chat_template}]
        settings["eos_token"] = {"content": "</s>", "lstrip": False}
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    one, other = Chat(TokenizerFile(tmp_path), ""), Chat(tokenizer, "")
    assert one.around(()) == other.around(())
    assert (one.tokens, one.end, one.stop) == (other.tokens, other.end, other.stop)


# --- tasks


@pytest.mark.parametrize("name", TASK_FILES)
def test_every_task_can_be_chatted_about(name: str) -> None:
    task = load_task(name)
    spec = spec_of(task, "chat")
    for case in json.loads((GOLDEN / f"{name}.json").read_text(encoding="utf-8")):
        prompt = render(spec, case["row"])
        if "chat" not in task["dialects"]:  # then it is the first plain wording
            plain = next(dialect for dialect, one in task["dialects"].items() if one["loss"] != "label_words")
            assert (prompt.text, list(prompt.options)) == (case[plain]["text"], case[plain]["options"])
        example = encode(spec, case["row"], tokenizer_for("chatml"), 4000)
        assert len(example.candidates) == len(prompt.options)
        assert not example.truncated


def test_a_task_of_masks_alone_has_no_chat() -> None:
    task = load_task("sst5")
    wording = task["dialects"].pop("chat")
    with pytest.raises(UserError, match=r"unknown prompt dialect 'chat' in task 'sst5'; choose from: mezo_medium"):
        spec_of(task, "chat")
    task["dialects"]["chat"] = {**wording, "loss": "label_words"}
    with pytest.raises(UserError, match="a chat has no mask in task 'sst5', dialect 'chat'"):
        spec_of(task, "chat")
