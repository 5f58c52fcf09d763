"""What all tests share, those of packages/ too: a folder of real data, a tracking server, what a marker promises."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from zo_sweeps.methods import registry

# One thread a process, before torch is imported: the models are tiny, and the threads of processes that are tested side
# by side spend most of their time waiting for each other (a third of the time on two busy cores).
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Composing and exporting make so many objects that a fifth of the time went to looking for cycles among them.
gc.set_threshold(50_000, 20, 20)
os.environ.pop("COLUMNS", None)  # set in xdist's workers: what a command prints would be wrapped there alone

TIERS = ("unit", "multiprocess", "e2e")
STARTS = {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system"}  # audit events of the interpreter
# The noise kernel's compiler, the standard library's `platform`, git for a trial's provenance, and the trial of kernels
# for quantized weights; on a GPU, what Triton runs to compile a kernel and its launcher: once per process, in whichever
# test is the first to need them.
ONCE = (
    *("gaussian.c", "uname", "git", "zo_sweeps.devices.kernels"),
    *("ldconfig", "file", "cuda_utils.c", "__triton_launcher.c", "ptxas"),
)

# Folders and files that share trained weights of every form; an MLflow server; the plans of all grids; an exported
# program, for which another process would only wait.
SHARING = (
    ("tests/api/",),
    ("tests/e2e/test_sweep.py", "packages/tracking/tests/test_mirror.py", "packages/tracking/tests/test_views.py"),
    ("tests/papers/", "tests/labels/test_walk.py"),
    (
        "packages/edge/tests/test_trials.py",
        "packages/edge/tests/test_client_trial.py",
        "packages/agent/tests/test_board.py",
    ),
)

running: list[str] = []  # the unit test that runs now
began: list[float] = []  # when the last full garbage collection did
long_collections: list[float] = []  # the seconds of those since the last `gc.freeze`


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder with `data`, `models` and `reference`; a test that needs it is skipped without it."""
    folder = os.environ.get("ZO_SHARED")
    if not folder:
        pytest.skip("needs a folder of data and models: set ZO_SHARED (see CONTRIBUTING.md)")
    assert Path(folder).is_dir(), f"ZO_SHARED={folder} is no folder"
    return Path(folder).resolve()


@pytest.fixture(scope="session")
def tracking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of an MLflow server, for the tests that are about one: a start takes eight seconds."""
    from zo_sweeps_tracking import server

    with contextlib.closing(server.start(tmp_path_factory.mktemp("tracking"))) as one:
        yield one.uri


@pytest.fixture(scope="session", autouse=True)
def _no_hub() -> None:
    """No test asks the Hugging Face hub: a plan would wait seconds for it where there is no network."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """torch computes with one thread, as a trial's process does by default, whatever the environment says."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def _folders_of_one_test() -> Iterator[None]:
    """Members in the folders of a test (--config-dir) are not found by the next one."""
    with registry.using_folders(registry.folders()):
        yield


def tier(item: pytest.Item) -> list[str]:
    return [name for name in TIERS if item.get_closest_marker(name)]


@pytest.hookimpl(tryfirst=True)  # before -m selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as `unit` what has no other marker, refuse two, and put files of slow tests first, then those of processes.

    What is left for the end are short files, which several workers finish at the same time.
    """
    for item in items:
        if not tier(item):
            item.add_marker("unit")
    if unclear := sorted({item.nodeid.partition("[")[0] for item in items if len(tier(item)) > 1}):
        raise pytest.UsageError(f"one marker of {', '.join(TIERS)}, not several: {', '.join(unclear)}")
    slow = Counter(item.path for item in items if item.get_closest_marker("slow"))
    starting = Counter(item.path for item in items if tier(item) != ["unit"])
    every = Counter(item.path for item in items)
    items.sort(key=lambda item: (-slow[item.path], -starting[item.path], -every[item.path]))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give each worker a file at a time, or all of those that share what takes long."""
    from xdist.scheduler import LoadFileScheduling

    class ByFile(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file: str = super()._split_scope(nodeid)
            return next((files[0] for files in SHARING if file.startswith(files)), file)

    return ByFile(config, log)


def pytest_collection_finish() -> None:
    """Exempt what is loaded by now from garbage collection: a trial has three, which take 0.3 s each otherwise."""
    gc.callbacks.append(_notice_long_collections)
    gc.collect()
    gc.freeze()
    long_collections.clear()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> Iterator[None]:
    """Exempt what tests have imported and cached since: libraries, plans of a thousand trials."""
    try:
        return (yield)
    finally:
        if long_collections:
            gc.collect()
            gc.freeze()
            long_collections.clear()


def _notice_long_collections(phase: str, info: dict[str, int]) -> None:
    if info["generation"] == 2 and phase == "start":
        began[:] = [time.perf_counter()]
    elif info["generation"] == 2 and time.perf_counter() - began[0] > 0.02:
        long_collections.append(time.perf_counter() - began[0])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    running[:] = [item.nodeid] if tier(item) == ["unit"] else []
    try:
        return (yield)
    finally:
        running.clear()


def _refuse_processes(event: str, arguments: tuple[object, ...]) -> None:
    """Fail the unit test that starts a process. An audit hook cannot be taken away: it looks at `running`."""
    words = arguments[1] if len(arguments) > 1 and isinstance(arguments[1], (list, tuple)) else ()
    if event in STARTS and running and not any(Path(str(word)).name in ONCE for word in words):
        what = f"{event} {arguments[:2]}"
        pytest.fail(f"a unit test starts no process ({what}): mark it `multiprocess`, or `e2e` for a whole command")


sys.addaudithook(_refuse_processes)
