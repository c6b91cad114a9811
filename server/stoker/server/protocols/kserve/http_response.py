"""`InferResponse` to the body of its answer: JSON and binary tensors in every mix. Pure, so that a front may run it in a thread.

An answer is text with gaps where numbers are printed, and behind it the binary tensors. The text around the gaps follows from the request
and the shapes of the outputs, so that it can be kept for the next answer (`ResponseFrame`).
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import orjson

from stoker.backends.api.tensor import DataType
from stoker.server.codecs.json_tensor import PRINTED_AT_ONCE, json_from_array, json_pieces, printed_numbers
from stoker.server.codecs.tensor_bytes import Raw, array_pieces
from stoker.server.core.limits import Limits
from stoker.server.core.request import Array, InferResponse
from stoker.server.engine.interface import Engine
from stoker.server.protocols.kserve.classification import check_classes, classify
from stoker.server.protocols.kserve.decoded import DecodedRequest

#: Where the numbers of an array will stand: a byte that JSON text never holds.
_GAP = b"\0"


class Encoded(NamedTuple):
    """An answer's body, in pieces; `header_length` is that of its JSON part where binary tensors follow, None where all is JSON."""

    pieces: Sequence[Raw]
    header_length: int | None

    @property
    def body(self) -> bytes:
        """The pieces as one."""
        return b"".join(self.pieces)


class ResponseFrame(NamedTuple):
    """What answers with outputs of the same shapes have in common.

    Attributes:
        texts: The text before, between and after the gaps.
        in_text: For each output, whether its numbers are printed into the next gap; else its bytes follow the text.
        has_binary: Whether a client is told where the text ends, as it is wherever it asked for a binary output.
    """

    texts: list[bytes]
    in_text: tuple[bool, ...]
    has_binary: bool

    def filled(self, arrays: Sequence[Array]) -> Encoded | None:
        """The answer with these outputs; None where one holds a number that needs care to be printed.

        REQUIRES: their shapes are those that the frame was made for, and small.
        """
        pieces: list[Raw] = [self.texts[0]]
        blobs: list[Raw] = []
        gaps = 0
        for array, is_text in zip(arrays, self.in_text, strict=True):
            if is_text:
                printed = printed_numbers(array)
                if printed is None:
                    return None
                gaps += 1
                pieces.append(printed)
                pieces.append(self.texts[gaps])
            else:
                blobs.append(array.tobytes())
        if not self.has_binary:
            return Encoded(pieces, None)
        return Encoded([*pieces, *blobs], sum(map(len, pieces)))


def labels_for(engine: Engine, response: InferResponse, decoded: DecodedRequest, limits: Limits) -> Mapping[str, Sequence[str]]:
    """By output, the class labels that encoding needs.

    Raises:
        TooLarge: as `check_classes`.
    """
    check_classes(response, decoded.classifications, limits)
    return {name: engine.labels(response.model_name, response.model_version, name) for name in decoded.classifications}


def encode(response: InferResponse, decoded: DecodedRequest, labels: Mapping[str, Sequence[str]]) -> Encoded:
    """The body that answers with `response`.

    Raises:
        InvalidRequest: JSON was asked for, and cannot carry an output's values.
    """
    signature = response.signature
    outputs: list[dict[str, Any]] = []
    printed: list[list[bytes]] = []
    blobs: list[Raw] = []
    for name, array in response.outputs.items():
        spec = response.output_spec(name)
        datatype = spec.datatype
        if name in decoded.classifications:
            array = classify(array, datatype, decoded.classifications[name], labels[name], is_batched=signature.is_batched, output=name)
            datatype = DataType.BYTES
        output: dict[str, Any] = {"name": name, "datatype": datatype.value, "shape": array.shape}
        if name in decoded.shared_outputs:
            # The place is not repeated, as with Triton: its C++ client expects binary_data_size in any parameters of an output.
            decoded.shared_outputs[name].write(array_pieces(array, datatype), name)
        elif name in decoded.binary_outputs:
            pieces = array_pieces(array, datatype)
            output["parameters"] = {"binary_data_size": sum(map(len, pieces))}
            blobs += pieces
        elif array.size > PRINTED_AT_ONCE and datatype is not DataType.BYTES:
            output["data"] = orjson.Fragment(_GAP)
            printed.append(json_pieces(array, datatype, name))
        else:
            output["data"] = json_from_array(array, datatype, name)
        outputs.append(output)
    text = _text(response, outputs)
    if not printed and not decoded.binary_outputs:
        return Encoded([text], None)
    first, *others = text.split(_GAP) if printed else [text]
    parts = [first]
    for run, following in zip(printed, others, strict=True):
        parts += (*run, following)
    header_length = sum(map(len, parts)) if decoded.binary_outputs else None
    return Encoded([*parts, *blobs], header_length)


def frame_of(response: InferResponse, decoded: DecodedRequest) -> ResponseFrame | None:
    """What the answer with `response` has in common with others; None where that is too little.

    REQUIRES: `encode` has made the answer.
    """
    outputs: list[dict[str, Any]] = []
    in_text: list[bool] = []
    for name, array in response.outputs.items():
        spec = response.output_spec(name)
        if spec.datatype is DataType.BYTES or name in decoded.classifications or name in decoded.shared_outputs:
            return None
        output: dict[str, Any] = {"name": name, "datatype": spec.datatype.value, "shape": array.shape}
        is_binary = name in decoded.binary_outputs
        if is_binary:
            output["parameters"] = {"binary_data_size": array.nbytes}
        else:
            output["data"] = orjson.Fragment(_GAP)
        outputs.append(output)
        in_text.append(not is_binary)
    return ResponseFrame(_text(response, outputs).split(_GAP), tuple(in_text), bool(decoded.binary_outputs))


def _text(response: InferResponse, outputs: list[dict[str, Any]]) -> bytes:
    head: dict[str, Any] = {"id": response.request_id} if response.request_id else {}
    head["model_name"] = response.model_name
    head["model_version"] = str(response.model_version)
    head["outputs"] = outputs
    return orjson.dumps(head, option=orjson.OPT_SERIALIZE_NUMPY)
