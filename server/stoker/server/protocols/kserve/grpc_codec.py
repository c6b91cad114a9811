"""ModelInferRequest messages to validated requests, responses to ModelInferResponse messages.

This path runs for every request of every size, so it sets fields directly and allocates no object it does not need.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from stoker.backends.api.errors import InvalidRequest
from stoker.backends.api.model import TensorSpec
from stoker.backends.api.tensor import DataType
from stoker.backends.api.wire import LENGTH, encoded_varint
from stoker.server.codecs.response_layouts import Layout, Layouts, Part, Variant
from stoker.server.codecs.shared_memory import Span
from stoker.server.codecs.tensors import (
    Raw,
    Serialised,
    array_from_bytes,
    array_from_span,
    array_pieces,
    array_to_bytes,
    declared_count,
    object_array,
    serialised,
)
from stoker.server.codecs.validation import (
    NO_PARAMETERS,
    SignatureCheck,
    SignatureChecks,
    SignatureMismatch,
    classification_count,
    parse_version,
    read_parameters,
    reject_shared_memory,
    with_request_id,
)
from stoker.server.core.limits import Limits
from stoker.server.core.request import Array, InferRequest, InferResponse, ParameterValue, Servable, Via
from stoker.server.engine.interface import Engine
from stoker.server.pb import grpc_service_pb2 as pb
from stoker.server.protocols.kserve.classification import check_classes, classify
from stoker.server.protocols.kserve.decoded import DecodedRequest, ResponseForm
from stoker.server.protocols.kserve.shared_tensors import NO_SHARED, NO_SPANS, Spans, classified_in_shared_memory, span_parameters

_CONTENTS: Final = {
    DataType.BOOL: "bool_contents",
    DataType.INT8: "int_contents",
    DataType.INT16: "int_contents",
    DataType.INT32: "int_contents",
    DataType.INT64: "int64_contents",
    DataType.UINT8: "uint_contents",
    DataType.UINT16: "uint_contents",
    DataType.UINT32: "uint_contents",
    DataType.UINT64: "uint64_contents",
    DataType.FP32: "fp32_contents",
    DataType.FP64: "fp64_contents",
    DataType.BYTES: "bytes_contents",
}
#: Types that the wire format holds in a wider field, so that values may be out of range.
_NARROW: Final = frozenset({DataType.INT8, DataType.INT16, DataType.UINT8, DataType.UINT16})
_NO_CLASSIFICATIONS: Mapping[str, int] = {}
_NO_LABELS: Mapping[str, Sequence[str]] = {}
#: The tag of `raw_output_contents` on the wire.
_RAW_OUTPUT_TAG: Final = pb.ModelInferResponse.RAW_OUTPUT_CONTENTS_FIELD_NUMBER << 3 | 2


class Target:
    """The version that a request addresses, and its signature check: the part of decoding that needs the engine."""

    __slots__ = ("check", "model_version", "received_ns", "servable")

    def __init__(self, model_version: int | None, servable: Servable, check: SignatureCheck, received_ns: int) -> None:
        self.model_version = model_version
        self.servable = servable
        self.check = check
        self.received_ns = received_ns


class GrpcCodec:
    """Translates ModelInferRequest. Confined to: the event loop, but for `build`."""

    def __init__(self, engine: Engine, limits: Limits) -> None:
        self._engine = engine
        self._limits = limits
        self._checks = SignatureChecks(engine, limits)

    def decode(self, message: pb.ModelInferRequest, size_bytes: int, deadline_ns: int | None) -> DecodedRequest:
        """Decodes `message` (`size_bytes` on the wire).

        Raises:
            ServingError: the request violates the protocol, the limits or the model's signature, or no READY model matches.
        """
        return self.build(self.target(message), message, message.raw_input_contents, size_bytes, deadline_ns)

    def target(self, message: pb.ModelInferRequest) -> Target:
        """Finds the version that `message` addresses.

        Raises:
            ServingError: no READY model matches.
        """
        received_ns = self._engine.now_ns()
        name, version_text = message.model_name, message.model_version
        version = parse_version(version_text, name) if version_text else None
        servable, check = self._checks.find(name, version)
        return Target(version, servable, check, received_ns)

    def count_strings(self, message: pb.ModelInferRequest, raws: Sequence[Raw], spans: Spans = NO_SPANS) -> int:
        """An upper bound of the number of BYTES elements in `message`, `raws` and `spans`."""
        count = 0
        raw_at = 0
        for at, tensor in enumerate(message.inputs):
            span = spans.inputs.get(at)
            if tensor.datatype == DataType.BYTES.value:
                # Each element takes at least four bytes.
                if span is not None:
                    count += declared_count(tensor.shape, span.byte_size // 4)
                elif raw_at < len(raws):
                    count += declared_count(tensor.shape, len(raws[raw_at]) // 4)
                else:
                    count += len(tensor.contents.bytes_contents)
            raw_at += span is None
        return count

    def labels(self, response: InferResponse, classifications: Mapping[str, int]) -> Mapping[str, Sequence[str]]:
        """The class labels that encoding needs, by output.

        Raises:
            TooLarge: as `check_classes`.
        """
        if not classifications:
            return _NO_LABELS
        check_classes(response, classifications, self._limits)
        return {name: self._engine.labels(response.model_name, response.model_version, name) for name in classifications}

    def build(
        self,
        target: Target,
        message: pb.ModelInferRequest,
        raws: Sequence[Raw],
        size_bytes: int,
        deadline_ns: int | None,
        spans: Spans = NO_SPANS,
    ) -> DecodedRequest:
        """As `decode`, for a known `target`, and raw contents that may be outside the message; safe in a thread."""
        check = target.check
        request_id = message.id
        if len(request_id) > self._limits.id_length:
            raise InvalidRequest(f"request id has {len(request_id)} characters, more than the {self._limits.id_length} allowed")
        given = message.parameters
        parameters = read_parameters(self._scalars(given)) if given else NO_PARAMETERS
        try:
            inputs = self._mixed_inputs(check, message, raws, spans.inputs) if spans.inputs else self._inputs(check, message, raws)
            rows = check.complete(inputs)
            outputs = message.outputs
            if outputs:
                output_names, classifications = self._outputs(check, outputs, spans.outputs)
            else:
                output_names, classifications = check.default_outputs, _NO_CLASSIFICATIONS
        except SignatureMismatch as error:
            raise InvalidRequest(with_request_id(error.message, request_id)) from None
        return DecodedRequest(
            InferRequest(
                model_name=message.model_name,
                model_version=target.model_version,
                request_id=request_id,
                inputs=inputs,
                rows=rows,
                output_names=output_names,
                signature=check.signature,
                priority=parameters.priority,
                timeout_us=parameters.timeout_us,
                sequence=parameters.sequence,
                deadline_ns=deadline_ns,
                parameters=parameters.custom,
                received_ns=target.received_ns,
                size_bytes=size_bytes,
                via=Via.KSERVE_GRPC,
                servable=target.servable,
            ),
            ResponseForm(
                classifications,
                parameters.wants_empty_final,
                shared_outputs={output_names[at]: span for at, span in spans.outputs.items()} if spans.outputs else NO_SHARED,
            ),
        )

    def _inputs(self, check: SignatureCheck, message: pb.ModelInferRequest, raw: Sequence[Raw]) -> dict[str, Array]:
        tensors = message.inputs
        check.input_count(len(tensors))
        arrays: dict[str, Array] = {}
        if raw:
            if len(raw) != len(tensors):
                raise SignatureMismatch(
                    f"expected {len(tensors)} raw_input_contents, one for each input of model '{message.model_name}', got {len(raw)}"
                )
            for tensor, content in zip(tensors, raw, strict=True):
                name = tensor.name
                spec = check.input(name, arrays)
                if tensor.parameters:
                    reject_shared_memory(tensor.parameters, name)
                if tensor.HasField("contents"):
                    raise InvalidRequest(
                        f"contents field must not be specified when using raw_input_contents for '{name}' for model '{message.model_name}'"
                    )
                shape = tuple(tensor.shape)
                arrays[name] = array_from_bytes(check, spec, shape, check.count_elements(spec, tensor.datatype, shape), content)
            return arrays
        for tensor in tensors:
            spec = check.input(tensor.name, arrays)
            if tensor.parameters:
                reject_shared_memory(tensor.parameters, tensor.name)
            shape = tuple(tensor.shape)
            arrays[spec.name] = _typed(check, spec, shape, check.count_elements(spec, tensor.datatype, shape), tensor.contents)
        return arrays

    def _mixed_inputs(
        self, check: SignatureCheck, message: pb.ModelInferRequest, raw: Sequence[Raw], spans: Mapping[int, Span]
    ) -> dict[str, Array]:
        """Decodes inputs of which some are in shared memory; the raw contents belong to the others."""
        tensors = message.inputs
        check.input_count(len(tensors))
        if raw and len(raw) != len(tensors) - len(spans):
            raise SignatureMismatch(
                f"expected {len(tensors) - len(spans)} raw_input_contents, one for each input of model '{message.model_name}' outside "
                f"shared memory, got {len(raw)}"
            )
        raws = iter(raw)
        arrays: dict[str, Array] = {}
        for at, tensor in enumerate(tensors):
            spec = check.input(tensor.name, arrays)
            shape = tuple(tensor.shape)
            count = check.count_elements(spec, tensor.datatype, shape)
            span = spans.get(at)
            if (span is not None or raw) and tensor.HasField("contents"):
                where = "shared memory" if span is not None else "raw_input_contents"
                raise InvalidRequest(
                    f"unexpected 'content' provided when using {where} for input tensor '{spec.name}' for model '{message.model_name}'"
                )
            if span is not None:
                arrays[spec.name] = array_from_span(check, spec, shape, count, span)
            elif raw:
                arrays[spec.name] = array_from_bytes(check, spec, shape, count, next(raws))
            else:
                arrays[spec.name] = _typed(check, spec, shape, count, tensor.contents)
        return arrays

    def _outputs(self, check: SignatureCheck, outputs: Any, spans: Mapping[int, Span]) -> tuple[tuple[str, ...], Mapping[str, int]]:
        check.output_count(len(outputs))
        names: dict[str, None] = {}
        classifications: dict[str, int] = {}
        for at, output in enumerate(outputs):
            name = output.name
            check.output(name, names)
            names[name] = None
            if output.parameters:
                parameters = self._scalars(output.parameters)
                if at not in spans:
                    reject_shared_memory(parameters, name)
                elif "classification" in parameters:
                    raise classified_in_shared_memory(name)
                if "classification" in parameters:
                    classifications[name] = classification_count(parameters["classification"], name)
        return tuple(names), classifications

    def _scalars(self, given: Any) -> dict[str, ParameterValue]:
        if len(given) > self._limits.parameter_count:
            raise InvalidRequest(f"request has {len(given)} parameters, more than the {self._limits.parameter_count} allowed")
        values: dict[str, ParameterValue] = {}
        for key, parameter in given.items():
            choice = parameter.WhichOneof("parameter_choice")
            if choice is None:
                raise InvalidRequest(f"parameter '{key[:128]}' has no value")
            values[key] = getattr(parameter, choice)
        return values


def encode_message(
    response: InferResponse,
    classifications: Mapping[str, int],
    labels: Mapping[str, Sequence[str]],
    shared: Mapping[str, Span] = NO_SHARED,
) -> pb.ModelInferResponse:
    """Encodes `response` as a message; outputs are raw contents, or in shared memory. Safe in a thread.

    Raises:
        InvalidRequest: as `Span.write`.
    """
    message = _described(response)
    for array, datatype in _outputs(message, response, classifications, labels, shared):
        message.raw_output_contents.append(b"" if array is None else array_to_bytes(array, datatype))
    return message


def encode_serialised(
    response: InferResponse,
    classifications: Mapping[str, int],
    labels: Mapping[str, Sequence[str]],
    shared: Mapping[str, Span] = NO_SHARED,
) -> Serialised:
    """As `encode_message`, serialised, without copying the raw contents through a message, and large ones not at all. Safe in a thread."""
    message = _described(response)
    parts: list[Raw] = []
    for array, datatype in _outputs(message, response, classifications, labels, shared):
        pieces = [] if array is None else array_pieces(array, datatype)
        parts += (encoded_varint(_RAW_OUTPUT_TAG) + encoded_varint(sum(map(len, pieces))), *pieces)
    return serialised((message.SerializeToString(), *parts))


def _described(response: InferResponse) -> pb.ModelInferResponse:
    """The message for `response` without outputs."""
    message = pb.ModelInferResponse(model_name=response.model_name, model_version=str(response.model_version), id=response.request_id)
    if response.parameters:
        _add_parameters(message, response.parameters)
    return message


def _add_parameters(message: pb.ModelInferResponse, parameters: Mapping[str, ParameterValue]) -> None:
    for key, value in parameters.items():
        if isinstance(value, bool):
            message.parameters[key].bool_param = value
        elif isinstance(value, int):
            message.parameters[key].int64_param = value
        elif isinstance(value, float):
            message.parameters[key].double_param = value
        else:
            message.parameters[key].string_param = value


def _outputs(
    message: pb.ModelInferResponse,
    response: InferResponse,
    classifications: Mapping[str, int],
    labels: Mapping[str, Sequence[str]],
    shared: Mapping[str, Span],
) -> list[tuple[Array | None, DataType]]:
    """Adds the outputs' descriptions to `message`; returns their arrays, None for an output in shared memory.

    Clients match raw contents to outputs by position, so that an output in shared memory has empty contents.
    """
    signature = response.signature
    held: list[tuple[Array | None, DataType]] = []
    for name, array in response.outputs.items():
        spec = response.output_spec(name)
        datatype = spec.datatype
        if name in classifications:
            array = classify(array, datatype, classifications[name], labels[name], is_batched=signature.is_batched, output=name)
            datatype = DataType.BYTES
        output = message.outputs.add(name=name, datatype=datatype.value, shape=array.shape)
        span = shared.get(name) if shared else None
        if span is None:
            held.append((array, datatype))
            continue
        for key, value in span_parameters(span, span.write(array_pieces(array, datatype), name)).items():
            if isinstance(value, str):
                output.parameters[key].string_param = value
            else:
                output.parameters[key].int64_param = value
        held.append((None, datatype))
    return held


def _typed(check: SignatureCheck, spec: TensorSpec, shape: tuple[int, ...], count: int, contents: pb.InferTensorContents) -> Array:
    """The array of the typed `contents`, from the field of the datatype."""
    datatype = spec.datatype
    field = _CONTENTS.get(datatype)
    if field is None:
        raise SignatureMismatch(f"input '{spec.name}' of data-type {datatype.value} can only be sent as raw_input_contents")
    values = getattr(contents, field)
    if len(values) != count:
        raise check.element_count(spec, count, len(values))
    if datatype is DataType.BYTES:
        return object_array(list(values), shape)
    if datatype in _NARROW:
        wide = np.array(values, dtype=np.int64)
        bounds = np.iinfo(datatype.numpy)
        if bool((wide < bounds.min).any()) or bool((wide > bounds.max).any()):
            raise SignatureMismatch(f"input '{spec.name}' holds values outside the range of {datatype.value}, {bounds.min} to {bounds.max}")
        narrow: Array = wide.astype(datatype.numpy)
        return narrow.reshape(shape)
    # protobuf copies the whole field to an array if possible, without a Python number for each element.
    array: Array = np.array(values, dtype=datatype.numpy)
    return array.reshape(shape)


_ID: Final = encoded_varint(pb.ModelInferResponse.ID_FIELD_NUMBER << 3 | LENGTH)
_RAW: Final = encoded_varint(pb.ModelInferResponse.RAW_OUTPUT_CONTENTS_FIELD_NUMBER << 3 | LENGTH)
#: The bytes before an id, by the id's length.
_SHORT: Final = 0x80
_SHORT_IDS: Final = tuple(_ID + bytes((size,)) for size in range(_SHORT))


class ResponseLayouts:
    """The layouts of ModelInferResponse messages. Confined to: the event loop."""

    def __init__(self, most_bytes: int) -> None:
        """Responses with an output of more than `most_bytes` have no layout."""
        self._most_bytes = most_bytes
        self._layouts = Layouts(self._describe)

    def encode(self, response: InferResponse, parameters: bytes = b"") -> bytes | None:
        """The serialised message that carries `response` and the serialised `parameters`; None where an output is large, or holds strings,
        whose length varies.
        """
        added = parameters
        if response.parameters:
            message = pb.ModelInferResponse()
            _add_parameters(message, response.parameters)
            added += message.SerializeToString()
        if response.request_id:
            encoded = response.request_id.encode()
            size = len(encoded)
            added = (_SHORT_IDS[size] if size < _SHORT else _ID + encoded_varint(size)) + encoded + added
        return self._layouts.encode(response, None, added)

    def _describe(self, response: InferResponse, _variant: Variant) -> Layout | None:
        message = pb.ModelInferResponse(model_name=response.model_name, model_version=str(response.model_version))
        described = pb.ModelInferResponse()
        parts: list[Part] = []
        for name, array in response.outputs.items():
            spec = response.output_spec(name)
            if spec.datatype is DataType.BYTES or array.nbytes > self._most_bytes:
                return None
            described.outputs.add(name=name, datatype=spec.datatype.value, shape=array.shape)
            parts.append(Part(name, array, _RAW + encoded_varint(array.nbytes)))
        if not parts:
            return None
        # All descriptions precede the first elements.
        parts[0].before = described.SerializeToString() + parts[0].before
        return Layout(response, message.SerializeToString(), parts)
