"""Converts encoded tensors to TensorFlow's messages and back: both have the same raw form, so that bytes are copied unchanged.

TensorFlow Serving's and Adlik's messages are in separate pools with a class `TensorProto` each; these functions accept both.
"""

from collections.abc import Mapping
from typing import Any, cast

from stoker_client._pb import adlik_messages
from stoker_client.adlik.tensor_proto import array_from_proto
from stoker_client.datatypes import BYTES, unpack_bytes
from stoker_client.errors import InvalidRequest
from stoker_client.inference import InferResult, TensorInfo
from stoker_client.tensors import EncodedTensor

#: TensorFlow's names of the element types, with KServe's.
WIRE_NAMES = {
    "DT_FLOAT": "FP32", "DT_DOUBLE": "FP64", "DT_HALF": "FP16", "DT_BFLOAT16": "BF16", "DT_BOOL": "BOOL", "DT_STRING": BYTES,
    "DT_INT8": "INT8", "DT_INT16": "INT16", "DT_INT32": "INT32", "DT_INT64": "INT64",
    "DT_UINT8": "UINT8", "DT_UINT16": "UINT16", "DT_UINT32": "UINT32", "DT_UINT64": "UINT64",
}  # fmt: skip
_NUMBERS = {wire: adlik_messages.DataType.Value(name) for name, wire in WIRE_NAMES.items()}
_NAMES = {number: wire for wire, number in _NUMBERS.items()}


def wire_name(number: int) -> str:
    """KServe's name of a `DataType` number; TensorFlow's name if KServe has none."""
    known = _NAMES.get(number)
    if known is not None:
        return known
    return {value: key for key, value in adlik_messages.DataType.items()}.get(number, f"DT_{number}")


def set_tensor(proto: Any, tensor: EncodedTensor) -> None:
    """Fills the empty TensorProto `tensor`.

    Raises:
        InvalidRequest: TensorFlow has no such element type.
    """
    number = _NUMBERS.get(tensor.datatype)
    if number is None:
        raise InvalidRequest(f"input '{tensor.name}' is {tensor.datatype}, which TensorFlow's messages cannot hold")
    proto.dtype = number
    for size in tensor.shape:
        proto.tensor_shape.dim.add(size=size)
    if tensor.datatype == BYTES:
        count = 1
        for size in tensor.shape:
            count *= size
        proto.string_val.extend(unpack_bytes(memoryview(tensor.raw), count, tensor.name).tolist())
    else:
        proto.tensor_content = tensor.raw


def result_of(tensors: Mapping[str, Any], model: str, version: str) -> InferResult:
    """The outputs of a response, sorted by name, because a protobuf map has no order.

    Raises:
        InvalidResponse: type, shape and content of an output contradict each other.
    """
    outputs = {}
    info = {}
    for name in sorted(tensors):
        proto = tensors[name]
        outputs[name] = array_from_proto(name, cast("adlik_messages.TensorProto", proto))
        info[name] = TensorInfo(wire_name(proto.dtype), outputs[name].shape)
    result = InferResult(outputs, model_name=model, model_version=version, request_id="")
    result.info = info
    return result
