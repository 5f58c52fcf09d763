"""GGUF files, written from small random models as llama.cpp lays them out: the model that is loaded is the source's."""

from __future__ import annotations

import hashlib
import json
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf as writing
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Type
from torch import Tensor

from tests.models.common import local, make
from zo_sweeps.core.errors import UserError
from zo_sweeps.core.files import CACHE, cache_at
from zo_sweeps.models import checkpoint, gguf, identity
from zo_sweeps.models.identity import DEMO
from zo_sweeps.models.load import load

TEMPLATE = "{% for message in messages %}<{{ message['role'] }}> {{ message['content'] }}\n{% endfor %}"
SHAPE = {"vocab_size": 4096, "hidden_size": 64, "intermediate_size": 256, "num_hidden_layers": 2}
SHAPE |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128}
SHAPE |= {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
MODELS: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", "tie_word_embeddings": False},
    "qwen2": {"model_type": "qwen2", "tie_word_embeddings": True},
    "qwen3": {"model_type": "qwen3", "tie_word_embeddings": True, "head_dim": 32, "rope_theta": 5e4},
    "phi3": {"model_type": "phi3", "tie_word_embeddings": False, "sliding_window": 8},
    "gemma2": {"model_type": "gemma2", "head_dim": 32, "sliding_window": 8, "final_logit_softcapping": 1.5},
    "gemma3": {"model_type": "gemma3_text", "num_hidden_layers": 7, "head_dim": 32, "sliding_window": 8},
}
Tensors = dict[str, Tensor]


def source(family: str) -> Any:
    """A model of transformers with random weights, norms and biases included."""
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(3)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**{**SHAPE, **MODELS[family]}), dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * (0.3 if parameter.dim() == 1 else 0.1))
    return model.eval()


def laid_out(family: str, name: str, weight: Tensor, config: Any) -> Tensor:
    """A weight as llama.cpp stores it: pairs of rotary positions beside each other, norms of Gemma with their 1."""
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    if family == "llama" and (n := heads.get(name.split(".")[-2])):
        return weight.reshape(n, 2, -1, weight.shape[1]).transpose(1, 2).reshape(weight.shape)
    return weight + 1 if family.startswith("gemma") and name.endswith("norm.weight") else weight


def write(
    file: Path,
    family: str,
    model: Any,
    kind: Type = Type.F32,
    stored: Callable[[str], np.ndarray | None] = lambda name: None,
    more: Callable[[Any], None] = lambda writer: None,
    pre: str = "default",
) -> Path:
    """Write a GGUF file with the demo tokenizer: matrices as `kind` or as the bytes `stored`, of Q4_K then."""
    c = model.config
    writer = writing.GGUFWriter(file, family)
    writer.add_context_length(c.max_position_embeddings)
    writer.add_block_count(c.num_hidden_layers)
    writer.add_embedding_length(c.hidden_size)
    writer.add_feed_forward_length(c.intermediate_size)
    writer.add_head_count(c.num_attention_heads)
    writer.add_head_count_kv(c.num_key_value_heads)
    writer.add_layer_norm_rms_eps(c.rms_norm_eps)
    if family != "gemma3":  # whose two kinds of layers have one each, of which the file names the first
        writer.add_rope_freq_base(c.rope_parameters["rope_theta"])
    if getattr(c, "head_dim", None):
        writer.add_key_length(c.head_dim)
        writer.add_value_length(c.head_dim)
    if getattr(c, "sliding_window", None):
        writer.add_sliding_window(c.sliding_window)
    if family == "gemma2":
        writer.add_attn_logit_softcapping(c.attn_logit_softcapping)
        writer.add_final_logit_softcapping(c.final_logit_softcapping)
    tokenizer = json.loads((DEMO / "tokenizer.json").read_text())
    special = {one["id"] for one in tokenizer["added_tokens"]}
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list([*tokenizer["model"]["vocab"]])
    writer.add_token_types([3 if i in special else 1 for i in range(len(tokenizer["model"]["vocab"]))])
    writer.add_token_merges([" ".join(pair) for pair in tokenizer["model"]["merges"]])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(0)
    writer.add_add_bos_token(True)
    writer.add_chat_template(TEMPLATE)
    more(writer)
    arch = next(one for one, name in writing.MODEL_ARCH_NAMES.items() if name == family)
    names = writing.get_tensor_name_map(arch, c.num_hidden_layers)
    for name, weight in model.state_dict().items():
        if name == "lm_head.weight" and c.tie_word_embeddings:
            continue
        values = laid_out(family, name, weight, c).numpy()
        stem, _, end = name.rpartition(".")
        target = f"{names.get_name(stem)}.{end}"
        if (blocks := stored(name)) is not None:
            writer.add_tensor(target, blocks, raw_dtype=Type.Q4_K)
        else:
            as_kind = kind if values.ndim == 2 else Type.F32
            writer.add_tensor(target, writing.quantize(values, as_kind), raw_dtype=as_kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def logits(module: Any) -> Tensor:
    with torch.no_grad():
        return module(torch.arange(40, 104).reshape(2, 32)).logits


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(CACHE, str(tmp_path / "cache"))
    return tmp_path / "cache"


def loaded(file: Path) -> Any:
    return load(local(file), torch.float32, "cpu").module


@pytest.mark.parametrize(
    ("family", "kind"),
    [
        *((family, Type.Q8_0) for family in MODELS),
        *(("llama", kind) for kind in (Type.F32, Type.F16, Type.Q4_0, Type.Q4_1)),
    ],
)
def test_logits_are_those_of_the_source_with_its_weights_rounded(family: str, kind: Type, tmp_path: Path) -> None:
    model = source(family)
    file = write(tmp_path / "model.gguf", family, model, kind)
    exact = logits(model)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() == 2:  # quantized along rows, whose order does not matter
                weight.copy_(torch.tensor(writing.dequantize(writing.quantize(weight.numpy(), kind), kind)))
            elif family.startswith("gemma") and name.endswith("norm.weight"):
                weight.copy_((weight + 1) - 1)
    expected = logits(model)
    torch.testing.assert_close(logits(loaded(file)), expected, rtol=0, atol=0)
    assert torch.equal(exact, expected) == (kind == Type.F32)


def test_weights_of_q4_k_are_those_of_its_definition(tmp_path: Path) -> None:
    """Superblocks of 256: eight scales and minima of 6 bits, packed as ggml's get_scale_min_k4 reads them."""
    model = source("llama")
    name = "model.layers.0.mlp.down_proj.weight"
    rows = model.get_parameter(name).shape[0]
    draw = np.random.default_rng(5)
    blocks, expected = [], []
    for _ in range(rows):
        d, least = np.float16(draw.uniform(1e-4, 1e-3)), np.float16(draw.uniform(1e-4, 1e-3))
        packed, codes = draw.integers(0, 256, 12), draw.integers(0, 256, 128)
        row = []
        for j in range(8):
            if j < 4:
                scale, minimum = packed[j] & 63, packed[j + 4] & 63
            else:
                scale = (packed[j + 4] & 15) | (packed[j - 4] >> 6 << 4)
                minimum = (packed[j + 4] >> 4) | (packed[j] >> 6 << 4)
            for i in range(32):
                code = codes[j // 2 * 32 + i] >> 4 * (j % 2) & 15
                row.append(float(d) * int(scale) * int(code) - float(least) * int(minimum))
        expected.append(row)
        blocks.append(struct.pack("<ee12B128B", d, least, *packed, *codes))
    stored = np.frombuffer(b"".join(blocks), np.uint8).reshape(rows, 144)
    file = write(tmp_path / "model.gguf", "llama", model, stored=lambda one: stored if one == name else None)
    torch.testing.assert_close(loaded(file).get_parameter(name), torch.tensor(expected), rtol=1e-6, atol=1e-7)


def test_tokenizer_template_and_identity_are_those_of_the_file(tmp_path: Path, cache: Path) -> None:
    from transformers import AutoTokenizer

    file = write(tmp_path / "model.gguf", "llama", source("llama"), Type.Q8_0)
    status = identity.status(local(file))
    assert status.available
    assert status.front == (1,)
    assert status.fingerprint == fingerprint_of(file)
    text = "It isn't a bad film, at 12.50 a seat:  naïve, though…\n"
    tokenizer, demo = load(local(file), torch.float32, "cpu").tokenizer, AutoTokenizer.from_pretrained(str(DEMO))
    assert tokenizer(text)["input_ids"] == demo(text)["input_ids"]
    said = tokenizer.apply_chat_template([{"role": "user", "content": "Well?"}], tokenize=False)
    assert said == "<user> Well?\n"
    (folder,) = (path for path in (cache / "gguf").iterdir() if path.is_dir())
    before = (folder / "config.json").stat().st_mtime_ns
    other = tmp_path / "elsewhere"
    other.mkdir()
    file.rename(other / "renamed.gguf")  # a board has it in a folder alone
    assert identity.status(local(other)).fingerprint == status.fingerprint
    assert [*identity.files_of(local(other)).values()] == [status.fingerprint.removeprefix("gguf:")]
    assert (folder / "config.json").stat().st_mtime_ns == before  # not converted again


@pytest.mark.parametrize("pre", ["llama-bpe", "tekken", "smollm"])
@pytest.mark.parametrize("begins", [None, True, False], ids=str)
def test_a_text_begins_and_splits_as_the_name_of_the_split_implies(
    pre: str, begins: bool | None, tmp_path: Path
) -> None:
    """As in llama.cpp: with BOS unless the file says not to, and a word of the vocabulary whole without its merges."""
    tokenizer = json.loads((DEMO / "tokenizer.json").read_text())
    word = next(one for one in tokenizer["model"]["vocab"] if one.startswith("Ġ") and len(one) > 6)

    def more(writer: Any) -> None:
        writer.kv_data[0].pop("tokenizer.ggml.add_bos_token")
        if begins is not None:
            writer.add_add_bos_token(begins)
        merges = [pair for pair in tokenizer["model"]["merges"] if "".join(pair) != word]
        writer.kv_data[0].pop("tokenizer.ggml.merges")
        writer.add_token_merges([" ".join(pair) for pair in merges])

    file = write(tmp_path / "model.gguf", "llama", source("llama"), more=more, pre=pre)
    implied = pre != "smollm"
    model, seen = load(local(file), torch.float32, "cpu"), identity.status(local(file))
    assert model.front == seen.front == ((1,) if begins or (begins is None and implied) else ())
    for one in (model.tokenizer, seen.tokenizer):
        ids = one(word.replace("Ġ", " "), add_special_tokens=False)["input_ids"]
        assert (ids == [tokenizer["model"]["vocab"][word]]) == implied


def test_what_was_converted_can_be_dropped_and_is_converted_again_to_the_same_bytes(tmp_path: Path) -> None:
    file = write(tmp_path / "model.gguf", "qwen2", source("qwen2"), Type.Q8_0)
    folder = identity.folder_of(local(file))
    (entry,) = gguf.stored()
    assert (entry.mark, entry.bytes > 10**6) == (fingerprint_of(file), True)
    with cache_at(tmp_path / "other"):
        identity.folder_of(local(file))
    assert entry.is_same(tmp_path / "other")
    with entry.held():
        entry.drop()
    assert not folder.exists()
    assert not [*gguf.stored()]


def fingerprint_of(file: Path) -> str:
    return "gguf:" + hashlib.sha256(file.read_bytes()).hexdigest()[:16]


def test_a_large_file_is_identified_by_its_tokenizer_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(tmp_path / "model.gguf", "qwen2", source("qwen2"), Type.Q8_0)
    monkeypatch.setattr(identity, "WHOLE", 0)
    monkeypatch.setattr(identity, "BLOCK", 16)
    monkeypatch.setattr(identity, "GGUF_HEADER", 2**17)
    content = bytearray(file.read_bytes())
    at = content.index("Ġthe".encode())
    first = identity.fingerprint_model(local(file))
    content[at + 2] ^= 1
    (tmp_path / "other.gguf").write_bytes(content)
    assert identity.fingerprint_model(local(tmp_path / "other.gguf")) != first != fingerprint_of(file)


def test_a_file_of_the_hub_is_the_one_in_its_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    repo = tmp_path / "hub" / "models--some--where"
    (repo / "refs").mkdir(parents=True)
    (repo / "refs" / "main").write_text("c0ffee")
    (repo / "snapshots" / "c0ffee" / "small").mkdir(parents=True)
    file = write(repo / "snapshots" / "c0ffee" / "small" / "model.gguf", "qwen2", source("qwen2"))
    model = make(source="local", path="some/where/small/model.gguf")
    assert identity.gguf_file(model) == file
    assert identity.fingerprint_model(model) == fingerprint_of(file)


def test_scaled_positions_of_llama_3_are_those_of_its_factors(tmp_path: Path) -> None:
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    model = source("llama")
    scaling = {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    scaling |= {"original_max_position_embeddings": 8192, "rope_theta": 5e5}
    plain = 5e5 ** -(torch.arange(0, 16, 2) / 16)
    model.config.rope_parameters = scaling
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](model.config, "cpu")
    factors = (plain / scaled).numpy()
    assert len({*factors.round(3)}) > 2
    file = write(tmp_path / "a.gguf", "llama", model, more=lambda one: one.add_tensor(gguf.ROPE_FACTORS, factors))
    torch.testing.assert_close(loaded(file).model.rotary_emb.inv_freq, scaled, rtol=1e-6, atol=0)
    wrong = write(tmp_path / "b.gguf", "llama", model, more=lambda one: one.add_tensor(gguf.ROPE_FACTORS, factors**2))
    with pytest.raises(UserError, match=r"factors of rotary positions .* are not those of Llama 3 in .*b\.gguf"):
        loaded(wrong)


def test_weights_are_written_in_pieces(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "SHARD", 2**17)
    model = source("llama")
    file = write(tmp_path / "model.gguf", "llama", model)
    torch.testing.assert_close(logits(loaded(file)), logits(model), rtol=0, atol=0)
    assert len([*cache.glob("gguf/*/*.safetensors")]) > 3


@pytest.mark.parametrize(
    ("more", "pre", "what"),
    [
        (
            lambda one: one.add_rope_scaling_factor(8.0),
            "default",
            r"does not read llama\.rope\.scaling\.factor \(8\.0\)",
        ),
        (lambda one: one.add_rope_dimension_count(8), "default", r"does not read llama\.rope\.dimension_count \(8\)"),
        (
            lambda one: one.add_tensor("blk.0.extra.weight", np.zeros(3, np.float32)),
            "default",
            r"no place for blk\.0\.",
        ),
        (lambda one: None, "bert-like", "splits texts as 'bert-like' cannot be converted in .*; choose from: .*smollm"),
    ],
)
def test_what_would_be_lost_is_refused_by_name(more: Any, pre: str, what: str, tmp_path: Path, cache: Path) -> None:
    file = write(tmp_path / "model.gguf", "llama", source("llama"), more=more, pre=pre)
    status = identity.status(local(file))
    assert not status.available
    assert "\n" not in status.why
    with pytest.raises(UserError, match=what):
        loaded(file)
    assert not [path for path in cache.glob("gguf/*") if path.is_dir()]


@pytest.mark.parametrize("spaced", [None, True, False], ids=str)
def test_a_space_before_a_text_is_there_where_the_file_says_so(spaced: bool | None, tmp_path: Path) -> None:
    """SentencePiece has one unless the file says not to; transformers' reader has one whatever it says."""
    tokens = ["<unk>", "<s>", "</s>", "▁", "a", "▁a", *(f"[{i}]" for i in range(6, SHAPE["vocab_size"]))]

    def more(writer: Any) -> None:
        for key in ("model", "tokens", "token_type", "merges"):
            writer.kv_data[0].pop(f"tokenizer.ggml.{key}")
        writer.add_tokenizer_model("llama")
        writer.add_token_list(tokens)
        writer.add_token_scores([-float(i) for i in range(len(tokens))])
        writer.add_token_types([2, 3, 3, *[1] * (len(tokens) - 3)])
        if spaced is not None:
            writer.add_add_space_prefix(spaced)

    file = write(tmp_path / "model.gguf", "llama", source("llama"), more=more)
    if spaced is False:
        with pytest.raises(UserError, match=r"does not read tokenizer\.ggml\.add_space_prefix \(False\)"):
            loaded(file)
    else:
        tokenizer = load(local(file), torch.float32, "cpu").tokenizer
        assert tokenizer("a", add_special_tokens=False)["input_ids"] == [5]


def test_a_token_of_turns_that_would_be_split_is_refused_when_planning(tmp_path: Path) -> None:
    """As of DeepSeek-R1's distilled models: transformers reads no control token in other letters than bytes have."""
    vocabulary = [*json.loads((DEMO / "tokenizer.json").read_text())["model"]["vocab"]]
    vocabulary[1] = "<｜begin▁of▁sentence｜>"

    def more(writer: Any) -> None:
        writer.kv_data[0].pop("tokenizer.ggml.tokens")
        writer.add_token_list(vocabulary)

    status = identity.status(local(write(tmp_path / "model.gguf", "qwen2", source("qwen2"), more=more)))
    assert (status.available, "splits the token '<｜begin▁of▁sentence｜>'" in status.why) == (False, True)


@pytest.mark.parametrize(
    ("family", "key", "add"),
    [
        ("llama", "attention.sliding_window", lambda one: one.add_sliding_window(8)),
        ("qwen2", "attention.sliding_window", lambda one: one.add_sliding_window(8)),
        ("phi3", "final_logit_softcapping", lambda one: one.add_final_logit_softcapping(1.5)),
        ("qwen3", "attn_logit_softcapping", lambda one: one.add_attn_logit_softcapping(1.5)),
    ],
)
def test_what_a_family_has_no_place_for_is_refused_by_name(family: str, key: str, add: Any, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=rf"does not read {family}\.{key} "):
        loaded(write(tmp_path / "model.gguf", family, source(family), more=add))


def test_a_transformers_that_does_not_know_the_splits_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(tmp_path / "model.gguf", "llama", source("llama"))
    monkeypatch.setitem(sys.modules, "transformers.integrations.gguf.gguf_tokenizer_mapping", None)
    with pytest.raises(UserError, match=r"transformers \S+ does not say how .*zo-sweeps\[gguf\]"):
        loaded(file)


def test_files_that_are_none_are_refused_by_name(tmp_path: Path) -> None:
    whole = write(tmp_path / "model.gguf", "qwen2", source("qwen2")).read_bytes()
    cases = {
        "damaged.gguf": (whole[:-100], "not a whole GGUF file"),
        "other.gguf": (b"not one", "not a whole GGUF file"),
        "t5.gguf": (
            whole.replace(b"qwen2", b"qwen9"),
            "architecture 'qwen9' cannot be converted .*; choose from: gemma2",
        ),
    }
    for name, (content, what) in cases.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(UserError, match=what):
            loaded(tmp_path / name)
    with pytest.raises(UserError, match=r"no such file: .*absent\.gguf"):
        loaded(tmp_path / "absent.gguf")
    with pytest.raises(UserError, match=r"python -m zo_sweeps fetch model=local model\.path=some/where/model\.gguf"):
        load(make(source="local", path="some/where/model.gguf"), torch.float32, "cpu")
