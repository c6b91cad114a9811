"""A request after decoding: what the engine needs, and what the encoder of its response must remember."""

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
        """Keeps the text that later responses have in common with `response`, which was encoded in full."""

    def encode(self, response: InferResponse) -> Encoded | None:
        """The body that carries `response`; None where it differs from the one learned."""


class DecodedRequest(NamedTuple):
    """One decoded inference request.

    Attributes:
        request: Validated.
        classifications: By output, how many classes to name instead of giving the tensor.
        wants_empty_final: Whether a stream must end with a final marker.
        binary_outputs: Outputs to send as raw bytes; only HTTP leaves the choice.
        shared_outputs: By output, where in shared memory it is to be written.
        repeats: What it has in common with others like it, where it was remembered.
    """

    request: InferRequest
    classifications: Mapping[str, int]
    wants_empty_final: bool = False
    binary_outputs: frozenset[str] = frozenset()
    shared_outputs: Mapping[str, Span] = NO_SHARED
    repeats: ResponsePlan | None = None
