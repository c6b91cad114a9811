"""Plans of infer requests over HTTP: how to decode a request of a known structure, and to encode its response.

A plan follows from the request's structure (see `stoker.server.codecs.memo`) and the model's signature. The text of the response around the
numbers follows from the request and the shapes of the outputs in the same way. Requests with shared memory or classification, and those
with tensors partly in the JSON and partly behind it, have no plan.
"""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import orjson

from stoker.backends.api.model import ModelSignature, TensorSpec
from stoker.backends.api.tensor import DataType
from stoker.server.codecs.memo import KEY_BYTES, BoundedCache, ParsedJson, parse_structure, trimmed
from stoker.server.codecs.tensors import UNPACKABLE, Packer, array_from_bytes, flattened, packer
from stoker.server.codecs.validation import SignatureCheck, SignatureMismatch
from stoker.server.core.limits import Limits
from stoker.server.core.request import Array, InferRequest, InferResponse
from stoker.server.protocols.kserve.decoded import DecodedRequest, Encoded
from stoker.server.protocols.kserve.http_codec import Body, ResponseFrame, frame_of

#: Nesting depth of a flat `data` in the JSON of a request.
_DATA_DEPTH: Final = 4
#: Looked up once: it is called for every tensor.
_ndarray: Final = np.ndarray


class _Listed:
    """An input whose elements are a JSON list; `pack` converts them to bytes."""

    __slots__ = ("dtype", "is_boolean", "name", "pack", "shape")

    def __init__(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any], pack: Packer) -> None:
        self.name = name
        self.shape = shape
        self.dtype = dtype
        self.is_boolean = bool(dtype == np.bool_)
        self.pack = pack


class _Binary:
    """An input whose elements lie at `[begin, end)` of the binary part; `is_plain`: its array is a view of any such bytes."""

    __slots__ = ("begin", "dtype", "elements", "end", "is_plain", "name", "shape", "spec")

    def __init__(self, spec: TensorSpec, shape: tuple[int, ...], elements: int, begin: int, end: int) -> None:
        self.spec = spec
        self.name = spec.name
        self.dtype: np.dtype[Any] = spec.datatype.numpy
        self.shape = shape
        self.elements = elements
        self.begin = begin
        self.end = end
        self.is_plain = spec.datatype not in (DataType.BYTES, DataType.BOOL) and end - begin == elements * spec.datatype.item_bytes


class RequestPlan:
    """How to decode requests of one structure, and to encode their responses. Confined to: the event loop.

    A plan decodes only requests that are certainly valid. All others are decoded in full, which finds the error.
    """

    __slots__ = ("_check", "_colons", "_form", "_frame", "_model_version", "_request", "_shapes", "_signature")

    def __init__(self, check: SignatureCheck, parsed: ParsedJson, decoded: DecodedRequest) -> None:
        """`parsed` was validated by `check` as `decoded`."""
        self._check = check
        # The plan keeps no tensor and no servable alive.
        self._request = _renewed(decoded.request, "", {}, 0, 0)
        self._form = decoded.form.planned(self)
        self._colons = parsed.key.count(b":")
        self._frame: ResponseFrame | None = None
        self._model_version = 0
        self._signature: ModelSignature | None = None
        self._shapes: list[tuple[int, ...]] = []

    def decode(self, check: SignatureCheck, parsed: ParsedJson, body: Body, received_ns: int) -> DecodedRequest | None:
        """Decodes `body`, whose JSON part is `parsed`; None if it must be decoded in full.

        REQUIRES: `parsed` has the plan's structure. `check` belongs to the version that the request currently selects.
        """
        # The structure does not show repeated keys, nor whether there are lists.
        if check is not self._check or not parsed.is_plain(self._colons):
            return None
        inputs = self._inputs(parsed, body)
        if inputs is None:
            return None
        return DecodedRequest(_renewed(self._request, parsed.request_id, inputs, received_ns, len(body)), self._form)

    def _inputs(self, parsed: ParsedJson, body: Body) -> dict[str, Array] | None:
        raise NotImplementedError

    def learn(self, response: InferResponse) -> None:
        """Caches the text that later responses share with `response`, which was encoded in full."""
        self._frame = frame_of(response, self._form)
        self._model_version = response.model_version
        self._signature = response.signature
        self._shapes = [array.shape for array in response.outputs.values()]

    def encode(self, response: InferResponse) -> Encoded | None:
        """Encodes `response`; None if its shapes differ from those of the cached text."""
        frame = self._frame
        if (
            frame is None
            or response.parameters
            or response.signature is not self._signature
            or response.model_version != self._model_version
        ):
            return None
        shapes = self._shapes
        for at, array in enumerate(response.outputs.values()):
            if array.shape != shapes[at]:
                return None
        return frame.filled(response)


class _ListPlan(RequestPlan):
    """The elements of all inputs are in the JSON part."""

    __slots__ = ("_es", "_most_nested", "_tensors")

    def __init__(self, check: SignatureCheck, parsed: ParsedJson, decoded: DecodedRequest, tensors: list[_Listed], limits: Limits) -> None:
        super().__init__(check, parsed, decoded)
        self._tensors = tensors
        self._es = parsed.key.count(b"e")
        self._most_nested = limits.json_depth - _DATA_DEPTH

    def _inputs(self, parsed: ParsedJson, body: Body) -> dict[str, Array] | None:
        if len(parsed.data) != len(self._tensors) or len(body) != len(parsed.text):
            return None
        # `true` and `false` have an `e`; numbers have one only in an exponent.
        may_have_words = parsed.count("e", self._es) != 0
        inputs: dict[str, Array] = {}
        try:
            for at, tensor in enumerate(self._tensors):
                data = parsed.data[at]
                if data and type(data[0]) is list:
                    flat = flattened(data, self._most_nested)
                    if flat is None:
                        return None
                    data = flat
                if may_have_words and not tensor.is_boolean and bool in map(type, data):
                    return None
                inputs[tensor.name] = _ndarray(tensor.shape, tensor.dtype, tensor.pack(*data))
        except UNPACKABLE:
            return None
        return inputs


class _BinaryPlan(RequestPlan):
    """The elements of all inputs follow the JSON part."""

    __slots__ = ("_binary_bytes", "_tensors")

    def __init__(self, check: SignatureCheck, parsed: ParsedJson, decoded: DecodedRequest, tensors: list[_Binary]) -> None:
        super().__init__(check, parsed, decoded)
        self._tensors = tensors
        self._binary_bytes = tensors[-1].end if tensors else 0

    def _inputs(self, parsed: ParsedJson, body: Body) -> dict[str, Array] | None:
        text_bytes = len(parsed.text)
        if parsed.data or len(body) - text_bytes != self._binary_bytes:
            return None
        inputs: dict[str, Array] = {}
        try:
            for tensor in self._tensors:
                begin = text_bytes + tensor.begin
                if tensor.is_plain:
                    inputs[tensor.name] = _ndarray(tensor.shape, tensor.dtype, body, begin)
                else:
                    raw = memoryview(body)[begin : text_bytes + tensor.end]
                    inputs[tensor.name] = array_from_bytes(self._check, tensor.spec, tensor.shape, tensor.elements, raw)
        except SignatureMismatch:
            return None
        return inputs


class RequestMemo:
    """Plans by model, requested version and structure. Confined to: the event loop."""

    def __init__(self) -> None:
        self._plans: BoundedCache[tuple[str, int | None, bytes], RequestPlan] = BoundedCache()
        #: JSON parts of valid requests before binary tensors: clients without ids send the same one each time.
        self._heads: BoundedCache[bytes, ParsedJson] = BoundedCache()

    def __len__(self) -> int:
        """Number of cached plans."""
        return len(self._plans)

    def parse(self, text: bytes, limits: Limits, *, is_binary: bool) -> ParsedJson | None:
        """As `parse_structure`; with `is_binary`, binary tensors follow `text`."""
        if not is_binary:
            return parse_structure(text, limits)
        return self._heads.entries.get(text) or parse_structure(text, limits)

    def find(self, name: str, version: int | None, key: bytes) -> RequestPlan | None:
        """The plan of requests to (`name`, `version`) with the structure `key`."""
        return self._plans.entries.get((name, version, key))

    def remember(self, parsed: ParsedJson, check: SignatureCheck, decoded: DecodedRequest, limits: Limits) -> DecodedRequest:
        """Makes a plan for the structure of `parsed`, which `check` validated as `decoded`; returns `decoded` with the plan."""
        if len(parsed.key) > KEY_BYTES or not decoded.form.is_plain:
            return decoded
        plan: RequestPlan
        parsed.key = trimmed(parsed.key)
        if parsed.data:
            listed = _listed(check, decoded.request)
            if listed is None:
                return decoded
            plan = _ListPlan(check, parsed, decoded, listed, limits)
        else:
            binary = _binary(check, decoded.request, orjson.loads(parsed.key)["inputs"])
            if binary is None:
                return decoded
            plan = _BinaryPlan(check, parsed, decoded, binary)
            if len(parsed.text) <= KEY_BYTES:
                self._heads.put(parsed.text, parsed)
        request = decoded.request
        self._plans.put((request.model_name, request.model_version, parsed.key), plan)
        return DecodedRequest(request, decoded.form.planned(plan))


def _listed(check: SignatureCheck, request: InferRequest) -> list[_Listed] | None:
    """The inputs, whose elements are all in the JSON part; None: one has strings, which may hold colons."""
    tensors: list[_Listed] = []
    for name, array in request.inputs.items():
        pack = packer(check.inputs[name].datatype, array.size)
        if pack is None:
            return None
        tensors.append(_Listed(name, array.shape, array.dtype, pack))
    return tensors


def _binary(check: SignatureCheck, request: InferRequest, given: list[Mapping[str, Any]]) -> list[_Binary] | None:
    """The inputs, if each of them is binary."""
    tensors: list[_Binary] = []
    begin = 0
    for tensor, (name, array) in zip(given, request.inputs.items(), strict=True):
        size = tensor["parameters"].get("binary_data_size") if tensor.get("parameters") else None
        if size is None:
            return None
        tensors.append(_Binary(check.inputs[name], array.shape, array.size, begin, begin + size))
        begin += size
    return tensors


def _renewed(request: InferRequest, request_id: str, inputs: dict[str, Array], received_ns: int, size_bytes: int) -> InferRequest:
    """A copy of `request` with another id and other tensors, without a servable."""
    return InferRequest(
        request.model_name, inputs, request.output_names, request.signature, request.model_version, request_id, request.rows,
        request.deadline_ns, dict(request.parameters), received_ns, size_bytes, request.via, request.priority, request.timeout_us,
        request.sequence,
    )  # fmt: skip
