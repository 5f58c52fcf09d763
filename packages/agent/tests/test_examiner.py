"""The process that examines a board: whatever ends it, the board joins with what runs there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import facts as boards
from zo_sweeps.core.errors import UserError
from zo_sweeps_agent.agent import examiner
from zo_sweeps_agent.known_answers import Challenge, ModelQuestion

pytestmark = pytest.mark.multiprocess
PROGRAM = f"""
import json, os, sys
HOST = {boards.HOST.to_json()}
for line in sys.stdin:
    asked = json.loads(line)
    if asked == "host":
        os.abort()
    if asked == "host apart":
        found = {{**HOST, "codes": {{"nf4": "ended with SIGABRT", "int4": ""}}}}
    elif asked["nonce"] == "bad":
        sys.exit("no memory left")
    else:
        found = {{"noise": [str(os.getpid())], "losses": {{one: [1.0] for one in asked["precisions"]}}}}
    print(json.dumps(found), flush=True)
"""


def test_a_kernel_that_ends_the_examiner_ends_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A further process then finds what runs; what does not is not asked; a process is kept between questions."""
    (tmp_path / "examined.py").write_text(PROGRAM)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(examiner, "MODULE", "examined")
    one, challenge = examiner.Examiner(), Challenge((), ModelQuestion(0, ()), ("fp32", "int4", "nf4"))
    host = one.host()
    assert host.codes == {"nf4": "ended with SIGABRT", "int4": ""}
    found = one.answers(challenge, host.codes)
    assert (set(found.losses), found.failed) == ({"fp32", "int4"}, {"nf4": "ended with SIGABRT"})
    assert one.answers(challenge, {}).noise == found.noise, "the same process"
    with pytest.raises(UserError, match="cannot answer the head's questions: no memory left"):
        one.answers(replace(challenge, nonce="bad"), {})
    assert one.answers(challenge, {}).noise != found.noise, "another one, after the end of the first"
    one.end()
