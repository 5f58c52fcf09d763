"""Loading, hidden states and generation: what must not depend on padding, on neighbours, or on the source."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from tests.models.common import CONF, TINY, local, make, model_yaml, random_model
from zo_sweeps.core.errors import UserError
from zo_sweeps.engine.noise import Sampler
from zo_sweeps.engine.spaces.prefix import PrefixTuning
from zo_sweeps.models.checkpoint import TokenizerFile, front_of
from zo_sweeps.models.identity import DEMO, status
from zo_sweeps.models.load import load
from zo_sweeps.tasks.encode import token_ids

pytestmark = pytest.mark.unit

DEMO_MODEL = make(source="demo")


@pytest.fixture(scope="module")
def demo():
    return load(DEMO_MODEL, torch.float32, "cpu")


@pytest.fixture(scope="module", params=sorted(TINY))
def tiny(request):
    return load(random_model(request.param), torch.float32, "cpu")


def rows(model, lengths):
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(3, 4000, (n,), generator=generator).tolist() for n in lengths]


def right_padded(model, sequences, width=None):
    width = width or max(map(len, sequences))
    ids = torch.full((len(sequences), width), model.pad_id)
    mask = torch.zeros_like(ids)
    for n, row in enumerate(sequences):
        ids[n, : len(row)], mask[n, : len(row)] = torch.tensor(row), 1
    return ids, mask


def test_a_model_is_frozen_in_evaluation_mode_and_in_the_dtype_asked_for():
    for dtype in (torch.float32, torch.bfloat16):
        model = load(DEMO_MODEL, dtype, "cpu")
        assert not model.module.training
        assert {p.dtype for p in model.module.parameters()} == {dtype}
        assert not any(p.requires_grad for p in model.module.parameters())
        assert model.module.config._attn_implementation == "sdpa"


def test_hidden_states_do_not_depend_on_padding_or_on_the_batch(tiny):
    sequences = rows(tiny, [5, 17, 32, 9])
    ids, mask = right_padded(tiny, sequences, width=40)
    with torch.inference_mode():
        batched = tiny.hidden(ids, mask)
        masked = tiny.module.base_model(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state
        for n, row in enumerate(sequences):
            alone = tiny.hidden(torch.tensor([row]))[0]
            torch.testing.assert_close(batched[n, : len(row)], alone, atol=2e-6, rtol=1e-5)
            torch.testing.assert_close(batched[n, : len(row)], masked[n, : len(row)], atol=2e-6, rtol=1e-5)


def assert_packed_as_alone(model):
    sequences = rows(model, [17, 9, 20])
    ids = torch.tensor([[*sequences[0], *sequences[1], 0], [*sequences[2], *[0] * 7]])
    positions = torch.tensor([[*range(17), *range(9), 0], [*range(20), *[0] * 7]])
    with torch.inference_mode():
        packed = model.hidden(ids, (torch.arange(27) < torch.tensor([[26], [20]])).long(), positions)
        parts = (packed[0, :17], packed[0, 17:26], packed[1, :20])
        for part, row in zip(parts, sequences, strict=True):
            torch.testing.assert_close(part, model.hidden(torch.tensor([row]))[0], atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("options", [{}, {"sliding_window": 8}], ids=["llama", "mistral"])
def test_without_sdpa_texts_in_one_row_are_read_as_if_each_stood_alone(options):
    """With it: test_families.py."""
    arch = {"attn_implementation": "eager", "initializer_range": 0.2, **options}
    model = load(random_model("mistral" if options else "llama", **arch), torch.float32, "cpu")
    assert model.module.config._attn_implementation == "eager"
    assert_packed_as_alone(model)


@pytest.mark.parametrize("length", [3, 40])  # 27 tokens and a prefix: within the window, and beyond it
def test_a_prefix_that_leaves_a_packed_row_no_room_in_the_window_is_read_as_before_each_text_alone(length):
    model = load(random_model("mistral", sliding_window=55, initializer_range=0.2), torch.float32, "cpu")
    space = PrefixTuning(length=length).install(model.module, [], 0)
    assert_packed_as_alone(model)
    space.uninstall()
    assert_packed_as_alone(model)


def test_what_stands_in_the_padding_is_never_seen(tiny):
    (row,) = rows(tiny, [6])
    ids, mask = right_padded(tiny, [row], width=12)
    other = ids.clone()
    other[:, 6:] = 77
    with torch.inference_mode():
        assert torch.equal(tiny.hidden(ids, mask)[:, :6], tiny.hidden(other, mask)[:, :6])


def test_padding_on_the_left_is_refused(tiny):
    ids = torch.tensor([[0, 0, 5, 6]])
    with pytest.raises(RuntimeError, match="padded on the right"):
        tiny.hidden(ids, torch.tensor([[0, 0, 1, 1]]))


def test_attention_makes_no_mask(demo, monkeypatch):
    seen = []
    real = torch.nn.functional.scaled_dot_product_attention

    def spy(*args, attn_mask=None, is_causal=False, **kwargs):
        seen.append((attn_mask, is_causal))
        return real(*args, attn_mask=attn_mask, is_causal=is_causal, **kwargs)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", spy)
    ids, mask = right_padded(demo, rows(demo, [4, 9]))
    demo.hidden(ids, mask)
    assert seen == [(None, True)] * 6


def test_a_batch_generates_what_each_prompt_generates_alone(demo):
    texts = ["This movie is", "I", "The plot of the film is bad and the actors are", "What a great film. It was"]
    prompts = [[*demo.front, *demo.tokenizer.encode(text, add_special_tokens=False)] for text in texts]
    together = demo.generate(prompts, 12, batch_size=4)
    assert together == demo.generate(prompts, 12, batch_size=3) == [demo.generate([p], 12)[0] for p in prompts]
    assert all(together)


def test_a_batch_draws_what_each_prompt_draws_alone(demo):
    texts = ["This movie is", "I", "The plot of the film is bad and the actors are", "What a great film. It was"]
    prompts = [demo.prompt(text) for text in texts]
    draw = Sampler(3, 5, 1.0)
    together = demo.generate(prompts, 12, batch_size=3, choose=draw)
    alone = [
        demo.generate([prompt], 12, choose=lambda _, token, logits, row=row: draw([row], token, logits))[0]
        for row, prompt in enumerate(prompts)
    ]
    assert together == alone
    assert together != demo.generate(prompts, 12)
    assert together != demo.generate(prompts, 12, choose=Sampler(3, 6, 1.0))
    same = demo.generate([prompts[0]] * 2, 12, choose=draw)
    assert same[0] != same[1]


def test_generation_is_greedy_and_stops_at_a_stop_token(demo):
    prompt = [*demo.front, *demo.tokenizer.encode("This movie is", add_special_tokens=False)]
    ids = list(prompt)
    with torch.inference_mode():
        for _ in range(8):
            ids.append(int(demo.head(demo.hidden(torch.tensor([ids]))[0, -1:]).argmax()))
    new = ids[len(prompt) :]
    assert demo.generate([prompt], 8) == [demo.tokenizer.decode(new).strip()]
    stop = new[3]
    assert demo.generate([prompt], 8, stop_ids=[stop]) == [demo.tokenizer.decode(new[: new.index(stop)]).strip()]


def test_the_default_stops_are_newline_and_end_of_text(demo):
    assert {demo.tokenizer.decode([i]) for i in demo.stop_ids} == {"\n", "</s>"}


@pytest.mark.parametrize("stop_ids", [None, [2], [77]], ids=["default", "one end", "the other end"])
def test_an_answer_ends_at_any_end_that_the_checkpoint_names(stop_ids, checkpoint):
    folder = checkpoint()
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 77]}))
    model = load(local(folder), torch.float32, "cpu")
    said = [*model.tokenizer.encode(" Paris", add_special_tokens=False), 77, *model.tokenizer.encode(" and")]

    def choose(rows, token, logits):
        return torch.nn.functional.one_hot(torch.tensor([said[token]]), logits.shape[1])

    assert model.generate([[5, 6, 7]], len(said), stop_ids, choose=choose) == ["Paris"]
    assert len(model.generate([[5, 6, 7]], len(said), [], choose=choose)[0]) > len("Paris")


def test_random_weights_end_a_text_as_the_tokenizer_does_that_they_are_used_with():
    assert load(random_model("llama", eos_token_id=77), torch.float32, "cpu").ends == {2}


def test_the_checkpoints_own_sampling_settings_are_not_used(checkpoint):
    folder = checkpoint()
    (folder / "generation_config.json").write_text(json.dumps({"do_sample": True, "temperature": 9.0, "top_k": 0}))
    model = load(local(folder), torch.float32, "cpu")
    prompt = rows(model, [5])
    assert len({tuple(model.generate(prompt, 10)) for _ in range(4)}) == 1


def test_a_prompt_that_leaves_no_room_is_an_error(tiny):
    with pytest.raises(ValueError, match="60 prompt and 10 new tokens exceed 64 positions"):
        tiny.generate(rows(tiny, [60]), 10)


def test_targets_by_role_and_by_name_in_every_layer(demo):
    by_role, by_name = demo.target_modules(["v", "q"]), demo.target_modules(["q_proj", "v_proj"])
    assert list(by_role) == list(by_name)
    assert list(by_role)[:2] == ["model.layers.0.self_attn.q_proj", "model.layers.0.self_attn.v_proj"]
    assert len(by_role) == 2 * 6
    assert all(demo.module.get_submodule(name) is layer for name, layer in by_role.items())


def test_random_weights_are_the_same_for_the_same_seed_and_leave_the_global_generator_alone():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    first = load(random_model("llama"), torch.float32, "cpu").module.state_dict()
    assert torch.equal(torch.rand(3), expected)
    again = load(random_model("llama"), torch.float32, "cpu").module.state_dict()
    other = load(replace(random_model("llama"), seed=1), torch.float32, "cpu").module.state_dict()
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["model.embed_tokens.weight"], other["model.embed_tokens.weight"])


def test_a_vocabulary_smaller_than_the_demo_tokenizers_is_an_error():
    with pytest.raises(UserError, match=r"4096 tokens in model\.arch\.vocab_size; set it to 4096 or more"):
        load(random_model("llama", vocab_size=100), torch.float32, "cpu")


def test_weights_that_lack_a_tensor_are_refused_not_filled_with_random_numbers(checkpoint):
    folder = checkpoint()
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(
        UserError, match=r"lack 1 tensors of the architecture \(model\.layers\.1\.mlp\.up_proj\.weight\)"
    ):
        load(local(folder), torch.float32, "cpu")


def edited(checkpoint, change):
    """A saved Llama whose weights `change` has edited."""
    folder = checkpoint()
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return local(folder)


def test_a_tensor_of_the_wrong_shape_is_named_with_both_shapes(checkpoint):
    model = edited(checkpoint, lambda weights: weights.update({"model.norm.weight": torch.ones(7)}))
    with pytest.raises(UserError, match=r"model\.norm\.weight has shape \[7\] in the .* \[32\] by config") as caught:
        load(model, torch.float32, "cpu")
    assert "\n" not in str(caught.value)


def test_tensors_without_a_place_in_the_architecture_are_refused(checkpoint):
    model = edited(checkpoint, lambda weights: weights.update({"model.layers.0.mlp.gate.weight": torch.ones(7)}))
    with pytest.raises(UserError, match=r"hold 1 tensors that .* no place for \(model\.layers\.0\.mlp\.gate\.weight\)"):
        load(model, torch.float32, "cpu")


def test_computed_buffers_and_tied_heads_in_the_weights_are_harmless(checkpoint):
    def change(weights):
        weights["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(4)
        weights["model.embeddings.position_ids"] = torch.arange(7)
        weights["model.pooler.dense.weight"] = torch.ones(7)

    model = edited(checkpoint, change)
    expected = load(random_model("llama"), torch.float32, "cpu").module.state_dict()
    assert all(
        torch.equal(t, expected[name]) for name, t in load(model, torch.float32, "cpu").module.state_dict().items()
    )
    tied = Path(model.path) / "config.json"
    tied.write_text(json.dumps({**json.loads(tied.read_text()), "tie_word_embeddings": True}))
    edited_head = load_file(Path(model.path) / "model.safetensors")
    edited_head["lm_head.weight"] = edited_head["model.embed_tokens.weight"].clone()
    save_file(edited_head, Path(model.path) / "model.safetensors", metadata={"format": "pt"})
    module = load(model, torch.float32, "cpu").module
    assert module.lm_head.weight is module.model.embed_tokens.weight


def test_loading_prints_nothing_and_leaves_the_logging_of_transformers_as_it_was(capfd):
    before = transformers.logging.get_verbosity()
    load(DEMO_MODEL, torch.float32, "cpu")
    assert transformers.logging.get_verbosity() == before
    assert capfd.readouterr() == ("", "")


# --- what starts a text, and what fills it up -----------------------------------------------------------------------


def opt_tokenizer(folder):
    """OPT's own layout: GPT-2 files, `<s>` 0, `<pad>` 1, `</s>` 2, and `</s>` declared as BOS."""
    from tokenizers import pre_tokenizers
    from transformers.models.gpt2.tokenization_gpt2 import GPT2Tokenizer

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: i for i, token in enumerate(["<s>", "<pad>", "</s>", "<unk>", *letters])}
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    settings = {
        "bos_token": "</s>",
        "eos_token": "</s>",
        "unk_token": "</s>",
        "pad_token": "<pad>",
        "add_bos_token": True,
        "tokenizer_class": GPT2Tokenizer.__name__,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "tokenizer.json").unlink()


def test_opt_texts_start_with_s_not_with_the_tokenizers_own_bos(checkpoint):
    folder = checkpoint("opt")
    opt_tokenizer(folder)
    model = load(local(folder), torch.float32, "cpu")
    assert model.tokenizer.bos_token_id == 2
    assert (model.front, model.pad_id, model.eos_id) == ((0,), 1, 2)


def test_llama_without_a_padding_token_pads_with_unk(checkpoint):
    folder = checkpoint()
    tokenizer = json.loads((folder / "tokenizer.json").read_text().replace('"<pad>"', '"<unk>"'))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    settings = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    (folder / "tokenizer_config.json").write_text(
        json.dumps({**settings, "tokenizer_class": "PreTrainedTokenizerFast"})
    )
    model = load(local(folder), torch.float32, "cpu")
    assert model.tokenizer.pad_token_id is None
    assert (model.front, model.pad_id) == ((1,), 0)


def changed_tokenizer(folder, change, **settings):
    """The demo tokenizer in a folder, edited, with none of its special tokens named but those in `settings`."""
    file = folder / "tokenizer.json"
    tokenizer = json.loads(file.read_text())
    change(tokenizer)
    file.write_text(json.dumps(tokenizer))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>", "pad_token": "<pad>", **settings}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def test_a_first_token_that_the_tokenizer_adds_but_does_not_name_is_kept(checkpoint):
    folder = checkpoint()
    changed_tokenizer(folder, lambda tokenizer: None)
    model = load(local(folder), torch.float32, "cpu")
    assert model.tokenizer.bos_token_id is None
    assert model.front == (1,) == front_of(TokenizerFile(folder))
    assert model.prompt("a film") == model.tokenizer("a film")["input_ids"]


def test_a_bos_that_the_tokenizer_names_but_does_not_add_is_not_added(checkpoint):
    folder = checkpoint()
    changed_tokenizer(folder, lambda tokenizer: tokenizer.update(post_processor=None), bos_token="<s>")
    model = load(local(folder), torch.float32, "cpu")
    assert model.front == () == front_of(TokenizerFile(folder))


def one_more(special):
    """Adds a token that the model has no row for."""
    token = {"id": 4096, "content": "<more>", "special": special}
    return lambda tokenizer: tokenizer["added_tokens"].append({**tokenizer["added_tokens"][0], **token})


@pytest.mark.parametrize(("special", "settings"), [(False, {}), (True, {"pad_token": "<more>"})])
def test_a_tokenizer_larger_than_the_embeddings_is_refused(special, settings, checkpoint):
    folder = checkpoint()
    changed_tokenizer(folder, one_more(special), **settings)
    match = r"the tokenizer has 4097 tokens, and the model's embeddings have 4096 rows"
    with pytest.raises(UserError, match=match):
        load(local(folder), torch.float32, "cpu")
    assert re.search(match, status(local(folder)).why)


def test_a_special_token_without_a_row_is_refused_in_a_text_alone(checkpoint):
    """Gemma 3 declares one for images."""
    folder = checkpoint()
    changed_tokenizer(folder, one_more(True))
    seen = status(local(folder))
    assert seen.available, seen.why
    for tokenizer in (seen.tokenizer, load(local(folder), torch.float32, "cpu").tokenizer):
        assert max(token_ids(tokenizer, "a film")) < 4096
        with pytest.raises(UserError, match=r"the token '<more>', which the model has no embedding for in a row of"):
            token_ids(tokenizer, "a <more> film")


@pytest.mark.parametrize("content", ["{", "[]", '{"model": 7}', "[" * 200_000])
def test_an_unreadable_tokenizer_is_one_line_at_the_plan(content, checkpoint):
    folder = checkpoint()
    (folder / "tokenizer.json").write_text(content)
    seen = status(local(folder))
    assert not seen.available
    assert re.search(r"tokenizer.* in .*tokenizer\.json", seen.why)
    assert "\n" not in seen.why


# --- the models of conf/model ---------------------------------------------------------------------------------------

SMALL = {  # narrower and shallower, the rest as in the YAML
    **{
        key: {
            "num_hidden_layers": 2,
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 16,
        }
        for key in ("llama", "mistral", "qwen3", "gemma3_text", "phi3")
    },
    "opt": {
        "num_hidden_layers": 2,
        "hidden_size": 64,
        "word_embed_proj_dim": 64,
        "ffn_dim": 96,
        "num_attention_heads": 4,
    },
    "roberta": {"num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4},
}
KEYS = ["name", "display", "source", "path", "revision", "family", "precision", "arch"]


@pytest.mark.parametrize("name", sorted(path.stem for path in CONF.glob("*.yaml")))
def test_every_model_yaml_can_be_built(name, tmp_path):
    model = model_yaml(name)
    assert model["name"] == name
    assert [key for key in model if key not in ("seed", "wheel")] == KEYS
    if model["source"] == "local":
        model["path"] = str(shutil.copytree(DEMO, tmp_path / "model"))
    elif model["source"] != "demo":
        assert model["arch"]["model_type"] == model["family"]
        model = {**model, "source": "random", "arch": {**model["arch"], **SMALL[model["family"]]}}
    built = load(make(**model), torch.float32, "cpu")
    with torch.inference_mode():
        ids = torch.tensor([[*built.front, 10, 11, 12]])
        assert built.head(built.hidden(ids)[0]).isfinite().all()
