"""What the launch files promise: the lock's versions, no root, no open port, no secret, fields that exist."""

from __future__ import annotations

import configparser
import re
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from tests.conftest import REPO
from tests.launch_files.common import DOCKER, DOCKERFILES, FILES, JOBS, UNITS, compose, documents

pytestmark = pytest.mark.unit

LOCK = dict(re.findall(r"^([\w.-]+)==([\w.]+)$", (REPO / "constraints.txt").read_text(), re.MULTILINE))
TEXTS = {"type": "object", "additionalProperties": {"type": "string"}}
COUNT = {"type": "integer", "minimum": 0}


def fields(required: str = "", **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required.split(), "additionalProperties": False}


POD = {"type": "object", "required": ["spec"], "properties": {"spec": {"type": "object", "required": ["containers"]}}}
# The fields of KubeRay's RayJob (CRD reference of v1.6 and v1.7) that ours may have; an API server drops others.
RAYJOB = fields(
    "apiVersion kind metadata spec",
    apiVersion={"const": "ray.io/v1"},
    kind={"const": "RayJob"},
    metadata=fields("name", name={"type": "string"}),
    spec=fields(
        "entrypoint rayClusterSpec",
        entrypoint={"type": "string"},
        submissionMode={"enum": ["K8sJobMode", "HTTPMode", "SidecarMode", "InteractiveMode"]},
        backoffLimit=COUNT,
        activeDeadlineSeconds=COUNT,
        shutdownAfterJobFinishes={"type": "boolean"},
        ttlSecondsAfterFinished=COUNT,
        rayClusterSpec=fields(
            "rayVersion authOptions headGroupSpec workerGroupSpecs",
            rayVersion={"type": "string"},
            authOptions=fields("mode secretName", mode={"const": "token"}, secretName={"type": "string"}),
            enableInTreeAutoscaling={"type": "boolean"},
            autoscalerOptions=fields("", idleTimeoutSeconds=COUNT, upscalingMode={"enum": ["Default", "Aggressive"]}),
            headGroupSpec=fields("template", rayStartParams=TEXTS, labels=TEXTS, resources=TEXTS, template=POD),
            workerGroupSpecs={
                "type": "array",
                "minItems": 1,
                "items": fields(
                    "groupName labels template",
                    groupName={"type": "string"},
                    replicas=COUNT,
                    minReplicas=COUNT,
                    maxReplicas=COUNT,
                    labels=TEXTS,
                    resources=TEXTS,
                    rayStartParams=TEXTS,
                    template=POD,
                ),
            },
        ),
    ),
)


def test_the_rayjob_has_the_fields_of_kuberay_a_token_and_a_labelled_gpu_group() -> None:
    claim, policy, job = documents(JOBS / "rayjob.yaml")
    Draft202012Validator(RAYJOB).validate(job)
    cluster = job["spec"]["rayClusterSpec"]
    assert cluster["rayVersion"] == LOCK["ray"]
    (group,) = cluster["workerGroupSpecs"]
    device = group["labels"]["zo.device"]
    assert (REPO / "conf" / "device" / f"{device}.yaml").is_file()
    assert f"device={device} " in job["spec"]["entrypoint"]
    pods = [cluster["headGroupSpec"]["template"]["spec"], group["template"]["spec"]]
    assert [c["resources"]["limits"].get("nvidia.com/gpu") for pod in pods for c in pod["containers"]] == [None, "1"]
    for pod in pods:
        assert pod["securityContext"]["runAsNonRoot"] is True
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        assert {mount["name"] for c in pod["containers"] for mount in c["volumeMounts"]} == set(volumes)
    assert pods[0]["volumes"][0]["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    assert cluster["enableInTreeAutoscaling"] is True
    assert group["minReplicas"] <= group["replicas"] < group["maxReplicas"]
    assert {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"} in pods[1]["tolerations"]
    for pod in pods:
        (token,) = (e["valueFrom"]["secretKeyRef"] for e in pod["containers"][0]["env"] if e["name"] == "HF_TOKEN")
        assert token["optional"] is True, "models without a license need none"
    rules = policy["spec"]
    templates = [cluster["headGroupSpec"]["template"], group["template"]]
    assert all(one["metadata"]["labels"] == rules["podSelector"]["matchLabels"] for one in templates)
    among, dashboard = rules["ingress"]
    assert among == {"from": [{"podSelector": rules["podSelector"]}]}
    assert dashboard["ports"] == [{"port": 8265}]
    assert {"podSelector": {"matchLabels": {"batch.kubernetes.io/job-name": job["metadata"]["name"]}}} in dashboard[
        "from"
    ]


def test_the_schema_refuses_a_field_that_is_none() -> None:
    job = documents(JOBS / "rayjob.yaml")[-1]
    job["spec"]["rayClusterSpec"]["authOption"] = {"mode": "token"}
    assert not Draft202012Validator(RAYJOB).is_valid(job)


SERVICES = compose()["services"]


def test_compose_brings_up_a_head_its_tracking_server_and_a_worker_in_order() -> None:
    assert set(SERVICES) == {"tracking", "head", "worker", "gpu-worker"}
    gpu = SERVICES["gpu-worker"]
    assert gpu["profiles"] == ["gpu"], "only where it is asked for"
    (device,) = gpu["deploy"]["resources"]["reservations"]["devices"]
    assert (device["driver"], device["capabilities"]) == ("nvidia", ["gpu"])
    assert (gpu["image"], gpu["build"]["dockerfile"]) == ("zo-sweeps:cuda", "docker/cuda.Dockerfile")
    assert SERVICES["head"]["depends_on"] == {"tracking": {"condition": "service_healthy"}}
    assert SERVICES["worker"]["depends_on"] == {"head": {"condition": "service_healthy"}}


@pytest.mark.parametrize("service", SERVICES)
def test_a_service_has_no_rights_it_does_not_need(service: str) -> None:
    options = SERVICES[service]
    assert all(port.startswith("127.0.0.1:") for port in options.get("ports", []))
    assert options["user"] == "${UID:-1000}"
    assert options["cap_drop"] == ["ALL"]
    assert "privileged" not in options
    assert options.get("network_mode") is None
    assert options["healthcheck"]["test"][0] == "CMD"
    assert (REPO / options["build"]["dockerfile"]).is_file()


def test_every_secret_is_a_file_that_is_used_and_git_ignores() -> None:
    secrets = compose()["secrets"]
    given = [entry if isinstance(entry, str) else entry["source"] for s in SERVICES.values() for entry in s["secrets"]]
    assert set(given) == set(secrets)
    assert all(secret["file"].startswith("./secrets/") for secret in secrets.values())
    assert "/docker/secrets/" in (REPO / ".gitignore").read_text().splitlines()
    for service in SERVICES.values():
        assert not [key for key in service.get("environment", {}) if re.search("TOKEN$|PASSWORD|SECRET|KEY$", key)]
    for service in ("head", "worker"):
        variables = SERVICES[service]["environment"]
        assert variables["RAY_AUTH_MODE"] == "token"
        assert variables["RAY_USE_TLS"] == "0", "workers refuse a head without TLS, as a plain `ray start` is"


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_an_image_has_a_pinned_base_the_locked_versions_and_no_root(path: Path) -> None:
    text = path.read_text()
    (base,) = re.findall(r"^FROM (\S+)$", text, re.MULTILINE)
    base = base.replace("${PYTHON}", "".join(re.findall(r"^ARG PYTHON=(.*)$", text, re.MULTILINE)))
    assert re.search(r":r?\d+\.\d+\.\d+", base), base
    lines = re.sub(r"\\\n\s*", " ", text).splitlines()
    installs = [
        part for line in lines for part in line.split("&&") if "pip install" in part and "--upgrade" not in part
    ]
    assert installs
    assert all("--constraint" in line and "--no-cache-dir" in line for line in installs)
    assert [line for line in lines if line.startswith("USER ")] == ["USER ${UID}"]
    assert lines.index("USER ${UID}") < min(i for i, line in enumerate(lines) if line.startswith("ENTRYPOINT"))
    assert not re.search(r"^(ENV|ARG) .*(TOKEN|PASSWORD|SECRET)\w*=(?!/run/secrets/)", text, re.MULTILINE)


def test_jetsons_build_the_locked_bitsandbytes() -> None:
    for path in (DOCKER / "jetson.Dockerfile", REPO / "docs" / "JETSON.md"):
        (tag,) = re.findall(r"bitsandbytes\.git#([\d.]+)|--branch ([\d.]+) \S+/bitsandbytes", path.read_text())
        assert "".join(tag) == LOCK["bitsandbytes"], path


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_a_unit_is_no_root_comes_back_and_names_its_token_by_file(path: Path) -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str
    unit.read_string(path.read_text())
    service = unit["Service"]
    assert service["User"] not in ("", "root")
    assert service["Restart"] == "on-failure"
    assert service["NoNewPrivileges"] == "true"
    assert unit["Unit"]["StartLimitIntervalSec"] == "0"
    assert unit["Install"]["WantedBy"] == "multi-user.target"
    assert "RAY_AUTH_TOKEN=" not in path.read_text()


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_no_file_holds_a_secret(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert not re.search(r"\b[0-9a-fA-F]{24,}\b", text)
    assert not re.search(r"(?i)\b(hf_[a-z0-9]{20}|ghp_|sk-[a-z0-9]{20}|BEGIN [A-Z ]*PRIVATE KEY)", text)
    assert not re.search(r"(?i)(token|password)\s*[=:]\s*[\"']?[a-z0-9]{12,}", text)
    assert not re.search(r"RAY_AUTH_TOKEN=", text), "a token in the environment of a command can be read by others"
