"""The target of a client's process that tells which files of rows it opens."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from zo_sweeps.run.run_trial import Following, run_trial

__all__ = ["Following", "run_trial"]


def tell(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open" and str(arguments[0]).endswith(".jsonl"):
        with Path(os.environ["ZO_TEST_OPENED"]).open("a") as file:
            file.write(f"{os.getpid()} {Path(str(arguments[0])).name}\n")


if "ZO_TEST_OPENED" in os.environ:
    sys.addaudithook(tell)
