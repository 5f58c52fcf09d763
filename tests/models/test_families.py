"""Families of transformers, each as a tiny random model: shapes, logits, packed rows, prefixes, spaces, memory."""

from __future__ import annotations

import copy
import hashlib
import json
import math
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import GenerationConfig

from tests.run.common import make
from zo_sweeps.core.errors import UserError
from zo_sweeps.devices.estimate import Batches, ForwardRows, memory_by_part
from zo_sweeps.engine.evaluate import out_of_place
from zo_sweeps.engine.perturbations.gaussian import Gaussian
from zo_sweeps.engine.precisions.fp32 import FP32
from zo_sweeps.engine.updates.sgd import SGD
from zo_sweeps.methods import registry
from zo_sweeps.methods.definition import options
from zo_sweeps.methods.kinds.fo import FirstOrder
from zo_sweeps.methods.kinds.zo import ZerothOrder
from zo_sweeps.methods.parts import Model
from zo_sweeps.methods.points import NoiseKey, Point
from zo_sweeps.methods.space import FullModel, LayerSpace, Space
from zo_sweeps.methods.trial_config import TrialConfig
from zo_sweeps.models import adapters
from zo_sweeps.models.causal import CausalModel
from zo_sweeps.models.families import describe, names
from zo_sweeps.models.identity import status
from zo_sweeps.models.load import load
from zo_sweeps.models.projection import features, is_projection
from zo_sweeps.plan.compatible import check_model

pytestmark = pytest.mark.unit

SIZES = {
    "vocab_size": 4104,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "initializer_range": 0.2,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
GROUPED = {**SIZES, "num_key_value_heads": 2}
BLOOM = {key: value for key, value in SIZES.items() if key not in ("intermediate_size", "max_position_embeddings")}
ROPE = {"rope_theta": 1e4, "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
FAMILIES: dict[str, dict[str, Any]] = {
    "qwen2": {"model_type": "qwen2", **GROUPED},
    "qwen3": {"model_type": "qwen3", **GROUPED, "head_dim": 8, "tie_word_embeddings": True},
    "gemma2": {"model_type": "gemma2", **GROUPED, "head_dim": 8, "sliding_window": 8, "final_logit_softcapping": 2.0},
    "gemma3": {
        "model_type": "gemma3_text",
        **GROUPED,
        "head_dim": 8,
        "sliding_window": 8,
        "layer_types": ["sliding_attention", "full_attention"],
    },
    "phi3": {"model_type": "phi3", **GROUPED},
    "gpt2": {
        "model_type": "gpt2",
        "vocab_size": 4104,
        "n_embd": 32,
        "n_layer": 2,
        "n_head": 4,
        "n_positions": 64,
        "initializer_range": 0.2,
        "bos_token_id": 1,
        "eos_token_id": 2,
    },
    "gpt_neox": {"model_type": "gpt_neox", **SIZES},
    "falcon": {"model_type": "falcon", **{k: v for k, v in SIZES.items() if k != "intermediate_size"}},
    "falcon, alibi": {"model_type": "falcon", **SIZES, "alibi": True, "multi_query": False},
    "bloom": {"model_type": "bloom", **BLOOM},
    "cohere": {"model_type": "cohere", **GROUPED, "logit_scale": 0.25},
    "granite": {"model_type": "granite", **GROUPED, "logits_scaling": 4.0},
    "llama": {
        "model_type": "llama",
        **GROUPED,
        "tie_word_embeddings": True,
        "rope_parameters": {**ROPE, "original_max_position_embeddings": 16},
    },
    "mistral": {"model_type": "mistral", **GROUPED, "sliding_window": 8},
    "qwen2, window": {
        "model_type": "qwen2",
        **GROUPED,
        "use_sliding_window": True,
        "sliding_window": 8,
        "layer_types": ["sliding_attention"] * 2,
    },
    "opt": {
        "model_type": "opt",
        **{k: v for k, v in SIZES.items() if k not in ("intermediate_size", "initializer_range")},
        "ffn_dim": 48,
        "word_embed_proj_dim": 16,
        "init_std": 0.2,
    },
    "bert": {"model_type": "bert", **SIZES},
    "roberta": {"model_type": "roberta", **SIZES},
    "xlm-roberta": {"model_type": "xlm-roberta", **SIZES},
    "deberta": {"model_type": "deberta", **SIZES, "relative_attention": True, "pos_att_type": ["c2p", "p2c"]},
    "deberta-v2": {"model_type": "deberta-v2", **SIZES, "relative_attention": True, "pos_att_type": ["c2p", "p2c"]},
    "distilbert": {
        "model_type": "distilbert",
        "vocab_size": 4104,
        "dim": 32,
        "hidden_dim": 48,
        "n_layers": 2,
        "n_heads": 4,
        "max_position_embeddings": 64,
        "initializer_range": 0.2,
    },
}
MASKED = ("bert", "roberta", "xlm-roberta", "deberta", "deberta-v2", "distilbert")
CAUSAL = [name for name in FAMILIES if name not in MASKED]
APART = {  # models that cannot read several texts in one row -> a word of the reason
    "gemma2": "SDPA",
    "gemma3": "windows",
    "bloom": "position_ids",
    "falcon, alibi": "ALiBi",
    **dict.fromkeys(MASKED, "masked"),
}
ONE_POINT = ("deberta", "deberta-v2")  # their projections multiply relative positions too
FACTORS = ("lora", "lora_fa", "dora", "vera")
SPACES = (*FACTORS, "outliers", "random_subset")
# every space over a Linear, a Conv1D and a masked model; over the others one of each kind
EVERYWHERE, EVERY_SPACE = ("lora", "lora_fa", "outliers"), ("qwen2", "gpt2", "bert")
CELLS = [(name, space) for name in FAMILIES for space in SPACES if space in EVERYWHERE or name in EVERY_SPACE]
OPTIONS = {"rank": 4, "alpha": 8.0, "d_initial": 0.1, "density": 0.05, "scope": "per_layer", "refresh": 0, "length": 5}


@cache
def _loaded(name: str) -> CausalModel:
    return load(Model(source="random", arch=FAMILIES[name]), torch.float32, "cpu")


def model_of(name: str) -> CausalModel:
    """Return a model of the family with a module of its own."""
    model = copy.copy(_loaded(name))
    model.module = copy.deepcopy(model.module)
    return model


def rows(lengths: list[int]) -> list[list[int]]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(3, 4000, (length,), generator=generator).tolist() for length in lengths]


def padded(texts: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    ids = torch.zeros(len(texts), max(map(len, texts)), dtype=torch.long)
    mask = torch.zeros_like(ids)
    for n, text in enumerate(texts):
        ids[n, : len(text)], mask[n, : len(text)] = torch.tensor(text), 1
    return ids, mask


def definition(name: str) -> Space:
    """Return a space with those of OPTIONS that it has."""
    member = registry.member("space", name)
    made = member(**{option.name: OPTIONS[option.name] for option in options(member) if option.name in OPTIONS})
    assert isinstance(made, Space)
    return made


def install(name: str, model: CausalModel) -> Any:
    return definition(name).install(model.module, list(model.target_modules(["all"])), 0)


def nudge(space: Any) -> None:
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for param in space.params.values():
            param += 0.1 * torch.randn(param.shape, generator=generator)


def digest(module: torch.nn.Module) -> str:
    state = sorted(module.state_dict().items())
    return hashlib.sha256(b"".join(name.encode() + t.numpy().tobytes() for name, t in state)).hexdigest()


def whole(model: Any, ids: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
    with torch.inference_mode():
        logits: torch.Tensor = model(input_ids=ids, attention_mask=mask).logits
        return logits


def parts(model: CausalModel, ids: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
    with torch.inference_mode():
        return model.head(model.hidden(ids, mask))


# --- shapes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FAMILIES)
def test_the_shape_is_that_of_the_module(name: str) -> None:
    model, arch = model_of(name), describe(FAMILIES[name])
    module: Any = model.module
    assert arch.parameters == sum(p.numel() for p in module.parameters())
    assert arch.vocabulary == module.get_input_embeddings().num_embeddings
    assert arch.tied == (module.get_output_embeddings().weight is module.get_input_embeddings().weight)
    assert arch.masked == (name in MASKED)
    blocks = module.get_submodule(arch.blocks)
    assert arch.layers == len(blocks) == 2
    found = {n: features(layer) for n, layer in blocks.named_modules() if is_projection(layer)}
    assert found == {f"{i}.{path}": arch.linears[r] for i in range(2) for r, path in arch.projections.items()}
    assert (arch.width, arch.heads, arch.heads * arch.head_width) == (32, 4, 32)
    assert list(model.target_modules(["all"])) == [n for n, _ in module.named_modules() if n.startswith(arch.blocks)
                                                   and n.removeprefix(arch.blocks + ".") in found]  # fmt: skip


@pytest.mark.parametrize("name", names())
def test_a_family_of_its_own_says_what_the_generic_one_reads_off_the_module(name: str) -> None:
    from zo_sweeps.models import generic

    assert name in FAMILIES, f"add a tiny configuration of {name!r} to FAMILIES above"
    config = {**FAMILIES[name], "model_type": name}
    assert describe(config) == generic.describe(config)


def test_roles_are_found_where_several_are_multiplied_at_once() -> None:
    assert set(describe(FAMILIES["phi3"]).linears) == {"qkv", "o", "gate_up", "down"}
    assert describe(FAMILIES["phi3"]).linears["qkv"] == (32 + 2 * 16, 32)
    assert describe(FAMILIES["gpt2"]).linears == {"qkv": (96, 32), "o": (32, 32), "up": (128, 32), "down": (32, 128)}
    assert describe(FAMILIES["falcon"]).kv_heads == 1


@pytest.mark.parametrize(
    ("name", "positions"), [("gpt2", 64), ("bert", 64), ("roberta", 63), ("xlm-roberta", 63), ("bloom", 2**31 - 1)]
)
def test_positions_are_counted_as_the_model_counts_them(name: str, positions: int) -> None:
    assert describe(FAMILIES[name]).positions == positions
    longest = torch.full((1, min(positions, 100)), 7)
    assert parts(model_of(name), longest).isfinite().all()


@pytest.mark.parametrize("name", FAMILIES)
def test_memory_is_estimated(name: str) -> None:
    arch = describe(FAMILIES[name])
    for space in ("full", "lora", "outliers", *([] if arch.no_prefix else ["prefix"])):
        made = definition(space)
        for kind in (ZerothOrder(), FirstOrder()):
            batches = Batches(32, ForwardRows(4 * 32, 4))
            parts = memory_by_part(arch, batches, kind, FP32(), made, SGD(), trainable=made.trainable(arch))
            peak = sum(parts.values())
            assert math.isfinite(peak)
            assert peak > 4 * arch.parameters


# --- targets ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FAMILIES)
def test_a_target_is_a_role_or_the_model_s_own_name(name: str) -> None:
    model = model_of(name)
    for role, path in model.arch.projections.items():
        assert list(model.target_modules([role])) == [f"{model.arch.blocks}.{i}.{path}" for i in range(2)]
        assert list(model.target_modules([path])) == list(model.target_modules([role]))


@pytest.mark.parametrize("name", FAMILIES)
def test_every_space_of_layers_adapts_all_projections_of_a_block_by_default(name: str) -> None:
    arch = describe(FAMILIES[name])
    spaces = [one() for one in registry.members("space").values() if issubclass(one, LayerSpace)]
    assert {space.name for space in spaces} >= {*FACTORS, "outliers", "random_subset", "sensitive"}
    assert all(arch.roles(space.layers) == tuple(arch.linears) for space in spaces)


def test_roles_of_one_matrix_are_that_matrix_if_all_of_them_are_targets() -> None:
    gpt2 = describe(FAMILIES["gpt2"])
    assert gpt2.roles(["q", "k", "v", "o"]) == gpt2.roles(["o", "qkv"]) == ("qkv", "o")
    assert gpt2.entries(["q", "k", "v"]) == gpt2.entries(["qkv"])
    for some in (["q"], ["q", "v"]):
        with pytest.raises(UserError, match=r"'q' has none of its own in space.targets; write qkv"):
            gpt2.roles(some)
    llama = describe(FAMILIES["llama"])
    assert llama.roles(["q", "k", "v"]) == ("q", "k", "v")


def test_an_end_that_several_projections_share_names_them_all() -> None:
    assert describe(FAMILIES["gpt2"]).roles(["c_proj"]) == ("o", "down")
    assert describe(FAMILIES["bert"]).roles(["output.dense"]) == ("down",)


def test_a_target_that_matches_no_layer_is_refused_with_the_choices() -> None:
    with pytest.raises(UserError, match=r"unknown target 'gate' in space.targets; choose from: all, .*c_attn.*qkv"):
        model_of("gpt2").target_modules(["gate"])
    with pytest.raises(UserError, match="no layer is named"):
        model_of("gpt2").target_modules([])


# --- logits, packed rows, prefixes -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FAMILIES)
def test_hidden_then_head_are_the_logits_of_the_model(name: str) -> None:
    model = model_of(name)
    texts = rows([20, 9, 3])
    ids, mask = padded(texts)
    got = parts(model, ids, mask)
    for n, text in enumerate(texts):
        expected = whole(model.module, torch.tensor([text]))[0]
        assert expected.std() > 0.1
        torch.testing.assert_close(got[n, : len(text)], expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(parts(model, ids[:1])[0, 5], whole(model.module, ids[:1])[0, 5], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", FAMILIES)
def test_whether_texts_can_share_a_row_is_said_with_the_reason(name: str) -> None:
    reason = describe(FAMILIES[name]).no_packing
    assert (APART[name] in reason) if name in APART else reason == ""


@pytest.mark.parametrize("name", CAUSAL)
def test_texts_in_one_row_are_read_as_if_each_stood_alone(name: str) -> None:
    model, texts = model_of(name), rows([17, 9, 1, 20])
    ids = torch.tensor([[*texts[0], *texts[1], *texts[2], 0], [*texts[3], *[0] * 8]])
    positions = torch.tensor([[*range(17), *range(9), 0, 0], [*range(20), *[0] * 8]])
    mask = (torch.arange(28) < torch.tensor([[27], [20]])).long()
    with torch.inference_mode():
        packed = model.hidden(ids, mask, positions)
        found = (packed[0, :17], packed[0, 17:26], packed[0, 26:27], packed[1, :20])
        for part, text in zip(found, texts, strict=True):
            alone = model.hidden(torch.tensor([text]))[0]
            torch.testing.assert_close(part, alone, atol=1e-5, rtol=1e-4)
        # texts[0], and two that go on from its first 5 tokens, before another text
        shared = torch.tensor([[*texts[0], *texts[1][:3], *texts[3][:4], *texts[2]]])
        found = model.hidden(shared, None, torch.tensor([[*range(17), *range(5, 8), *range(5, 9), 0]]))[0]
        whole = [texts[0], [*texts[0][:5], *texts[1][:3]], [*texts[0][:5], *texts[3][:4]], texts[2]]
        for start, kept, text in zip((0, 17, 20, 24), (0, 5, 5, 0), whole, strict=True):
            alone = model.hidden(torch.tensor([text]))[0, kept:]
            torch.testing.assert_close(found[start : start + len(alone)], alone, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", CAUSAL)
@pytest.mark.parametrize("space_name", ["lora_fa", "prefix"])
def test_a_packed_row_keeps_the_points_of_a_space_apart(name: str, space_name: str) -> None:
    model, texts = model_of(name), rows([11, 6, 7])
    space = install(space_name, model)
    generator = torch.Generator().manual_seed(1)
    values = {n: p + 0.3 * torch.randn(2, *p.shape, generator=generator) for n, p in space.params.items()}
    ids = torch.tensor([[*texts[0], *texts[1]], [*texts[2], *[0] * 10]])
    positions = torch.tensor([[*range(11), *range(6)], [*range(7), *[0] * 10]])
    mask = (torch.arange(17) < torch.tensor([[17], [7]])).long()
    with torch.inference_mode():
        space.hold(values)
        both = model.hidden(ids.repeat(2, 1), mask.repeat(2, 1), positions.repeat(2, 1))
        for point in range(2):
            space.hold({n: v[point : point + 1] for n, v in values.items()})
            for row, start, text in ((0, 0, texts[0]), (0, 11, texts[1]), (1, 0, texts[2])):
                got = both[2 * point + row, start : start + len(text)]
                torch.testing.assert_close(got, model.hidden(torch.tensor([text]))[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", CAUSAL)
def test_a_prefix_is_what_peft_makes_of_it(name: str, tmp_path: Path) -> None:
    assert describe(FAMILIES[name]).no_prefix == ""
    model, (ids, mask) = model_of(name), padded(rows([14, 9]))
    space = install("prefix", model)
    nudge(space)
    expected = definition("prefix").trainable(model.arch)
    assert sum(p.numel() for p in space.params.values()) == expected
    ours = parts(model, ids, mask)
    adapters.save(space, definition("prefix"), tmp_path, module=model.module)
    from peft import PeftModel  # all processes of the tests import this file

    theirs = PeftModel.from_pretrained(model_of(name).module, str(tmp_path)).eval()
    torch.testing.assert_close(ours[mask.bool()], whole(theirs, ids, mask)[mask.bool()], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", MASKED)
def test_a_masked_model_has_no_prefix_and_says_why(name: str) -> None:
    assert "causal model" in describe(FAMILIES[name]).no_prefix


@pytest.mark.parametrize("name", CAUSAL)
def test_what_is_generated_is_what_transformers_generates(name: str) -> None:
    model, prompts = model_of(name), rows([9, 4, 4, 13])
    ids, mask = (part.flip(1) for part in padded([prompt[::-1] for prompt in prompts]))
    config = GenerationConfig(max_new_tokens=12, do_sample=False, eos_token_id=None, pad_token_id=0)
    module: Any = model.module
    expected = module.generate(input_ids=ids, attention_mask=mask, generation_config=config)[:, 13:].tolist()
    assert model._continued(prompts, 12) == expected
    stop = expected[0][5]
    until = [row[: row.index(stop)] if stop in row else row for row in expected]
    assert model._continued(prompts, 12, [stop]) == until


@pytest.mark.parametrize("name", ["phi3", "llama", "mistral", "qwen2"])
def test_a_row_may_be_as_long_as_its_numbers_do_not_depend_on_its_neighbours(name: str) -> None:
    """Longrope has other factors from there on, for all rows of a forward; scaling of other types has no such place."""
    scaling = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 4, "long_factor": [4.0] * 4}
    scaling |= {"original_max_position_embeddings": 16, "factor": 4.0}
    config = {**FAMILIES[name], "rope_parameters": scaling, "original_max_position_embeddings": 16}
    model = load(Model(source="random", arch=config), torch.float32, "cpu")
    assert model.max_positions == model.arch.positions == describe(config).positions == 16
    texts = rows([9, model.max_positions])
    alone, both = parts(model, *padded(texts[:1])), parts(model, *padded(texts))
    torch.testing.assert_close(both[0, :9], alone[0], rtol=1e-4, atol=1e-4)
    dynamic = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 16}
    if name in names():  # the others cannot be served
        assert describe({**FAMILIES[name], "rope_parameters": dynamic}).positions == 64


# --- spaces ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "space_name"), CELLS)
def test_a_space_moves_the_model_and_leaves_it_as_it_was(name: str, space_name: str) -> None:
    model, (ids, mask) = model_of(name), padded(rows([12, 7]))
    before, plain = digest(model.module), parts(model, ids, mask)
    space = install(space_name, model)
    torch.testing.assert_close(parts(model, ids, mask), plain, rtol=1e-4, atol=1e-4)
    assert sum(p.numel() for p in space.params.values()) == definition(space_name).trainable(model.arch)
    nudge(space)
    assert (parts(model, ids, mask) - plain).abs().max() > 0.01
    space.uninstall()
    assert digest(model.module) == before
    assert torch.equal(parts(model, ids, mask), plain)


@pytest.mark.parametrize(("name", "space_name"), [cell for cell in CELLS if cell[0] not in ONE_POINT])
def test_points_in_one_forward_are_the_points_one_after_the_other(name: str, space_name: str) -> None:
    model, (ids, mask) = model_of(name), padded(rows([12, 7]))
    space = install(space_name, model)
    generator = torch.Generator().manual_seed(1)
    values = {n: p + 0.1 * torch.randn(2, *p.shape, generator=generator) for n, p in space.params.items()}
    space.hold(values)
    both = parts(model, ids.repeat(2, 1), mask.repeat(2, 1)).view(2, 2, 12, -1)
    for point in range(2):
        space.hold({n: v[point : point + 1] for n, v in values.items()})
        one = parts(model, ids, mask)
        torch.testing.assert_close(both[point][mask.bool()], one[mask.bool()], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", FAMILIES)
def test_whether_one_forward_can_hold_several_points_is_said_with_the_reason(name: str) -> None:
    assert ("relative positions" in describe(FAMILIES[name]).no_points) == (name in ONE_POINT)


@pytest.mark.parametrize(("name", "space_name"), [cell for cell in CELLS if cell[1] in FACTORS])
def test_a_saved_space_is_loaded_by_peft_with_the_same_logits(name: str, space_name: str, tmp_path: Path) -> None:
    model, (ids, mask) = model_of(name), padded(rows([12, 7]))
    space = install(space_name, model)
    nudge(space)
    adapters.save(space, definition(space_name), tmp_path, module=model.module)
    task = json.loads((tmp_path / "adapter_config.json").read_text())["task_type"]
    assert task == (None if name in MASKED else "CAUSAL_LM")
    from peft import PeftModel  # all processes of the tests import this file

    theirs = PeftModel.from_pretrained(model_of(name).module, str(tmp_path)).eval()
    got, expected = parts(model, ids, mask), whole(theirs, ids, mask)
    torch.testing.assert_close(got[mask.bool()], expected[mask.bool()], rtol=1e-3, atol=1e-3)


# --- checkpoints -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FAMILIES)
def test_a_saved_checkpoint_is_a_model_to_plan_with_and_loads(name: str, tmp_path: Path) -> None:
    model = model_of(name)
    model.module.save_pretrained(tmp_path)
    model.tokenizer.save_pretrained(tmp_path)
    saved = Model(source="local", path=str(tmp_path))
    seen = status(saved)
    assert seen.available, seen.why
    assert replace(seen.arch, positions=0) == replace(model.arch, positions=0)
    ids, mask = padded(rows([12, 7]))
    again = load(saved, torch.float32, "cpu")
    assert torch.equal(parts(again, ids, mask), parts(model, ids, mask))
    assert (again.front, again.pad_id, again.max_positions) == (model.front, model.pad_id, model.max_positions)


NOT_SERVED = [
    ({"model_type": "mamba", "vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2}, "carry a state from token"),
    ({"model_type": "t5"}, "neither a causal nor a masked language model"),
    ({"model_type": "bart", "d_model": 32, "encoder_layers": 1, "decoder_layers": 1}, "an encoder and a decoder"),
    ({"model_type": "albert", **SIZES, "embedding_size": 16}, "lists 1 layers, and its configuration counts 2"),
    ({"model_type": "gemma3"}, "it reads more than text"),
    ({"model_type": "gpt2", "n_embd": 30, "n_head": 4}, "invalid configuration of a 'gpt2' model"),
    ({"model_type": "qwen22"}, "unknown model family 'qwen22' in model.arch; did you mean 'qwen2'"),
    ({"hidden_size": 3}, "names no model_type"),
]


@pytest.mark.parametrize(("config", "reason"), NOT_SERVED, ids=[str(c.get("model_type")) for c, _ in NOT_SERVED])
def test_a_model_that_cannot_be_served_says_why_in_one_line(config: dict[str, Any], reason: str) -> None:
    with pytest.raises(UserError, match=reason) as caught:
        describe(config)
    assert "\n" not in str(caught.value)
    seen = status(Model(source="random", arch=config))
    assert (seen.available, seen.arch) == (False, None)
    assert reason in seen.why


@pytest.mark.parametrize("name", FAMILIES)
def test_whether_the_full_space_needs_points_in_place_is_said_with_the_reason(name: str) -> None:
    assert ("rel_embeddings.weight is read" in describe(FAMILIES[name]).no_full) == (name in ONE_POINT)


def test_gradients_of_a_text_need_a_causal_model() -> None:
    masked = status(Model(source="random", arch=FAMILIES["roberta"], seed=0))
    words = ("model=random_roberta", "prompt=mezo_medium", "update.lr=1e-3")
    for given in (["method=sensitive", "space.source=task"], ["method=mezo"]):
        check_model(TrialConfig.of(make(*words, *given).config), masked)
    for given in (["method=sensitive", "space.source=text"], ["method=mezo", "precision=squeezellm", "space=lora_fa"]):
        with pytest.raises(UserError, match=r"gradients of a text \(\w+\.text\) are those of a causal model"):
            make(*words, *given)


def test_an_update_that_compares_steps_needs_a_model_that_is_evaluated_beside_its_weights() -> None:
    words = ("update=conservative", "update.lr=1e-3", "estimator.q=1", "evaluation.restore=in_place")
    config = TrialConfig.of(make("method=mezo", *words).config)
    seen = status(config.model)
    check_model(config, seen)
    assert seen.arch is not None
    only_in_place = replace(seen, arch=replace(seen.arch, no_full="its table is read elsewhere"))
    with pytest.raises(
        UserError, match="is not evaluated beside its weights: its table is read elsewhere; use another update"
    ):
        check_model(config, only_in_place)
    check_model(replace(config, update=SGD()), only_in_place)


@pytest.mark.parametrize("name", [name for name in FAMILIES if name not in ONE_POINT])
def test_a_point_of_the_full_space_is_the_model_with_its_weights_moved_there(name: str) -> None:
    model, (ids, mask) = model_of(name), padded(rows([12, 7]))
    space, point = FullModel(model.module), Point(NoiseKey(3, 1, 0), 0.02)
    with torch.inference_mode(), out_of_place(model.module, space, Gaussian(), [point]):
        got = parts(model, ids, mask)
    with torch.no_grad():
        for n, param in space.params.items():
            param += point.scale * Gaussian().sample(point.key, n, param.shape, param.device)
    torch.testing.assert_close(got, parts(model, ids, mask), rtol=1e-3, atol=1e-3)
