#!/usr/bin/env bash
# Every grid of the Bytebots report. Repeat it after a stop: it goes on. Overrides go to each: jobs/bytebots.sh state_dir=FOLDER scale=smoke
trap 'exit 130' INT; status=0
for grid in bytebots_table1 bytebots_frameworks; do python -m zo_sweeps "+grid=$grid" "$@" || status=$?; done
exit "$status"
