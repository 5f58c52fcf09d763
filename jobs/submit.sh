#!/usr/bin/env bash
# A sweep as a Ray job: its driver runs on the head, so it outlives this terminal. Submit the same overrides again to resume it.
#   RAY_AUTH_TOKEN_PATH=FILE jobs/submit.sh http://127.0.0.1:8265 +grid=llama2_superglue state_dir=/srv/zo data.dir=/srv/data
# The dashboard listens on the head's loopback: reach it with `ssh -L 8265:127.0.0.1:8265 HEAD`. zo-sweeps is installed on every
# node, in the environment that Ray was started from; folders are the head's.
set -euo pipefail
dashboard=${1:?"usage: RAY_AUTH_TOKEN_PATH=FILE jobs/submit.sh http://127.0.0.1:8265 +grid=NAME state_dir=FOLDER [key=value ...]"}
: "${RAY_AUTH_TOKEN_PATH:?must name the file with the token of the head}"
export RAY_AUTH_MODE=token
# Ray sets the cluster's address in the job's environment; the head's shell expands the variable, not this one.
# shellcheck disable=SC2016
exec ray job submit --address "$dashboard" --no-wait -- \
  sh -c 'exec python -m zo_sweeps "$@" "cluster.address=$RAY_ADDRESS"' zo-sweeps "${@:2}"
