"""Files that are wrong: each gets the one line of `bad_files`, in milliseconds, and what it names is the file."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.cli import bad_files
from tests.cli.bad_files import FOLDER, GONE, LINK
from tests.plan.common import changed, write_grid
from tests.tasks.common import load_task, spec_of, typed
from zo_sweeps.cli.main import main
from zo_sweeps.config.parsed_files import loaded
from zo_sweeps.core.errors import UserError
from zo_sweeps.methods.parts import Model, ModelSource
from zo_sweeps.models.identity import DEMO, status
from zo_sweeps.tasks.data import check
from zo_sweeps.tasks.encode import render

ROWS = {"sst2": bad_files.SST2}
ROWS["squad"] = bad_files.SQUAD % b'{"text": ["a"]}'
ROWS["record"] = bad_files.RECORD % (b'["Oslo", "Rome"]', b'["Oslo"]')
NOBODY = 65534


def line_of(call: Callable[[], object]) -> str:
    with pytest.raises(UserError) as caught:
        call()
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(("task", "row", "wrong"), bad_files.ROWS, ids=lambda value: str(value)[:40])
def test_a_row(task: str, row: bytes, wrong: str, tmp_path: Path) -> None:
    folder = tmp_path / task
    folder.mkdir()
    for split in ("train", "validation", "test"):
        (folder / f"{split}.jsonl").write_bytes(ROWS[task] + b"\n\n" + (row if split == "test" else ROWS[task]) + b"\n")
    tree = load_task(task)
    line = line_of(lambda: check(spec_of(tree, "mezo"), typed(tree), str(tmp_path)))
    assert wrong in line
    assert f" in {folder / 'test.jsonl'}:3" in line


@pytest.mark.parametrize(("template", "wrong"), bad_files.TEMPLATES, ids=lambda value: value[:40])
def test_a_template(template: str, wrong: str) -> None:
    tree = load_task("sst2")
    tree["dialects"]["mezo"]["template"] = template
    line = line_of(lambda: render(spec_of(tree, "mezo"), json.loads(bad_files.SST2)))
    assert wrong in line
    assert "task 'sst2', dialect 'mezo'" in line


@pytest.mark.parametrize(("text", "wrong"), bad_files.YAMLS, ids=lambda value: str(value)[:40])
def test_a_configuration_file(text: bytes, wrong: str, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_bytes(text)
    line = line_of(lambda: loaded(tmp_path / "mine.yaml"))
    assert wrong in line
    assert f" in {tmp_path / 'mine.yaml'}" in line


def test_a_configuration_file_with_a_mark_of_its_byte_order_is_read(tmp_path: Path) -> None:
    text = "# @package _global_\nmethod: {name: mezo}\n"
    found = []
    for name, encoding in (("plain.yaml", "utf-8"), ("marked.yaml", "utf-8-sig")):
        (tmp_path / name).write_text(text, encoding=encoding)
        found.append(loaded(tmp_path / name))
    assert found[0] == found[1]
    assert found[0][1]["package"] == "_global_"


@pytest.mark.parametrize(("name", "instead", "wrong"), bad_files.MODELS, ids=lambda value: str(value)[:40])
def test_a_model(name: str, instead: bytes | str, wrong: str, tmp_path: Path) -> None:
    folder = demo_in(tmp_path)
    file = folder / name
    file.unlink()
    if isinstance(instead, bytes):
        file.write_bytes(instead)
    elif instead == FOLDER:
        file.mkdir()
    elif instead == LINK:
        file.symlink_to(file)
    else:
        assert instead == GONE
    why = status(local(folder)).why
    assert wrong in why
    assert str(folder) in why
    assert "\n" not in why


def demo_in(place: Path) -> Path:
    (folder := place / "model").mkdir()
    for name in (bad_files.CONFIG, bad_files.TOKENIZER, bad_files.SETTINGS):
        shutil.copy(DEMO / name, folder)
    (folder / bad_files.WEIGHTS).symlink_to(DEMO / bad_files.WEIGHTS)
    return folder


def local(folder: Path) -> Model:
    return Model(name="local", source=ModelSource.LOCAL, path=str(folder))


@pytest.mark.parametrize(
    ("path", "wrong"),
    [
        (str(DEMO / "model.safetensors"), "is no folder that can be read (Not a directory)"),
        ("loop", "is no folder that can be read (Too many levels of symbolic links)"),
        ("x" * 5000, "is no folder that can be read (File name too long)"),
        ("a\0b", "is no folder that can be read (embedded null byte)"),
        ("~no_such_user/x", "is no folder that can be read (Could not determine home directory.)"),
    ],
    ids=lambda value: value[:40],
)
def test_a_model_path(path: str, wrong: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "loop").symlink_to("loop")
    assert status(Model(name="local", source=ModelSource.LOCAL, path=path)).why == (
        f"model.path={path} {wrong}; write model.path=FOLDER"
    )


# --- files that exist and cannot be read


@contextmanager
def without_rights() -> Iterator[None]:
    """Be a user whom file modes bind, if this one is root."""
    if os.geteuid():
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


@contextmanager
def no_mode(path: Path) -> Iterator[None]:
    """Take all rights to a file or folder away, from everybody."""
    path.chmod(0)
    try:
        with without_rights():
            yield
    finally:
        path.chmod(0o755)


@pytest.fixture
def open_path() -> Iterator[Path]:
    """A folder that any user reaches, which pytest's own is not."""
    with TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


RIGHT = ": Permission denied; it must be a file or folder that you may read"


@pytest.mark.parametrize("name", ["sst2", "sst2/train.jsonl", "sst2/test.jsonl"])
def test_rows_without_the_right_to_read_them(name: str, open_path: Path) -> None:
    tree, folder = load_task("sst2"), open_path / "sst2"
    folder.mkdir()
    for split in ("train", "validation", "test"):
        (folder / f"{split}.jsonl").write_bytes(bad_files.SST2 + b"\n")
    with no_mode(open_path / name):
        line = line_of(lambda: check(spec_of(tree, "mezo"), typed(tree), str(open_path)))
    assert f"cannot read {open_path / name}" in line
    assert RIGHT in line


@pytest.mark.parametrize("name", ["", bad_files.CONFIG, bad_files.TOKENIZER, bad_files.SETTINGS, bad_files.WEIGHTS])
def test_a_model_without_the_right_to_read_it(name: str, open_path: Path) -> None:
    assert status(local(DEMO)).available  # whatever is imported late
    folder = demo_in(open_path)
    if name == bad_files.WEIGHTS:
        (folder / name).unlink()
        (folder / name).write_bytes(b"")
    with no_mode(folder / name):
        why = status(local(folder)).why
    own = f"model.path={folder} is no folder that can be read (Permission denied); write model.path=FOLDER"
    assert why == (f"cannot read {folder / name}{RIGHT}" if name else own)


@pytest.mark.parametrize("name", ["", "grid", "grid/mine.yaml", "task/praise.yaml"])
def test_configuration_without_the_right_to_read_it(
    name: str, open_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    conf = write_grid(open_path / "conf", changed(), "mine")
    (conf / "task").mkdir()
    (conf / "task" / "praise.yaml").write_text("name: praise\n")
    task = ["task=praise"] if "task" in name else []
    assert main(["plan", "+grid=quickstart", f"state_dir={open_path / 'runs'}"]) == 0  # whatever is imported late
    capsys.readouterr()
    with no_mode(conf / name):
        assert main(["plan", "+grid=mine", *task, "--config-dir", str(conf), f"state_dir={open_path / 'runs'}"]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert f"cannot read {conf / name}" in err
    assert RIGHT in err


@pytest.mark.parametrize("command", [["plan", "+grid=quickstart"], ["status"], ["--version"], ["gc"], []])
def test_a_working_folder_that_was_deleted(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert main(command) == 2
    line = "zo_sweeps: the working folder cannot be used (No such file or directory); cd to one that exists\n"
    assert capsys.readouterr() == ("", line)


# --- bad files as a command meets them: the same line, status 2, and no folder made


@pytest.mark.parametrize("command", ["plan", "run"])
@pytest.mark.parametrize(
    ("name", "content", "wrong"),
    [
        ("grid/mine.yaml", bad_files.LAUGHS, "more than 262,144 entries"),
        ("task/praise.yaml", "# é\n".encode("latin-1"), "not UTF-8 text (invalid continuation byte)"),
        (
            "data/demo_remarks/train.jsonl",
            b'{"text": "\\ud800", "label": 1}\n',
            "half of a surrogate pair in field 'text'",
        ),
    ],
    ids=lambda value: str(value)[:20],
)
def test_a_command(
    command: str, name: str, content: bytes, wrong: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    conf = write_grid(tmp_path, changed(), "mine")
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_bytes(content)
    if "data" in name:
        source, others = tmp_path / "task" / "praise.yaml", ("validation", "test")
        source.parent.mkdir()
        source.write_text(
            "name: praise\ndisplay: Praise\nkind: classification\nmetric: accuracy\nlocal: demo_remarks\n"
            "fields: [text]\nlabel_field: label\ndialects:\n  mezo:\n    loss: candidates\n"
            '    template: "{{ text }} It was"\n    options: [" terrible", " great"]\n'
        )
        for split in others:
            (tmp_path / name).with_name(f"{split}.jsonl").write_text('{"text": "a", "label": 1}\n')
    task = [] if "grid" in name else ["task=praise"]
    state, data = tmp_path / "runs", tmp_path / "data"
    assert (
        main([command, "+grid=mine", *task, "--config-dir", str(conf), f"state_dir={state}", f"data.dir={data}"]) == 2
    )
    out, err = capsys.readouterr()
    assert (out, err.count("\n"), state.exists()) == ("", 1, False)
    assert wrong in err
    assert f"in {tmp_path / name}" in err
