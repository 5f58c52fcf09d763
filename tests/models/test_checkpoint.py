"""What is and what is not a model's folder, in one line each."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer

from tests.models.common import TINY, local
from zo_sweeps.core.errors import UserError
from zo_sweeps.models.checkpoint import INDEX, TokenizerFile, read_checkpoint_info
from zo_sweeps.models.families import describe
from zo_sweeps.models.identity import DEMO, status
from zo_sweeps.models.load import load

pytestmark = pytest.mark.unit


def refused(folder, match):
    with pytest.raises(UserError, match=match) as caught:
        read_checkpoint_info(folder)
    assert "\n" not in str(caught.value)
    seen = status(local(folder))
    assert not seen.available
    assert seen.why == str(caught.value)


def test_the_demo_model_is_read_from_its_headers():
    info = read_checkpoint_info(DEMO)
    assert info.parameters == info.arch.parameters


def test_shards_are_counted_together(checkpoint):
    whole, sharded = checkpoint(name="whole"), checkpoint(name="sharded", max_shard_size="200KB")
    assert len(read_checkpoint_info(sharded).files) > 1
    assert read_checkpoint_info(sharded).parameters == read_checkpoint_info(whole).parameters
    assert read_checkpoint_info(whole).parameters == describe(TINY["llama"]).parameters


def test_no_such_folder(tmp_path):
    refused(tmp_path / "absent", "no such folder: .*absent in model.path")


def test_no_config(tmp_path):
    refused(tmp_path, r"not a model: no config\.json in ")


def test_broken_config(checkpoint):
    folder = checkpoint()
    (folder / "config.json").write_text("{")
    refused(folder, r"config\.json is not JSON")


def test_a_classifier_is_not_a_language_model(checkpoint):
    folder = checkpoint()
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "architectures": ["LlamaForSequenceClassification"]}))
    refused(folder, "not a causal language model but LlamaForSequenceClassification")


def test_a_model_that_cannot_be_served_says_why(checkpoint):
    folder = checkpoint()
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "mamba"}))
    refused(
        folder,
        "model family 'mamba' cannot be served: layers of it carry a state from token to token, as Mamba's do in ",
    )


def test_no_weights(checkpoint):
    folder = checkpoint()
    (folder / "model.safetensors").unlink()
    refused(folder, r"no weights \(model\.safetensors\)")


def test_a_missing_shard(checkpoint):
    folder = checkpoint(max_shard_size="200KB")
    read_checkpoint_info(folder).files[1].unlink()
    refused(folder, r"1 of \d+ weight files are missing \(model-00002")


def test_pickled_weights_are_refused_with_the_way_to_convert_them(checkpoint):
    folder = checkpoint()
    (folder / "model.safetensors").unlink()
    torch.save({}, folder / "pytorch_model.bin")
    refused(folder, r"pickled .* not loaded .*save_pretrained\(new\)` writes safetensors")


def test_no_tokenizer(checkpoint):
    folder = checkpoint()
    (folder / "tokenizer.json").unlink()
    refused(folder, "no tokenizer")


@pytest.mark.parametrize(("entry", "named"), [({"quant_method": "gptq"}, "gptq"), ({"bits": 4}, "unnamed")])
def test_weights_that_another_tool_has_quantized(checkpoint, entry, named):
    folder = checkpoint()
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "quantization_config": entry}))
    refused(folder, rf"its weights are stored as codes of another tool \({named}\)")


def test_an_adapter_in_the_folder_of_the_model(checkpoint):
    folder = checkpoint()
    (folder / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    refused(folder, "the folder holds an adapter beside the model")


def test_half_a_download(checkpoint):
    folder = checkpoint()
    weights = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(weights[:-1])
    refused(folder, rf"has {len(weights) - 1} bytes where its header says {len(weights)}")
    (folder / "model.safetensors").write_bytes(weights[:100])
    refused(folder, "not a complete safetensors file")
    (folder / "model.safetensors").write_bytes(b"")
    refused(folder, "not a complete safetensors file")


def test_a_file_of_something_else(checkpoint):
    folder = checkpoint()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", 4) + b"nope")
    refused(folder, "is not a safetensors file")


ENTRY = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}


@pytest.mark.parametrize(
    "header",
    [
        "[]",
        json.dumps({"a": 7}),
        json.dumps({"a": {key: value for key, value in ENTRY.items() if key != "data_offsets"}}),
        json.dumps({"a": {**ENTRY, "data_offsets": ["0", "4"]}}),
        json.dumps({"a": {**ENTRY, "data_offsets": [0]}}),
        json.dumps({"a": {**ENTRY, "shape": "1"}}),
        json.dumps({"a": {**ENTRY, "shape": [-1]}}),
        "[" * 200_000,
        "\xff\xfe",
    ],
    ids=[
        "list",
        "number",
        "no offsets",
        "offsets as text",
        "one offset",
        "shape as text",
        "negative",
        "deep",
        "binary",
    ],
)
def test_a_malformed_header_is_one_line(header, checkpoint):
    folder = checkpoint()
    content = header.encode("latin-1")
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(content)) + content + bytes(4))
    refused(folder, "model.safetensors is not a safetensors file in .*; download it again")


OUTSIDE = '{"weight_map": {"a": "../model.safetensors"}}'
INDICES = ["[]", "{}", '{"weight_map": []}', '{"weight_map": {}}', '{"weight_map": {"a": [1]}}', OUTSIDE, "[" * 200_000]


@pytest.mark.parametrize("index", INDICES)
def test_a_malformed_index_is_one_line(index, checkpoint):
    folder = checkpoint(max_shard_size="200KB")
    (folder / INDEX).write_text(index)
    refused(folder, "is not an index of weight files in ")


def test_weights_of_more_or_fewer_layers_than_the_configuration_are_refused_at_the_plan(checkpoint):
    folder = checkpoint()
    config = json.loads((folder / "config.json").read_text())
    for layers in (1, 3):
        (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": layers}))
        refused(folder, f"the weights have 2 layers, and config.json says {layers} in .*saved with the weights")


@pytest.mark.parametrize("prefix", ["", "model."])
def test_layers_are_counted_with_or_without_the_base_models_prefix(prefix, checkpoint):
    """OPT's first checkpoints name their tensors without `model.`."""
    folder = checkpoint("opt")
    weights = load_file(folder / "model.safetensors")
    named = {prefix + name.removeprefix("model."): tensor for name, tensor in weights.items()}
    save_file(named, folder / "model.safetensors", metadata={"format": "pt"})
    assert read_checkpoint_info(folder).arch.layers == 2
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 3}))
    refused(folder, "the weights have 2 layers, and config.json says 3")


@pytest.mark.parametrize("key", ["vocab_size", "hidden_size", "num_hidden_layers"])
def test_a_configuration_without_a_size_is_one_line(key, checkpoint):
    folder = checkpoint()
    config = json.loads((folder / "config.json").read_text())
    del config[key]
    (folder / "config.json").write_text(json.dumps(config))
    refused(folder, f"needs a positive integer '{key}', not None in ")


def test_a_gpt_2_is_a_causal_language_model(checkpoint):
    folder = checkpoint()
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "architectures": ["LlamaLMHeadModel"]}))
    assert status(local(folder)).available


def test_a_git_lfs_pointer(checkpoint):
    folder = checkpoint()
    (folder / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")
    refused(folder, "Git LFS pointer.*git lfs pull")


def test_the_demo_folder_is_a_local_model_too(tmp_path):
    shutil.copytree(DEMO, tmp_path / "copy")
    assert status(local(tmp_path / "copy")).available


@pytest.mark.parametrize(("family", "read"), [("llama", True), ("mistral", False)])
def test_sentencepiece_s_file_alone_is_read_as_it_says_or_refused(
    family: str, read: bool, checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    """For some model types transformers leaves the space before a text out."""
    from sentencepiece import SentencePieceTrainer

    folder, text = checkpoint(family), tmp_path / "text"
    text.write_text("A great film, and a bad one.\n" * 100)
    rules = {"model_type": "bpe", "byte_fallback": True, "normalization_rule_name": "identity"}
    rules |= {"vocab_size": 300, "remove_extra_whitespaces": False, "minloglevel": 2}
    SentencePieceTrainer.train(input=str(text), model_prefix=str(tmp_path / "pieces"), **rules)
    (folder / "tokenizer.json").unlink()
    shutil.move(tmp_path / "pieces.model", folder / "tokenizer.model")
    settings = {"tokenizer_class": "LlamaTokenizer", "add_bos_token": True, "bos_token": "<s>", "eos_token": "</s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps({**settings, "unk_token": "<unk>"}))
    found = status(local(folder))
    assert (found.available, "reads other tokens than SentencePiece" in found.why) == (read, not read)


@pytest.mark.parametrize("stored", ["plain", "cut and padded", "of a class", "of no class"])
@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_a_plan_and_a_run_read_the_same_tokens(family: str, stored: str, checkpoint: Callable[..., Path]) -> None:
    """Whatever class transformers would build in its place; a file may keep how its last text was cut and padded."""
    folder = checkpoint(family)
    if stored == "cut and padded":
        tokenizer = AutoTokenizer.from_pretrained(str(DEMO))
        tokenizer(["x y"], padding="max_length", truncation=True, max_length=24)
        tokenizer.save_pretrained(folder)
    elif stored != "plain":  # SmolLM2's is of GPT-2's class, which does not split digits
        changed = json.loads((folder / "tokenizer.json").read_text())
        changed["normalizer"] = {"type": "Lowercase"}
        (folder / "tokenizer.json").write_text(json.dumps(changed))
        settings = json.loads((folder / "tokenizer_config.json").read_text())
        settings |= {"tokenizer_class": "GPT2Tokenizer" if stored == "of a class" else None, "unk_token": "<pad>"}
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    model, planned = load(local(folder), torch.float32, "cpu"), TokenizerFile(folder)
    for text in ("naïve ☃ It's 1234 ok", "a long text " * 20, "a"):
        assert model.tokenizer(text)["input_ids"] == planned(text)["input_ids"]
    assert len(model.tokenizer) == len(planned.get_vocab())
