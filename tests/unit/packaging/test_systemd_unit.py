"""The example of a systemd unit and its configuration: systemd accepts the unit, and the server accepts the command and the file."""

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from stoker.server.flags.command import read_command
from stoker.server.flags.config_file import read_file
from stoker.server.server_config import ServerConfig
from tests.fakes.server_process import REPOSITORY_ROOT

FOLDER = REPOSITORY_ROOT / "deploy" / "systemd"
UNIT = (FOLDER / "stoker.service").read_text()
INSTALLED_CONFIG, READY_FILE = "/etc/stoker/stoker.yaml", "/run/stoker/ready.json"
#: The largest exposure that `systemd-analyze security` may find, in tenths of its scale from 0 to 10.
MOST_EXPOSURE_TENTHS = 20


def settings() -> dict[str, str]:
    """The settings by name; the last one of a name counts."""
    lines = [line for line in UNIT.splitlines() if line and not line.startswith(("#", "["))]
    return dict(line.partition("=")[::2] for line in lines)


def start_config() -> ServerConfig:
    """The configuration of a start by the unit with the file of the example."""
    _, *words = shlex.split(settings()["ExecStart"].replace(INSTALLED_CONFIG, str(FOLDER / "stoker.yaml")))
    config = read_command(words, {})
    assert isinstance(config, ServerConfig)
    return config


def analyze(*words: str) -> str:
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("systemd-analyze is not installed")
    done = subprocess.run([program, *words], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_systemd_accepts_every_setting(tmp_path: Path):
    unit = tmp_path / "stoker.service"
    unit.write_text(UNIT.replace("/opt/stoker/bin/serve", "/bin/true"))
    assert analyze("verify", "--man=no", str(unit)).strip() == ""


def test_systemd_finds_the_service_confined():
    printed = analyze("security", "--offline=yes", f"--threshold={MOST_EXPOSURE_TENTHS}", str(FOLDER / "stoker.service"))
    assert "Overall exposure level" in printed


@pytest.mark.parametrize(
    "line",
    ["DynamicUser=yes", "NoNewPrivileges=yes", "ProtectSystem=strict", "ProtectHome=yes", "CapabilityBoundingSet=", "PrivateDevices=yes"],
)
def test_service_has_the_least_privilege(line: str):
    assert re.search(rf"(?m)^{line}$", UNIT)


def test_server_accepts_the_command_and_the_file():
    config = start_config()
    assert config.repositories == (Path("/srv/stoker/models"),)
    assert config.ready_file == Path(READY_FILE)
    assert config.notices == ()
    assert set(read_file(FOLDER / "stoker.yaml")) >= {"grpc-port", "http-port", "shutdown-delay-secs"}


def test_start_waits_for_the_file_that_the_server_writes():
    assert READY_FILE in settings()["ExecStartPost"]
    assert READY_FILE.startswith(f"/run/{settings()['RuntimeDirectory']}/")


def test_stop_is_given_the_time_of_delay_and_drain():
    config = start_config()
    assert config.shutdown_delay_s + config.exit_timeout_s + 1 < float(settings()["TimeoutStopSec"])
