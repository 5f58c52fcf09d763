#!/usr/bin/env bash
# Every grid of the Bytebots report. Repeat it after a stop: it goes on. Overrides go to each: jobs/bytebots.sh state_dir=FOLDER scale=smoke
set -euo pipefail
exec python -m zo_sweeps +grid=bytebots_table1 "$@"
