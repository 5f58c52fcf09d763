"""LoRA, LoRA-FA, DoRA, VeRA and prefix: the outputs of the peft library's modules, and files that it loads."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM, GenerationConfig, MistralConfig, OPTConfig

from tests.engine import contract
from tests.engine.conftest import TinyModel, targets, tiny_model
from tests.engine.spaces_common import LINEAR, definition, digest, install, nudge
from zo_sweeps.core.errors import UserError
from zo_sweeps.models import adapters

pytestmark = [pytest.mark.unit, pytest.mark.filterwarnings("ignore")]
WITH_FORMAT = [name for name in contract.names("space") if definition(name).adapter]


SMALL = {"vocab_size": 97, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
CONFIGS_OF = {
    "opt": OPTConfig(
        **SMALL, ffn_dim=48, max_position_embeddings=64, word_embed_proj_dim=32, init_std=0.2, dropout=0.0
    ),
    "mistral": MistralConfig(
        **SMALL, intermediate_size=48, num_key_value_heads=2, sliding_window=64, initializer_range=0.2
    ),
}
FAMILIES = ("llama", *CONFIGS_OF)


def tiny(family: str) -> nn.Module:
    if family == "llama":
        return tiny_model().module
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return AutoModelForCausalLM.from_config(CONFIGS_OF[family]).eval().requires_grad_(False)


def peft() -> Any:
    """The library, imported where it is needed: all processes of the tests import this file, and one runs it."""
    return importlib.import_module("peft")


def padded() -> tuple[torch.Tensor, torch.Tensor]:
    """Two rows, the second padded on the right."""
    ids = torch.randint(1, 97, (2, 9), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[1, 6:] = 0
    return ids, mask


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", WITH_FORMAT)
def test_a_saved_space_is_loaded_by_peft_with_the_same_logits(name: str, family: str, tmp_path: Path) -> None:
    module = tiny(family)
    model = TinyModel(module)
    space = install(name, model)
    nudge(space)
    ids, mask = padded()
    with torch.inference_mode():
        ours = module(input_ids=ids, attention_mask=mask).logits
        causal = model.head(model.hidden(ids, mask))
    torch.testing.assert_close(causal[mask.bool()], ours[mask.bool()], rtol=1e-5, atol=1e-5)  # padding is never seen
    adapters.save(space, definition(name), tmp_path, module=module)
    loaded = peft().PeftModel.from_pretrained(tiny(family), str(tmp_path)).eval()
    with torch.inference_mode():
        theirs = loaded(input_ids=ids, attention_mask=mask).logits
    torch.testing.assert_close(ours[mask.bool()], theirs[mask.bool()], rtol=2e-5, atol=2e-5)
    assert loaded.peft_config["default"].peft_type.value == {"vera": "VERA", "prefix": "PREFIX_TUNING"}.get(
        name, "LORA"
    )
    assert not list(tmp_path.glob("*.part"))


def config_of(name: str, names: list[str]) -> Any:
    if name == "vera":
        return peft().VeraConfig(r=4, target_modules=names, init_weights=False)
    if name == "prefix":
        return peft().PrefixTuningConfig(num_virtual_tokens=5, task_type="CAUSAL_LM")
    dora = name == "dora"
    return peft().LoraConfig(r=4, lora_alpha=8, target_modules=names, init_lora_weights=False, use_dora=dora)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", WITH_FORMAT)
def test_an_adapter_that_peft_saved_gives_its_logits_here(name: str, family: str, tmp_path: Path) -> None:
    module = tiny(family)
    names = targets(TinyModel(module), LINEAR)
    theirs = peft().get_peft_model(tiny(family), config_of(name, sorted({n.rpartition(".")[2] for n in names}))).eval()
    with torch.no_grad():
        for param in theirs.parameters():
            if param.requires_grad:
                param += 0.05 * torch.randn(param.shape, generator=torch.Generator().manual_seed(1))
    theirs.save_pretrained(str(tmp_path))
    space = install(name, TinyModel(module), seed=7)
    adapters.load(space, definition(name), tmp_path)
    ids, mask = padded()
    with torch.inference_mode():
        torch.testing.assert_close(
            module(input_ids=ids, attention_mask=mask).logits[mask.bool()],
            theirs(input_ids=ids, attention_mask=mask).logits[mask.bool()],
            rtol=2e-5,
            atol=2e-5,
        )


@pytest.mark.parametrize("name", WITH_FORMAT)
def test_what_was_saved_is_what_is_loaded(name: str, tmp_path: Path) -> None:
    model = tiny_model()
    space = install(name, model)
    nudge(space)
    options = definition(name)
    adapters.save(space, options, tmp_path, module=model.module)
    other = install(name, tiny_model(), seed=9)
    adapters.load(other, options, tmp_path)
    assert digest(other.params.values()) == digest(space.params.values())


def test_an_adapter_of_another_rank_or_kind_is_refused(tmp_path: Path) -> None:
    model = tiny_model()
    adapters.save(install("lora", model), definition("lora"), tmp_path, module=model.module)
    with pytest.raises(UserError, match=r"lora_A.weight has shape \[4, .* where the space has \[2,"):
        adapters.load(install("lora", tiny_model(), rank=2), definition("lora"), tmp_path)
    with pytest.raises(UserError, match="the adapter and space 'vera' differ in"):
        adapters.load(install("vera", tiny_model()), definition("vera"), tmp_path)
    with pytest.raises(UserError, match=r"not an adapter: no adapter_model\.safetensors"):
        adapters.load(install("vera", tiny_model()), definition("vera"), tmp_path / "none")
    with pytest.raises(UserError, match="unknown space with a peft format 'full'"):
        adapters.save(install("full", tiny_model()), definition("full"), tmp_path, module=tiny_model().module)


@pytest.mark.parametrize("family", FAMILIES)
def test_generation_sees_the_prefix_as_a_forward_of_the_whole_text_does(family: str) -> None:
    module = tiny(family)
    model = TinyModel(module)
    nudge(install("prefix", model), 0.3)
    prompts = [[5, 8, 13, 21, 34], [3, 1, 4]]
    width = max(map(len, prompts))
    ids = torch.tensor([[0] * (width - len(p)) + p for p in prompts])
    mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts])
    config = GenerationConfig(max_new_tokens=6, do_sample=False, pad_token_id=0, eos_token_id=None)
    with torch.inference_mode():
        output = module.generate(input_ids=ids, attention_mask=mask, generation_config=config)[:, width:]
        for prompt, found in zip(prompts, output.tolist(), strict=True):
            row = list(prompt)
            for _ in range(6):
                row.append(int(model.head(model.hidden(torch.tensor([row]), None))[0, -1].argmax()))
            assert found == row[len(prompt) :]


def test_a_prefix_starts_as_what_random_tokens_leave_in_the_cache() -> None:
    """A text after n real tokens and a text after the prefix made of them are the same."""
    model = tiny_model()
    seen: list[torch.Tensor] = []
    handle = model.module.get_decoder().register_forward_pre_hook(
        lambda m, args, kwargs: seen.append(kwargs["input_ids"]), with_kwargs=True
    )
    space = install("prefix", model)
    handle.remove()
    (tokens,) = seen
    assert tokens.shape == (1, 5)
    assert len(set(tokens.flatten().tolist())) > 1
    ids = torch.randint(1, 97, (1, 7), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        after_prefix = model.module(input_ids=ids).logits
        space.uninstall()
        after_tokens = model.module(input_ids=torch.cat([tokens, ids], dim=1)).logits[:, 5:]
    torch.testing.assert_close(after_prefix, after_tokens, rtol=1e-5, atol=1e-5)
    assert {tuple(p.shape) for p in space.params.values()} == {(2, 5, 8)}  # key heads, tokens, width


def test_vera_shares_one_frozen_pair() -> None:
    space = install("vera", tiny_model())
    pairs = {(layer.A.data_ptr(), layer.B.data_ptr()) for layer in space.layers.values()}
    assert len(pairs) == 1
    assert {name.rpartition(".")[2] for name in space.params} == {"d", "b"}


def test_dora_of_a_row_of_zeros_gives_zero() -> None:
    model = tiny_model()
    model.module.model.layers[0].self_attn.q_proj.weight[0] = 0.0
    layer = install("dora", model).layers["model.layers.0.self_attn.q_proj"]
    y = layer(torch.randn(3, 4, 32, generator=torch.Generator().manual_seed(0)))
    assert not y[..., 0].any()
    assert torch.isfinite(y).all()


def test_dora_is_its_equation() -> None:
    model = tiny_model()
    space = install("dora", model)
    nudge(space)
    x = torch.randn(3, 4, 32, generator=torch.Generator().manual_seed(0))
    layer = space.layers["model.layers.0.self_attn.q_proj"]
    V = (layer.base.weight + 2.0 * layer.B @ layer.A).double()
    W = layer.m.double().unsqueeze(1) * V / V.norm(dim=1, keepdim=True)
    torch.testing.assert_close(layer(x).double(), x.double() @ W.T, rtol=1e-5, atol=1e-5)
