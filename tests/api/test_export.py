"""The weights that come out of a finished trial: those that it tested, as peft and transformers load them."""

from __future__ import annotations

import json
import re
import resource
import shutil
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer

import zo_sweeps
from tests.api.conftest import Swept
from tests.run.common import make
from zo_sweeps.cli.main import main
from zo_sweeps.core.errors import UserError
from zo_sweeps.engine.layers.low_rank import Vera
from zo_sweeps.models.identity import DEMO
from zo_sweeps.models.package import read
from zo_sweeps.record.journal import JournalStore, evals, scalars
from zo_sweeps.session import export
from zo_sweeps.session.export import merge, rebuilt

pytestmark = [pytest.mark.multiprocess, pytest.mark.filterwarnings("ignore")]
ADAPTERS = ("lora_fa", "dora", "vera", "prefix")
MERGED = ("lora_fa", "dora", "vera", "random_subset", "sensitive", "full")
IDS = torch.arange(2, 38).view(2, 18)


@torch.no_grad()
def logits(model: nn.Module) -> Tensor:
    found: Tensor = model.eval()(input_ids=IDS).logits
    return found


def replayed(swept: Swept, block: str) -> Tensor:
    """The logits of the replayed model."""
    with rebuilt(swept.id(block), swept.state) as (bench, _):
        return logits(bench.model.module)


def base() -> nn.Module:
    model: nn.Module = AutoModelForCausalLM.from_pretrained(str(DEMO), dtype=torch.float32)
    return model


@pytest.mark.parametrize("block", [*MERGED, "prefix"])
def test_the_rebuilt_weights_score_on_dev_what_the_run_recorded(swept: Swept, block: str) -> None:
    line, threads = swept.line(block), torch.get_num_threads()
    torch.set_num_threads(1)  # as in the run
    try:
        with rebuilt(swept.id(block), swept.state) as (bench, _):
            scores = bench.score_dev()
        assert (scores.loss, scores.metric) == (line["dev/loss"], line["dev/metric"])
    finally:
        torch.set_num_threads(threads)
    events = JournalStore(swept.state).read(swept.id(block))
    others = {event.loss for (split, step), event in evals(events).items() if step != line["selected_step"]}
    assert line["dev/loss"] not in others, "another step's weights would pass"


@pytest.mark.parametrize("block", ADAPTERS)
def test_an_exported_adapter_gives_the_replayed_logits_in_peft(swept: Swept, block: str, tmp_path: Path) -> None:
    from peft import PeftModel  # all processes of the tests import this file, and one runs it

    folder = zo_sweeps.save_adapter(swept.id(block), tmp_path / "adapter", swept.state)
    config = json.loads((folder / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == str(DEMO)
    theirs = logits(PeftModel.from_pretrained(base(), str(folder)))
    torch.testing.assert_close(theirs, replayed(swept, block), rtol=2e-5, atol=2e-5)
    assert not torch.allclose(theirs, logits(base()), rtol=1e-5, atol=1e-5), "the adapter does nothing"


@pytest.mark.parametrize("block", MERGED)
def test_a_merged_model_gives_the_replayed_logits_in_transformers(swept: Swept, block: str, tmp_path: Path) -> None:
    merge = block not in ("random_subset", "sensitive", "full")  # these have no adapter format
    folder = zo_sweeps.save_adapter(swept.id(block), tmp_path / "model", swept.state, merge=merge)
    theirs = AutoModelForCausalLM.from_pretrained(str(folder))
    assert theirs.dtype == torch.float32
    torch.testing.assert_close(logits(theirs), replayed(swept, block), rtol=2e-5, atol=2e-5)
    moved = [name for name, param in base().named_parameters() if not param.equal(theirs.get_parameter(name))]
    assert moved, "nothing was merged"
    assert block == "full" or all(".q_proj." in name or ".v_proj." in name for name in moved)
    assert AutoTokenizer.from_pretrained(str(folder))("what a day") == AutoTokenizer.from_pretrained(str(DEMO))(
        "what a day"
    )
    assert sorted(tmp_path.iterdir()) == [folder], "no temporary folder is left"


def test_weights_are_not_rebuilt_over_another_model_than_the_trial_s(
    swept: Swept, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "fingerprint_model", lambda model: "local:0123")
    for block in ("lora_fa", "full"):
        with pytest.raises(UserError, match=r"the trial's model was local:\w+, and the one here is local:0123"):
            zo_sweeps.save_adapter(swept.id(block), tmp_path / "adapter", swept.state)
    assert not (tmp_path / "adapter").exists()


@pytest.mark.parametrize(("block", "merge"), [("lora_fa", False), ("lora_fa", True), ("qzo", False)])
def test_a_full_disk_is_one_line_and_leaves_nothing(swept: Swept, block: str, merge: bool, tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))  # of each file: writing fails as on a full disk
    try:
        with pytest.raises(UserError, match=r"cannot write .*adapter: "):
            zo_sweeps.save_adapter(swept.id(block), tmp_path / "adapter", swept.state, merge=merge)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


@pytest.mark.parametrize(
    ("precision", "merge", "said"),
    [
        ("nf4", False, "scored over nf4 codes, and another model on the plain weights that it names; --merge"),
        ("nf4", True, ""),
        ("w4a8", True, "w4a8 rounds activations before each product, and the merged model does not"),
        ("fp32", False, ""),
    ],
)
def test_an_export_says_where_it_is_not_the_model_that_was_scored(
    precision: str, merge: bool, said: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    trial = make("update.lr=0.1", f"precision={precision}")
    monkeypatch.setattr(export, "find_trial", lambda *_: trial)
    found = export.other_than_scored(trial.trial_id, tmp_path, merge)
    assert (said in found, bool(found)) == (True, bool(said))


def test_a_pair_that_is_frozen_in_bf16_is_merged_in_fp32() -> None:
    """Sums in fp32 that differ in their last bits may round to neighbours: 2^-7 of the smaller, at most."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(16, 12, dtype=torch.bfloat16))
    weight = module[0].weight.float()
    space = Vera(module, ["0"], 4, 0.1, seed=0)
    (layer,) = space.layers.values()
    nn.init.constant_(layer.get_parameter("b"), 0.5)
    with torch.no_grad():
        merge(layer, layer.base)
    added = 0.05 * space.B.float() @ space.A.float()
    torch.testing.assert_close(layer.base.weight, (weight + added).bfloat16(), rtol=2**-7, atol=0)
    assert added.norm() > 0.1 * weight.norm()


def test_a_model_whose_scales_were_trained_is_exported_as_a_package_or_decoded(swept: Swept, tmp_path: Path) -> None:
    packaged = zo_sweeps.save_adapter(swept.id("qzo"), tmp_path / "package", swept.state)
    merged = zo_sweeps.save_adapter(swept.id("qzo"), tmp_path / "model", swept.state, merge=True)
    assert read(packaged) is not None
    theirs = logits(AutoModelForCausalLM.from_pretrained(str(merged)))
    torch.testing.assert_close(theirs, replayed(swept, "qzo"), rtol=2e-5, atol=2e-5)


def test_what_merging_did_to_the_base_model_does_not_stay(swept: Swept, tmp_path: Path) -> None:
    before = replayed(swept, "random_subset")
    zo_sweeps.save_adapter(swept.id("lora_fa"), tmp_path / "model", swept.state, merge=True)
    assert replayed(swept, "random_subset").equal(before)


def test_weights_are_the_trained_values_of_the_selected_step(swept: Swept) -> None:
    found = zo_sweeps.weights(swept.id("lora_fa"), swept.state)
    with rebuilt(swept.id("lora_fa"), swept.state) as (_, space):
        assert found.keys() == space.params.keys()
        assert all(found[name].equal(param) for name, param in space.params.items())
    assert {name.rpartition(".")[2] for name in found} == {"B"}
    line = swept.line("lora_fa")
    assert 0 < line["selected_step"] < line["steps_done"], "the last step's weights would pass"


@pytest.mark.parametrize(
    ("block", "said"),
    [
        ("fo", r"weights trained by backpropagation are not kept.*run a zeroth-order method"),
        ("zero_shot", "nothing was trained"),
        ("diverged", "no step was selected: it ended as diverged"),
    ],
)
def test_a_trial_without_weights_to_rebuild_says_why(swept: Swept, block: str, said: str) -> None:
    with pytest.raises(UserError, match=said) as raised:
        zo_sweeps.weights(swept.id(block), swept.state)
    assert swept.id(block) in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_trial_that_is_not_finished_says_how_far_it_is(swept: Swept, tmp_path: Path) -> None:
    trial_id, state = swept.id("lora_fa"), tmp_path / "state"
    shutil.copytree(swept.state, state)
    path = JournalStore(state).path(trial_id)
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(line for line in lines if json.loads(line)["type"] != "end"))
    ledger = state / "ledger.jsonl"
    told = ledger.read_text().splitlines(keepends=True)
    ledger.write_text("".join(line for line in told if trial_id not in line or "SUCCEEDED" not in line))
    done = len(scalars(JournalStore(state).read(trial_id))[1])
    with pytest.raises(UserError, match=f"not finished: step {done} of 12.*run the sweep's command again"):
        zo_sweeps.weights(trial_id, state)
    path.unlink()
    with pytest.raises(UserError, match="not finished: step 0 of 12"):
        zo_sweeps.weights(trial_id, state)


def test_a_prefix_cannot_be_merged(swept: Swept, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="'prefix' cannot be merged: its trained values precede the text"):
        zo_sweeps.save_adapter(swept.id("prefix"), tmp_path / "model", swept.state, merge=True)
    assert not list(tmp_path.iterdir())


def test_a_folder_that_holds_something_is_not_written_to(swept: Swept, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match="is not empty; name a new folder"):
        zo_sweeps.save_adapter(swept.id("lora_fa"), tmp_path, swept.state)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_the_command_exports_by_the_start_of_an_id(
    swept: Swept, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, state = tmp_path / "out" / "adapter", f"state_dir={swept.state}"
    assert main(["export", swept.id("lora_fa")[:8], "--out", str(folder), state]) == 0
    assert capsys.readouterr().out == f"{folder}\n"
    assert {path.name for path in folder.iterdir()} == {"adapter_config.json", "adapter_model.safetensors"}
    assert main(["export", swept.id("lora_fa"), "--merge", "--out", str(tmp_path / "model"), state]) == 0
    assert (tmp_path / "model" / "model.safetensors").is_file()


def test_answers_before_and_after_are_those_that_were_scored(swept: Swept, capsys: pytest.CaptureFixture[str]) -> None:
    one, state = swept.line("lora_fa"), f"state_dir={swept.state}"
    assert main(["answers", one["trial_id"][:8], "--rows", "8", state]) == 0
    header, *lines = capsys.readouterr().out.splitlines()
    assert header.split("  ")[0] == "test"
    assert header.endswith(f"before training  after step {one['selected_step']}")
    pairs = [re.findall("[✓✗] (?:great|terrible)", line) for line in lines]
    shares = [sum(text.startswith("✓") for text in texts) / 8 for texts in zip(*pairs, strict=True)]
    assert shares == [swept.line("zero_shot")["test/metric"], one["test/metric"]]
    for words, said in (
        ([], "0 trials to show answers of; give one id"),
        ([one["trial_id"], "--rows", "0"], "0 rows to show in --rows; give 1 or more"),
        ([swept.id("fo")], "not kept"),
    ):
        assert main(["answers", *words, state]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert said in line


def test_a_command_that_cannot_be_done_is_one_line(
    swept: Swept, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    known, state = swept.id("lora_fa"), f"state_dir={swept.state}"
    wrong = known[:-1] + ("0" if known[-1] != "0" else "1")
    for arguments, said in (
        ([wrong, "--out", "x", state], f"did you mean '{known}'?"),
        ([known, wrong, "--out", "x", state], "2 trials to export; give one id"),
        ([known, state], "--out"),
        ([known, "--out", "x", f"state_dir={tmp_path / 'none'}"], "nothing has been run in"),
        ([swept.id("fo"), "--out", "x", state], "not kept"),
    ):
        assert main(["export", *arguments]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert said in line
    assert not Path("x").exists()


@pytest.mark.parametrize("damage", ["half", "garbage"])
def test_a_damaged_journal_is_one_line_of_every_command_that_reads_it(
    swept: Swept, tmp_path: Path, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    state = tmp_path / "state"
    shutil.copytree(swept.state, state, ignore=shutil.ignore_patterns("mlflow.db", "*.lock"))
    one, other = swept.id("lora_fa"), swept.id("dora")
    path = JournalStore(state).path(one)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2] if damage == "half" else bytes(range(256)))
    given = ["+grid=forms", f"state_dir={state}", "--config-dir", str(swept.conf)]
    for command in (
        ["status", one, *given],
        ["figure", *given],
        ["compare", one, other, f"state_dir={state}"],
        ["export", one, f"state_dir={state}", "--out", str(tmp_path / "out")],
    ):
        assert main(command) == 2, command
        (line,) = capsys.readouterr().err.strip().splitlines()[-1:]
        assert [line.startswith("zo_sweeps: "), str(path) in line, f"--rerun {one}" in line] == [True] * 3, command
    assert not (tmp_path / "out").exists()
    assert main(["table", *given]) == 0, "a table is of the ledger's outcomes"
