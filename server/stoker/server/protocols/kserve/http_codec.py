"""JSON and binary bodies of KServe v2 over HTTP: decode to a validated request, encode the response.

All functions are pure once the `SignatureCheck` is known, so that they can run in a thread. The text of a response around its numbers
depends only on the request and the output shapes, so that it is cached (`ResponseFrame`).
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson

from stoker.backends.api.errors import InvalidRequest
from stoker.backends.api.model import VARIABLE
from stoker.backends.api.tensor import DataType
from stoker.server.codecs.long_arrays import parse_infer_json
from stoker.server.codecs.shared_memory import Span
from stoker.server.codecs.tensors import (
    BINARY_ONLY,
    PRINTED_AT_ONCE,
    Raw,
    array_from_bytes,
    array_from_json,
    array_from_span,
    array_pieces,
    declared_count,
    json_from_array,
    json_pieces,
    object_array,
    printed_numbers,
    unsendable,
)
from stoker.server.codecs.validation import (
    NO_PARAMETERS,
    RequestParameters,
    SignatureCheck,
    SignatureMismatch,
    classification_count,
    read_parameters,
    reject_shared_memory,
    with_request_id,
)
from stoker.server.core.limits import Limits
from stoker.server.core.request import Array, InferRequest, InferResponse, ParameterValue, Via
from stoker.server.engine.interface import Engine
from stoker.server.protocols.kserve.classification import check_classes, classify
from stoker.server.protocols.kserve.decoded import DecodedRequest, Encoded, ResponseForm
from stoker.server.protocols.kserve.shared_tensors import NO_SHARED, NO_SPANS, Spans, classified_in_shared_memory

_HEADER_DIGITS: Final = 20
#: A body as bytes, or a view of its receive buffer.
Body = bytes | memoryview


class Target:
    """The addressed model and the time of receipt of a request."""

    __slots__ = ("model_name", "model_version", "received_ns")

    def __init__(self, model_name: str, model_version: int | None, received_ns: int) -> None:
        self.model_name = model_name
        self.model_version = model_version
        self.received_ns = received_ns


def parse_header_length(text: str | None, body_length: int) -> int | None:
    """The value of `Inference-Header-Content-Length`; None where the header is absent.

    Raises:
        InvalidRequest: the value is not a decimal number, or exceeds the body's length.
    """
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= _HEADER_DIGITS):
        raise InvalidRequest(f"Unable to parse Inference-Header-Content-Length '{text[:64]}': it must be decimal digits")
    length = int(text)
    if length > body_length:
        raise InvalidRequest(f"Inference-Header-Content-Length is {length}, but the body has only {body_length} bytes")
    return length


def json_text(body: Body, header_length: int | None) -> bytes:
    """The JSON part of `body`."""
    text = body if header_length is None else body[:header_length]
    return text if isinstance(text, bytes) else bytes(text)


def parse_head(body: Body, header_length: int | None, limits: Limits) -> dict[str, Any]:
    """Parses the JSON part of `body`; empty if there is none. `header_length` is the result of `parse_header_length`.

    Raises:
        InvalidRequest: the JSON part is no object.
    """
    if header_length == 0:
        return {}
    head = parse_infer_json(json_text(body, header_length), limits)
    if not isinstance(head, dict):
        raise InvalidRequest("the request must be a JSON object")
    return head


def count_strings(head: Mapping[str, Any], body_bytes: int, limits: Limits) -> int:
    """An upper bound of the number of BYTES elements that decoding makes."""
    count = 0
    inputs = head.get("inputs")
    # More inputs than allowed will be rejected, whatever they hold.
    for tensor in inputs[: limits.tensor_count] if isinstance(inputs, list) else ():
        if isinstance(tensor, dict) and tensor.get("datatype") == DataType.BYTES.value:
            shape = tensor.get("shape")
            # An element takes at least three bytes in JSON, and four in binary.
            if isinstance(shape, list) and set(map(type, shape)) <= {int}:
                count += declared_count(shape, body_bytes // 3)
    return min(count, body_bytes)


def decode(
    check: SignatureCheck,
    target: Target,
    head: Mapping[str, Any],
    body: Body,
    header_length: int | None,
    limits: Limits,
    spans: Spans = NO_SPANS,
) -> DecodedRequest:
    """Decodes `body`, whose JSON part is `head`; safe in a thread.

    Raises:
        ServingError: it contradicts the protocol, the limits or the model's signature.
    """
    request_id = ""
    try:
        if header_length == 0:
            return _whole_body(check, target, body)
        request_id = _text(head.get("id", ""), "'id'")
        if len(request_id) > limits.id_length:
            raise InvalidRequest(f"request id has {len(request_id)} characters, more than the {limits.id_length} allowed")
        parameters, all_binary = _parameters(head.get("parameters"), limits)
        blobs = memoryview(body)[len(body) if header_length is None else header_length :]
        inputs = _inputs(check, head.get("inputs"), blobs, limits, spans.inputs)
        rows = check.complete(inputs)
        names, classifications, binary = _outputs(check, head.get("outputs"), all_binary, limits, spans.outputs)
    except SignatureMismatch as error:
        raise InvalidRequest(with_request_id(error.message, request_id)) from None
    shared = {names[at]: span for at, span in spans.outputs.items()} if spans.outputs else NO_SHARED
    for name in names:
        spec = check.signature.output(name)
        is_text = name not in binary and name not in classifications and name not in shared
        if is_text and spec is not None and spec.datatype in BINARY_ONLY:
            raise unsendable(spec.datatype, name)
    return DecodedRequest(
        _request(check, target, inputs, rows, names, request_id, parameters, len(body)),
        ResponseForm(classifications, binary_outputs=binary, shared_outputs=shared),
    )


def _request(
    check: SignatureCheck,
    target: Target,
    inputs: Mapping[str, Array],
    rows: int,
    output_names: tuple[str, ...],
    request_id: str,
    parameters: RequestParameters,
    size_bytes: int,
) -> InferRequest:
    return InferRequest(
        model_name=target.model_name,
        model_version=target.model_version,
        request_id=request_id,
        inputs=inputs,
        rows=rows,
        output_names=output_names,
        signature=check.signature,
        priority=parameters.priority,
        timeout_us=parameters.timeout_us,
        sequence=parameters.sequence,
        parameters=parameters.custom,
        received_ns=target.received_ns,
        size_bytes=size_bytes,
        via=Via.KSERVE_HTTP,
    )


def _whole_body(check: SignatureCheck, target: Target, body: Body) -> DecodedRequest:
    """Decodes a body that holds only the raw data of the model's single input: one row, all outputs binary."""
    model = target.model_name
    if len(check.inputs) != 1:
        raise InvalidRequest(f"a raw binary request needs a model with exactly one input; '{model}' has {len(check.inputs)}")
    spec = check.signature.inputs[0]
    dims = list(spec.dims)
    if dims.count(VARIABLE) > 1:
        raise InvalidRequest(f"a raw binary request allows one variable dimension at most; input '{spec.name}' of '{model}' has {dims}")
    array: Array
    lead = (1,) if check.signature.is_batched else ()
    if spec.datatype is DataType.BYTES:
        if dims != [1]:
            raise InvalidRequest(f"a raw binary request for data-type BYTES needs input dims [1]; '{spec.name}' of '{model}' has {dims}")
        array = object_array([bytes(body)], (*lead, 1))
    else:
        if VARIABLE in dims:
            at = dims.index(VARIABLE)
            dims[at] = 1
            row_bytes = check.count_elements(spec, spec.datatype.value, (*lead, *dims)) * spec.datatype.item_bytes
            if len(body) % row_bytes or not body:
                raise InvalidRequest(f"a raw binary request for '{model}' must hold a multiple of {row_bytes} bytes, got {len(body)}")
            dims[at] = len(body) // row_bytes
        shape = (*lead, *dims)
        array = array_from_bytes(check, spec, shape, check.count_elements(spec, spec.datatype.value, shape), body)
    inputs = {spec.name: array}
    names = check.default_outputs
    request = _request(check, target, inputs, check.complete(inputs), names, "", NO_PARAMETERS, len(body))
    return DecodedRequest(request, ResponseForm({}, binary_outputs=frozenset(names)))


def _parameters(given: object, limits: Limits) -> tuple[RequestParameters, bool]:
    """The request's parameters and `binary_data_output`, the default for all outputs."""
    if not given:
        return NO_PARAMETERS, False
    values = _scalars(given, "request", limits)
    all_binary = values.get("binary_data_output", False)
    if not isinstance(all_binary, bool):
        raise InvalidRequest("parameter 'binary_data_output' must be a boolean")
    return read_parameters({key: value for key, value in values.items() if key != "binary_data_output"}), all_binary


def _inputs(check: SignatureCheck, given: object, blobs: memoryview, limits: Limits, spans: Mapping[int, Span]) -> dict[str, Array]:
    tensors = _list(given, "inputs")
    check.input_count(len(tensors))
    arrays: dict[str, Array] = {}
    at = 0
    for position, tensor in enumerate(tensors):
        if not isinstance(tensor, dict):
            raise InvalidRequest("every element of 'inputs' must be an object")
        spec = check.input(_text(tensor.get("name"), "the name of an input"), arrays)
        shape = _shape(tensor.get("shape"), spec.name)
        count = check.count_elements(spec, _text(tensor.get("datatype"), f"the datatype of input '{spec.name}'"), shape)
        parameters = _scalars(tensor["parameters"], f"input '{spec.name}'", limits) if tensor.get("parameters") else {}
        size = parameters.get("binary_data_size")
        if position in spans:
            if "data" in tensor or size is not None:
                raise InvalidRequest(
                    f"unexpected 'data' or 'binary_data_size' provided when using shared memory for input tensor '{spec.name}'"
                )
            arrays[spec.name] = array_from_span(check, spec, shape, count, spans[position])
            continue
        reject_shared_memory(parameters, spec.name)
        if size is None:
            if "data" not in tensor:
                raise InvalidRequest(f"input '{spec.name}' has neither 'data' nor parameter 'binary_data_size'")
            arrays[spec.name] = array_from_json(check, spec, shape, count, tensor["data"])
            continue
        if isinstance(size, bool) or not isinstance(size, int) or size < 0:
            raise InvalidRequest(f"parameter 'binary_data_size' of input '{spec.name}' must be an unsigned integer")
        if "data" in tensor:
            raise InvalidRequest(f"input '{spec.name}' has both 'data' and parameter 'binary_data_size'")
        if size > len(blobs) - at:
            raise InvalidRequest(
                f"unexpected size for input '{spec.name}': 'binary_data_size' is {size}, but only {len(blobs) - at} bytes are left "
                "in the body"
            )
        arrays[spec.name] = array_from_bytes(check, spec, shape, count, blobs[at : at + size])
        at += size
    if at != len(blobs):
        raise InvalidRequest(f"unexpected additional input data: {len(blobs) - at} bytes are left after the last binary input")
    return arrays


def _outputs(
    check: SignatureCheck, given: object, all_binary: bool, limits: Limits, spans: Mapping[int, Span]
) -> tuple[tuple[str, ...], Mapping[str, int], frozenset[str]]:
    """The requested outputs in order, the classifications, and the outputs to send as binary data."""
    if not given and (given is None or given == []):
        return check.default_outputs, {}, frozenset(check.default_outputs if all_binary else ())
    outputs = _list(given, "outputs")
    check.output_count(len(outputs))
    names: dict[str, None] = {}
    classifications: dict[str, int] = {}
    binary: list[str] = []
    for at, output in enumerate(outputs):
        if not isinstance(output, dict):
            raise InvalidRequest("every element of 'outputs' must be an object")
        name = _text(output.get("name"), "the name of an output")
        check.output(name, names)
        names[name] = None
        parameters = _scalars(output["parameters"], f"output '{name}'", limits) if output.get("parameters") else {}
        if at not in spans:
            reject_shared_memory(parameters, name)
        elif "classification" in parameters:
            raise classified_in_shared_memory(name)
        if "classification" in parameters:
            classifications[name] = classification_count(parameters["classification"], name)
        wants_binary = parameters.get("binary_data", all_binary)
        if not isinstance(wants_binary, bool):
            raise InvalidRequest(f"parameter 'binary_data' of output '{name}' must be a boolean")
        if wants_binary and at not in spans:
            binary.append(name)
    return tuple(names), classifications, frozenset(binary)


def _scalars(given: object, where: str, limits: Limits) -> dict[str, ParameterValue]:
    if not isinstance(given, dict):
        raise InvalidRequest(f"'parameters' of {where} must be an object")
    if len(given) > limits.parameter_count:
        raise InvalidRequest(f"{where} has {len(given)} parameters, more than the {limits.parameter_count} allowed")
    for key, value in given.items():
        if not isinstance(value, bool | int | float | str):
            raise InvalidRequest(f"parameter '{key[:128]}' has invalid type: of {where}, it must be a string, a number or a boolean")
    return given


def _shape(given: object, name: str) -> tuple[int, ...]:
    if not isinstance(given, list) or not set(map(type, given)) <= {int}:
        raise InvalidRequest(f"'shape' of input '{name}' must be an array of integers")
    return tuple(given)


def _text(given: object, what: str) -> str:
    if not isinstance(given, str):
        raise InvalidRequest(f"{what} must be a string")
    return given


def _list(given: object, what: str) -> list[Any]:
    if not isinstance(given, list):
        raise InvalidRequest(f"Unable to parse '{what}': it must be an array")
    return given


#: Placeholder of an array's numbers: a byte that JSON text never contains.
_GAP: Final = b"\0"


class ResponseFrame:
    """The common part of responses whose outputs have the same shapes.

    Attributes:
        texts: The text before, between and after the gaps.
        in_text: For each output, whether its numbers are printed into the next gap; else its binary data follow the text.
        has_binary: Whether the response has the header with the length of the text, which it has if any binary output is requested.
    """

    __slots__ = ("has_binary", "in_text", "text_bytes", "texts")

    def __init__(self, texts: list[bytes], in_text: list[bool], has_binary: bool) -> None:
        self.texts = texts
        self.in_text = in_text
        self.has_binary = has_binary
        self.text_bytes = sum([len(text) for text in texts])

    def filled(self, response: InferResponse) -> Encoded | None:
        """The body of `response`; None if an output has a number that is not finite.

        REQUIRES: the outputs have the frame's shapes and are small.
        """
        texts, in_text = self.texts, self.in_text
        header_length = self.text_bytes
        request_id = response.request_id
        if request_id:
            head = b'{"id":' + orjson.dumps(request_id) + b","
            # The comma stands for the brace of the text.
            header_length += len(head) - 1
            pieces: list[Raw] = [head, texts[0][1:]]
        else:
            pieces = [texts[0]]
        blobs: list[Raw] = []
        gaps = blob_bytes = 0
        for at, array in enumerate(response.outputs.values()):
            if in_text[at]:
                printed = printed_numbers(array)
                if printed is None:
                    return None
                gaps += 1
                header_length += len(printed)
                pieces.append(printed)
                pieces.append(texts[gaps])
            else:
                blob = array.tobytes()
                blob_bytes += len(blob)
                blobs.append(blob)
        if not self.has_binary:
            return Encoded(pieces, None, header_length)
        pieces += blobs
        return Encoded(pieces, header_length, header_length + blob_bytes)


def labels_for(engine: Engine, response: InferResponse, decoded: DecodedRequest, limits: Limits) -> Mapping[str, Sequence[str]]:
    """By output, the class labels that encoding needs.

    Raises:
        TooLarge: as `check_classes`.
    """
    check_classes(response, decoded.form.classifications, limits)
    return {name: engine.labels(response.model_name, response.model_version, name) for name in decoded.form.classifications}


def encode(response: InferResponse, decoded: DecodedRequest, labels: Mapping[str, Sequence[str]]) -> Encoded:
    """Encodes the body of `response`.

    Raises:
        InvalidRequest: the client requested JSON, which cannot represent an output's values.
    """
    form, signature = decoded.form, response.signature
    outputs: list[dict[str, Any]] = []
    printed: list[list[bytes]] = []
    blobs: list[Raw] = []
    for name, array in response.outputs.items():
        spec = response.output_spec(name)
        datatype = spec.datatype
        if name in form.classifications:
            array = classify(array, datatype, form.classifications[name], labels[name], is_batched=signature.is_batched, output=name)
            datatype = DataType.BYTES
        output: dict[str, Any] = {"name": name, "datatype": datatype.value, "shape": array.shape}
        if name in form.shared_outputs:
            # As in Triton, the response does not repeat the region: its C++ client expects binary_data_size in any parameters of an output.
            form.shared_outputs[name].write(array_pieces(array, datatype), name)
        elif name in form.binary_outputs:
            pieces = array_pieces(array, datatype)
            output["parameters"] = {"binary_data_size": sum(map(len, pieces))}
            blobs += pieces
        elif array.size > PRINTED_AT_ONCE and datatype is not DataType.BYTES:
            output["data"] = orjson.Fragment(_GAP)
            printed.append(json_pieces(array, datatype, name))
        else:
            output["data"] = json_from_array(array, datatype, name)
        outputs.append(output)
    text = _response_text(response, outputs)
    if not printed and not form.binary_outputs:
        return Encoded([text], None, len(text))
    first, *others = text.split(_GAP) if printed else [text]
    parts: list[Raw] = [first]
    for run, following in zip(printed, others, strict=True):
        parts += (*run, following)
    header_length = sum(map(len, parts)) if form.binary_outputs else None
    pieces = [*parts, *blobs]
    return Encoded(pieces, header_length, sum(map(len, pieces)))


def frame_of(response: InferResponse, form: ResponseForm) -> ResponseFrame | None:
    """The text that the encoding of `response` shares with later responses; None if any output has no fixed text around it.

    REQUIRES: `encode` has made the response.
    """
    if response.parameters:
        return None
    outputs: list[dict[str, Any]] = []
    in_text: list[bool] = []
    for name, array in response.outputs.items():
        spec = response.output_spec(name)
        if spec.datatype is DataType.BYTES or name in form.classifications or name in form.shared_outputs:
            return None
        output: dict[str, Any] = {"name": name, "datatype": spec.datatype.value, "shape": array.shape}
        is_binary = name in form.binary_outputs
        if is_binary:
            output["parameters"] = {"binary_data_size": array.nbytes}
        else:
            output["data"] = orjson.Fragment(_GAP)
        outputs.append(output)
        in_text.append(not is_binary)
    return ResponseFrame(_response_text(response, outputs, with_id=False).split(_GAP), in_text, bool(form.binary_outputs))


def _response_text(response: InferResponse, outputs: list[dict[str, Any]], *, with_id: bool = True) -> bytes:
    head: dict[str, Any] = {"id": response.request_id} if with_id and response.request_id else {}
    head["model_name"] = response.model_name
    head["model_version"] = str(response.model_version)
    if response.parameters:
        head["parameters"] = response.parameters
    head["outputs"] = outputs
    return orjson.dumps(head, option=orjson.OPT_SERIALIZE_NUMPY)
