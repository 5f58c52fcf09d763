"""What is measured of engine and cluster outside the wheel: `zo_sweeps bench` with the parts of this folder."""

import sys

from zo_sweeps.bench.measure import CHECKOUT, PARTS
from zo_sweeps.cli.main import main

if __name__ == "__main__":
    PARTS.update({name: f"benchmarks.{name}:rows" for name in CHECKOUT})
    sys.exit(main(["bench", *sys.argv[1:]]))
