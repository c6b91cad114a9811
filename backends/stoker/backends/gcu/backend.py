"""The `topsinference` backend: `model.exec` files on GCU cards, simulated or real.

A version folder holds `model.exec`. config.pbtxt `parameters` and the operator's settings are listed in
`serving/options.py`. An instance group of KIND_GPU, which is what KIND_AUTO becomes, gets `count` instances on each card of its `gpus`,
or on every card; with KIND_CPU or KIND_MODEL, `count` instances on the cards with the most free clusters.
"""

from collections.abc import Mapping
from typing import Any

from stoker.backends.devices.runtime import DeviceBackend, DeviceRuntime, RuntimeKind
from stoker.backends.gcu.serving.options import PARAMETER_KEYS, CardSettings, VendorSettings
from stoker.backends.gcu.serving.simulated import SimulatedCards
from stoker.backends.gcu.serving.vendor import VendorCards
from stoker.backends.gcu.vendor.package import PACKAGE


class TopsInferenceBackend(DeviceBackend):
    """Serves `.exec` files."""

    name = "topsinference"
    platforms = ("topsinference",)
    aliases = ("gcu",)
    default_model_filename = "model.exec"
    parameter_keys = PARAMETER_KEYS
    instance_kinds = ("KIND_GPU", "KIND_CPU", "KIND_MODEL")
    package = PACKAGE

    def make_runtime(self, kind: RuntimeKind, settings: Mapping[str, str]) -> DeviceRuntime[Any]:
        if kind is RuntimeKind.VENDOR:
            return VendorCards(VendorSettings.read(settings), self.package)
        return SimulatedCards(CardSettings.read(settings))
