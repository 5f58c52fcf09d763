"""Rows that are generated for rewards, and metrics of rewards."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.plan.common import changed, planned
from zo_sweeps.core.errors import UserError
from zo_sweeps.core.files import cache_at
from zo_sweeps.methods.task import Gym
from zo_sweeps.plan import availability
from zo_sweeps.tasks.data import generated
from zo_sweeps.tasks.metrics.pass_at_k import PassAtK
from zo_sweeps.tasks.rewards import reasoning_gym
from zo_sweeps.tasks.rewards.number import Number
from zo_sweeps.tasks.rewards.reasoning_gym import ReasoningGym

pytestmark = pytest.mark.unit

SUMS = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}


def lines(folder: Path) -> dict[str, list[dict[str, Any]]]:
    return {
        name: [json.loads(line) for line in (folder / f"{name}.jsonl").read_text().splitlines()]
        for name in ("train", "validation", "test")
    }


@pytest.mark.long
def test_generated_splits_are_disjoint_and_come_from_the_seed(tmp_path: Path) -> None:
    pytest.importorskip("reasoning_gym", reason="it comes with the extra [rewards]")
    gym = Gym("chain_sum", SUMS, seed=3, train=40, dev=20, test=30)  # 200 questions exist
    with cache_at(tmp_path / "one"):
        folder = generated(gym)
        rows = lines(folder)
        other = lines(generated(Gym("chain_sum", SUMS, seed=4, train=40, dev=20, test=30)))
        fewer = lines(generated(Gym("chain_sum", SUMS, seed=3, train=10, dev=5, test=30)))
    with cache_at(tmp_path / "two"):
        again = generated(gym)
    questions = [row["question"] for name in rows for row in rows[name]]
    assert [len(rows[name]) for name in rows] == [40, 20, 30]
    assert len(set(questions)) == 90
    assert lines(again) == rows
    assert again.name == folder.name
    assert other["test"] != rows["test"]
    assert fewer["test"] == rows["test"], "test does not depend on the size of train"
    reward = ReasoningGym()
    assert {reward.of(row, row["answer"]) for row in rows["validation"]} == {1.0}


# Generators of reasoning-gym that hand an answer to `eval`, or to sympy's: another form of a right answer, its score.
EVALUATES: dict[str, tuple[Callable[[Any], str], float]] = {
    "spiral_matrix": (lambda row: str([int(word) for word in row["answer"].split()]), 0.1),
    "string_insertion": (lambda row: str([*row["answer"]]), 0.1),
    "binary_matrix": (lambda row: str([[int(n) for n in line.split()] for line in row["answer"].splitlines()]), 0.1),
    "n_queens": (lambda row: str([line.split() for line in row["answer"].splitlines()]), 0.5),
    "countdown": (lambda row: f"({row['metadata']['expression']})", 1.0),
    "puzzle24": (lambda row: row["answer"], 1.0),
    "simple_integration": (lambda row: f"{row['answer'].removesuffix(' + C')} + 3**2", 1.0),
    "polynomial_multiplication": (lambda row: f"({row['answer'].replace('**', ' ** ')})", 1.0),
}


SCORER = """
import sympy as sp
from sympy import parse_expr

def value(answer): return eval(answer)
def formula(answer): return parse_expr(answer)
def other(answer): return sp.parse_expr(answer, local_dict={"C": sp.Symbol("C")})
"""


def test_the_modules_of_the_package_evaluate_no_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the package, whose modules this one stands for: it comes with an extra."""
    module, mark = ModuleType("reasoning_gym.made_up"), tmp_path / "ran"
    exec(SCORER, vars(module))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    reasoning_gym._guard.cache_clear()
    reasoning_gym._guard()
    reasoning_gym._guard.cache_clear()  # of the package's own modules, if they are loaded later
    assert [module.value(text) for text in ("[1, ['a']]", " (1 + 2) / 4", "1 << 3")] == [[1, ["a"]], 0.75, 8]
    assert module.formula("x**2*sin(2*x) + 3**4") == module.other("3**4 + sin(2*x)*x**2")
    assert str(module.other("x + C")) == "C + x"
    calls = (
        f"open({str(mark)!r}, 'w')",
        f"__import__('os').system('touch {mark}')",
        "(1).__class__",
        "9**9**9",
        "2**2000",
    )
    for text in (*calls, f"[{calls[0]}]", f"sin({calls[0]})", f"sqrt(x={calls[0]})", "exit()", "_", "lambda: 1"):
        for computed in (module.value, module.formula, module.other):
            with pytest.raises((ValueError, SyntaxError)):
                computed(text)
    with pytest.raises(ValueError, match="in an answer"):
        module.value("'a' * 10**9")
    assert not mark.exists()


@pytest.mark.parametrize("name", EVALUATES)
def test_an_answer_is_computed_and_never_run(name: str, tmp_path: Path) -> None:
    gym = pytest.importorskip("reasoning_gym", reason="it comes with the extra [rewards]")
    row, mark, reward = gym.create_dataset(name, size=1, seed=0)[0], tmp_path / "ran", ReasoningGym()
    form, score = EVALUATES[name]
    assert reward.of(row, form(row)) == score, "as with `eval`"
    calls = f"open({str(mark)!r}, 'w').write('x')", f"__import__('os').system('touch {mark}')"
    for call in (*calls, *(f"[{call}]" for call in calls), f"sqrt({calls[0]})", "(1).__class__", "9**9**9**9"):
        assert reward.of(row, f"<answer>{call}</answer>") < score
    assert not mark.exists()


@pytest.mark.long
@pytest.mark.parametrize(
    ("gym", "why"),
    [
        (Gym("chain_sums"), "unknown generator of reasoning-gym 'chain_sums'.*did you mean 'chain_sum'"),
        (Gym("chain_sum", {"terms": 2}), "chain_sum takes no such options .*terms.* in task.gym.options"),
        (Gym("chain_sum", {"min_terms": 9, "max_terms": 2}), "chain_sum takes no such options"),
        (Gym("chain_sum", SUMS, train=150, dev=50, test=50), "chain_sum has 200 questions in 5000 rows, not 250"),
    ],
)
def test_a_generator_that_does_not_suit_is_refused_in_one_line(gym: Gym, why: str, tmp_path: Path) -> None:
    pytest.importorskip("reasoning_gym", reason="it comes with the extra [rewards]")
    with cache_at(tmp_path), pytest.raises(UserError, match=why) as error:
        generated(gym)
    assert "\n" not in str(error.value)
    assert not list(tmp_path.rglob("*.jsonl"))


def test_the_library_of_a_reward_is_looked_for_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(availability, "version_of", lambda name: "")
    plan = planned(tmp_path, changed(), "task=demo_sums", "task.kind={name: verified, rewards: [exact, math_verify]}")
    assert {*plan.missing.values()} == {"math-verify is not installed; pip install 'zo-sweeps[rewards]'"}
    assert len(plan.missing) == len(plan.every)


def test_pass_at_k_is_the_share_of_subsets_with_a_text_that_passes() -> None:
    from itertools import combinations

    rewards = [[1.0, 0.2, 0.0, 1.0, 0.0], [0.0, 0.0, 1.0, 0.0, 0.0]]
    for k in (1, 2, 3, 5):
        every = [any(one == 1 for one in chosen) for row in rewards for chosen in combinations(row, k)]
        assert PassAtK(k).compute(rewards, [[""] * 5] * 2) == pytest.approx(sum(every) / len(every))


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("The answer is...7", "7"),
        ("1..5", "1 5"),
        ("The answer is \u22123", "-3"),
        ("It is .5, or $.50, or -.25", "0.5 0.5 -0.25"),
        ("Room No.5", "5"),
        ("top-5", "5"),
        ("10-3 and 5\u22123", "10 3 5 3"),
        ("x=-2, (-4)", "-2 -4"),
        ("3.14 and 1,234.5", "3.14 1234.5"),
        ("12. 7", "12 7"),
        ("It is 3.Then 4.", "3 4"),
        ("#### 18.00.", "18"),
        ("v1.2.3", "1.2"),
        ("2024-05-06, 6.5.2024", "2024 5 6 6.5"),
        ("3/4, 2^6, 10%", "3 4 2 6 10"),
    ],
)
def test_a_number_is_read_with_its_sign_and_its_point_and_no_others(text: str, numbers: str) -> None:
    found = numbers.split()
    told = {
        one for one in (*found, "3", "-3", "5", "-5", "7", "0.7", "50", "2.3") if Number().of({"answer": one}, text)
    }
    assert {float(one) for one in told} == {float(one) for one in found}
    assert Number(position="last").of({"answer": found[-1]}, text) == 1


def test_a_row_without_a_number_is_named_by_its_column() -> None:
    with pytest.raises(ValueError, match="column 'solution' of the row has no number: 'none'"):
        Number(column="solution").of({"solution": "none"}, "3")
