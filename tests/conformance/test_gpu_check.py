"""`scripts/gpu-check`, and the conformance checks of instances on a device, with the host's memory in the place of a device's."""

from pathlib import Path

import pytest

from stoker.backends.onnx.backend import OnnxRuntimeBackend
from stoker.backends.testing.conformance import CHECKS, NotApplicable
from tests.conformance.gpu_check import FAILED, NO_DEVICE, PASSED, OnDevice, main
from tests.conformance.sample_models import SAMPLES
from tests.fakes.cuda import CPU_BUILD, SessionMaker, gpu_backend


@pytest.mark.parametrize("check", CHECKS)
def test_instance_on_a_device_satisfies_the_plug_in_contract(check: str, tmp_path: Path) -> None:
    try:
        CHECKS[check](OnDevice(gpu_backend(count=1), 0, ()), SAMPLES["onnxruntime"], tmp_path)
    except NotApplicable as reason:
        pytest.skip(str(reason))


def test_host_without_a_device_gets_the_reason(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([], OnnxRuntimeBackend(providers=lambda: CPU_BUILD)) == NO_DEVICE
    text = capsys.readouterr().out
    assert text.startswith("gpu-check: nothing to check: the installed onnxruntime has no CUDAExecutionProvider")
    assert "install onnxruntime-gpu" in text


def test_unknown_device_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--device", "7"], gpu_backend()) == NO_DEVICE
    assert "no device 7; there are 0, 1" in capsys.readouterr().out


@pytest.mark.slow
def test_check_passes_on_a_device_that_works(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--no-benchmark"], gpu_backend(count=1)) == PASSED
    assert capsys.readouterr().out.endswith("gpu-check: all passed\n")


@pytest.mark.slow
def test_check_fails_if_models_do_not_load(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--no-benchmark"], gpu_backend(SessionMaker(starts=()), count=1)) == FAILED
    assert "could not start CUDAExecutionProvider" in capsys.readouterr().out
