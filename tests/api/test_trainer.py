"""ZOTrainer: the steps of `Optimizer` in the loop of transformers, whose checkpoints are logs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from datasets import Dataset
from peft import LoraConfig, PeftModel, get_peft_model
from torch import Tensor
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
    TrainerCallback,
    TrainingArguments,
)

import zo_sweeps
from zo_sweeps import ZOTrainer
from zo_sweeps.core.errors import UserError

pytestmark = pytest.mark.unit

TOKENS = torch.randint(0, 64, (24, 10), generator=torch.Generator().manual_seed(1))
ROWS = {"input_ids": TOKENS.tolist(), "labels": TOKENS.tolist(), "attention_mask": torch.ones_like(TOKENS).tolist()}


def model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 2, "num_key_value_heads": 2}
    return LlamaForCausalLM(LlamaConfig(vocab_size=64, num_hidden_layers=2, **sizes))


def trainer(folder: Path, method: str = "mezo", kind: type[ZOTrainer] = ZOTrainer, **given: Any) -> ZOTrainer:
    network, options = given.pop("model", None) or model(), given.pop("options", None)
    fixed = {"per_device_train_batch_size": 4, "max_steps": 6, "save_steps": 3, "learning_rate": 1e-2, "seed": 3}
    quiet = {"use_cpu": True, "report_to": [], "disable_tqdm": True, "logging_steps": 2}
    args = TrainingArguments(str(folder), **{**fixed, **quiet, **given})
    data = Dataset.from_dict(ROWS)
    return kind(network, args, train_dataset=data, eval_dataset=data, method=method, options=options)


def values(of: ZOTrainer | zo_sweeps.Optimizer) -> list[Tensor]:
    space = of.zo.space if isinstance(of, ZOTrainer) else of.space
    return [param.detach() for param in space.params.values()]


def same(one: list[Tensor], other: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("accumulated", [1, 2])
def test_a_step_is_the_optimizers_on_the_rows_of_all_its_minibatches(tmp_path: Path, accumulated: int) -> None:
    """Oracle: a loop of one's own over the same rows, with the schedule's rates, has the same bits."""
    batches: list[dict[str, Tensor]] = []

    class Seen(ZOTrainer):
        def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
            batches.append(inputs)
            return super().training_step(model, inputs, num_items_in_batch)

    ran = trainer(tmp_path, kind=Seen, gradient_accumulation_steps=accumulated)
    result = ran.train()
    own = model().eval()
    opt = zo_sweeps.Optimizer(own, "mezo", lr=1e-2, seed=3)
    for number, start in enumerate(range(0, len(batches), accumulated)):
        opt.param_groups[0]["lr"] = 1e-2 * ((6 - number) / 6)
        rows = batches[start : start + accumulated]
        items = sum(int((one["labels"][:, 1:] != -100).sum()) for one in rows)
        opt.step(lambda rows=rows, items=items: sum(own(**one, num_items_in_batch=items).loss for one in rows))
    assert len(ran.zo.log) == 6
    assert ran.zo.log == opt.log
    assert same(values(ran), values(opt))
    assert result.training_loss == pytest.approx(sum(one.loss for one in opt.log) / 6, rel=1e-5)


@pytest.mark.parametrize(
    ("method", "options"), [("mezo", {}), ("lozo_m", {}), ("prge", {"q": 2}), ("prefix", {}), ("random_subset", {})]
)
def test_a_run_that_goes_on_from_a_checkpoint_has_the_same_bits(
    tmp_path: Path, method: str, options: dict[str, Any]
) -> None:
    whole = trainer(tmp_path, method, options=options)
    whole.train()
    assert not [*tmp_path.rglob("optimizer.pt")], "the log is the state"
    resumed = trainer(tmp_path, method, options=options)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    assert resumed.zo.log == whole.zo.log
    assert same(values(resumed), values(whole))
    replayed = zo_sweeps.replay(model(), tmp_path / "checkpoint-6" / "run.jsonl")
    assert same(values(replayed), values(whole))


def test_a_run_that_was_interrupted_does_not_go_on_with_the_weights_that_it_has(tmp_path: Path) -> None:
    class Interrupt(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == 5:
                raise KeyboardInterrupt

    one = trainer(tmp_path)
    one.add_callback(Interrupt())
    with pytest.raises(KeyboardInterrupt):
        one.train()
    with pytest.raises(
        UserError, match=r"the model has taken steps, .*; load the model again, and make a new ZOTrainer"
    ):
        one.train(resume_from_checkpoint=True)


def test_a_scaler_of_gradients_is_turned_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Accelerate makes one for fp16 on a GPU, which refuses to step before it has scaled a loss."""
    made, init = torch.amp.GradScaler("cpu"), Accelerator.__init__

    def scaling(self: Accelerator, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        self.scaler, self.native_amp = made, True

    monkeypatch.setattr(Accelerator, "__init__", scaling)
    ran = trainer(tmp_path, max_steps=2)
    ran.train()
    assert len(ran.zo.log) == 2


def test_a_loss_of_ones_own_has_one_point_in_a_forward(tmp_path: Path) -> None:
    class Own(ZOTrainer):
        def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
            return super().compute_loss(*args, **kwargs) * 2

    with pytest.raises(UserError, match=r"need the model's own loss .*; options=.*sequential"):
        trainer(tmp_path, "prge", Own).train()
    ran = trainer(tmp_path, "prge", Own, options={"mode": "sequential"}, max_steps=1)
    plain = trainer(tmp_path, "prge", options={"mode": "sequential"}, max_steps=1)
    for one in (ran, plain):
        one.train()
    assert ran.zo.log[0].loss == pytest.approx(2 * plain.zo.log[0].loss)
    labels = [0, 1] * 12
    data = Dataset.from_dict({"input_ids": ROWS["input_ids"], "labels": labels})
    classes = LlamaForSequenceClassification(LlamaConfig(**{**model().config.to_dict(), "pad_token_id": 0}))
    of_classes = trainer(tmp_path, "prge", model=classes)
    of_classes.train_dataset = data
    with pytest.raises(UserError, match="need the model's own loss of logits and labels"):
        of_classes.train()


def test_points_in_one_forward_are_those_of_one_after_the_other(tmp_path: Path) -> None:
    """Tolerance: fp32 sums of other shapes, over eps = 1e-2, in each of two coefficients."""
    batched = trainer(tmp_path / "b", "prge", options={"q": 2}, gradient_accumulation_steps=2)
    in_turn = trainer(tmp_path / "s", "prge", options={"q": 2, "mode": "sequential"}, gradient_accumulation_steps=2)
    for one in (batched, in_turn):
        one.train()
    losses = [[line.loss for line in one.zo.log] for one in (batched, in_turn)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    for one, other in zip(batched.zo.log, in_turn.zo.log, strict=True):
        assert one.coefs == pytest.approx(other.coefs, abs=2e-3)


def test_an_adapter_of_the_method_is_saved_in_pefts_format_and_the_best_one_comes_back(tmp_path: Path) -> None:
    best = {"load_best_model_at_end": True, "eval_strategy": "steps", "eval_steps": 3, "metric_for_best_model": "loss"}
    ran = trainer(tmp_path, "prge", options={"q": 2}, **best)
    ran.train()
    step = int(Path(ran.state.best_model_checkpoint or "").name.partition("-")[2])
    cut = zo_sweeps.replay(model(), tmp_path / f"checkpoint-{step}" / "run.jsonl")
    assert same(values(ran), values(cut))
    loaded = PeftModel.from_pretrained(model(), tmp_path / f"checkpoint-{step}").eval()
    assert torch.allclose(loaded(TOKENS).logits, ran.model(TOKENS).logits, atol=1e-6)
    assert not torch.allclose(loaded(TOKENS).logits, model()(TOKENS).logits, atol=1e-6)


def test_the_best_entries_of_a_sparse_space_come_back(tmp_path: Path) -> None:
    best = {"load_best_model_at_end": True, "eval_strategy": "steps", "eval_steps": 3, "metric_for_best_model": "loss"}
    ran = trainer(tmp_path, "random_subset", **{**best, "learning_rate": 30.0})  # so that the last step is worse
    ran.train()
    losses = {line["step"]: line["eval_loss"] for line in ran.state.log_history if "eval_loss" in line}
    assert losses[3] < losses[6]
    assert ran.evaluate()["eval_loss"] == pytest.approx(losses[3], rel=1e-6)


def test_an_optimizer_that_was_made_before_goes_on_from_a_checkpoint_and_a_later_run_begins_anew(
    tmp_path: Path,
) -> None:
    whole = trainer(tmp_path / "whole")
    whole.train()
    again = trainer(tmp_path / "whole")
    again.create_optimizer()
    again.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-3"))
    assert again.zo.log == whole.zo.log
    assert same(values(again), values(whole))
    anew, logs = ZOTrainer(model_init=model, args=again.args, train_dataset=Dataset.from_dict(ROWS)), []
    for given in (None, str(tmp_path / "whole" / "checkpoint-3"), None):
        anew.train(resume_from_checkpoint=given)
        logs.append(anew.zo.log)
    assert logs[0] == logs[1] == logs[2]


def test_a_loss_that_says_that_it_is_a_mean_is_divided_by_the_minibatches(tmp_path: Path) -> None:
    class Mean(ZOTrainer):
        loss_is_scaled_for_ga = False

        def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            return model(**inputs).loss

    losses = [
        trainer(tmp_path / str(n), kind=Mean, gradient_accumulation_steps=n, learning_rate=0.0, max_steps=6 // n)
        for n in (1, 2)
    ]
    for one in losses:
        one.train()
    first = [line.loss for line in losses[0].zo.log[:2]]
    assert losses[1].zo.log[0].loss == pytest.approx(sum(first) / 2, rel=1e-3)


def test_of_a_peft_model_the_adapter_is_trained_and_saved(tmp_path: Path) -> None:
    def wrapped() -> Any:
        base = model()
        return get_peft_model(base, LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False))

    torch.manual_seed(5)
    first = wrapped()
    ran = trainer(tmp_path, model=first)
    ran.train()
    assert {name.rpartition(".lora_")[2] for name in ran.zo.space.params} == {"A.default.weight", "B.default.weight"}
    saved = {file.name for file in (tmp_path / "checkpoint-6").iterdir()}
    assert "adapter_model.safetensors" in saved
    assert "model.safetensors" not in saved
    loaded = PeftModel.from_pretrained(model(), tmp_path / "checkpoint-6").eval()
    assert torch.allclose(loaded(TOKENS).logits, ran.model(TOKENS).logits, atol=1e-6)


@pytest.mark.parametrize("method", ["mezo", "prge"])
def test_autocast_and_evaluation_are_trainers(method: str, tmp_path: Path) -> None:
    ran = trainer(tmp_path, method, bf16=True, eval_strategy="steps", eval_steps=3)
    ran.train()
    assert all(0 < line.loss < 10 for line in ran.zo.log)
    logged = [key for line in ran.state.log_history for key in line]
    assert "eval_loss" in logged
    assert "grad_norm" not in logged, "no gradient was computed"


def test_what_a_trainer_cannot_take_is_refused_in_a_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"weight_decay=0.1 is no part of a zeroth-order step in TrainingArguments"):
        trainer(tmp_path, weight_decay=0.1)
    with pytest.raises(UserError, match=r"unknown option 'epss'"):
        trainer(tmp_path, options={"epss": 1}).train()
    with pytest.raises(UserError, match=r"need the model's own loss.*mode.*sequential"):
        trainer(tmp_path, "prge", label_smoothing_factor=0.1).train()
    trainer(tmp_path).train()
    with pytest.raises(UserError, match=r"another configuration: estimator.q=1, not 2"):
        trainer(tmp_path, options={"q": 2}).train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    (tmp_path / "checkpoint-3" / "run.jsonl").unlink()
    with pytest.raises(UserError, match=r"run\.jsonl"):
        trainer(tmp_path).train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
