"""`zo-sweeps agent` where the other commands of zo_sweeps are not installed: on a board."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from zo_sweeps.cli.parser import ended
from zo_sweeps.core.errors import UserError
from zo_sweeps_agent.command import agent


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status."""
    given = list(sys.argv[1:] if arguments is None else arguments)

    def run() -> int:
        if given[:1] != ["agent"]:
            raise UserError(
                "a board has the command `agent` alone", fix="run others where zo-sweeps itself is installed"
            )
        return agent(given[1:])

    return ended(run)


if __name__ == "__main__":
    sys.exit(main())
