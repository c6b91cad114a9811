"""`stoker device-check` as owners of a card run it: in a child process, with a fake of the vendor's package under its own name."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fakes.server_process import REPOSITORY_ROOT

PACKAGES = REPOSITORY_ROOT / "tests" / "fakes" / "vendor_packages"
PATIENCE_S = 300.0


def check(*arguments: str, packages: bool = True, **environment: str) -> "subprocess.CompletedProcess[str]":
    paths = [str(REPOSITORY_ROOT), os.environ.get("PYTHONPATH", "")]
    if packages:
        paths.insert(0, str(PACKAGES))
    return subprocess.run(
        [sys.executable, "-m", "stoker.cli.main", "device-check", *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), **environment},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        cwd=REPOSITORY_ROOT,
    )


@pytest.mark.parametrize(
    ("device", "runtime"), [("gcu", "vendor, TopsInference 2.4.1 (fake)"), ("ipu", "vendor, poprt.runtime 1.5.0 (fake)")]
)
def test_check_of_a_vendors_device_writes_a_report_that_can_be_fitted(device: str, runtime: str, tmp_path: Path):
    path, constants = tmp_path / "report.json", tmp_path / "constants.json"
    ran = check("--device", device, "--quick", "--report", str(path))
    assert ran.returncode == 0, ran.stderr
    assert "measured on the device" in ran.stdout
    report = json.loads(path.read_text())
    assert (report["simulated"], report["runtime"]) == (False, runtime)
    assert {each["result"] for each in report["conformance"]} == {"right"}
    assert all(each["runs"] >= 3 for each in report["timing"])
    fitted = check("--fit", str(path), "--output", str(constants))
    assert fitted.returncode == 0, fitted.stderr
    document = json.loads(constants.read_text())
    assert document["source"].startswith(f"measured on {report['card']} ({runtime}) by device-check ")
    assert document["constants"]
    assert f"stoker compile --target {device} --cost_constants {constants}" in fitted.stdout


def test_wrong_result_ends_with_exit_code_1():
    ran = check("--quick", "--json", FAKE_TOPS_FAULTS="ok,wrong")
    assert ran.returncode == 1, ran.stderr
    first, *rest = json.loads(ran.stdout)["conformance"]
    assert (first["result"], {each["result"] for each in rest}) == ("wrong", {"right"})


def test_missing_package_of_the_vendor_is_named():
    ran = check("--device", "gcu", packages=False)
    assert ran.returncode == 1
    assert "needs the vendor's package 'TopsInference'" in ran.stderr


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--device", "tpu"), "--device: expected gcu or ipu, got 'tpu'"),
        (("--runtime", "auto"), "--runtime: expected vendor or simulated, got 'auto'"),
        (("--cost-constants", "x.json"), "give --runtime simulated"),
        (("--output", "x.json"), "--output: only with --fit"),
        (("--runtime", "simulated", "--card", "i99"), "there is no card 'i99'"),
    ],
)
def test_wrong_arguments_are_usage_errors(arguments: tuple[str, ...], text: str):
    ran = check(*arguments)
    assert ran.returncode == 2
    assert text in ran.stderr
