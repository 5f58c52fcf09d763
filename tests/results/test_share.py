"""A sweep's results as a file: whoever has model and data finds what was changed in it; imported rows are labelled."""

from __future__ import annotations

import csv
import io
import json
import lzma
import os
import platform
import shlex
import shutil
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from pandas import DataFrame

import zo_sweeps
from tests.cli.common import NOWHERE
from tests.plan.common import changed, planned, write_grid
from tests.run.common import make
from tests.tables.examples import PUBLISHED, small
from tests.tasks.common import load_task, spec_of
from zo_sweeps.cli.main import main
from zo_sweeps.core.files import packed, unpacked
from zo_sweeps.core.trial import TrialState
from zo_sweeps.engine.replay import OtherBasesError
from zo_sweeps.methods import registry
from zo_sweeps.methods.precision import Precision
from zo_sweeps.methods.trial_config import TrialConfig
from zo_sweeps.models.identity import DEMO
from zo_sweeps.plan.build import Plan
from zo_sweeps.record import archive
from zo_sweeps.record.journal import JournalStore, evals, predictions
from zo_sweeps.results import exchange
from zo_sweeps.run.workbench import Workbench, torch_device
from zo_sweeps.schedule.ledger import Ledger, read_standing
from zo_sweeps.session import session, verify
from zo_sweeps.tables import build, to_csv, to_text
from zo_sweeps.tables.records import AVERAGE, LARGEST, RANK
from zo_sweeps.tasks.data import digest_rows

pytestmark = [pytest.mark.multiprocess, pytest.mark.filterwarnings("ignore")]
TRAIN = {"train": {"steps": 6, "eval_every": 2, "batch": 4}}
GRID = changed(
    title="Three kinds of trial, {model.display}",
    seeds=[0, 1],
    fixed={"prompt": "mezo", "space": {"targets": ["q", "v"]}, "split": {"train": 8, "dev": 8, "test": 12}},
    axes={"task": ["sst2"]},
    blocks={
        "zero_shot": {"label": "Zero-shot", "fixed": {"method": "zero_shot"}},
        "fo": {"label": "FO", "fixed": {"method": "fo_lora_fa", "update": {"lr": 1e-2}, **TRAIN}},
        "zo": {
            "label": "ZO",
            "fixed": {"method": "prge", "estimator": {"q": 2}, **TRAIN},
            "axes": {"update": {"lr": [1.0, 1e300]}},
        },
    },
    tables={
        "accuracy": {"layout": "accuracy", "rows": {"zero_shot": "Zero-shot", "fo": "FO", "zo": "ZO"}},
        "time": {"layout": "step_time", "rows": {"zo": "ZO"}},
    },
)
Files = dict[str, bytes]


class Swept:
    """A finished sweep, its archive, and copies of its model and data."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.state, self.file = folder, folder / "state", folder / "results.tar.xz"
        self.model, self.data = folder / "model", folder / "data"
        self.conf = write_grid(folder / "conf", GRID)
        shutil.copytree(DEMO, self.model)
        (self.data / "sst2").mkdir(parents=True)
        for split in ("train", "validation", "test"):
            rows = [
                {"sentence": f"{split} film {i} was {'good' if i % 3 else 'bad'}", "label": i % 2} for i in range(12)
            ]
            (self.data / "sst2" / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        self.near = os.path.relpath(self.model)
        self.words = ["model=local", f"model.path={self.near}", f"data.dir={self.data}", "executor=inline", NOWHERE]
        self.frame = DataFrame()
        self.key = folder / "key"
        self.key.write_bytes(
            (private := ed25519.Ed25519PrivateKey.generate()).private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
            )
        )
        self.public = folder / "key.pub"
        form = (serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
        self.public.write_bytes(private.public_key().public_bytes(*form) + b" jane@desk\n")

    @property
    def copies(self) -> list[str]:
        return ["--model", str(self.model), "--data", str(self.data)]

    def ids(self, block: str, state: str = "SUCCEEDED") -> list[str]:
        """The trials of a row that ended so, in the grid's order."""
        return [*self.frame[(self.frame["block"] == block) & (self.frame["state"] == state)]["trial_id"]]

    def id(self, block: str, state: str = "SUCCEEDED") -> str:
        return self.ids(block, state)[0]


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Swept]:
    made = Swept(tmp_path_factory.mktemp("shared"))
    with pytest.MonkeyPatch.context() as patch, registry.using_folders(()):
        patch.setattr(session, "STORE_SECONDS", 0.1)
        made.frame = zo_sweeps.run("tiny", made.words, made.state, [made.conf])
        given = ["+grid=tiny", f"state_dir={made.state}", "--config-dir", str(made.conf), "--out", str(made.file)]
        assert main(["export", *given, "--by", "Jane Doe", "--key", str(made.key)]) == 0
        yield made


def said(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str]:
    """(exit status, all that a command printed but notes on the sweep that it reads)."""
    capsys.readouterr()
    status = main([*map(str, words)])
    out, err = capsys.readouterr()
    return status, out + "".join(line for line in err.splitlines(keepends=True) if not line.startswith("# "))


def contents(file: Path) -> Files:
    with tarfile.open(file, "r:xz") as tar:
        return {entry.name: tar.extractfile(entry).read() for entry in tar}


def pack(file: Path, files: Files) -> Path:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    file.write_bytes(lzma.compress(packed.getvalue()))
    return file


def forged(file: Path, files: Files) -> Path:
    """An archive whose manifest is right, as whoever changes its contents writes it; nobody can sign it again."""
    files = {name: data for name, data in files.items() if name != "signature.json"}
    manifest = json.loads(files.pop("manifest.json"))
    manifest["files"] = {name: {"bytes": len(d), "sha256": sha256(d).hexdigest()} for name, d in files.items()}
    return pack(file, {"manifest.json": json.dumps(manifest).encode(), **files})


def edited(files: Files, trial_id: str, edit: Callable[[dict[str, Any], int], None]) -> Files:
    """The files with each event of a trial's journal edited; `edit` also gets a step that was not tested."""
    name = f"journal/{trial_id}.jsonl"
    events = [json.loads(line) for line in files[name].splitlines()]
    untested = 2 if events[-1]["outcome"]["selected_step"] != 2 else 4
    for event in events:
        edit(event, untested)
    return {**files, name: b"".join(json.dumps(event).encode() + b"\n" for event in events)}


def test_a_reader_computes_every_trial_again(
    swept: Swept, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Workbench, "batch", None)  # no step is taken for the weights
    status, text = said(capsys, "verify", swept.file, "--key", swept.public, *swept.copies)
    assert status == 0, text
    lines = text.splitlines()
    proved = [line.split()[1] for line in lines if line.startswith("ok")]
    assert proved == [*swept.ids("zero_shot"), *swept.ids("zo")]
    attested = {line.split()[1] for line in lines if line.startswith("–")}
    assert attested == {*swept.ids("fo"), *swept.ids("zo", "DIVERGED")}
    assert lines[-1].startswith("verified: 3 trials computed again")
    test = evals(JournalStore(swept.state).read(swept.id("zo")))
    (weights,) = {event.weights for (split, _), event in test.items() if split == "test"}
    assert any(swept.id("zo") in line and f"weights {weights[:12]}, test accuracy" in line for line in lines)
    status, text = said(capsys, "verify", swept.file, swept.id("zo")[:6], *swept.copies)
    assert (status, [line[:2] for line in text.splitlines()].count("ok")) == (0, 1)


def test_an_archive_has_no_path_and_no_host_and_is_small(swept: Swept) -> None:
    readable = [content for name, content in contents(swept.file).items() if name != "signature.json"]  # base64
    whole = b"\n".join(readable).decode()
    for private in (str(swept.folder), str(swept.model), swept.near, platform.node(), "hostname", "traceback"):
        assert private not in whole
    assert swept.file.stat().st_size < 30_000
    names = {*contents(swept.file)}
    assert names == {"manifest.json", "signature.json", "plan.json", "tables.json"} | {
        f"journal/{trial_id}.jsonl" for trial_id in swept.frame["trial_id"]
    }


def test_an_archive_says_which_rows_were_scored(swept: Swept) -> None:
    files = contents(swept.file)
    rule = json.loads(files["plan.json"])["drawn"]
    assert "RandomState(split.seed).permutation(n)" in rule
    assert "split.test of test.jsonl" in rule
    rows = [json.loads(line) for line in (swept.data / "sst2" / "test.jsonl").read_text().splitlines()]
    drawn = [rows[i] for i in np.random.RandomState(0).permutation(len(rows))[:12]]
    events = [json.loads(line) for name in files if "journal/" in name for line in files[name].splitlines()]
    tested = {event["rows"] for event in events if event["type"] == "test"}
    assert tested == {digest_rows(spec_of(load_task("sst2"), "mezo"), drawn)}


def coefficient(event: dict[str, Any], untested: int) -> None:
    if event["type"] == "steps":
        event["coefs"][0][0] = event["coefs"][0][0] * 1.001 + 1e-3


def score(event: dict[str, Any], untested: int) -> None:
    """A better test score, in the log and in the result."""
    if event["type"] == "test":
        event["metric"] = event["metrics"]["accuracy"] = 1.0
    if event["type"] == "end":
        event["outcome"]["metrics"].update({"test/metric": 1.0, "test/accuracy": 1.0})


def result_alone(event: dict[str, Any], untested: int) -> None:
    if event["type"] == "end":
        event["outcome"]["metrics"].update({"test/metric": 1.0, "test/accuracy": 1.0})


def prediction(event: dict[str, Any], untested: int) -> None:
    if event["type"] == "test":
        right = [*unpacked(event["right"], event["examples"])]
        event["right"] = packed([not right[0], *right[1:]])


def rows(event: dict[str, Any], untested: int) -> None:
    if event["type"] == "test":
        event["rows"] = "0" * 32


def no_digest(event: dict[str, Any], untested: int) -> None:
    event.pop("weights", None)


def selection(event: dict[str, Any], untested: int) -> None:
    """A dev loss by which another step would have been tested."""
    if event["type"] == "eval" and event["step"] == untested:
        event["loss"] = 0.001


@pytest.mark.parametrize(
    ("edit", "line"),
    [
        (coefficient, "the replayed weights are"),
        (score, "test/accuracy is 1 in its log, and"),
        (result_alone, "test/"),
        (prediction, "1 of 12 test predictions are others here"),
        (rows, "its test rows are 000000000000"),
        (selection, "was tested, and dev selects step"),
        (no_digest, "its log has no digest of the weights"),
    ],
)
def test_a_log_that_was_changed_is_found_even_if_its_digests_were_made_right(
    swept: Swept, capsys: pytest.CaptureFixture[str], tmp_path: Path, edit: Any, line: str
) -> None:
    trial_id = swept.id("zo")
    file = forged(tmp_path / "forged.tar.xz", edited(contents(swept.file), trial_id, edit))
    status, text = said(capsys, "verify", file, trial_id, *swept.copies)
    assert status == 1
    (wrong,) = [row for row in text.splitlines() if row.startswith("WRONG") and trial_id in row]
    assert line in wrong
    assert text.splitlines()[-1].startswith("not verified")


def elsewhere(event: dict[str, Any], untested: int) -> None:
    """A run under another version of torch, whose products have other last bits."""
    if event["type"] == "start":
        event["versions"]["packages"]["torch"] = "0.1"
    if event["type"] == "test":
        event["weights"] = "0" * 64


def test_only_what_is_not_portable_may_round_in_another_way_on_another_machine(
    swept: Swept, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial_id = swept.id("zo")
    files = edited(contents(swept.file), trial_id, elsewhere)
    there = forged(tmp_path / "there.tar.xz", files)
    status, text = said(capsys, "verify", there, trial_id, *swept.copies)
    assert (status, "torch 0.1 then" in text) == (1, True), "Gaussian noise is rounded alike everywhere"
    monkeypatch.setattr(type(TrialConfig.of(make("update.lr=0.1").config).perturbation), "portable", False)
    status, text = said(capsys, "verify", there, trial_id, *swept.copies)
    assert status == 0, text
    (near,) = [row for row in text.splitlines() if row.startswith("≈")]
    assert "12 of 12 test predictions are the run's" in near

    def moved(event: dict[str, Any], untested: int) -> None:
        if event["type"] == "steps":
            event["coefs"][0][0] += 1e4

    for edit in (moved, score):
        status, text = said(capsys, "verify", forged(there, edited(files, trial_id, edit)), trial_id, *swept.copies)
        assert status == 1, f"{edit.__name__}: {text}"


@pytest.mark.parametrize(("factor", "mark"), [(1.02, "≈"), (1.2, "WRONG")])
def test_scores_in_half_precision_may_round_in_another_way_on_another_machine_alone(
    swept: Swept,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    factor: float,
    mark: str,
) -> None:
    monkeypatch.setattr(Precision, "unit", 2.0**-8)  # bf16's

    def loss(event: dict[str, Any], untested: int) -> None:
        if event["type"] == "test":
            event["loss"] *= factor
        if event["type"] == "end":
            event["outcome"]["metrics"]["test/loss"] *= factor

    def on_a_gpu(event: dict[str, Any], untested: int) -> None:
        loss(event, untested)
        if event["type"] == "start":
            event["device"]["name"] = "a GPU"

    trial_id = swept.id("zo")
    for edit, expected in ((on_a_gpu, mark), (loss, "WRONG")):
        file = forged(tmp_path / "there.tar.xz", edited(contents(swept.file), trial_id, edit))
        _, text = said(capsys, "verify", file, trial_id, *swept.copies)
        (line,) = [row for row in text.splitlines() if trial_id in row]
        assert line.startswith(expected)
        assert ("a GPU then" in line) == (edit is on_a_gpu and expected == "WRONG")


@pytest.mark.parametrize(("tie", "mark"), [(1e9, "≈"), (0, "WRONG")])
def test_a_prediction_in_half_precision_may_be_another_where_candidates_nearly_tie(
    swept: Swept,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    tie: float,
    mark: str,
) -> None:
    monkeypatch.setattr(Precision, "unit", 2.0**-8)
    monkeypatch.setattr(verify, "TIE", tie)

    def on_a_gpu(event: dict[str, Any], untested: int) -> None:
        prediction(event, untested)
        if event["type"] == "start":
            event["device"]["name"] = "a GPU"

    trial_id = swept.id("zo")
    file = forged(tmp_path / "there.tar.xz", edited(contents(swept.file), trial_id, on_a_gpu))
    _, text = said(capsys, "verify", file, trial_id, *swept.copies)
    (line,) = [row for row in text.splitlines() if trial_id in row]
    assert line.startswith(mark)


def test_a_trial_is_computed_again_with_the_threads_of_its_run(
    swept: Swept, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In half precision the last bits of a product depend on their number."""

    def of_three(event: dict[str, Any], untested: int) -> None:
        if event["type"] == "start":
            event["device"]["threads"] = 3

    seen, scored = set(), verify._scored
    monkeypatch.setattr(verify, "_scored", lambda *given: seen.add(torch.get_num_threads()) or scored(*given))
    here, trial_id = torch.get_num_threads(), swept.id("zo")
    file = forged(tmp_path / "there.tar.xz", edited(contents(swept.file), trial_id, of_three))
    status, text = said(capsys, "verify", file, trial_id, *swept.copies)
    assert (status, seen, torch.get_num_threads()) == (0, {3}, here), text


def test_bases_that_are_others_are_an_excuse_on_another_machine_alone(
    swept: Swept, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def others(*_: object) -> Any:
        raise OtherBasesError("the bases of step 1 are not those of the run")

    monkeypatch.setattr(verify, "replayed", others)
    trial_id = swept.id("zo")
    there = forged(tmp_path / "there.tar.xz", edited(contents(swept.file), trial_id, elsewhere))
    for file, status, mark in ((swept.file, 1, "WRONG"), (there, 0, "–")):
        found, text = said(capsys, "verify", file, trial_id, *swept.copies)
        assert found == status, text
        assert any(row.startswith(mark) and "the bases of step 1" in row for row in text.splitlines())


def test_a_configuration_that_was_changed_is_found(
    swept: Swept, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    files = contents(swept.file)
    plan = json.loads(files["plan.json"])
    (good,) = [part for part in plan["parts"]["update"] if part["lr"] == 1.0]
    good["lr"] = 0.5
    file = forged(tmp_path / "forged.tar.xz", {**files, "plan.json": json.dumps(plan).encode()})
    status, text = said(capsys, "verify", file, *swept.copies)
    wrong = [row for row in text.splitlines() if row.startswith("WRONG")]
    assert (status, len(wrong)) == (1, 2)
    assert all("its configuration is not that of its id" in row for row in wrong)

    plan = json.loads(files["plan.json"])
    for cell in plan["cells"]:
        if cell["block"] == "zo" and cell["hyperparameters"]["update.lr"] == 1.0:
            cell["hyperparameters"]["update.lr"] = 0.5
    file = forged(tmp_path / "forged.tar.xz", {**files, "plan.json": json.dumps(plan).encode()})
    status, text = said(capsys, "verify", file, *swept.copies)
    assert (status, text.count("update.lr=0.5 in the plan, and 1.0 in its configuration")) == (1, 2)


def test_a_trial_in_another_method_s_row_is_found(
    swept: Swept, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Labels are the archive's own; what a line names in brackets is what was computed."""
    files = contents(swept.file)
    plan = json.loads(files["plan.json"])
    swapped = {"fo": "zero_shot", "zero_shot": "fo"}
    for cell in plan["cells"]:
        cell["block"] = swapped.get(cell["block"], cell["block"])
    file = forged(tmp_path / "forged.tar.xz", {**files, "plan.json": json.dumps(plan).encode()})
    status, text = said(capsys, "verify", file, *swept.copies)
    found = [line for line in text.splitlines() if "in the row and column where it stands" in line]
    assert (status, len(found)) == (1, 3)
    assert sum("method zero_shot in" in line and "fo_lora_fa in its configuration" in line for line in found) == 2
    status, text = said(capsys, "verify", swept.file, swept.id("zo"), *swept.copies)
    assert "(prge, sst2): weights" in text


def test_a_cell_of_a_table_that_was_changed_is_found(
    swept: Swept, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    files = contents(swept.file)
    tables = json.loads(files["tables.json"])
    cell = tables[0]["cells"]["zo"]["sst2"]
    mean, cell["mean"] = cell["mean"], cell["mean"] + 0.1
    file = forged(tmp_path / "forged.tar.xz", {**files, "tables.json": json.dumps(tables).encode()})
    status, text = said(capsys, "verify", file, swept.id("zo"), *swept.copies)
    line = f"table tiny_accuracy, ZO, SST-2: mean is {mean + 0.1} in the archive, {mean} from its logs"
    assert status == 1
    assert [row for row in text.splitlines() if row.startswith("WRONG")] == [f"WRONG  {line}"]
    status, text = said(capsys, "import", file, f"state_dir={tmp_path / 'state'}")
    assert (status, line in text, (tmp_path / "state" / "imported").exists()) == (2, True, True)
    assert not [*(tmp_path / "state" / "imported").iterdir()]


def test_another_weight_and_another_example_are_found(
    swept: Swept, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    model, data = tmp_path / "model", tmp_path / "data"
    shutil.copytree(swept.model, model)
    shutil.copytree(swept.data, data)
    weights = model / "model.safetensors"
    whole = bytearray(weights.read_bytes())
    whole[-1] ^= 1
    weights.write_bytes(whole)
    status, text = said(capsys, "verify", swept.file, "--model", model, "--data", swept.data)
    assert (status, text.count("a weight, the configuration or the tokenizer is another")) == (1, 3)
    status, text = said(capsys, "verify", swept.file, "--model", model, "--model", model, "--data", swept.data)
    assert (status, text.count("?      "), text.count("none of the 2 models here is its")) == (1, 3, 3)
    several = ["--model", swept.model, "--model", model, "--data", swept.data]
    assert said(capsys, "verify", swept.file, swept.id("zo"), *several)[0] == 0
    test = data / "sst2" / "test.jsonl"
    test.write_text(test.read_text().replace("film 7", "film 8"))
    status, text = said(capsys, "verify", swept.file, "--model", swept.model, "--data", data)
    assert (status, text.count("and those here sha256:"), text.count("an example is another")) == (1, 3, 3)
    status, text = said(capsys, "verify", swept.file)
    asked = "name your copy of the data with --data DIR"
    assert (status, [row[0] for row in text.splitlines() if asked in row]) == (1, ["?"] * 3), "nothing is wrong of them"
    assert text.splitlines()[-1].startswith("not verified: ")
    assert "3 that need your copies (?)" in text
    status, text = said(capsys, "verify", swept.file, "--data", swept.data)
    assert (status, text.count("name your copy of it with --model DIR")) == (1, 3)


@pytest.mark.parametrize(
    ("error", "mark"),
    [
        (MemoryError(), "?"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"), "?"),
        (RuntimeError("shape '[2]' is invalid"), "WRONG"),
    ],
)
def test_a_trial_that_cannot_be_computed_leaves_the_others_to_be_verified(
    swept: Swept, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, error: Exception, mark: str
) -> None:
    def computed(*_: object) -> None:
        raise error

    monkeypatch.setattr(verify, "_computed", computed)
    status, text = said(capsys, "verify", swept.file, *swept.copies)
    lines = [line for line in text.splitlines() if "it cannot be computed here" in line]
    assert (status, {line.split()[0] for line in lines}, len(lines) > 1) == (1, {mark}, True)


def test_a_file_that_was_changed_since_is_refused(
    swept: Swept, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    files = contents(swept.file)
    file = pack(tmp_path / "a", edited(files, swept.id("zo"), coefficient))
    assert said(capsys, "verify", file)[1].count("is not the file that was written") == 1
    file = pack(tmp_path / "a", {name: data for name, data in files.items() if name != "tables.json"})
    assert said(capsys, "verify", file) == (2, f"zo_sweeps: tables.json is missing in {file}; {archive._AGAIN}\n")
    whole = swept.file.read_bytes()
    (tmp_path / "a").write_bytes(whole[: len(whole) // 2])
    status, text = said(capsys, "verify", tmp_path / "a")
    assert (status, "not an archive of zo_sweeps" in text, text.count("\n")) == (2, True, 1)


def test_a_signature_is_of_this_content_and_of_this_key(
    swept: Swept, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    files = contents(swept.file)
    other = tmp_path / "other"
    pem = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    private = ed25519.Ed25519PrivateKey.generate()
    other.write_bytes(private.private_bytes(*pem))
    public = tmp_path / "other.pem"
    form = (serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    public.write_bytes(private.public_key().public_bytes(*form))

    about = json.loads(files["manifest.json"])
    changed = {**files, "manifest.json": json.dumps({**about, "by": "Joe"}).encode()}
    status, text = said(capsys, "verify", pack(tmp_path / "a", changed))
    assert (status, "the signature is not of this content" in text) == (2, True)
    status, text = said(capsys, "verify", swept.file, "--key", public)
    assert (status, "signed by SHA256:" in text and "and not by SHA256:" in text) == (2, True)
    bare = pack(tmp_path / "b", {name: data for name, data in files.items() if name != "signature.json"})
    status, text = said(capsys, "verify", bare, "--key", swept.public)
    assert (status, "not signed, and not by SHA256:" in text) == (2, True)

    given = ["+grid=tiny", f"state_dir={swept.state}", "--config-dir", swept.conf, "--out", tmp_path / "c"]
    assert said(capsys, "export", *given, "--key", other)[0] == 0
    assert archive.read(tmp_path / "c", public).by == ""
    (tmp_path / "ec").write_bytes(ec.generate_private_key(ec.SECP256R1()).private_bytes(*pem))
    status, text = said(capsys, "export", *given, "--key", tmp_path / "ec")
    assert (status, "not an Ed25519 key" in text.splitlines()[-1]) == (2, True)
    status, text = said(capsys, "verify", swept.file, "--key", swept.key)
    assert (status, "a private key" in text) == (2, True)


def test_the_key_s_fingerprint_is_that_of_ssh_keygen(swept: Swept) -> None:
    if shutil.which("ssh-keygen") is None:
        pytest.skip("needs ssh-keygen")
    theirs = subprocess.run(["ssh-keygen", "-lf", swept.public], capture_output=True, text=True, check=True).stdout
    assert archive.read(swept.file).whose == f"Jane Doe ({theirs.split()[1]})"


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        (("../../evil.json", tarfile.REGTYPE), "no archive has a file '../../evil.json'"),
        (("journal/../plan.json", tarfile.REGTYPE), "no archive has a file 'journal/../plan.json'"),
        (("plan.json", tarfile.SYMTYPE), "'plan.json' is no file, or stands twice"),
        (("tables.json", tarfile.REGTYPE), "'tables.json' is no file, or stands twice"),
    ],
)
def test_an_archive_holds_its_own_files_and_no_other(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, entry: tuple[str, bytes], why: str
) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name, kind in (("tables.json", tarfile.REGTYPE), entry):
            made = tarfile.TarInfo(name)
            made.type, made.linkname = kind, "/etc/passwd"
            tar.addfile(made)
    (tmp_path / "a").write_bytes(lzma.compress(packed.getvalue()))
    status, text = said(capsys, "verify", tmp_path / "a")
    assert (status, why in text, text.count("\n")) == (2, True, 1)


def test_an_archive_that_unpacks_to_more_than_the_limit_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "LARGEST", 2**22)
    (tmp_path / "a").write_bytes(lzma.compress(bytes(2**22 + 1), preset=0))
    status, text = said(capsys, "verify", tmp_path / "a")
    assert (status, "larger than 4 MiB" in text) == (2, True)


def test_an_archive_runs_no_code_and_reads_no_file_that_the_reader_did_not_name(
    swept: Swept, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = contents(swept.file)
    evil = tmp_path / "evil" / "update"
    evil.mkdir(parents=True)
    (evil / "sgd.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    monkeypatch.setenv("SECRET", "hush")

    def with_plan(edit: Callable[[dict[str, Any]], None]) -> tuple[int, str]:
        plan = json.loads(files["plan.json"])
        edit(plan)
        file = forged(tmp_path / "forged.tar.xz", {**files, "plan.json": json.dumps(plan).encode()})
        return said(capsys, "verify", file, swept.id("zo"), *swept.copies)

    def members(plan: dict[str, Any]) -> None:
        plan["parts"]["members"] = [[str(evil.parent)] for _ in plan["parts"]["members"]]

    def path(plan: dict[str, Any]) -> None:
        plan["parts"]["model"][0].update({"path": "/etc"})
        plan["parts"]["data"][0].update({"dir": "/etc"})

    assert with_plan(members)[0] == 0, "its own folders are never looked at"
    assert not (tmp_path / "ran").exists()
    assert with_plan(path)[0] == 0, "nor are its own paths"
    status, text = with_plan(lambda plan: plan["parts"]["task"][0].update({"local": "../sst2"}))
    assert (status, text.count("it names a file outside of the data: '../sst2'")) == (1, 1)
    status, text = with_plan(lambda plan: plan["grid"].update({"title": "${oc.env:SECRET}"}))
    assert (status, "hush" in text, "an interpolation: ${oc.env:SECRET}" in text.splitlines()[-1]) == (2, False, True)
    for many in ({"grid": {"seeds": [*range(10**5)]}}, {"labels": {str(i): "" for i in range(10**5)}}):
        status, text = with_plan(lambda plan, many=many: [plan[part].update(more) for part, more in many.items()])
        assert (status, "a grid of more than 65,536 names and values" in text.splitlines()[-1]) == (2, True)
    status, text = with_plan(lambda plan: plan.pop("cells"))
    assert (status, "the archive cannot be read (KeyError: 'cells')" in text) == (2, True)
    bare = {name: data for name, data in files.items() if not name.startswith("journal/")}
    status, text = said(capsys, "verify", forged(tmp_path / "forged.tar.xz", bare))
    assert (status, "no trial with a result" in text) == (2, True)
    manifest = json.loads(files["manifest.json"])
    file = pack(
        tmp_path / "b", {"manifest.json": json.dumps({**manifest, "title": "\x1b[2Jgone", "files": {}}).encode()}
    )
    assert "\x1b" not in said(capsys, "verify", file)[1]


def test_after_an_import_into_an_empty_folder_the_command_that_it_names_shows_the_rows(
    swept: Swept, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    state = tmp_path / "new"
    status, text = said(capsys, "import", swept.file, f"state_dir={state}", "--config-dir", swept.conf)
    assert status == 0
    named = shlex.split(text.partition("`")[2].partition("`")[0])
    assert named[:4] == ["python", "-m", "zo_sweeps", "table"]
    status, text = said(capsys, *named[3:])
    assert (status, "ZO, Jane Doe [" in text) == (0, True), text


def test_imported_rows_stand_below_one_s_own_with_whose_they_are(
    swept: Swept, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    state = tmp_path / "state"
    shutil.copytree(swept.state, state)
    table = ["table", "+grid=tiny", f"state_dir={state}", "--config-dir", swept.conf]
    _, before = said(capsys, *table)
    title = "Three kinds of trial, local model (model.path=model)"
    for word in ("imported", "imported before"):
        status, text = said(capsys, "import", swept.file, f"state_dir={state}", "--key", swept.public)
        assert (status, text.startswith(f"{word}: {title}, 7 trials\nby Jane Doe (SHA256:")) == (0, True)
    assert len([*(state / "imported").iterdir()]) == 1
    _, after = said(capsys, *table)
    own = [line for line in before.splitlines() if line.startswith(("Zero-shot", "FO", "ZO"))]
    lines = after.splitlines()
    unmarked = lambda line: [word for word in line.split() if not word.startswith("[")]  # marks are numbered anew
    assert [unmarked(line) for line in own if "Jane" not in line] == [
        unmarked(line) for line in lines if line.startswith(("Zero-shot", "FO", "ZO")) and "Jane" not in line
    ]
    theirs = [line for line in lines if ", Jane Doe [" in line]
    assert len(theirs) == 4
    assert [line for line in lines if "imported: the results of Jane Doe (SHA256:" in line]
    # What is run, counted, averaged and compared is one's own, with and without them.
    assert read_standing(state).states == read_standing(swept.state).states
    assert said(capsys, "check", *table[1:], "--n", "2")[0] == 0
    assert said(capsys, "report", *table[1:], "--output", tmp_path / "r.html")[0] == 0
    assert "Zero-shot, Jane Doe" in (tmp_path / "r.html").read_text()


def test_a_check_names_the_cells_with_too_few_seeds(swept: Swept, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["check", "+grid=tiny", f"state_dir={swept.state}", "--config-dir", swept.conf]
    assert said(capsys, *given, "--n", "2") == (
        0,
        "tiny: every cell of its tables is backed by 2 finished seeds or more\n",
    )
    status, text = said(capsys, *given, "--n", "3")
    assert status == 1
    assert text.splitlines() == [
        "tiny_accuracy, Zero-shot, SST-2: 2 of 3 seeds",
        "tiny_accuracy, FO, SST-2: 2 of 3 seeds",
        "tiny_accuracy, ZO, SST-2: 2 of 3 seeds",
        "tiny_time, ZO, SST-2: 2 of 3 seeds",
        "tiny: 4 cells not backed by 3 finished seeds",
    ]
    assert said(capsys, *given, "--n", "0")[0] == 2


def test_predictions_are_those_that_the_score_counts(swept: Swept, capsys: pytest.CaptureFixture[str]) -> None:
    journals, kept = JournalStore(swept.state), {}
    for block in ("zero_shot", "fo", "zo"):
        events = journals.read(swept.id(block))
        made = predictions(events)
        assert made is not None
        kept[block] = made
        assert (
            sum(made.right) / len(made.right) == evals(events)[next(k for k in evals(events) if k[0] == "test")].metric
        )
    assert len({made.rows for made in kept.values()}) == 1
    one, two = kept["zero_shot"].right, kept["zo"].right
    only = [sum(a > b for a, b in zip(*pair, strict=True)) for pair in ((one, two), (two, one))]
    _, text = said(capsys, "compare", swept.id("zero_shot"), swept.id("zo"), f"state_dir={swept.state}")
    (line,) = [line for line in text.splitlines() if line.startswith("test predictions")]
    assert f"12 examples: both right {sum(one) - only[0]}, only A {only[0]}, only B {only[1]}" in line
    assert predictions(journals.read(swept.id("zo", "DIVERGED"))) is None


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["export", "--out", "x", "--merge"], "no trial to merge the weights of"),
        (["export", "0123", "--out", "x", "--by", "Joe"], "weights are not signed"),
        (["export", "--out", "x", "--by", "a" * 61], "a name has up to 60 printable characters"),
        (["export", "--out", "x", "--key", "nowhere"], "cannot read nowhere"),
        (["verify", "nowhere"], "cannot read nowhere"),
        (["import"], "0 files to import"),
    ],
)
def test_bad_input_is_one_clear_line(
    swept: Swept, capsys: pytest.CaptureFixture[str], words: list[str], why: str
) -> None:
    more = [] if words[0] == "verify" else [f"state_dir={swept.state}"]
    more += ["+grid=tiny", "--config-dir", str(swept.conf)] if words[0] == "export" and "0123" not in words else []
    status, text = said(capsys, *words, *more)
    assert (status, why in text, text.count("\n")) == (2, True, 1), text


def test_a_row_of_others_says_under_which_conditions_and_leaves_the_table_as_it_was() -> None:
    layout, records = small()
    own = build(layout, records, PUBLISHED)
    both = exchange.below(
        own, build(replace(layout, caveats=("run on another model",)), records), "Jane (SHA256:x)", "0a1b"
    )
    assert {key: both.cells[key] for key in own.cells} == dict(own.cells)
    assert (both.rows[: len(own.rows)], both.footnotes[: len(own.footnotes)]) == (own.rows, own.footnotes)
    (note,) = {both.row_notes[key][-1] for key, _ in both.rows[len(own.rows) :]}
    assert note in both.footnotes
    assert note.startswith("imported: the results of Jane (SHA256:x), as the archive has them;")
    assert note.endswith("; its conditions: run on another model")
    theirs = both.cells["0a1b/full", "sst2"]
    assert theirs.notes == own.cells["full", "sst2"].notes
    assert to_text(both)
    here = exchange.below(build(replace(layout, caveats=("left out: b",)), records), own, "Jane (SHA256:x)", "0a1b")
    notes = {row["block"]: row["notes"] for row in csv.DictReader(io.StringIO(to_csv(here)))}
    assert ("left out: b" in notes["full"], "left out: b" in notes["0a1b/full"]) == (True, False)
    assert f"; its conditions: {layout.caveats[0]}" in notes["0a1b/full"]
    other = build(replace(layout, measure=replace(layout.measure, unit="points")), records)
    refused = exchange.below(own, other, "Jane (SHA256:x)", "0a1b")
    assert refused.rows == own.rows
    assert "the imported results of Jane (SHA256:x) are not shown" in to_text(refused)
    assert exchange.below(own, None, "Jane (SHA256:x)", "0a1b") == own
    sooner = build(replace(layout, caption="Within 15 seconds of training steps."), records)
    assert exchange.below(own, sooner, "Jane (SHA256:x)", "0a1b").rows == own.rows


def test_a_row_of_others_says_that_it_was_measured_on_other_files(tmp_path: Path) -> None:
    def plan_of(name: str) -> Plan:
        (tmp_path / name / "sst2").mkdir(parents=True)
        for split in ("train", "validation", "test"):
            row = {"sentence": f"a {name} film", "label": 1}
            (tmp_path / name / "sst2" / f"{split}.jsonl").write_text(json.dumps(row) + "\n")
        return planned(tmp_path / "conf", changed(), "task=sst2", f"data.dir={tmp_path / name}")

    one, two = plan_of("good"), plan_of("bad")
    assert exchange.other_files(one, two) == ["the data of sst2"]
    assert exchange.other_files(one, one) == []
    table = build(*small())
    both = exchange.below(table, table, "Jane (SHA256:x)", "0a1b", exchange.other_files(one, two))
    (note,) = {both.row_notes[key][-1] for key, _ in both.rows[len(table.rows) :]}
    assert "; not measured on the same files as above: the data of sst2; its conditions: " in note


def test_a_row_of_others_over_fewer_columns_has_no_mean_or_rank_beside_ones_over_all() -> None:
    layout, records = small()
    layout = replace(layout, average=True, rank=True, largest=True)
    own, whole = build(layout, records), build(layout, records)
    fewer = build(replace(layout, columns=layout.columns[:2], flags=()), records)
    row = "0a1b/full"
    for theirs, there in ((whole, True), (fewer, False)):
        both = exchange.below(own, theirs, "Jane (SHA256:x)", "0a1b")
        assert both.cells[row, "sst2"].mean is not None
        same = [both.cells[row, over] == theirs.cells["full", over] for over in (AVERAGE, LARGEST, RANK)]
        assert same == [there, there, False], "a rank is among the rows of one table"


def test_two_archives_of_one_author_keep_their_own_numbers() -> None:
    layout, records = small()
    both = own = build(layout, records)
    for digest, test in (("0a1b", 0.6), ("2c3d", 0.5)):
        better = [replace(one, metrics={**one.metrics, "test/metric": test}) for one in records]
        both = exchange.below(both, build(layout, better), "Jane (SHA256:x)", digest)
    assert [both.cells[f"{digest}/full", "sst2"].mean for digest in ("0a1b", "2c3d")] == pytest.approx([60.0, 50.0])
    assert len(both.rows) == 3 * len(own.rows)


def test_a_trial_of_a_gpu_is_computed_again_on_the_reader_s_machine() -> None:
    config = TrialConfig.of(make("update.lr=0.1").config)
    for kind, device in {"cuda": "cuda" if torch.cuda.is_available() else "cpu", "cpu": "cpu"}.items():
        named = replace(config, device=replace(config.device, name=kind, kind=kind))
        assert torch_device(verify._here(named, verify.Copies()).device) == device


@pytest.mark.long
def test_a_search_goes_on_from_one_s_own_archive_on_another_machine(
    swept: Swept, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    grid = {**GRID, "select": {"seeds": 1}, "blocks": {"zo": GRID["blocks"]["zo"]}}
    grid["tables"] = {"accuracy": {"layout": "accuracy"}}
    there, here, file = tmp_path / "there", tmp_path / "here", tmp_path / "part.tar.xz"
    conf = ["--config-dir", str(write_grid(tmp_path / "conf", grid))]
    frame = zo_sweeps.run("tiny", swept.words, there, [conf[1]])
    assert sorted(frame["state"]) == ["DIVERGED", "STOPPED", "SUCCEEDED", "SUCCEEDED"]
    confirming = frame[(frame["seed"] == 1) & (frame["state"] == "SUCCEEDED")]["trial_id"].item()
    ledger = there / "ledger.jsonl"  # it was not run there yet
    lines = [line for line in ledger.read_text().splitlines(keepends=True) if confirming not in line]
    ledger.write_text("".join(lines))
    words = ["+grid=tiny", *conf]
    assert main(["export", *words, f"state_dir={there}", "--out", str(file), "--key", str(swept.key)]) == 0
    status, text = said(capsys, "verify", file, *swept.copies, *conf)
    assert status == 0
    assert "1 trial not run: others of their cell were selected" in text
    assert "1 trial computed again, with the same weights and scores, 1 that cannot be (–)" in text, "it that diverged"

    first = ({*frame[frame["state"] == "SUCCEEDED"]["trial_id"]} - {confirming}).pop()
    with Ledger(here) as stopped:  # before its first step
        stopped.write(first, TrialState.CANCELLED)
    own = ("import", file, *words, f"state_dir={here}", "--own")
    status, text = said(capsys, *own, swept.key)
    assert (status, "3 trials of Three kinds of trial, local model (model.path=model) new in" in text) == (0, True)
    assert "0 trials of" in said(capsys, *own, swept.key)[1]
    frame = zo_sweeps.run("tiny", swept.words, here, [conf[1]])
    assert confirming in {*frame["trial_id"]}
    assert (here / "ledger.jsonl").read_text().count('"RUNNING"') == 1, "one trial alone was left to run"

    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "another"], check=True)
    status, text = said(capsys, *own, tmp_path / "another")
    assert (status, "and not by" in text) == (2, True)
