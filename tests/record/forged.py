"""Events that a hostile agent sends, as data: each with the one line that it gets."""

from __future__ import annotations

import math
from typing import Any

START = {"type": "start", "time": 1.0, "attempt": 1, "device": {}, "versions": {}, "resumed_from": 0}
STEPS = {"type": "steps", "time": 1.0, "first": 1, "losses": [1.0], "coefs": [[1.0]], "seconds": 1.0, "tokens": 1}
EVAL = {
    "type": "eval",
    "time": 1.0,
    "step": 1,
    "split": "dev",
    "loss": 1.0,
    "metric": 0.5,
    "metrics": {"accuracy": 0.5},
}
GRADIENTS = {"type": "gradients", "time": 1.0, "step": 0, "shares": [0.5, 1.0], "mean": [0.9, 1.0], "std": [0.1, 0.0]}
GRADIENTS |= {"layers": 2, "covered": {"task_dynamic/0.1": 0.5}}
WARNING = {"type": "warning", "time": 1.0, "metric": "m", "text": "t"}
OUTCOME = {"trial_id": "t", "state": "SUCCEEDED", "metrics": {"a/b": 1.0}, "error": ""}
LINE = {"type": "step", "step": 1, "losses": [1.0, 2.0], "coefs": [1.0], "seconds": 1.0, "tokens": 1}


def nested(levels: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(levels):
        value = {"a": value}
    return value


def ended(**change: Any) -> dict[str, Any]:
    return {"type": "end", "time": 1.0, "outcome": {**OUTCOME, **change}}


def logged(line: Any) -> dict[str, Any]:
    return {"type": "log", "time": 1.0, "line": line}


NUMBER, NO_LINE, NO_TYPE = "a number is needed", "no line of the light client's log", "an event of no known type"
COUNT = f"a whole number from 0 to {2**53} is needed"
LEVELS = "an object of at most 5000 entries in 6 levels is needed"
MAPPING, END = "a mapping of at most 10000 entries is needed", "event end: wrong 'outcome': Outcome:"
FINITE = f"a number of at most {2.0**40:g} is needed"
EVENTS: dict[str, tuple[Any, str]] = {
    "no type": ({}, NO_TYPE),
    "unknown type": ({"type": "run", "time": 1.0}, NO_TYPE),
    "a list as a type": ({"type": [], "time": 1.0}, NO_TYPE),
    "a file for MLflow": ({"type": "file", "time": 1.0, "name": "../x", "text": ""}, NO_TYPE),
    "a decision at a rung": ({"type": "rung", "time": 1.0, "step": 1, "kept": []}, NO_TYPE),
    "without a time": ({"type": "warning", "metric": "m", "text": "t"}, "event warning: 'time' is missing"),
    "no time": ({**START, "time": None}, f"event start: wrong 'time': {NUMBER}"),
    "a time that is none": ({**STEPS, "time": math.nan}, f"event steps: wrong 'time': {FINITE}"),
    "the end of time": ({**STEPS, "time": math.inf}, f"event steps: wrong 'time': {FINITE}"),
    "a device 489 deep": ({**START, "device": nested(489)}, f"event start: wrong 'device': {LEVELS}"),
    "a device of lists": ({**START, "device": {"a": [[[[[[[]]]]]]]}}, f"event start: wrong 'device': {LEVELS}"),
    "a device without end": (
        {**START, "device": {"a": [0] * 5000}}, f"event start: wrong 'device': {LEVELS}",
    ),
    "a device that is none": (
        {**START, "device": []}, "event start: wrong 'device': an object of at most 5000 fields is needed",
    ),
    "text as threads": ({**START, "device": {"threads": "2"}}, f"event start: DeviceRecord: wrong 'threads': {COUNT}"),
    "a number as GPUs": (
        {**START, "device": {"gpus": 1}},
        "event start: DeviceRecord: wrong 'gpus': a list of at most 64 entries is needed",
    ),
    "a number as places": (
        {**START, "device": {"earlier": 3}},
        "event start: DeviceRecord: wrong 'earlier': a list of at most 5000 entries is needed",
    ),
    "text as load": (
        {**START, "device": {"load": {"before": "x"}}}, f"event start: DeviceRecord: wrong 'load': {NUMBER}",
    ),
    "a list as packages": ({**START, "versions": {"packages": []}}, "event start: wrong 'versions'"),
    "text as an attempt": ({**START, "attempt": "1"}, f"event start: wrong 'attempt': {COUNT}"),
    "text as a number": ({**STEPS, "losses": ["1"]}, f"event steps: wrong 'losses': {NUMBER}"),
    "a loss in a list": ({**STEPS, "losses": [[1.0]]}, f"event steps: wrong 'losses': {NUMBER}"),
    "text as a step": ({**STEPS, "first": "1"}, f"event steps: wrong 'first': {COUNT}"),
    "step 0": ({**STEPS, "first": 0}, "event steps: wrong 'first': steps are counted from 1"),
    "a step beyond all": ({**STEPS, "first": 2**60}, f"event steps: wrong 'first': {COUNT}"),
    "no tokens": ({key: value for key, value in STEPS.items() if key != "tokens"}, "event steps: 'tokens' is missing"),
    "truth as a number": ({**STEPS, "seconds": True}, f"event steps: wrong 'seconds': {NUMBER}"),
    "seconds that are none": ({**STEPS, "seconds": math.nan}, f"event steps: wrong 'seconds': {FINITE}"),
    "time that runs back": ({**STEPS, "seconds": -1.0}, "event steps: negative 'seconds' or 'joules'"),
    "energy that comes back": ({**STEPS, "joules": -1e9}, "event steps: negative 'seconds' or 'joules'"),
    "energy without end": ({**STEPS, "joules": math.inf}, f"event steps: wrong 'joules': {FINITE}"),
    "no list": ({**STEPS, "coefs": [1.0]}, f"event steps: wrong 'coefs': a list of at most {10**6} entries is needed"),
    "rounding of two": (
        {**STEPS, "rounding": [[1, 0.1]]}, "event steps: wrong 'rounding': three numbers each are needed",
    ),
    "no score": ({**EVAL, "loss": "low"}, f"event eval: wrong 'loss': {NUMBER}"),
    "no metrics": ({**EVAL, "metrics": [1.0]}, f"event eval: wrong 'metrics': {MAPPING}"),
    "an odd score": ({**EVAL, "metrics": {"a\n": 1.0}}, "event eval: a metric named 'a\\n'"),
    "a test without a step": ({**EVAL, "type": "test", "step": None}, f"event test: wrong 'step': {COUNT}"),
    "gradients without shares": (
        {key: value for key, value in GRADIENTS.items() if key != "shares"}, "event gradients: 'shares' is missing",
    ),
    "gradients of two lengths": (
        {**GRADIENTS, "mean": [1.0]}, "event gradients: 'shares', 'mean' and 'std' of different lengths",
    ),
    "covered by nothing": (
        {**GRADIENTS, "covered": None},
        f"event gradients: wrong 'covered': {MAPPING}",
    ),
    "covered in brackets": ({**GRADIENTS, "covered": {"a": [1.0]}}, f"event gradients: wrong 'covered': {NUMBER}"),
    "an update lost": ({"type": "updates", "time": 1.0, "step": 1, "lost": []},
        f"event updates: wrong 'lost': {NUMBER}"),
    "rounds that are none": (
        {"type": "generate", "time": 1.0, "tokens": 4, "seconds": 1.0},
        f"event generate: wrong 'seconds': a list of at most {10**6} entries is needed",
    ),
    "another trial's end": (ended(trial_id="u"), "an outcome of another trial"),
    "no outcome": (
        {"type": "end", "time": 1.0, "outcome": []}, f"{END} a JSON object is needed",
    ),
    "no such state": (ended(state="RUNNING"), "an outcome with a wrong 'state': 'RUNNING' is no end of an attempt"),
    "a pause": (ended(state="PAUSED"), "an outcome with a wrong 'state': 'PAUSED' is no end of an attempt"),
    "a list as a state": (
        ended(state=[]), f"{END} wrong 'state': a text of at most 1000 characters is needed",
    ),
    "unknown field": (ended(run="code"), "an outcome with an unknown field 'run'"),
    "an end 489 deep": (ended(device=nested(489)), f"{END} wrong 'device': {LEVELS}"),
    "threads of nothing": (
        ended(device={"threads": None}), f"event end: wrong 'outcome': DeviceRecord: wrong 'threads': {COUNT}",
    ),
    "odd metric": (ended(metrics={"a\n": 1.0}), "event end: a metric named 'a\\n'"),
    "no metric": (ended(metrics={"a": "1"}), f"{END} wrong 'metrics': {NUMBER}"),
    "a metric of nothing": (
        ended(metrics={"wall_seconds": None}), f"{END} wrong 'metrics': {NUMBER}",
    ),
    "metrics without end": (
        ended(metrics={f"a{i}": 0.0 for i in range(10_001)}),
        f"{END} wrong 'metrics': {MAPPING}",
    ),
    "a reason that is none": (
        ended(unmeasured={"a": 1}),
        f"{END} wrong 'unmeasured': a text of at most {2**22} characters is needed",
    ),
    "a line of no log": (logged({"type": "steps"}), NO_LINE),
    "a list as a line's type": (logged({"type": []}), NO_LINE),
    "no line": (logged(None), NO_LINE),
    "a line without coefficients": (
        logged({**LINE, "coefs": None}), f"event log: wrong 'coefs': a list of at most {10**6} entries is needed",
    ),
    "a line of a step that is none": (logged({**LINE, "step": -1}), f"event log: wrong 'step': {COUNT}"),
    "half a character": (
        {**WARNING, "text": "\ud800"},
        "half a character in a text",
    ),
}  # fmt: skip

# (events, outcome, the line)
OUTCOMES: dict[str, tuple[list[Any], Any, str]] = {
    "a success without events": ([], OUTCOME, "the outcome SUCCEEDED without the end event that has it"),
    "a success without its end": ([START, STEPS], OUTCOME, "the outcome SUCCEEDED without the end event that has it"),
    "another outcome than its end's": (
        [START, ended(metrics={"a/b": 0.0})], OUTCOME, "the outcome SUCCEEDED without the end event that has it",
    ),
    "an end that is not the last": (
        [ended(), STEPS], OUTCOME, "the outcome SUCCEEDED without the end event that has it",
    ),
    "a failure without its end": (
        [START], {**OUTCOME, "state": "FAILED"}, "the outcome FAILED without the end event that has it",
    ),
}  # fmt: skip
