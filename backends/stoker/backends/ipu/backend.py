"""The `poplar` backend: PopEF files on IPUs, simulated or real.

A version folder holds `executable.popef` and optionally `name_map.json`, which renames its anchors for clients. config.pbtxt
`parameters` and the operator's settings are listed in `serving/options.py`.
"""

from collections.abc import Mapping
from typing import Any

from stoker.backends.api.errors import BackendSettingError
from stoker.backends.devices.options import FLAGS, RUNTIME_SETTING
from stoker.backends.devices.runtime import DeviceBackend, DeviceRuntime, RuntimeKind
from stoker.backends.ipu.serving.options import PARAMETER_KEYS, SIMULATION_FLAG, DevicePoolSettings, VendorSettings
from stoker.backends.ipu.serving.simulated import SimulatedIpus
from stoker.backends.ipu.serving.vendor import VendorIpus
from stoker.backends.ipu.vendor.package import PACKAGE


class PoplarBackend(DeviceBackend):
    """Serves `.popef` files."""

    name = "poplar"
    platforms = ("poplar",)
    aliases = ("ipu",)
    default_model_filename = "executable.popef"
    parameter_keys = PARAMETER_KEYS
    instance_kinds = ("KIND_CPU", "KIND_MODEL")
    package = PACKAGE

    def wanted_kind(self, settings: Mapping[str, str]) -> RuntimeKind:
        """Also takes the setting of the vendor's backend, `use_sim_if_no_hw`: true is `runtime=auto`, false `runtime=vendor`."""
        if SIMULATION_FLAG not in settings:
            return super().wanted_kind(settings)
        text = settings[SIMULATION_FLAG].lower()
        if text not in FLAGS:
            raise BackendSettingError(f"backend '{self.name}': {SIMULATION_FLAG}='{text[:80]}': expected true, false, 1 or 0")
        kind = RuntimeKind.AUTO if FLAGS[text] else RuntimeKind.VENDOR
        if RUNTIME_SETTING in settings and super().wanted_kind(settings) is not kind:
            raise BackendSettingError(
                f"backend '{self.name}': {SIMULATION_FLAG}={text} means {RUNTIME_SETTING}={kind.value}, and {RUNTIME_SETTING} is "
                f"'{settings[RUNTIME_SETTING][:80]}': give one of them"
            )
        return kind

    def make_runtime(self, kind: RuntimeKind, settings: Mapping[str, str]) -> DeviceRuntime[Any]:
        rest = {name: value for name, value in settings.items() if name != SIMULATION_FLAG}
        if kind is RuntimeKind.VENDOR:
            return VendorIpus(VendorSettings.read(rest), self.package)
        return SimulatedIpus(DevicePoolSettings.read(rest))
