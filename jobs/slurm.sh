#!/usr/bin/env bash
# A sweep on Slurm: a Ray head on the job's first node, a worker on each other node, the driver on the head's node.
#   sbatch jobs/slurm.sh +grid=llama2_superglue state_dir=/shared/zo data.dir=/shared/data
# At its time limit, after a lost node and after preemption it queues again, and resumes from the state folder, which all
# nodes must share; sbatch --no-requeue: it does not.
# ZO_DEVICE (default cuda) names the nodes' profile of conf/device; RAY_PORT sets the head's port, if not every port is open.
# zo-sweeps must be on PATH, at one version, on every node.
#SBATCH --job-name=zo-sweeps
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=8
#SBATCH --gpus-per-node=1
#SBATCH --time=24:00:00
#SBATCH --signal=B:USR1@120
#SBATCH --requeue
#SBATCH --open-mode=append
set -euo pipefail
umask 077

: "${SLURM_JOB_ID:?is set by Slurm: submit this file with sbatch}"
device=${ZO_DEVICE:-cuda}
cpus=${SLURM_CPUS_PER_TASK:-1}
gpus=${SLURM_GPUS_PER_NODE:-0}
gpus=${gpus##*:} # "a100:4" -> 4
port=${RAY_PORT:-$((20000 + SLURM_JOB_ID % 10000))}
mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")

# The job's own folder on the shared file system, readable by its owner only: the token, which is in no argument and no
# log, and a state folder a worker. Ray's sockets need a short path, on the head's node, which is where this script runs:
# Ray lets everybody write to its own folder, so that one is inside another.
job=$(mktemp -d "$PWD/.zo-job-$SLURM_JOB_ID-XXXXXX")
sockets=$(mktemp -d /tmp/zo-XXXXXX)
token=$job/ray_token
head='' again='' workers=() # node by process id
leave() { # the workers first: each hands its trials back while the head still runs
  trap - EXIT TERM INT
  for step in "${!workers[@]}"; do kill -TERM "$step" 2>/dev/null || true; done
  for step in "${!workers[@]}"; do wait "$step" || true; done
  if [ -n "$head" ]; then kill -TERM "$head" 2>/dev/null || true; fi
  wait
  rm -rf -- "$job" "$sockets"
  if [ -n "$again" ]; then scontrol requeue "$SLURM_JOB_ID" || true; fi
}
trap leave EXIT
trap 'exit 143' TERM
trap 'exit 130' INT
od -An -N32 -tx1 /dev/urandom | tr -d ' \n' >"$token"
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH=$token RAY_USAGE_STATS_ENABLED=0
export RAY_enable_metrics_collection=0 DASHBOARD_METRIC_PORT=-1 AUTOSCALER_METRIC_PORT=-1 # exporters ask for no token

on() { # NODE COMMAND... &: a step of this job on that node; `exec`, so that $! is the step itself
  exec srun --nodes=1 --ntasks=1 --cpus-per-task="$cpus" --overlap --nodelist="$1" "${@:2}" # a step inherits no CPUs
}

# The head speaks TLS, without which no other node may send it the token: other jobs share the network.
tls='import os, sys; from zo_sweeps_ray.cluster import tls_variables
os.environ.update(tls_variables(open(os.environ["RAY_AUTH_TOKEN_PATH"]).read()))
os.execvp(sys.argv[1], sys.argv[1:])'
on "${nodes[0]}" python -c "$tls" ray start --head --block --port="$port" --include-dashboard=false \
  --object-store-memory=104857600 --temp-dir="$sockets/ray" --num-cpus="$cpus" --num-gpus="$gpus" \
  --labels="zo.device=$device" &
head=$!
until (exec 3<>"/dev/tcp/${nodes[0]}/$port") 2>/dev/null; do
  kill -0 "$head" # fails if the head has exited: see its output
  sleep 1
done
for node in "${nodes[@]:1}"; do
  on "$node" zo-sweeps worker join "${nodes[0]}:$port" --device "$device" --token-file "$token" --state-dir "$job/$node" \
    --cpus "$cpus" --gpus "$gpus" &
  workers[$!]=$node
done

# In the background, so that this shell gets Slurm's signals at once and forwards them: the driver then stops cleanly.
python -m zo_sweeps "$@" "cluster.address=${nodes[0]}:$port" &
driver=$!
stop() { kill -TERM "$driver" 2>/dev/null; wait "$driver" || true; exit 143; }
trap stop TERM
trap 'again=yes; stop' USR1 # the time limit is near
while kill -0 "$driver" 2>/dev/null; do
  sleep 1 & wait $! || true
  for step in "${!workers[@]}"; do
    kill -0 "$step" 2>/dev/null && continue
    echo "slurm.sh: the worker on ${workers[step]} has ended, as it says above; the sweep goes on without that node" >&2
    unset "workers[step]"
  done
done
wait "$driver"
