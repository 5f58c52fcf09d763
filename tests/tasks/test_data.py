"""Where rows come from, which ones are drawn, and what is said when they are not there or malformed."""

from __future__ import annotations

import copy
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from tests.tasks.common import REPO, load_task, read_split, spec_of, typed
from zo_sweeps.core.errors import UserError
from zo_sweeps.methods.parts import Split
from zo_sweeps.tasks import hub_rows
from zo_sweeps.tasks.data import check, load_splits
from zo_sweeps.tasks.encode import render
from zo_sweeps.tasks.spec import TaskSpec


@pytest.fixture
def legacy_state() -> Iterator[None]:
    """The oracle draws from numpy's global generator, as the published code does; leave it as it was."""
    state = np.random.get_state()
    yield
    np.random.set_state(state)


def published_draw(size: int, count: int, seed: int) -> list[int]:
    np.random.seed(seed)
    return list(np.random.permutation(size)[:count])


def sentences(count: int, tag: str = "s") -> list[dict[str, Any]]:
    return [{"sentence": f"{tag}{i}", "label": i % 2} for i in range(count)]


def numbers(rows: list[dict[str, Any]]) -> list[int]:
    return [int(row["sentence"].lstrip("abcdefghijklmnopqrstuvwxyz")) for row in rows]


@pytest.fixture
def sst2() -> tuple[TaskSpec, dict[str, Any]]:
    task = load_task("sst2")
    return spec_of(task, "mezo"), task


def as_hub(task: dict[str, Any], folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The task with its hub data set replaced by a folder that `datasets` reads in the same way, without a network."""
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", cache)
    datasets.disable_progress_bars()
    return {**copy.deepcopy(task), "hub": {**task["hub"], "path": str(folder), "name": None}}


class TestHubRule:
    @pytest.mark.parametrize("seed", [0, 7])
    def test_dev_is_the_end_of_one_draw_from_train(
        self, sst2: Any, write_jsonl: Any, tmp_path: Path, monkeypatch: Any, legacy_state: None, seed: int
    ) -> None:
        spec, task = sst2
        folder = write_jsonl(tmp_path / "d", train=sentences(90), validation=sentences(40))
        task = as_hub(task, folder, tmp_path / "c", monkeypatch)
        splits = load_splits(spec, typed(task), None, Split(train=30, dev=12, test=20, seed=seed))
        drawn = published_draw(90, 42, seed)
        assert numbers(splits.train) == drawn[:-12]
        assert numbers(splits.dev) == drawn[-12:]
        assert numbers(splits.test) == published_draw(40, 20, seed)

    def test_wsc_is_left_with_54_training_rows(
        self, write_jsonl: Any, tmp_path: Path, monkeypatch: Any, legacy_state: None
    ) -> None:
        rows = [{"text": f"s{i}", "span1_text": "a", "span2_text": "it", "label": i % 2} for i in range(554)]
        folder = write_jsonl(tmp_path / "d", train=rows, validation=rows[:104])
        task = as_hub(load_task("wsc"), folder, tmp_path / "c", monkeypatch)
        spec = spec_of(task, "mezo")
        splits = load_splits(spec, typed(task), None, Split(train=1000, dev=500, test=1000, seed=0))
        drawn = published_draw(554, 1500, 0)
        assert [int(row["text"][1:]) for row in splits.train] == drawn[:54]
        assert [int(row["text"][1:]) for row in splits.dev] == drawn[54:]
        assert len(splits.test) == 104

    def test_copa_takes_100_rows_for_dev_and_trains_on_300(
        self, write_jsonl: Any, tmp_path: Path, monkeypatch: Any
    ) -> None:
        row = {"premise": "A.", "choice1": "B.", "choice2": "C.", "question": "cause", "label": 0}
        folder = write_jsonl(tmp_path / "d", train=[row] * 400, validation=[row] * 100)
        task = as_hub(load_task("copa"), folder, tmp_path / "c", monkeypatch)
        spec = spec_of(task, "mezo")
        splits = load_splits(spec, typed(task), None, Split(train=1000, dev=500, test=1000, seed=0))
        assert (len(splits.train), len(splits.dev), len(splits.test)) == (300, 100, 100)

    def test_a_column_with_another_name_is_renamed(self, write_jsonl: Any, tmp_path: Path, monkeypatch: Any) -> None:
        rows = [{"question": "is it", "passage": f"p{i}", "answer": i % 3 == 0} for i in range(12)]
        folder = write_jsonl(tmp_path / "d", train=rows, validation=rows)
        task = as_hub(load_task("boolq"), folder, tmp_path / "c", monkeypatch)
        spec = spec_of(task, "mezo")
        for row in read_split(spec, typed(task), None, "train"):
            assert render(spec, row).gold == (0 if int(row["passage"][1:]) % 3 == 0 else 1)

    def test_rows_without_a_label_are_left_out_also_where_the_hub_names_it_otherwise(
        self, sst2: Any, write_jsonl: Any, tmp_path: Path, monkeypatch: Any
    ) -> None:
        spec, task = sst2
        rows = [{"sentence": f"s{i}", "gold": i % 3 - 1} for i in range(9)]
        folder = write_jsonl(tmp_path / "d", train=rows, validation=rows)
        task = as_hub(task, folder, tmp_path / "c", monkeypatch)
        task = {**task, "hub": {**task["hub"], "rename": {"label": "gold"}, "unlabelled": -1}}
        there = read_split(spec, typed(task), None, "train")
        assert [row["sentence"] for row in there] == [row["sentence"] for row in rows if row["gold"] >= 0]
        file = hub_rows.rows_file(typed(task).hub, "train", spec.label_field)
        assert len(file.read_text().splitlines()) == len(there)

    def test_a_bad_row_is_named(self, sst2: Any, write_jsonl: Any, tmp_path: Path, monkeypatch: Any) -> None:
        spec, task = sst2
        folder = write_jsonl(
            tmp_path / "d", train=[{"text": "a", "label": 0}] * 2, validation=[{"text": "b", "label": 1}]
        )
        task = as_hub(task, folder, tmp_path / "c", monkeypatch)
        with pytest.raises(
            UserError, match=r"missing field 'sentence' in hf:.*, train row 0; the row has: label, text"
        ):
            load_splits(spec, typed(task), None, Split(train=1, dev=1, test=1, seed=1))

    def test_a_dev_split_that_leaves_nothing_to_train_on_is_refused(
        self, sst2: Any, write_jsonl: Any, tmp_path: Path, monkeypatch: Any
    ) -> None:
        spec, task = sst2
        folder = write_jsonl(tmp_path / "d", train=sentences(10), validation=sentences(3))
        task = as_hub(task, folder, tmp_path / "c", monkeypatch)
        with pytest.raises(UserError, match=r"has 10 training rows and dev takes 10; lower split\.dev"):
            load_splits(spec, typed(task), None, Split(train=5, dev=10, test=3, seed=0))

    def test_a_data_set_that_cannot_be_loaded_is_one_line(self, sst2: Any, tmp_path: Path) -> None:
        spec, task = sst2
        task = {**task, "hub": {**task["hub"], "path": str(tmp_path / "absent" / "x" / "y"), "name": None}}
        with pytest.raises(UserError, match=r"cannot load hf:.*, split 'train'") as caught:
            read_split(spec, typed(task), None, "train")
        assert "\n" not in str(caught.value)


class TestLocal:
    SPLIT = Split(train=20, dev=8, test=6, seed=3)

    def test_each_split_is_drawn_from_its_own_file(
        self, sst2: Any, write_jsonl: Any, tmp_path: Path, legacy_state: None
    ) -> None:
        spec, task = sst2
        write_jsonl(tmp_path / "sst2", train=sentences(50, "t"), validation=sentences(30, "v"), test=sentences(9, "x"))
        splits = load_splits(spec, typed(task), str(tmp_path), self.SPLIT)
        assert [row["sentence"] for row in splits.train] == [f"t{i}" for i in published_draw(50, 20, 3)]
        assert [row["sentence"] for row in splits.dev] == [f"v{i}" for i in published_draw(30, 8, 3)]
        assert [row["sentence"] for row in splits.test] == [f"x{i}" for i in published_draw(9, 6, 3)]

    def test_a_small_file_is_used_whole(self, sst2: Any, write_jsonl: Any, tmp_path: Path) -> None:
        spec, task = sst2
        write_jsonl(tmp_path / "sst2", train=sentences(5), validation=sentences(4), test=sentences(3))
        splits = load_splits(spec, typed(task), str(tmp_path), self.SPLIT)
        assert (sorted(numbers(splits.train)), len(splits.dev), len(splits.test)) == ([0, 1, 2, 3, 4], 4, 3)

    def test_drawing_leaves_the_global_generator_alone(self, sst2: Any, write_jsonl: Any, tmp_path: Path) -> None:
        spec, task = sst2
        write_jsonl(tmp_path / "sst2", train=sentences(5), validation=sentences(4), test=sentences(3))
        before = np.random.get_state()[1].tolist()
        load_splits(spec, typed(task), str(tmp_path), self.SPLIT)
        assert np.random.get_state()[1].tolist() == before

    def test_odd_line_separators_inside_a_text_do_not_end_the_row(self, sst2: Any, tmp_path: Path) -> None:
        spec, task = sst2
        folder = tmp_path / "sst2"
        folder.mkdir()
        text = "one\u2028two\x85three\x0cfour"
        line = json.dumps({"sentence": text, "label": 1}, ensure_ascii=False)
        for split in ("train", "validation", "test"):
            (folder / f"{split}.jsonl").write_text(line + "\n\n", encoding="utf-8")
        assert [row["sentence"] for row in read_split(spec, typed(task), str(tmp_path), "test")] == [text]
        assert check(spec, typed(task), str(tmp_path)).sizes == {"train": 1, "validation": 1, "test": 1}

    @pytest.mark.parametrize(
        ("line", "message"),
        [
            ('{"text": "a", "label": 1}', r"missing field 'sentence' in {path}:3; the row has: label, text"),
            ('{"sentence": "a"}', r"missing field 'label' in {path}:3"),
            ('{"sentence": null, "label": 1}', r"field 'sentence' is null in {path}:3"),
            ('{"sentence": NaN, "label": 1}', r"field 'sentence' is NaN in {path}:3"),
            ('{"sentence": "a", "label": 2}', r"label 2 is not one of 0, 1 in {path}:3"),
            ('{"sentence": "a", "label": "1"}', r"label '1' is not one of 0, 1 in {path}:3"),
            ('{"sentence": "a", "label": 1', r"not a JSON line .* in {path}:3"),
            ('["a", 1]', r"a list where a JSON object was expected in {path}:3"),
        ],
    )
    def test_a_bad_row_is_named_with_file_and_line(
        self, sst2: Any, write_jsonl: Any, tmp_path: Path, line: str, message: str
    ) -> None:
        spec, task = sst2
        folder = write_jsonl(tmp_path / "sst2", train=sentences(2), validation=sentences(2), test=sentences(2))
        path = folder / "train.jsonl"
        path.write_text(path.read_text() + line + "\n")
        pattern = message.replace("{path}", str(path))
        with pytest.raises(UserError, match=pattern):
            check(spec, typed(task), str(tmp_path))
        with pytest.raises(UserError, match=pattern):
            load_splits(spec, typed(task), str(tmp_path), self.SPLIT)

    def test_squad_rows_without_answers_are_refused(self, write_jsonl: Any, tmp_path: Path) -> None:
        task = load_task("squad")
        spec = spec_of(task, "mezo")
        row = {"title": "", "context": "c", "question": "q", "answers": {"text": [], "answer_start": []}}
        write_jsonl(tmp_path / "squad", train=[row], validation=[row], test=[row])
        with pytest.raises(UserError, match=r"'answers.text' is not a list of one or more answers in .*train.jsonl:1"):
            check(spec, typed(task), str(tmp_path))

    def test_an_empty_file_is_refused(self, sst2: Any, write_jsonl: Any, tmp_path: Path) -> None:
        spec, task = sst2
        write_jsonl(tmp_path / "sst2", train=sentences(2), validation=[], test=sentences(2))
        with pytest.raises(UserError, match=r"no rows in .*validation.jsonl"):
            check(spec, typed(task), str(tmp_path))


class TestCheck:
    def test_a_missing_folder_or_file_is_named_and_not_an_error(
        self, sst2: Any, write_jsonl: Any, tmp_path: Path
    ) -> None:
        spec, task = sst2
        status = check(spec, typed(task), str(tmp_path))
        assert not status.available
        assert str(tmp_path / "sst2") in status.why
        assert "\n" not in status.why
        write_jsonl(tmp_path / "sst2", train=sentences(2), test=sentences(2))
        status = check(spec, typed(task), str(tmp_path))
        assert (status.available, status.why) == (False, f"no file {tmp_path / 'sst2' / 'validation.jsonl'}")

    def test_the_fingerprint_is_of_the_bytes_and_nothing_else(
        self, sst2: Any, write_jsonl: Any, tmp_path: Path
    ) -> None:
        spec, task = sst2
        folder = write_jsonl(tmp_path / "sst2", train=sentences(3), validation=sentences(2), test=sentences(2))
        first = check(spec, typed(task), str(tmp_path))
        expected = hashlib.sha256()
        for split in ("train", "validation", "test"):
            inner = hashlib.sha256((folder / f"{split}.jsonl").read_bytes()).hexdigest()
            expected.update(f"{split} {inner}\n".encode())
        assert first.fingerprint == f"sha256:{expected.hexdigest()[:32]}"
        assert first.sizes == {"train": 3, "validation": 2, "test": 2}

        shutil.copytree(tmp_path / "sst2", tmp_path / "elsewhere" / "sst2")
        assert check(spec, typed(task), str(tmp_path / "elsewhere")).fingerprint == first.fingerprint

        path = folder / "test.jsonl"
        path.write_text(path.read_text().replace("s1", "s9"))  # same size: only the time tells
        os.utime(path, ns=(time.time_ns(), path.stat().st_mtime_ns + 1_000_000))
        assert check(spec, typed(task), str(tmp_path)).fingerprint != first.fingerprint

    def test_files_are_read_once_while_they_do_not_change(self, sst2: Any, write_jsonl: Any, tmp_path: Path) -> None:
        spec, task = sst2
        folder = write_jsonl(tmp_path / "sst2", train=sentences(3), validation=sentences(2), test=sentences(2))
        first = check(spec, typed(task), str(tmp_path))
        path = folder / "train.jsonl"
        before = path.stat()
        path.write_bytes(b"\0" * before.st_size)  # a second reading would see this
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        assert check(spec, typed(task), str(tmp_path)) == first

    def test_the_demo_task_is_packaged(self) -> None:
        task = load_task("demo_remarks")
        spec = spec_of(task, "mezo")
        here = check(spec, typed(task), None)
        assert here.available, here.why
        assert here == check(spec, typed(task), "/nowhere"), "data.dir does not move packaged data"
        splits = load_splits(spec, typed(task), None, Split(train=64, dev=32, test=50, seed=0))
        assert (len(splits.train), len(splits.dev), len(splits.test)) == (64, 32, 50)
        for rows in (splits.train, splits.dev, splits.test):
            assert {row["label"] for row in rows} == {0, 1}

    def test_a_task_without_a_hub_says_to_set_the_folder(self) -> None:
        task = load_task("trec")
        spec = spec_of(task, "mezo_medium")
        assert check(spec, typed(task), None).why == "task 'trec' is read from a local folder; set data.dir"
        with pytest.raises(UserError, match=r"set data\.dir"):
            load_splits(spec, typed(task), None, Split(train=1, dev=1, test=1, seed=0))

    def test_a_prepared_hub_copy_is_found_offline(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path))
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
        task = load_task("wsc")
        spec = spec_of(task, "mezo")
        status = check(spec, typed(task), None)
        assert not status.available
        assert "hf:aps/super_glue/wsc.fixed is not in the datasets cache" in status.why
        assert "HF_HUB_OFFLINE is set" in status.why
        prepared = tmp_path / "aps___super_glue" / "wsc.fixed" / "0.0.0" / "3de24cf8022e94f4ee4b9d55a6f539891524d646"
        prepared.mkdir(parents=True)
        (prepared / "dataset_info.json").write_text("{}")
        status = check(spec, typed(task), None)
        assert (status.available, status.fingerprint) == (True, "hf:aps/super_glue/wsc.fixed")
        assert status.row_bytes == 0, "its lengths are not known"
        info = {"splits": {"train": {"num_bytes": 3000, "num_examples": 20}}}
        (prepared / "dataset_info.json").write_text(json.dumps(info))
        assert check(spec, typed(task), None).row_bytes == 150

    @pytest.mark.multiprocess
    def test_an_unreachable_hub_is_asked_once_and_said_in_one_line(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        code = (
            "import json, sys, yaml\n"
            "from zo_sweeps.methods.definition import read\n"
            "from zo_sweeps.methods.task import Task\n"
            "from zo_sweeps.tasks.data import check\n"
            "from zo_sweeps.tasks.spec import TaskSpec\n"
            "out, calls = [], []\n"
            "sys.addaudithook(lambda event, args: calls.append(args) if event == 'socket.connect' else None)\n"
            "for name in ('rte', 'wic', 'multirc'):\n"
            "    task = read(Task, yaml.safe_load(open(f'conf/task/{name}.yaml')), 'task')\n"
            "    status = check(TaskSpec.of(task, 'mezo'), task, None)\n"
            "    out.append((status.available, status.why, len(calls)))\n"
            "print(json.dumps(out))\n"
        )
        # 10.255.255.1 answers nobody: the time limit is what ends the question.
        env = {k: v for k, v in os.environ.items() if not k.startswith("HF_") and "proxy" not in k.lower()}
        env |= {"HF_ENDPOINT": "http://10.255.255.1", "HF_DATASETS_CACHE": str(tmp_path)}
        run = subprocess.run(
            [sys.executable, "-c", code], cwd=REPO, env=env, capture_output=True, text=True, check=True
        )
        statuses = json.loads(run.stdout)
        assert [available for available, _, _ in statuses] == [False] * 3
        assert all("http://10.255.255.1 cannot be reached" in why and "\n" not in why for _, why, _ in statuses)
        assert [calls for _, _, calls in statuses] == [1] * 3


def test_a_user_s_yaml_and_jsonl_make_a_task(write_jsonl: Callable[..., Path], tmp_path: Path, tokenizer: Any) -> None:
    (tmp_path / "mood.yaml").write_text(
        """
name: mood
display: Mood
kind: classification
metric: accuracy
local: mood-files
fields: [remark]
label_field: meta.mood
labels: [sad, glad, so-so]
dialects:
  ours: {loss: candidates, template: "{{ remark | upper_first }} I am", options: [" sad", " glad", " so-so"]}
""",
        encoding="utf-8",
    )
    task = yaml.safe_load((tmp_path / "mood.yaml").read_text(encoding="utf-8"))
    spec = spec_of(task, "ours")
    rows = [{"remark": f"day {i}.", "meta": {"mood": ("sad", "glad", "so-so")[i % 3]}} for i in range(9)]
    write_jsonl(tmp_path / "data" / "mood-files", train=rows, validation=rows[:3], test=rows[:4])
    assert check(spec, typed(task), str(tmp_path / "data")).available
    splits = load_splits(spec, typed(task), str(tmp_path / "data"), Split(train=9, dev=3, test=4, seed=0))
    for row in splits.train:
        prompt = render(spec, row)
        assert prompt.text == f"Day {row['remark'][4:]} I am"
        assert prompt.options[prompt.gold] == " " + row["meta"]["mood"]
    with pytest.raises(UserError, match=r"unknown prompt dialect 'mezo' in task 'mood'; choose from: chat, ours"):
        spec_of(task, "mezo")


class TestShots:
    """k rows a class, by LM-BFF's rule; the oracle is written out here once more."""

    @pytest.mark.parametrize("seed", [13, 42])
    def test_hub_rows_are_the_first_k_and_the_next_k_of_each_class(
        self, sst2: Any, write_jsonl: Any, tmp_path: Path, monkeypatch: Any, legacy_state: None, seed: int
    ) -> None:
        spec, task = sst2
        folder = write_jsonl(tmp_path / "d", train=sentences(200), validation=sentences(60))
        task = as_hub(task, folder, tmp_path / "c", monkeypatch)
        splits = load_splits(spec, typed(task), None, Split(shots=16, train=1, dev=1, test=20, seed=seed))
        order = published_draw(200, 200, seed)
        of_class = [[i for i in order if i % 2 == label] for label in (0, 1)]
        assert numbers(splits.train) == of_class[0][:16] + of_class[1][:16]
        assert numbers(splits.dev) == of_class[0][16:32] + of_class[1][16:32]
        assert numbers(splits.test) == published_draw(60, 20, 42)

    def test_local_dev_rows_come_from_the_validation_file(
        self, sst2: Any, write_jsonl: Any, tmp_path: Path, legacy_state: None
    ) -> None:
        spec, task = sst2
        write_jsonl(tmp_path / "sst2", train=sentences(90), validation=sentences(40, "v"), test=sentences(30, "t"))
        splits = load_splits(spec, typed(task), str(tmp_path), Split(shots=4, train=1, dev=1, test=30, seed=13))
        order = published_draw(40, 40, 13)
        assert [row["label"] for row in splits.train] == [0] * 4 + [1] * 4
        assert [row["sentence"][0] for row in splits.dev] == ["v"] * 8
        assert numbers(splits.dev) == [[i for i in order if i % 2 == c][n] for c in (0, 1) for n in range(4)]

    def test_a_small_class_gives_what_it_has(self, sst2: Any, write_jsonl: Any, tmp_path: Path) -> None:
        spec, task = sst2
        rows = [{"sentence": f"s{i}", "label": int(i < 3)} for i in range(50)]
        write_jsonl(tmp_path / "sst2", train=rows, validation=rows, test=rows)
        splits = load_splits(spec, typed(task), str(tmp_path), Split(shots=16, train=1, dev=1, test=9, seed=21))
        assert [row["label"] for row in splits.train] == [0] * 16 + [1] * 3
        assert len(splits.test) == 9

    def test_a_task_without_labels_is_refused(self, write_jsonl: Any, tmp_path: Path) -> None:
        task = load_task("drop")
        row = {"passage": "p", "question": "q", "answers_spans": {"spans": ["a"]}}
        write_jsonl(tmp_path / "drop", train=[row], validation=[row], test=[row])
        with pytest.raises(UserError, match=r"split.shots draws rows by label, but the rows of task 'drop' have none"):
            load_splits(spec_of(task, "mezo"), typed(task), str(tmp_path), Split(shots=1, train=1, dev=1, seed=0))


def test_rows_that_nobody_labelled_are_left_out(write_jsonl: Any, tmp_path: Path, monkeypatch: Any) -> None:
    rows = [{"premise": f"p{i}", "hypothesis": "h", "label": i % 4 - 1} for i in range(40)]
    folder = write_jsonl(tmp_path / "d", train=rows, validation=rows)
    task = as_hub(load_task("snli"), folder, tmp_path / "c", monkeypatch)
    found = read_split(spec_of(task, "mezo_medium"), typed(task), None, "train")
    assert len(found) == 30
    assert {row["label"] for row in found} == {0, 1, 2}


def test_any_of_several_right_candidates_is_known_to_the_example(tokenizer: Any) -> None:
    from zo_sweeps.tasks.encode import encode

    spec = spec_of(load_task("record"), "mezo")
    row = {"passage": "p", "query": "@placeholder won", "entities": ["A", "B", "C"], "answers": ["C", "A"]}
    example = encode(spec, row, tokenizer, 64)
    assert (example.gold, example.golds, len(example.candidates)) == (2, (0, 2), 3)
