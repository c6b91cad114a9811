"""Plans of infer requests over HTTP: how to decode a request of a known structure, and to encode its response.

A plan follows from the request's structure (see `stoker.server.codecs.memo`) and the model's signature. The text of the response around the
numbers follows from the request and the shapes of the outputs in the same way. Requests with shared memory or classification, and those
with tensors partly in the JSON and partly behind it, have no plan.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from stoker.backends.api.errors import InvalidRequest
from stoker.backends.api.model import ModelSignature, TensorSpec
from stoker.backends.api.tensor import element_count
from stoker.server.codecs.memo import KEY_BYTES, BoundedCache, ParsedJson, parse_structure
from stoker.server.codecs.tensors import Packer, array_from_bytes, array_from_list, packer
from stoker.server.codecs.validation import SignatureCheck, SignatureMismatch, with_request_id
from stoker.server.core.limits import Limits
from stoker.server.core.request import Array, InferRequest, InferResponse
from stoker.server.protocols.kserve.decoded import DecodedRequest, Encoded
from stoker.server.protocols.kserve.http_codec import Body, ResponseFrame, frame_of


class _Tensor(NamedTuple):
    """One input: its elements lie at `[begin, end)` of the binary part, or `pack` makes them of a list of numbers."""

    spec: TensorSpec
    shape: tuple[int, ...]
    elements: int
    begin: int = 0
    end: int = 0
    pack: Packer | None = None


class RequestPlan:
    """How to decode requests of one structure, and to encode their responses. Confined to: the event loop."""

    __slots__ = ("_binary_bytes", "_check", "_decoded", "_frame", "_has_lists", "_model_version", "_shapes", "_signature", "_tensors")

    def __init__(
        self, check: SignatureCheck, decoded: DecodedRequest, tensors: tuple[_Tensor, ...], binary_bytes: int, *, has_lists: bool
    ) -> None:
        """`binary_bytes` follow the JSON part; `has_lists`: the elements are in the JSON part, as `data`."""
        self._check = check
        # The plan keeps no tensor and no servable alive.
        self._decoded = decoded._replace(request=_renewed(decoded.request, "", {}, 0, 0), repeats=self)
        self._tensors = tensors
        self._binary_bytes = binary_bytes
        self._has_lists = has_lists
        self._frame: ResponseFrame | None = None
        self._model_version = 0
        self._signature: ModelSignature | None = None
        self._shapes: list[tuple[int, ...]] = []

    def fits(self, check: SignatureCheck, parsed: ParsedJson, binary_bytes: int) -> bool:
        """Whether the plan holds for `parsed`, of the same structure, to what `check` validates: the structure lacks each `data`."""
        return check is self._check and binary_bytes == self._binary_bytes and bool(parsed.data) is self._has_lists

    def decode(self, parsed: ParsedJson, body: Body, received_ns: int) -> DecodedRequest:
        """The request that `parsed` and the binary part of `body` make. REQUIRES: the plan `fits`.

        Raises:
            InvalidRequest: its elements are not those of its datatypes and shapes.
        """
        check = self._check
        inputs: dict[str, Array] = {}
        try:
            if parsed.data:
                has_words = parsed.has_words
                for (spec, shape, elements, _, _, pack), data in zip(self._tensors, parsed.data, strict=True):
                    inputs[spec.name] = array_from_list(check, spec, shape, elements, data, pack, has_words=has_words)
            else:
                blobs = memoryview(body)[len(body) - self._binary_bytes :]
                for spec, shape, elements, begin, end, _ in self._tensors:
                    inputs[spec.name] = array_from_bytes(check, spec, shape, elements, blobs[begin:end])
        except SignatureMismatch as error:
            raise InvalidRequest(with_request_id(error.message, parsed.request_id)) from None
        known = self._decoded
        request = _renewed(known.request, parsed.request_id, inputs, received_ns, len(body))
        # Not `_replace`, which takes as long as all the rest.
        return DecodedRequest(request, known.classifications, False, known.binary_outputs, known.shared_outputs, self)

    def learn(self, response: InferResponse) -> None:
        """Keeps the text that later responses have in common with `response`, which was encoded in full."""
        self._frame = frame_of(response, self._decoded)
        self._model_version = response.model_version
        self._signature = response.signature
        self._shapes = [array.shape for array in response.outputs.values()]

    def encode(self, response: InferResponse) -> Encoded | None:
        """The body that carries `response`; None where it differs from the one learned."""
        frame = self._frame
        if frame is None or response.signature is not self._signature or response.model_version != self._model_version:
            return None
        arrays = list(response.outputs.values())
        return frame.filled(arrays, response.request_id) if [array.shape for array in arrays] == self._shapes else None


class RequestMemo:
    """Plans by model, requested version and structure. Confined to: the event loop."""

    def __init__(self) -> None:
        self._plans: BoundedCache[tuple[str, int | None, bytes], RequestPlan] = BoundedCache()
        #: JSON parts before binary tensors: clients without ids send the same one each time.
        self._heads: BoundedCache[bytes, ParsedJson] = BoundedCache()

    def __len__(self) -> int:
        """Plans kept."""
        return len(self._plans)

    def parse(self, text: bytes, limits: Limits, *, is_binary: bool) -> ParsedJson | None:
        """As `parse_structure`; with `is_binary`, binary tensors follow `text`."""
        if not is_binary:
            return parse_structure(text, limits)
        parsed = self._heads.get(text)
        if parsed is None:
            parsed = parse_structure(text, limits)
            if parsed is not None and not parsed.data and len(text) <= KEY_BYTES:
                self._heads.put(text, parsed)
        return parsed

    def find(self, name: str, version: int | None, key: bytes) -> RequestPlan | None:
        """The plan of requests to (`name`, `version`) with the structure `key`."""
        return self._plans.get((name, version, key))

    def remember(self, parsed: ParsedJson, check: SignatureCheck, decoded: DecodedRequest, binary_bytes: int) -> DecodedRequest:
        """Plans requests with the structure of `parsed`, which `check` validated as `decoded`; returns it with its plan."""
        if not 0 < len(parsed.key) <= KEY_BYTES or decoded.classifications or decoded.shared_outputs:
            return decoded
        request = decoded.request
        tensors = _listed(check, request) if parsed.data else _binary(check, request, parsed.head["inputs"])
        if tensors is None:
            return decoded
        plan = RequestPlan(check, decoded, tensors, binary_bytes, has_lists=bool(parsed.data))
        self._plans.put((request.model_name, request.model_version, parsed.key), plan)
        return decoded._replace(repeats=plan)


def _listed(check: SignatureCheck, request: InferRequest) -> tuple[_Tensor, ...] | None:
    """The inputs, whose elements are all in the JSON part. Strings have no plan: they may hold colons."""
    tensors: list[_Tensor] = []
    for name, array in request.inputs.items():
        spec, count = check.inputs[name], element_count(array.shape)
        if spec.datatype.is_bytes:
            return None
        tensors.append(_Tensor(spec, array.shape, count, pack=packer(spec.datatype, count)))
    return tuple(tensors)


def _binary(check: SignatureCheck, request: InferRequest, given: list[Mapping[str, Any]]) -> tuple[_Tensor, ...] | None:
    """The inputs, if each of them is binary."""
    tensors: list[_Tensor] = []
    begin = 0
    for tensor, (name, array) in zip(given, request.inputs.items(), strict=True):
        size = tensor["parameters"].get("binary_data_size") if tensor.get("parameters") else None
        if size is None:
            return None
        tensors.append(_Tensor(check.inputs[name], array.shape, element_count(array.shape), begin, begin + size))
        begin += size
    return tuple(tensors)


def _renewed(request: InferRequest, request_id: str, inputs: Mapping[str, Array], received_ns: int, size_bytes: int) -> InferRequest:
    """`request` with another id and other tensors, for no servable yet."""
    return InferRequest(
        request.model_name, inputs, request.output_names, request.signature, request.model_version, request_id, request.rows,
        request.deadline_ns, dict(request.parameters), received_ns, size_bytes, request.via, request.priority, request.timeout_us,
        request.sequence,
    )  # fmt: skip
