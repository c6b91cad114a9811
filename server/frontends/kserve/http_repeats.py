"""Infer requests whose JSON part was seen before, as the next one of a client mostly was.

What the JSON part says of a request with binary tensors follows from its bytes, the body's length and the model's signature alone: equal
ones need no second reading, only the tensors are new. The JSON part of the answer follows from the request and the shapes of the outputs
in the same way. Whatever is not that plain (tensors in the text or in shared memory, classes instead of tensors) is not remembered.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from backends.api.errors import InvalidRequest
from backends.api.model import ModelSignature, TensorSpec
from backends.api.tensor import DataType, element_count
from server.core.request import Array, InferRequest, InferResponse
from server.frontends.kserve.decoded import DecodedRequest
from server.frontends.kserve.http_codec import Body, Encoded
from server.frontends.kserve.tensor_bytes import array_from_bytes
from server.frontends.kserve.validation import SignatureCheck, SignatureMismatch, with_request_id

#: Requests remembered, and how long the JSON part of one may be: a quarter of a MiB of text in all.
_KEPT = 256
_KEPT_TEXT_BYTES = 1024


class _Place(NamedTuple):
    """Where in a body an input is, and what is there."""

    spec: TensorSpec
    shape: tuple[int, ...]
    elements: int
    begin: int
    end: int


class RepeatedRequest:
    """A request that was decoded, and that others repeat with other tensors. Confined to: the event loop."""

    __slots__ = ("_answer_head", "_body_bytes", "_check", "_decoded", "_model_version", "_places", "_shapes", "_signature")

    def __init__(self, check: SignatureCheck, decoded: DecodedRequest, places: tuple[_Place, ...], body_bytes: int) -> None:
        self._check = check
        # Without the tensors it had.
        self._decoded = decoded._replace(request=_renewed(decoded.request, {}, 0), repeats=self)
        self._places = places
        self._body_bytes = body_bytes
        self._answer_head = b""
        self._model_version = 0
        self._signature: ModelSignature | None = None
        self._shapes: list[tuple[int, ...]] = []

    def fits(self, check: SignatureCheck, body_bytes: int) -> bool:
        """Whether a request with the same JSON part, sent to what `check` checks for, says the same."""
        return check is self._check and body_bytes == self._body_bytes

    def decode(self, body: Body, received_ns: int) -> DecodedRequest:
        """The request that `body` makes. REQUIRES: it `fits`.

        Raises:
            InvalidRequest: its tensors are not what they must be.
        """
        check, known = self._check, self._decoded
        blobs = memoryview(body)
        inputs: dict[str, Array] = {}
        try:
            for spec, shape, count, begin, end in self._places:
                inputs[spec.name] = array_from_bytes(check, spec, shape, count, blobs[begin:end])
        except SignatureMismatch as error:
            raise InvalidRequest(with_request_id(error.message, known.request.request_id)) from None
        # Not `_replace`, which takes as long as all the rest.
        return DecodedRequest(
            _renewed(known.request, inputs, received_ns), known.classifications, False, known.binary_outputs, known.shared_outputs, self
        )

    def learn(self, response: InferResponse, encoded: Encoded) -> None:
        """Remembers the JSON part of the answer that carries `response`, where others can have the same."""
        signature, head = response.signature, encoded.pieces[0]
        if len(head) == encoded.header_length and all(_is_plain(signature, name) for name in response.outputs):
            self._answer_head = bytes(head)
            self._model_version = response.model_version
            self._signature = signature
            self._shapes = [array.shape for array in response.outputs.values()]

    def encode(self, response: InferResponse) -> Encoded | None:
        """The answer that carries `response`; None where its JSON part is not the one remembered."""
        if response.signature is not self._signature or response.model_version != self._model_version:
            return None
        arrays = list(response.outputs.values())
        if [array.shape for array in arrays] != self._shapes:
            return None
        head = self._answer_head
        return Encoded([head, *[array.tobytes() for array in arrays]], len(head))


class RepeatedRequests:
    """Those that were seen lately, by model, version asked for, and JSON part. Confined to: the event loop."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, int | None, bytes], RepeatedRequest] = {}

    def find(self, name: str, version: int | None, text: bytes) -> RepeatedRequest | None:
        """The request to (`name`, `version`) whose JSON part was `text`."""
        return self._kept.get((name, version, text))

    def remember(
        self, text: bytes, check: SignatureCheck, decoded: DecodedRequest, head: Mapping[str, Any], body_bytes: int
    ) -> DecodedRequest:
        """Keeps the request `decoded` from `head`, which is `text` parsed, where others can repeat it; and returns it."""
        if len(text) > _KEPT_TEXT_BYTES or decoded.classifications or decoded.shared_outputs:
            return decoded
        request = decoded.request
        if not decoded.binary_outputs.issuperset(request.output_names):
            return decoded
        places: list[_Place] = []
        at = len(text)
        for tensor, (name, array) in zip(head["inputs"], request.inputs.items(), strict=True):
            size = tensor["parameters"].get("binary_data_size") if tensor.get("parameters") else None
            if size is None:
                return decoded
            places.append(_Place(check.inputs[name], array.shape, element_count(array.shape), at, at + size))
            at += size
        if len(self._kept) >= _KEPT:
            self._kept.clear()
        repeated = RepeatedRequest(check, decoded, tuple(places), body_bytes)
        self._kept[request.model_name, request.model_version, text] = repeated
        return decoded._replace(repeats=repeated)


def _renewed(request: InferRequest, inputs: Mapping[str, Array], received_ns: int) -> InferRequest:
    """`request` with other tensors."""
    return InferRequest(
        model_name=request.model_name,
        model_version=request.model_version,
        request_id=request.request_id,
        inputs=inputs,
        rows=request.rows,
        output_names=request.output_names,
        signature=request.signature,
        priority=request.priority,
        timeout_us=request.timeout_us,
        deadline_ns=request.deadline_ns,
        parameters=dict(request.parameters),
        received_ns=received_ns,
        size_bytes=request.size_bytes,
    )


def _is_plain(signature: ModelSignature, name: str) -> bool:
    """Whether the output's bytes on the wire are those of its array."""
    spec = signature.output(name)
    return spec is not None and spec.datatype is not DataType.BYTES
