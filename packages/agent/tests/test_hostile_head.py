"""SECURITY.md, *Agents and the gateway*: what a hostile head, or a driver's account, cannot do to a board."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.run.common import make
from zo_sweeps.core.document import MalformedError
from zo_sweeps.methods import registry
from zo_sweeps.record.journal import outcome
from zo_sweeps_agent.agent import link, trials
from zo_sweeps_agent.agent.spool import Spool
from zo_sweeps_agent.lease_contents import LeaseContents
from zo_sweeps_agent.protocol import WorkReply

pytestmark = pytest.mark.unit


@pytest.fixture(scope="module")
def trial() -> dict[str, Any]:
    return make("model=demo", "update.lr=1e-3").to_json()


# What a lease changes in a trial's configuration, with the folder in which the agent keeps the files of the lease as
# FOLDER; the parts of which files came; the line with which the trial ends.
HOSTILE: dict[str, tuple[dict[str, Any], tuple[str, ...], str]] = {
    **{
        f"code as a member of {axis}": ({"members": ["FOLDER"], axis: {"name": "evil"}}, ("model",), "unknown")
        for axis in ("estimator", "perturbation", "space", "precision", "update")
    },
    "code as a kind": ({"members": ["FOLDER"], "method": {"name": "", "kind": "evil"}}, (), "unknown kind 'evil'"),
    "a program for a phone": (
        {"device": {"kind": "phone", "runtime": "executorch", "client": "FOLDER/perturbation/evil.py"}},
        (),
        "trials of phones, and of the light client's logs, run on the head's own nodes",
    ),
    "a log of the board's": (
        {"device": {"runtime": "executorch", "log": "FOLDER"}}, (), "trials of phones",
    ),
    "a model of the board's": (
        {"model": {"source": "local", "path": "FOLDER"}}, (), "the head sent no file of the trial's model",
    ),
    "rows of the board's": (
        {"task": {"source": ""}, "data": {"dir": "FOLDER"}}, (), "the head sent no rows of the trial's task",
    ),
    "a data set of the board's": (
        {"task": {"source": "", "hub": {"path": "FOLDER"}}}, (), "the head sent no rows of the trial's task",
    ),
    "a text of the board's": (
        {"gradients": {"samples": 1, "text": "/etc/passwd"}},
        ("data",),
        "UserError: the head sent a file with the name '/etc/passwd'",
    ),
    "a text outside of the data": (
        {"gradients": {"samples": 1, "text": "../../key.pem"}},
        ("data",),
        "UserError: the head sent a file with the name '../../key.pem'",
    ),
}  # fmt: skip


def merged(config: Mapping[str, Any], change: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """A part with a name in `change` is a whole one."""
    new = json.loads(json.dumps(change).replace("FOLDER", str(folder)))
    whole = {name: part for name, part in new.items() if "name" in part or name == "members"}
    return {**config, **{name: {**config[name], **part} for name, part in new.items() if name not in whole}, **whole}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_lease_brings_no_code_and_reads_nothing_of_the_boards(
    trial: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    change, parts, line = HOSTILE[what]
    folder, ran = tmp_path / "files", tmp_path / "ran"
    for axis in registry.PACKAGES:
        (folder / axis).mkdir(parents=True)
        (folder / axis / "evil.py").write_text(f"from pathlib import Path\nPath({str(ran)!r}).touch()\n")
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.setenv(name, "1")
    sent = {**trial, "config": merged(trial["config"], change, folder)}
    spool = Spool.create(tmp_path, LeaseContents("one", trial["trial_id"], 1, 0, sent))
    words = {"run": str(spool.folder), "place": {}, "folders": {part: str(folder) for part in parts}}
    trials.run(trials.TARGET, words, lambda: True)
    assert not ran.exists(), "its code was run"
    ended = Spool(spool.folder).outcome or outcome(spool.events())
    assert ended is not None
    assert ended.state.value in ("FAILED", "LOST")
    assert line in ended.error
    assert "\n" not in ended.error


FILE = {"of": "model", "path": "a", "sha256": "0" * 64, "bytes": 1}
LEASE = {"lease": "a1", "trial_id": "t", "attempt": 1, "held": 0, "trial": {}}
OFFER = {"lease": "a1", "trial_id": "t", "attempt": 1, "held": 0}
WRONG: dict[str, tuple[type[WorkReply] | type[LeaseContents], dict[str, Any], str]] = {
    **{
        f"an offer named {name!r}": (WorkReply, {"leases": [{**OFFER, "lease": name}]}, "wrong 'lease'")
        for name in ("", ".", "..", "../../x", "/etc", "a/b", "a\n")
    },
    "a lease named ..": (LeaseContents, {**LEASE, "lease": ".."}, "wrong 'lease'"),
    "files of another part": (LeaseContents, {**LEASE, "files": [{**FILE, "of": "perturbation"}]}, "wrong 'of'"),
    "files of the cache": (LeaseContents, {**LEASE, "files": [{**FILE, "of": "../x"}]}, "wrong 'of'"),
    "a digest that is a path": (LeaseContents, {**LEASE, "files": [{**FILE, "sha256": "../../key.pem"}]}, "'sha256'"),
    "threads without end": (LeaseContents, {**LEASE, "threads": 2**40}, "wrong 'threads'"),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_lease_names_no_place_on_the_board(what: str) -> None:
    """A lease's name is a folder's: `..` was that of the key, which the end of the lease deleted."""
    shape, value, line = WRONG[what]
    with pytest.raises(MalformedError, match=line):
        shape.read(value)


def test_what_is_printed_moves_no_cursor(tmp_path: Path) -> None:
    sent = {"label": "\x1b[2Jred"}
    assert Spool.create(tmp_path, LeaseContents("one", "t", 1, 0, sent)).label == "?[2Jred"


def test_an_answer_of_brackets_is_none() -> None:
    import httpx2

    with pytest.raises(link.UnreachableError):
        link.understood(WorkReply, link._checked(httpx2.Response(200, content=b"[" * 10**5)) or [])
