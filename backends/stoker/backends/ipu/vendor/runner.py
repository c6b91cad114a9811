"""`VendorRunner`: a PopEF file on an IPU, by `Runner` of `poprt.runtime` or `ModelRunner` of `model_runtime`.

The two modules have the same classes under two spellings: `get_execute_inputs` and `getExecuteInputs`. Settings that a model does not
state keep the vendor's defaults.
"""

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from stoker.backends.ipu.popef.schema import Anchor, TensorInfo, TensorType
from stoker.backends.ipu.popef.schema import DataType as PopefType
from stoker.backends.ipu.popef.served_types import SERVED
from stoker.backends.ipu.vendor.failure import APPLICATION, VendorRunFailed, called

Array = npt.NDArray[Any]
_BY_DTYPE = {each.numpy: each for each in SERVED}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerSettings:
    """Settings of a runner.

    Attributes:
        check_package_hash: Whether a file of another Poplar version is rejected.
        auto_reset: Whether a device that needs a reset is reset before the next run.
        timeout_ns: How long a device that has begun a call waits for data; None: the vendor's default.
    """

    check_package_hash: bool
    auto_reset: bool
    timeout_ns: int | None


class VendorRunner:
    """Any thread may use it: the vendor's runners are thread-safe by default.

    Attributes:
        inputs, outputs: The anchors of the main program. A shape is that of one compiled batch.
    """

    def __init__(self, library: ModuleType, path: Path, settings: RunnerSettings) -> None:
        """Attaches a device and loads the file at `path` to it.

        Raises:
            VendorRunFailed: no device is free, the file is rejected, or a tensor is of an unknown type.
        """
        self._takes_views = not hasattr(library, "Runner")
        make_config = library.ModelRunnerConfig if self._takes_views else library.RuntimeConfig
        config = called(make_config)
        config.check_package_hash = settings.check_package_hash
        config.auto_reset = settings.auto_reset
        if settings.timeout_ns is not None:
            _set_duration(config, "timeout_ns", settings.timeout_ns)
        self._library = library
        self._runner = called(library.ModelRunner if self._takes_views else library.Runner, str(path), config)
        self.inputs = self._anchors(TensorType.INPUT, "get_execute_inputs", "getExecuteInputs")
        self.outputs = self._anchors(TensorType.OUTPUT, "get_execute_outputs", "getExecuteOutputs")

    def execute(self, inputs: Mapping[str, Array], outputs: Mapping[str, Array]) -> None:
        """Runs one request; `outputs` are filled. Both are by anchor, C-contiguous, with a multiple of the compiled batch.

        Raises:
            VendorRunFailed: the request or the device failed.
        """
        called(self._runner.execute, self._view("InputMemoryView", inputs), self._view("OutputMemoryView", outputs))

    def close(self) -> None:
        """Releases the device. The vendor's runners release it when they are deleted."""
        self._runner = None

    def _view(self, name: str, arrays: Mapping[str, Array]) -> Any:
        """`poprt.runtime` takes a dict, `model_runtime` a mapping of its own."""
        if not self._takes_views:
            return dict(arrays)
        view = getattr(self._library, name)()
        for key, array in arrays.items():
            view[key] = array
        return view

    def _anchors(self, kind: TensorType, *spellings: str) -> Sequence[Anchor]:
        describe = next(getattr(self._runner, name) for name in spellings if hasattr(self._runner, name))
        return [_anchor(each, kind) for each in called(describe)]


def _anchor(description: Any, kind: TensorType) -> Anchor:
    name, shape = str(description.name), tuple(int(size) for size in description.shape)
    stated = description.numpy_data_type() if hasattr(description, "numpy_data_type") else None
    if stated is not None:
        found = _BY_DTYPE.get(np.dtype(stated))
    else:
        found = PopefType.__members__.get(str(getattr(description.data_type, "name", description.data_type)))
    if found is None or found not in SERVED:
        raise VendorRunFailed(
            f"{kind.name.lower()} '{name}' is of type {stated or description.data_type}, which cannot be served", APPLICATION
        )
    return Anchor(name=name, handle=name, tensor_info=TensorInfo(shape, found), type=kind)


def _set_duration(config: Any, name: str, value_ns: int) -> None:
    """Sets a duration: an extension type takes a `timedelta` for a C++ duration, and an int for a number."""
    try:
        setattr(config, name, datetime.timedelta(microseconds=value_ns / 1000))
    except TypeError:
        setattr(config, name, value_ns)
