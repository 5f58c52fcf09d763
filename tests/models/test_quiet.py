"""What is printed by the libraries that the models import: nothing, unless it is an error."""

from __future__ import annotations

import logging
import subprocess
import sys

import pytest

import zo_sweeps.models

IMPORT = """
import logging, sys
import zo_sweeps.models.load_codes
assert "torchao" in sys.modules, "transformers imports it"
import executorch.runtime
"""


@pytest.mark.multiprocess
@pytest.mark.long  # three libraries are imported
def test_importing_transformers_beside_torchao_and_executorch_prints_nothing() -> None:
    command = [sys.executable, "-W", "ignore", "-c", IMPORT]  # warnings of Python are tests' own: pytest shows them
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.unit
def test_errors_and_other_warnings_pass(caplog: pytest.LogCaptureFixture) -> None:
    assert zo_sweeps.models, "imported: that filters what is logged from now on"
    logging.getLogger("torchao").error("broken")
    logging.getLogger("torchao").warning("Failed to load x.so")
    tree = logging.getLogger("torch.utils._pytree")
    assert tree.filter(logging.makeLogRecord({"msg": "another warning"}))
    assert not tree.filter(logging.makeLogRecord({"msg": "%s is an Enum subclass and is now natively supported"}))
    assert caplog.messages == ["broken"]
