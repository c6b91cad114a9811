"""ModelInferRequests that a request like them came before, read straight from the wire.

Clients send the same message again and again with other tensors in it: the bytes around the raw contents tell the model, names, datatypes
and shapes, and what these were found to mean once they mean again. So a request that was decoded and validated in full leaves a
template: those bytes, and where between them the tensors lie. A later message of the same length that holds the same bytes in the same
places is the same request but for its id and its elements; its tensors are views of it, and nothing of it is parsed.

Kept only where that is certain: fields in the order in which protobuf writes them, raw contents that are the elements as they are (no
strings, no booleans), no parameters of the request and no shared memory. All else takes the long way, every time.
"""

from collections.abc import Iterable
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from stoker.backends.api.errors import InvalidRequest, ServingError
from stoker.backends.api.model import ModelSignature
from stoker.backends.api.wire import LENGTH
from stoker.server.codecs.memo import KEY_BYTES, BoundedCache
from stoker.server.codecs.tensors import Raw
from stoker.server.core.byte_budget import WireWalk
from stoker.server.core.limits import Limits
from stoker.server.core.request import Array, InferRequest
from stoker.server.engine.interface import Engine
from stoker.server.protocols.kserve.decoded import DecodedRequest

#: The longest text of a template, in bytes.
_LONGEST = KEY_BYTES
#: The beginning of a message that holds all of its text, with an id, if it has a template.
_HEAD_BYTES = _LONGEST + 256
#: A message of more fields is not worth a template.
_MOST_FIELDS = 64
_NAME, _VERSION, _ID, _INPUT, _OUTPUT, _RAW = (number << 3 | LENGTH for number in (1, 2, 3, 5, 6, 7))
#: Lengths below take one byte on the wire.
_ONE_BYTE = 0x80


class _Place(NamedTuple):
    """A tensor's place in the message, counted from where its text begins."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[np.generic]
    at: int


class _Template(NamedTuple):
    """One request's meaning.

    Attributes:
        text: What follows the id, up to the first tensor's bytes.
        between: The bytes between two tensors, each with its place counted from where `text` begins.
        places: The tensors.
        like: The request it was decoded to, without its tensors.
        meaning: What the `DecodedRequest` holds beside the request.
        signature: What it was checked against.
    """

    text: bytes
    between: tuple[tuple[int, bytes], ...]
    places: tuple[_Place, ...]
    like: InferRequest
    meaning: tuple[Any, ...]
    signature: ModelSignature


class RequestTemplates:
    """Confined to: the event loop."""

    def __init__(self, engine: Engine, limits: Limits) -> None:
        self._resolve = engine.resolve
        self._now_ns = engine.now_ns
        self._most_id = min(limits.id_length, _ONE_BYTE - 1)
        #: By the bytes before the id and the number of those behind it.
        self._kept: BoundedCache[tuple[bytes, int], _Template] = BoundedCache()
        #: Of large messages, by their size: where the first tensor begins.
        self._leads: BoundedCache[int, int] = BoundedCache()

    def lead_bytes(self, size_bytes: int) -> int:
        """Where the first tensor began in the last message of `size_bytes` bytes; 0 if unknown."""
        return self._leads.get(size_bytes) or 0

    def __len__(self) -> int:
        """Templates kept."""
        return len(self._kept)

    def decode(self, data: Raw, deadline_ns: int | None) -> DecodedRequest | None:
        """What `data` asks for; None where it must be decoded in full, also where that will reject it."""
        head = data if type(data) is bytes else bytes(data[:_HEAD_BYTES])
        try:
            if head[0] != _NAME:
                return None
            at = head[1] + 2
            if head[at] == _VERSION:
                at += head[at + 1] + 2
            begin, request_id = at, ""
            if head[at] == _ID:
                at += head[at + 1] + 2
                request_id = head[begin + 2 : at].decode()
                if at - begin - 2 > self._most_id:
                    return None
        except (IndexError, UnicodeDecodeError):
            return None
        template = self._kept.get((head[:begin], len(data) - at))
        if template is None or not head.startswith(template.text, at):
            return None
        _, between, places, like, meaning, signature = template
        for place, separator in between:
            if data[at + place : at + place + len(separator)] != separator:
                return None
        try:
            servable = self._resolve(like.model_name, like.model_version)
            if servable.signature is not signature:
                return None
        except ServingError:
            return None
        inputs: dict[str, Array] = {}
        for name, shape, dtype, place in places:
            inputs[name] = np.ndarray(shape, dtype, data, at + place)
        if head is not data:
            self._leads.put(len(data), at + places[0].at)
        request = InferRequest(
            like.model_name, inputs, like.output_names, signature, like.model_version, request_id, like.rows, deadline_ns,
            like.parameters, self._now_ns(), len(data), like.via, servable=servable,
        )  # fmt: skip
        return DecodedRequest(request, *meaning)

    def learn(self, data: Raw, decoded: DecodedRequest) -> None:
        """Keeps what `data`, decoded in full, was found to mean, if that can be kept."""
        layout = _layout(data)
        if layout is None:
            return
        begin, at, raws = layout
        request = decoded.request
        text = bytes(data[at : raws[0][0]])
        if len(raws) != len(request.inputs) or begin + len(text) > _LONGEST or b"shared_memory" in text:
            return
        places = tuple(_places(at, raws, request.inputs.items()))
        if len(places) != len(raws):
            return
        between = tuple((end - at, bytes(data[end:begins])) for (_, end), (begins, _) in pairwise(raws))
        # The tensors would keep this whole message in memory.
        like = InferRequest(
            model_name=request.model_name,
            model_version=request.model_version,
            inputs={},
            rows=request.rows,
            output_names=request.output_names,
            signature=request.signature,
            via=request.via,
        )
        template = _Template(text, between, places, like, decoded[1:], request.signature)
        self._kept.put((bytes(data[:begin]), len(data) - at), template)


def _layout(data: Raw) -> tuple[int, int, list[tuple[int, int]]] | None:
    """Where the id begins, where what follows it begins, and from where to where each raw content lies; None: not the common form."""
    walk, begin, at, raws, last = WireWalk(data), 0, 0, list[tuple[int, int]](), 0
    try:
        for count, (tag, _, value, end) in enumerate(walk.fields(0, len(data))):
            if count >= _MOST_FIELDS or tag < last or tag not in (_NAME, _VERSION, _ID, _INPUT, _OUTPUT, _RAW):
                return None
            if tag <= _ID:
                # Once each, and behind a length of one byte, as `decode` reads them.
                if tag == last or end - value >= _ONE_BYTE or value - (begin if tag < _ID else at) != 2:
                    return None
                at = end
                begin = end if tag < _ID else begin
            elif tag == _RAW:
                raws.append((value, end))
            last = tag
    except InvalidRequest:
        return None
    return (begin, at, raws) if raws and begin else None


def _places(at: int, raws: list[tuple[int, int]], inputs: Iterable[tuple[str, Array]]) -> Iterable[_Place]:
    """The places of those `inputs` whose elements are their raw contents as they are."""
    for (name, array), (begin, end) in zip(inputs, raws, strict=True):
        # Strings are no plain elements, and bytes are booleans only once they were looked at.
        if array.dtype not in (np.object_, np.bool_) and array.nbytes == end - begin:
            yield _Place(name, array.shape, array.dtype, begin - at)
