#!/bin/sh
# Run a tiny sweep with the code of a commit, and store its state folder beside this script: make.sh COMMIT
# PYTHON is an interpreter with the dependencies of that commit (default: python).
set -eu
here=$(cd "$(dirname "$0")" && pwd)
name=$(git -C "$here" rev-parse --short=7 "$1")
work=$(mktemp -d)
trap 'git -C "$here" worktree remove --force "$work/code"; rm -rf "$work"' EXIT
git -C "$here" worktree add --quiet --detach "$work/code" "$1"
cd "$work/code"
PYTHONPATH=$work/code OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 "${PYTHON:-python}" -m zo_sweeps \
    +grid=quickstart scale=smoke executor=inline 'grid.seeds=[0]' update.lr=0.1 state_dir="$work/state"
cd "$work/state"
for book in $(find mlflow/sweeps books -name '*.jsonl' 2>/dev/null); do # without the tables and the report, which nothing reads again
    grep -v '"type":"finish"' "$book" >"$work/book"
    cp "$work/book" "$book"
done
# A commit may have no plans/: the record of a sweep's plan.
find ledger.jsonl journal sweeps plans mlflow/sweeps books -type f 2>/dev/null | LC_ALL=C sort |
    tar --create --files-from=- --mtime=@0 --owner=0 --group=0 --numeric-owner | gzip -9n >"$here/$name.tar.gz"
