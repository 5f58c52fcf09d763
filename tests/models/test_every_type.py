"""Every causal and masked language model of transformers: served as it computes, or refused for a reason that is true.

A unit run takes a spread of them, `-m long` all.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM, AutoTokenizer
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, MODEL_FOR_MASKED_LM_MAPPING_NAMES

from tests.engine.conftest import Candidate as Answered
from tests.engine.conftest import Example as Text
from tests.models.common import local, make
from tests.models.test_coded import PRECISION, decoded
from tests.models.test_families import padded, rows
from zo_sweeps.core.errors import UserError
from zo_sweeps.engine.batch import collate
from zo_sweeps.engine.evaluate import evaluate
from zo_sweeps.engine.first_order import Layerwise
from zo_sweeps.engine.losses import token_logprobs
from zo_sweeps.engine.losses import tokens as mean_of_tokens
from zo_sweeps.engine.perturbations.gaussian import Gaussian
from zo_sweeps.engine.perturbations.low_rank import LowRank
from zo_sweeps.engine.spaces.full import Full
from zo_sweeps.engine.spaces.lora import LoRA
from zo_sweeps.engine.spaces.prefix import PrefixTuning
from zo_sweeps.engine.train import of_batch
from zo_sweeps.methods.evaluation import Mode
from zo_sweeps.methods.parts import Model
from zo_sweeps.methods.perturbation import Perturbation
from zo_sweeps.methods.points import NoiseKey, Point
from zo_sweeps.methods.space import FullModel, Space
from zo_sweeps.models.causal import CausalModel
from zo_sweeps.models.families import describe
from zo_sweeps.models.generic import is_masked
from zo_sweeps.models.identity import DEMO
from zo_sweeps.models.load import load, quiet

pytestmark = pytest.mark.unit

# What each key of a configuration is set to, where a type has the key.
SIZES: dict[str, Any] = {
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "dim", "embedding_size", "word_embed_proj_dim"), 32),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "dff", "hidden_dim", "n_inner", "ffn_hidden_size"), 48),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_local_experts", "num_experts"), 4),
    **dict.fromkeys(("n_routed_experts", "moe_num_experts", "rotary_dim"), 4),
    **dict.fromkeys(("num_key_value_heads", "num_experts_per_tok", "moe_topk", "moe_k"), 2),
    **dict.fromkeys(("head_dim", "sliding_window", "window_size"), 8),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size"), 24),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len"), 64),
    **dict.fromkeys(("n_shared_experts", "n_group", "topk_group", "bos_token_id"), 1),
    "vocab_size": 4104,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "first_k_dense_replace": 0,
}
OWN: dict[str, dict[str, Any]] = {  # what a type needs besides
    "deberta-v2": {"relative_attention": True, "pos_att_type": ["c2p", "p2c"]},
    "esmc": {"num_key_value_heads": 4},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "neomme": {"head_dim": 16},
    "roc_bert": {"enable_pronunciation": False, "enable_shape": False},
}
REASONS = {
    "carry a state from token to token": "bailing_hybrid bamba deepseek_v4 falcon_h1 falcon_mamba granitemoehybrid "
    "jamba kimi_linear mamba mamba2 nemotron_h olmo_hybrid qwen3_5_moe_text qwen3_5_text qwen3_next recurrent_gemma "
    "rwkv xlstm zamba zamba2 zaya",
    "an encoder and a decoder": "bart bigbird_pegasus blenderbot blenderbot-small marian mbart musicgen "
    "musicgen_melody mvp pegasus plbart prophetnet whisper",
    "reads more than text": "dots3_note emu3 fuyu gemma3 gemma3n gemma4 gemma4_unified gemma4_unified_assistant git "
    "got_ocr2 llama4 mllama modernvbert moshi moss_transcribe_diarize phi4_multimodal qwen3_5 qwen3_5_moe qwen4_exp "
    "ultravbert",
    "no attention that is known": "axk1 axk2 cpmant deepseek_v2 deepseek_v3 deepseek_v32 flaubert fnet glm4_moe_lite "
    "glm_moe_dsa jetmoe minicpm3 xlm xlnet youtu",
    "cannot be run without weights": "big_bird longformer luke megatron-bert rembert roformer tapas",
    "not the weight of a Linear": "convbert hy_v4 ibert inkling_text lfm3 nystromformer squeezebert",
    "its layers differ": "dots3_note_text gemma3n_text gemma4_text gemma4_unified_text mimo_v2_flash minimax reformer",
    "share weights, or lie in several": "albert blt funnel hrm_text longcat_flash perceiver",
    "no feed-forward part that is known": "mobilebert xmod",
    "attend to later ones": "bert-generation",
    "of several kinds": "inkling2_text",
    "no base model separate from its head": "llama4_text",
    "all zeros": "mra",
    "more than one attention": "trocr",
    "padding of a row": "yoso",
    # transformers itself cannot build these from their defaults
    "invalid configuration": "cohere_compass_text dbrx gemma4_assistant lfm2_moe qwen4_exp_text",
}
REFUSED = {kind: reason for reason, kinds in REASONS.items() for kind in kinds.split()}
SERVED = sorted({*MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, *MODEL_FOR_MASKED_LM_MAPPING_NAMES} - {*REFUSED})
# transformers draws no values for some of their tensors, which a constructor gives or a checkpoint has
NOT_DRAWN = ("apertus", "data2vec-text", "openai-gpt")
NO_FULL = ("deberta-v2", "neomme")  # read a weight without calling its module
# transformers computes buffers of the modules around their projections, which no checkpoint holds
FILLED = ("codegen", "gpt_neo", "gptj", "openai-gpt")
SPREAD = (
    "bert codegen deberta-v2 diffllama ernie4_5_moe falcon gemma2 gpt2 gpt_neo gpt_neox_japanese gpt_oss gptj gte "
    "mixtral modernbert-decoder mpnet openai-gpt qwen2_moe xlm-roberta"
)
SOME_REFUSED = "bart bert-generation gemma3 jetmoe mamba mra squeezebert xlm yoso"


def spread(types: list[str], short: str) -> list[Any]:
    always = short.split()
    assert {*always} <= {*types}
    return [pytest.param(one, marks=() if one in always else pytest.mark.long) for one in types]


def tiny(kind: str) -> dict[str, Any]:
    """A configuration of two narrow layers; the defaults where such a one is invalid."""
    usual = AutoConfig.for_model(kind)
    other: dict[str, str] = usual.attribute_map
    keys = {key: value for key, value in usual.to_dict().items() if not isinstance(value, (list, dict))}
    chosen = {key: size for key, size in SIZES.items() if key in keys or (key in other and other[key] not in SIZES)}
    if isinstance(kinds := usual.to_dict().get("layer_types"), list):
        chosen["layer_types"] = kinds[-2:]
    if isinstance(kinds := usual.to_dict().get("mlp_layer_types"), list):
        chosen["mlp_layer_types"] = kinds[-2:]
    return {"model_type": kind, **chosen, **OWN.get(kind, {})}


class Case(NamedTuple):
    kind: str
    saved: Model
    drawn: Model
    plain: CausalModel

    def apart(self) -> CausalModel:
        """The model with a module of its own."""
        model = copy.copy(self.plain)
        model.module = copy.deepcopy(model.module)
        return model


@pytest.fixture(scope="module", params=spread(SERVED, SPREAD))
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    """A checkpoint of one type, all of whose parameters are random: biases and norms, too."""
    kind: str = request.param
    config, folder = tiny(kind), tmp_path_factory.mktemp(kind)
    masked = is_masked(kind, config)
    tokenizer = AutoTokenizer.from_pretrained(str(DEMO))
    if masked:
        tokenizer.add_special_tokens({"mask_token": "<mask>"})
        config["pad_token_id"] = tokenizer.pad_token_id
    with quiet(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        whole: Any = (AutoModelForMaskedLM if masked else AutoModelForCausalLM).from_config(
            AutoConfig.for_model(**config), dtype=torch.float32
        )
        with torch.no_grad():
            for parameter in whole.parameters():
                parameter += 0.1 * torch.randn(parameter.shape)
        whole.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return Case(kind, local(folder), make(source="random", arch=config), load(local(folder), torch.float32, "cpu"))


IDS, MASK = padded(rows([12, 7]))


def logits(model: CausalModel) -> Tensor:
    with torch.inference_mode():
        return model.head(model.hidden(IDS, MASK))[MASK.bool()]


def buffers(model: CausalModel) -> dict[str, Tensor]:
    return {name: buffer for name, buffer in model.module.named_buffers() if ".codes." not in name}


@contextmanager
def memory_of_nan() -> Iterator[None]:
    """Fill memory that torch allocates without values with NaN, so that reading it is seen."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def test_a_model_over_codes_is_the_plain_one_with_decoded_weights(case: Case) -> None:
    with memory_of_nan():
        one, two = (load(case.saved, torch.float32, "cpu", PRECISION) for _ in range(2))
    assert case.plain.arch.filled == (case.kind in FILLED)
    assert buffers(one).keys() == buffers(case.plain).keys()
    for name, buffer in buffers(case.plain).items():
        assert torch.equal(buffers(one)[name], buffer), name
    expected = logits(decoded(case.apart()))
    assert expected.isfinite().all()
    assert expected.std() > 0.02
    assert torch.equal(logits(one), expected)
    assert torch.equal(logits(two), expected)


def test_random_weights_over_codes_are_those_without_codes(case: Case) -> None:
    if case.kind in NOT_DRAWN:
        with pytest.raises(UserError, match=r"draws no values for .*, so its weights cannot be random"):
            load(case.drawn, torch.float32, "cpu")
        return
    with memory_of_nan():
        coded = load(case.drawn, torch.float32, "cpu", PRECISION)
        plain = load(case.drawn, torch.float32, "cpu")
    for name, buffer in buffers(plain).items():
        assert torch.equal(buffers(coded)[name], buffer), name
    assert torch.equal(logits(coded), logits(decoded(plain)))


def test_the_outputs_of_a_text_do_not_depend_on_what_is_beside_it(case: Case) -> None:
    model, texts = case.plain, rows([12, 7])
    together = logits(model)
    assert together.std() > 0.02
    with torch.inference_mode():
        alone = [model.head(model.hidden(torch.tensor([text])))[0] for text in texts]
        whole = [case.plain.module(input_ids=torch.tensor([text])).logits[0] for text in texts]
        torch.testing.assert_close(together, torch.cat(alone), rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(together, torch.cat(whole), rtol=1e-4, atol=1e-4)
        other = torch.tensor([[texts[0][0] + 1, *texts[0][1:]]])  # but it depends on the tokens before, in attention
        assert (model.hidden(other)[0, 1:] - model.hidden(torch.tensor(texts[:1]))[0, 1:]).abs().max() > 1e-3
        if not model.arch.masked:
            ids = torch.tensor([[*texts[0], *texts[1]]])
            packed = model.hidden(ids, None, torch.tensor([[*range(12), *range(7)]]))[0]
            torch.testing.assert_close(model.head(packed), together, rtol=1e-4, atol=1e-4)


POINTS = [Point(NoiseKey(3, 1, query), sign * 0.02) for query in range(2) for sign in (1, -1)]
THETA = [Point(NoiseKey(3, 1, 0), 0.0)]


def losses(
    model: CausalModel, space: Any, noise: Perturbation, mode: Mode = Mode.SEQUENTIAL, points: list[Point] = POINTS
) -> Tensor:
    """The points' mean losses of predicting each token of two texts of unequal lengths."""

    def objective(count: int) -> Tensor:
        ids, mask = IDS.repeat(count, 1), MASK.repeat(count, 1)
        hidden = model.hidden(ids, mask)[:, :-1]
        scores = model.head(hidden.flatten(0, 1)).log_softmax(-1).view(*hidden.shape[:2], -1)
        each = scores.gather(-1, ids[:, 1:, None]).squeeze(-1) * mask[:, 1:]
        return -each.reshape(count, -1).sum(1) / MASK[:, 1:].sum()

    return torch.tensor(evaluate(objective, model.module, space, noise, points, mode))


def test_points_of_one_forward_are_the_points_one_after_the_other(case: Case) -> None:
    arch = case.plain.arch
    spaces: list[tuple[Space, Perturbation]] = []
    if not arch.no_points:
        spaces += [(LoRA(rank=4, alpha=8.0), Gaussian())]
        spaces += [] if arch.no_prefix else [(PrefixTuning(length=3), Gaussian())]
    if not arch.no_full_points:
        spaces += [(Full(), LowRank())]
    for definition, noise in spaces:
        model = case.apart()
        space = definition.install(model.module, [*model.target_modules(["all"])], 0)
        if not definition.moves_base:
            with torch.no_grad():
                generator = torch.Generator().manual_seed(5)
                for parameter in space.params.values():
                    parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
        expected = losses(model, space, noise)
        assert expected.std() > 1e-4
        for mode in (Mode.OUTER, Mode.INNER, Mode.BOTH):
            torch.testing.assert_close(losses(model, space, noise, mode), expected, rtol=2e-6, atol=0)


def test_points_that_share_the_first_block_have_the_bits_of_whole_forwards(case: Case) -> None:
    model, definition = case.apart(), LoRA(rank=4, alpha=8.0, blocks=1)
    space = definition.install(model.module, model.layers_of(definition), 0)
    texts = [Text((Answered(tuple(text), 3),), 0) for text in rows([12, 7, 9])]
    batch = collate(texts, model.pad_id, packed=not model.arch.masked)
    whole = lambda count: mean_of_tokens(token_logprobs(model, batch, count), batch)
    expected = evaluate(whole, model.module, space, Gaussian(), POINTS, Mode.SEQUENTIAL)
    shared = of_batch(model, batch, mean_of_tokens, space)
    assert evaluate(shared, model.module, space, Gaussian(), POINTS, Mode.SEQUENTIAL) == expected
    if not model.arch.no_points:
        together = evaluate(shared, model.module, space, Gaussian(), POINTS, Mode.BOTH)
        torch.testing.assert_close(torch.tensor(together), torch.tensor(expected), rtol=2e-6, atol=0)


def test_gradients_of_a_layer_at_a_time_are_those_of_plain_backpropagation(case: Case) -> None:
    """Of texts in rows of their own, and of texts that share a row where the model can read them."""
    model = case.apart()
    space = LoRA(rank=4, alpha=8.0).install(model.module, [*model.target_modules(["all"])], 0)
    with torch.no_grad():
        generator = torch.Generator().manual_seed(5)
        for parameter in space.params.values():
            parameter.requires_grad_(True).add_(0.1 * torch.randn(parameter.shape, generator=generator))
    texts = [Text((Answered(tuple(text), 3),), 0) for text in rows([12, 7, 9])]
    for packed in (False, True)[: 1 if model.arch.masked else 2]:
        batch = collate(texts, model.pad_id, packed=packed)
        logprobs = token_logprobs(model, batch)
        wanted = torch.autograd.grad(logprobs.mean(), [*space.params.values()])
        passes = Layerwise(model, model.blocks)
        ours = passes.token_logprobs(batch)
        torch.testing.assert_close(ours, logprobs, rtol=1e-4, atol=1e-4)
        ours.mean().backward()
        for layer in reversed(model.blocks):
            passes.backward(layer)
        for parameter, gradient in zip(space.params.values(), wanted, strict=True):
            largest = gradient.abs().max().item()
            torch.testing.assert_close(parameter.grad, gradient, rtol=0, atol=1e-4 * largest)
            parameter.grad = None


def test_a_point_of_all_weights_is_the_model_with_its_weights_moved(case: Case) -> None:
    assert bool(case.plain.arch.no_full) == (case.kind in NO_FULL)
    if case.kind in NO_FULL:
        return
    model, noise = case.apart(), Gaussian()
    got = losses(model, FullModel(model.module), noise)
    for point, loss in zip(POINTS, got, strict=True):
        moved = case.apart()
        with torch.no_grad():
            for name, parameter in moved.module.named_parameters():
                parameter += point.scale * noise.sample(point.key, name, parameter.shape, parameter.device)
        (expected,) = losses(moved, FullModel(moved.module), noise, points=THETA)
        torch.testing.assert_close(loss, expected, rtol=2e-6, atol=0)


@pytest.mark.parametrize("kind", spread(sorted(REFUSED), SOME_REFUSED))
def test_a_type_that_is_not_served_is_refused_for_its_reason(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if kind == "rwkv":  # asks for ninja in a process
        monkeypatch.setattr("transformers.models.rwkv.modeling_rwkv.is_ninja_available", lambda: False)
    with pytest.raises(UserError) as caught:
        describe({"model_type": kind})
    assert REFUSED[kind] in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_pages_name_every_type_that_is_tested() -> None:
    root = Path(__file__).parents[2]
    page = (root / "docs" / "adding" / "model_family.md").read_text()
    named = re.search(r"## Types that are tested\n.*?\n\n(.*?)\n\n", page, re.DOTALL)
    assert named
    assert sorted(re.findall(r"`([^`]+)`", named[1])) == SERVED
    assert f"[{len(SERVED)} types are tested]" in (root / "README.md").read_text()
