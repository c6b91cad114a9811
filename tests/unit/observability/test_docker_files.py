"""Dockerfile and compose file, held to the rules of least privilege, without a container engine."""

import json
import re
import shutil
import subprocess
import tomllib
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


#: The instructions that the file uses. ADD is none of them: it unpacks archives and downloads.
INSTRUCTIONS = {"ARG", "CMD", "COPY", "ENTRYPOINT", "ENV", "EXPOSE", "FROM", "HEALTHCHECK", "LABEL", "RUN", "STOPSIGNAL", "USER", "WORKDIR"}


def instructions() -> list[tuple[str, str]]:
    """Instruction and words of the whole file; continued lines are joined, comments dropped."""
    text = "\n".join(line for line in DOCKERFILE.splitlines() if not line.startswith("#")).replace("\\\n", " ")
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in text.splitlines() if line.strip())]


def test_file_has_known_instructions_and_no_secret() -> None:
    assert {word for word, _ in instructions()} <= INSTRUCTIONS
    named = [words for word, words in instructions() if word in ("ARG", "ENV")]
    assert not [words for words in named if re.search(r"(?i)password|secret|token|key", words)]


def test_base_is_one_image_with_a_version_and_the_digest_of_a_build_argument() -> None:
    arguments = dict(words.partition("=")[::2] for word, words in instructions() if word == "ARG")
    assert re.fullmatch(r"python:3\.\d+-slim-[a-z]+", arguments["PYTHON_IMAGE"]), "a version, and not the latest one"
    first, *others = [words for word, words in instructions() if word == "FROM"]
    assert first == "${PYTHON_IMAGE}${PYTHON_DIGEST:+@${PYTHON_DIGEST}} AS base"
    stages = {"base", *(words.partition(" AS ")[2] for words in others)}
    assert all(words.split()[0] in stages for words in others)


def test_file_is_for_every_platform_of_its_base() -> None:
    assert not re.search(r"(?i)x86|amd64|aarch64|arm64|--platform", "\n".join(words for _, words in instructions()))


def test_extras_of_the_image_are_extras_of_the_package() -> None:
    [extras] = [words.partition("=")[2] for word, words in instructions() if word == "ARG" and words.startswith("EXTRAS=")]
    manifest = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert "openvino" in extras.split(",")
    assert set(extras.split(",")) <= manifest["project"]["optional-dependencies"].keys()


def test_packages_are_installed_in_tested_versions_and_without_a_cache() -> None:
    runs = [words for word, words in instructions() if word == "RUN"]
    installs = [each for words in runs for each in words.split("&&") if re.search(r"\bpip\b.* install ", each)]
    assert len(installs) == 2
    assert all("-c constraints.txt" in each and "--no-cache-dir" in each for each in installs)
    assert all("--no-install-recommends" in words for words in runs if "apt-get install" in words)


def test_hadolint_accepts_the_file() -> None:
    hadolint = shutil.which("hadolint")
    if hadolint is None:
        pytest.skip("hadolint is not installed")
    # DL3008, DL3013: versions of Debian's compiler and of wheels that were just built. DL3009: the stage is not part of the image.
    command = [hadolint, "--ignore=DL3008", "--ignore=DL3009", "--ignore=DL3013", str(ROOT / "docker" / "Dockerfile")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


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
