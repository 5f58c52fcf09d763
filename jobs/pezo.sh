#!/usr/bin/env bash
# Every grid of PeZO (arXiv:2504.20314). Repeat it after a stop: it goes on. Overrides go to each: jobs/pezo.sh state_dir=FOLDER scale=smoke
trap 'exit 130' INT; status=0
for grid in pezo_table2 pezo_table3 pezo_table4 pezo_table5 pezo_fig3_pool pezo_fig3_rngs pezo_fig4 pezo_table2_flops pezo_table6; do python -m zo_sweeps "+grid=$grid" "$@" || status=$?; done
exit "$status"
