"""A stand-in for the vendor's Python module `TopsInference`, on ONNX Runtime: what a real card's library does, as far as it is known.

Names and call forms are those of public scripts. It is stricter than a library may be, so that tests find what a card would: device memory
is an opaque object; a thread must set its device before it uses it; sizes are checked. `FAULTS` names the statuses of the next runs.
"""

import collections
import contextlib
import os
import threading
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime

__version__ = "2.4.1 (fake)"
MAGIC = b"TOPSEXEC"
ONNX_MODEL = 0
KDEFAULT, KFP16, KFP16_MIX = 1, 2, 4
TIF_ENGINE_RSC_IN_HOST_OUT_HOST, TIF_ENGINE_RSC_IN_DEVICE_OUT_DEVICE = 0, 1

#: Status names of the next runs; `ok` is a success, `wrong` a wrong result, `False` the result of a call without a text, `hang` a run that
#: never ends.
FAULTS: "collections.deque[str]" = collections.deque(filter(None, os.environ.get("FAKE_TOPS_FAULTS", "").split(",")))
#: Calls that were made, by name.
CALLS: "collections.Counter[str]" = collections.Counter()
#: Set to end runs that hang.
RELEASED = threading.Event()
_HANG_S = 60.0
_devices = threading.local()


class Error(RuntimeError):
    """A failed call; the text holds the status."""


class _Memory:
    def __init__(self, size: int) -> None:
        self.data: Any = np.zeros(size, np.uint8)


class _Stream:
    pass


def _fail(status: str, text: str = "call failed") -> Error:
    return Error(f"{text}, status: {status}")


def set_device(card_id: int, cluster_ids: Any) -> object:
    CALLS["set_device"] += 1
    if card_id > 1:
        raise _fail("TIF_INVALID_PARAM", f"no card {card_id}")
    _devices.handle = object()
    return _devices.handle


def release_device(handle: object) -> bool:
    CALLS["release_device"] += 1
    _check_device()
    if handle is not _devices.handle:
        raise _fail("TIF_INVALID_PARAM", "another thread's device")
    _devices.handle = None
    return True


@contextlib.contextmanager
def device(card_id: int, cluster_id: Any):
    handle = set_device(card_id, cluster_id)
    try:
        yield handle
    finally:
        release_device(handle)


def _check_device() -> None:
    if getattr(_devices, "handle", None) is None:
        raise _fail("TIF_NOT_INITIALIZED", "this thread has set no device")


def create_stream() -> _Stream:
    _check_device()
    return _Stream()


def mem_alloc(size: int) -> _Memory:
    _check_device()
    CALLS["mem_alloc"] += 1
    return _Memory(size)


def mem_free(block: _Memory) -> bool:
    _check_device()
    CALLS["mem_free"] += 1
    if block.data is None:
        raise _fail("TIF_INVALID_PARAM", "freed twice")
    block.data = None
    return True


def _bytes_of(array: np.ndarray) -> np.ndarray:
    if not array.flags.c_contiguous:
        raise _fail("TIF_INVALID_VALUE", "the array is not contiguous")
    return array.reshape(-1).view(np.uint8)


def mem_h2d_copy(array: np.ndarray, block: _Memory, size: int) -> bool:
    _check_device()
    block.data[:size] = _bytes_of(array)[:size]  # numpy rejects what is too long
    return True


def mem_d2h_copy(block: _Memory, array: np.ndarray, size: int) -> bool:
    _check_device()
    _bytes_of(array)[:size] = block.data[:size]
    return True


class _Future:
    def __init__(self, compute: Any) -> None:
        self._compute = compute

    def get(self) -> Any:
        return self._compute()


class Engine:
    """A compiled model: a graph whose first dimension is the compiled batch."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
        self._inputs, self._outputs = self._session.get_inputs(), self._session.get_outputs()

    def save_executable(self, path: str) -> bool:
        Path(path).write_bytes(MAGIC + zlib.crc32(self._content).to_bytes(4, "little") + self._content)
        return True

    def run_with_batch(
        self,
        sample_nums: int,
        input_list: Any,
        output_list: Any = None,
        buffer_type: int = TIF_ENGINE_RSC_IN_HOST_OUT_HOST,
        py_stream: _Stream | None = None,
    ) -> Any:
        _check_device()
        CALLS["run_with_batch"] += 1
        fault = FAULTS.popleft() if FAULTS else ""
        if fault == "False":
            return False
        if len(input_list) != len(self._inputs):
            raise _fail("TIF_INVALID_PARAM", f"{len(input_list)} inputs for {len(self._inputs)}")
        if buffer_type == TIF_ENGINE_RSC_IN_HOST_OUT_HOST:
            if py_stream is not None:
                raise _fail("TIF_INVALID_PARAM", "a run from host memory takes no stream")
            given = [self._joined(each, samples) for each, samples in zip(self._inputs, input_list, strict=True)]
            return _Future(lambda: self._computed(given, sample_nums, fault))
        if len(output_list) != len(self._outputs) or not all(isinstance(each, _Memory) for each in (*input_list, *output_list)):
            raise _fail("TIF_INVALID_PARAM", "device memory is wanted")

        def run() -> list[_Memory]:
            given = []
            for each, block in zip(self._inputs, input_list, strict=True):
                dtype, dims = _dtype(each.type), tuple(each.shape[1:])
                size = sample_nums * dtype.itemsize * int(np.prod(dims))
                given.append(block.data[:size].copy().view(dtype).reshape(sample_nums, *dims))
            for array, block in zip(self._computed(given, sample_nums, fault), output_list, strict=True):
                block.data[: array.nbytes] = _bytes_of(np.ascontiguousarray(array))
            return list(output_list)

        return _Future(run)

    def _joined(self, value: Any, samples: Any) -> np.ndarray:
        dtype, dims = _dtype(value.type), tuple(value.shape[1:])
        for sample in samples:
            if sample.dtype != dtype:
                raise _fail("TIF_MIS_MATCHED_DATA_TYPE", f"input {value.name} is {dtype}")
            if sample.size != np.prod(dims):
                raise _fail("TIF_MIS_MATCHED_SHAPE_OR_DIM", f"input {value.name} is {dims}")
        return np.stack([sample.reshape(dims) for sample in samples])

    def _computed(self, given: list[np.ndarray], samples: int, fault: str) -> list[np.ndarray]:
        if fault == "hang":
            RELEASED.wait(_HANG_S)
        elif fault not in ("", "ok", "wrong"):
            raise _fail(fault)
        batch = self._inputs[0].shape[0] if self._inputs else samples
        parts = []
        for first in range(0, samples, batch):
            chunk = [array[first : first + batch] for array in given]
            real = len(chunk[0]) if chunk else batch
            fed = {
                value.name: np.concatenate([array, np.zeros((batch - real, *array.shape[1:]), array.dtype)])
                for value, array in zip(self._inputs, chunk, strict=True)
            }
            try:
                parts.append([array[:real] for array in self._session.run(None, fed)])
            except onnxruntime.capi.onnxruntime_pybind11_state.InvalidArgument as error:
                raise _fail("TIF_ENGINE_RUN_FAILED", str(error)[:80]) from None
        outputs = [np.concatenate(each) for each in zip(*parts, strict=True)]
        return [array + array.dtype.type(1) for array in outputs] if fault == "wrong" else outputs


PyEngine = Engine


def load(path: str) -> Engine:
    _check_device()
    CALLS["load"] += 1
    content = Path(path).read_bytes()
    if not content.startswith(MAGIC):
        raise _fail("TIF_EXECUTABLE_DEVICE_VERIFY_FAILED", "no executable")
    crc, graph = content[8:12], content[12:]
    if zlib.crc32(graph).to_bytes(4, "little") != crc:
        raise _fail("TIF_EXECUTABLE_CRC_VERIFY_FAILED", "the executable is damaged")
    return Engine(graph)


def _dtype(text: str) -> "np.dtype[Any]":
    names = {"tensor(float)": "f4", "tensor(float16)": "f2", "tensor(double)": "f8", "tensor(bool)": "?"}
    return np.dtype(names.get(text) or text[len("tensor(") : -1])


class _Parser:
    def __init__(self) -> None:
        self._shapes: list[list[int]] | None = None

    def set_input_shapes(self, shapes: Any) -> bool:
        self._shapes = [[int(size) for size in part.split(",")] for part in shapes.split(":")] if isinstance(shapes, str) else shapes
        return True

    def read(self, path: str) -> onnx.ModelProto:
        CALLS["read"] += 1
        model = onnx.load(path)
        for value, shape in zip(model.graph.input, self._shapes or (), strict=False):
            for dimension, size in zip(value.type.tensor_type.shape.dim, shape, strict=True):
                dimension.Clear()
                dimension.dim_value = size
        if any(node.op_type == "NonZero" for node in model.graph.node):
            raise _fail("TIF_UN_SUPPORTED_OPERATOR", "NonZero")
        return model


class _Optimizer:
    def set_build_flag(self, flag: int) -> bool:
        return flag in (KDEFAULT, KFP16, KFP16_MIX)

    def build(self, network: onnx.ModelProto) -> Engine:
        CALLS["build"] += 1
        return Engine(network.SerializeToString())


def create_parser(kind: int) -> _Parser:
    if kind != ONNX_MODEL:
        raise _fail("TIF_PARSER_UNSUPPORTED_MODEL")
    return _Parser()


def create_optimizer() -> _Optimizer:
    return _Optimizer()
