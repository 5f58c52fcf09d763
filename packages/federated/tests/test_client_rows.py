"""Rows that stay with their clients: their content is part of a trial's identity, also where the planner lacks it."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from tests.run.common import GRID, LEFT_OUT, SMALL, TINY, client_files, run
from zo_sweeps.config.composer import Composer
from zo_sweeps.core.errors import UserError
from zo_sweeps.core.trial import Trial, TrialState
from zo_sweeps.methods.trial_config import TrialConfig
from zo_sweeps.plan import stored
from zo_sweeps.plan.build import Plan, build

CLIENTS = 3
DECOMFL = ["method=decomfl", f"method.clients={CLIENTS}", "update.lr=1e-3", "train.steps=2", "train.eval_every=2"]


def plan_of(*overrides: str) -> Plan:
    return build(Composer([*GRID, *SMALL, *TINY, *DECOMFL, *overrides, *LEFT_OUT]))


def one(*overrides: str) -> Trial:
    (trial,) = plan_of(*overrides).trials
    return trial


def kind_of(trial: Trial) -> Any:
    return TrialConfig.of(trial.config).method.kind


@pytest.mark.unit
def test_each_clients_rows_are_part_of_the_identity_wherever_they_are(tmp_path: Path) -> None:
    given = client_files(tmp_path, CLIENTS)
    files = [tmp_path / "sst2" / f"client_{client}.jsonl" for client in range(CLIENTS)]
    first = one(*given)
    remarks = (plan_of(*given, f"estimator.clip={clip}").remarks for clip in (0, 10))
    assert ["set estimator.clip" in str(of_trial) for of_trial in remarks] == [True, False]
    assert kind_of(first).rows == tuple(hashlib.sha256(file.read_bytes()).hexdigest()[:32] for file in files)
    assert one(*given).trial_id == first.trial_id
    assert first.shared_steps is not None
    assert first.shared_steps.rows == kind_of(first).rows
    assert Trial.from_json(json.loads(json.dumps(first.to_json()))).shared_steps == first.shared_steps
    ids = {first.trial_id}
    for file in files:
        before = file.read_bytes()
        file.write_bytes(before + json.dumps({"sentence": "one more", "label": 1}).encode() + b"\n")
        ids.add(one(*given).trial_id)
        file.write_bytes(before)
    assert len(ids) == 1 + CLIENTS, "other rows, another trial"
    files[0].write_bytes(files[1].read_bytes())
    ids.add(one(*given).trial_id)
    assert len(ids) == 2 + CLIENTS

    # The file is elsewhere, where `sha256sum` was run.
    files[0].write_bytes(before := files[2].read_bytes())
    here = one(*given)
    note = f"{hashlib.sha256(before).hexdigest()}  {files[0].name}\n"
    files[0].with_name(f"{files[0].name}.sha256").write_text(note)
    files[0].unlink()
    assert one(*given).trial_id == here.trial_id


@pytest.mark.unit
@pytest.mark.parametrize(
    ("estimator", "line"),
    [
        ("rge", "that one client sends move the weights: set estimator.clip"),
        ("kerzoo", "move the weights: estimator=kerzoo has no bound: take estimator=rge, and set estimator.clip"),
        ("rloo", "move the weights: estimator=rloo has no bound: take estimator=rge, and set estimator.clip"),
        ("best_of", ""),
        ("es_one_sided", ""),
    ],
)
def test_a_plan_says_what_bounds_a_client_where_something_can(tmp_path: Path, estimator: str, line: str) -> None:
    said = str(plan_of(*client_files(tmp_path, CLIENTS), f"estimator={estimator}").remarks)
    assert line in said
    assert ("nothing bounds" in said) == bool(line)


@pytest.mark.unit
def test_a_file_that_is_unknown_is_one_reason_with_the_command_that_makes_its_fingerprint(tmp_path: Path) -> None:
    given = client_files(tmp_path, CLIENTS)
    file = tmp_path / "sst2" / "client_1.jsonl"
    file.unlink()
    plan = plan_of(*given)
    assert not plan.trials
    ((reason,),) = plan.reasons.values()
    command = "`sha256sum client_1.jsonl > client_1.jsonl.sha256`"
    assert reason == f"no file {file}, and no fingerprint of it: run {command} where it is, and copy the result there"
    (tmp_path / "sst2" / "client_2.jsonl").unlink()
    ((reason,),) = plan_of(*given).reasons.values()
    assert f"no file {file} (nor 1 others)" in reason
    note = file.with_name(f"{file.name}.sha256")
    for text in ("", f"{'0' * 64}  client_2.jsonl\n", f"{'0' * 63}  client_1.jsonl\n", "rows"):
        note.write_text(text)
        with pytest.raises(UserError, match=r"not the SHA-256 of client_1\.jsonl in .*sha256sum client_1\.jsonl"):
            plan_of(*given)


@pytest.mark.unit
def test_without_files_there_is_nothing_more_in_the_identity(tmp_path: Path) -> None:
    plain = one()
    assert "rows" not in TrialConfig.of(plain.config).identity()["method"]["kind"]
    assert one("method.rows=[forged]").trial_id == plain.trial_id, "the planner sets it"
    with pytest.raises(UserError, match=r"method\.files='\.\./client_' is not the beginning of a file's name"):
        one(*client_files(tmp_path, CLIENTS), "method.files=../client_")


@pytest.mark.usefixtures("one_thread")
def test_rows_that_have_changed_since_the_plan_are_named_and_never_trained_on(tmp_path: Path) -> None:
    given = client_files(tmp_path, CLIENTS)
    plan = plan_of(*given)
    (trial,) = plan.trials
    file = tmp_path / "sst2" / "client_1.jsonl"
    file.write_bytes(file.read_bytes().replace(b"good", b"grim"))
    now = hashlib.sha256(file.read_bytes()).hexdigest()[:32]
    found, _ = run(trial)
    assert found.state is TrialState.FAILED
    assert f"rows with SHA-256 {now}, planned with {kind_of(trial).rows[1]}, in {file}" in found.error
    launched = stored.sources(plan)
    assert stored.changes(plan, launched, plan_of(*given)) == [f"the data of sst2's clients has changed since: {file}"]
