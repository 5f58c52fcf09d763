"""`python -m zo_sweeps`."""

import sys

from zo_sweeps.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
