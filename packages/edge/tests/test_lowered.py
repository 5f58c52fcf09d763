"""The forms that XNNPACK takes against the models' own operations, in PyTorch: the same values up to rounding."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.models.common import TINY, make
from tests.models.test_families import FAMILIES
from zo_sweeps.models.load import load
from zo_sweeps_edge.lowered import lowered

UNIT = 2.0**-24
MODELS = {**TINY, "llama tied": {**TINY["llama"], "tie_word_embeddings": True}, **FAMILIES}


@pytest.mark.parametrize("name", MODELS)
def test_a_model_has_the_same_hidden_states(name: str) -> None:
    """Each rewrite rounds a sum of up to 48 products in another order: a few units of the largest state."""
    model = load(make(source="random", arch=MODELS[name]), torch.float32, "cpu")
    for tokens in (8, 24, 40):
        ids = torch.randint(5, 4000, (3, tokens), generator=torch.Generator().manual_seed(tokens))
        with torch.no_grad():
            expected = model.hidden(ids)
            with lowered(model.module, 40):
                found = model.hidden(ids)
        assert (found - expected).abs().max() <= 64 * UNIT * expected.abs().max()


def attention(**changed: Any) -> torch.Tensor:
    draw = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, heads, 16, 8, generator=draw) for heads in (4, 2, 2))
    return F.scaled_dot_product_attention(q, k, v, enable_gqa=True, **changed)


@pytest.mark.parametrize(
    "options",
    [
        {"is_causal": True},
        {"is_causal": True, "scale": 0.3},
        {},
        {"attn_mask": torch.ones(16, 16).tril(2).bool()},
    ],
    ids=["causal", "scaled", "both ways", "masked"],
)
def test_attention_that_is_not_causal_stays_as_it_is(options: dict[str, Any]) -> None:
    """A causal one sums 8 products per score and 16 per value: at most 24 roundings of the largest value."""
    expected = attention(**options)
    with lowered(torch.nn.Identity(), 16):
        found = attention(**options)
    if options.get("is_causal"):
        torch.testing.assert_close(found, expected, rtol=0, atol=24 * UNIT * 4)  # |v| < 4
    else:
        assert torch.equal(found, expected)


def test_other_forms_of_an_operation_stay_as_they_are() -> None:
    x = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0))
    with lowered(torch.nn.Identity(), 8):
        for dim, keep in product((0, 1, 2, -1), (False, True)):
            torch.testing.assert_close(x.mean(dim, keepdim=keep), x.sum(dim, keepdim=keep) / x.shape[dim])
        assert x.mean() == x.sum() / 24
        assert x.to(torch.float64).dtype == x.double().dtype == torch.float64
        assert x.to("cpu") is x.to(torch.float32) is x.float() is x
        assert x.double().float().dtype == torch.float32
        y = torch.baddbmm(x, x @ x.transpose(1, 2), x, beta=0.5, alpha=2.0)
        torch.testing.assert_close(y, 0.5 * x + 2 * (x @ x.transpose(1, 2)) @ x)
