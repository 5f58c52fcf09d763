"""Loading of models: from the hub, a folder, the demo in the package, or random weights of a given shape."""

from __future__ import annotations

import logging as standard
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from zo_sweeps.core.errors import UserError
from zo_sweeps.methods.arch import ALL, Arch
from zo_sweeps.methods.parts import Model, ModelSource
from zo_sweeps.methods.precision import WeightOnlyPrecision
from zo_sweeps.models import families, identity
from zo_sweeps.models.causal import CausalModel, MaskedLanguageModel
from zo_sweeps.models.checkpoint import FILE, SETTINGS, read_checkpoint_info, read_object
from zo_sweeps.models.identity import DEMO, folder_of, repo_of, revision_of
from zo_sweeps.models.package import Package
from zo_sweeps.models.package import of as package_of

# Tensors that a checkpoint may hold beyond its architecture: buffers that are computed (of rotary positions, positions,
# causal masks), a head that shares the embedding, and the heads of BERT's sentence tasks.
HARMLESS = re.compile(
    r"(^|\.)(inv_freq|position_ids|attn\.bias|attention\.bias|masked_bias)$"
    r"|^(lm_head|embed_out|cls\.predictions)\.(decoder\.)?(weight|bias)$"
    r"|(^|\.)(pooler|seq_relationship)\."
)

GENERIC = ("PreTrainedTokenizerFast", "TokenizersBackend")  # classes of tokenizers, until and since transformers 5


def load(
    model: Model, dtype: torch.dtype, device: torch.device | str, codes: WeightOnlyPrecision | None = None
) -> CausalModel:
    """Load the model of a configuration: weights frozen, in evaluation mode, stored as `dtype` on `device`.

    With `codes`, the projections of the blocks are stored as its codes. Each is encoded as soon as it is read, on the
    device: peak memory is that of the stored weights, and of one more tensor on either side (of random weights, of the
    projections in one module). A package (`zo_sweeps.models.package`) has the codes already, which are verified and
    read one layer at a time.

    Safetensors only: no pickle is opened, and no code of the model's own is run. Random weights are drawn on the CPU
    from `seed`, so that they are the same for every device, and leave the global generator as it was.

    Raises UserError for a folder that is not a model, weights that lack tensors of the architecture, have more of them
    or other shapes, a hub model that cannot be downloaded, a family that cannot be served, a package that is
    damaged or of another precision. Cost: one read of the weights, two of a package.
    """
    package: Package | None = None
    commit = ""
    with quiet():
        if model.source == ModelSource.RANDOM:
            arch = families.describe(model.arch)
            module, tokenizer = _random(model.arch, arch, int(model.seed), dtype, codes)
        else:
            on_hub = model.source == ModelSource.HUB
            folder = snapshot(model) if on_hub else folder_of(model)
            arch, package, commit = read_checkpoint_info(folder).arch, package_of(model), folder.name if on_hub else ""
            if package is None:
                module, tokenizer = _pretrained(folder, arch, dtype, device, codes)
            else:
                module, tokenizer = _packaged(package, arch, dtype, device, codes)
        return (MaskedLanguageModel if arch.masked else CausalModel)(module.to(device), tokenizer, commit, package)


def class_of(masked: bool) -> Any:
    """Return the class in transformers that loads masked or causal models."""
    from transformers import AutoModelForCausalLM, AutoModelForMaskedLM

    return AutoModelForMaskedLM if masked else AutoModelForCausalLM


def snapshot(model: Model) -> Path:
    """Return the folder of a snapshot, downloading it if it is not in the cache.

    A cached snapshot is used without asking the hub, so that a sweep's weights do not change when `main` moves. Raises
    UserError if the hub cannot provide the model; a network that fails midway raises an error of its own.
    """
    from huggingface_hub import snapshot_download

    repo, revision = repo_of(model), revision_of(model)
    folder = identity.cached_folder(repo, revision)
    if folder is None:
        trouble = identity.unreachable(repo, revision)
        if trouble:
            raise UserError(f"cannot load {repo}: {trouble}", where="model.path")
        folder = Path(snapshot_download(repo, revision=revision, allow_patterns=identity.WANTED))
    return folder


def _packaged(
    package: Package, arch: Arch, dtype: torch.dtype, device: torch.device | str, codes: WeightOnlyPrecision | None
) -> tuple[Any, Any]:
    from zo_sweeps.models.load_codes import restore

    name = package.contents.precision.get("name")
    if codes is None:
        raise UserError(f"the weights are packaged as {name} codes", where=str(package.folder), fix="precision=auto")
    if wrong := package.contradiction(codes):
        raise UserError(wrong, where=str(package.folder), fix="precision=auto takes the package's")
    package.verify()
    module, tokenizer = _pretrained(package.folder, arch, dtype, device, codes, packaged=True)
    try:
        restore(codes, module, package.layers(device))
    except (ValueError, AttributeError) as error:
        raise UserError(f"the codes are not those of a {name} model: {error}", where=str(package.folder)) from None
    return module, tokenizer


def _pretrained(
    folder: Path,
    arch: Arch,
    dtype: torch.dtype,
    device: torch.device | str,
    codes: WeightOnlyPrecision | None,
    packaged: bool = False,
) -> tuple[Any, Any]:
    from tokenizers import Tokenizer
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    where: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    as_codes: dict[str, Any] = {}
    if codes is not None:
        from zo_sweeps.models.load_codes import Quantization

        quantization = Quantization(codes, arch.names([ALL]), packaged)
        as_codes = {"quantization_config": quantization, "device_map": {"": str(device)}}
    try:
        module, report = class_of(arch.masked).from_pretrained(
            str(folder),
            **as_codes,
            dtype=dtype,
            use_safetensors=True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # checked below, in a line that names the tensor
            **where,
        )
        # Of a class that is its file alone, AutoTokenizer takes that of some model types (Qwen2), with other ids.
        own = read_object(folder / SETTINGS).get("tokenizer_class") in GENERIC and (folder / FILE).is_file()
        kind: Any = PreTrainedTokenizerFast if own else AutoTokenizer
        tokenizer = kind.from_pretrained(str(folder), local_files_only=True)
        if (folder / FILE).is_file() and isinstance(tokenizer, PreTrainedTokenizerFast):
            # Other classes build a tokenizer of their own from the file's vocabulary, and split texts in their own way.
            stored, backend = Tokenizer.from_file(str(folder / FILE)), tokenizer.backend_tokenizer
            for part in ("model", "normalizer", "pre_tokenizer", "post_processor", "decoder"):
                setattr(backend, part, getattr(stored, part))
    except (ImportError, LookupError, OSError, RuntimeError, TypeError, ValueError) as error:
        if isinstance(error, torch.cuda.OutOfMemoryError):
            raise
        reason = next((line for line in str(error).splitlines() if line.strip()), "")
        raise UserError(f"cannot load {folder}: {reason} ({type(error).__name__})", where="model.path") from error
    if codes is not None:
        from zo_sweeps.models.load_codes import MISSHAPEN

        report["mismatched_keys"] = [*report["mismatched_keys"], *getattr(module, MISSHAPEN)]
    _check(report, str(folder))
    return module, tokenizer


def _check(report: Mapping[str, Any], where: str) -> None:
    """Raise UserError unless the weights are those of the architecture.

    transformers fills absent and misshapen tensors with random numbers, drops surplus ones, and warns; a trial must not
    run on such a model.
    """
    if shapes := sorted(report["mismatched_keys"]):
        name, stored, wanted = shapes[0]
        others = f", and {len(shapes) - 1} other tensors differ too" if len(shapes) > 1 else ""
        raise UserError(
            f"{name} has shape {list(stored)} in the weights and {list(wanted)} by config.json{others}", where=where
        )
    if missing := sorted(report["missing_keys"]):
        raise UserError(f"the weights lack {len(missing)} tensors of the architecture ({missing[0]})", where=where)
    if surplus := sorted(name for name in report["unexpected_keys"] if not HARMLESS.search(name)):
        raise UserError(
            f"the weights hold {len(surplus)} tensors that the architecture has no place for ({surplus[0]})",
            where=where,
            fix="use the config.json that was saved with the weights",
        )


def _random(
    options: Mapping[str, Any], arch: Arch, seed: int, dtype: torch.dtype, codes: WeightOnlyPrecision | None
) -> tuple[Any, Any]:
    from transformers import AutoConfig, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(DEMO), local_files_only=True)
    ids: dict[str, Any] = {"eos_token_id": tokenizer.eos_token_id}  # that of `options` is another token there
    if arch.masked:
        tokenizer.add_special_tokens({"mask_token": "<mask>"})  # the last id
        ids["pad_token_id"] = tokenizer.pad_token_id  # RoBERTa counts positions from it
    identity.must_fit_demo(arch)
    config = AutoConfig.for_model(**{**options, **ids})
    make = partial(class_of(arch.masked).from_config, config, dtype=dtype)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if codes is None:
            return draw(make), tokenizer
        from zo_sweeps.models.load_codes import encode

        return draw(make, partial(encode, codes, {*arch.names([ALL])})), tokenizer


@contextmanager
def quiet() -> Iterator[None]:
    """Silence transformers' progress bars and warnings: problems are checked for here and reported in one line."""
    from transformers.utils import logging

    standard.getLogger("bitsandbytes").setLevel(standard.ERROR)  # it warns of a kernel that is not used here
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def draw(make: Callable[[], Any], drawn: Callable[[Any, str], None] = lambda model, name: None) -> Any:
    """Return a model with random weights, initialized by transformers from the state of torch's CPU generator.

    Args:
        make: builds the model; called with `meta` as the default device, where it draws nothing.
        drawn: called with the model and each module's qualified name, once the module has its weights; may put others
            in place of its children.

    Raises UserError for a model with tensors that transformers gives no values to, which a constructor alone does.
    """
    with torch.device("meta"):
        model = make()
    names = {id(module): name for name, module in model.named_modules()}

    def then(initialize: Callable[..., None]) -> Callable[..., None]:
        def fill(module: nn.Module, *args: Any) -> None:
            for name, parameter in module._parameters.items():
                if parameter is not None and parameter.is_meta:
                    module._parameters[name] = nn.Parameter(_unset(parameter))
            for name, buffer in module._buffers.items():
                if buffer is not None and buffer.is_meta:
                    module._buffers[name] = _unset(buffer)
            initialize(module, *args)
            drawn(model, names[id(module)])

        return fill

    for module in model.modules():
        module._is_hf_initialized = False
    # No other module may be held here: one that is replaced must free its weights.
    models: list[Any] = [module for module in model.modules() if isinstance(module, PreTrainedModel)]
    for one in models:
        one._initialize_weights = then(one._initialize_weights)
    model.initialize_weights()
    for one in models:
        vars(one).pop("_initialize_weights", None)
    model.tie_weights()
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if tensor.isnan().any():
            what = f"{type(model).__name__} draws no values for {name}, so its weights cannot be random"
            raise UserError(what, where="model.source", fix="use a checkpoint")
    return model


def _unset(like: Tensor) -> Tensor:
    """Return a tensor on the CPU, of NaN where the dtype has it: values that are not drawn are found."""
    return torch.full_like(like, torch.nan if like.is_floating_point() else 0, device="cpu")


def device_map(model: CausalModel, devices: Sequence[torch.device]) -> dict[str, torch.device]:
    """Return the device of each layer, and of each submodule outside the layers, by qualified name.

    All but the layers (embedding, last norm, head) is on the first device, where batches and losses are. The layers
    follow in order: layer i goes to device floor(n m_i / P), where m_i is the number of parameters up to its middle,
    those outside the layers first, P is that of all, and n = len(devices). So a device has at most P / n and a layer.
    """
    module, first, path = model.module, devices[0], model.arch.blocks.split(".")
    placed: dict[str, torch.device] = {}
    for depth, part in enumerate(path):
        above = path[:depth]
        children = dict(module.get_submodule(".".join(above)).named_children())
        placed |= {".".join([*above, name]): first for name in children if name != part}
    sizes = [sum(param.numel() for param in block.parameters()) for block in model.blocks]
    total = sum(param.numel() for param in module.parameters())
    for i, (size, end) in enumerate(zip(sizes, accumulate(sizes, initial=total - sum(sizes)), strict=False)):
        share = (end + size / 2) / total
        placed[f"{model.arch.blocks}.{i}"] = devices[int(share * len(devices))]
    return placed


def divide(model: CausalModel, devices: Sequence[torch.device]) -> None:
    """Move the model's parts to `devices`, and what each reads to where it is; results are as on one device.

    Cost: the hidden states, [N, T, D], and their gradients move once from each device to the next. One device computes
    at a time.
    """
    from accelerate import dispatch_model

    module = model.module
    skipped = getattr(module, "_skip_keys_device_placement", None)  # a cache moves its own layers
    dispatch_model(module, device_map(model, devices), main_device=devices[0], skip_keys=skipped)
