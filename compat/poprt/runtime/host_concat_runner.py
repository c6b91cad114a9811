"""`HostConcatRunner`: for models whose many small inputs travel to the device as one (`apply_host_concat_split`).

Requests name the inputs of the source model. Their bytes are put behind each other, in the order that the executable notes, into the
stream that the device splits again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from stoker.backends.ipu.opaques import HOST_CONCAT, HostConcat, OpaqueError
from stoker.backends.ipu.popef.schema import Anchor, TensorType
from stoker.backends.ipu.runtime.device import Device
from stoker.backends.ipu.runtime.device_manager import DeviceManager
from stoker.backends.ipu.runtime.errors import ApplicationRuntimeError
from stoker.backends.ipu.runtime.executable import DataDesc, Executable, Source
from stoker.backends.ipu.runtime.inference_future import InferenceFuture
from stoker.backends.ipu.runtime.model_runner import ModelRunner
from stoker.backends.ipu.runtime.runner_io import reject_violation
from stoker.backends.ipu.runtime.runtime_config import RuntimeConfig

Array = npt.NDArray[Any]


@dataclass(slots=True, kw_only=True)
class HostConcatConfig:
    """One stream that carries several inputs.

    Attributes:
        tensor_name: The stream.
        input_tensor_names: The inputs, in the order of their bytes in it.
        shape: Of each of the inputs, one compiled batch.
        data_size_bytes: Of each of the inputs.
    """

    tensor_name: str = ""
    input_tensor_names: Sequence[str] = ()
    shape: Sequence[int] = ()
    data_size_bytes: int = 0


@dataclass(slots=True, kw_only=True)
class HostConcatRunnerConfig(RuntimeConfig):
    """How a `HostConcatRunner` runs.

    Attributes:
        host_concat_config: Which streams carry which inputs, by stream; empty: what the executable notes.
    """

    host_concat_config: Mapping[str, HostConcatConfig] = field(default_factory=dict)


class HostConcatRunner(ModelRunner):
    """A `ModelRunner` that takes the inputs of the source model. Any thread may use it."""

    def __init__(
        self,
        source: Executable | Source,
        config: RuntimeConfig | None = None,
        *,
        device: Device | None = None,
        device_manager: DeviceManager | None = None,
    ) -> None:
        """See `ModelRunner`.

        Raises:
            ApplicationRuntimeError: neither the configuration nor the executable says which inputs are joined, or what they say does not
                fit the executable's streams; or batching_dim is set.
        """
        config = config or HostConcatRunnerConfig()
        if config.is_batching:
            raise ApplicationRuntimeError("batching_dim cannot be used with joined inputs: their stream has no dimension that may grow")
        executable = Executable.of(source, check_package_hash=config.check_package_hash)
        given = config.host_concat_config if isinstance(config, HostConcatRunnerConfig) else {}
        self._joined = {each.tensor_name: each for each in (given.values() or _noted(executable))}
        for name, each in self._joined.items():
            _reject_contradiction(executable.anchor(name, TensorType.INPUT), each)
        super().__init__(executable, config, device=device, device_manager=device_manager)

    def get_execute_inputs(self) -> list[DataDesc]:
        """The inputs that requests may name: those of the source model."""
        return [part for desc in super().get_execute_inputs() for part in self._parts(desc)]

    def get_model_inputs(self) -> list[DataDesc]:
        """Those, and the weights that are not compiled in."""
        return [part for desc in super().get_model_inputs() for part in self._parts(desc)]

    def execute_async(self, inputs: Mapping[str, Array], outputs: Mapping[str, Array] | None = None) -> InferenceFuture:
        """See `ModelRunner.execute_async`. Inputs that travel together are copied once.

        Raises:
            ApplicationRuntimeError: the request does not fit the executable.
            IpuRuntimeError: the device failed before.
        """
        taken = {name for each in self._joined.values() for name in each.input_tensor_names}
        fed = {name: array for name, array in inputs.items() if name not in taken}
        for name, each in self._joined.items():
            if name not in fed and any(part in inputs for part in each.input_tensor_names):
                fed[name] = _concatenated(self.executable.anchor(name, TensorType.INPUT), each, inputs)
        return super().execute_async(fed, outputs)

    def _parts(self, desc: DataDesc) -> list[DataDesc]:
        each = self._joined.get(desc.name)
        if each is None:
            return [desc]
        return [replace(desc, name=part, shape=list(each.shape), size_in_bytes=each.data_size_bytes) for part in each.input_tensor_names]


def _noted(executable: Executable) -> list[HostConcatConfig]:
    blob = executable.model.opaques.get(HOST_CONCAT)
    if blob is None:
        raise ApplicationRuntimeError(
            f"executable '{executable.name}' notes no joined inputs (opaque blob '{HOST_CONCAT}'): compile the model with "
            "apply_host_concat_split, or give host_concat_config"
        )
    try:
        noted = HostConcat.from_bytes(blob)
    except OpaqueError as error:
        raise ApplicationRuntimeError(f"executable '{executable.name}': {error}") from error
    return [
        HostConcatConfig(
            tensor_name=each.tensor_name,
            input_tensor_names=each.input_tensor_names,
            shape=each.shape,
            data_size_bytes=each.data_size_bytes,
        )
        for each in noted.inputs
    ]


def _reject_contradiction(anchor: Anchor, each: HostConcatConfig) -> None:
    info = anchor.tensor_info
    part_bytes = int(np.prod(each.shape, dtype=np.int64)) * info.data_type.numpy.itemsize
    if part_bytes != each.data_size_bytes or len(each.input_tensor_names) * part_bytes != info.size_in_bytes:
        raise ApplicationRuntimeError(
            f"stream '{anchor.name}' of {info.size_in_bytes} bytes cannot carry {len(each.input_tensor_names)} inputs of shape "
            f"{list(each.shape)} ({info.data_type.numpy}) and {each.data_size_bytes} bytes each"
        )


def _concatenated(anchor: Anchor, each: HostConcatConfig, inputs: Mapping[str, Array]) -> Array:
    """The stream's data for a whole number of compiled batches."""
    absent = [part for part in each.input_tensor_names if part not in inputs]
    if absent:
        raise ApplicationRuntimeError(f"the request lacks inputs that travel in stream '{anchor.name}': {', '.join(absent)}")
    shape, names = tuple(each.shape), each.input_tensor_names
    counts = {}
    for name in names:
        part = inputs[name]
        reject_violation(replace(anchor, name=name), part)
        is_multiple = bool(shape) and part.shape[1:] == shape[1:] and part.ndim == len(shape) and part.shape[0] % shape[0] == 0
        if part.size == 0 or (part.shape != shape and not is_multiple):
            wanted = ", ".join([f"{shape[0]} x N" if shape else "", *map(str, shape[1:])])
            raise ApplicationRuntimeError(f"'{name}' has shape {list(part.shape)}, expected [{wanted}] for any whole N from 1")
        counts[name] = 1 if part.shape == shape else part.shape[0] // shape[0]
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"'{name}' {count}" for name, count in counts.items())
        raise ApplicationRuntimeError(f"inputs hold different numbers of compiled batches: {listed}")
    count = counts[names[0]]
    data = np.empty((count, len(names), *shape), anchor.tensor_info.data_type.numpy)
    for index, name in enumerate(names):
        data[:, index] = inputs[name].reshape((count, *shape))
    whole = anchor.tensor_info.shape
    return data.reshape((count * whole[0], *whole[1:]) if count > 1 else whole)
