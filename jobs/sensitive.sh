#!/usr/bin/env bash
# Every grid of extreme sparsity, SensZOQ (arXiv:2406.02913). Repeat it after a stop: it goes on. Overrides go to each: jobs/sensitive.sh state_dir=FOLDER scale=smoke
trap 'exit 130' INT; status=0
for grid in sensitive_table1a sensitive_table1b sensitive_table1c sensitive_fig1 sensitive_fig5_rte sensitive_fig5_wic sensitive_fig5_copa sensitive_fig6 sensitive_adam sensitive_8gib sensitive_fig1_inference sensitive_gradients; do python -m zo_sweeps "+grid=$grid" "$@" || status=$?; done
exit "$status"
