"""The runtimes of vendors pass the same conformance checks as the simulated ones, on fakes of the vendors' packages."""

from collections.abc import Callable
from pathlib import Path

import pytest

from stoker.backends.devices.runtime import DeviceBackend
from stoker.backends.gcu.backend import TopsInferenceBackend
from stoker.backends.ipu.backend import PoplarBackend
from stoker.backends.testing.conformance import CHECKS, NotApplicable
from stoker.backends.testing.samples import BackendSamples
from tests.fakes import fake_ipu_runtime, fake_tops_inference
from tests.fakes.vendor_samples import EXEC_SAMPLES, POPEF_SAMPLES
from tests.fakes.vendor_stubs import InstalledPackage

RUNTIMES: dict[str, tuple[Callable[[], DeviceBackend], InstalledPackage, BackendSamples]] = {
    "TopsInference": (TopsInferenceBackend, InstalledPackage(fake_tops_inference, "TopsInference"), EXEC_SAMPLES),
    "poprt": (PoplarBackend, InstalledPackage(fake_ipu_runtime, "poprt"), POPEF_SAMPLES),
}


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("name", RUNTIMES)
def test_runtime_of_a_vendor_satisfies_the_plug_in_contract(name: str, check: str, tmp_path: Path) -> None:
    make, package, samples = RUNTIMES[name]
    backend = make()
    backend.package = package
    backend.configure({"runtime": "vendor"})
    try:
        CHECKS[check](backend, samples, tmp_path)
    except NotApplicable as reason:
        pytest.skip(str(reason))
    assert not backend.runtime.is_simulated
