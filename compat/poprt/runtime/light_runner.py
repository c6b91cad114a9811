"""`LightRunner`: a `ModelRunner` whose weights can be changed, and that can be stopped and loaded again.

runner = LightRunner(executable)                 # compiled with constant_weights off
runner.set_input_anchor("Weight", new_values)    # nothing happens yet
runner.update_weights()                          # from here on
"""

from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from stoker.backends.ipu.popef.schema import TensorType
from stoker.backends.ipu.runtime.device import Device
from stoker.backends.ipu.runtime.model_runner import ModelRunner
from stoker.backends.ipu.runtime.runner_io import fitted
from stoker.backends.ipu.runtime.runtime_config import RuntimeConfig


@dataclass(slots=True, kw_only=True)
class LightRunnerConfig(RuntimeConfig):
    """How a `LightRunner` runs: `replica_to_device` is its name for `replica_id_to_device`."""

    @property
    def replica_to_device(self) -> MutableMapping[int, Device]:
        """Devices of some copies; the others look for one."""
        return self.replica_id_to_device

    @replica_to_device.setter
    def replica_to_device(self, devices: MutableMapping[int, Device]) -> None:
        self.replica_id_to_device = devices


class LightRunner(ModelRunner):
    """See the module. One thread at a time may change weights; any thread may execute meanwhile."""

    _staged: dict[str, npt.NDArray[Any]] | None = None

    def set_input_anchor(self, name: str, data: npt.NDArray[Any]) -> None:
        """Notes other data for an input, in place of the file's tensor data; `update_weights` brings it to the device.

        Args:
            name: A weight that is not compiled in, or an input of the main program that requests then may leave out.
            data: Of exactly its shape and dtype; copied.

        Raises:
            ApplicationRuntimeError: there is no such input, or the data does not fit; says what was expected.
        """
        stream = self._io.canonical(name)
        anchor = self.executable.anchor(stream, TensorType.INPUT)
        self._staged = {**(self._staged or {}), stream: fitted(anchor, data, f"input '{name}'").copy()}

    def update_weights(self) -> None:
        """Lets what `set_input_anchor` noted take effect: requests queued before still run on the old weights, later ones on the new.

        Weights are loaded with the executable, which takes modelled time.

        Raises:
            IpuRuntimeError: the device failed, or the executable cannot be loaded again.
        """
        staged, self._staged = self._staged or {}, None
        weights = {name: data for name, data in staged.items() if name not in self._io.inputs}
        self._io.defaults.update({name: data for name, data in staged.items() if name in self._io.inputs})
        for replica in self._replicas if weights else ():
            replica.set_weights(weights)

    def stop(self) -> None:
        """Ends the main programs; what is queued fails, and so does every request until `reload`."""
        for replica in self._replicas:
            replica.stop()

    def reload(self) -> None:
        """Loads the executable again and starts it. What is queued fails.

        Raises:
            IpuRuntimeError: the device failed, or the executable cannot be loaded.
        """
        for replica in self._replicas:
            replica.restart()
