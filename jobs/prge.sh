#!/usr/bin/env bash
# Every grid of P-RGE (arXiv:2409.15520). Repeat it after a stop: it goes on. Overrides go to each: jobs/prge.sh state_dir=FOLDER scale=smoke
trap 'exit 130' INT; status=0
for grid in prge_table1 llama2_superglue prge_table3 prge_table4 prge_table5 prge_table6 prge_table9 prge_fig3 prge_fig4 prge_fig5; do python -m zo_sweeps "+grid=$grid" "$@" || status=$?; done
exit "$status"
