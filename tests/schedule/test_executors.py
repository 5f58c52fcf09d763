"""Executors as definitions: how they are chosen and checked, and which backend they build."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

from zo_sweeps.config.composer import Composer
from zo_sweeps.core.errors import UserError
from zo_sweeps.methods.registry import member, names
from zo_sweeps.plan.build import Plan
from zo_sweeps.schedule.executors.inline import InlineBackend
from zo_sweeps.schedule.this_host import crowded
from zo_sweeps_ray.executor import RayBackend

pytestmark = pytest.mark.unit


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A configuration folder of the user's own, with the group `executor`."""
    (tmp_path / "executor").mkdir()
    return tmp_path


def test_the_command_line_chooses_an_executor_and_its_options() -> None:
    ray, inline = member("executor", "ray"), member("executor", "inline")
    assert set(names("executor")) == {"inline", "ray"}
    assert Composer().run.executor == ray()
    assert Composer(["executor=inline"]).run.executor == inline()
    words = ["executor.slots=3", "executor.workers=2", "executor.on_lost_worker=drop", "executor.worker_patience=5"]
    assert Composer(words).run.executor == ray(slots=3, workers=2, on_lost_worker="drop", worker_patience=5.0)


def test_a_file_of_ones_own_holds_only_the_options_that_differ(folder: Path) -> None:
    (folder / "executor" / "patient.yaml").write_text("name: inline\nretries_lost: 7\n")
    config = Composer(["executor=patient"], [str(folder)]).run
    assert config.executor == member("executor", "inline")(retries_lost=7)
    assert config.to_json()["executor"] == {**member("executor", "inline").defaults(), "retries_lost": 7}


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["executor.slots=0"], "executor.slots of ray must be at least 1, not 0 in the command line"),
        (["executor=inline", "executor.workers=-1"], "executor.workers of inline must be at least 1, not -1"),
        (["executor.retries_lost=-1"], "executor.retries_lost of ray must be at least 0, not -1"),
        (["executor.worker_patience=0"], "executor.worker_patience of ray must be above 0"),
        (["executor.workers=two"], "executor.workers='two' has the wrong type in the command line"),
        (["executor.on_lost_worker=redoo"], "did you mean 'redo'"),
        (["executor.slot=1"], "did you mean 'executor.slots'"),
        (["+executor.slot=1"], "did you mean 'executor.slots'"),
        (["executor=rai"], "unknown executor 'rai'"),
        (["executor.name=rai"], "unknown executor 'rai'"),
    ],
)
def test_a_wrong_executor_is_refused_when_the_command_is_read(words: list[str], line: str) -> None:
    with pytest.raises(UserError) as raised:
        Composer(words)
    assert line in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_wrong_option_in_a_file_is_refused_with_the_file(folder: Path) -> None:
    file = folder / "executor" / "mine.yaml"
    file.write_text("name: ray\nslots: 0\n")
    with pytest.raises(UserError, match=rf"executor.slots of ray must be at least 1, not 0 in {file}"):
        Composer(["executor=mine"], [str(folder)])


def test_each_executor_builds_its_backend_with_its_options(tmp_path: Path) -> None:
    inline = member("executor", "inline")(cpus_per_trial=1, workers=3).build(tmp_path, None)
    assert isinstance(inline, InlineBackend)
    assert (inline._threads, inline._options.workers, inline.grows) == (1, 3, False)
    ray = member("executor", "ray")(cpus_per_trial=2, slots=4, workers=3, on_lost_worker="drop", worker_patience=9.0)
    built = ray.build(tmp_path, "10.0.0.5:6379")
    assert isinstance(built, RayBackend)
    assert (built._cpus, built._options, built.grows) == (2, ray, True)
    assert not ray.build(tmp_path, None).grows


def test_an_executor_of_ones_own_is_one_python_file(folder: Path) -> None:
    (folder / "executor" / "batch.py").write_text(
        "from dataclasses import dataclass\n"
        "from zo_sweeps.methods.definition import option\n"
        "from zo_sweeps.methods.executor import Executor\n"
        "@dataclass(frozen=True)\n"
        "class Batch(Executor):\n"
        '    """A queue of jobs."""\n'
        '    queue: str = option("short", "the queue\'s name")\n'
        "    def build(self, state_dir, address):\n"
        "        return (self.queue, self.slots)\n"
    )
    made = Composer(["executor=batch", "executor.queue=long", "executor.slots=2"], [str(folder)]).run.executor
    assert made.build(folder, None) == ("long", 2)
    with pytest.raises(UserError, match=r"unknown key 'executor.queue' in the command line"):
        Composer(["executor=ray", "executor.queue=long"], [str(folder)])


def test_the_calling_process_collects_its_own_garbage_again_after_a_sweep() -> None:
    backend = InlineBackend()
    for before in (True, False):  # a process that has exempted objects itself keeps them so
        gc.freeze() if before else gc.unfreeze()
        try:
            backend.start(lambda _: None, 1)
            gc.freeze()  # as a trial does
            backend.shutdown()
            assert (gc.get_freeze_count() > 0) == before
        finally:
            gc.freeze()


@pytest.mark.parametrize(
    ("words", "busy", "lines"),
    [
        ([], 0.9, []),
        ([], 1.0, ["this machine is busy (about 1.0 of 2 cores)"]),
        (["executor.slots=2"], 0, []),
        (["executor.slots=8", "executor.cpus_per_trial=2"], 0, ["ask for 16 threads at a time on 2 cores"]),
        (["executor.workers=3"], 0, ["ask for 3 threads at a time on 2 cores"]),
        (["executor=inline", "executor.slots=8"], 0, []),  # one trial at a time, whatever the slots
        (["executor.slots=8", "cluster.address=head:6379"], 2, []),
    ],
)
def test_a_sweep_says_that_it_shares_its_cores(
    words: list[str], busy: float, lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("zo_sweeps.devices.probe.cores", lambda: 2)
    monkeypatch.setattr("zo_sweeps.devices.probe.busy_cores", lambda: busy)
    said = crowded(Plan(Composer(words).run, (), (), {}, {}, ()))
    assert len(said) == len(lines)
    assert all(line in text for line, text in zip(lines, said, strict=True))
