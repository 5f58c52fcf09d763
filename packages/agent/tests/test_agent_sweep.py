"""A sweep over a Ray node and an agent, each started by its command: the walk of docs/CLUSTER.md, on one machine."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from agents import free_port, wait
from machines import environment, machines, zo
from tests.run.common import measured
from tests.run.common import run as run_here
from zo_sweeps.core.trial import Outcome, Trial
from zo_sweeps.record.journal import JournalStore, outcome, places

# As the other tests of whole clusters; test_board.py runs a trial on a board with every change.
pytestmark = [pytest.mark.multiprocess, pytest.mark.chaos]

ABSENT = ("ray", "mlflow", "hydra", "omegaconf", "pandas", "matplotlib", "datasets", "aiohttp")  # on a board
SMALL = (
    "+grid=quickstart",
    "scale=smoke",
    "grid.seeds=[0]",
    "grid.only=[fo_lora_fa,fo_lora_fa_layerwise,zo_lora_fa_q4]",
)


@pytest.mark.usefixtures("one_thread")
def test_an_agent_takes_trials_beside_a_node_and_they_are_those_of_one_process(tmp_path: Path) -> None:
    """Also: the agent and its trials need none of the head's libraries."""
    for name in ABSENT:
        (tmp_path / "absent" / name).mkdir(parents=True)
        text = f"raise ModuleNotFoundError('an agent imports {name}', name={name!r})\n"
        (tmp_path / "absent" / name / "__init__.py").write_text(text)
    gateway = free_port()
    with machines("--cpus", "1", "--gateway-port", str(gateway)) as head:
        join = re.search(r"agent join (\S+) --code (\S+) --device NAME", head.said)
        assert join
        assert join[1] == f"https://127.0.0.1:{gateway}"
        board = environment(tmp_path)
        board["PYTHONPATH"] = f"{tmp_path / 'absent'}:{board['PYTHONPATH']}"
        words = ["agent", "join", join[1], "--code", join[2], "--device", "cpu", "--name", "bench-3", "--cpus", "1"]
        with (tmp_path / "log").open("w") as log:
            command = [sys.executable, "-m", "zo_sweeps", *words]
            agent = subprocess.Popen(command, env=board, cwd=tmp_path, stdout=log, stderr=log)
        try:
            wait(lambda: "joined" in (tmp_path / "log").read_text() or agent.poll() is not None, 300)
            assert agent.poll() is None, (tmp_path / "log").read_text()
            token = str(head.token)
            sweep = zo(*SMALL, f"cluster.address={head.address}", home=head.home, RAY_AUTH_TOKEN_PATH=token)
            assert sweep.returncode == 0, sweep.stdout + sweep.stderr
            listed = zo("devices", f"cluster.address={head.address}", "--token-file", token, home=head.home)
            assert re.search(r"^bench-3 +cpu", listed.stdout, re.MULTILINE)
            agent.send_signal(signal.SIGTERM)
            assert agent.wait(60) == 0
        finally:
            agent.kill()
        state = head.home / "zo_runs"
        trials = _trials(state)
        store = JournalStore(state)
        on: dict[str, list[str]] = {}
        for trial_id in trials:
            ((node, _, _),) = places(store.read(trial_id))
            on.setdefault(node, []).append(trial_id)
        assert len(on) == 2, "both took a part"
        log_text = (tmp_path / "log").read_text()
        assert log_text.count(": SUCCEEDED") == len(on["bench-3"]), log_text
        for trial_id in on["bench-3"][:1]:
            events = store.read(trial_id)
            ended = outcome(events)
            assert isinstance(ended, Outcome)
            assert ended.metrics["agent_bytes_up"] > 0
            assert measured(ended, events) == measured(*run_here(trials[trial_id]))


def _trials(state: Path) -> dict[str, Trial]:
    """The trials of the state folder's only sweep."""
    (path,) = (state / "books").glob("*.jsonl")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    found = [Trial.from_json(row["trial"]) for row in rows if "trial" in row]
    return {trial.trial_id: trial for trial in found}
