"""The setting `runtime` of the backends of devices, and what it says at the start."""

import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from stoker.backends.api.errors import BackendSettingError, ModelLoadError
from stoker.backends.devices.runtime import DeviceBackend
from stoker.backends.devices.vendor_package import VendorPackage
from stoker.backends.gcu.backend import TopsInferenceBackend
from stoker.backends.ipu.backend import PoplarBackend
from stoker.backends.testing.samples import BackendSamples
from tests.conformance.sample_models import SAMPLES
from tests.fakes import fake_ipu_runtime, fake_tops_inference
from tests.fakes.vendor_samples import EXEC_SAMPLES, POPEF_SAMPLES
from tests.fakes.vendor_stubs import InstalledPackage

ABSENT = VendorPackage(["absent_sdk"], how_to_get="the vendor gives it to owners of a card")
BACKENDS = {
    "gcu": (TopsInferenceBackend, InstalledPackage(fake_tops_inference, "TopsInference"), EXEC_SAMPLES, SAMPLES["topsinference"]),
    "ipu": (PoplarBackend, InstalledPackage(fake_ipu_runtime, "poprt"), POPEF_SAMPLES, SAMPLES["poplar"]),
}
Case = tuple[DeviceBackend, VendorPackage, BackendSamples, BackendSamples]


@pytest.fixture(params=BACKENDS)
def case(request: pytest.FixtureRequest) -> Case:
    make, package, vendor, simulated = BACKENDS[request.param]
    backend = make()
    backend.package = ABSENT
    return backend, package, vendor, simulated


def loaded(backend: DeviceBackend, samples: BackendSamples, folder: Path) -> list[str]:
    """Loads the sample, and returns the notices and the labels of its metrics."""
    instance = backend.load(samples.whole.request(folder))
    try:
        [instance.execute(samples.whole.inputs(1, 0), ["p"])]
        assert {figure.labels["simulated"] for figure in backend.figures()} == {"true" if backend.runtime.is_simulated else "false"}
        return list(backend.notices())
    finally:
        instance.close()


def test_devices_are_simulated_by_default(case: Case, tmp_path: Path):
    backend, _, _, simulated = case
    [notice] = loaded(backend, simulated, tmp_path)
    assert "(runtime: simulated, Stoker " in notice


def test_unused_package_of_a_vendor_is_reported_at_the_start(case: Case, tmp_path: Path):
    backend, package, _, simulated = case
    backend.package = package
    first, _ = loaded(backend, simulated, tmp_path)
    assert "simulates its devices, although the vendor's package" in first
    assert first.endswith("is installed: runtime=vendor uses it")


def test_runtime_of_the_vendor_is_named_with_its_version_at_the_start(case: Case, tmp_path: Path):
    backend, package, vendor, _ = case
    backend.package = package
    backend.configure({"runtime": "vendor"})
    [notice] = loaded(backend, vendor, tmp_path)
    assert f"(runtime: vendor, {package.description()})" in notice
    assert "simulated" not in notice


def test_auto_takes_the_vendor_if_its_package_is_installed(case: Case, tmp_path: Path):
    backend, package, vendor, _ = case
    backend.package = package
    backend.configure({"runtime": "auto"})
    first, second = loaded(backend, vendor, tmp_path)
    assert first.startswith("runtime=auto chose vendor: package ")
    assert "runtime: vendor" in second


def test_auto_without_the_package_simulates_and_warns(case: Case, tmp_path: Path, caplog: pytest.LogCaptureFixture):
    backend, _, _, simulated = case
    with caplog.at_level(logging.WARNING):
        backend.configure({"runtime": "auto"})
    assert "runtime=auto chose simulated: no package 'absent_sdk' is installed" in caplog.text
    first, second = loaded(backend, simulated, tmp_path)
    assert first == "runtime=auto chose simulated: no package 'absent_sdk' is installed"
    assert "runtime: simulated" in second


def test_vendor_without_the_package_fails_to_load_and_names_it(case: Case, tmp_path: Path):
    backend, _, vendor, _ = case
    backend.configure({"runtime": "vendor"})
    with pytest.raises(ModelLoadError, match=r"needs the vendor's package 'absent_sdk': no package .* is installed; the vendor gives it"):
        backend.load(vendor.whole.request(tmp_path))


@pytest.mark.parametrize("make", [TopsInferenceBackend, PoplarBackend])
def test_vendor_with_a_shim_in_its_place_fails_to_load_and_names_the_shim(make: Callable[[], DeviceBackend], tmp_path: Path):
    backend = make()
    backend.configure({"runtime": "vendor"})
    samples = EXEC_SAMPLES if make is TopsInferenceBackend else POPEF_SAMPLES
    with pytest.raises(ModelLoadError, match=r"is Stoker's shim, which simulates \(uninstall stoker-compat\); .*(TopsRider|Poplar SDK)"):
        backend.load(samples.whole.request(tmp_path))


def test_unknown_runtime_is_rejected_with_the_known_ones(case: Case):
    with pytest.raises(BackendSettingError, match=r"runtime='real': expected simulated, vendor, auto"):
        case[0].configure({"runtime": "real"})


@pytest.mark.parametrize("setting", [{"pacing": "realtime"}, {"faults": "reset@3"}, {"numerics": "off"}])
def test_setting_of_simulated_devices_is_rejected_for_real_ones(case: Case, setting: dict[str, str]):
    [name] = setting
    with pytest.raises(BackendSettingError, match=rf"{name}='.*': is for simulated .*, and the runtime is the vendor's"):
        case[0].configure({"runtime": "vendor", **setting})


@pytest.mark.parametrize("parameter", ["sub_graph", "pacing", "numerics", "device_ids"])
def test_parameter_of_simulated_ipus_is_rejected_for_real_ones(parameter: str, tmp_path: Path):
    backend = PoplarBackend()
    backend.package = BACKENDS["ipu"][1]
    backend.configure({"runtime": "vendor"})
    sample = POPEF_SAMPLES.whole
    request = sample.request(tmp_path)
    facts = backend.inspect(request.files, request.model_filename)
    values = {"sub_graph": "0", "pacing": "none", "numerics": "real", "device_ids": "0"}
    candidate = request.candidate(facts)
    object.__setattr__(candidate, "parameters", {parameter: values[parameter]})
    [violation] = backend.check(candidate)
    assert "is for simulated IPUs" in str(violation)


@pytest.mark.parametrize(("flag", "is_simulated"), [("true", True), ("1", True), ("false", False), ("0", False)])
def test_flag_of_tritons_poplar_backend_selects_the_runtime(flag: str, is_simulated: bool):
    backend = PoplarBackend()
    backend.package = ABSENT
    backend.configure({"use_sim_if_no_hw": flag})
    assert backend.runtime.is_simulated is is_simulated


def test_flag_of_tritons_poplar_backend_may_not_contradict_the_runtime():
    with pytest.raises(BackendSettingError, match="use_sim_if_no_hw=false means runtime=vendor, and runtime is 'simulated'"):
        PoplarBackend().configure({"use_sim_if_no_hw": "false", "runtime": "simulated"})


def test_wrong_flag_of_tritons_poplar_backend_is_rejected():
    with pytest.raises(BackendSettingError, match="use_sim_if_no_hw='maybe': expected true, false, 1 or 0"):
        PoplarBackend().configure({"use_sim_if_no_hw": "maybe"})
