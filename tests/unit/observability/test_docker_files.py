"""Dockerfile and compose file, held to the rules of least privilege, without a container engine."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
DOCKERFILE = (ROOT / "docker" / "Dockerfile").read_text()
COMPOSE = (ROOT / "docker" / "compose.yaml").read_text()


def services() -> dict[str, str]:
    """The text of each service in the compose file."""
    body = COMPOSE.split("\nservices:\n")[1].split("\nvolumes:\n")[0]
    parts = re.split(r"(?m)^  ([a-z]+):\n", body)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


def final_stage() -> str:
    return DOCKERFILE[DOCKERFILE.rindex("\nFROM ") :]


def test_image_runs_without_root_shell_or_pip() -> None:
    stage = final_stage()
    assert re.search(r"(?m)^USER 1000:1000$", stage)
    assert not re.search(r"(?m)^RUN ", stage), "the final stage only copies"
    for instruction in ("ENTRYPOINT", "CMD"):
        for words in re.findall(rf"(?m)^\s*{instruction} (.*)$", stage):
            assert isinstance(json.loads(words), list), f"{instruction} must be in exec form: the shell form needs a shell"
    assert "--without-pip" in DOCKERFILE


def test_image_listens_on_its_ports_and_has_a_health_check() -> None:
    stage = final_stage()
    assert "EXPOSE 8500 8501" in stage
    assert "HEALTHCHECK" in stage
    assert "/v2/health/live" in stage
    assert "--model_base_path=/models" in stage


def test_copied_files_of_the_build_exist_and_are_not_ignored() -> None:
    let_through = [line.removeprefix("!") for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    for words in re.findall(r"(?m)^COPY (?!--from)(.*)$", DOCKERFILE):
        *sources, _ = words.split()
        for source in sources:
            assert (ROOT / source).exists(), source
            assert source in let_through, f"{source} is held back by .dockerignore"


@pytest.mark.parametrize("name", ["stoker", "prometheus", "grafana"])
def test_every_service_has_the_least_privilege(name: str) -> None:
    service = services()[name]
    for line in ("read_only: true", "cap_drop: [ALL]", 'security_opt: ["no-new-privileges:true"]'):
        assert line in service
    for setting in ("user", "pids_limit", "mem_limit"):
        assert re.search(rf"(?m)^    {setting}: ", service), setting
    assert 'user: "0' not in service
    ports = re.findall(r'(?m)^      - "([^"]*:\d+:\d+)"$', service)
    assert ports, "no port found"
    assert all(port.startswith("127.0.0.1:") for port in ports), "published to this machine only"


def test_models_are_mounted_read_only_and_only_tmp_is_writable() -> None:
    service = services()["stoker"]
    assert ':/models:ro"' in service
    assert re.findall(r'(?m)^      - "(/[a-z/]+):size=', service) == ["/tmp"]
    assert "TMPDIR=/tmp" in final_stage()


def test_prometheus_accepts_its_configuration() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed (Debian: apt-get install prometheus)")
    file = ROOT / "docker" / "prometheus" / "prometheus.yml"
    done = subprocess.run([promtool, "check", "config", str(file)], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
