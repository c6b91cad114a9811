"""A decoded request: the input of the engine, and the facts that encode its response."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from stoker.server.codecs.shared_memory import Span
from stoker.server.codecs.tensors import Raw
from stoker.server.core.request import InferRequest, InferResponse
from stoker.server.protocols.kserve.shared_tensors import NO_SHARED


class Encoded(NamedTuple):
    """A response's body, in pieces; `header_length` is that of its JSON part where binary tensors follow, None where all is JSON."""

    pieces: Sequence[Raw]
    header_length: int | None

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


class DecodedRequest(NamedTuple):
    """One decoded inference request.

    Attributes:
        request: The validated request.
        classifications: By output, how many classes to name instead of giving the tensor.
        wants_empty_final: Whether a stream must end with a final marker.
        binary_outputs: Outputs to send as raw bytes; only HTTP clients choose.
        shared_outputs: By output, the span of shared memory to write it to.
        repeats: The plan that encodes the responses to requests of the same structure; None: there is none.
    """

    request: InferRequest
    classifications: Mapping[str, int]
    wants_empty_final: bool = False
    binary_outputs: frozenset[str] = frozenset()
    shared_outputs: Mapping[str, Span] = NO_SHARED
    repeats: ResponsePlan | None = None
