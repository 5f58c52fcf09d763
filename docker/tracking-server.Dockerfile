# The MLflow server of a cluster, with passwords.
#   docker build --file docker/tracking-server.Dockerfile --tag zo-sweeps-tracking .
FROM python:3.11.13-slim-bookworm

WORKDIR /opt/mlflow
COPY constraints.txt ./
RUN pip install --no-cache-dir --constraint constraints.txt 'mlflow[auth]'
COPY docker/tracking-server.sh ./

ARG UID=1000
RUN useradd --create-home --uid "${UID}" zo && install --directory --owner=zo --mode=700 /srv/mlflow
USER ${UID}
WORKDIR /srv/mlflow
ENV MLFLOW_AUTH_CONFIG_PATH=/run/secrets/mlflow_auth.ini \
    MLFLOW_SERVER_KEY_FILE=/run/secrets/mlflow_server_key \
    MLFLOW_SERVER_ENABLE_JOB_EXECUTION=false \
    MLFLOW_DISABLE_TELEMETRY=true \
    PYTHONUNBUFFERED=1
VOLUME /srv/mlflow
EXPOSE 5000
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=6 \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:5000/health', timeout=4)"]
ENTRYPOINT ["/opt/mlflow/tracking-server.sh"]
