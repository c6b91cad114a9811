"""The manifest and the arguments in docs/deployment.md fit the server and the image."""

import re
import shlex
from typing import Any

import pytest
import yaml

from stoker.server.flags.command import read_command
from stoker.server.server_config import ServerConfig
from tests.fakes.declared_routes import declared_routes
from tests.fakes.fake_engine import FakeEngine
from tests.fakes.server_process import REPOSITORY_ROOT

PAGE = (REPOSITORY_ROOT / "docs" / "deployment.md").read_text()
DOCKERFILE = (REPOSITORY_ROOT / "docker" / "Dockerfile").read_text()
MANIFESTS = {each["kind"]: each for block in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL) for each in yaml.safe_load_all(block)}
POD: dict[str, Any] = MANIFESTS["Deployment"]["spec"]["template"]["spec"]
CONTAINER: dict[str, Any] = POD["containers"][0]


def read(arguments: list[str]) -> ServerConfig:
    config = read_command(arguments, {})
    assert isinstance(config, ServerConfig), config
    return config


def test_arguments_of_the_container_are_flags_and_fit_the_grace_period() -> None:
    config = read(["--model_base_path=/models", *CONTAINER["args"]])
    assert config.shutdown_delay_s > 0
    assert config.shutdown_delay_s + config.exit_timeout_s + 1 <= POD["terminationGracePeriodSeconds"]
    probe = CONTAINER["readinessProbe"]
    assert config.shutdown_delay_s > probe["periodSeconds"] * probe["failureThreshold"]


def test_probes_call_health_routes_of_the_http_port() -> None:
    routes = {path for method, path in declared_routes(FakeEngine()) if method == "GET"}
    for name in ("startupProbe", "readinessProbe", "livenessProbe"):
        probe = CONTAINER[name]["httpGet"]
        assert probe["path"] in routes
        assert probe["port"] == "http"
    assert CONTAINER["readinessProbe"]["httpGet"]["path"].endswith("/ready")
    assert CONTAINER["livenessProbe"]["httpGet"]["path"].endswith("/live")


def test_ports_are_those_of_the_server_and_the_service() -> None:
    ports = {each["name"]: each["containerPort"] for each in CONTAINER["ports"]}
    exposed = re.search(r"^EXPOSE (\d+) (\d+)$", DOCKERFILE, re.MULTILINE)
    assert exposed is not None
    assert ports == {"grpc": int(exposed[1]), "http": int(exposed[2])}
    assert {each["targetPort"]: each["port"] for each in MANIFESTS["Service"]["spec"]["ports"]} == ports


def test_objects_select_the_pods() -> None:
    labels = MANIFESTS["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert MANIFESTS["Deployment"]["spec"]["selector"]["matchLabels"] == labels
    assert MANIFESTS["Service"]["spec"]["selector"] == labels


def test_volumes_are_the_folders_of_the_image() -> None:
    mounts = {each["name"]: each["mountPath"] for each in CONTAINER["volumeMounts"]}
    assert f'"--model_base_path={mounts["models"]}"' in DOCKERFILE
    assert f"TMPDIR={mounts['tmp']}" in DOCKERFILE
    assert {each["name"] for each in POD["volumes"]} == set(mounts)
    assert f"USER {POD['securityContext']['runAsUser']}:" in DOCKERFILE


@pytest.mark.parametrize("flag", re.findall(r"`(--[a-z][\w-]*=[^`\s]+)`", PAGE))
def test_flag_of_the_text_exists(flag: str) -> None:
    read(["--model_base_path=/models", flag])


def test_arguments_for_kserve_are_flags() -> None:
    line = re.search(r"^```\n(--model-path=.*)\n```$", PAGE, re.MULTILINE)
    assert line is not None
    config = read(shlex.split(line[1]))
    assert config.http_port == 8080
