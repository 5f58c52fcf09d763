#!/bin/sh
# Start the MLflow server. Its arguments are further host names that it answers to: HOST:PORT, separated by commas.
# MLflow takes the key that signs its cookies from the environment only; here it comes from a file.
set -eu
: "${MLFLOW_AUTH_CONFIG_PATH:?}"
MLFLOW_FLASK_SERVER_SECRET_KEY=$(cat "${MLFLOW_SERVER_KEY_FILE:?}")
export MLFLOW_FLASK_SERVER_SECRET_KEY
exec mlflow server --app-name basic-auth --workers 1 --host "${MLFLOW_HOST:-0.0.0.0}" --port "${MLFLOW_PORT:-5000}" \
  --allowed-hosts "localhost:*,127.0.0.1:*${1:+,$1}" \
  --backend-store-uri "sqlite:///$PWD/mlflow.db" --artifacts-destination "$PWD/artifacts"
