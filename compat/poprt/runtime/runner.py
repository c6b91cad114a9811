"""`Runner`: the runner that a configuration asks for."""

from collections.abc import Mapping
from types import TracebackType
from typing import Any

import numpy.typing as npt

from poprt.runtime.fusion_runner import ModelFusionRunner, ModelFusionRunnerConfig
from poprt.runtime.host_concat_runner import HostConcatRunner, HostConcatRunnerConfig
from poprt.runtime.light_runner import LightRunner, LightRunnerConfig
from poprt.runtime.pack_runner import PackRunner
from poprt.runtime.packing_config import PackRunnerConfig
from stoker.backends.ipu.runtime.device import Device
from stoker.backends.ipu.runtime.device_manager import DeviceManager
from stoker.backends.ipu.runtime.executable import DataDesc, Executable, Source
from stoker.backends.ipu.runtime.inference_future import InferenceFuture, Outputs
from stoker.backends.ipu.runtime.model_runner import ModelRunner
from stoker.backends.ipu.runtime.runtime_config import RuntimeConfig

Array = npt.NDArray[Any]

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
        executable = source if isinstance(source, Executable) else Executable(source, check_package_hash=config.check_package_hash)
        kind = next(RUNNERS[each] for each in type(config).__mro__ if each in RUNNERS)
        if kind is ModelRunner and executable.index_anchor is not None:
            kind = ModelFusionRunner
        self.runner = kind(executable, config, device=device, device_manager=device_manager)

    def __enter__(self) -> "Runner":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
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
