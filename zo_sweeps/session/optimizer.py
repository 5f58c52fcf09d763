"""One optimizer for any loop: a named method over a model of one's own, driven by a closure. The run is its log."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from zo_sweeps.config.composer import Composer
from zo_sweeps.config.schema import AXES
from zo_sweeps.core.errors import UserError, together, unknown
from zo_sweeps.core.files import parse_object, reading, replace_text
from zo_sweeps.core.host import VERSION
from zo_sweeps.engine import linear
from zo_sweeps.engine.evaluate import Objective, out_of_place
from zo_sweeps.engine.layers.sparse import Sparse
from zo_sweeps.engine.replay import digest
from zo_sweeps.engine.replay import replay as apply
from zo_sweeps.engine.rounding import probe
from zo_sweeps.engine.step import Method, RunState, step
from zo_sweeps.engine.types import Evaluate
from zo_sweeps.methods import registry
from zo_sweeps.methods.arch import ALL
from zo_sweeps.methods.definition import options, write
from zo_sweeps.methods.evaluation import Evaluation, Restore
from zo_sweeps.methods.parts import NamedMethod
from zo_sweeps.methods.perturbation import Params, PartialPerturbation, Reads
from zo_sweeps.methods.points import Estimate, NoiseKey, Point, Theta
from zo_sweeps.methods.schedule import Schedule
from zo_sweeps.methods.space import Space
from zo_sweeps.methods.trial_config import NUMERICS, TrialConfig
from zo_sweeps.plan.compatible import incompatible

EVALUATION = "evaluation"
PRECISIONS: Mapping[torch.dtype | None, str] = {torch.bfloat16: "bf16", torch.float16: "fp16"}  # others: fp32
torch.serialization.add_safe_globals([NoiseKey, Estimate])  # of some methods' states


class Logged(NamedTuple):
    """One step of a log: its learning rate, its loss, and the coefficients of its estimate."""

    lr: float
    loss: float
    coefs: tuple[float, ...]


class Optimizer(torch.optim.Optimizer):
    """A named zeroth-order method as an optimizer of torch: forwards only, over any module.

        theta_t = theta_{t-1} - lr * u(ghat_t),   ghat_t of the losses at the method's points theta + scale * z

    The trained parameters are those of the method's space. For a method over all weights (mezo, lozo: space=full) they
    are the model's parameters that require grad: of a peft model, its adapter. Other spaces (prge: lora_fa) put modules
    of their own into `targets`: roles (q, v) or names of a transformers model's projections; of any other module, the
    names of Linear layers, their endings, or `all`.

    Args:
        model: what the closure computes its loss with.
        method: a name in conf/method, such as mezo, lozo or prge.
        seed: of the directions, and of a space's initial values.
        config_dirs: folders with methods and members of your own, as --config-dir.
        options: the method's options by name (`lr`, `eps`, `q`), other members of its axes (`update="adam"`), or keys
            as on the command line where a name alone is ambiguous (`**{"space.rank": 8}`).

    Attributes:
        losses: of the last step's points, in their order; estimate: what they combined to.
        log: a line per step; with the configuration and the initial weights, it is the run. See `save` and `replay`.
        space: the trained parameters, installed in the model.

    Torch's schedulers set the learning rate, and the log keeps that of each step. Cost: the method's forwards per step,
    without gradients; no copy of the weights but the state of the method's update.

    Raises UserError, with the choices, for an unknown method, option or layer, and for methods that need more than a
    closure: backpropagation, masks of gradients, stored codes, a minibatch for each direction.
    """

    def __init__(
        self,
        model: nn.Module,
        method: str = "mezo",
        *,
        seed: int = 0,
        config_dirs: Sequence[str | Path] = (),
        **options: Any,
    ) -> None:
        if not isinstance(model, nn.Module):
            fix = 'write Optimizer(model, "mezo"): it trains the parameters that require grad'
            raise UserError(f"the model is a {type(model).__name__}, not a module of torch", fix=fix)
        model = getattr(model, "_orig_mod", model)  # of torch.compile: a closure may call either
        config = _configured(model, method, options, config_dirs)
        self._model, self._config, self._seed = model, config, seed
        self._base = _fingerprint(dict(model.named_parameters()))  # what an adapter's own values do not tell
        self.space = config.space.install(model, _layers(model, config.space), seed)
        if config.space.moves_base:
            self.space.params = {name: param for name, param in self.space.params.items() if param.requires_grad}
        if not self.space.params:
            raise UserError("no parameter of the model requires grad", fix="call requires_grad_() on those to train")
        if apart := [name for name, param in self.space.params.items() if not param.is_contiguous()]:
            fix = "call model.to(memory_format=torch.contiguous_format)"
            raise UserError(f"{apart[0]} is not stored row by row", fix=fix)
        self._method = Method.of(config.estimator, config.perturbation, config.update, config.evaluation)
        self._method = self._method.bind(self.space.params)
        self._state = self._method.init(self.space.params)
        self._start = _fingerprint(self.space.params)
        self.log: list[Logged] = []
        self.losses: tuple[float, ...] = ()
        self.estimate: Estimate | None = None
        super().__init__(list(self.space.params.values()), {"lr": config.update.lr})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refuse parameters beyond those of the space: what a step moves was chosen with the method."""
        if self.param_groups:
            what = "a group cannot be added: the method trains the parameters of its space alone"
            raise UserError(what, fix="call requires_grad_() on those to train before making the optimizer")
        super().add_param_group(param_group)

    @property
    def definition(self) -> Space:
        """The definition of the trained space, with its options."""
        return self._config.space

    def step(self, closure: Callable[..., Tensor | float]) -> float:  # type: ignore[override]  # torch's is optional
        """Take one step; return its loss, the mean over its points.

        Args:
            closure: returns the minibatch's loss with the model as it is. It is called once per forward, so draw the
                minibatch outside of it; several may be averaged in it. For points in one forward (prge, eggroll) it
                takes their number P, repeats its rows P times, and returns the losses of the P groups of rows, [P].

        Raises DivergedError if a loss is not finite, with the weights as they were, and UserError for a closure that
        does not fit the method, a loss in half precision, a model that draws dropout or keeps statistics, and, in the
        first step, for two forwards more, parameters that are read outside of their modules' forwards (see
        `engine.evaluate.out_of_place`).
        """
        for layer in self._model.modules():
            if isinstance(layer, _NormBase) and layer.training and layer.track_running_stats and layer.momentum != 0:
                what = f"{type(layer).__name__} keeps statistics of a step's points, which no log has"
                raise UserError(what, fix="call model.eval(), or set its momentum to 0 and take them after training")
        number, lr, seen = len(self.log) + 1, float(self.param_groups[0]["lr"]), _Seen()
        f, state = self._objective(closure), self._state
        try:
            with _called_one_by_one(), torch.autocast(self._device, enabled=False):
                if not self.log:
                    self._check_reads(f)
                estimate, self._state = step(
                    self._method, self._model, self.space, f, state, seed=self._seed, step=number, lr=lr, peers=seen
                )
        finally:
            self._write()
        self.estimate, self.losses = estimate, seen.of_points
        self.log.append(Logged(lr, estimate.loss, estimate.coefs))
        return estimate.loss

    @property
    def _device(self) -> str:
        return next(iter(self.space.params.values())).device.type

    def _write(self) -> None:
        """Write the entries of a sparse space into the model's weights, which hold the last point's."""
        if isinstance(self.space, Sparse):
            self.space.write()

    def _objective(self, closure: Callable[..., Tensor | float]) -> Objective:
        required = [p for p in inspect.signature(closure).parameters.values() if p.default is p.empty]
        takes_points = any(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in required)
        mode = self._config.evaluation.mode
        if mode.batched and not takes_points:
            what = (
                f"method {self._config.method.name!r} has several points in a forward, and the closure takes no number"
            )
            raise UserError(what, fix="write lambda points: ..., or mode='sequential' for one point in each")

        draws, kind = any(layer.training for layer in self._model.modules()), self._device
        # That around the step is of the closure alone: an update in half precision is one that no replay makes.
        cast = partial(torch.autocast, kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind))

        def f(points: int) -> Tensor:
            call = partial(closure, points) if takes_points else closure
            before = _drawn() if draws else None
            with cast():
                returned = call()
            if before is not None and not all(map(torch.equal, before, _drawn())):
                what = "the closure draws random numbers, others at each point of a step: dropout, or a minibatch"
                raise UserError(what, fix="call model.eval(), and draw the minibatch outside of the closure")
            if returned is None:
                raise UserError("the closure returned nothing", fix="return the minibatch's loss")
            losses = torch.as_tensor(returned)
            if losses.numel() != points:
                what = f"the closure returned losses of shape {list(losses.shape)}"
                raise UserError(what, fix=f"return a loss for each of {points} points: [{points}]")
            if losses.dtype in PRECISIONS:
                what = f"the loss is in {PRECISIONS[losses.dtype]}, where the points of a step round to the same"
                raise UserError(what, fix="compute it in fp32, as of logits.float()")
            return losses.reshape(points)

        return f

    def _check_reads(self, f: Objective) -> None:
        """Raise UserError if the loss changes with parameters that move while their modules compute as if not."""
        config, compares = self._config, self._config.update.evaluations  # beside the weights, wherever points are
        if not config.space.moves_base or (config.evaluation.restore is Restore.IN_PLACE and not compares):
            return
        params = self.space.params

        def loss(*names: str) -> Tensor:
            back = _Back({name: params[name] for name in names}, {name for name in names if not params[name].any()})
            point = Point(NoiseKey(self._seed, 1, 0), 1.0 if names else 0.0)
            with back.moved(), torch.inference_mode(), out_of_place(self._model, self.space, back, [point]):
                return f(1)

        own = loss()
        if not own.isfinite().all() or loss(*params).equal(own) or not loss().equal(own):  # the last: it is no function
            return
        others = [name for name in params if not loss(name).equal(own)]
        what = f"{' or '.join(others)} is read while its own module is not called, and would not be perturbed"
        other = "another update" if compares else "restore='in_place'"
        raise UserError(what, fix=f"{other}, or call the module")

    def save(self, path: str | Path) -> None:
        """Write the log as JSON lines: a header with the whole configuration, then a step each. See `load`."""
        lines = [self._header(), *(one._asdict() for one in self.log)]
        replace_text(Path(path), "".join(f"{json.dumps(line)}\n" for line in lines))

    def load(self, path: str | Path) -> None:
        """Take the steps of a saved log, without their forwards; the weights must be those where its run began.

        Raises UserError for a file that is no such log, for one of another method, option, seed, shape or version, for
        weights where it did not begin, and for a method whose directions depend on the minibatches (agzo).
        """
        header, log = _read(path)
        if header["numerics"] != self._header()["numerics"]:
            what = f"the log is of zo_sweeps {header['zo_sweeps']}, whose steps had other bits"
            raise UserError(what, where=str(path), fix=f"pip install zo-sweeps=={header['zo_sweeps']}")
        _must_agree(header, self._header(), str(path))
        perturbation = self._config.perturbation
        if perturbation.reads is Reads.DATA:
            what = f"the directions of {perturbation.name} depend on {perturbation.reads.value}, and are in no log"
            raise UserError(what, where=str(path), fix="keep the model's state_dict and the optimizer's")
        if header["start"] != _fingerprint(self.space.params) or header.get("base", self._base) != self._base:
            fix = "load the weights that the optimizer was made with"
            raise UserError("the model does not have the weights where the run began", where=str(path), fix=fix)
        self.log, self._start = log, header["start"]
        coefs, rates = [one.coefs for one in log], lambda number: log[number - 1].lr
        self._state = apply(self._method, self.space.params, coefs, rates, seed=self._seed)
        self._write()
        if log:
            self.param_groups[0]["lr"] = log[-1].lr

    def _header(self) -> dict[str, Any]:
        """Return what, with the initial weights and the log, makes the run again."""
        config = self._config
        parts = {axis: getattr(config, axis) for axis in AXES}
        chosen = {axis: part.name for axis, part in parts.items()}
        parts[EVALUATION] = config.evaluation
        given = {f"{key}.{f.name}": write(getattr(part, f.name)) for key, part in parts.items() for f in options(part)}
        del given["update.lr"]  # each line of the log has its own
        return {
            "zo_sweeps": VERSION,
            "numerics": [NUMERICS, *(getattr(config, axis).numerics for axis in AXES)],
            "method": config.method.name,
            "seed": self._seed,
            "config_dirs": list(config.members),
            "options": {**chosen, **given},
            "parameters": {name: list(param.shape) for name, param in self.space.params.items()},
            "start": self._start,
            "base": self._base,
        }

    def state_dict(self) -> dict[str, Any]:
        """Return the state after the last step, of numbers and tensors; the model's own weights are in the model's."""
        groups = super().state_dict()["param_groups"]
        log = [[lr, loss, list(coefs)] for lr, loss, coefs in self.log]
        state = {"update": self._state.update, "directions": self._state.directions}
        beside = {} if self._config.space.moves_base else {n: p.detach() for n, p in self.space.params.items()}
        return {"header": self._header(), "log": log, "state": state, "beside": beside, "param_groups": groups}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from a state, on the model's device, with the model's own `state_dict` of the same step: bit for bit.

        Raises UserError for the state of another method, option, seed or shape.
        """
        _must_agree(state_dict["header"], self._header(), "the state")
        self._start, self._base = state_dict["header"]["start"], state_dict["header"].get("base", self._base)
        self._state = RunState(**deepcopy(state_dict["state"]))
        for name, value in state_dict["beside"].items():
            self.space.params[name].data.copy_(value)
        self._write()
        self.log = [Logged(lr, loss, tuple(coefs)) for lr, loss, coefs in state_dict["log"]]
        (saved,) = state_dict["param_groups"]
        self.param_groups[0].update({key: value for key, value in saved.items() if key != "params"})


@contextmanager
def _called_one_by_one() -> Iterator[None]:
    """Keep torch's attention layers from computing all of their parts in one kernel, which calls none of them."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


@dataclass(frozen=True)
class _Back(PartialPerturbation):
    """From parameters of which every second value is doubled, or all are 1 where all were 0, to where they were."""

    params: Params
    zero: Collection[str]

    @contextmanager
    def moved(self) -> Iterator[None]:
        for name, param in self.params.items():
            param.data.fill_(1) if name in self.zero else param.data.view(-1)[::2].mul_(2)
        try:
            yield
        finally:
            for name, param in self.params.items():
                param.data.zero_() if name in self.zero else param.data.view(-1)[::2].mul_(0.5)

    def combine(self, *args: Any, **kwargs: Any) -> Tensor:
        name, back, start = args[1], kwargs["base"].clone(), kwargs["start"]
        if name in self.zero:
            back.zero_()
        elif name in self.params:
            back.view(-1)[start % 2 :: 2].mul_(0.5)
        return back  # type: ignore[no-any-return]


def _drawn() -> list[Tensor]:
    """Return the states of torch's generators, which every random number changes."""
    devices = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return [torch.get_rng_state(), *devices]


def replay(model: nn.Module, path: str | Path) -> Optimizer:
    """Apply a saved log to the weights where its run began, in place; return the optimizer after its last step.

    The result has the run's bits on the same kind of device, and the optimizer goes on from there. Cost: the directions
    of every step, and no forward. Raises UserError as `Optimizer.load` does.
    """
    header, _ = _read(path)
    opt = Optimizer(
        model, header["method"], seed=header["seed"], config_dirs=header["config_dirs"], **header["options"]
    )
    try:
        opt.load(path)
    except UserError:
        opt.space.uninstall()
        raise
    return opt


def _read(path: str | Path) -> tuple[dict[str, Any], list[Logged]]:
    """Return the header and the steps of a saved log. Raises UserError for any other file."""
    with reading():
        header, *lines = [parse_object(line) for line in Path(path).read_bytes().splitlines() or [b""]]
    if header is None or "zo_sweeps" not in header or None in lines:
        raise UserError("not the log of a run", where=str(path), fix="Optimizer.save writes one")
    return header, [Logged(one["lr"], one["loss"], tuple(one["coefs"])) for one in lines if one is not None]


class _Seen:
    """Peers of a step that is not shared: keeps the losses of its points."""

    of_points: tuple[float, ...] = ()

    def losses(self, points: Sequence[Point], f: Evaluate) -> tuple[Sequence[Point], list[float]]:
        losses = f(points)
        self.of_points = tuple(losses)
        return points, losses

    def tell(self, coefs: Sequence[float]) -> None:
        return None


def _fingerprint(params: Mapping[str, Tensor]) -> str:
    """Return a digest of some elements of every parameter: reading all of a large model takes longer than a step."""
    return digest({name: probe(param) for name, param in params.items()})


def _must_agree(header: Mapping[str, Any], own: Mapping[str, Any], where: str) -> None:
    """Raise UserError unless a run has this optimizer's method, seed and options, and parameters of these shapes."""
    said, here = ({"method": one["method"], "seed": one["seed"], **one["options"]} for one in (header, own))
    names = [name for name in {**said, **here} if said.get(name) != here.get(name)]
    if others := [f"{name}={said.get(name)!r}, not {here.get(name)!r}" for name in names]:
        raise UserError(f"it is of another configuration: {', '.join(others)}", where=where)
    run, model = header["parameters"], own["parameters"]
    for name in {**run, **model}:
        if run.get(name) != model.get(name):
            shapes = f"{name} is {run.get(name, 'absent')} there and {model.get(name, 'absent')} here"
            raise UserError(f"it is of a model of another shape: {shapes}", where=where)


@cache
def _packaged() -> Composer:
    """Return the composer of the packaged files: composing the defaults takes a tenth of a second."""
    return Composer()


def _configured(
    model: nn.Module, method: str, given: Mapping[str, Any], config_dirs: Sequence[str | Path]
) -> TrialConfig:
    """Return the configuration of a trial with this method and these options, of which the axes are used.

    Raises UserError for what no option is, and for a method that a closure is not enough for.
    """
    folders = [str(Path(folder).resolve()) for folder in config_dirs]
    with registry.using_folders(folders):
        composer = Composer(config_dirs=folders) if folders else _packaged()
        chosen = {axis: given[axis] for axis in AXES if axis in given}
        tree = deepcopy(composer.trial_part({"method": method, **chosen}))
        if not NamedMethod.read(tree["method"], "method").kind.estimates:
            fix = "torch.optim has optimizers of gradients"
            raise UserError(f"method {method!r} takes no zeroth-order steps", fix=fix)
        for name, value in given.items():
            if name not in AXES:
                part, _, option = _key(name, value, tree, method).partition(".")
                tree[part][option] = list(value) if isinstance(value, tuple) else value
        trained = next((param.dtype for param in model.parameters() if param.requires_grad), None)
        tree["precision"] = {"name": PRECISIONS.get(trained, "fp32")}
        tree["train"]["batch"] = 1  # the closure's own
        tree["members"] = folders
        config = TrialConfig.read(tree)
        if reasons := _more_than_a_closure(config) or incompatible(config):
            raise together(UserError(f"method {method!r}: {reason}") for reason in reasons)
        return config


def _key(name: str, value: object, tree: Mapping[str, Any], method: str) -> str:
    """Return the key `axis.option` that a name is, or is the end of. Raises UserError if none is, or several are."""
    parts = {axis: registry.member(axis, tree[axis]["name"]) for axis in AXES} | {EVALUATION: Evaluation}
    known = [f"{part}.{f.name}" for part, of in parts.items() for f in options(of)]
    short = {key: key.partition(".")[2] for key in known}
    keys = [key for key in known if name in (key, short[key])]
    if not keys:
        choices = known if "." in name else short.values()
        raise unknown("option", name, {*AXES, *choices}, where=f"method {method!r}")
    if len(keys) > 1:
        what = f"{name} is an option of {' and of '.join(key.partition('.')[0] for key in keys)}"
        raise UserError(what, where=f"method {method!r}", fix=f"write **{{{keys[0]!r}: {value!r}}}, or {keys[1]!r}")
    return keys[0]


def _more_than_a_closure(config: TrialConfig) -> list[str]:
    """Return what a method needs that a loss of the weights does not give."""
    space, estimator = config.space, config.estimator
    reasons = {
        f"space {space.name!r} takes its masks from gradients": space.needs_gradients,
        f"space {space.name!r} replaces its parameters; leave out refresh": space.renewed_every,
        f"space {space.name!r} trains {space.theta.value}; run it as a sweep": space.theta is not Theta.FLOATS,
        f"estimator {estimator.name!r} has a minibatch for each direction; run it as a sweep": estimator.owns_rows,
        "evaluation.parts is of rows; average minibatches in the closure": config.evaluation.parts is not None,
        f"method {config.method.name!r} has rows of several clients; run it as a sweep": config.method.kind.of_clients,
        "wrap the optimizer in a torch.optim.lr_scheduler": config.update.schedule != Schedule.read("constant"),
    }
    return [reason for reason, holds in reasons.items() if holds]


def _layers(model: Any, space: Space) -> list[str]:
    """Return the qualified names of the space's target layers, in the model's order.

    Raises UserError, with the choices, for a target that the model does not have.
    """
    targets, kind = space.layers, getattr(getattr(model, "config", None), "model_type", None)
    if space.positions and kind is None:
        raise UserError(f"space {space.name!r} needs a language model of transformers, not a {type(model).__name__}")
    if getattr(space, "blocks", None) and kind is None:
        what = f"blocks are counted in language models of transformers, not in a {type(model).__name__}"
        raise UserError(what, where="blocks", fix="name the layers in targets")
    read = {layer.out_proj for layer in model.modules() if isinstance(layer, nn.MultiheadAttention)}  # never called
    linears = [name for name, one in model.named_modules() if linear.is_projection(one) and one not in read]
    if targets and kind is not None:
        from zo_sweeps.models.families import describe

        arch = describe(model.config.to_dict())
        wanted = {*arch.names(targets, space.untouched(arch))}
        if absent := sorted(wanted - {*linears}):
            what = f"{absent[0]} of a {kind} is no layer of this {type(model).__name__}"
            fix = "train a peft model's adapter with space='full', or call opt.space.uninstall() of an earlier one"
            raise UserError(what, where="targets", fix=fix)
        return [name for name in linears if name in wanted]
    matches = {t: {name for name in linears if t == ALL or f".{name}".endswith(f".{t}")} for t in targets}
    for target, names in matches.items():
        if not names:
            raise unknown("target", target, {ALL, *linears}, where="targets")
    return [name for name in linears if any(name in names for names in matches.values())]
