"""Infer requests that differ from an earlier one only in their numbers, as the next one of a client mostly does.

What the JSON part says of a request follows from its text, the model's signature and, where binary tensors follow, the body's length. So
the text around the numbers (all of it, where tensors are binary) is looked up, and where it was seen before only the tensors are read. The
text of the answer follows from the request and the shapes of the outputs in the same way. Whatever is not that plain (shared memory,
classes, tensors partly in the text and partly behind it) is not remembered.
"""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import orjson

from stoker.backends.api.errors import InvalidRequest
from stoker.backends.api.model import ModelSignature, TensorSpec
from stoker.backends.api.tensor import element_count
from stoker.server.codecs.tensors import Packer, array_from_bytes, array_from_text, packer
from stoker.server.codecs.validation import SignatureCheck, SignatureMismatch, with_request_id
from stoker.server.core.limits import Limits
from stoker.server.core.request import Array, InferRequest, InferResponse
from stoker.server.protocols.kserve.decoded import DecodedRequest
from stoker.server.protocols.kserve.http_codec import Body, Encoded, ResponseFrame, frame_of

#: Requests remembered, and how long the text around the numbers of one may be: a quarter of a MiB in all.
_KEPT = 256
_KEPT_TEXT_BYTES = 1024
# Numbers follow such a key. A string cannot hold it, except one with escapes, and texts with those are not remembered.
_DATA = re.compile(rb'"data"[ \t\r\n]*:[ \t\r\n]*(?=\[)')
#: Stands for the numbers that were cut out: a byte that JSON text never holds.
_PLACEHOLDER = b"\0"


class JsonSkeleton(NamedTuple):
    """A request's JSON part taken apart: the text around the lists of numbers, with gaps for them, and the lists."""

    skeleton: bytes
    lists: list[bytes]


def split_numbers(text: bytes) -> JsonSkeleton:
    """Takes a JSON part without binary tensors apart. Lists of strings stay in the text."""
    parts: list[bytes] = []
    lists: list[bytes] = []
    at = 0
    for found in _DATA.finditer(text):
        start = found.end()
        # Up to the next string or end of an object there are only numbers and brackets.
        quote = text.find(b'"', start)
        quote = len(text) if quote < 0 else quote
        brace = text.find(b"}", start, quote)
        end = text.rfind(b"]", start, quote if brace < 0 else brace) + 1
        if end > start >= at:
            parts.append(text[at:start])
            lists.append(text[start:end])
            at = end
    parts.append(text[at:])
    return JsonSkeleton(_PLACEHOLDER.join(parts), lists)


class _Tensor(NamedTuple):
    """What an input is, and where in the body, where it is binary; else what makes elements of its numbers, if anything does."""

    spec: TensorSpec
    shape: tuple[int, ...]
    elements: int
    begin: int = 0
    end: int = 0
    pack: Packer | None = None


class RequestPlan:
    """A request that was decoded, and that others repeat with other numbers. Confined to: the event loop."""

    __slots__ = ("_body_bytes", "_check", "_decoded", "_frame", "_model_version", "_shapes", "_signature", "_tensors")

    def __init__(self, check: SignatureCheck, decoded: DecodedRequest, tensors: tuple[_Tensor, ...], body_bytes: int | None) -> None:
        """`body_bytes` is the length that the body of every repetition has; None: any."""
        self._check = check
        # Without the tensors it had.
        self._decoded = decoded._replace(request=_renewed(decoded.request, {}, 0, 0), repeats=self)
        self._tensors = tensors
        self._body_bytes = body_bytes
        self._frame: ResponseFrame | None = None
        self._model_version = 0
        self._signature: ModelSignature | None = None
        self._shapes: list[tuple[int, ...]] = []

    def fits(self, check: SignatureCheck, body_bytes: int) -> bool:
        """Whether a request with the same text, sent to what `check` checks for, says the same."""
        return check is self._check and (self._body_bytes is None or body_bytes == self._body_bytes)

    def decode_binary(self, body: Body, received_ns: int) -> DecodedRequest:
        """The request that `body` makes, whose tensors are binary. REQUIRES: it `fits`.

        Raises:
            InvalidRequest: its tensors are not what they must be.
        """
        check, blobs = self._check, memoryview(body)
        inputs: dict[str, Array] = {}
        try:
            for spec, shape, elements, begin, end, _ in self._tensors:
                inputs[spec.name] = array_from_bytes(check, spec, shape, elements, blobs[begin:end])
        except SignatureMismatch as error:
            raise self._mismatch(error) from None
        return self._decoded_with(inputs, len(body), received_ns)

    def decode_lists(self, lists: list[bytes], limits: Limits, body_bytes: int, received_ns: int) -> DecodedRequest | None:
        """The request that those numbers make; None where they are no lists of numbers at all. REQUIRES: it `fits`.

        Raises:
            InvalidRequest: they are not what they must be.
        """
        check, depth = self._check, limits.json_depth
        inputs: dict[str, Array] = {}
        for text in lists:
            if text.count(b"[") > depth:
                return None
        try:
            for (spec, shape, elements, _, _, pack), text in zip(self._tensors, lists, strict=True):
                inputs[spec.name] = array_from_text(check, spec, shape, elements, text, pack)
        except orjson.JSONDecodeError:
            return None
        except SignatureMismatch as error:
            raise self._mismatch(error) from None
        return self._decoded_with(inputs, body_bytes, received_ns)

    def _mismatch(self, error: SignatureMismatch) -> InvalidRequest:
        return InvalidRequest(with_request_id(error.message, self._decoded.request.request_id))

    def _decoded_with(self, inputs: Mapping[str, Array], size_bytes: int, received_ns: int) -> DecodedRequest:
        known = self._decoded
        request = _renewed(known.request, inputs, received_ns, size_bytes)
        # Not `_replace`, which takes as long as all the rest.
        return DecodedRequest(request, known.classifications, False, known.binary_outputs, known.shared_outputs, self)

    def learn(self, response: InferResponse) -> None:
        """Remembers what the answer with `response`, which has been made, has in common with others."""
        self._frame = frame_of(response, self._decoded)
        self._model_version = response.model_version
        self._signature = response.signature
        self._shapes = [array.shape for array in response.outputs.values()]

    def encode(self, response: InferResponse) -> Encoded | None:
        """The answer that carries `response`; None where it is not like the one remembered."""
        frame = self._frame
        if frame is None or response.signature is not self._signature or response.model_version != self._model_version:
            return None
        arrays = list(response.outputs.values())
        return frame.filled(arrays) if [array.shape for array in arrays] == self._shapes else None


class RequestMemo:
    """Those that were seen lately, by model, version asked for, text, and how many lists were cut out. Confined to: the event loop.

    The count is part of it because clients can send the byte that stands for a gap: a text that holds one by itself is no JSON.
    """

    def __init__(self) -> None:
        self._kept: dict[tuple[str, int | None, bytes, int | None], RequestPlan] = {}

    def find(self, name: str, version: int | None, text: bytes, lists: int | None) -> RequestPlan | None:
        """The request to (`name`, `version`) with that text around its numbers; `lists` as in `remember`."""
        return self._kept.get((name, version, text, lists))

    def remember(
        self, text: bytes, lists: int | None, check: SignatureCheck, decoded: DecodedRequest, head: Mapping[str, Any]
    ) -> DecodedRequest:
        """Keeps the request `decoded`, where others can repeat it; and returns it.

        Args:
            text: Around its numbers.
            lists: How many lists of numbers were cut out of it; None: its tensors are binary, and follow it.
            check: What it was checked by.
            decoded: The request.
            head: Its JSON part, parsed.
        """
        if len(text) > _KEPT_TEXT_BYTES or b"\\" in text or decoded.classifications or decoded.shared_outputs:
            return decoded
        tensors = _lists(check, decoded.request, head, lists) if lists is not None else _blobs(check, decoded.request, head, len(text))
        if tensors is None:
            return decoded
        if len(self._kept) >= _KEPT:
            self._kept.clear()
        request = decoded.request
        repeated = RequestPlan(check, decoded, tensors, request.size_bytes if lists is None else None)
        self._kept[request.model_name, request.model_version, text, lists] = repeated
        return decoded._replace(repeats=repeated)


def _lists(check: SignatureCheck, request: InferRequest, head: Mapping[str, Any], lists: int) -> tuple[_Tensor, ...] | None:
    """The inputs, if each of them, and nothing else, is one of the lists that were cut out."""
    if len(request.inputs) != lists or any(not isinstance(tensor.get("data"), list) for tensor in head["inputs"]):
        return None
    if any(check.inputs[name].datatype.is_bytes for name in request.inputs):
        # Lists of strings are not cut out: what was, stands where nobody reads it.
        return None
    return tuple(_listed(check.inputs[name], array.shape) for name, array in request.inputs.items())


def _listed(spec: TensorSpec, shape: tuple[int, ...]) -> _Tensor:
    count = element_count(shape)
    return _Tensor(spec, shape, count, pack=packer(spec.datatype, count))


def _blobs(check: SignatureCheck, request: InferRequest, head: Mapping[str, Any], at: int) -> tuple[_Tensor, ...] | None:
    """The inputs, if each of them is binary; the first begins at `at`."""
    tensors: list[_Tensor] = []
    for tensor, (name, array) in zip(head["inputs"], request.inputs.items(), strict=True):
        size = tensor["parameters"].get("binary_data_size") if tensor.get("parameters") else None
        if size is None:
            return None
        tensors.append(_Tensor(check.inputs[name], array.shape, element_count(array.shape), at, at + size))
        at += size
    return tuple(tensors)


def _renewed(request: InferRequest, inputs: Mapping[str, Array], received_ns: int, size_bytes: int) -> InferRequest:
    """`request` with other tensors."""
    return InferRequest(
        request.model_name, inputs, request.output_names, request.signature, request.model_version, request.request_id, request.rows,
        request.deadline_ns, dict(request.parameters), received_ns, size_bytes, request.via, request.priority, request.timeout_us,
        request.sequence,
    )  # fmt: skip
