"""ModelInferResponses written straight to the wire: only ids and elements differ between the answers of one model and one shape.

The bytes that tell the model, the outputs, their datatypes and shapes are made once, by protobuf, and kept. A test compares every answer
with what protobuf makes of the same message.
"""

from typing import NamedTuple

from stoker.backends.api.model import ModelSignature
from stoker.backends.api.tensor import DataType
from stoker.backends.api.wire import LENGTH, encoded_varint
from stoker.server.codecs.tensor_bytes import Raw
from stoker.server.core.request import InferResponse
from stoker.server.pb import grpc_service_pb2 as pb

#: Layouts kept; a model of variable shapes makes one for each.
_KEPT = 1024
_ID = encoded_varint(pb.ModelInferResponse.ID_FIELD_NUMBER << 3 | LENGTH)
_RAW = encoded_varint(pb.ModelInferResponse.RAW_OUTPUT_CONTENTS_FIELD_NUMBER << 3 | LENGTH)
#: What precedes an id, by the id's length.
_SHORT = 0x80
_SHORT_IDS = tuple(_ID + bytes((size,)) for size in range(_SHORT))
#: Larger tensors are not copied twice.
_COPIED_BYTES = 8192


class _Layout(NamedTuple):
    """The bytes before the id, those after it, and what precedes each output's elements. INVARIANT: it keeps its signature alive."""

    signature: ModelSignature
    model: bytes
    outputs: bytes
    lengths: tuple[bytes, ...]


class ResponseLayouts:
    """Confined to: the event loop."""

    def __init__(self) -> None:
        self._kept: dict[object, _Layout] = {}

    def encode(self, response: InferResponse) -> bytes | None:
        """The serialised message that answers with `response`; None where an output holds strings, whose length nobody knows before."""
        outputs, signature = response.outputs, response.signature
        # Hashing a signature would cost more than all else here: its identity is looked up, which no other has while its layout is kept.
        key = (id(signature), response.model_name, response.model_version, *outputs, *[array.shape for array in outputs.values()])
        layout = self._kept.get(key)
        if layout is None:
            layout = _layout_of(response)
            if layout is None:
                return None
            if len(self._kept) >= _KEPT:
                self._kept.clear()
            self._kept[key] = layout
        _, model, described, lengths = layout
        request_id = response.request_id
        if request_id:
            encoded = request_id.encode()
            size = len(encoded)
            parts: list[Raw] = [model, _SHORT_IDS[size] if size < _SHORT else _ID + encoded_varint(size), encoded, described]
        else:
            parts = [model, described]
        for length, array in zip(lengths, outputs.values(), strict=True):
            parts.append(length)
            # A view where it can be: the join is the one copy of a tensor. Of a small one, two copies take half as long as a view.
            is_view = array.nbytes > _COPIED_BYTES and array.flags.c_contiguous
            parts.append(array.data if is_view else array.tobytes())
        return b"".join(parts)


def _layout_of(response: InferResponse) -> _Layout | None:
    message = pb.ModelInferResponse(model_name=response.model_name, model_version=str(response.model_version))
    described = pb.ModelInferResponse()
    lengths: list[bytes] = []
    for name, array in response.outputs.items():
        spec = response.output_spec(name)
        if spec.datatype is DataType.BYTES:
            return None
        described.outputs.add(name=name, datatype=spec.datatype.value, shape=array.shape)
        lengths.append(_RAW + encoded_varint(array.nbytes))
    return _Layout(response.signature, message.SerializeToString(), described.SerializeToString(), tuple(lengths))
