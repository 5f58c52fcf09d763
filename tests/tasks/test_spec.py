"""Task files: all of the repository's are well formed, and a user's mistakes get one clear line."""

from __future__ import annotations

import copy
import json
import pickle
import subprocess
import sys
from typing import Any

import pytest

from tests.tasks.common import REPO, TASK_FILES, cases, load_task, spec_of, typed
from zo_sweeps.core.errors import UserError
from zo_sweeps.methods.definition import read, write
from zo_sweeps.methods.task import Task
from zo_sweeps.tasks.encode import render


def changed(**changes: Any) -> dict[str, Any]:
    task = copy.deepcopy(load_task("sst2"))
    for key, value in changes.items():
        if value is None:
            del task[key]
        else:
            task[key] = value
    return task


@pytest.mark.parametrize(("name", "dialect"), cases())
def test_every_task_file_makes_a_spec(name: str, dialect: str) -> None:
    task = load_task(name)
    spec = spec_of(task, dialect)
    assert spec.name == name, "a task file is named after its task"
    assert spec.dialect == dialect
    assert task.get("hub") or task.get("local") or task.get("gym"), "rows come from somewhere"
    if task.get("hub"):
        assert "/" in task["hub"]["path"], "the hub no longer resolves names without an owner"
        assert {"path", "train", "test"} <= set(task["hub"])
    assert pickle.loads(pickle.dumps(spec)) == spec


@pytest.mark.parametrize("name", TASK_FILES)
def test_what_is_written_of_a_task_is_read_as_the_same_task(name: str) -> None:
    task = typed(load_task(name))
    assert read(Task, json.loads(json.dumps(write(task))), "task") == task


def test_the_reduced_dev_split_is_set_for_copa_and_cb_only() -> None:
    found = {name: load_task(name)["dev_size"] for name in TASK_FILES if "dev_size" in load_task(name)}
    assert found == {"copa": 100, "cb": 100}


def test_an_unknown_dialect_lists_the_dialects_of_the_task() -> None:
    with pytest.raises(
        UserError, match=r"unknown prompt dialect 'mezzo' in task 'sst2'; choose from: chat, mezo, mezo_medium, prge,"
    ):
        spec_of(load_task("sst2"), "mezzo")


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (changed(lable_field="label"), r"unknown key 'task.lable_field'.*did you mean 'task.label_field'"),
        (changed(fields=None), r"task.fields is missing; columns that a row must have"),
        (changed(fields="sentence"), r"task.fields='sentence' has the wrong type; it must be a list"),
        (changed(metric="accurracy"), r"unknown metric 'accurracy'.*did you mean 'accuracy'"),
        (changed(metric=["accuracy", {"name": "f1", "positiv": 1}]), r"unknown key 'task.metric.positiv'"),
        (changed(metric=["f1", {"name": "f1", "positive": 0}]), r"metric 'f1' is named twice in task.metric"),
        (changed(metric=[]), r"task.metric names no metric"),
        (
            changed(metric="pearson"),
            r"'pearson' does not fit: .* from scores, but a classification task predicts labels",
        ),
        (changed(kind="regresion"), r"unknown task_kind 'regresion'.*did you mean 'regression'"),
        (changed(labels=[0, 1, 2]), r"2 options and 3 labels"),
        (changed(labels=[[0], [1]]), r"label \[0\] is not a number or a text"),
    ],
)
def test_a_malformed_task_is_named_with_its_mistake(task: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        spec_of(task, "mezo")


@pytest.mark.parametrize(
    ("wording", "message"),
    [
        ({"template": "{{ sentnce }}"}, r"unknown field 'sentnce' in the template of task 'sst2'.*'sentence'\?"),
        ({"template": "{{ sentence"}, r"bad template: .*task 'sst2', dialect 'mezo'"),
        ({"template": "{{ sentence | shout }}"}, r"bad template: No filter named 'shout'"),
        ({"options": [True, False]}, r"True is not text.*put it in quotes"),
        ({"options": ["Yes"]}, r"1 options and 1 labels: a task needs two or more options"),
        ({"loss": "hinge"}, r"unknown objective 'hinge'.*candidates, f1, label_words, reward, tokens"),
    ],
)
def test_a_malformed_dialect_is_named_with_its_mistake(wording: dict[str, Any], message: str) -> None:
    task = changed()
    task["dialects"]["mezo"].update(wording)
    with pytest.raises(UserError, match=message):
        spec_of(task, "mezo")


def test_a_generation_task_needs_a_length() -> None:
    task = copy.deepcopy(load_task("squad"))
    del task["max_new_tokens"]
    with pytest.raises(UserError, match=r"generation task needs one option.*max_new_tokens"):
        spec_of(task, "mezo")


def test_an_answer_of_several_lines_needs_another_stop_than_a_newline() -> None:
    task = copy.deepcopy(load_task("squad"))
    task["dialects"]["mezo"]["options"] = [" {{ title }}\n{{ answers.text[0] }}\n"]
    with pytest.raises(UserError, match=r"has several lines.* in task 'squad', dialect 'mezo'; set task\.stop"):
        spec_of(task, "mezo")
    assert spec_of(task, "chat").chat, "which has a stop of its own"
    assert spec_of({**task, "stop": "\n\n"}, "mezo").stop == "\n\n"


def test_templates_cannot_reach_into_python() -> None:
    task = changed()
    task["dialects"]["mezo"]["template"] = "{{ sentence.__class__.__mro__ }}"
    with pytest.raises(UserError, match=r"bad template: the attribute '__\w+__' is not accessible in task 'sst2'"):
        spec_of(task, "mezo")
    task["dialects"]["mezo"]["template"] = "{{ sentence['__class__'] }}"
    with pytest.raises(UserError, match="the template does not fit a row"):
        render(spec_of(task, "mezo"), {"sentence": "fine", "label": 0})


@pytest.mark.parametrize(
    ("wording", "message"),
    [
        (
            {"template": "{{ sentence }} It was"},
            r"the template has no {{ mask }} in task 'sst2', dialect 'mezo_medium'",
        ),
        ({"loss": "candidates"}, r"unknown field 'mask' in the template"),
        ({"each": "sentence"}, r"'each' must name a field of a multiple_choice task"),
    ],
)
def test_a_malformed_masked_dialect_is_named_with_its_mistake(wording: dict[str, Any], message: str) -> None:
    task = changed()
    task["dialects"]["mezo_medium"].update(wording)
    with pytest.raises(UserError, match=message):
        spec_of(task, "mezo_medium")


def test_a_text_that_has_the_mask_s_name_in_it_is_refused() -> None:
    spec = spec_of(load_task("sst2"), "mezo_medium")
    with pytest.raises(UserError, match=r"the text contains \[mask\] 2 times, not once"):
        render(spec, {"sentence": "a [mask] of a film", "label": 0})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"answers": []}, r"'answers' is not a list of one or more answers"),
        ({"answers": ["Ann"]}, r"the answer 'Ann' is not among 'entities'"),
        ({"entities": ["Oslo"]}, r"'entities' is not a list of two or more options"),
        ({"query": None}, r"field 'query' is null"),
    ],
)
def test_a_row_with_options_of_its_own_is_checked(changes: dict[str, Any], message: str) -> None:
    row = {"passage": "p", "query": "@placeholder won", "entities": ["Oslo", "Rome"], "answers": ["Oslo"], **changes}
    with pytest.raises(UserError, match=message):
        render(spec_of(load_task("record"), "mezo"), row)


def test_a_row_outside_the_template_s_cases_is_refused() -> None:
    spec = spec_of(load_task("copa"), "mezo")
    row = {"premise": "It rained.", "choice1": "Wet.", "choice2": "Dry.", "question": "reason", "label": 0}
    with pytest.raises(UserError, match="task 'copa', dialect 'mezo'"):
        render(spec, row)


def test_a_row_with_a_bad_label_is_refused() -> None:
    spec = spec_of(load_task("sst2"), "mezo")
    with pytest.raises(UserError, match="label -1 is not one of 0, 1"):
        render(spec, {"sentence": "fine", "label": -1})


@pytest.mark.multiprocess
def test_importing_tasks_loads_no_heavy_library() -> None:
    heavy = ("torch", "numpy", "datasets", "transformers")
    code = f"import sys, zo_sweeps.tasks; print([name for name in {heavy} if name in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], cwd=REPO, capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
