#!/usr/bin/env bash
# Make the secrets of compose.yaml in a folder (default: docker/secrets), once, each readable by you only:
#   ray_token            anyone with it can run code on every node
#   mlflow_auth.ini      the server's settings, with the password of its user "admin"
#   mlflow_server_key    signs the server's cookies
#   mlflow_credentials   the same user and password, as MLflow's client reads them
set -euo pipefail
umask 077
folder=${1:-$(dirname "$0")/secrets}
mkdir -p "$folder"
if [ -e "$folder/ray_token" ]; then
  echo "$folder has its secrets already: remove it for new ones" >&2
  exit 1
fi
random() { od -An -N"$1" -tx1 /dev/urandom | tr -d ' \n'; }

password=$(random 24)
random 32 >"$folder/mlflow_server_key"
cat >"$folder/mlflow_auth.ini" <<INI
[mlflow]
default_permission = NO_PERMISSIONS
database_uri = sqlite:////srv/mlflow/auth.db
admin_username = admin
admin_password = $password
authorization_function = mlflow.server.auth:authenticate_request_basic_auth
auth_cache_ttl_seconds = 60
INI
cat >"$folder/mlflow_credentials" <<INI
[mlflow]
mlflow_tracking_username = admin
mlflow_tracking_password = $password
INI
random 32 >"$folder/ray_token"
echo "made in $folder; MLflow's user is admin, its password is in mlflow_credentials"
