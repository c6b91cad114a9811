"""Stand-ins for the vendor's `poprt.runtime` and `model_runtime`, on ONNX Runtime: what they do, as far as it is documented.

A file is a static ONNX graph behind a magic number. `FAULTS` names the failures of the next calls of `execute`.
"""

import collections
import datetime
import os
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

MAGIC = b"FAKEPOPEF"
#: `IPU_RESET` or another recovery action, `application`, or another text for an unknown failure; empty for a success.
FAULTS: "collections.deque[str]" = collections.deque(filter(None, os.environ.get("FAKE_IPU_FAULTS", "").split(",")))
#: The configurations of the runners that were made.
CONFIGS: list[Any] = []


class application_runtime_error(RuntimeError):  # noqa: N801 - the vendor's name
    pass


class recoverable_runtime_error(RuntimeError):  # noqa: N801 - the vendor's name
    def __init__(self, text: str, action: str) -> None:
        super().__init__(text)
        self.action = action


class unknown_runtime_error(RuntimeError):  # noqa: N801 - the vendor's name
    pass


class RuntimeConfig:
    """PopRT's; a duration is a number."""

    _duration: type = int

    def __init__(self) -> None:
        self.check_package_hash = True
        self.auto_reset = False
        self._timeout_ns: Any = None

    @property
    def timeout_ns(self) -> Any:
        return self._timeout_ns

    @timeout_ns.setter
    def timeout_ns(self, value: Any) -> None:
        if not isinstance(value, self._duration):
            raise TypeError(f"incompatible type {type(value).__name__}")
        self._timeout_ns = value


class ModelRunnerConfig(RuntimeConfig):
    """model_runtime's; a duration is a `timedelta`."""

    _duration = datetime.timedelta


class PopefDataType:
    """A member of the vendor's enumeration of element types."""

    def __init__(self, name: str) -> None:
        self.name = name


class DataDesc:
    """One input or output."""

    def __init__(self, value: Any) -> None:
        self.name, self.shape = value.name, list(value.shape)
        self._dtype = dtype_of(value.type)
        kinds = {"f": "F", "i": "S", "u": "U"}
        self.data_type = PopefDataType("BOOL" if self._dtype.kind == "b" else f"{kinds[self._dtype.kind]}{8 * self._dtype.itemsize}")


class DataDescOfPopRT(DataDesc):
    """PopRT's also states the numpy type."""

    def numpy_data_type(self) -> Any:
        return self._dtype.type


def dtype_of(text: str) -> "np.dtype[Any]":
    names = {"tensor(float)": "f4", "tensor(float16)": "f2", "tensor(double)": "f8", "tensor(bool)": "?"}
    return np.dtype(names.get(text) or text[len("tensor(") : -1])


class _Executor:
    def __init__(self, path: str, config: RuntimeConfig) -> None:
        content = Path(path).read_bytes()
        if not content.startswith(MAGIC):
            raise application_runtime_error("the file is no PopEF file")
        try:
            self.session = onnxruntime.InferenceSession(content[len(MAGIC) :], providers=["CPUExecutionProvider"])
        except Exception as error:
            raise application_runtime_error(f"the PopEF file is damaged: {type(error).__name__}") from None
        CONFIGS.append(config)

    def execute(self, inputs: Any, outputs: Any) -> None:
        fault = FAULTS.popleft() if FAULTS else ""
        if fault == "application":
            raise application_runtime_error("the program failed")
        if fault.endswith("_RESET"):
            raise recoverable_runtime_error("the device failed", fault)
        if fault:
            raise unknown_runtime_error(fault)
        values = self.session.get_inputs()
        if {value.name for value in values} != set(inputs):
            raise application_runtime_error(f"inputs are {sorted(inputs)}")
        times = {len(inputs[value.name]) // (value.shape[0] or 1) if value.shape else 1 for value in values}
        if len(times) != 1:
            raise application_runtime_error("inputs have different batches")
        for at in range(times.pop()):
            fed = {}
            for value in values:
                batch = value.shape[0] if value.shape else 0
                array = inputs[value.name]
                fed[value.name] = array[at * batch : (at + 1) * batch] if value.shape else array
                if list(fed[value.name].shape) != list(value.shape) or array.dtype != dtype_of(value.type):
                    raise application_runtime_error(f"input {value.name} is {array.dtype} {array.shape}")
            try:
                computed = self.session.run(None, fed)
            except onnxruntime.capi.onnxruntime_pybind11_state.InvalidArgument as error:
                raise application_runtime_error(str(error)[:80]) from None
            for value, array in zip(self.session.get_outputs(), computed, strict=True):
                if value.name in outputs:
                    target = outputs[value.name]
                    if array.ndim:
                        target[at * len(array) : (at + 1) * len(array)] = array
                    else:
                        target[...] = array


class Runner:
    """PopRT's."""

    def __init__(self, path: str, config: RuntimeConfig) -> None:
        self._executor = _Executor(path, config)

    def get_execute_inputs(self) -> list[DataDesc]:
        return [DataDescOfPopRT(value) for value in self._executor.session.get_inputs()]

    def get_execute_outputs(self) -> list[DataDesc]:
        return [DataDescOfPopRT(value) for value in self._executor.session.get_outputs()]

    def execute(self, inputs: dict[str, Any], outputs: dict[str, Any]) -> None:
        self._executor.execute(inputs, outputs)


class InputMemoryView(dict):
    pass


class OutputMemoryView(dict):
    pass


class ModelRunner:
    """model_runtime's."""

    def __init__(self, path: str, config: ModelRunnerConfig) -> None:
        self._executor = _Executor(path, config)

    def getExecuteInputs(self) -> list[DataDesc]:
        return [DataDesc(value) for value in self._executor.session.get_inputs()]

    def getExecuteOutputs(self) -> list[DataDesc]:
        return [DataDesc(value) for value in self._executor.session.get_outputs()]

    def execute(self, inputs: InputMemoryView, outputs: OutputMemoryView) -> None:
        if not isinstance(inputs, InputMemoryView) or not isinstance(outputs, OutputMemoryView):
            raise TypeError("execute(): incompatible function arguments")
        self._executor.execute(inputs, outputs)
