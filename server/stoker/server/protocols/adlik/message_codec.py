"""PredictRequest messages to asks, answers to serialised PredictResponse messages.

Large outputs are put together as bytes, not as a message: they are copied once instead of three times.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from stoker.backends.api.wire import LENGTH, encoded_varint
from stoker.server.codecs.tensor_bytes import Raw, array_pieces
from stoker.server.codecs.tensor_proto import NUMBERS, VALUE_FIELDS, TensorFields
from stoker.server.pb.adlik import predict_pb2
from stoker.server.pb.tensorflow.core.framework import tensor_pb2
from stoker.server.protocols.adlik.model_spec import read_spec
from stoker.server.protocols.adlik.request import PredictQuery
from stoker.server.protocols.adlik.response import PredictionResponse, ResponseOutput

_VALUE_FIELDS = frozenset(VALUE_FIELDS.values()) | {"scomplex_val", "dcomplex_val"}
_NOTHING: Mapping[str, Any] = {}
#: Outputs up to this size are put into the message as they are.
_WHOLE_BYTES = 65_536
# Tags on the wire.
_OUTPUTS = encoded_varint(predict_pb2.PredictResponse.OUTPUTS_FIELD_NUMBER << 3 | LENGTH)
_KEY, _VALUE = encoded_varint(1 << 3 | LENGTH), encoded_varint(2 << 3 | LENGTH)
_TENSOR = encoded_varint(predict_pb2.PredictResponse.Output.TENSOR_FIELD_NUMBER << 3 | LENGTH)
_CONTENT = encoded_varint(tensor_pb2.TensorProto.TENSOR_CONTENT_FIELD_NUMBER << 3 | LENGTH)


def read_request(message: predict_pb2.PredictRequest, contents: Mapping[str, Raw]) -> PredictQuery:
    """What `message` asks for; `contents` holds by input the raw bytes that were cut out of it before it was parsed."""
    return PredictQuery(
        read_spec(message.model_spec),
        message.batch_size,
        {name: _tensor(tensor, contents.get(name, b"")) for name, tensor in message.inputs.items()},
        {name: output.cls.count for name, output in message.output_filter.items()},
    )


def print_response(response: PredictionResponse) -> bytes:
    """The serialised PredictResponse. Safe in a thread."""
    message = predict_pb2.PredictResponse(model_spec=response.model.echo)
    pieces: list[Raw] = []
    for output in response.outputs:
        if output.array.nbytes > _WHOLE_BYTES and not output.datatype.is_bytes:
            pieces += _in_pieces(output)
        else:
            target = message.outputs[output.name]
            _describe(target.tensor, output)
            if not output.datatype.is_bytes:
                target.tensor.tensor_content = output.array.tobytes()
            _add_classes(target, output)
    return b"".join((message.SerializeToString(), *pieces)) if pieces else message.SerializeToString()


def _tensor(tensor: tensor_pb2.TensorProto, content: Raw) -> TensorFields:
    shape = tuple(dim.size for dim in tensor.tensor_shape.dim)
    raw = content if len(content) else tensor.tensor_content
    # Typed values do not count beside raw bytes, so they are not even looked at.
    values = _NOTHING if len(raw) else {field.name: value for field, value in tensor.ListFields() if field.name in _VALUE_FIELDS}
    return TensorFields(tensor.dtype, shape or None, raw, values)


def _describe(tensor: tensor_pb2.TensorProto, output: ResponseOutput) -> None:
    """Fills in all of `tensor` but its content."""
    tensor.dtype = NUMBERS[output.datatype]
    add_dim = tensor.tensor_shape.dim.add
    for size in output.array.shape:
        add_dim(size=size)
    if output.datatype.is_bytes:
        tensor.string_val.extend(value.encode() if isinstance(value, str) else value for value in output.array.reshape(-1).tolist())


def _add_classes(target: predict_pb2.PredictResponse.Output, output: ResponseOutput) -> None:
    for sample in output.classes:
        target.batch_classes.add(
            cls=[predict_pb2.PredictResponse.Class(idx=best.place, score=best.score, label=best.label) for best in sample]
        )


def _in_pieces(output: ResponseOutput) -> list[Raw]:
    """One entry of the map `outputs`, its content not copied into a message and out of it."""
    tensor, classes = tensor_pb2.TensorProto(), predict_pb2.PredictResponse.Output()
    _describe(tensor, output)
    _add_classes(classes, output)
    pieces = array_pieces(output.array, output.datatype)
    content = [_CONTENT, encoded_varint(sum(map(len, pieces))), *pieces]
    body = [*_field(_TENSOR, [tensor.SerializeToString(), *content]), classes.SerializeToString()]
    return _field(_OUTPUTS, [*_field(_KEY, [output.name.encode()]), *_field(_VALUE, body)])


def _field(tag: bytes, pieces: Sequence[Raw]) -> list[Raw]:
    return [tag, encoded_varint(sum(map(len, pieces))), *pieces]
