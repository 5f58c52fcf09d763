"""Codes computed once, and packages: a trial from a package is the trial that quantized by itself, without a text."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.run.common import SMALL, measured, run
from zo_sweeps.config.composer import Composer
from zo_sweeps.core.errors import UserError
from zo_sweeps.core.events import ComputedCodes, End
from zo_sweeps.core.trial import Outcome, Trial, TrialState
from zo_sweeps.models.package import read
from zo_sweeps.plan.build import Plan, build
from zo_sweeps.run import workbench
from zo_sweeps.session.export import _save_whole, replayed
from zo_sweeps.session.packaging import package

pytestmark = pytest.mark.unit
TEXTS = [f"The {word} film was a {word} piece of work, and {word} it stays." for word in ("old", "new", "red", "odd")]
OF_TEXT = ["precision.samples=3", "precision.length=16"]
SENSITIVE = ["method=sensitive", "space.samples=3", "space.length=16", "space.density=0.01"]
TINY = ["model=random_llama", "model.arch.hidden_size=32", "model.arch.intermediate_size=48"]
TINY += ["model.arch.num_hidden_layers=2", "model.arch.max_position_embeddings=128"]
GRID = """# @package grid
name: packed
fixed: {prompt: mezo, task: demo_remarks}
seeds: [3]
blocks: {a: {label: A, fixed: {train: {steps: 4}}}}
"""


def begin(folder: Path, patch: pytest.MonkeyPatch) -> Path:
    """Write a grid and a text into the folder, and give it a store of its own."""
    patch.setenv("ZO_SWEEPS_CACHE", str(folder / "cache"))
    (folder / "grid").mkdir()
    (folder / "grid" / "packed.yaml").write_text(GRID)
    (folder / "text").mkdir()
    rows = "".join(json.dumps({"text": text}) + "\n" for text in TEXTS)
    (folder / "text" / "c4_sample.jsonl").write_text(rows)
    workbench.warm = None
    return folder


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of this test's own."""
    return begin(tmp_path, monkeypatch)


def plan(folder: Path, *overrides: str, text: bool = True) -> Plan:
    data = [f"data.dir={folder}"] if text else []
    return build(Composer(["+grid=packed", "grid.relabel=true", *SMALL, *data, *overrides], [str(folder)]))


def local(package: Path) -> list[str]:
    return ["model=local", f"model.path={package}"]


def ran(trial: Trial, journal: Any = None) -> tuple[Outcome, list[Any]]:
    workbench.warm = None
    outcome, events = run(trial, journal)
    assert outcome.state is TrialState.SUCCEEDED, outcome.traceback or outcome.error
    return outcome, events


def made(folder: Path, *overrides: str, out: str = "package") -> Path:
    given = [*overrides, f"data.dir={folder}", "device=cpu"]
    return package(given, [], folder / out, lambda *_: None).folder


@pytest.mark.parametrize(
    ("precision", "method"),
    [
        ("squeezellm", SENSITIVE),
        pytest.param("squeezellm", ["method=prge"], marks=pytest.mark.long),
        pytest.param("squeezellm", ["method=random_subset"], marks=pytest.mark.long),  # without a mask of the package
        ("nf4", SENSITIVE),
        pytest.param("int8", ["method=prge"], marks=pytest.mark.long),
    ],
)
def test_a_trial_from_a_package_is_the_one_that_quantized_by_itself(
    folder: Path, method: list[str], precision: str
) -> None:
    chosen = [f"precision={precision}", "precision.compute=fp32", *(OF_TEXT if precision == "squeezellm" else [])]
    (alone,) = plan(folder, *TINY, *chosen, *method).trials
    expected = measured(*ran(alone))
    stored = made(folder, *TINY, *chosen, *(method if method is SENSITIVE else []))
    (folder / "text" / "c4_sample.jsonl").unlink()
    (packed,) = plan(folder, *local(stored), *method, text=False).trials
    outcome, events = ran(packed)
    assert measured(outcome, events) == expected
    assert packed.trial_id != alone.trial_id


@pytest.mark.long
def test_codes_are_computed_once_for_all_trials_with_the_same_settings(folder: Path) -> None:
    def stored() -> set[str]:
        return {path.name for path in (folder / "cache" / "codes").iterdir() if path.is_dir()}

    squeezed = ["precision=squeezellm", "method=zero_shot"]
    (first,) = plan(folder, *TINY, *squeezed, *OF_TEXT).trials
    ran(first)
    (one,) = stored()
    before = (folder / "cache" / "codes" / one / "package.json").stat().st_mtime_ns
    (second,) = plan(folder, *TINY, "precision=squeezellm", "method=prge", *OF_TEXT).trials
    ran(second)
    assert stored() == {one}
    assert (folder / "cache" / "codes" / one / "package.json").stat().st_mtime_ns == before
    for other in (["precision.samples=2"], ["precision.kept=0"], ["precision.sensitivity=none"]):
        (trial,) = plan(folder, *TINY, *squeezed, *OF_TEXT, *other).trials
        assert trial.trial_id != first.trial_id
        assert trial.warm_key != first.warm_key
        ran(trial)
    assert len(stored()) == 4
    (folder / "text" / "c4_sample.jsonl").write_text("".join(json.dumps({"text": t[4:]}) + "\n" for t in TEXTS))
    (changed,) = plan(folder, *TINY, *squeezed, *OF_TEXT).trials
    assert changed.trial_id != first.trial_id
    assert changed.warm_key != first.warm_key
    whole = folder / "cache" / "codes" / one / "codes-00001.safetensors"
    whole.write_bytes(whole.read_bytes()[:-1] + b"?")
    ran(first)
    package_of_one = read(folder / "cache" / "codes" / one)
    assert package_of_one is not None
    package_of_one.verify()


def test_without_sensitivities_no_text_is_needed(folder: Path) -> None:
    (trial,) = plan(
        folder, *TINY, "precision=squeezellm", "precision.sensitivity=none", "method=zero_shot", text=False
    ).trials
    ran(trial)
    missing = plan(folder, *TINY, "precision=squeezellm", "method=zero_shot", text=False).missing
    assert list(missing.values()) == ["no text at text/c4_sample.jsonl (precision.text, under data.dir)"]


def test_codes_without_scales_are_refused_where_scales_are_trained(folder: Path) -> None:
    with pytest.raises(
        UserError, match=r"trains the scales of weights .* use precision=fp4 or int4 or int8 or nf4 or w4a8, not "
    ):
        plan(folder, *TINY, "precision=squeezellm", "method=qzo")


def test_a_log_over_other_codes_is_not_continued(folder: Path) -> None:
    (trial,) = plan(folder, *TINY, "precision=squeezellm", "method=prge", *OF_TEXT).trials
    _, events = ran(trial)
    begun = [
        replace(e, fingerprint="0" * 16) if isinstance(e, ComputedCodes) else e
        for e in events
        if not isinstance(e, End)
    ]
    outcome, _ = run(trial, begun)
    assert outcome.state is TrialState.FAILED
    assert "differ from those that this trial began with (0000000000000000)" in outcome.error


@pytest.fixture(scope="module")
def one_package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        folder = begin(tmp_path_factory.mktemp("made"), patch)
        return made(folder, *TINY, "precision=squeezellm", *OF_TEXT, *SENSITIVE)


@pytest.fixture
def packed(one_package: Path, folder: Path) -> Path:
    """A package, to be changed at will."""
    return shutil.copytree(one_package, folder / "package")


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (["precision=nf4"], "precision.name is squeezellm in the package, not nf4"),
        (["precision=fp32"], "precision.name is squeezellm in the package, not fp32"),
        (["precision.kept=0.5"], "precision.kept is 0.001 in the package, not 0.5"),
        (["precision.compute=bf16"], "precision.compute is fp16 in the package, not bf16"),
        ([*SENSITIVE, "space.density=0.02"], "space.density is 0.01 in the package, not 0.02"),
        ([*SENSITIVE, "space.targets=[q]"], r"space.targets is \['all'\] in the package, not \['q'\]"),
        ([*SENSITIVE, "space.source=task"], "space.source is text in the package, not task"),
    ],
)
def test_a_setting_that_contradicts_the_package_is_refused_by_the_plan(
    folder: Path, packed: Path, given: list[str], why: str
) -> None:
    with pytest.raises(UserError, match=why):
        plan(folder, *local(packed), "method=prge", *given, text=False)


def test_a_mask_that_was_not_packaged_is_refused_by_the_plan(folder: Path) -> None:
    bare = made(folder, *TINY, "precision=nf4")
    with pytest.raises(UserError, match="the package holds no mask"):
        plan(folder, *local(bare), *SENSITIVE)


@pytest.mark.parametrize("name", ["codes-00001.safetensors", "model.safetensors", "mask.safetensors", "tokenizer.json"])
def test_a_file_that_was_changed_is_refused(folder: Path, packed: Path, name: str) -> None:
    (trial,) = plan(folder, *local(packed), *SENSITIVE, text=False).trials
    file = packed / name
    content = file.read_bytes()
    file.write_bytes(content[:-3] + bytes([content[-3] ^ 1]) + content[-2:])
    workbench.warm = None
    outcome, _ = run(trial)
    assert outcome.state is TrialState.FAILED
    assert f"{name} is not the file that was packaged" in outcome.error


def test_a_description_that_was_changed_is_refused_by_the_plan(folder: Path, packed: Path) -> None:
    text = (packed / "package.json").read_text()
    (packed / "package.json").write_text(text.replace('"kept": 0.001', '"kept": 0.002'))
    with pytest.raises(UserError, match=r"package\.json does not match its own fingerprint"):
        plan(folder, *local(packed), "method=prge", text=False)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (["precision=fp16"], "precision=fp16 stores no codes"),
        (["precision=nf4", "method=sensitive_task"], "a package holds the mask of a text, and space.source is task"),
        (["precision=nf4,int8"], "precision has several values"),
        (["precision=nf4", "+grid=quickstart"], "not of a grid"),
        (["precision=nf4", "space.rank=4"], "space.rank is an option of no row's space"),
        (["precision=nf4", "precision.kept=0"], "unknown key 'precision.kept'"),
        (["precision=squeezellm", "data.dir=nowhere"], "no text at nowhere/text/c4_sample.jsonl"),
    ],
)
def test_what_cannot_be_packaged_is_refused_in_one_line(folder: Path, given: list[str], why: str) -> None:
    with pytest.raises(UserError, match=why):
        package([*TINY, *given], [], folder / "out", lambda *_: None)
    assert not (folder / "out").exists()


def test_a_folder_with_files_is_not_overwritten_and_a_package_not_packaged(folder: Path, packed: Path) -> None:
    with pytest.raises(UserError, match="is not empty"):
        made(folder, *TINY, "precision=nf4")
    with pytest.raises(UserError, match="the model is a package"):
        made(folder, *local(packed), out="again")


TRANSPOSED = ["model.arch.model_type=gpt2", "space.targets=[qkv,o]"]
TRAINED = {
    "scales": ["method=qzo", "update.lr=1e-3", "precision=nf4", "precision.double_quantization=true"],
    "codes": ["method=quzo", "update.lr=100", "precision=int8"],
    "codes of 4 bits": ["method=qes", "update.lr=100", "precision=int4", "precision.compute=fp32"],
    "entries": ["method=random_subset", "update.lr=1", "space.density=0.05", "precision=nf4", "precision.compute=fp32"],
    "entries of a transposed weight": [
        *("method=random_subset", "update.lr=1", "space.density=0.05", "precision=int8", "precision.compute=fp32"),
        *TRANSPOSED,
    ],
    "adapter": ["method=prge", "update.lr=1", "precision=nf4", "precision.compute=fp32"],
    "adapter over a transposed weight": [
        *("method=prge", "update.lr=1", "precision=int8", "precision.compute=fp32"),
        *TRANSPOSED,
    ],
}
# Of 8 bits, and of transposed weights, they are always tried.
ALSO = ("scales", "codes of 4 bits", "entries", "entries of a transposed weight", "adapter")


@pytest.mark.parametrize("name", [pytest.param(one, marks=pytest.mark.long) if one in ALSO else one for one in TRAINED])
def test_a_model_whose_codes_were_trained_is_exported_with_the_test_scores_of_the_trial(
    folder: Path, name: str
) -> None:
    """As a package to the bit, but for the adapter, which has a format of its own; decoded, as far as it rounds."""
    (trial,) = plan(folder, *TINY, *TRAINED[name], text=False).trials
    outcome, journal = ran(trial)

    def test_loss(*model: str) -> float:
        (scored,) = plan(folder, "method=zero_shot", *model, text=False).trials
        return ran(scored)[0].metrics["test/loss"]

    packaged, merged, adapter = folder / "packaged", folder / "merged", name.startswith("adapter")
    forms = {merged: False} if adapter else {packaged: True, merged: False}
    for target, as_package in forms.items():
        workbench.warm = None
        with replayed(trial, journal, outcome.selected_step) as (bench, space):
            _save_whole(bench, space, target, as_package=as_package)
    expected = outcome.metrics["test/loss"]
    half = bench.config.precision.format.bytes == 2
    decoded = test_loss(*local(merged), f"precision={'fp16' if half else 'fp32'}")
    assert decoded == pytest.approx(expected, rel=2e-3 if half else 1e-5)
    if not adapter:
        assert test_loss(*local(packaged)) == expected
    plain = [option for option in TRAINED[name] if option.startswith(("precision", "model."))]
    assert abs(test_loss(*TINY, *plain) - expected) > 1e-4, "nothing was trained"
    if name.startswith("entries"):
        (again,) = plan(folder, "method=random_subset", "update.lr=1", *local(packaged), text=False).trials
        workbench.warm = None
        assert "trained entries already" in run(again)[0].error


def test_a_package_takes_the_gradients_of_its_codes_for_its_mask(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mask is that of a pass of its own, to the bit; without the same samples there is such a pass."""
    said: list[tuple[str, int, int]] = []
    given = [*TINY, "precision=squeezellm", *SENSITIVE, f"data.dir={folder}", "device=cpu"]
    for out, samples, own in (("shared", 3, False), ("apart", 2, True)):
        monkeypatch.setenv("ZO_SWEEPS_CACHE", str(folder / f"cache of {out}"))
        said.clear()
        options = [f"precision.samples={samples}", "precision.length=16"]
        package([*given, *options], [], folder / out, lambda *of: said.append(of))
        assert [done for stage, done, _ in said if stage == "gradients"] == [*range(samples)]
        assert [of for of in said if "mask" in of[0]] == [("gradients for the mask", i, 3) for i in range(3)] * own
    shared, apart = (read(folder / out) for out in ("shared", "apart"))
    assert shared is not None
    assert apart is not None
    assert shared.mask().fingerprint == apart.mask().fingerprint
    assert shared.contents.files["mask.safetensors"] == apart.contents.files["mask.safetensors"]
