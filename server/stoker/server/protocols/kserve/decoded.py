"""A decoded request: the input of the engine, and the facts that encode its response."""

from collections.abc import Mapping
from typing import Protocol

from stoker.server.codecs.shared_memory import Span
from stoker.server.codecs.tensors import Raw
from stoker.server.core.request import InferRequest, InferResponse
from stoker.server.protocols.kserve.shared_tensors import NO_SHARED


class Encoded:
    """A response's body.

    Attributes:
        pieces: The body, in pieces.
        header_length: The length of its JSON part where binary tensors follow; None: all is JSON.
        size_bytes: Its length.
    """

    __slots__ = ("header_length", "pieces", "size_bytes")

    def __init__(self, pieces: list[Raw], header_length: int | None, size_bytes: int) -> None:
        self.pieces = pieces
        self.header_length = header_length
        self.size_bytes = size_bytes

    @property
    def body(self) -> bytes:
        """The pieces as one."""
        return b"".join(self.pieces)


class ResponsePlan(Protocol):
    """How to encode the responses to requests of one structure."""

    def learn(self, response: InferResponse) -> None:
        """Caches the text that later responses share with `response`, which was encoded in full."""

    def encode(self, response: InferResponse) -> Encoded | None:
        """Encodes `response`; None if its shapes differ from those of the cached text."""


class ResponseForm:
    """The form of a response, as the client requests it. Requests of one structure share one object.

    Attributes:
        classifications: By output, how many classes to name instead of giving the tensor.
        wants_empty_final: Whether a stream must end with a final marker.
        binary_outputs: Outputs to send as raw bytes; only HTTP clients choose.
        shared_outputs: By output, the span of shared memory to write it to.
        plan: Encodes the responses to requests of the same structure; None: there is none.
        is_plain: Whether there are neither classifications nor shared outputs.
    """

    __slots__ = ("binary_outputs", "classifications", "is_plain", "plan", "shared_outputs", "wants_empty_final")

    def __init__(
        self,
        classifications: Mapping[str, int],
        wants_empty_final: bool = False,
        binary_outputs: frozenset[str] = frozenset(),
        shared_outputs: Mapping[str, Span] = NO_SHARED,
        plan: ResponsePlan | None = None,
    ) -> None:
        self.classifications = classifications
        self.wants_empty_final = wants_empty_final
        self.binary_outputs = binary_outputs
        self.shared_outputs = shared_outputs
        self.plan = plan
        self.is_plain = not classifications and not shared_outputs

    def planned(self, plan: ResponsePlan) -> "ResponseForm":
        """This form with `plan`."""
        return ResponseForm(self.classifications, self.wants_empty_final, self.binary_outputs, self.shared_outputs, plan)


class DecodedRequest:
    """One decoded inference request.

    Attributes:
        request: The validated request.
        form: The form of the response.
    """

    __slots__ = ("form", "request")

    def __init__(self, request: InferRequest, form: ResponseForm) -> None:
        self.request = request
        self.form = form
