"""What `bench noise|step|memory|replay` measure of the engine, on models of random weights, against MeZO's own loop."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from zo_sweeps.core.host import interleaved
from zo_sweeps.devices.peak_memory import MemoryMeter
from zo_sweeps.devices.speed import torch_threads
from zo_sweeps.engine import losses, noise
from zo_sweeps.engine.batch import Batch, collate
from zo_sweeps.engine.estimators.rge import RGE
from zo_sweeps.engine.perturbations.gaussian import Gaussian
from zo_sweeps.engine.perturbations.low_rank import LowRank
from zo_sweeps.engine.perturbations.rademacher import Rademacher
from zo_sweeps.engine.replay import replay
from zo_sweeps.engine.schedules.constant import Constant
from zo_sweeps.engine.spaces.lora_fa import LoRAFA
from zo_sweeps.engine.step import Method, RunState, step
from zo_sweeps.engine.train import of_batch
from zo_sweeps.engine.types import LanguageModel as Forwards
from zo_sweeps.engine.updates.sgd import SGD
from zo_sweeps.methods.evaluation import Mode
from zo_sweeps.methods.parts import Model, ModelSource
from zo_sweeps.methods.perturbation import Perturbation
from zo_sweeps.methods.points import NoiseKey
from zo_sweeps.methods.space import FullModel, InstalledSpace
from zo_sweeps.models.causal import CausalModel
from zo_sweeps.models.load import load
from zo_sweeps.tasks.encode import EncodedCandidate, EncodedExample
from zo_sweeps_bench.measure import RatioRow

ELEMENTS = 1 << 22
LAYER = (4, 4096, 4096)  # the projections of an attention layer of Llama2-7B: PeZO, section 2.3
TOKENS = 64
SENTENCES = (18, 27, 36, 53)  # tokens of four SST-2 prompts, with the spread of a typical batch
MIB = 1 << 20
REPLAYED, Q = 1000, 4  # steps, and directions of each
VOCABULARY = 32000
LLAMA_58M = {  # 58.07 M parameters
    "model_type": "llama",
    "vocab_size": VOCABULARY,
    "hidden_size": 512,
    "intermediate_size": 1376,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
}
LLAMA_135M = {  # SmolLM2-135M's shape
    "model_type": "llama",
    "vocab_size": 49152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
}


def llama_58m() -> CausalModel:
    """Load the Llama of LLAMA_58M, fp32, on the CPU."""
    return load(Model(source=ModelSource.RANDOM, arch=LLAMA_58M), torch.float32, torch.device("cpu"))


def examples(lengths: Sequence[int], options: int, vocabulary: int = VOCABULARY) -> list[EncodedExample]:
    """Return one example per prompt length in tokens, each with `options` answers of one token."""
    draw = random.Random(0)

    def token() -> int:
        return draw.randrange(1, vocabulary)

    prompts = [tuple(token() for _ in range(tokens)) for tokens in lengths]
    candidates = [tuple(EncodedCandidate((*prompt, token()), 1) for _ in range(options)) for prompt in prompts]
    return [EncodedExample(each, gold=0, references=(), prompt_ids=(), text="") for each in candidates]


def with_lora_fa(model: CausalModel, rank: int, alpha: float, blocks: int | None = None) -> InstalledSpace:
    """Install LoRA-FA on q, k, v and o of every layer, or of the last `blocks`."""
    space = LoRAFA(rank=rank, alpha=alpha, targets=tuple("qkvo"), blocks=blocks)
    return space.install(model.module, model.layers_of(space), 0)


@dataclass(frozen=True)
class BenchSteps:
    """Steps of a run over one batch, collated at each step as in a run."""

    model: Forwards
    space: InstalledSpace
    examples: Sequence[EncodedExample]
    q: int = 1
    mode: Mode = Mode.SEQUENTIAL
    lr: float = 1e-6
    noise: Perturbation = field(default_factory=Gaussian)

    @property
    def method(self) -> Method:
        return Method(RGE(self.q, 1e-3), self.noise, SGD(), self.mode).bind(self.space.params)

    @property
    def device(self) -> torch.device:
        return next(self.model.module.parameters()).device

    def forward(self, copies: int) -> Tensor:
        """Return f at `copies` points: the forward of a step alone."""
        batch, loss = self._batch()
        return loss(losses.token_logprobs(self.model, batch, copies=copies), batch)

    def bare(self, copies: int) -> Callable[[], Tensor]:
        """Return a function that takes the forward alone, in inference mode."""
        return torch.inference_mode()(partial(self.forward, copies))

    def one(self, whole: bool = False) -> Callable[[], object]:
        """Return a function whose every call takes the next step; `whole`: by forwards that share no block."""
        numbers, method = count(1), self.method

        def taken() -> object:
            batch, loss = self._batch()
            f = of_batch(self.model, batch, loss, self.space)
            if whole:
                f = lambda copies: loss(losses.token_logprobs(self.model, batch, copies=copies), batch)
            return step(method, self.model.module, self.space, f, RunState(), seed=0, step=next(numbers), lr=self.lr)

        return taken

    def _batch(self) -> tuple[Batch, losses.Loss]:
        gold_only = len(self.examples[0].candidates) == 1
        batch = collate(self.examples, 0, gold_only=gold_only).to(self.device)
        return batch, losses.tokens if gold_only else losses.candidates


@torch.inference_mode()
def mezo_loss(model: CausalModel, examples: Sequence[EncodedExample]) -> Tensor:
    """Return the cross-entropy over the candidates (of the answer token if there is one), one sequence per candidate.

    Logits and log-softmax at all positions, as in MeZO's released code.
    """
    rows = [candidate.ids[:-1] for example in examples for candidate in example.candidates]
    answers = torch.tensor([candidate.ids[-1] for example in examples for candidate in example.candidates])
    causal: Any = model.module
    device = next(causal.parameters()).device
    logits = causal(input_ids=torch.tensor(rows, device=device), use_cache=False).logits.float()
    scores = F.log_softmax(logits, dim=-1)[:, -1].gather(1, answers[:, None].to(device)).view(len(examples), -1)
    if scores.shape[1] == 1:
        return -scores.mean()
    return F.cross_entropy(scores, torch.tensor([example.gold for example in examples], device=device))


def mezo_direction(param: Tensor) -> Tensor:
    """Draw N(0, 1) for every element."""
    return torch.normal(mean=0, std=1, size=param.shape, dtype=param.dtype, device=param.device)


def lozo_directions(model: CausalModel, rank: int = 2) -> Callable[[Tensor], Tensor]:
    """Return what LOZO's released code draws in a step that keeps V: U V^T for a matrix, N(0, 1) for other shapes."""

    def thin(param: Tensor, dim: int) -> Tensor:
        return torch.randn(param.shape[dim], rank, dtype=param.dtype, device=param.device)

    V = {id(param): thin(param, 1) for param in model.module.parameters() if param.dim() == 2}
    return lambda param: thin(param, 0) @ V[id(param)].T if id(param) in V else mezo_direction(param)


@torch.no_grad()
def mezo_step(
    model: CausalModel,
    examples: Sequence[EncodedExample],
    seed: int,
    eps: float = 1e-3,
    lr: float = 1e-6,
    draw: Callable[[Tensor], Tensor] = mezo_direction,
) -> float:
    """Take one step of MeZO's Algorithm 1: four passes over the parameters, each drawing all of z again."""

    def perturb(scale: float) -> None:
        torch.manual_seed(seed)
        for param in model.module.parameters():
            param.data = param.data + scale * draw(param) * eps

    perturb(1)
    plus = mezo_loss(model, examples)
    perturb(-2)
    minus = mezo_loss(model, examples)
    perturb(1)
    projected_grad = float(plus - minus) / (2 * eps)
    torch.manual_seed(seed)
    for param in model.module.parameters():
        param.data = param.data - lr * (projected_grad * draw(param))
    return projected_grad


def noise_rows(rounds: int) -> Iterator[RatioRow]:
    """Measure nanoseconds per element of both implementations against `normal_`, and an attention layer's direction."""
    out, key = torch.empty(ELEMENTS), NoiseKey(0, 1, 0)
    here = torch.get_num_threads()
    seconds: dict[str, float] = {}
    compiled = noise.is_compiled()
    for threads in dict.fromkeys((1, here)):
        with torch_threads(threads):
            functions: dict[str, Callable[[], Any]] = {
                "normal_": out.normal_,
                "expression": partial(noise.expression, out, key, "w"),
            }
            if compiled:
                functions["compiled"] = lambda: noise.combine([(key, 1.0)], "w", out.shape, out=out)
            seconds |= {f"{name}/{threads}": value for name, value in interleaved(functions, rounds).items()}
    detail = {f"{name} threads, ns": round(value / ELEMENTS * 1e9, 3) for name, value in seconds.items()}
    limit = "memory bandwidth"
    normal = seconds[f"normal_/{here}"]
    yield RatioRow("noise, torch expression", normal / seconds[f"expression/{here}"], "x", 1, 1, limit, detail)
    if compiled:
        yield RatioRow("noise, compiled", normal / seconds[f"compiled/{here}"], "x", 2, 4, limit, detail)
        if here > 1:
            scaling = seconds["compiled/1"] / seconds[f"compiled/{here}"]
            yield RatioRow(f"noise, compiled, {here} threads against 1", scaling, "x", 1, here, str(here), detail)
    yield _layer(rounds)


def _layer(rounds: int) -> RatioRow:
    """Time a direction for an attention layer, against the products of its projections with a token."""
    weights, token = torch.empty(LAYER), torch.ones(LAYER[-1])
    drawn = interleaved({"numbers": weights.normal_, "products": lambda: weights @ token}, rounds)
    detail = {f"{name}, ms": round(seconds * 1e3, 3) for name, seconds in drawn.items()}
    name = "Gaussian numbers of an attention layer, against its products"
    limit = "5900 in PeZO 2.3, whose products are an FPGA's"
    return RatioRow(name, drawn["numbers"] / drawn["products"], "of", 5900, 1, limit, detail)


def step_rows(rounds: int) -> Iterator[RatioRow]:
    """Measure full-space steps against plain MeZO's, and LoRA-FA against bare forwards of the same texts."""
    model = llama_58m()
    yield _full(model, 1, 1, (2.5, 5.0), rounds)
    yield _full(model, 16, 2, (3.0, 4.5), rounds)
    yield _signs(model, rounds)
    for q, batch in ((1, 1), (4, 1), (4, 4)):
        yield from _rank_one(model, q, batch, rounds)
    yield _lora_fa(model, rounds)
    yield _sentences(rounds)
    for name, of in (("demo model", Model()), ("135 M", Model(source=ModelSource.RANDOM, arch=LLAMA_135M))):
        yield _last_blocks(name, load(of, torch.float32, torch.device("cpu")), rounds)


def _full(model: CausalModel, batch: int, options: int, goals: tuple[float, float], rounds: int) -> RatioRow:
    data = examples([TOKENS] * batch, options)
    steps = BenchSteps(model, FullModel(model.module), data)
    numbers, forward = count(1), steps.bare(1)
    plain = lambda: mezo_step(model, data, next(numbers))
    two_forwards = lambda: (forward(), forward())
    seconds = interleaved({"mezo": plain, "ours": steps.one(), "two forwards": two_forwards}, rounds)
    name = f"full-parameter step, 58 M, B={batch} T={TOKENS}, {options} option(s), against plain MeZO"
    limit = f"two forwards: {seconds['mezo'] / seconds['two forwards']:.1f}x"
    return RatioRow(name, seconds["mezo"] / seconds["ours"], "x", *goals, limit, seconds)


@torch.no_grad()
def _pass(model: CausalModel) -> None:
    """Read and write every weight."""
    for weight in model.module.parameters():
        weight.add_(0.0)


def _signs(model: CausalModel, rounds: int) -> RatioRow:
    steps = BenchSteps(model, FullModel(model.module), examples([TOKENS], 1), noise=Rademacher())
    forward = steps.bare(1)
    compared: dict[str, Callable[[], object]] = {
        "two forwards": lambda: (forward(), forward()),
        "ours": steps.one(),
        "pass over the weights": partial(_pass, model),
    }
    seconds = interleaved(compared, rounds)
    two = seconds["two forwards"]
    name = f"full-parameter step of signs, 58 M, B=1 T={TOKENS}, against two forwards"
    limit = f"{1 + seconds['pass over the weights'] / two:.2f}: the forwards, and one pass over the weights"
    return RatioRow(name, seconds["ours"] / two, "of", 1.5, 1.15, limit, seconds)


def _rank_one(model: CausalModel, q: int, batch: int, rounds: int) -> Iterator[RatioRow]:
    data, z = examples([TOKENS] * batch, 1), LowRank(1, 1, sum="product")
    ours = BenchSteps(model, FullModel(model.module), data, q=q, mode=Mode.BOTH, noise=z)
    numbers = count(1)
    compared: dict[str, Callable[[], object]] = {
        "bare forward": ours.bare(2 * q),
        "ours": ours.one(),
        "pass over the weights": partial(_pass, model),
    }
    if q == batch == 1:
        compared["mezo"] = lambda: mezo_step(model, data, next(numbers))
    seconds = interleaved(compared, rounds)
    bare = seconds["bare forward"]
    least = bare + seconds["pass over the weights"]
    name = f"full-parameter step of rank 1, 58 M, all points in one forward, q={q} B={batch} T={TOKENS}"
    limit = "the forward, and one pass over the weights"
    cost, against = seconds["ours"] / bare, f"{name}, against a bare forward of its rows"
    yield RatioRow(against, cost, "of", 1.5, 1.1, f"{least / bare:.2f}: {limit}", seconds)
    if q == batch == 1:
        ratio, most = seconds["mezo"] / seconds["ours"], seconds["mezo"] / least
        yield RatioRow(f"{name}, against plain MeZO", ratio, "x", 10.0, 25.0, f"{most:.1f}x: {limit}", seconds)


def _lora_fa(model: CausalModel, rounds: int) -> RatioRow:
    q, batch, rank = Q, 2, 16
    bare = BenchSteps(model, FullModel(model.module), examples([TOKENS] * batch, 2))
    adapted = llama_58m()
    ours = BenchSteps(adapted, with_lora_fa(adapted, rank, rank), bare.examples, q=q, mode=Mode.BOTH, lr=1e-4)
    compared = {"bare forward": bare.bare(2 * q), "with adapters": ours.bare(2 * q), "ours": ours.one()}
    seconds = interleaved(compared, rounds)
    name = f"LoRA-FA step, both loops, q={q} B={batch} T={TOKENS} r={rank}, against a bare forward of its rows"
    return RatioRow(name, seconds["ours"] / seconds["bare forward"], "of", 1.15, 1.05, "1.00", seconds)


def _sentences(rounds: int, q: int = 4, rank: int = 16) -> RatioRow:
    """Time the demo model on sentences against a plain loop's forward of its rows, padded to the longest."""
    bare, adapted = (load(Model(), torch.float32, torch.device("cpu")) for _ in range(2))
    texts = examples(SENTENCES, 2, bare.arch.vocabulary)
    ours = BenchSteps(adapted, with_lora_fa(adapted, rank, 2 * rank), texts, q=q, mode=Mode.BOTH, lr=1e-4)
    padded = torch.randint(1, bare.arch.vocabulary, (2 * q * len(SENTENCES), max(SENTENCES)))
    seconds = interleaved({"padded": torch.inference_mode()(partial(bare.hidden, padded)), "ours": ours.one()}, rounds)
    name = f"LoRA-FA step, demo model, q={q} B={len(SENTENCES)} T={SENTENCES} r={rank}, against a padded bare forward"
    limit = f"{sum(SENTENCES) / len(SENTENCES) / max(SENTENCES):.2f}: its tokens"
    return RatioRow(name, seconds["ours"] / seconds["padded"], "of", 1.0, 0.7, limit, seconds)


def _last_blocks(name: str, model: CausalModel, rounds: int) -> RatioRow:
    """Time a step over the last third of the blocks against one whose points share no forward."""
    q, batch, rank, layers = Q, 2, 16, model.arch.layers
    space, texts = with_lora_fa(model, rank, rank, layers // 3), examples([TOKENS] * batch, 2, model.arch.vocabulary)
    steps = BenchSteps(model, space, texts, q=q, mode=Mode.BOTH, lr=1e-4)
    seconds = interleaved({"whole forwards": steps.one(whole=True), "ours": steps.one()}, rounds)
    below, points = layers - layers // 3, 2 * q
    limit = f"{(below + points * (layers - below)) / (points * layers):.2f}: its blocks"
    name = f"LoRA-FA step over the last third of the blocks, {name}, q={q} B={batch} T={TOKENS}, against whole forwards"
    return RatioRow(name, seconds["ours"] / seconds["whole forwards"], "of", 0.6, 0.45, limit, seconds)


def memory_rows(rounds: int) -> Iterator[RatioRow]:
    """Measure the peak of full-space steps (q = 1, q = 4) beyond the peak of inference on the same batch."""
    model = llama_58m()
    data = examples([64] * 16, 2)
    space = FullModel(model.module)
    inference = _peak(BenchSteps(model, space, data).bare(1), rounds)
    causal: Any = model.module
    layer = sum(param.numel() for param in causal.model.layers[0].parameters()) * 4 / MIB
    logits = len(data) * model.arch.vocabulary * 4 / MIB
    for q in (1, 4):
        peak = _peak(BenchSteps(model, space, data, q=q).one(), rounds)
        detail = {"inference, MiB": inference, "step, MiB": peak, "one layer, MiB": layer, "logits rows, MiB": logits}
        name = f"peak memory of a full-space step above inference, B=16 T=64, q={q}"
        yield RatioRow(name, peak - inference, "MiB", layer + logits, 0, "0", detail)


def _peak(function: Callable[[], object], rounds: int) -> float:
    """Return the peak in MiB beyond the baseline, the minimum over the rounds after one warm-up."""
    peaks = []
    for _ in range(rounds + 1):
        meter = MemoryMeter("cpu")
        meter.start()
        function()
        meter.stop()
        peaks.append(meter.above_baseline / MIB)
    return min(peaks[1:])


def replay_rows(rounds: int) -> Iterator[RatioRow]:
    """Measure 1,000 LoRA-FA steps from their log, against running them."""
    model = llama_58m()
    space = with_lora_fa(model, 16, 16)
    steps = BenchSteps(model, space, examples([64] * 2, 2), q=Q, mode=Mode.BOTH, lr=1e-6)
    log = [[0.1] * Q] * REPLAYED
    again = lambda: replay(steps.method, space.params, log, Constant().over(1e-6, REPLAYED), seed=0)
    seconds = interleaved({"one step": steps.one(), "replay": again}, rounds)
    detail = {**seconds, "steps": REPLAYED, "running them": "one step, minimum, times the number of steps"}
    name = f"replay of {REPLAYED} LoRA-FA steps (q={Q}) against running them"
    yield RatioRow(name, seconds["one step"] * REPLAYED / seconds["replay"], "x", 20, 100, "noise alone", detail)
