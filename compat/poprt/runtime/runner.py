"""`Runner`: the runner that a configuration asks for; `ModelFusionRunner` and `LightRunner`.

A `LightRunner`'s weights can be changed, and it can be stopped and loaded again:

    runner = LightRunner(executable)                 # compiled with constant_weights off
    runner.set_input_anchor("Weight", new_values)    # nothing happens yet
    runner.update_weights()                          # from here on
"""

from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy.typing as npt

from poprt.runtime.host_concat_runner import HostConcatRunner, HostConcatRunnerConfig
from poprt.runtime.pack_runner import PackRunner
from poprt.runtime.packing import PackRunnerConfig
from stoker.backends.ipu.popef.schema import TensorType
from stoker.backends.ipu.runtime.device import Device
from stoker.backends.ipu.runtime.device_manager import DeviceManager
from stoker.backends.ipu.runtime.executable import DataDesc, Executable, Source
from stoker.backends.ipu.runtime.inference_future import InferenceFuture, Outputs
from stoker.backends.ipu.runtime.model_runner import ModelRunner
from stoker.backends.ipu.runtime.runner_io import fitted
from stoker.backends.ipu.runtime.runtime_config import RunnerType, RuntimeConfig

Array = npt.NDArray[Any]


@dataclass(slots=True, kw_only=True)
class ModelFusionRunnerConfig(RuntimeConfig):
    """How a `ModelFusionRunner` runs."""

    runner_type: ClassVar[RunnerType] = RunnerType.MODEL_FUSION_RUNNER


class ModelFusionRunner(ModelRunner):
    """A `ModelRunner` that finds the sub-graph by the names of inputs and outputs, and checks each request against it.

    `ModelRunner` lets the device find out by a timeout that an input is missing, as the vendor's does. Here the request is rejected at
    once. An index may be given all the same. `validate_io_params` has no say: what a request needs is what its sub-graph has.
    """

    _is_strict = True


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
    """A `ModelRunner` whose weights can be changed. One thread at a time may change weights; any thread may execute meanwhile."""

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


#: Which runner runs by which configuration; the nearest class counts.
RUNNERS: Mapping[type[RuntimeConfig], type[ModelRunner]] = {
    RuntimeConfig: ModelRunner,
    ModelFusionRunnerConfig: ModelFusionRunner,
    LightRunnerConfig: LightRunner,
    HostConcatRunnerConfig: HostConcatRunner,
    PackRunnerConfig: PackRunner,
}


class Runner:
    """An executable with the runner that fits its configuration: the type of the configuration says which.

    A fused executable runs with a `ModelFusionRunner` unless the configuration asks for another runner than the plain one: requests need
    no index. Any thread may use it.

    Attributes:
        runner: What runs it.
    """

    def __init__(
        self,
        source: Executable | Source,
        config: RuntimeConfig | None = None,
        *,
        device: Device | None = None,
        device_manager: DeviceManager | None = None,
    ) -> None:
        """Makes the runner; takes and raises what its constructor does."""
        config = config or RuntimeConfig()
        executable = Executable.of(source, check_package_hash=config.check_package_hash)
        kind = next(RUNNERS[each] for each in type(config).__mro__ if each in RUNNERS)
        if kind is ModelRunner and executable.index_anchor is not None:
            kind = ModelFusionRunner
        self.runner = kind(executable, config, device=device, device_manager=device_manager)

    def __enter__(self) -> "Runner":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def get_execute_inputs(self) -> list[DataDesc]:
        """The inputs that requests may name."""
        return self.runner.get_execute_inputs()

    def get_model_inputs(self) -> list[DataDesc]:
        """Those, and the weights that are not compiled in."""
        return self.runner.get_model_inputs()

    def get_execute_outputs(self) -> list[DataDesc]:
        """The outputs that requests may name."""
        return self.runner.get_execute_outputs()

    def execute(self, inputs: Mapping[str, Array], outputs: Mapping[str, Array] | None = None) -> Outputs:
        """See `ModelRunner.execute`."""
        return self.runner.execute(inputs, outputs)

    def execute_async(self, inputs: Mapping[str, Array], outputs: Mapping[str, Array] | None = None) -> InferenceFuture:
        """See `ModelRunner.execute_async`."""
        return self.runner.execute_async(inputs, outputs)

    def close(self) -> None:
        """See `ModelRunner.close`."""
        self.runner.close()

    # Names of PopRT 1.0.2.
    get_model_outputs = get_execute_outputs
    executeAsync = execute_async  # noqa: N815
