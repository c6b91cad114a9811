"""Finding a vendor's package, and telling it from Stoker's shim of the same name."""

import sys
from pathlib import Path

import pytest
import stoker_compat

from stoker.backends.api.errors import ModelLoadError
from stoker.backends.devices.vendor_package import SHIM_MARK, Presence, VendorPackage


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def write(site: Path, package: str, text: str) -> None:
    folder = site / package
    folder.mkdir()
    (folder / "__init__.py").write_text(text)


def package(*modules: str) -> VendorPackage:
    return VendorPackage(modules, how_to_get="the vendor gives it to owners of a card")


def test_mark_of_shims_is_that_of_stoker_compat():
    assert stoker_compat._MARK == SHIM_MARK


@pytest.mark.parametrize("name", ["TopsInference", "poprt", "model_runtime", "popef"])
def test_shim_of_stoker_compat_is_recognised(name: str):
    found = package(name).find()
    assert found.presence is Presence.SHIM
    assert "Stoker's shim" in str(found)
    assert "uninstall stoker-compat" in str(found)


def test_absent_package_is_named_with_its_source_in_the_load_error():
    with pytest.raises(
        ModelLoadError,
        match=r"needs the vendor's package 'absent_sdk': no package 'absent_sdk' is installed; the vendor gives it to owners",
    ):
        package("absent_sdk").load()


def test_shim_is_named_with_its_place_in_the_load_error():
    with pytest.raises(ModelLoadError, match=r"'TopsInference' at .*compat/TopsInference/__init__.py is Stoker's shim"):
        package("TopsInference").load()


def test_package_of_a_vendor_is_imported_with_its_stated_version(site: Path, monkeypatch: pytest.MonkeyPatch):
    write(site, "vendor_sdk_a", "__version__ = '2.4 beta'")
    sought = package("vendor_sdk_a")
    assert sought.find().presence is Presence.VENDOR
    assert "vendor_sdk_a" not in sys.modules
    assert sought.load().__name__ == "vendor_sdk_a"
    assert sought.description() == "vendor_sdk_a 2.4 beta"
    monkeypatch.delitem(sys.modules, "vendor_sdk_a")


def test_second_package_is_used_if_the_first_is_absent(site: Path, monkeypatch: pytest.MonkeyPatch):
    write(site, "vendor_sdk_b", "")
    sought = package("absent_sdk.runtime", "vendor_sdk_b")
    assert sought.load().__name__ == "vendor_sdk_b"
    assert sought.description() == "vendor_sdk_b of unknown version"
    monkeypatch.delitem(sys.modules, "vendor_sdk_b")


def test_real_package_is_preferred_to_a_shim_of_another_name(site: Path):
    write(site, "vendor_sdk_c", "")
    found = package("poprt.runtime", "vendor_sdk_c").find()
    assert (found.presence, found.module) == (Presence.VENDOR, "vendor_sdk_c")


def test_package_that_fails_to_import_is_a_load_error_with_the_reason(site: Path):
    write(site, "vendor_sdk_d", "raise OSError('libtopsruntime.so: cannot open shared object file')")
    with pytest.raises(ModelLoadError, match=r"vendor_sdk_d.* cannot be imported: OSError: libtopsruntime.so: cannot open"):
        package("vendor_sdk_d").load()
